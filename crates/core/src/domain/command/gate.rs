//! Gate of a server that starts and stops a profiler of its own.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::load::{LOCAL_URL, is_local};

/// URLs that start and stop the profiler of a server, and the traces that it writes. `{port}` and
/// `{out}` have the command's values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateSettings {
    /// Receives a POST when the window starts: `http://127.0.0.1:{port}/start_profile`.
    pub start: String,
    /// Receives a POST when it ends.
    pub stop: String,
    /// JSON body of the start.
    #[serde(default)]
    pub body: Option<Map<String, Value>>,
    /// Pattern of the traces that the server writes: `/tmp/traces/*.json*`. Those written since the
    /// start of the window are copied.
    pub collect: String,
    /// Seconds until the stop is answered, and until the traces are complete.
    #[serde(default = "within_s")]
    pub within_s: u32,
}

fn within_s() -> u32 {
    300
}

impl GateSettings {
    /// Checks URLs, pattern and time.
    pub(super) fn check(&self) -> Result<(), String> {
        for (key, url) in [("start", &self.start), ("stop", &self.stop)] {
            if !is_local(url) {
                return Err(format!("gate.{key}: {LOCAL_URL}"));
            }
        }
        if !self.collect.starts_with('/') && !self.collect.starts_with("{out}/") {
            return Err("gate.collect: expected an absolute pattern, or one in {out}/".into());
        }
        if let Err(error) = glob::Pattern::new(&self.collect) {
            return Err(format!("gate.collect: invalid pattern: {error}"));
        }
        if !(1..=1800).contains(&self.within_s) {
            return Err(format!("gate.within_s: {} is not between 1 and 1800", self.within_s));
        }
        Ok(())
    }

    /// The gate of one pass.
    pub fn at(&self, out: &str, port: u16) -> Self {
        let fill = |text: &str| text.replace("{port}", &port.to_string());
        Self {
            start: fill(&self.start),
            stop: fill(&self.stop),
            collect: fill(&self.collect).replace("{out}", &glob::Pattern::escape(out)),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> GateSettings {
        GateSettings {
            start: "http://127.0.0.1:{port}/start_profile".into(),
            stop: "http://127.0.0.1:{port}/stop_profile".into(),
            body: None,
            collect: "{out}/*.json*".into(),
            within_s: 9,
        }
    }

    #[test]
    fn a_gate_is_of_this_host_and_its_folder_is_no_pattern() {
        assert_eq!(gate().check(), Ok(()));
        let at = gate().at("/runs/[a]", 81);
        assert_eq!(
            (at.start.as_str(), at.stop.contains(":81/")),
            ("http://127.0.0.1:81/start_profile", true)
        );
        let pattern = glob::Pattern::new(&at.collect).unwrap();
        assert!(pattern.matches("/runs/[a]/t.json.gz") && !pattern.matches("/runs/a/t.json"));
    }

    #[test]
    fn foreign_urls_and_bad_patterns_are_refused() {
        for (gate, why) in [
            (GateSettings { start: "http://x/".into(), ..gate() }, "gate.start"),
            (GateSettings { stop: "ftp://127.0.0.1".into(), ..gate() }, "gate.stop"),
            (GateSettings { collect: "traces/*".into(), ..gate() }, "gate.collect"),
            (GateSettings { collect: "/a/***".into(), ..gate() }, "gate.collect"),
            (GateSettings { within_s: 0, ..gate() }, "gate.within_s"),
        ] {
            let error = gate.check().unwrap_err();
            assert!(error.starts_with(why), "{error}");
        }
    }
}

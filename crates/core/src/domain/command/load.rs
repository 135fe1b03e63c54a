//! Load of a server by llmprof's own load generator, as the operator states it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Program of the load generator, found next to the service.
pub const LOAD_PROGRAM: &str = "llmprof";

/// Rule of URLs that llmprof queries.
pub(super) const LOCAL_URL: &str =
    "must start with http://127.0.0.1, http://localhost or http://[::1]";

/// Options of `llmprof load`; each may be a `{param}`. Absent options have the generator's default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoadTemplate {
    /// The server; `http://127.0.0.1:{port}` when absent.
    pub url: Option<String>,
    pub api: Option<LoadOption>,
    pub model: Option<LoadOption>,
    pub prompt_tokens: Option<LoadOption>,
    pub vocabulary: Option<LoadOption>,
    pub prompts: Option<LoadOption>,
    pub new_tokens: Option<LoadOption>,
    pub concurrency: Option<LoadOption>,
    pub rate: Option<LoadOption>,
    pub requests: Option<LoadOption>,
    pub seconds: Option<LoadOption>,
    pub seed: Option<LoadOption>,
    pub timeout: Option<LoadOption>,
    /// Fields that are added to each request.
    pub body: Option<Map<String, Value>>,
}

/// Value of an option: a number, a text or a placeholder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LoadOption {
    Int(i64),
    Float(f64),
    Text(String),
}

impl LoadTemplate {
    /// URL of the server, with its placeholder.
    pub fn url(&self) -> &str {
        self.url.as_deref().unwrap_or("http://127.0.0.1:{port}")
    }

    /// Arguments of the load generator, with placeholders.
    pub fn args(&self) -> Vec<String> {
        let options = [
            ("api", &self.api),
            ("model", &self.model),
            ("prompt-tokens", &self.prompt_tokens),
            ("vocabulary", &self.vocabulary),
            ("prompts", &self.prompts),
            ("new-tokens", &self.new_tokens),
            ("concurrency", &self.concurrency),
            ("rate", &self.rate),
            ("requests", &self.requests),
            ("seconds", &self.seconds),
            ("seed", &self.seed),
            ("timeout", &self.timeout),
        ];
        let mut args = vec!["load".to_owned(), self.url().to_owned()];
        for (name, value) in options {
            match value {
                Some(LoadOption::Int(value)) => args.push(format!("--{name}={value}")),
                Some(LoadOption::Float(value)) => args.push(format!("--{name}={value}")),
                Some(LoadOption::Text(value)) => args.push(format!("--{name}={value}")),
                None => {}
            }
        }
        if let Some(body) = &self.body {
            // Braces of JSON are not placeholders.
            let body = Value::Object(body.clone()).to_string();
            args.push(format!("--body={}", body.replace('{', "{{").replace('}', "}}")));
        }
        args
    }
}

/// Steps that a window must contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MinSteps {
    pub prefill: u32,
    pub decode: u32,
}

impl Default for MinSteps {
    fn default() -> Self {
        Self { prefill: 3, decode: 20 }
    }
}

/// Recording of a server in the middle of its load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WindowSettings {
    /// Steps that it contains at least; the length follows from the load before it.
    pub min_steps: MinSteps,
    /// Maximum length, seconds.
    pub max_s: u32,
}

impl Default for WindowSettings {
    fn default() -> Self {
        Self { min_steps: MinSteps::default(), max_s: 30 }
    }
}

impl WindowSettings {
    /// Checks the bounds.
    pub(super) fn check(self) -> Result<(), String> {
        if !(1..=600).contains(&self.max_s) {
            return Err(format!("window.max_s: {} is not between 1 and 600", self.max_s));
        }
        let steps = [self.min_steps.prefill, self.min_steps.decode];
        match steps.iter().find(|steps| **steps > 100_000) {
            Some(steps) => Err(format!("window.min_steps: {steps} is more than 100000")),
            None => Ok(()),
        }
    }
}

/// True if `url` leads to this host: readiness checks query no other.
pub(super) fn is_local(url: &str) -> bool {
    let rest = ["http://127.0.0.1", "http://localhost", "http://[::1]"]
        .iter()
        .find_map(|start| url.strip_prefix(start));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']))
        && !url.contains(['@', ' '])
}

#[cfg(test)]
mod tests {
    use crate::domain::command::{CommandCall, CommandTarget};

    fn command(load: &str) -> CommandTarget {
        toml::from_str(&format!(
            "description = 'x'\nkind = 'server'\nprogram = 'serve'\nargs = ['{{port}}']\n\
             ready = {{ log = 'up' }}\nload = {load}\n\
             params.clients = {{ type = 'int', min = 1, max = 9, default = 4, description = 'n' }}"
        ))
        .unwrap()
    }

    #[test]
    fn a_load_is_a_command_line_with_parameters_in_place() {
        let target = command("{ concurrency = '{clients}', rate = 2.5, body = { a = { b = 1 } } }");
        target.check("s").unwrap();
        let call =
            CommandCall { command: "s".into(), params: [].into(), gpus: None, session: None };
        let plan = target.plan(&call, &[].into()).unwrap();
        let client = plan.client.as_ref().unwrap();
        assert!(client.is_load);
        assert_eq!(
            plan.client_command_line().unwrap(),
            [
                "llmprof",
                "load",
                "http://127.0.0.1:{port}",
                "--concurrency=4",
                "--rate=2.5",
                "--body={\"a\":{\"b\":1}}"
            ]
        );
    }

    #[test]
    fn a_load_of_another_host_or_next_to_a_client_is_refused() {
        for (load, why) in [
            ("{ url = 'http://example.com', concurrency = '{clients}' }", "load.url"),
            ("{ concurrency = '{absent}' }", "load"),
        ] {
            let error = command(load).check("s").unwrap_err();
            assert!(error.starts_with(why), "{error}");
        }
        let mut both = command("{ concurrency = '{clients}' }");
        both.client = Some(crate::domain::command::Client { program: "c".into(), args: vec![] });
        let error = both.check("s").unwrap_err();
        assert_eq!(error, "load: a server has either a client or a load");
    }
}

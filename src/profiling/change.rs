//! A change of single settings over a preset, checked whole: unknown keys, wrong types, values out of range.

use serde_json::{Map, Value};

use super::Profiling;
use crate::config::nearest;

/// Settings to change, as a tree of the same shape as [`Profiling`].
pub type Change = Map<String, Value>;

#[derive(Debug, thiserror::Error)]
pub enum ProfilingError {
    #[error("unknown setting {key}{}", nearest.as_ref().map(|near| format!("; did you mean {near}?")).unwrap_or_default())]
    UnknownKey { key: String, nearest: Option<String> },
    #[error("{0}")]
    Wrong(String),
}

impl Profiling {
    /// These settings with those of `change` over them.
    pub fn changed(&self, change: Change) -> Result<Self, ProfilingError> {
        let wrong = |error: &dyn std::error::Error| ProfilingError::Wrong(error.to_string());
        let mut settings = serde_json::to_value(self).map_err(|error| wrong(&error))?;
        if let Value::Object(settings) = &mut settings {
            merge(settings, change, "")?;
        }
        // The path tells which setting was wrong.
        let changed: Self = serde_path_to_error::deserialize(settings).map_err(|error| wrong(&error))?;
        changed.check()?;
        Ok(changed)
    }
}

/// Puts `over` over `base`, key by key.
fn merge(base: &mut Change, over: Change, path: &str) -> Result<(), ProfilingError> {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Object(base)), Value::Object(over)) => merge(base, over, &format!("{path}{key}."))?,
            // As JSON Schema understands it, 3.0 is an integer, too.
            (Some(known), value) => *known = value.as_f64().and_then(|it| whole(known, it)).unwrap_or(value),
            (None, _) => {
                let near = nearest(&key, base.keys().map(String::as_str)).map(|near| format!("{path}{near}"));
                return Err(ProfilingError::UnknownKey { key: format!("{path}{key}"), nearest: near });
            }
        }
    }
    Ok(())
}

/// The number as an integer, where an integer belongs and it is one.
fn whole(known: &Value, number: f64) -> Option<Value> {
    (known.is_u64() && number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number)).then(|| Value::from(number as u64))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{profiling::*, run::Mode};

    fn changed(change: Value) -> Result<Profiling, String> {
        let Value::Object(change) = change else { panic!("a change is an object") };
        Profiling::bundled(Mode::Deep).unwrap().changed(change).map_err(|error| error.to_string())
    }

    #[test]
    fn the_bundled_presets_mean_what_their_modes_say() {
        let [deep, light, basic] = [Mode::Deep, Mode::Light, Mode::Basic].map(|mode| Profiling::bundled(mode).unwrap());
        let enabled = |it: &Profiling| [it.nsys.enabled, it.ncu.enabled, it.gemm_log.enabled, it.nvml.enabled];
        assert_eq!(enabled(&deep), [true; 4]);
        assert_eq!(enabled(&light), [true, false, false, true]);
        assert_eq!(enabled(&basic), [false, false, false, true]);
        assert_eq!((deep.nsys.cuda_graph_trace, light.nsys.cuda_graph_trace), (GraphTrace::Node, GraphTrace::Graph));
        assert!(light.nsys.max_new_tokens < deep.nsys.max_new_tokens, "one short decode");
        for preset in [deep, light, basic] {
            assert_eq!((preset.nsys.sample, preset.nsys.cpuctxsw), (CpuScope::None, CpuScope::None));
            assert!(!preset.nsys.trace.contains(&TraceApi::Cublas) && preset.nsys.is_whole());
        }
    }

    #[test]
    fn a_change_leaves_the_rest_as_it_was() {
        let change = json!({"nsys": {"trace": ["cuda", "nvtx", "osrt"], "cuda_graph_trace": "graph"}, "ncu": {"top_n": 3}});
        let mut expected = Profiling::bundled(Mode::Deep).unwrap();
        expected.nsys.trace.push(TraceApi::Osrt);
        expected.nsys.cuda_graph_trace = GraphTrace::Graph;
        expected.ncu.top_n = 3;
        assert_eq!(changed(change).unwrap(), expected);
        let whole = serde_json::to_value(&expected).unwrap();
        assert_eq!(changed(whole).unwrap(), expected, "what a run shows can be asked for again");
    }

    #[test]
    fn an_unknown_setting_is_refused_with_the_nearest_one() {
        let error = changed(json!({"nsys": {"cuda_graphs_trace": "node"}})).unwrap_err();
        assert_eq!(error, "unknown setting nsys.cuda_graphs_trace; did you mean nsys.cuda_graph_trace?");
        assert_eq!(changed(json!({"nsyss": {}})).unwrap_err(), "unknown setting nsyss; did you mean nsys?");
    }

    #[test]
    fn wrong_values_are_refused_by_name() {
        for (change, said) in [
            (json!({"nsys": {"trace": ["cuda", "nvtxx"]}}), "nsys.trace[1]: unknown variant `nvtxx`"),
            (json!({"nsys": {"trace": ["cuda"]}}), "nsys.trace lacks nvtx"),
            (json!({"nsys": {"trace": null}}), "nsys.trace: invalid type: null"),
            (json!({"nsys": true}), "nsys: invalid type: boolean"),
            (json!({"ncu": {"top_n": 0}}), "ncu.top_n: 0 is not between 1 and 50"),
            (json!({"ncu": {"top_n": 1e300}}), "ncu.top_n: "),
            (json!({"nvml": {"hz": -1}}), "nvml.hz: "),
            (json!({"ncu": {"sections": []}}), "length of ncu.sections: 0 is not between 1 and 32"),
        ] {
            let error = changed(change).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn nothing_that_a_tool_could_take_for_more_than_a_name_gets_through() {
        for word in ["", "*", "--export", "a b", "a;b", "$(id)", "../x", "a*b", "é", &"x".repeat(200)] {
            let error = changed(json!({"ncu": {"sections": [word]}})).unwrap_err();
            assert!(error.contains("is no name of ncu's"), "{word:?}: {error}");
        }
        assert!(changed(json!({"ncu": {"metrics": ["sm__ops_path_tensor_src_*", "dram__bytes_read.sum"]}})).is_ok());
    }
}

//! Changes of single settings of a preset; the result is validated as a whole.

use serde_json::Value;

use super::Profiling;
use crate::domain::{
    plain_words::plain_words,
    settings::{self, Settings, UnknownSetting},
};

#[derive(Debug, thiserror::Error)]
pub enum ProfilingError {
    #[error(transparent)]
    UnknownKey(#[from] UnknownSetting),
    #[error("{0}")]
    Wrong(String),
}

impl Profiling {
    /// Returns these settings overwritten with `change`.
    pub fn with_changes(&self, change: Settings) -> Result<Self, ProfilingError> {
        let wrong =
            |error: &dyn std::error::Error| ProfilingError::Wrong(plain_words(&error.to_string()));
        let mut changed = serde_json::to_value(self).map_err(|error| wrong(&error))?;
        if let Value::Object(base) = &mut changed {
            settings::merge(base, change)?;
        }
        // The error contains the path of the setting.
        let changed: Self =
            serde_path_to_error::deserialize(changed).map_err(|error| wrong(&error))?;
        changed.check()?;
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::{mode::Mode, profiling::*};

    fn changed(change: Value) -> Result<Profiling, String> {
        let Value::Object(change) = change else { panic!("a change is an object") };
        Profiling::bundled(&Mode::DEEP)
            .unwrap()
            .with_changes(change)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_bundled_presets_match_their_modes() {
        let [deep, light, basic] =
            [Mode::DEEP, Mode::LIGHT, Mode::BASIC].map(|mode| Profiling::bundled(&mode).unwrap());
        let enabled = |it: &Profiling| {
            [
                it.nsys.enabled,
                it.gpu_metrics.enabled,
                it.ncu.enabled,
                it.gemm_log.enabled,
                it.nvml.enabled,
            ]
        };
        assert_eq!(enabled(&deep), [true; 5]);
        assert_eq!(enabled(&light), [true, false, false, false, true]);
        assert_eq!(enabled(&basic), [false, false, false, false, true]);
        assert_eq!(
            (deep.nsys.cuda_graph_trace, light.nsys.cuda_graph_trace),
            (GraphTrace::Node, GraphTrace::Graph)
        );
        assert!(light.nsys.max_new_tokens < deep.nsys.max_new_tokens, "one short decode");
        for preset in [deep, light, basic] {
            assert_eq!(
                (preset.nsys.sample, preset.nsys.cpuctxsw),
                (CpuScope::None, CpuScope::None)
            );
            assert!(!preset.nsys.trace.contains(&TraceApi::Cublas) && preset.nsys.records_all());
        }
    }

    #[test]
    fn a_change_keeps_the_other_settings() {
        let nsys = json!({"trace": ["cuda", "nvtx", "osrt"], "cuda_graph_trace": "graph"});
        let change = json!({"nsys": nsys, "ncu": {"max_launches": 3}});
        let mut expected = Profiling::bundled(&Mode::DEEP).unwrap();
        expected.nsys.trace.push(TraceApi::Osrt);
        expected.nsys.cuda_graph_trace = GraphTrace::Graph;
        expected.ncu.max_launches = 3;
        assert_eq!(changed(change).unwrap(), expected);
        let whole = serde_json::to_value(&expected).unwrap();
        assert_eq!(changed(whole).unwrap(), expected, "a run's settings can be submitted again");
    }

    #[test]
    fn an_unknown_setting_is_rejected_with_the_nearest_one() {
        let error = changed(json!({"nsys": {"cuda_graphs_trace": "node"}})).unwrap_err();
        assert_eq!(
            error,
            "unknown setting nsys.cuda_graphs_trace; did you mean nsys.cuda_graph_trace?"
        );
        assert_eq!(
            changed(json!({"nsyss": {}})).unwrap_err(),
            "unknown setting nsyss; did you mean nsys?"
        );
    }

    #[test]
    fn settings_of_older_runs_are_read_and_no_longer_accepted_in_requests() {
        let bundled = Profiling::bundled(&Mode::DEEP).unwrap();
        let mut older = serde_json::to_value(&bundled).unwrap();
        let ncu = older["ncu"].as_object_mut().unwrap();
        for key in ["target_pct", "launches_per_config", "max_processes", "details"] {
            ncu.remove(key);
        }
        for (key, value) in [("top_n", 5), ("launches", 3), ("min_share_pct", 80)] {
            ncu.insert(key.into(), value.into());
        }
        older.as_object_mut().unwrap().remove("gpu_metrics");
        let read = serde_json::from_value::<Profiling>(older).unwrap();
        assert!(!read.gpu_metrics.enabled, "the pass is newer than the run");
        assert_eq!(Profiling { gpu_metrics: bundled.gpu_metrics.clone(), ..read }, bundled);
        let error = changed(json!({"ncu": {"top_n": 5}})).unwrap_err();
        assert!(error.starts_with("unknown setting ncu.top_n"), "{error}");
    }

    #[test]
    fn wrong_values_are_rejected_by_name() {
        for (change, expected) in [
            (
                json!({"nsys": {"trace": ["cuda", "nvtxx"]}}),
                "invalid nsys.trace[1] \"nvtxx\"; expected one of",
            ),
            (json!({"nsys": {"trace": ["cuda"]}}), "nsys.trace lacks nvtx"),
            (json!({"nsys": {"trace": null}}), "invalid nsys.trace null; expected"),
            (json!({"nsys": true}), "invalid nsys true; expected"),
            (json!({"ncu": {"max_launches": 0}}), "ncu.max_launches: 0 is not between 1 and 1000"),
            (json!({"ncu": {"max_processes": 1e300}}), "ncu.max_processes"),
            (json!({"nvml": {"hz": -1}}), "nvml.hz: -1 is not between 1 and 100"),
            (
                json!({"gpu_metrics": {"rates_hz": [10_000.0, 9.5]}}),
                "invalid gpu_metrics.rates_hz[1] 9.5; expected an integer between 10 and 200000",
            ),
            (
                json!({"gpu_metrics": {"rates_hz": [10_000.0, 9.0]}}),
                "gpu_metrics.rates_hz[1]: 9 is not between 10 and 200000",
            ),
            (json!({"gpu_metrics": {"rates_hz": [200_001]}}), "is not between 10 and 200000"),
            (json!({"gpu_metrics": {"rates_hz": []}}), "length of gpu_metrics.rates_hz: 0"),
            (
                json!({"gpu_metrics": {"rates_hz": [10, 20, 30, 40]}}),
                "length of gpu_metrics.rates_hz: 4 is not between 1 and 3",
            ),
            (
                json!({"gpu_metrics": {"rates_hz": [20_000, 10_000, 20_000]}}),
                "gpu_metrics.rates_hz: 20000 is listed twice",
            ),
            (json!({"ncu": {"sections": []}}), "length of ncu.sections: 0 is not between 1 and 32"),
        ] {
            let error = changed(change).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_text_that_a_tool_could_interpret_is_rejected() {
        for word in
            ["", "*", "--export", "a b", "a;b", "$(id)", "../x", "a*b", "é", &"x".repeat(200)]
        {
            let error = changed(json!({"ncu": {"sections": [word]}})).unwrap_err();
            assert!(error.contains("is not a valid name"), "{word:?}: {error}");
        }
        assert!(
            changed(
                json!({"ncu": {"metrics": ["sm__ops_path_tensor_src_*", "dram__bytes_read.sum"]}})
            )
            .is_ok()
        );
    }
}

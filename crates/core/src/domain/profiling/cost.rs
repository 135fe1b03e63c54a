//! Settings of the timeline pass that lengthen the program, with their cost.

use serde_json::Value;

use super::{CpuScope, GraphTrace, Profiling, RunnerPass, TraceApi};
use crate::domain::settings::{Settings, assignments, difference};

/// Work of a traced stage: each setting lengthens only some kinds of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TracedWork {
    pub on_cpu: bool,
    /// True if the model runner calls operators one by one, as without a graph.
    pub calls_operators: bool,
    /// True if CUDA graphs are replayed whose kernels are recorded.
    pub records_nodes: bool,
}

/// A change of the settings that makes a trace lighter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LighterSetting {
    /// As below `profiling`: `nsys.sample=none`.
    pub assignments: Vec<String>,
    /// Cost of the present value.
    pub cost: &'static str,
}

/// A value of settings that lengthens the program.
struct CostlySetting {
    cost: &'static str,
    /// Replaces the value if it is set and lengthens such work.
    lighten: fn(&mut Profiling, TracedWork),
}

/// Largest cost first. The figures are of tests/gpu/overhead-h200.txt and, for graphs, of
/// tests/gpu/run-h200.txt and run-h100.txt; conf/profiling/deep.toml has the figure of cuBLAS.
const COSTLY: [CostlySetting; 6] = [
    CostlySetting {
        cost: "calls of cuBLAS and cuDNN; cuBLAS alone can triple decode",
        lighten: |it, work| {
            traced(it, work).retain(|api| !matches!(api, TraceApi::Cublas | TraceApi::Cudnn));
        },
    },
    CostlySetting {
        cost: "CPU samples and switches of all processes: a prefill of transformers took 144 % \
               longer with both, 41 % without",
        lighten: |it, _| stop_sampling(it, CpuScope::SystemWide),
    },
    CostlySetting {
        cost: "ranges of operators: a short prefill took 39 to 79 % longer with them, 24 to 31 % \
               without",
        lighten: |it, work| {
            if work.calls_operators {
                close_operator_ranges(it);
            }
        },
    },
    CostlySetting {
        cost: "CPU samples and switches of the process tree: a prefill of transformers took 56 % \
               longer with both, 41 % without",
        lighten: |it, _| stop_sampling(it, CpuScope::ProcessTree),
    },
    CostlySetting {
        cost: "kernels inside CUDA graphs: a decode took 3.4 to 4.3 % longer with them, 0.6 to \
               1.4 % without, as in mode light",
        lighten: |it, work| {
            if work.records_nodes {
                it.nsys.cuda_graph_trace = GraphTrace::Graph;
            }
        },
    },
    CostlySetting {
        cost: "calls of the operating system: a short prefill took 15 % longer with them, 32 % \
               without, which is noise",
        lighten: |it, work| traced(it, work).retain(|api| *api != TraceApi::Osrt),
    },
];

/// The traced APIs.
fn traced(settings: &mut Profiling, work: TracedWork) -> &mut Vec<TraceApi> {
    let nsys = &mut settings.nsys;
    if work.on_cpu { &mut nsys.trace_on_cpu } else { &mut nsys.trace }
}

fn stop_sampling(settings: &mut Profiling, scope: CpuScope) {
    for own in [&mut settings.nsys.sample, &mut settings.nsys.cpuctxsw] {
        if *own == scope {
            *own = CpuScope::None;
        }
    }
}

fn close_operator_ranges(settings: &mut Profiling) {
    let pass = RunnerPass::Nsys;
    if !settings.runner.operators.contains(&pass) || !settings.operators_are_ranges(pass) {
        return;
    }
    let listed = if settings.nsys.records_all() {
        &mut settings.runner.operator_ranges
    } else {
        // All recorded operators are ranges.
        &mut settings.runner.operators
    };
    listed.retain(|it| *it != pass);
}

impl Profiling {
    /// Changes that make the trace of such work lighter, largest cost first. Later changes of a
    /// list include the earlier ones.
    pub fn lighter(&self, work: TracedWork) -> Vec<LighterSetting> {
        let mut settings = self.clone();
        let change = |costly: &CostlySetting| {
            let before = settings.clone();
            (costly.lighten)(&mut settings, work);
            let assignments = settings.assignments_over(&before);
            (!assignments.is_empty()).then_some(LighterSetting { assignments, cost: costly.cost })
        };
        COSTLY.iter().filter_map(change).collect()
    }

    /// The settings that differ from `base`, as `nsys.sample=none`.
    pub fn assignments_over(&self, base: &Self) -> Vec<String> {
        let tree = |settings: &Self| match serde_json::to_value(settings) {
            Ok(Value::Object(tree)) => tree,
            _ => Settings::new(),
        };
        assignments(&difference(&tree(base), tree(self)))
    }

    /// True if the operators that a pass records are NVTX ranges, too.
    pub fn operators_are_ranges(&self, pass: RunnerPass) -> bool {
        // A recording of a part has ranges that cannot be joined to the events of the whole.
        let records_part = pass == RunnerPass::Nsys && !self.nsys.records_all();
        records_part || self.runner.operator_ranges.contains(&pass)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::{mode::Mode, settings::assign_all};

    const SINGLE: TracedWork =
        TracedWork { on_cpu: false, calls_operators: true, records_nodes: false };
    const REPLAYED: TracedWork =
        TracedWork { on_cpu: false, calls_operators: false, records_nodes: true };
    const ON_CPU: TracedWork =
        TracedWork { on_cpu: true, calls_operators: true, records_nodes: false };

    fn changed(change: Value) -> Profiling {
        let Value::Object(change) = change else { panic!("a change is an object") };
        Profiling::bundled(&Mode::DEEP).unwrap().with_changes(change).unwrap()
    }

    fn lighter(change: Value, work: TracedWork) -> Vec<String> {
        changed(change).lighter(work).into_iter().flat_map(|it| it.assignments).collect()
    }

    #[test]
    fn each_costly_setting_of_a_pass_is_changed_for_the_work_that_it_lengthens() {
        let ranges = json!({"runner": {"operator_ranges": ["nsys", "ncu"]}});
        let in_part = json!({"nsys": {"delay_s": 3}});
        let cases = [
            (json!({}), SINGLE, vec![]),
            (json!({}), REPLAYED, vec!["nsys.cuda_graph_trace=graph"]),
            (json!({}), ON_CPU, vec![r#"nsys.trace_on_cpu=["nvtx"]"#]),
            (json!({"nsys": {"cpuctxsw": "system-wide"}}), SINGLE, vec!["nsys.cpuctxsw=none"]),
            (json!({"nsys": {"sample": "process-tree"}}), SINGLE, vec!["nsys.sample=none"]),
            (
                json!({"nsys": {"sample": "process-tree", "cpuctxsw": "system-wide"}}),
                SINGLE,
                vec!["nsys.cpuctxsw=none", "nsys.sample=none"],
            ),
            (ranges.clone(), SINGLE, vec![r#"runner.operator_ranges=["ncu"]"#]),
            (ranges, REPLAYED, vec!["nsys.cuda_graph_trace=graph"]),
            (
                in_part,
                SINGLE,
                vec![r#"runner.operators=["baseline","gpu_metrics","ncu","gemm_log"]"#],
            ),
            (
                json!({"nsys": {"trace": ["cuda", "nvtx", "osrt", "cublas", "cudnn"]}}),
                SINGLE,
                vec![r#"nsys.trace=["cuda","nvtx","osrt"]"#, r#"nsys.trace=["cuda","nvtx"]"#],
            ),
        ];
        for (change, work, expected) in cases {
            assert_eq!(lighter(change.clone(), work), expected, "{change}");
        }
    }

    #[test]
    fn settings_with_all_changes_applied_cannot_be_made_lighter() {
        let heavy = changed(json!({
            "nsys": {
                "trace": ["cuda", "nvtx", "osrt", "cublas"], "sample": "system-wide",
                "cpuctxsw": "process-tree", "trace_on_cpu": ["osrt", "nvtx"]
            },
            "runner": {"operator_ranges": ["nsys"]}
        }));
        for work in [SINGLE, REPLAYED, ON_CPU] {
            let mut settings = heavy.clone();
            for lighter in heavy.lighter(work) {
                let mut change = Settings::new();
                assign_all(&mut change, &lighter.assignments).unwrap();
                settings = settings.with_changes(change).unwrap();
            }
            assert!(settings.lighter(work).is_empty(), "{work:?}");
            assert!(settings.check().is_ok());
        }
    }
}

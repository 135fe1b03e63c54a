//! Settings of a run's timeline pass that make the trace of a stage lighter.

use llmprof_core::{
    domain::{
        device::Device,
        profiling::{LighterSetting, TracedWork},
    },
    trace::{Trace, event::Start},
};

use super::OverheadRecord;
use crate::{events::Events, stages::DECODE, stats::ratio, timeline::gpu::StageGpu};

/// Evidence of the finding: changes of the settings, as below `profiling`.
pub const SETTINGS_EVIDENCE: &str = "lighter settings";
/// Separator of the changes in the evidence.
pub const SETTINGS_SEPARATOR: &str = "; ";

/// Ways to make the trace of one stage lighter.
#[derive(Debug)]
pub(super) struct LighterTrace {
    /// Settings that were on and lengthen the stage, largest cost first; `None` if the settings
    /// of the pass are unknown.
    settings: Option<Vec<LighterSetting>>,
    /// True if decode launches each kernel by itself.
    decode_as_graph: bool,
    /// Launches of an instance without graphs, and the microseconds that tracing adds to each.
    pub single: Option<(u64, f64)>,
}

impl LighterTrace {
    /// `gpu`: launches of the record's stage, `gpus`: of all stages; `replays` is true when decode
    /// replays a CUDA graph.
    pub fn of(
        (record, gpu): (&OverheadRecord, Option<&StageGpu>),
        (trace, gpus): (&Trace, &[StageGpu]),
        replays: bool,
    ) -> Self {
        let graphs = gpu.map_or(0, |it| it.graph_launches.unwrap_or(0));
        let launches = gpu.filter(|_| graphs == 0).map_or(0, |it| it.launches);
        let each = gpu.and_then(|it| launches.checked_div(it.instances)).filter(|it| *it > 0);
        let is_decode = record.stage == DECODE;
        let has_nodes = |it: &StageGpu| it.graph_launches.unwrap_or(0) > it.whole_graphs;
        let work = TracedWork {
            on_cpu: is_on_cpu(trace),
            calls_operators: trace.subject.has_runner() && graphs == 0 && !(is_decode && replays),
            // The time of a whole command includes all stages.
            records_nodes: gpu.map_or_else(|| gpus.iter().any(has_nodes), has_nodes),
        };
        Self {
            settings: trace.settings.as_ref().map(|it| it.lighter(work)),
            decode_as_graph: launches > 0 && is_decode && !replays,
            single: each.and_then(|each| {
                Some((each, ratio(1e3 * (record.traced_ms - record.plain_ms), each as f64)?))
            }),
        }
    }

    /// All changes as one value of the evidence, a later one of a list in place of an earlier one.
    pub fn assignments(&self) -> Option<String> {
        let all = self.settings.iter().flatten().flat_map(|it| &it.assignments);
        let name = |it: &str| it.split('=').next().unwrap_or_default().to_owned();
        let mut kept: Vec<&str> = Vec::new();
        for assignment in all {
            kept.retain(|it| name(it) != name(assignment));
            kept.push(assignment);
        }
        (!kept.is_empty()).then(|| kept.join(SETTINGS_SEPARATOR))
    }

    pub fn advice(&self) -> String {
        let graph = "decode as a CUDA graph, which is traced as one launch";
        let graph = self.decode_as_graph.then(|| graph.to_owned());
        let settings = self.settings.iter().flatten().map(sentence);
        let lighter: Vec<String> = settings.chain(graph).collect();
        match (lighter.as_slice(), self.single) {
            ([], _) if self.settings.is_none() => {
                "The settings of the traced pass are unknown.".into()
            }
            ([], Some(_)) => {
                "No setting that lengthens a trace was on, and the record of each launch has its \
                 cost; a longer prompt or a larger batch hides this cost."
                    .into()
            }
            ([], None) => {
                "The trace is already minimal: no setting that lengthens it was on.".into()
            }
            (lighter, _) => format!("Lighter settings (`--set`): {}.", lighter.join("; ")),
        }
    }
}

/// A change as `--set` reads it, and the cost of the present value.
fn sentence(lighter: &LighterSetting) -> String {
    format!("{} ({})", lighter.assignments.join(" and "), lighter.cost)
}

fn is_on_cpu(trace: &Trace) -> bool {
    let by_runner = Events::of(&trace.baseline).start.is_some_and(Start::is_on_cpu);
    by_runner || trace.environment.device.as_ref().is_some_and(Device::is_cpu)
}

#[cfg(test)]
mod tests {
    use llmprof_core::{
        domain::{
            finding::Finding,
            mode::Mode,
            profiling::{CpuScope, Profiling, RunnerPass, TraceApi},
            subject::SubjectKind,
        },
        trace::timeline::Timeline,
    };

    use super::super::{findings, overhead, tests::decode};
    use super::*;

    /// A stage of 10 ms that takes 20 ms under nsys.
    fn doubled(stage: &str) -> OverheadRecord {
        let record = overhead(&decode(10.0, 1), &decode(20.0, 1)).remove(0);
        OverheadRecord { stage: stage.into(), ..record }
    }

    fn launched(stage: &str, launches: u64, graphs: u64, whole_graphs: u64) -> StageGpu {
        StageGpu {
            stage: stage.into(),
            instances: 2,
            launches,
            graph_launches: Some(graphs),
            whole_graphs,
            ..StageGpu::default()
        }
    }

    /// A trace whose pass had the settings of mode deep with these changes.
    fn traced(change: impl Fn(&mut Profiling)) -> Trace {
        let mut settings = Profiling::bundled(&Mode::DEEP).unwrap();
        change(&mut settings);
        Trace { timeline: Some(Timeline::default()), settings: Some(settings), ..Trace::default() }
    }

    fn found(stage: &str, trace: &Trace, gpus: &[StageGpu], replays: bool) -> Finding {
        findings(&[doubled(stage)], &[], (trace, gpus), replays).remove(0)
    }

    /// Lighter settings of the finding, and its advice.
    fn lighter(finding: &Finding) -> (&str, &str) {
        let settings = finding.evidence.get(SETTINGS_EVIDENCE).map_or("", String::as_str);
        (settings, finding.advice.as_deref().unwrap())
    }

    #[test]
    fn each_stage_lists_the_settings_that_are_lighter_for_it() {
        let of = |gpu: StageGpu| found(DECODE, &traced(|_| ()), &[gpu], false);
        let nodes = of(launched(DECODE, 90, 2, 0));
        let (settings, advice) = lighter(&nodes);
        assert_eq!(settings, "nsys.cuda_graph_trace=graph");
        assert!(advice.contains("Lighter settings (`--set`): nsys.cuda_graph_trace=graph ("));
        assert!(!nodes.evidence.contains_key("added per launch"));
        let single = of(launched(DECODE, 90, 0, 0));
        let (settings, advice) = lighter(&single);
        assert!(settings.is_empty() && advice.contains("decode as a CUDA graph"), "{advice}");
        assert!(single.evidence["added per launch"].contains("(45 launches)"));
    }

    #[test]
    fn a_trace_is_minimal_only_if_no_costly_setting_was_on() {
        type Change = fn(&mut Profiling);
        let costly: [(Change, &str); 7] = [
            (|it| it.nsys.cpuctxsw = CpuScope::SystemWide, "nsys.cpuctxsw=none"),
            (|it| it.nsys.sample = CpuScope::SystemWide, "nsys.sample=none"),
            (|it| it.nsys.sample = CpuScope::ProcessTree, "nsys.sample=none"),
            (|it| it.nsys.trace.push(TraceApi::Osrt), r#"nsys.trace=["cuda","nvtx"]"#),
            (|it| it.nsys.trace.push(TraceApi::Cublas), r#"nsys.trace=["cuda","nvtx"]"#),
            (|it| it.nsys.trace.push(TraceApi::Cudnn), r#"nsys.trace=["cuda","nvtx"]"#),
            (|it| it.runner.operator_ranges = vec![RunnerPass::Nsys], "runner.operator_ranges=[]"),
        ];
        for gpu in [launched("prefill", 0, 0, 0), launched("prefill", 500, 0, 0)] {
            let gpus = [gpu];
            let plain = found("prefill", &traced(|_| ()), &gpus, true);
            let (settings, advice) = lighter(&plain);
            assert!(settings.is_empty() && advice.contains("o setting that lengthens"), "{advice}");
            for (change, expected) in costly {
                let costs = found("prefill", &traced(change), &gpus, true);
                let (settings, advice) = lighter(&costs);
                assert_eq!(settings, expected);
                let is_listed = advice.contains(&format!("settings (`--set`): {expected} ("));
                assert!(is_listed && !advice.contains("minimal"), "{advice}");
            }
        }
    }

    #[test]
    fn changes_are_in_the_order_of_their_cost_and_each_setting_is_changed_once() {
        let trace = traced(|it| {
            it.nsys.trace = [TraceApi::Nvtx, TraceApi::Osrt, TraceApi::Cublas].to_vec();
            (it.nsys.sample, it.nsys.cpuctxsw) = (CpuScope::ProcessTree, CpuScope::SystemWide);
        });
        let finding = found("prefill", &trace, &[launched("prefill", 500, 0, 0)], true);
        let (settings, advice) = lighter(&finding);
        assert_eq!(settings, r#"nsys.cpuctxsw=none; nsys.sample=none; nsys.trace=["nvtx"]"#);
        let at = |text: &str| advice.find(text).unwrap_or_else(|| panic!("{text}: {advice}"));
        let order = ["cuBLAS alone", "of all processes", "of the process tree", "operating system"];
        assert!(order.is_sorted_by_key(|text| at(text)), "{advice}");
    }

    #[test]
    fn a_stage_of_single_launches_is_not_made_lighter_by_the_graphs_of_another() {
        let gpus = [launched("prefill", 1000, 0, 0), launched(DECODE, 500, 9, 0)];
        let finding = found("prefill", &traced(|_| ()), &gpus, true);
        let (settings, advice) = lighter(&finding);
        assert!(settings.is_empty() && advice.contains("a longer prompt"), "{advice}");
        assert_eq!(finding.evidence["added per launch"], "20.0 us (500 launches)");
    }

    #[test]
    fn a_whole_command_has_the_settings_of_all_its_stages_and_no_advice_of_more_repeats() {
        let gpus = [launched(DECODE, 500, 9, 0)];
        let of = |gpus: &[StageGpu]| {
            let ranges = |it: &mut Profiling| it.runner.operator_ranges = vec![RunnerPass::Nsys];
            let trace = Trace { subject: SubjectKind::Command, ..traced(ranges) };
            let finding = found("process", &trace, gpus, false);
            let (settings, advice) = lighter(&finding);
            assert!(!advice.contains("repeats"), "{advice}");
            settings.to_owned()
        };
        assert_eq!((of(&gpus).as_str(), of(&[]).as_str()), ("nsys.cuda_graph_trace=graph", ""));
    }

    #[test]
    fn the_traced_apis_are_those_of_the_device_of_the_pass() {
        let both = |it: &mut Profiling| it.nsys.trace.push(TraceApi::Osrt);
        let mut trace = traced(both);
        let on_gpu = found("prefill", &trace, &[], false);
        assert_eq!(lighter(&on_gpu).0, r#"nsys.trace=["cuda","nvtx"]"#);
        trace.environment.device = Some(Device::cpu());
        let on_cpu = found("prefill", &trace, &[], false);
        assert_eq!(lighter(&on_cpu).0, r#"nsys.trace_on_cpu=["nvtx"]"#);
    }

    #[test]
    fn a_trace_of_unknown_settings_is_not_called_minimal() {
        let trace = Trace { timeline: Some(Timeline::default()), ..Trace::default() };
        let finding = found("prefill", &trace, &[], false);
        let (settings, advice) = lighter(&finding);
        assert!(settings.is_empty() && advice.contains("are unknown"), "{advice}");
    }
}

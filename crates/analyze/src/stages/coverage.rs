//! Completeness of a timeline: recorded kernels against launching calls, and ranges against
//! expected ones.
//!
//! nsys and its importer can lose most of a capture and exit with 0, so a capture is valid only
//! when it covers its launches.

mod advice;
mod by_stage;

use std::hash::Hash;

use foldhash::{HashMap, HashSet};

use serde::Serialize;

pub use self::{
    advice::lost_in_steps,
    by_stage::{
        KERNELS_LOST, KERNELS_UNATTRIBUTED, StageCoverage, by_stage, findings,
        launches::{FirstCalls, each_launching_call},
    },
};
use llmprof_core::{
    domain::finding::{Finding, Severity, catalogue},
    trace::{
        call_index::LaunchId,
        event::STAGE_DOMAIN,
        runtime_call::CallKind,
        timeline::{GraphLaunch, Timeline},
    },
};

use super::import_error::ImportError;
use crate::{stats::percent, timeline::running::each_running};

/// Min recorded share of the launched kernels, percent, of a complete capture.
pub(crate) const COMPLETE_PCT: f64 = 99.0;
/// Max nsys diagnostics quoted in a finding.
const MAX_QUOTED: usize = 5;

/// Launched and recorded kernels of a capture.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Coverage {
    /// Kernels launched by the traced calls, including graph launches.
    pub launched: u64,
    /// Launched kernels that are in the trace.
    pub recorded: u64,
    /// Expected ranges without an instance.
    pub missing_ranges: Vec<String>,
}

/// Counts the kernels of one capture. A kernel launched into a capturing stream does not run.
pub fn coverage(trace: &Timeline, expected: &[&str]) -> Coverage {
    let mut recorded = LaunchSet::default();
    for kernel in trace.kernels.iter().chain(trace.untimed.kernels.iter()) {
        recorded.insert(kernel.launch_id());
    }
    let mut coverage = Coverage::default();
    each_running(trace, CallKind::Kernel, |_, call| {
        coverage.launched += 1;
        coverage.recorded += u64::from(recorded.contains(call.launch_id()));
    });
    let (launched, recorded) = graph_coverage(trace);
    coverage.launched += launched;
    coverage.recorded += recorded;
    let has = |name: &str| {
        trace.ranges.iter().any(|range| {
            range.name == name && (range.domain == STAGE_DOMAIN || range.domain.is_empty())
        })
    };
    coverage.missing_ranges =
        expected.iter().filter(|name| !has(name)).map(|name| (*name).to_owned()).collect();
    coverage
}

/// A set of launches by process and correlation id: a bit each, for the ids of a process are dense.
#[derive(Default)]
struct LaunchSet(HashMap<(i64, i64), [u64; LaunchSet::WORDS]>);

impl LaunchSet {
    const WORDS: usize = 16;
    /// Ids of one entry.
    const IDS: i64 = 64 * Self::WORDS as i64;

    /// Word and bit of an id within its entry.
    fn place(correlation: i64) -> (usize, u64) {
        let at = correlation.rem_euclid(Self::IDS) as usize;
        (at / 64, 1 << (at % 64))
    }

    fn insert(&mut self, (process, correlation): LaunchId) {
        let (word, bit) = Self::place(correlation);
        self.0.entry((process, correlation.div_euclid(Self::IDS))).or_default()[word] |= bit;
    }

    fn contains(&self, (process, correlation): LaunchId) -> bool {
        let (word, bit) = Self::place(correlation);
        let ids = self.0.get(&(process, correlation.div_euclid(Self::IDS)));
        ids.is_some_and(|ids| ids[word] & bit != 0)
    }
}

/// Kernels expected from and recorded for launches of graphs. A launch traced as a whole counts as
/// one recorded kernel.
pub(crate) fn graph_coverage(trace: &Timeline) -> (u64, u64) {
    let mut launches = Vec::new();
    each_running(trace, CallKind::Graph, |_, call| launches.push(call.launch_id()));
    if launches.is_empty() {
        return (0, 0);
    }
    let kernels = trace.kernels.iter().chain(trace.untimed.kernels.iter());
    let nodes = nodes_by_launch(kernels.filter_map(|it| Some((it.launch_id(), it.graph_node?))));
    let whole: HashSet<LaunchId> = trace.graphs.iter().map(GraphLaunch::launch_id).collect();
    let (whole, by_node): (Vec<_>, Vec<_>) =
        launches.into_iter().partition(|launch| whole.contains(launch));
    let (launched, recorded) = graph_kernels(&by_node, &nodes);
    (launched + whole.len() as u64, recorded + whole.len() as u64)
}

/// Distinct nodes by launch of their graph, in order.
fn nodes_by_launch<K: Eq + Hash>(kernels: impl Iterator<Item = (K, u64)>) -> HashMap<K, Vec<u64>> {
    let mut nodes: HashMap<K, Vec<u64>> = HashMap::default();
    kernels.for_each(|(launch, node)| nodes.entry(launch).or_default().push(node));
    for nodes in nodes.values_mut() {
        nodes.sort_unstable();
        nodes.dedup();
        nodes.shrink_to_fit();
    }
    nodes
}

/// Kernels expected from and recorded for launches of graphs traced by node.
fn graph_kernels(launches: &[(i64, i64)], nodes: &HashMap<(i64, i64), Vec<u64>>) -> (u64, u64) {
    let ran: Vec<Option<&Vec<u64>>> = launches.iter().map(|launch| nodes.get(launch)).collect();
    let recorded = ran.iter().flatten().map(|ran| ran.len() as u64).sum();
    (graph_sizes(&ran).iter().sum(), recorded)
}

/// Number of kernels in the graph of each launch, from the nodes recorded for it. Launches that
/// share a node belong to one graph, which has the union of their nodes. A launch without recorded
/// kernels counts as one of the smallest graph.
fn graph_sizes(ran: &[Option<&Vec<u64>>]) -> Vec<u64> {
    let mut graph_of: HashMap<u64, usize> = HashMap::default();
    let mut graphs: Vec<HashSet<u64>> = Vec::new();
    let mut of_launch = Vec::with_capacity(ran.len());
    for ran in ran {
        let Some(ran) = ran.filter(|ran| !ran.is_empty()) else {
            of_launch.push(None);
            continue;
        };
        let graph = ran.iter().find_map(|node| graph_of.get(node).copied()).unwrap_or(graphs.len());
        if graph == graphs.len() {
            graphs.push(HashSet::default());
        }
        for node in ran {
            if graph_of.insert(*node, graph) != Some(graph) {
                graphs[graph].insert(*node);
            }
        }
        of_launch.push(Some(graph));
    }
    let size = |graph: usize| graphs[graph].len() as u64;
    let smallest = (0..graphs.len()).map(size).min().unwrap_or(1);
    of_launch.into_iter().map(|graph| graph.map_or(smallest, size)).collect()
}

impl Coverage {
    /// Recorded over launched kernels, percent; `None` when nothing was launched.
    pub fn pct(&self) -> Option<f64> {
        percent(self.recorded as f64, self.launched as f64)
    }

    /// A finding on an incomplete capture, quoting nsys diagnostics from the export and from `log`;
    /// `None` when complete. `expect_kernels` requires at least one launch.
    pub fn finding(
        &self,
        expect_kernels: bool,
        trace: &Timeline,
        log: &[String],
    ) -> Option<Finding> {
        let mut wrong = Vec::new();
        match self.pct() {
            Some(pct) if pct < COMPLETE_PCT => {
                wrong.push(format!(
                    "{} of {} launched kernels are recorded ({pct:.1} %)",
                    self.recorded, self.launched
                ));
            }
            None if expect_kernels => wrong.push("no kernel launch is recorded".to_owned()),
            _ => {}
        }
        if !self.missing_ranges.is_empty() {
            wrong.push(format!(
                "no range {} is recorded",
                self.missing_ranges.join(" and no range ")
            ));
        }
        if wrong.is_empty() {
            return None;
        }
        let message = format!("the timeline is incomplete: {}", wrong.join("; "));
        let mut finding = Finding::new(catalogue::INCOMPLETE_CAPTURE, message)
            .with("kernels launched", self.launched)
            .with("kernels recorded", self.recorded);
        let diagnostics: Vec<&str> =
            trace.diagnostics.iter().chain(log).map(String::as_str).take(MAX_QUOTED).collect();
        if !diagnostics.is_empty() {
            finding = finding.with("nsys", diagnostics.join(" | "));
        }
        Some(finding.advise(
            "use an nsys as new as the driver and read its log; do not rely on kernel times of \
             this pass",
        ))
    }

    /// A finding on a complete capture whose import ended with an error: its kernels count, its
    /// ranges need a look.
    pub fn import_errors(
        &self,
        error: &ImportError,
        trace: &Timeline,
        is_system_wide: bool,
    ) -> Finding {
        let (severity, proof) = if self.recorded > 0 {
            let (recorded, launched) = (self.recorded, self.launched);
            let proof = format!("{recorded} of its {launched} launched kernels are recorded");
            (Severity::Info, proof)
        } else {
            (Severity::Warning, "no kernel launch proves that it is complete".to_owned())
        };
        let message = format!("nsys imported the timeline with errors; {proof}");
        let finding = Finding::new(catalogue::NSYS_IMPORT_ERRORS, message)
            .severity(severity)
            .with("nsys", &error.line);
        let finding = match &error.reason {
            Some(reason) => finding.with("reason", reason),
            None => finding,
        };
        if let Some(cause) = error.foreign_file(is_system_wide) {
            return finding.advise(cause);
        }
        let remedy = "If ranges are missing, use an nsys as new as the driver, or record without \
                      them (profiling.nsys.trace = [\"cuda\"])";
        finding.advise(if error.shows_xla(trace) {
            format!("{remedy}: ranges of XLA, the compiler of JAX, cause this")
        } else {
            remedy.to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::{kernel::Kernel, timeline::ApiCall};

    use super::*;
    use crate::kernels::tests::capture;

    /// A capture whose calls have these names, in order.
    fn named(sketch: &str, names: &[&str]) -> Timeline {
        let mut trace = capture(sketch);
        let first = trace.strings.len() as u32;
        trace.strings.extend(names.iter().map(|name| (*name).to_owned()));
        let named = |(at, call)| ApiCall { name: first + at as u32, ..call };
        trace.cuda_calls = trace.cuda_calls.iter().enumerate().map(named).collect();
        trace
    }

    fn counts(trace: &Timeline) -> (u64, u64) {
        let coverage = coverage(trace, &[]);
        (coverage.launched, coverage.recorded)
    }

    #[test]
    fn a_launch_without_its_kernel_is_missing() {
        let names = ["cudaLaunchKernel_v7000", "cuLaunchKernelEx", "cudaMemcpy_v3020"];
        let trace =
            named("call 1 1 1..2\ncall 1 2 3..4\ncall 1 3 5..6\nkernel 1 gemm 5..6 7", &names);
        assert_eq!(counts(&trace), (2, 1));
        let finding = coverage(&trace, &["prefill"])
            .finding(true, &trace, &["importer failed".into()])
            .unwrap();
        assert_eq!(
            finding.message,
            "the timeline is incomplete: 1 of 2 launched kernels are recorded (50.0 %); no range \
             prefill is recorded"
        );
        assert_eq!(finding.evidence["nsys"], "importer failed");
    }

    #[test]
    fn errors_of_an_import_warn_only_where_no_kernel_proves_the_capture() {
        let whole = Coverage { launched: 1000, recorded: 995, missing_ranges: vec![] };
        let line = "Importation succeeded with non-fatal errors.".to_owned();
        let error = ImportError { line, reason: Some("Not an ELF: /tmp/a/lib.so.1".into()) };
        let (trace, none) = (Timeline::default(), Coverage::default());
        let found = whole.import_errors(&error, &trace, false);
        assert_eq!(found.severity, Severity::Info);
        assert_eq!(
            found.message,
            "nsys imported the timeline with errors; 995 of its 1000 launched kernels are recorded"
        );
        assert_eq!(none.import_errors(&error, &trace, false).severity, Severity::Warning);
        assert_eq!(found.evidence["reason"], "Not an ELF: /tmp/a/lib.so.1");
        let advice = |found: &Finding| found.advice.clone().unwrap();
        assert!(!advice(&found).contains("XLA"), "nothing shows it");
        let foreign = advice(&whole.import_errors(&error, &trace, true));
        assert!(foreign.contains("another process (/tmp/a/lib.so.1)"), "{foreign}");
        let of_xla = ImportError { reason: Some("no end of XlaModule:#x#".into()), ..error };
        let of_xla = advice(&whole.import_errors(&of_xla, &trace, true));
        assert!(of_xla.contains("ranges of XLA"), "{of_xla}");
    }

    #[test]
    fn launches_into_a_capturing_stream_do_not_run() {
        let names = [
            "cudaStreamBeginCapture_v10000",
            "cudaLaunchKernel_v7000",
            "cudaStreamEndCapture_v10000",
        ];
        assert_eq!(counts(&named("call 1 1 1..2\ncall 1 2 3..4\ncall 1 3 5..6", &names)), (0, 0));
    }

    #[test]
    fn a_replay_that_lost_nodes_is_compared_with_the_other_replays() {
        let mut trace =
            named("call 1 1 1..2\ncall 1 2 3..4\ncall 1 3 5..6", &["cudaGraphLaunch_v10000"; 3]);
        let template = Kernel::from(capture("kernel 1 gemm 5..6 7").kernels.get(0));
        for (launch, node) in [(1, 10), (1, 11), (1, 12), (2, 10)] {
            trace.kernels.push(Kernel {
                correlation_id: launch,
                graph_node: Some(node),
                ..template
            });
        }
        assert_eq!(counts(&trace), (9, 4));
    }

    #[test]
    fn a_replay_traced_as_a_whole_is_recorded_and_one_without_a_row_is_not() {
        let names = ["cudaGraphLaunch_v10000"; 3];
        let trace = named(
            "call 1 1 1..2\ncall 1 2 3..4\ncall 1 3 5..6\ngraph 1 5 7..9 7\ngraph 2 5 9..11 7",
            &names,
        );
        assert_eq!(counts(&trace), (3, 2));
    }

    #[test]
    fn a_launch_with_a_row_of_the_runtime_and_one_of_the_driver_is_one_launch() {
        let rows = "call 1 1 1..4\ncall 1 1 2..3\ncall 1 3 5..8\ncall 1 3 6..7";
        let launches = ["cudaLaunchKernel_v7000", "cuLaunchKernel"].repeat(2);
        let kernels = named(&format!("{rows}\nkernel 1 a 9..10 7"), &launches);
        assert_eq!(counts(&kernels), (2, 1));
        let launches = ["cudaGraphLaunch_v10000", "cuGraphLaunch"].repeat(2);
        let graphs = named(&format!("{rows}\ngraph 1 5 9..10 7"), &launches);
        assert_eq!(counts(&graphs), (2, 1));
    }

    #[test]
    fn a_run_without_kernels_is_complete_where_none_are_expected() {
        let trace = capture("range 1 prefill 0..10");
        let coverage = coverage(&trace, &["prefill"]);
        assert_eq!((coverage.pct(), coverage.finding(false, &trace, &[])), (None, None));
        assert!(
            coverage
                .finding(true, &trace, &[])
                .unwrap()
                .message
                .ends_with("no kernel launch is recorded")
        );
    }
}

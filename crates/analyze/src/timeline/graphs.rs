//! CUDA graphs traced as a whole: device time of their launches, by stage and graph.
//!
//! Such a launch is recorded from the start of its first node to the end of its last. Gaps between
//! nodes are not visible, so its time is an upper bound of the device's work, and its kernels are
//! not recorded.

use std::collections::BTreeMap;

use llmprof_core::{
    domain::{
        digits,
        finding::{Finding, catalogue},
        units::Nanos,
    },
    trace::{Trace, timeline::ON_HOST},
};
use serde::{Deserialize, Serialize};

use super::{
    capture::{Capture, Join},
    withheld::WithheldReason,
};
use crate::{
    Analysis, kernels::is_unmeasured_range, stages::in_sentence,
    timeline::duration_stats::DurationStats,
};

/// Launches of one CUDA graph on one device in one stage, each traced as a whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WholeGraph {
    /// Empty outside every stage.
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    /// Graph id of nsys; `null` if the export lacks it.
    #[cfg_attr(feature = "schema", schema(example = 7))]
    pub graph: Option<u64>,
    /// Index of the GPU on which the graph starts; `null` if it starts on the host and no other
    /// work shows the GPU.
    #[cfg_attr(feature = "schema", schema(example = 0))]
    pub device: Option<u32>,
    /// Device time of a launch, from its start to its end: an upper bound of the work inside.
    pub launch_ns: DurationStats,
}

/// Summarises whole-traced graphs outside the warm-up and steps that are left out, longest total
/// first.
pub fn whole_graphs(capture: &Capture) -> Vec<WholeGraph> {
    let mut groups: BTreeMap<(usize, Option<u64>, u32), Vec<i64>> = BTreeMap::new();
    for (it, Join { instance, .. }) in capture.graphs() {
        let group = (capture.stage_number(instance), it.graph, it.device);
        groups.entry(group).or_default().push(it.end_ns - it.start_ns);
    }
    let mut found: Vec<WholeGraph> = groups
        .into_iter()
        .map(|((number, graph, device), times)| WholeGraph {
            stage: capture.stage_label(number).into(),
            graph,
            device: Some(device).filter(|device| *device != ON_HOST),
            launch_ns: DurationStats::of(&times),
        })
        .filter(|it| !is_unmeasured_range(&it.stage))
        .collect();
    found.sort_by_key(|it| std::cmp::Reverse(it.launch_ns.total));
    found
}

/// Number and total time in milliseconds of whole-traced graph launches in one stage; `None`
/// without any.
pub fn of_stage(graphs: &[WholeGraph], stage: &str) -> Option<(u64, f64)> {
    let of = || graphs.iter().filter(|it| it.stage == stage);
    let launches = of().map(|it| it.launch_ns.count).sum();
    let total_ns = of().map(|it| it.launch_ns.total).fold(0, i64::saturating_add);
    (launches > 0).then(|| (launches, Nanos(total_ns).as_ms()))
}

/// Time of the longest launch in one stage, milliseconds.
pub fn longest(graphs: &[WholeGraph], stage: &str) -> f64 {
    let longest = graphs.iter().filter(|it| it.stage == stage).map(|it| it.launch_ns.max).max();
    Nanos(longest.unwrap_or(0)).as_ms()
}

/// Distinct stages with whole-traced graphs, longest first.
pub fn stages(graphs: &[WholeGraph]) -> Vec<&str> {
    let mut stages: Vec<&str> = Vec::new();
    for it in graphs.iter().filter(|it| !it.stage.is_empty()) {
        if !stages.contains(&it.stage.as_str()) {
            stages.push(&it.stage);
        }
    }
    stages
}

/// Findings on kernels hidden by whole-traced graphs, one per stage.
pub fn findings(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let hidden = |stage: &str| {
        let (launches, ms) = of_stage(&analysis.graphs, stage)?;
        let message = format!(
            "The kernels inside {} launches of CUDA graphs in {stage} are not recorded: the graphs \
             were traced as a whole, so GPU busy time is an upper bound.",
            digits::count(launches),
            stage = in_sentence(stage)
        );
        let found = Finding::new(catalogue::GRAPHS_TRACED_WHOLE, message).with("stage", stage);
        let mean = ms / launches as f64;
        let found = found.with("launches", launches).with("mean launch ms", format!("{mean:.3}"));
        Some(found.with("total launch ms", format!("{ms:.3}")))
    };
    stages(&analysis.graphs).into_iter().filter_map(hidden).collect()
}

/// The finding on graphs that start on the host, if their GPU is unknown.
pub fn unplaced(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let graphs = trace.timeline.as_ref().map_or(&[][..], |nsys| &nsys.graphs);
    let count = graphs.iter().filter(|it| it.device == ON_HOST).count();
    if count == 0 {
        return Vec::new();
    }
    let message = format!(
        "{} launches of CUDA graphs start on the host, and their process uses several GPUs or no \
         other work shows its GPU: which GPU runs them is not recorded.",
        digits::count(count as u64)
    );
    let found = Finding::new(catalogue::GRAPH_DEVICE_UNKNOWN, message);
    let stages = analysis.withheld.stages_with(WithheldReason::UnplacedGraph).join(", ");
    let found =
        if stages.is_empty() { found } else { found.with("omitted busy and idle time", stages) };
    vec![found.with("launches", count)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::tests::capture;

    #[test]
    fn launches_of_a_whole_graph_are_counted_by_stage_and_graph() {
        let trace = capture(
            "range 1 decode_all 0..50\ncall 1 1 1..2\ncall 1 2 11..12\ncall 1 3 21..22
             call 1 4 60..61
             graph 1 5 2..10 7\ngraph 2 5 12..24 7\ngraph 3 6 24..25 7\ngraph 4 5 62..70 7",
        );
        let graphs = whole_graphs(&Capture::of(&trace));
        let rows: Vec<_> = graphs
            .iter()
            .map(|it| {
                (&*it.stage, it.graph, it.launch_ns.count, it.launch_ns.total, it.launch_ns.mean)
            })
            .collect();
        assert_eq!(
            rows,
            [
                ("decode_all", Some(5), 2, 20, 10.0),
                ("", Some(5), 1, 8, 8.0),
                ("decode_all", Some(6), 1, 1, 1.0)
            ]
        );
        assert_eq!(of_stage(&graphs, "decode_all"), Some((3, 21e-6)));
        assert_eq!((of_stage(&graphs, "prefill"), stages(&graphs)), (None, vec!["decode_all"]));
    }
}

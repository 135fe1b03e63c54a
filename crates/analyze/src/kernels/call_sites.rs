//! Kernel time by the line of code that launched it, if a capture has stacks.

use std::collections::BTreeMap;

use llmprof_core::{domain::units::Nanos, trace::timeline::process_of};
use serde::{Deserialize, Serialize};

use super::{StageKernels, is_measured};
use crate::{
    stats::percent,
    timeline::capture::{Capture, Join},
};

/// Kernels that one line of code launched in one stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CallSite {
    /// Innermost frame of the program around the launching call, outside PyTorch and Python's own
    /// library; empty if the stack has none.
    #[cfg_attr(feature = "schema", schema(example = "serve.py(120): decode"))]
    pub call_site: String,
    /// Empty outside every stage.
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    pub kernels: u64,
    pub kernel_ms: f64,
    /// `kernel_ms` of the stage's kernel time, percent; `null` if kernels of the stage are missing.
    pub share_pct: Option<f64>,
}

/// Sums the kernels of a capture by line of code, longest first; empty without stacks.
pub fn call_sites(capture: &Capture, stages: &[StageKernels]) -> Vec<CallSite> {
    let known = &capture.trace.framework.call_sites;
    let captured = &capture.trace.graph_captures.graphs;
    let has_captured = captured.iter().flat_map(|it| &it.launches).any(|it| it.call_site.is_some());
    if known.is_empty() && !has_captured {
        return vec![];
    }
    let replays = capture.framework.as_ref().map(|it| &it.replays);
    let mut sums: BTreeMap<(&str, Option<u32>), (u64, i64)> = BTreeMap::new();
    for (at, (kernel, Join { instance, .. })) in capture.kernels().enumerate() {
        let stage = capture.stage(instance);
        if is_measured(stage) {
            // The line that launches a graph did not launch its kernels.
            let site = match replays.filter(|it| it.has_launch(at)) {
                Some(replays) => replays.call_site(capture.trace, at),
                None => known.get(process_of(kernel.global_pid), kernel.correlation_id),
            };
            let sum = sums.entry((stage, site)).or_default();
            *sum = (sum.0 + 1, sum.1.saturating_add(kernel.ns()));
        }
    }
    let record = |((stage, site), (kernels, ns)): ((&str, Option<u32>), (u64, i64))| {
        let name = site.and_then(|at| capture.trace.strings.get(at as usize));
        let of_stage = stages.iter().find(|it| it.stage == stage).and_then(|it| it.kernel_ms);
        let kernel_ms = Nanos(ns).as_ms();
        CallSite {
            call_site: name.cloned().unwrap_or_default(),
            stage: stage.to_owned(),
            kernels,
            kernel_ms,
            share_pct: of_stage.and_then(|all| percent(kernel_ms, all)),
        }
    };
    let mut records: Vec<CallSite> = sums.into_iter().map(record).collect();
    records.sort_by(|a, b| b.kernel_ms.total_cmp(&a.kernel_ms));
    records
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{kernels, tests::capture};

    #[test]
    fn kernels_are_summed_by_line_and_stage() {
        let mut trace = capture(
            "range 1 prefill 0..100\ncall 1 1 10..11\ncall 1 2 20..21\ncall 1 3 200..201
             kernel 1 k 300..330 7\nkernel 2 k 330..340 7\nkernel 3 k 400..405 7",
        );
        let stages = kernels(&Capture::of(&trace)).stages;
        assert_eq!(call_sites(&Capture::of(&trace), &stages), []);
        let line = trace.strings.len() as u32;
        trace.strings.push("serve.py(7): step".into());
        trace.framework.call_sites.extend([(7 << 24, 1, line), (7 << 24, 3, line)]);
        let found = call_sites(&Capture::of(&trace), &stages);
        let rows: Vec<_> = found
            .iter()
            .map(|it| (it.call_site.as_str(), it.stage.as_str(), it.kernels, it.share_pct))
            .collect();
        assert_eq!(
            rows,
            [
                ("serve.py(7): step", "prefill", 1, Some(75.0)),
                ("", "prefill", 1, Some(25.0)),
                ("serve.py(7): step", "", 1, Some(100.0)),
            ]
        );
    }
}

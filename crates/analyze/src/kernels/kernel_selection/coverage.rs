//! Coverage of the selected kernels by the launches that ncu profiled, and the findings on it.

use std::collections::BTreeMap;

use llmprof_core::{
    domain::{
        finding::{Finding, catalogue},
        profiling::NcuSettings,
    },
    trace::counter::LaunchCounters,
};

use super::{CounterPlan, KernelPair, SelectedStage};
use crate::{
    stages::{NO_STAGE, in_sentence},
    stats::percent,
};

/// Kernels that a finding lists; further ones are counted.
const MAX_LISTED: usize = 10;

impl KernelPair {
    /// Returns true if `launch` is of this kernel and geometry, as far as the page has it.
    fn is(&self, launch: &LaunchCounters) -> bool {
        self.kernel == launch.kernel
            && self.signature == launch.signature
            && launch.grid.is_none_or(|grid| grid == self.grid)
            && launch.block.is_none_or(|block| block == self.block)
    }

    /// `gemm (4 x 8 x 1 blocks of 384 x 1 x 1)`.
    fn text(&self) -> String {
        let size = |it: [u32; 3]| it.map(|side| side.to_string()).join(" x ");
        format!("{} ({} blocks of {})", self.kernel, size(self.grid), size(self.block))
    }
}

impl CounterPlan {
    /// ` in sample 0` if the run has several.
    fn in_sample(&self) -> String {
        self.sample.map_or_else(String::new, |sample| format!(" in sample {sample}"))
    }

    /// Share of each stage's kernel time taken by launches that the profiled ones stand for: of
    /// the same kernel and geometry, and of similar duration. Percent.
    pub fn covered_pct(&self, profiled: &[LaunchCounters]) -> BTreeMap<String, f64> {
        self.shares(profiled, |pair| &pair.like_ms)
    }

    /// The share of `ms` of the profiled kernels and geometries in each stage's kernel time.
    fn shares(
        &self,
        profiled: &[LaunchCounters],
        ms: fn(&KernelPair) -> &BTreeMap<String, f64>,
    ) -> BTreeMap<String, f64> {
        let covered: Vec<&KernelPair> =
            self.pairs.iter().filter(|pair| profiled.iter().any(|it| pair.is(it))).collect();
        let of = |it: &SelectedStage| {
            let ms: f64 = covered.iter().filter_map(|pair| ms(pair).get(&it.stage)).sum();
            // The sum of nothing is -0.
            Some((it.stage.clone(), percent(ms + 0.0, it.kernel_ms)?))
        };
        self.stages.iter().filter_map(of).collect()
    }

    /// A finding for each stage whose counters cover less than the target, with the reason.
    pub fn coverage_findings(
        &self,
        profiled: &[LaunchCounters],
        settings: &NcuSettings,
    ) -> Vec<Finding> {
        let target = settings.target_pct;
        let covered = self.covered_pct(profiled);
        let geometries = self.shares(profiled, |pair| &pair.ms);
        let finding = |it: &SelectedStage| {
            let covered = covered.get(&it.stage).filter(|covered| **covered < target)?;
            let unlike = geometries.get(&it.stage)? - covered;
            let message = format!(
                "the counters of {} cover {covered:.1} % of its kernel time{}; the target is \
                 {target} %",
                if it.stage == NO_STAGE { "the program" } else { in_sentence(&it.stage) },
                self.in_sample()
            );
            let advice = if covered + unlike >= target {
                "read the sampled metrics of these launches, which mode deep collects, or raise \
                 profiling.ncu.launches_per_config: ncu profiles the first ones of a kernel and \
                 geometry"
            } else if it.planned_pct.is_some_and(|planned| planned >= target) {
                "read the finding on the kernels without counters: they were selected and not \
                 profiled"
            } else {
                "raise profiling.ncu.max_launches, of which each takes about half a second, or \
                 max_processes where the symbols of the kernels are too long for one command"
            };
            let found = Finding::new(catalogue::COUNTERS_COVER_LITTLE, message)
                .with("selected, %", format!("{:.1}", it.planned_pct.unwrap_or(0.0)));
            // What is less is not seen.
            let unlike = (unlike >= 0.05).then(|| format!("{unlike:.1}"));
            let with_unlike = unlike.into_iter().fold(found, |found, share| {
                found.with("launches of other durations than the profiled ones, %", share)
            });
            Some(with_unlike.advise(advice))
        };
        self.stages.iter().filter_map(finding).collect()
    }

    /// A finding that names the kernels that `process` should have profiled and did not.
    /// `reason`: why it delivered nothing.
    pub fn missing(
        &self,
        process: usize,
        profiled: &[LaunchCounters],
        reason: Option<&str>,
    ) -> Option<Finding> {
        let planned: Vec<&KernelPair> =
            self.pairs.iter().filter(|pair| pair.process == Some(process)).collect();
        let missing: Vec<String> = planned
            .iter()
            .filter(|pair| !profiled.iter().any(|it| pair.is(it)))
            .map(|pair| pair.text())
            .collect();
        if missing.is_empty() {
            return None;
        }
        let message = format!(
            "ncu profiled {} of {} selected kernels and geometries{}",
            planned.len() - missing.len(),
            planned.len(),
            self.in_sample()
        );
        let mut names = missing[..missing.len().min(MAX_LISTED)].join(", ");
        if missing.len() > MAX_LISTED {
            names += &format!(" and {} more", missing.len() - MAX_LISTED);
        }
        let found = Finding::new(catalogue::NCU_KERNELS_MISSING, message)
            .with("missing", names)
            .with("process", process + 1);
        Some(match reason {
            Some(reason) => found
                .with("reason", reason)
                .advise("Remove the reason, or run again; raise timeout_s if ncu ran out of time"),
            None => found.advise(
                "Read the ncu log of the process: a kernel did not run in this pass with this name \
                 and geometry; where kernels are selected by short names, another instantiation \
                 with the same geometry may have run before it",
            ),
        })
    }
}

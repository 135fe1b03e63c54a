//! Reasons for figures that a stage lacks, each with its remedy.

use super::{rows::StageRows, work::StageSums};
use crate::{
    stages::{BETWEEN_STEPS, NO_STAGE},
    stats::percent,
};

impl StageRows<'_> {
    /// Appends the reasons to `missing`, which has the reasons of the floors already.
    pub fn add_missing(&self, sums: &StageSums, is_of_amd: bool, missing: &mut Vec<String>) {
        // Counters are read from ncu, which knows no GPU of AMD.
        let of = |nvidia: &'static str, amd: &'static str| if is_of_amd { amd } else { nvidia };
        if self.times.stage == BETWEEN_STEPS {
            return;
        }
        if !self.floors.is_model && !sums.is_any_floor {
            self.add_floor_missing(is_of_amd, missing);
        }
        let without = percent(sums.without_floor_ns as f64, sums.kernel_ns as f64);
        if let Some(pct) = without.filter(|_| sums.is_any_floor && has_unknown_work(sums)) {
            missing.push(format!(
                "How fast the whole stage could be is unknown: the floor leaves out {pct:.0} % of \
                 the kernel time, whose FLOPs and bytes are unknown; {}.",
                of(
                    "collect counters of these kernels with ncu",
                    "state the model (`model_config`)"
                )
            ));
        }
        if sums.proven_ns == 0 && sums.kernel_ns > 0 {
            missing.push(format!(
                "Why single kernels take their time is unknown: {}.",
                of(
                    "collect counters with ncu, or sample GPU metrics with nsys",
                    "llmprof reads counters on GPUs of NVIDIA only"
                )
            ));
        }
    }

    /// The reasons for an unknown floor: the bandwidth and the work, each if it is unknown.
    fn add_floor_missing(&self, is_of_amd: bool, missing: &mut Vec<String>) {
        if let Some(why) = &self.floors.why_unknown {
            missing.push(why.clone());
            return;
        }
        // The work of a model is known by stage.
        let has_name = self.times.stage != NO_STAGE;
        let no_bandwidth = self.rates.why_no_bytes.as_ref();
        // Floors of known work have this reason.
        let is_work_known = no_bandwidth.is_some_and(|why| missing.contains(why));
        if is_work_known || is_of_amd && !has_name {
            return;
        }
        missing.extend(no_bandwidth.cloned());
        if has_name {
            missing.push(format!(
                "How fast it could be is unknown: add the model's config.json, tokens and batch \
                 (`--model-config FILE --prompt-tokens N --new-tokens N --batch N`, or the \
                 import's fields of these names){}.",
                if is_of_amd { "" } else { ", or collect counters with ncu" }
            ));
        } else if no_bandwidth.is_none() {
            missing.push("How fast it could be is unknown: collect counters with ncu.".into());
        }
    }
}

/// True if the work of a part of the kernel time is unknown, which counts from 0.5 %.
pub fn has_unknown_work(sums: &StageSums) -> bool {
    let without = percent(sums.without_floor_ns as f64, sums.kernel_ns as f64);
    without.is_some_and(|pct| pct >= 0.5)
}

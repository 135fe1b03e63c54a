//! Reasons for figures that a stage lacks, each with its remedy.

use super::{floors::speed_unknown, rows::StageRows, work::StageSums};
use crate::{
    model_work::step_loads::SPECULATION,
    stages::{BETWEEN_STEPS, NO_STAGE},
    stats::percent,
};

// Remedies for unknown work, each a clause.
const WITH_NCU: &str = "collect counters with ncu";
const STATE_MODEL: &str = "add the model's config.json, tokens and batch (`--model-config FILE \
                           --prompt-tokens N --new-tokens N --batch N`, or the import's fields of \
                           these names)";
const NO_WORK: &str = "the work of the model in this stage is unknown";
const ONLY_NVIDIA: &str = "llmprof reads counters on GPUs of NVIDIA only";

/// The model whose work floors are of.
pub enum ModelState {
    /// It can be stated.
    Unstated,
    /// It is stated, or the runner's.
    Known,
    /// It is stated and cannot have run: the sentences with the proof and the remedy.
    Refuted(String),
}

impl StageRows<'_> {
    /// Appends the reasons to `missing`, which has the reasons of the floors already.
    pub fn add_missing(&self, sums: &StageSums, is_of_amd: bool, missing: &mut Vec<String>) {
        // Counters are read from ncu, which knows no GPU of AMD.
        let of = |nvidia: &'static str, amd: &'static str| if is_of_amd { amd } else { nvidia };
        let is_between = self.times.stage == BETWEEN_STEPS;
        match self.model {
            _ if !is_between && !self.floors.is_model && !sums.is_any_floor => {
                self.add_floor_missing(is_of_amd, missing);
            }
            ModelState::Refuted(why) => missing.push(why.clone()),
            ModelState::Unstated | ModelState::Known => {}
        }
        if is_between {
            return;
        }
        let without = percent(sums.without_floor_ns as f64, sums.kernel_ns as f64);
        if let Some(pct) = without.filter(|_| sums.is_any_floor && has_unknown_work(sums)) {
            let can_state = matches!(self.model, ModelState::Unstated)
                && self.times.stage != NO_STAGE
                && self.floors.why_unknown != Some(SPECULATION);
            let amd = if can_state { "state the model (`model_config`)" } else { ONLY_NVIDIA };
            missing.push(format!(
                "How fast the whole stage could be is unknown: the floor leaves out {pct:.0} % of \
                 the kernel time, whose FLOPs and bytes are unknown; {}.",
                of("collect counters of these kernels with ncu", amd)
            ));
        }
        if sums.proven_ns == 0 && sums.kernel_ns > 0 {
            missing.push(format!(
                "Why single kernels take their time is unknown: {}.",
                of("collect counters with ncu, or sample GPU metrics with nsys", ONLY_NVIDIA)
            ));
        }
    }

    /// Adds one reason for an unknown floor, with all that lacks: the model's work and the
    /// bandwidth.
    fn add_floor_missing(&self, is_of_amd: bool, missing: &mut Vec<String>) {
        let no_bandwidth = self.rates.why_no_bytes.as_deref();
        // Floors of known work have this reason.
        if no_bandwidth.is_some_and(|why| missing.contains(&speed_unknown(why))) {
            return;
        }
        // The work of a model is known by stage.
        let has_name = self.times.stage != NO_STAGE;
        let work = match (self.floors.why_unknown, self.model) {
            (Some(why), _) => Some(why.to_owned()),
            (None, ModelState::Refuted(_)) => None,
            (None, ModelState::Unstated) if has_name && is_of_amd => Some(STATE_MODEL.to_owned()),
            (None, ModelState::Unstated) if has_name => {
                Some(format!("{STATE_MODEL}, or {WITH_NCU}"))
            }
            (None, ModelState::Known) if has_name => Some(NO_WORK.to_owned()),
            // Of a stage without a name, only counters show the work.
            (None, _) if is_of_amd => return,
            (None, _) => Some(WITH_NCU.to_owned()),
        };
        // A bandwidth gives these steps no floor.
        let needs_bandwidth = self.floors.why_unknown != Some(SPECULATION);
        let bandwidth = no_bandwidth.filter(|_| needs_bandwidth).map(str::to_owned);
        let mut lacks = work.into_iter().chain(bandwidth);
        let first = match self.model {
            ModelState::Refuted(why) => Some(format!("How fast it could be is unknown. {why}")),
            ModelState::Unstated | ModelState::Known => lacks.next().map(|it| speed_unknown(&it)),
        };
        let others = lacks.map(|it| format!("Also, {it}."));
        let sentences: Vec<String> = first.into_iter().chain(others).collect();
        if !sentences.is_empty() {
            missing.push(sentences.join(" "));
        }
    }
}

/// True if the work of a part of the kernel time is unknown, which counts from 0.5 %.
pub fn has_unknown_work(sums: &StageSums) -> bool {
    let without = percent(sums.without_floor_ns as f64, sums.kernel_ns as f64);
    without.is_some_and(|pct| pct >= 0.5)
}

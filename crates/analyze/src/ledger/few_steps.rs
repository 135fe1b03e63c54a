//! Steps that have most of the time of a cause, or of the variance of their stage: what the other
//! steps have is another matter, and so is its remedy.

use llmprof_core::domain::{digits::count, units::Nanos};

use super::{Ledger, LedgerCause, LedgerMember, LedgerRow};
use crate::{
    findings::MIN_SAVING_PCT,
    stages::{
        BETWEEN_STEPS,
        step_times::{OUTLIER_MEDIANS, OutlierStep, StepTimes},
    },
    stats::{percent, ratio},
};

/// Min part of a cause's time, or of a variance, in few steps that have most of it.
const IN_OUTLIERS: f64 = 0.5;

/// Steps that have most of the time of a cause.
#[derive(Debug)]
pub struct FewSteps<'a> {
    /// The times of all steps; `None` for one gap between steps.
    pub of: Option<&'a StepTimes>,
    pub steps: Vec<StepOfCause>,
    /// True if the other steps have too little of the cause for advice on each step.
    pub is_only: bool,
}

/// An outlier with much of a cause.
#[derive(Debug)]
pub struct StepOfCause {
    /// Its place in [`StepTimes::longest`].
    pub at: usize,
    /// Field of the outlier with the time of the cause.
    pub field: String,
    pub ms: f64,
}

impl FewSteps<'_> {
    /// Words after the cause.
    pub fn words(&self) -> String {
        self.of.map_or_else(
            || ", most of it in one gap".into(),
            |of| format!(", most of it in {}", number_of(self.steps.len(), of)),
        )
    }
}

/// A number of the steps or instances of a stage, in words.
fn number_of(few: usize, of: &StepTimes) -> String {
    let noun = if of.are_steps() { "steps" } else { "instances" };
    format!("{} of {} {noun}", count(few as u64), count(of.ms.n.into()))
}

impl Ledger {
    /// The outliers that have most of a cause's time, if a usual step has little of it: counted by
    /// this cause, not by all. Between steps, one gap.
    pub fn few_steps<'a>(
        &self,
        step_times: &'a [StepTimes],
        row: &LedgerRow,
    ) -> Option<FewSteps<'a>> {
        let stage = self.stages.iter().find(|it| it.stage == row.stage)?;
        let mut members = self.members(&row.stage, row.cause);
        if row.stage == BETWEEN_STEPS {
            // The longest of all gaps: each member may have several.
            let instances = stage.instances.filter(|it| *it > 1)?;
            let longest = members.filter_map(|it| longest_gap(it, instances)).max()?;
            let is_one = longest as f64 > IN_OUTLIERS * row.ns as f64 * instances as f64;
            let gap = FewSteps { of: None, steps: vec![], is_only: true };
            return (row.cause.is_idle() && is_one).then_some(gap);
        }
        let work = members.next().and_then(|it| it.kernel.as_deref());
        let of = step_times.iter().find(|it| it.stage == row.stage)?;
        let time = |(at, it): (usize, &OutlierStep)| {
            let (field, ms) = time_in(it, row.cause, work)?;
            Some(StepOfCause { at, field, ms })
        };
        let each: Vec<StepOfCause> = of.longest.iter().enumerate().filter_map(time).collect();
        let sum = |of: &[StepOfCause]| of.iter().map(|it| it.ms).sum::<f64>();
        let all = Nanos(row.ns).as_ms() * stage.instances.unwrap_or(1) as f64;
        let others = f64::from(of.ms.n) - of.longest.len() as f64;
        let usual = (all - sum(&each)).max(0.0) / others.max(1.0);
        let is_longer = |it: &StepOfCause| it.ms > OUTLIER_MEDIANS * usual;
        let steps: Vec<StepOfCause> = each.into_iter().filter(is_longer).collect();
        if steps.is_empty() || sum(&steps) < IN_OUTLIERS * all {
            return None;
        }
        let rest = ratio(all - sum(&steps), f64::from(of.ms.n) - steps.len() as f64)?;
        let is_only = rest < MIN_SAVING_PCT / 100.0 * of.p50_ms;
        Some(FewSteps { of: Some(of), steps, is_only })
    }
}

/// The outliers that have most of the variance of their steps, in words, and the coefficient of
/// variation of the other steps, percent.
pub fn varying(of: &StepTimes) -> Option<(String, f64)> {
    let few = of.longest.len();
    if few == 0 || few as u64 != of.outliers {
        return None;
    }
    let (n, mean) = (f64::from(of.ms.n), of.ms.mean);
    let squares = of.ms.std?.powi(2) * (n - 1.0);
    let sum = |value: &dyn Fn(f64) -> f64| of.longest.iter().map(|it| value(it.ms)).sum::<f64>();
    if sum(&|ms| (ms - mean).powi(2)) < IN_OUTLIERS * squares {
        return None;
    }
    let others = n - few as f64;
    let rest_mean = ratio(n * mean - sum(&|ms| ms), others)?;
    let rest_squares = squares + n * mean.powi(2) - sum(&|ms| ms.powi(2));
    let variance = ratio((rest_squares - others * rest_mean.powi(2)).max(0.0), others - 1.0)?;
    Some((number_of(few, of), percent(variance.sqrt(), rest_mean)?))
}

/// The longest gap of a member. An older report has its length only if the member is one gap: the
/// member's time is the mean over the stage's instances.
fn longest_gap(it: &LedgerMember, instances: u64) -> Option<i64> {
    let is_one = it.samples == 1;
    it.longest_ns.or_else(|| is_one.then(|| it.ns.saturating_mul(instances as i64)))
}

/// Time of a cause in an outlier, milliseconds, with its field. `work` is the cause's largest
/// kernel or copy.
fn time_in(it: &OutlierStep, cause: LedgerCause, work: Option<&str>) -> Option<(String, f64)> {
    if cause.is_idle() {
        let at = it.idle.iter().position(|idle| idle.cause == cause)?;
        return Some((format!("idle.{at}.ms"), it.idle[at].ms));
    }
    // Other causes have only a part of a kernel's time.
    if cause != LedgerCause::LongLaunches {
        return None;
    }
    let longest = it.longest_work.as_deref().filter(|it| Some(*it) == work)?;
    (!longest.is_empty()).then_some(("longest_work_ms".into(), it.longest_work_ms?))
}

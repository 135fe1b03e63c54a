//! The time to first token and the time per token that stand for a run: in its list, its page, its
//! series and its gates.
//!
//! The median of three or more, which one outlier does not move; of an engine's steps only if its
//! decode steps have equally many requests. A mean or a step with an unrecorded wait does not stand
//! for the program.

use llmprof_analyze::{
    requests::{LatencyMetric, LatencyRecord},
    stages::{DECODE, PREFILL, StageTiming, step_times::StepTimes},
    stats::{Spread, ratio},
    step_batches::{StepBatch, common_batch},
};
use llmprof_core::trace::{engine_steps::StepClass, requests::LoadPass};

use crate::waits::Waits;

/// The records that have these times.
pub struct TimeRecords<'a> {
    pub first_token_ms: Option<Spread>,
    pub per_token_ms: Option<Spread>,
    /// Decode steps of each repeat, if all have equally many.
    pub decode_steps: Option<u64>,
    pub stages: &'a [StageTiming],
    pub step_times: &'a [StepTimes],
    pub step_batches: &'a [StepBatch],
    pub request_latency: &'a [LatencyRecord],
    pub waits: Waits<'a>,
}

/// A time that stands for a run, and its source.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StatedTime<'a> {
    /// Median over the requests of a load without a profiler.
    Requests(&'a LatencyRecord),
    /// The most common steps of an engine.
    Batch(&'a StepBatch),
    /// Median of at least three steps or instances, and the mean next to it, milliseconds.
    Median(&'a StepTimes, f64),
    /// Mean of one or two, or over repeats if steps are not the time of their stage.
    Mean(Spread),
}

/// Source of the mean next to a median of steps or instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MeanOf {
    /// The time of the stage, over its steps: rate and shares belong to it.
    Stage,
    /// The time of all decodes over all their steps: repeats have different numbers of steps, or
    /// the recording cuts every decode.
    Decodes,
    /// The steps, without the time between them.
    Steps,
}

impl MeanOf {
    /// `per_step_ms` is the time of the stage over its steps, if all repeats have equally many;
    /// `per_token_ms` the time of all decodes over all their steps.
    pub fn of(
        times: &StepTimes,
        row: Option<&StageTiming>,
        per_step_ms: Option<f64>,
        per_token_ms: Option<f64>,
    ) -> Self {
        if !times.are_steps() {
            return Self::Stage;
        }
        let (source, ms) = match (per_step_ms, per_token_ms) {
            (Some(ms), _) => (Self::Stage, ms),
            (None, Some(ms)) => (Self::Decodes, ms),
            (None, None) => return Self::Steps,
        };
        if times.are_stage(row, ms) { source } else { Self::Steps }
    }
}

impl StatedTime<'_> {
    /// Milliseconds.
    pub fn ms(&self) -> f64 {
        match self {
            Self::Requests(it) => it.p50_ms,
            // The time between two tokens of a request.
            Self::Batch(it) => it.period_ms.unwrap_or(it.p50_ms),
            Self::Median(it, _) => it.p50_ms,
            Self::Mean(it) => it.mean,
        }
    }
}

impl<'a> TimeRecords<'a> {
    /// Time to first token. A step of an engine is none: its requests wait before it.
    pub fn first_token(&self) -> Option<StatedTime<'a>> {
        let of_requests = self.requests(LatencyMetric::FirstToken);
        if of_requests.is_some() || self.has_steps(StepClass::Prefill) {
            return of_requests;
        }
        self.of_stage(PREFILL, self.first_token_ms?)
    }

    /// Time between two tokens of a request.
    pub fn per_token(&self) -> Option<StatedTime<'a>> {
        let of_requests = self.requests(LatencyMetric::OutputToken);
        if of_requests.is_some() {
            return of_requests;
        }
        if self.has_steps(StepClass::Decode) {
            let steps = || self.step_batches.iter().filter(|it| it.class == StepClass::Decode);
            let common = common_batch(steps())?;
            // The tokens that a step by speculation keeps are unknown.
            let is_one = steps().all(|it| it.requests == common.requests && !it.is_speculative());
            return (is_one && !common.has_unrecorded_waits).then_some(StatedTime::Batch(common));
        }
        self.of_stage(DECODE, self.per_token_ms?)
    }

    fn of_stage(&self, stage: &str, mean: Spread) -> Option<StatedTime<'a>> {
        let steps = self.step_times.iter().find(|it| it.stage == stage);
        let row = self.stages.iter().find(|it| it.stage == stage);
        let median = steps.filter(|it| it.median_ms().is_some() && it.are_stage(row, mean.mean));
        let Some(it) = median else {
            return (!self.waits.has(stage)).then_some(StatedTime::Mean(mean));
        };
        let steps = self.decode_steps.filter(|_| stage == DECODE);
        let per_step_ms = row.zip(steps).and_then(|(row, steps)| ratio(row.ms.mean, steps as f64));
        let mean_ms = match MeanOf::of(it, row, per_step_ms, Some(mean.mean)) {
            MeanOf::Stage => per_step_ms.unwrap_or(mean.mean),
            MeanOf::Decodes => mean.mean,
            MeanOf::Steps => it.ms.mean,
        };
        Some(StatedTime::Median(it, mean_ms))
    }

    /// The requests of a load are timed without a profiler; stages of a server are not.
    fn requests(&self, metric: LatencyMetric) -> Option<StatedTime<'a>> {
        let is_it = |it: &&LatencyRecord| it.pass == LoadPass::Unprofiled && it.metric == metric;
        self.request_latency.iter().find(is_it).map(StatedTime::Requests)
    }

    /// True if the capture shows steps of this class.
    pub fn has_steps(&self, class: StepClass) -> bool {
        self.step_batches.iter().any(|it| it.class == class)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn records<'a>(steps: &'a [StepTimes], batches: &'a [StepBatch]) -> TimeRecords<'a> {
        TimeRecords {
            first_token_ms: Spread::of([7.0]),
            per_token_ms: Spread::of([17.5]),
            decode_steps: None,
            stages: &[],
            step_times: steps,
            step_batches: batches,
            request_latency: &[],
            waits: Waits::default(),
        }
    }

    fn steps(times: &[f64], p50_ms: f64) -> StepTimes {
        StepTimes {
            stage: DECODE.into(),
            are_instances: false,
            ms: Spread::of(times.iter().copied()).unwrap(),
            p50_ms,
            outliers: 1,
            excess_ms: 0.0,
            preparing: 0,
            longest: vec![],
        }
    }

    /// Four steps of 2 ms, one every 2.5 ms.
    pub(crate) fn batch(class: StepClass, requests: u64) -> StepBatch {
        StepBatch {
            class,
            mode: None,
            requests: Some(requests),
            padded_min: None,
            padded_max: None,
            context_min: None,
            context_max: None,
            context_mean: None,
            steps: 4,
            processes: 1,
            process: None,
            rank: None,
            ms: Spread::of([2.0; 4]).unwrap(),
            p50_ms: 2.0,
            period_ms: Some(2.5),
            periods_ms: None,
            busy_pct: None,
            tokens_per_s: None,
            drafts: None,
            draft_ms: None,
            verify_ms: None,
            computed_tokens: None,
            has_unrecorded_waits: false,
            floor_ms: None,
            times_floor: None,
            floor_missing: None,
        }
    }

    #[test]
    fn the_median_of_three_steps_stands_for_a_run_with_and_without_outliers() {
        let ms = |steps: &[StepTimes]| records(steps, &[]).per_token().unwrap().ms();
        assert_eq!(ms(&[]), 17.5);
        assert_eq!(ms(&[steps(&[1.0, 1.0, 1.0, 67.0], 1.0)]), 1.0);
        assert_eq!(ms(&[steps(&[17.4, 17.4, 17.7], 17.4)]), 17.4, "close to the mean");
        assert_eq!(ms(&[steps(&[17.4, 17.6], 17.4)]), 17.5, "two have no median");
        // Repeats of one and of three steps: 45 ms over 4.
        let all = [steps(&[30.0, 5.0, 5.0, 5.0], 5.0)];
        let rows = [StageTiming {
            stage: DECODE.into(),
            ms: Spread::of([30.0, 15.0]).unwrap(),
            share_pct: None,
            tokens: None,
            tokens_per_s: None,
        }];
        let per_token_ms = Spread::of_ratios([(30.0, 1.0), (15.0, 3.0)]);
        let it = TimeRecords { stages: &rows, per_token_ms, ..records(&all, &[]) };
        assert_eq!(it.per_token(), Some(StatedTime::Median(&all[0], 11.25)));
        assert_eq!(ms(&[steps(&[1.0, 1.0, 1.0, 7.0], 1.0)]), 17.5, "most lies between the steps");
        assert_eq!(ms(&[steps(&[100.0, 100.0, 400.0], 100.0)]), 17.5, "instances, not tokens");
    }

    #[test]
    fn steps_of_an_engine_state_no_first_token_and_a_token_only_for_one_number_of_requests() {
        use StepClass::{Decode, Prefill};
        let batches = [batch(Decode, 4), batch(Prefill, 1)];
        let it = records(&[], &batches);
        assert_eq!((it.first_token(), it.per_token().unwrap().ms()), (None, 2.5));
        let waits = [StepBatch { has_unrecorded_waits: true, ..batch(Decode, 4) }];
        assert_eq!(records(&[], &waits).per_token(), None);
        let drafts = [StepBatch { drafts: Some(2.9), verify_ms: Some(1.5), ..batch(Decode, 4) }];
        assert_eq!(records(&[], &drafts).per_token(), None, "kept tokens are unknown");
        let batches = [batch(Decode, 4), batch(Decode, 8)];
        let it = records(&[], &batches);
        assert_eq!((it.first_token().unwrap().ms(), it.per_token()), (7.0, None));
    }

    #[test]
    fn a_load_without_a_profiler_states_the_median_of_its_requests() {
        let latency = |pass, metric| LatencyRecord {
            pass,
            metric,
            n: 9,
            mean_ms: 90.0,
            p50_ms: 3.0,
            p90_ms: 4.0,
            p99_ms: 5.0,
            max_ms: 700.0,
        };
        let unprofiled = [latency(LoadPass::Unprofiled, LatencyMetric::OutputToken)];
        let batches = [batch(StepClass::Decode, 4)];
        let it = TimeRecords { request_latency: &unprofiled, ..records(&[], &batches) };
        assert_eq!(it.per_token().unwrap().ms(), 3.0);
        let traced = [latency(LoadPass::Traced, LatencyMetric::OutputToken)];
        let it = TimeRecords { request_latency: &traced, ..it };
        assert_eq!(it.per_token().unwrap().ms(), 2.5);
    }
}

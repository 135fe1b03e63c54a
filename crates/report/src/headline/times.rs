//! The time to first token and the time per token that stand for a run: in its list, its page, its
//! series and its gates.
//!
//! Each is one statistic, whatever the noise and the number of repeats: the median over the
//! requests of a load, over the repeats, or over the steps of a capture, which may have one decode
//! alone; of an engine only if its decode steps have equally many requests. A time with an
//! unrecorded wait does not stand for the program.

use llmprof_analyze::{
    requests::{LatencyMetric, LatencyRecord},
    stages::{
        DECODE, PREFILL, StageTiming,
        repeat_medians::{RepeatMedian, RepeatMedians},
        step_times::StepTimes,
    },
    stats::{Spread, ratio},
    step_batches::{StepBatch, common_batch},
};
use llmprof_core::trace::{engine_steps::StepClass, requests::LoadPass};

use crate::{format::figure, waits::Waits};

/// The records that have these times.
pub struct TimeRecords<'a> {
    /// `None` in a report of an earlier version, which has only means.
    pub medians: Option<RepeatMedians>,
    pub first_token_ms: Option<Spread>,
    pub per_token_ms: Option<Spread>,
    pub stages: &'a [StageTiming],
    pub step_times: &'a [StepTimes],
    pub only_traced: bool,
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
    /// Median over the steps of a capture, which are the time of their stage.
    Steps(&'a StepTimes),
    /// Median over the repeats.
    Repeats(RepeatMedian),
    /// Mean over the repeats, of a report of an earlier version.
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
            Self::Steps(it) => it.p50_ms,
            Self::Repeats(it) => it.p50,
            Self::Mean(it) => it.mean,
        }
    }
}

/// Tokens of a decode step, one of each sequence: a whole number; `None` if unknown. A time per
/// step is a time per token only if this is one.
pub fn tokens_of_step(decode: &StageTiming, steps: f64) -> Option<f64> {
    ratio(decode.tokens? as f64, steps).filter(|it| *it >= 1.0 && it.fract() == 0.0)
}

/// Words after the rate of decode, which belongs to its mean time, unless a step of `ms` has a rate
/// that reads the same. `steps` is of each decode, if all have equally many.
pub fn rate_words(decode: &StageTiming, steps: Option<f64>, ms: f64) -> &'static str {
    let tokens = decode.tokens.zip(steps);
    let of_ms = tokens.and_then(|(tokens, steps)| ratio(1e3 * tokens as f64, steps * ms));
    match of_ms.map(figure) == decode.tokens_per_s.map(figure) {
        true => "",
        false => " on average",
    }
}

impl<'a> TimeRecords<'a> {
    /// Time to first token. A step of an engine is none: its requests wait before it.
    pub fn first_token(&self) -> Option<StatedTime<'a>> {
        let of_requests = self.requests(LatencyMetric::FirstToken);
        if of_requests.is_some() || self.has_steps(StepClass::Prefill) {
            return of_requests;
        }
        self.of_stage(PREFILL, |it| it.ttft_ms, self.first_token_ms)
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
        let steps = self.steps(self.per_token_ms?);
        steps.or_else(|| self.of_stage(DECODE, |it| it.tpot_ms, self.per_token_ms))
    }

    /// The decode steps of a capture: no outlier among them, nor a wait in one, moves their median.
    fn steps(&self, mean: Spread) -> Option<StatedTime<'a>> {
        let steps = self.step_times.iter().find(|it| it.stage == DECODE)?;
        let row = self.stages.iter().find(|it| it.stage == DECODE);
        let is_median = self.only_traced && steps.are_steps() && steps.median_ms().is_some();
        (is_median && steps.are_stage(row, mean.mean)).then_some(StatedTime::Steps(steps))
    }

    fn of_stage(
        &self,
        stage: &str,
        median: impl Fn(&RepeatMedians) -> Option<RepeatMedian>,
        mean: Option<Spread>,
    ) -> Option<StatedTime<'a>> {
        let stated = match &self.medians {
            Some(medians) => median(medians).map(StatedTime::Repeats),
            None => mean.map(StatedTime::Mean),
        };
        stated.filter(|_| !self.waits.has(stage))
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

    fn records(batches: &[StepBatch]) -> TimeRecords<'_> {
        TimeRecords {
            medians: Some(RepeatMedians {
                ttft_ms: RepeatMedian::of([7.0]),
                tpot_ms: RepeatMedian::of([17.0, 17.5, 90.0]),
                ..RepeatMedians::default()
            }),
            first_token_ms: Spread::of([8.0]),
            per_token_ms: Spread::of([41.5]),
            stages: &[],
            step_times: &[],
            only_traced: false,
            step_batches: batches,
            request_latency: &[],
            waits: Waits::default(),
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
            has_two_halves: false,
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
    fn the_median_over_repeats_stands_for_a_run_however_many_and_noisy_they_are() {
        let all = records(&[]);
        assert_eq!((all.first_token().unwrap().ms(), all.per_token().unwrap().ms()), (7.0, 17.5));
        let earlier = TimeRecords { medians: None, ..records(&[]) };
        let times = [earlier.first_token(), earlier.per_token()].map(|it| it.unwrap().ms());
        assert_eq!(times, [8.0, 41.5], "a report without medians");
        let absent = TimeRecords { medians: Some(RepeatMedians::default()), ..records(&[]) };
        assert_eq!((absent.first_token(), absent.per_token()), (None, None), "not the mean");
    }

    #[test]
    fn a_rate_is_called_an_average_unless_the_stated_time_has_one_that_reads_the_same() {
        let decode = StageTiming {
            stage: DECODE.into(),
            ms: Spread::of([50.0]).unwrap(),
            share_pct: None,
            tokens: Some(10),
            tokens_per_s: Some(200.0),
        };
        for (steps, ms, words) in [
            (Some(10.0), 5.0, ""),
            (Some(10.0), 5.001, ""),
            (Some(10.0), 4.9, " on average"),
            (Some(5.0), 10.0, ""),
            (None, 5.0, " on average"),
        ] {
            assert_eq!(rate_words(&decode, steps, ms), words, "{steps:?} steps of {ms} ms");
        }
    }

    #[test]
    fn an_outlier_step_of_a_capture_moves_no_time_per_token() {
        let ms = Spread::of([2.0, 2.0, 2.0, 2.0, 52.0]).unwrap();
        let steps = serde_json::json!([{
            "stage": DECODE, "p50_ms": 2.0, "outliers": 1, "excess_ms": 50.0, "ms": ms,
            "longest": []
        }]);
        let steps: Vec<StepTimes> = serde_json::from_value(steps).unwrap();
        let of = |step_times, only_traced, mean| {
            let per_token_ms = Spread::of([mean]);
            TimeRecords { step_times, only_traced, per_token_ms, ..records(&[]) }
        };
        assert_eq!(of(&steps, true, 12.0).per_token().unwrap().ms(), 2.0);
        assert_eq!(of(&steps, true, 30.0).per_token().unwrap().ms(), 17.5, "time between steps");
        assert_eq!(of(&steps, false, 12.0).per_token().unwrap().ms(), 17.5, "repeats of a run");
    }

    #[test]
    fn steps_of_an_engine_state_no_first_token_and_a_token_only_for_one_number_of_requests() {
        use StepClass::{Decode, Prefill};
        let batches = [batch(Decode, 4), batch(Prefill, 1)];
        let it = records(&batches);
        assert_eq!((it.first_token(), it.per_token().unwrap().ms()), (None, 2.5));
        let waits = [StepBatch { has_unrecorded_waits: true, ..batch(Decode, 4) }];
        assert_eq!(records(&waits).per_token(), None);
        let drafts = [StepBatch { drafts: Some(2.9), verify_ms: Some(1.5), ..batch(Decode, 4) }];
        assert_eq!(records(&drafts).per_token(), None, "kept tokens are unknown");
        let batches = [batch(Decode, 4), batch(Decode, 8)];
        let it = records(&batches);
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
            loads: 1,
            std_error_ms: None,
        };
        let unprofiled = [latency(LoadPass::Unprofiled, LatencyMetric::OutputToken)];
        let batches = [batch(StepClass::Decode, 4)];
        let it = TimeRecords { request_latency: &unprofiled, ..records(&batches) };
        assert_eq!(it.per_token().unwrap().ms(), 3.0);
        let traced = [latency(LoadPass::Traced, LatencyMetric::OutputToken)];
        let it = TimeRecords { request_latency: &traced, ..it };
        assert_eq!(it.per_token().unwrap().ms(), 2.5);
    }
}

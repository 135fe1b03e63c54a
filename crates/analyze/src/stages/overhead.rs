//! Tracing overhead: stage times under nsys compared with the unprofiled pass.

pub mod lighter;

use llmprof_core::{
    domain::{
        digits::figure,
        finding::{Finding, catalogue},
        units::quantity,
    },
    trace::{Trace, event::StageRange},
};
use serde::{Deserialize, Serialize};

use self::lighter::{LighterTrace, SETTINGS_EVIDENCE};
use crate::{
    events::Events,
    stages::{DECODE, StageTiming, Stages, in_sentence, stages},
    stats::{Spread, percent},
    timeline::gpu::StageGpu,
};

/// Overhead, percent, above which a finding is reported.
const HIGH_PCT: f64 = 25.0;

/// Time of one stage without and with tracing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OverheadRecord {
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    pub plain_ms: f64,
    pub traced_ms: f64,
    /// `100 (traced - plain) / plain`; negative when noise exceeds the overhead.
    pub overhead_pct: Option<f64>,
    /// Decode steps in both times, if the traced pass made fewer than the unprofiled pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
}

/// Why stages of two passes of the model runner are not compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColdPass;

/// Compares the stages of the unprofiled and the traced pass, without repeats that were cold: the
/// first of a pass without a warm-up. Two passes of one such repeat are both cold, and compared.
pub fn of_passes(plain: &Events, traced: &Events) -> Result<Vec<OverheadRecord>, ColdPass> {
    if plain.ranges.is_empty() || traced.ranges.is_empty() {
        return Ok(Vec::new());
    }
    match (warm(plain), warm(traced)) {
        (Some(plain), Some(traced)) => Ok(overhead(&stages(&plain), &stages(&traced))),
        (None, None) => Ok(overhead(&stages(plain), &stages(traced))),
        _ => Err(ColdPass),
    }
}

/// The repeats of a pass that were warm; `None` if it had only a cold one.
fn warm<'a>(events: &Events<'a>) -> Option<Events<'a>> {
    let had_warmup = events.ranges.iter().any(|it| it.warmup);
    let is_warm = |it: &&StageRange| had_warmup || it.repeat > 0;
    let ranges: Vec<_> = events.ranges.iter().copied().filter(is_warm).collect();
    (!ranges.is_empty()).then(|| Events {
        start: events.start,
        samples: events.samples.clone(),
        ranges,
        outputs: events.outputs.clone(),
        source: events.source,
        other_stages: events.other_stages.clone(),
        ..Events::default()
    })
}

impl OverheadRecord {
    /// The unprofiled repeats, if the traced time is within them: then it shows no cost.
    pub fn repeats_around(&self, rows: &[StageTiming]) -> Option<Spread> {
        let repeats = rows.iter().find(|row| row.stage == self.stage).map(|row| row.ms)?;
        // Without a cold repeat, and of as many steps.
        let is_of_all = (repeats.mean - self.plain_ms).abs() <= 0.01 * repeats.mean;
        let is_around = repeats.min <= self.traced_ms && self.traced_ms <= repeats.max;
        (self.steps.is_none() && is_of_all && repeats.n > 1 && is_around).then_some(repeats)
    }
}

/// Compares the stages of the two passes.
fn overhead(plain: &Stages, traced: &Stages) -> Vec<OverheadRecord> {
    // A decode of unknown steps, as in a cut pass, is compared only with such a decode.
    let are_known = plain.decode_steps.is_some() == traced.decode_steps.is_some();
    let compare = |row: &StageTiming| {
        if row.stage == DECODE && !are_known {
            return None;
        }
        let (baseline_ms, traced_ms) = (row.ms.mean, traced.row(&row.stage)?.ms.mean);
        // A shorter traced decode is compared with the baseline's time for as many steps.
        let steps = traced.decode_steps.filter(|steps| {
            row.stage == DECODE && plain.decode_steps.is_some_and(|it| it > *steps)
        });
        let share = steps
            .zip(plain.decode_steps)
            .map_or(1.0, |(traced, plain)| traced as f64 / plain as f64);
        let plain_ms = baseline_ms * share;
        let overhead_pct = percent(traced_ms - plain_ms, plain_ms);
        Some(OverheadRecord { stage: row.stage.clone(), plain_ms, traced_ms, overhead_pct, steps })
    };
    plain.rows.iter().filter_map(compare).collect()
}

/// Findings on stages with high overhead, with the settings that are lighter for each.
///
/// `rows`: the unprofiled times, `gpus`: the launches of each stage. `replays` is true when decode
/// already replays a CUDA graph.
pub fn findings(
    records: &[OverheadRecord],
    rows: &[StageTiming],
    (trace, gpus): (&Trace, &[StageGpu]),
    replays: bool,
) -> Vec<Finding> {
    if trace.timeline.is_none() {
        return vec![];
    }
    let is_cost = |record: &&OverheadRecord| record.repeats_around(rows).is_none();
    let high = |record: &OverheadRecord| {
        let pct = record.overhead_pct.filter(|pct| *pct > HIGH_PCT)?;
        let message = format!("Tracing lengthened {} by {pct:.0} %.", in_sentence(&record.stage));
        let gpu = gpus.iter().find(|it| it.stage == record.stage);
        let lighter = LighterTrace::of((record, gpu), (trace, gpus), replays);
        let mut finding = Finding::new(catalogue::OVERHEAD_HIGH, message)
            .with("stage", &record.stage)
            .with("unprofiled ms", format!("{:.3}", record.plain_ms))
            .with("traced ms", format!("{:.3}", record.traced_ms));
        if let Some((launches, us)) = lighter.single {
            let launch = format!("{} us ({})", figure(us), quantity(launches, "launch"));
            finding = finding.with("added per launch", launch);
        }
        if let Some(settings) = lighter.assignments() {
            finding = finding.with(SETTINGS_EVIDENCE, settings);
        }
        let advice = lighter.advice();
        Some(finding.advise(format!("Use the capture for proportions, not for times. {advice}")))
    };
    records.iter().filter(is_cost).filter_map(high).collect()
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::{event::Event, timeline::Timeline};

    use super::*;

    pub(super) fn decode(ms: f64, steps: u64) -> Stages {
        let spread = Spread { mean: ms, std: None, min: ms, max: ms, n: 1 };
        let row = StageTiming {
            stage: DECODE.into(),
            ms: spread,
            share_pct: None,
            tokens: None,
            tokens_per_s: None,
        };
        Stages { rows: vec![row], decode_steps: Some(steps), ..Stages::default() }
    }

    #[test]
    fn decodes_of_unknown_steps_are_not_compared_with_known_ones() {
        let of = |ms, steps| Stages { decode_steps: steps, ..decode(ms, 1) };
        let compared = |plain, traced| overhead(&of(64.0, plain), &of(20.0, traced)).len();
        assert_eq!(compared(Some(64), Some(16)), 1);
        assert_eq!(compared(None, None), 1);
        assert_eq!((compared(None, Some(16)), compared(Some(64), None)), (0, 0));
    }

    #[test]
    fn a_cold_repeat_is_not_compared_with_warm_ones() {
        let pass = |repeats: &[(bool, i64)]| -> Vec<Event> {
            let range = |(at, (warmup, ms)): (usize, &(bool, i64))| {
                Event::Range(StageRange {
                    name: "prefill".into(),
                    start_ns: at as i64 * 1_000_000_000,
                    end_ns: at as i64 * 1_000_000_000 + ms * 1_000_000,
                    device_ns: None,
                    warmup: *warmup,
                    repeat: at.saturating_sub(repeats.iter().filter(|it| it.0).count()) as u32,
                    step: None,
                })
            };
            repeats.iter().enumerate().map(range).collect()
        };
        let compared = |plain: &[(bool, i64)], traced: &[(bool, i64)]| {
            let (plain, traced) = (pass(plain), pass(traced));
            let found = of_passes(&Events::of(&plain), &Events::of(&traced));
            found.map(|it| it.iter().map(|it| (it.plain_ms, it.traced_ms)).collect::<Vec<_>>())
        };
        let warm = [(true, 90), (false, 10), (false, 10)];
        assert_eq!(compared(&warm, &[(true, 90), (false, 12)]), Ok(vec![(10.0, 12.0)]));
        assert_eq!(compared(&warm, &[(false, 90), (false, 12)]), Ok(vec![(10.0, 12.0)]));
        assert_eq!(compared(&warm, &[(false, 90)]), Err(ColdPass));
        assert_eq!(compared(&[(false, 80)], &warm), Err(ColdPass));
        assert_eq!(compared(&[(false, 80)], &[(false, 90)]), Ok(vec![(80.0, 90.0)]));
        assert_eq!(compared(&[(false, 80)], &[]), Ok(vec![]));
    }

    #[test]
    fn a_shorter_traced_decode_is_compared_over_the_same_number_of_steps() {
        let records = overhead(&decode(64.0, 64), &decode(20.0, 16));
        assert_eq!(
            (records[0].plain_ms, records[0].overhead_pct, records[0].steps),
            (16.0, Some(25.0), Some(16))
        );
        assert_eq!(overhead(&decode(64.0, 64), &decode(64.0, 64))[0].steps, None);
    }

    #[test]
    fn a_traced_time_among_the_unprofiled_repeats_shows_no_cost() {
        let records = overhead(&decode(15.0, 1), &decode(20.0, 1));
        let trace = Trace { timeline: Some(Timeline::default()), ..Trace::default() };
        let found = |repeats: [f64; 2]| {
            let row =
                StageTiming { ms: Spread::of(repeats).unwrap(), ..decode(15.0, 1).rows.remove(0) };
            findings(&records, &[row], (&trace, &[]), false).len()
        };
        assert_eq!((found([9.0, 21.0]), found([14.0, 16.0])), (0, 1));
    }
}

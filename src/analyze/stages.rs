//! How long each stage took over the measured repeats of the plain pass, and the latencies that follow.
//!
//! Vision is a part of prefill: it is a note, and is never added to a sum.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    cold::{COLD_PART, ColdInstance},
    events::Events,
    stats::{Spread, percent, ratio},
};
use crate::trace::{event::StageRange, units::Nanos};

/// Name of the stage that ends with the first token.
pub const PREFILL: &str = "prefill";
/// Name of the stage that makes the tokens after it.
pub const DECODE: &str = "decode_all";
/// Stages in the order in which they run; each is a row.
pub const STAGES: [&str; 2] = [PREFILL, DECODE];
/// Parts of prefill that are told as notes.
pub const VISION_PARTS: [&str; 4] = ["vision", "sam", "clip", "projector"];

/// Times of one stage over the measured repeats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StageTiming {
    #[schema(example = "prefill")]
    pub stage: String,
    /// Milliseconds per repeat.
    pub ms: Spread,
    /// Share of the stages' mean times, percent.
    pub share_pct: Option<f64>,
    /// Tokens handled per repeat: the prompt in prefill, decode steps in decode.
    pub tokens: Option<u64>,
    /// Those tokens per second of mean time.
    pub tokens_per_s: Option<f64>,
}

/// A part of a stage, or its cold first instance: told beside it and never added to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StageNote {
    #[schema(example = "vision")]
    pub part: String,
    #[schema(example = "prefill")]
    pub inside: String,
    /// Milliseconds per repeat.
    pub ms: Spread,
    /// Share of the enclosing stage's mean time, percent.
    pub share_pct: Option<f64>,
}

/// Stage times and what follows from them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stages {
    /// Measured repeats that closed a stage.
    pub repeats: u32,
    /// One row per stage that ran, in order.
    pub rows: Vec<StageTiming>,
    pub notes: Vec<StageNote>,
    /// From the first stage's start to the last one's end, per repeat, milliseconds.
    pub wall_ms: Option<Spread>,
    /// Time to the first token: prefill's.
    pub first_token_ms: Option<Spread>,
    /// Decode's time over its steps, per repeat.
    pub per_token_ms: Option<Spread>,
    /// Single steps over all repeats.
    pub step_ms: Option<Spread>,
    /// Mean over repeats of each step, in order.
    pub step_curve_ms: Vec<f64>,
    /// Decode steps per repeat; `None` when repeats disagree.
    pub decode_steps: Option<u64>,
    /// Decode steps per second of decode, per repeat.
    pub decode_tokens_per_s: Option<Spread>,
    /// All tokens made, the first included, per second of wall time, per repeat.
    pub tokens_per_s: Option<Spread>,
}

impl Stages {
    /// The row of one stage.
    pub fn row(&self, stage: &str) -> Option<&StageTiming> {
        self.rows.iter().find(|row| row.stage == stage)
    }

    /// The note on one part of a stage.
    pub fn note(&self, part: &str) -> Option<&StageNote> {
        self.notes.iter().find(|note| note.part == part)
    }
}

/// Measures the stages of one pass.
pub fn stages(events: &Events) -> Stages {
    let prefill = per_repeat(events, PREFILL);
    let decode = per_repeat(events, DECODE);
    let steps = steps_per_repeat(events);
    let wall = walls(events);

    let total_mean: f64 = [&prefill, &decode].into_iter().filter_map(spread_ms).map(|ms| ms.mean).sum();
    let decode_steps = agreed(steps.values().copied());
    let prompt = events.start.map(|start| start.prompt_tokens);
    let rows = [(PREFILL, &prefill, prompt), (DECODE, &decode, decode_steps)]
        .into_iter()
        .filter_map(|(stage, times, tokens)| {
            let ms = spread_ms(times)?;
            Some(StageTiming {
                stage: stage.into(),
                ms,
                share_pct: percent(ms.mean, total_mean),
                tokens,
                tokens_per_s: tokens.and_then(|tokens| ratio(tokens as f64 * 1e3, ms.mean)),
            })
        })
        .collect();

    let prefill_mean = spread_ms(&prefill).map(|ms| ms.mean);
    let notes = VISION_PARTS
        .iter()
        .filter_map(|part| {
            let ms = spread_ms(&part_per_repeat(events, part))?;
            let share_pct = prefill_mean.and_then(|whole| percent(ms.mean, whole));
            Some(StageNote { part: (*part).into(), inside: PREFILL.into(), ms, share_pct })
        })
        .collect();

    let over_steps = |(repeat, time): (&u32, &Nanos)| ratio(time.as_ms(), *steps.get(repeat)? as f64);
    let made_per_wall = |(repeat, time): (&u32, &Nanos)| ratio(*steps.get(repeat)? as f64 + 1.0, time.as_secs());
    let steps_per_decode = |(repeat, time): (&u32, &Nanos)| ratio(*steps.get(repeat)? as f64, time.as_secs());
    Stages {
        repeats: prefill.len().max(decode.len()) as u32,
        rows,
        notes,
        wall_ms: spread_ms(&wall),
        first_token_ms: spread_ms(&prefill),
        per_token_ms: Spread::of(decode.iter().filter_map(over_steps)),
        step_ms: Spread::of(events.measured("decode_step").map(|step| own(step).as_ms())),
        step_curve_ms: step_curve(events),
        decode_steps,
        decode_tokens_per_s: Spread::of(decode.iter().filter_map(steps_per_decode)),
        tokens_per_s: Spread::of(wall.iter().filter_map(made_per_wall)),
    }
}

/// The note on a cold first instance, which is in no other figure of its stage.
pub fn cold_note(cold: &ColdInstance) -> StageNote {
    let ms = Spread { mean: cold.ms, std: None, min: cold.ms, max: cold.ms, n: 1 };
    StageNote { part: COLD_PART.into(), inside: cold.stage.clone(), ms, share_pct: None }
}

/// Time inside ranges named `name`, summed per measured repeat.
fn per_repeat(events: &Events, name: &str) -> BTreeMap<u32, Nanos> {
    let mut times = BTreeMap::new();
    for range in events.measured(name) {
        *times.entry(range.repeat).or_insert(Nanos(0)) += Nanos(range.end_ns - range.start_ns);
    }
    times
}

/// Time of a part of a stage, per measured repeat. The host closes such a range while the GPU still works on it; a stage's own range it closes
/// when the GPU is done.
fn part_per_repeat(events: &Events, name: &str) -> BTreeMap<u32, Nanos> {
    let mut times = BTreeMap::new();
    for range in events.measured(name) {
        *times.entry(range.repeat).or_insert(Nanos(0)) += own(range);
    }
    times
}

/// Time of a range within a stage: on the GPU where it was measured there.
fn own(range: &StageRange) -> Nanos {
    Nanos(range.device_ns.unwrap_or(range.end_ns - range.start_ns))
}

/// Decode steps per repeat: the steps' own ranges, else the tokens that came after the first.
fn steps_per_repeat(events: &Events) -> BTreeMap<u32, u64> {
    let mut steps = BTreeMap::new();
    for step in events.measured("decode_step") {
        *steps.entry(step.repeat).or_insert(0) += 1;
    }
    if steps.is_empty() {
        let measured = events.outputs.iter().filter(|output| !output.warmup && output.tokens.len() > 1);
        steps.extend(measured.map(|output| (output.repeat, output.tokens.len() as u64 - 1)));
    }
    steps
}

/// Mean over repeats of each decode step.
fn step_curve(events: &Events) -> Vec<f64> {
    let mut steps: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for range in events.measured("decode_step") {
        if let Some(step) = range.step {
            steps.entry(step).or_default().push(own(range).as_ms());
        }
    }
    steps.into_values().filter_map(|times| Some(Spread::of(times)?.mean)).collect()
}

/// Per repeat, from the first stage's start to the last one's end.
fn walls(events: &Events) -> BTreeMap<u32, Nanos> {
    let mut spans: BTreeMap<u32, (i64, i64)> = BTreeMap::new();
    for range in STAGES.iter().flat_map(|stage| events.measured(stage)) {
        let span = spans.entry(range.repeat).or_insert((range.start_ns, range.end_ns));
        *span = (span.0.min(range.start_ns), span.1.max(range.end_ns));
    }
    spans.into_iter().map(|(repeat, (start, end))| (repeat, Nanos(end - start))).collect()
}

fn spread_ms(times: &BTreeMap<u32, Nanos>) -> Option<Spread> {
    Spread::of(times.values().map(|time| time.as_ms()))
}

fn agreed(mut values: impl Iterator<Item = u64>) -> Option<u64> {
    let first = values.next()?;
    values.all(|value| value == first).then_some(first)
}

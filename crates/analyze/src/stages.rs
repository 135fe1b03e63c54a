//! Stage times over the measured repeats of the unprofiled pass, and the latencies derived from
//! them.
//!
//! Vision is part of prefill: it is a note and is never added to a sum.

pub mod cold;
pub mod command;
pub mod coverage;
pub mod experts;
pub mod import_error;
pub mod launched_elsewhere;
pub mod output_equality;
pub mod overhead;
pub mod profiler_overhead;
pub mod repeat_medians;
pub mod repeats;
pub mod stage_calls;
pub mod step_times;

use std::collections::BTreeMap;

use llmprof_core::{
    domain::units::Nanos,
    trace::{
        command::Timed,
        engine_steps::StepClass,
        event::{DECODE_STEP, Output},
        interval::{Interval, extended},
    },
};
use serde::{Deserialize, Serialize};

use super::{
    events::Events,
    stats::{Spread, percent, ratio},
};
use crate::{
    events::EventSource,
    stages::cold::{COLD_PART, ColdInstance},
    step_batches::StepBatch,
};

/// The stage that ends with the first token.
pub const PREFILL: &str = "prefill";
/// The stage that generates the tokens after the first.
pub const DECODE: &str = "decode_all";
/// Stages of a pass in execution order; each is a row, as are steps of engines that do both.
pub const STAGES: [&str; 2] = [PREFILL, DECODE];
/// Parts of prefill reported as notes.
pub const VISION_PARTS: [&str; 4] = ["vision", "sam", "clip", "projector"];

/// Name of the whole recording of a capture without stages, and of work outside all stages.
pub const NO_STAGE: &str = "";
/// Name of the time between the steps of an engine.
pub const BETWEEN_STEPS: &str = "between steps";

/// A stage, or the timed part of a command, in the middle of a sentence.
pub fn in_sentence(stage: &str) -> &str {
    match stage {
        NO_STAGE => "the recording",
        BETWEEN_STEPS => "the time between steps",
        DECODE => "decode",
        it if it == Timed::Process.as_str() => "the whole process",
        it if it == Timed::Client.as_str() => "the client of the server",
        it => it,
    }
}

/// Something with its stage, in a sentence.
pub fn in_stage(name: &str, stage: &str) -> String {
    match stage {
        NO_STAGE => format!("{name} outside all stages"),
        stage => format!("{name} in {}", in_sentence(stage)),
    }
}

/// Times of one stage over the measured repeats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StageTiming {
    #[cfg_attr(feature = "schema", schema(example = "prefill"))]
    pub stage: String,
    /// Milliseconds per repeat.
    pub ms: Spread,
    /// Share of the time of all stages over all repeats or instances, percent; `None` if a
    /// recording cuts each decode.
    pub share_pct: Option<f64>,
    /// Tokens processed per repeat, of all sequences of a batch: the prompts in prefill, one per
    /// decode step in decode. `None` if unknown, or if repeats differ.
    pub tokens: Option<u64>,
    /// Tokens per second of mean time; if decode steps have different numbers of sequences, all
    /// tokens over all time.
    pub tokens_per_s: Option<f64>,
}

/// A part of a stage, or its cold first instance; listed separately and never added to the stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StageNote {
    #[cfg_attr(feature = "schema", schema(example = "vision"))]
    pub part: String,
    #[cfg_attr(feature = "schema", schema(example = "prefill"))]
    pub inside: String,
    /// Milliseconds per repeat.
    pub ms: Spread,
    /// Share of the enclosing stage's mean time, percent.
    pub share_pct: Option<f64>,
}

/// Stage times and derived latencies.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stages {
    /// Measured repeats with a complete stage.
    pub repeats: u32,
    /// One row per stage that ran, in order.
    pub rows: Vec<StageTiming>,
    pub notes: Vec<StageNote>,
    /// Time from the start of the first stage to the end of the last, per repeat, milliseconds. In
    /// a capture, of a prefill and the one decode that follows it on its thread.
    pub wall_ms: Option<Spread>,
    /// Time to first token: the time of prefill.
    pub first_token_ms: Option<Spread>,
    /// Time per output token of a sequence: decode time over decode steps. The mean is all time
    /// over all steps; repeats may have different numbers of steps.
    pub per_token_ms: Option<Spread>,
    /// Time of single decode steps, over all repeats.
    pub step_ms: Option<Spread>,
    /// Time of each decode step in order, averaged over repeats.
    pub step_curve_ms: Vec<f64>,
    /// Decode steps per repeat; `None` when repeats differ.
    pub decode_steps: Option<u64>,
    /// Decode steps of each repeat whose steps are known.
    pub repeat_steps: Vec<u64>,
    /// Recorded steps of cut decodes.
    pub cut_steps: u64,
    /// Sequences for which each decode step generated a token; `None` if unknown, or if steps of an
    /// engine have different numbers of requests.
    pub sequences: Option<u64>,
    /// Tokens of decode steps, of all sequences, per second of decode, per repeat; if steps have
    /// different numbers of sequences, all tokens over all time.
    pub decode_tokens_per_s: Option<Spread>,
    /// Generated tokens of all sequences, the first included, per second of wall time, per repeat.
    pub tokens_per_s: Option<Spread>,
}

impl Stages {
    /// Leaves out times of one request: a step of an engine serves many, and requests wait for it.
    pub fn of_engine(&mut self, batches: &[StepBatch]) {
        let has = |class: StepClass| batches.iter().any(|it| it.class == class);
        if has(StepClass::Prefill) {
            self.first_token_ms = None;
        }
        let mut decode = batches.iter().filter(|it| it.class == StepClass::Decode);
        if has(StepClass::Decode) && decode.all(|it| it.has_unrecorded_waits) {
            self.step_ms = None;
        }
        if has(StepClass::Decode) {
            self.per_token_ms = None;
            self.decode_tokens_per_s = None;
        }
        if !batches.is_empty() {
            self.tokens_per_s = None;
        }
    }

    /// The row of one stage.
    pub fn row(&self, stage: &str) -> Option<&StageTiming> {
        self.rows.iter().find(|row| row.stage == stage)
    }

    /// Recorded decode steps, if the recording cuts every decode: each step is then a repeat.
    pub fn steps_as_repeats(&self, stage: &str) -> Option<u64> {
        let has_parts = stage == DECODE && self.cut_steps > 0 && self.row(stage).is_none();
        has_parts.then_some(self.cut_steps)
    }

    /// Time of a stage over all repeats, milliseconds; `None` if it was not timed.
    pub fn total_ms(&self, stage: &str) -> Option<f64> {
        self.row(stage).map(|row| row.ms.total())
    }

    /// Instances of a stage, the cold first one included.
    pub fn instances(&self, row: &StageTiming) -> u32 {
        let is_cold = |note: &&StageNote| note.part == COLD_PART && note.inside == row.stage;
        row.ms.n + self.notes.iter().filter(is_cold).count() as u32
    }

    /// Adds a note for each cold first instance.
    pub fn add_cold(&mut self, cold: &[ColdInstance]) {
        self.notes.extend(cold.iter().map(cold_note));
        self.set_shares();
    }

    /// A capture may have one prefill and hundreds of decode steps. If it cuts each decode, the
    /// time of all stages is unknown.
    fn set_shares(&mut self) {
        if self.steps_as_repeats(DECODE).is_some() {
            return;
        }
        let most = f64::from(self.rows.iter().map(|it| self.instances(it)).max().unwrap_or(1));
        let weighed = |row: &StageTiming| row.ms.mean * (f64::from(self.instances(row)) / most);
        let all: Vec<f64> = self.rows.iter().map(weighed).collect();
        let total = all.iter().sum();
        self.rows.iter_mut().zip(all).for_each(|(row, ms)| row.share_pct = percent(ms, total));
    }

    /// The note on a part of a stage.
    pub fn note(&self, part: &str) -> Option<&StageNote> {
        self.notes.iter().find(|note| note.part == part)
    }
}

/// Computes the stage times of one pass.
pub fn stages(events: &Events) -> Stages {
    let prefill = per_repeat(events, PREFILL);
    let (cut_decode, decode) = apart(events, per_repeat(events, DECODE));
    let all_steps = steps_per_repeat(events);
    let (cut_steps, steps) = apart(events, all_steps.clone());
    let wall = wall_times(events);

    let decode_steps = common_value(steps.values().copied());
    let generated: BTreeMap<u32, u64> = all_steps
        .iter()
        .filter_map(|(repeat, steps)| Some((*repeat, events.generated(*repeat, *steps)?)))
        .collect();
    let whole = generated.iter().filter(|(repeat, _)| steps.contains_key(repeat));
    let decoded = common_value(whole.map(|(_, made)| *made));
    let sequences = common_value(
        generated.iter().filter_map(|(repeat, made)| made.checked_div(*all_steps.get(repeat)?)),
    );
    let overall_rate = match sequences {
        Some(_) => None,
        None => rate_of_all(&generated, &decode),
    };
    let row = |(stage, times, tokens): (&str, &BTreeMap<u32, Nanos>, Option<u64>)| {
        let ms = spread_ms(times)?;
        Some(StageTiming {
            stage: stage.into(),
            ms,
            share_pct: None,
            tokens,
            tokens_per_s: match tokens {
                Some(tokens) => ratio(tokens as f64 * 1e3, ms.mean),
                None => overall_rate.filter(|_| stage == DECODE),
            },
        })
    };
    let more: Vec<_> = events.other_stages.iter().map(|it| (*it, per_repeat(events, it))).collect();
    let more = more.iter().map(|(stage, times)| (*stage, times, None));
    let known = [(PREFILL, &prefill, prompt_tokens(events)), (DECODE, &decode, decoded)];
    let rows = known.into_iter().chain(more).filter_map(row).collect();

    // A cut decode has whole steps.
    let recorded = || decode.iter().chain(&cut_decode);
    let over_steps = |(repeat, time): (&u32, &Nanos)| {
        let steps = *all_steps.get(repeat).filter(|_| events.has_one_token_a_step())?;
        Some((time.as_ms(), steps as f64))
    };
    // The first token of each sequence is one of prefill.
    let made_per_wall = |(repeat, time): (&u32, &Nanos)| {
        let (made, steps) = (*generated.get(repeat)?, *all_steps.get(repeat)?);
        ratio((made + made / steps.max(1)) as f64, time.as_secs())
    };
    let made_per_decode =
        |(repeat, time): (&u32, &Nanos)| ratio(*generated.get(repeat)? as f64, time.as_secs());
    let decode_tokens_per_s = match sequences {
        Some(_) => Spread::of(recorded().filter_map(made_per_decode)),
        None => Spread::of(overall_rate),
    };
    let mut stages = Stages {
        repeats: prefill.len().max(decode.len()) as u32,
        rows,
        notes: notes(events, &prefill),
        wall_ms: spread_ms(&wall),
        first_token_ms: spread_ms(&prefill),
        per_token_ms: Spread::of_ratios(recorded().filter_map(over_steps)),
        step_ms: Spread::of(events.measured(DECODE_STEP).map(|it| events.range_time(it).as_ms())),
        step_curve_ms: step_curve(events),
        decode_steps,
        repeat_steps: steps.values().copied().collect(),
        cut_steps: cut_steps.values().sum(),
        sequences,
        decode_tokens_per_s,
        tokens_per_s: Spread::of(wall.iter().filter_map(made_per_wall)),
    };
    stages.set_shares();
    stages
}

/// Tokens of the prompt of each sample; `None` if they differ.
fn prompt_tokens(events: &Events) -> Option<u64> {
    match events.samples.as_slice() {
        [] => events.start.map(|start| start.prompt_tokens),
        samples => common_value(samples.iter().map(|sample| sample.prompt_tokens)),
    }
}

/// Parts of prefill.
fn notes(events: &Events, prefill: &BTreeMap<u32, Nanos>) -> Vec<StageNote> {
    let whole = spread_ms(prefill).map(|ms| ms.mean);
    let note = |part: &&str| {
        let ms = spread_ms(&part_per_repeat(events, part))?;
        let share_pct = whole.and_then(|whole| percent(ms.mean, whole));
        Some(StageNote { part: (*part).into(), inside: PREFILL.into(), ms, share_pct })
    };
    VISION_PARTS.iter().filter_map(note).collect()
}

/// All tokens over all time of the repeats whose tokens are known, per second.
fn rate_of_all(tokens: &BTreeMap<u32, u64>, times: &BTreeMap<u32, Nanos>) -> Option<f64> {
    let known = tokens.iter().filter_map(|(repeat, made)| Some((*made, *times.get(repeat)?)));
    let (made, time) =
        known.fold((0, Nanos(0)), |sum, it| (sum.0 + it.0, Nanos(sum.1.0.saturating_add(it.1.0))));
    ratio(made as f64, time.as_secs())
}

/// A note on a cold first instance, which no other figure of its stage includes.
fn cold_note(cold: &ColdInstance) -> StageNote {
    let ms = Spread { mean: cold.ms, std: None, min: cold.ms, max: cold.ms, n: 1 };
    StageNote { part: COLD_PART.into(), inside: cold.stage.clone(), ms, share_pct: None }
}

/// Time inside ranges named `name`, summed per measured repeat.
fn per_repeat(events: &Events, name: &str) -> BTreeMap<u32, Nanos> {
    let mut times = BTreeMap::new();
    for range in events.measured(name) {
        *times.entry(range.repeat).or_insert(Nanos(0)) += events.host_time(range);
    }
    times
}

/// Time of a part of a stage, per measured repeat, on the GPU if known. The host closes such a
/// range while the GPU is still working; it closes a stage's own range after the GPU has finished.
fn part_per_repeat(events: &Events, name: &str) -> BTreeMap<u32, Nanos> {
    let mut times = BTreeMap::new();
    for range in events.measured(name) {
        *times.entry(range.repeat).or_insert(Nanos(0)) += events.range_time(range);
    }
    times
}

/// Splits values by repeat: cut decodes, then whole repeats.
fn apart<T>(events: &Events, of_repeats: BTreeMap<u32, T>) -> (BTreeMap<u32, T>, BTreeMap<u32, T>) {
    of_repeats.into_iter().partition(|(repeat, _)| events.is_cut(*repeat))
}

/// Decode steps per repeat: counted, else from the tokens after the first.
fn steps_per_repeat(events: &Events) -> BTreeMap<u32, u64> {
    let mut steps = events.untimed_steps().cloned().unwrap_or_default();
    for step in events.measured(DECODE_STEP) {
        *steps.entry(step.repeat).or_insert(0) += 1;
    }
    if steps.is_empty() {
        let made = |output: &Output| output.tokens.len() as u64 / events.batch();
        let measured = events.outputs.iter().filter(|it| !it.warmup && made(it) > 1);
        steps.extend(measured.map(|output| (output.repeat, made(output) - 1)));
    }
    steps
}

/// Time of each decode step, averaged over repeats.
fn step_curve(events: &Events) -> Vec<f64> {
    let mut steps: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for range in events.measured(DECODE_STEP) {
        if let Some(step) = range.step.filter(|_| !events.is_cut(range.repeat)) {
            steps.entry(step).or_default().push(events.range_time(range).as_ms());
        }
    }
    steps.into_values().filter_map(|times| Some(Spread::of(times)?.mean)).collect()
}

/// Time from the start of the first stage to the end of the last, per repeat. A repeat of a capture
/// is whole only if it has both.
fn wall_times(events: &Events) -> BTreeMap<u32, Nanos> {
    let mut spans: BTreeMap<u32, (Interval, usize)> = BTreeMap::new();
    let mut excluded: BTreeMap<u32, Nanos> = BTreeMap::new();
    for range in STAGES.iter().flat_map(|stage| events.measured(stage)) {
        let times = (range.start_ns, range.end_ns);
        let span = spans.entry(range.repeat).or_insert((times, 0));
        *span = (extended(Some(span.0), times), span.1 + 1);
        let whole = Nanos(range.end_ns) - Nanos(range.start_ns);
        *excluded.entry(range.repeat).or_insert(Nanos(0)) += whole - events.host_time(range);
    }
    if let EventSource::Capture { .. } = events.source {
        spans.retain(|_, (_, stages)| *stages == STAGES.len());
    }
    let time = |(repeat, ((start, end), _)): (u32, (Interval, usize))| {
        (repeat, Nanos(end) - Nanos(start) - excluded[&repeat])
    };
    spans.into_iter().map(time).collect()
}

fn spread_ms(times: &BTreeMap<u32, Nanos>) -> Option<Spread> {
    Spread::of(times.values().map(|time| time.as_ms()))
}

fn common_value(mut values: impl Iterator<Item = u64>) -> Option<u64> {
    let first = values.next()?;
    values.all(|value| value == first).then_some(first)
}

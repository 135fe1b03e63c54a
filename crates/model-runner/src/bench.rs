//! `model-runner bench`: the times of each stage over repeats, as JSON on standard output.
//!
//! Wall-clock times are the host's, device times are between CUDA events of the same ranges. Writes
//! nothing but the result.

use llmprof_core::{
    domain::{median::median, runner::RunnerRequest},
    print_line,
    trace::event::Event,
};
use serde::Serialize;

use crate::{
    prepare::{PreparedSession, RunError, prepare},
    run::peak_device_bytes,
};

/// The result of a benchmark.
#[derive(Debug, Serialize)]
struct BenchReport {
    model: String,
    /// Module path of the part, if only one ran.
    target: Option<String>,
    dtype: String,
    device: String,
    decode_graph: bool,
    /// Sequences generated together.
    batch: u32,
    /// Prompt tokens of all sequences.
    prompt_tokens: u64,
    /// New tokens of each sequence.
    new_tokens: u32,
    parameters: u64,
    weight_bytes: u64,
    repeats: u32,
    warmup: u32,
    /// From the start of the process to loaded weights, and to the first token of the first repeat.
    load_s: f64,
    first_token_s: f64,
    peak_device_bytes: Option<u64>,
    stages: Vec<StageTimes>,
    decode: Option<DecodeRates>,
}

/// Times of one stage; `decode_step` is one token.
#[derive(Debug, Serialize)]
struct StageTimes {
    stage: String,
    wall_ms: TimeQuantiles,
    /// `null` on the CPU.
    device_ms: Option<TimeQuantiles>,
}

/// Rates of decoding, by the median step.
#[derive(Debug, Serialize)]
struct DecodeRates {
    /// Tokens per second of all sequences.
    tokens_per_s: f64,
    /// Bytes of weights, cache and activations accessed by a step, each operand once; the mean over
    /// steps.
    bytes_per_step: u64,
    bytes_per_s: f64,
    flops_per_step: u64,
    flops_per_s: f64,
}

/// Median, 10th and 90th percentile of times.
#[derive(Debug, PartialEq, Serialize)]
struct TimeQuantiles {
    median: f64,
    p10: f64,
    p90: f64,
    n: usize,
}

impl TimeQuantiles {
    /// Median, and quantiles by nearest rank; `None` without times.
    fn of(mut times: Vec<f64>) -> Option<Self> {
        times.sort_by(f64::total_cmp);
        let last = times.len().checked_sub(1)?;
        let at = |share: f64| times[(share * last as f64).round() as usize];
        let median = median(times.iter().copied())?;
        Some(Self { median, p10: at(0.1), p90: at(0.9), n: times.len() })
    }
}

/// Runs `request` and prints its times. `started_ns` is the start of the process.
pub fn bench(request: &RunnerRequest, started_ns: i64) -> Result<(), RunError> {
    let PreparedSession { mut session, dtype, about, .. } = prepare(request, started_ns)?;
    let recorder = session.recorder.clone();
    let mut first_token_ns = None;
    for repeat in 0..request.warmup {
        recorder.start_repeat(true, repeat);
        session.run()?;
        first_token_ns = first_token_ns.or_else(|| first_token(&recorder.drain()));
    }
    let mut events = Vec::new();
    for repeat in 0..request.repeats {
        recorder.start_repeat(false, repeat);
        session.run()?;
        events.extend(recorder.drain());
    }
    first_token_ns = first_token_ns.or_else(|| first_token(&events));

    let stages = stage_times(&events);
    let report = BenchReport {
        model: about.model,
        target: about.target,
        dtype: dtype.as_str().to_owned(),
        device: about.device,
        decode_graph: about.decode_graph,
        batch: request.batch,
        prompt_tokens: about.prompt_tokens,
        new_tokens: session.max_new_tokens,
        parameters: about.parameters,
        weight_bytes: about.weight_bytes,
        repeats: request.repeats,
        warmup: request.warmup,
        load_s: about.load_ns as f64 / 1e9,
        first_token_s: first_token_ns.map_or(f64::NAN, |at| (at - started_ns) as f64 / 1e9),
        peak_device_bytes: peak_device_bytes(&session.device),
        decode: decode_rates(&events, &stages, request.batch),
        stages,
    };
    let text = serde_json::to_string_pretty(&report).expect("numbers and names make JSON");
    let failed = |source| RunError::Write { path: "standard output".into(), source };
    print_line(text).map_err(failed)
}

/// Times of each stage, in the order of their first range.
fn stage_times(events: &[Event]) -> Vec<StageTimes> {
    let mut times: Vec<(&str, Vec<f64>, Vec<f64>)> = Vec::new();
    for event in events {
        let Event::Range(range) = event else { continue };
        let at = times.iter().position(|(name, ..)| *name == range.name).unwrap_or_else(|| {
            times.push((&range.name, Vec::new(), Vec::new()));
            times.len() - 1
        });
        let (_, wall, device) = &mut times[at];
        wall.push((range.end_ns - range.start_ns) as f64 / 1e6);
        device.extend(range.device_ns.map(|ns| ns as f64 / 1e6));
    }
    let stage = |(name, wall, device): (&str, Vec<f64>, Vec<f64>)| {
        Some(StageTimes {
            stage: name.to_owned(),
            wall_ms: TimeQuantiles::of(wall)?,
            device_ms: TimeQuantiles::of(device),
        })
    };
    times.into_iter().filter_map(stage).collect()
}

/// Rates of decoding `batch` sequences; `None` without decode steps.
fn decode_rates(events: &[Event], stages: &[StageTimes], batch: u32) -> Option<DecodeRates> {
    let step = stages.iter().find(|times| times.stage == "decode_step")?;
    let (mut flops, mut bytes) = (0, 0);
    for event in events {
        if let Event::Op(call) = event
            && call.stage == "decode_all"
        {
            (flops, bytes) = (flops + call.flops, bytes + call.bytes);
        }
    }
    let (steps, per_s) = (step.wall_ms.n as u64, 1e3 / step.wall_ms.median);
    Some(DecodeRates {
        tokens_per_s: per_s * f64::from(batch),
        bytes_per_step: bytes / steps,
        bytes_per_s: (bytes / steps) as f64 * per_s,
        flops_per_step: flops / steps,
        flops_per_s: (flops / steps) as f64 * per_s,
    })
}

/// The end of the first prefill.
fn first_token(events: &[Event]) -> Option<i64> {
    events.iter().find_map(|event| match event {
        Event::Range(range) if range.name == "prefill" => Some(range.end_ns),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_by_nearest_rank() {
        let times = (1..=11).rev().map(f64::from).collect();
        assert_eq!(
            TimeQuantiles::of(times),
            Some(TimeQuantiles { median: 6.0, p10: 2.0, p90: 10.0, n: 11 })
        );
        assert_eq!(TimeQuantiles::of(vec![]), None);
    }
}

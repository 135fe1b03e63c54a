//! `model-runner bench`: the times of each stage over repeats, as JSON on standard output.
//!
//! Wall-clock times are the host's, device times are between CUDA events of the same ranges. Nothing is written but the result.

use std::collections::BTreeMap;

use llmprof::{runner::RunnerRequest, trace::event::Event};
use serde::Serialize;

use crate::{
    prepare::{Ready, RunError, prepare},
    run::peak_device_bytes,
};

/// What a bench prints.
#[derive(Debug, Serialize)]
struct Bench {
    model: String,
    /// Module path of the only part that ran.
    target: Option<String>,
    dtype: String,
    device: String,
    decode_graph: bool,
    prompt_tokens: u64,
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
    decode: Option<Decode>,
}

/// Times of one stage; `decode_step` is one token.
#[derive(Debug, Serialize)]
struct StageTimes {
    stage: String,
    wall_ms: Spread,
    /// Absent on the CPU.
    device_ms: Option<Spread>,
}

/// How decoding went, by the median step.
#[derive(Debug, Serialize)]
struct Decode {
    tokens_per_s: f64,
    /// Bytes of weights, cache and activations that a step touches, each operand once; the mean over steps.
    bytes_per_token: u64,
    bytes_per_s: f64,
    flops_per_token: u64,
    flops_per_s: f64,
}

/// The middle of some times, and where a tenth of them is below and above.
#[derive(Debug, PartialEq, Serialize)]
struct Spread {
    median: f64,
    p10: f64,
    p90: f64,
    n: usize,
}

impl Spread {
    /// Of times that are not all missing, by nearest rank.
    fn of(mut times: Vec<f64>) -> Option<Self> {
        times.sort_by(f64::total_cmp);
        let last = times.len().checked_sub(1)?;
        let at = |share: f64| times[(share * last as f64).round() as usize];
        Some(Self { median: at(0.5), p10: at(0.1), p90: at(0.9), n: times.len() })
    }
}

/// Runs `request` and prints its times. `started_ns` is when the process began.
pub fn bench(request: &RunnerRequest, started_ns: i64) -> Result<(), RunError> {
    let Ready { mut session, dtype, about, .. } = prepare(request, started_ns)?;
    let recorder = session.recorder.clone();
    let mut first_token_ns = None;
    for repeat in 0..request.warmup {
        recorder.begin_repeat(true, repeat);
        session.run()?;
        first_token_ns = first_token_ns.or_else(|| first_token(&recorder.drain()));
    }
    let mut events = Vec::new();
    for repeat in 0..request.repeats {
        recorder.begin_repeat(false, repeat);
        session.run()?;
        events.extend(recorder.drain());
    }
    first_token_ns = first_token_ns.or_else(|| first_token(&events));

    let (mut wall, mut device): (BTreeMap<String, Vec<f64>>, BTreeMap<String, Vec<f64>>) = Default::default();
    let (mut flops, mut bytes, mut order) = (0, 0, Vec::new());
    for event in &events {
        match event {
            Event::Range(range) => {
                if !order.contains(&range.name) {
                    order.push(range.name.clone());
                }
                wall.entry(range.name.clone()).or_default().push((range.end_ns - range.start_ns) as f64 / 1e6);
                device.entry(range.name.clone()).or_default().extend(range.device_ns.map(|ns| ns as f64 / 1e6));
            }
            Event::Op(call) if call.stage == "decode_all" => (flops, bytes) = (flops + call.flops, bytes + call.bytes),
            _ => {}
        }
    }
    let stages: Vec<StageTimes> = order
        .into_iter()
        .filter_map(|stage| {
            let device_ms = device.remove(&stage).and_then(Spread::of);
            Some(StageTimes { wall_ms: Spread::of(wall.remove(&stage)?)?, device_ms, stage })
        })
        .collect();
    let step = stages.iter().find(|times| times.stage == "decode_step");
    let decode = step.map(|step| {
        let (steps, per_s) = (step.wall_ms.n as u64, 1e3 / step.wall_ms.median);
        Decode {
            tokens_per_s: per_s,
            bytes_per_token: bytes / steps,
            bytes_per_s: (bytes / steps) as f64 * per_s,
            flops_per_token: flops / steps,
            flops_per_s: (flops / steps) as f64 * per_s,
        }
    });
    let bench = Bench {
        model: about.model,
        target: about.target,
        dtype: dtype.as_str().to_owned(),
        device: about.device,
        decode_graph: about.decode_graph,
        prompt_tokens: about.prompt_tokens,
        new_tokens: session.max_new_tokens,
        parameters: about.parameters,
        weight_bytes: about.weight_bytes,
        repeats: request.repeats,
        warmup: request.warmup,
        load_s: about.load_ns as f64 / 1e9,
        first_token_s: first_token_ns.map_or(f64::NAN, |at| (at - started_ns) as f64 / 1e9),
        peak_device_bytes: peak_device_bytes(&session.device),
        stages,
        decode,
    };
    println!("{}", serde_json::to_string_pretty(&bench).expect("numbers and names make JSON"));
    Ok(())
}

/// When the first prefill ended.
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
    fn a_spread_is_by_nearest_rank() {
        let times = (1..=11).rev().map(f64::from).collect();
        assert_eq!(Spread::of(times), Some(Spread { median: 6.0, p10: 2.0, p90: 10.0, n: 11 }));
        assert_eq!(Spread::of(vec![]), None);
    }
}

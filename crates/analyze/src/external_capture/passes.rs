//! Passes of a capture: a prefill and the decode that follows it.
//!
//! They are the only prefill and the only decode between two other prefills, warm-ups or mixed
//! steps on their thread. Steps of an engine serve several requests at once, and belong to no pass,
//! and neither do the recorded steps of a decode that the recording cuts.

use std::collections::{BTreeMap, HashSet};

use llmprof_core::trace::engine_steps::MIXED;

use crate::{
    kernels::{WARMUP, is_measured},
    stages::{DECODE, PREFILL},
    timeline::{capture::Capture, open_ranges::Extent, step_states::LEFT_OUT},
};

/// A prefill, and the decode that follows it.
struct OpenPass {
    prefill: usize,
    decode: Option<usize>,
}

/// The repeat of each stage instance that counts; instances of one pass share the repeat.
pub fn repeats(capture: &Capture) -> Vec<Option<u32>> {
    let instances = &capture.stages.instances;
    let counts = |at: usize| {
        let it = &instances[at];
        is_measured(capture.stages.label(at))
            && it.start_ns < it.end_ns
            && it.extent != Extent::EstimatedEnd
    };
    let prefill_of = pairs(capture, counts);
    let mut repeats: Vec<Option<u32>> = vec![None; instances.len()];
    let mut next = 0;
    for at in (0..instances.len()).filter(|at| counts(*at)) {
        // A prefill starts before its decode.
        let paired = prefill_of.get(&at).and_then(|prefill| repeats[*prefill]);
        repeats[at] = paired.or(Some(next));
        next += u32::from(paired.is_none());
    }
    repeats
}

/// The prefill of each decode that is in a pass.
fn pairs(capture: &Capture, counts: impl Fn(usize) -> bool) -> BTreeMap<usize, usize> {
    let scheduled = capture.stages.steps.iter().filter(|it| it.is_scheduled);
    let engine: HashSet<(i64, i64)> = scheduled.map(|it| (it.place, it.start_ns)).collect();
    let mut found = BTreeMap::new();
    let mut open: BTreeMap<i64, OpenPass> = BTreeMap::new();
    for (at, it) in capture.stages.instances.iter().enumerate() {
        let stage = capture.stages.label(at);
        if ![PREFILL, DECODE, WARMUP, MIXED, LEFT_OUT].contains(&stage) {
            continue;
        }
        let is_whole = it.extent == Extent::Whole;
        let is_part = counts(at) && is_whole && !engine.contains(&(it.place, it.start_ns));
        match (stage, open.get_mut(&it.place)) {
            (DECODE, Some(pass)) if is_part && pass.decode.is_none() => {
                let is_after = capture.stages.instances[pass.prefill].end_ns <= it.start_ns;
                match is_after {
                    true => pass.decode = Some(at),
                    false => _ = open.remove(&it.place),
                }
            }
            // Several decodes after a prefill.
            (DECODE, Some(_)) if is_part => _ = open.remove(&it.place),
            _ => {
                found.extend(open.remove(&it.place).and_then(|it| Some((it.decode?, it.prefill))));
                if stage == PREFILL && is_part {
                    open.insert(it.place, OpenPass { prefill: at, decode: None });
                }
            }
        }
    }
    found.extend(open.into_values().filter_map(|it| Some((it.decode?, it.prefill))));
    found
}

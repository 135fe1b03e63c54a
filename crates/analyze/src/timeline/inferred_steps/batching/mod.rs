//! Steps of engines that batch continuously, by what the host copies: it uploads the tokens of a
//! step, launches one forward of the model, and reads the chosen tokens back.
//!
//! Evidence of a step, all of it needed:
//! - **Start**: a lookup of as many rows as the host uploaded tokens, or one launch of a graph.
//! - **End**: a kernel that chooses tokens, after the last layer and outside graphs; then the first
//!   copy to the host, and its wait for that copy.
//! - **Bytes of a token**: in a prompt a lookup takes one row for each token to choose from the
//!   output of the layers, so the copy has 4 or 8 bytes for each of these rows. All prompts of the
//!   thread must agree.
//! - **Decode**: the forward reads one token for each token that it chooses. A lookup, or a kernel
//!   that writes to the paged cache, shows the rows of a forward that is launched kernel by kernel.
//!   The rows of a graph are padded or not recorded, and some lookups show none: of the uploads the
//!   one at the place that has the tokens in all prompts must have one for each chosen token.
//! - **Prefill**: the forward reads more tokens than it chooses, and takes one row for each of
//!   these; and the engine reads prompts apart from generation: after at least one prompt more
//!   requests generate than the prompt has, so the others were not in it.
//! - **Requests**: at no time do more of them generate than generated or were read before.
//! - **Batch**: the number of chosen tokens. A graph may have the padded one, which is unknown if
//!   every graph always chooses the same number.
//!
//! If prompts are not read apart and no kernel is of a known engine that batches prompts with
//! generation, the launches decide ([`super::classes`]). If they show no class either, the steps
//! that read one token for each chosen one are decode, and the others have no class.
//!
//! A prompt that writes to no paged cache, while other steps do, and one that is not needed to
//! explain the first requests that generate, are warm-ups and not steps. Launches under capture
//! have no work on a device, so captured forwards are never seen; warm-ups of graphs choose
//! nothing.
//!
//! Other ranks of the engine read nothing: see [`ranks`].

mod forwards;
mod proof;
mod ranks;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use llmprof_core::{
    domain::units::quantity,
    trace::{
        engine_steps::StepClass,
        inferred_steps::{InferredStep, InferredSteps},
        timeline::{Timeline, process_of},
    },
};

use self::{
    forwards::{Forward, ForwardWalk, Launched},
    proof::Batch,
};
use super::{classes::CONTINUOUS, items::LaunchSequences, roles::KernelRole};

/// Thread and device.
pub type Place = (i64, u32);

pub const UNREAD: &str = "the host reads no chosen tokens from it";
pub const UNPROVEN: &str = "the tokens that it reads and chooses do not show its class, or nothing \
                            is generated from it";

/// A forward with its times on the host: the start of its first call, and the end of its work.
#[derive(Debug, Clone)]
struct TimedForward {
    forward: Forward,
    start_ns: i64,
    end_ns: i64,
}

/// One step of one rank.
#[derive(Debug, Clone)]
struct BatchStep {
    forward: TimedForward,
    /// The reason of a step without a class.
    batch: Result<Batch, &'static str>,
    /// Another rank reads the chosen tokens.
    is_follower: bool,
}

/// Steps found, and the reasons for none by thread.
#[derive(Debug, Default)]
pub struct BatchSteps {
    steps: BTreeMap<Place, Vec<BatchStep>>,
    /// Steps of threads that count if their launches show no class.
    otherwise: BTreeMap<Place, Vec<BatchStep>>,
    pub reasons: BTreeMap<Place, (&'static str, u64)>,
    unclear: BTreeMap<&'static str, u64>,
}

impl BatchSteps {
    /// Steps of all threads, of one device for each thread.
    pub fn of(sequences: &LaunchSequences, trace: &Timeline, roles: &[KernelRole]) -> Self {
        let mut found = Self::default();
        let is_continuous = roles.iter().any(|it| it.is_continuous);
        let walk = |place: Place| {
            let mut walk = ForwardWalk::new(roles);
            sequences.items(place, trace).for_each(|it| walk.add(it));
            timed(walk.finish(), trace)
        };
        let mut readers: Vec<(Place, Vec<TimedForward>)> = Vec::new();
        let mut others: Vec<Place> = Vec::new();
        for place in sequences.threads.keys() {
            let reads = sequences.reads(*place) && !found.has_steps(place.0);
            match reads.then(|| walk(*place)) {
                Some(all) if found.add_reader(*place, &all, is_continuous) => {
                    readers.push((*place, all))
                }
                _ => others.push(*place),
            }
        }
        others.retain(|place| !readers.is_empty() && !found.has_steps(place.0));
        for place in others {
            let own = walk(place);
            let follow = |(reader, all): &(Place, Vec<TimedForward>)| {
                ranks::follow(all, &found.steps[reader], &own)
            };
            let rank = |(thread, device): Place| (process_of(thread), device);
            let other = readers.iter().filter(|(reader, _)| rank(*reader) != rank(place));
            if let Some(steps) = other.filter_map(follow).next() {
                *found.unclear.entry(UNREAD).or_default() += (own.len() - steps.len()) as u64;
                found.reasons.remove(&place);
                found.steps.insert(place, steps);
            }
        }
        found.unclear.retain(|_, count| *count > 0);
        found
    }

    /// Adds the steps of a thread that reads chosen tokens; returns false if none is proven, or if
    /// the launches themselves may show more.
    fn add_reader(&mut self, place: Place, all: &[TimedForward], is_continuous: bool) -> bool {
        let is_read = |it: &&TimedForward| it.forward.chosen_bytes.is_some();
        let read = || all.iter().filter(is_read);
        let forwards: Vec<&Forward> = read().map(|it| &it.forward).collect();
        if forwards.is_empty() {
            return false;
        }
        let (batches, reason) = match proof::batches(&forwards) {
            Ok(it) if it.is_apart => (it.batches, UNPROVEN),
            Ok(it) if is_continuous => (it.batches, CONTINUOUS),
            Ok(it) => {
                let step = |(forward, batch): (&TimedForward, Option<Batch>)| BatchStep {
                    forward: forward.clone(),
                    batch: batch.ok_or(CONTINUOUS),
                    is_follower: false,
                };
                let steps: Vec<BatchStep> = read().zip(it.batches).map(step).collect();
                if steps.iter().any(|it| it.batch.is_ok()) {
                    self.otherwise.insert(place, steps);
                }
                return false;
            }
            Err(reason) => {
                self.reasons.insert(place, (reason, forwards.len() as u64));
                return false;
            }
        };
        if batches.iter().all(Option::is_none) {
            return false;
        }
        let unproven = batches.iter().filter(|it| it.is_none()).count();
        *self.unclear.entry(reason).or_default() += unproven as u64;
        *self.unclear.entry(UNREAD).or_default() += (all.len() - forwards.len()) as u64;
        let step = |(forward, batch): (&TimedForward, Option<Batch>)| {
            Some(BatchStep { forward: forward.clone(), batch: Ok(batch?), is_follower: false })
        };
        self.steps.insert(place, read().zip(batches).filter_map(step).collect());
        true
    }

    /// Returns true if steps of a thread are proven.
    pub fn has_steps(&self, thread: i64) -> bool {
        self.steps.range((thread, 0)..=(thread, u32::MAX)).next().is_some()
    }

    /// Writes all steps after the run numbered `run`; returns the number of the last run.
    pub fn write(&self, mut run: u32, inferred: &mut InferredSteps) -> u32 {
        for ((thread, _), steps) in &self.steps {
            run = write(*thread, steps, run, inferred);
        }
        for (reason, count) in &self.unclear {
            *inferred.unclear.entry(reason).or_default() += count;
        }
        run
    }

    /// Writes the steps of a thread whose launches show no class; returns the number of the last
    /// run, or `None` without such steps.
    pub fn write_otherwise(
        &self,
        place: Place,
        run: u32,
        inferred: &mut InferredSteps,
    ) -> Option<u32> {
        let steps = self.otherwise.get(&place)?;
        for reason in steps.iter().filter_map(|it| it.batch.err()) {
            *inferred.unclear.entry(reason).or_default() += 1;
        }
        Some(write(place.0, steps, run, inferred))
    }
}

/// Writes the steps of a thread. Each step is a run of its own, since the engine schedules each.
fn write(thread: i64, steps: &[BatchStep], mut run: u32, inferred: &mut InferredSteps) -> u32 {
    let mut last: Option<Arc<str>> = None;
    for step in steps {
        run += 1;
        let text = evidence(step);
        let evidence: Arc<str> = match last {
            Some(evidence) if *evidence == *text => evidence,
            _ => text.into(),
        };
        let batch = step.batch.ok();
        inferred.steps.push(InferredStep {
            class: batch.map(|it| it.class),
            global_tid: thread,
            start_ns: step.forward.start_ns,
            end_ns: step.forward.end_ns,
            run,
            is_scheduled: true,
            prefill_requests: batch.and_then(|it| it.prefill_requests),
            prefill_tokens: batch.and_then(|it| it.prefill_tokens),
            decode_requests: batch.and_then(|it| it.decode_requests),
            evidence: evidence.clone(),
            ..InferredStep::default()
        });
        last = Some(evidence);
    }
    run
}

/// Times of forwards; each ends before the next starts.
fn timed(forwards: Vec<Forward>, trace: &Timeline) -> Vec<TimedForward> {
    let mut calls = trace.cuda_calls.reader();
    let starts: Vec<i64> = forwards.iter().map(|it| calls.get(it.start).start_ns).collect();
    let times = |(at, forward): (usize, Forward)| {
        let (call, work_end_ns) = forward.end;
        let end_ns = calls.get(call).end_ns.max(work_end_ns);
        let next_ns = starts.get(at + 1).copied().unwrap_or(i64::MAX);
        let start_ns = starts[at];
        TimedForward { forward, start_ns, end_ns: end_ns.min(next_ns).max(start_ns) }
    };
    forwards.into_iter().enumerate().map(times).collect()
}

fn evidence(step: &BatchStep) -> String {
    let launched = step.forward.forward.launched;
    let Batch { class, prefill_tokens, decode_requests, chosen, width, .. } = match step.batch {
        Ok(batch) => batch,
        Err(reason) => {
            let start = match launched {
                Launched::Eager(Some(rows)) => {
                    format!("from the lookup of {}", quantity(rows, "token"))
                }
                Launched::Eager(None) => "from a lookup".into(),
                Launched::Graph(_) | Launched::Pieces => "from a launch of a graph".into(),
            };
            return format!("{start}, to the read of chosen tokens; no class: {reason}");
        }
    };
    let tokens = quantity(prefill_tokens.unwrap_or(chosen), "token");
    let start = match launched {
        Launched::Graph(_) => format!("a launch of a graph after an upload for {tokens}"),
        _ => format!("from the lookup of {tokens} that the host uploaded"),
    };
    let rank = if step.is_follower { " by another rank" } else { "" };
    let padding = match (class, decode_requests) {
        (StepClass::Decode, None) => "; they may be padded: each graph has one number of them",
        _ => "",
    };
    let read = quantity(chosen, "chosen token");
    format!("{start}, to the read of {read} of {width} bytes{rank}{padding}")
}

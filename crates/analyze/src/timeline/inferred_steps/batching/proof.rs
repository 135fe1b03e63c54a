//! Classes and batches of the forwards of one thread, from the tokens that each reads and chooses.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::trace::engine_steps::StepClass;

use super::forwards::{Forward, Launched, UNKNOWN_GRAPH, WIDTHS};

pub const NO_WIDTH: &str = "the rows that are chosen from do not show the bytes of a token";
pub const GROWTH: &str = "more requests generate than generated or were read before";

/// Class and batch of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    pub class: StepClass,
    pub prefill_requests: Option<u64>,
    pub prefill_tokens: Option<u64>,
    pub decode_requests: Option<u64>,
    /// Tokens that the step chooses, and bytes of each.
    pub chosen: u64,
    pub width: u64,
}

/// Work of one forward by its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Requests and tokens.
    Prompts(u64, u64),
    /// Requests.
    Generation(u64),
    Unknown,
}

/// Batches of the forwards of one thread, `None` for each that is not proven to be a step.
pub struct Batches {
    pub batches: Vec<Option<Batch>>,
    /// Prompts are proven to be read apart from generation.
    pub is_apart: bool,
}

/// Batches of the forwards of one thread, or the reason for none.
pub fn batches(forwards: &[&Forward]) -> Result<Batches, &'static str> {
    let width = width(forwards).ok_or(NO_WIDTH)?;
    let writes_cache = forwards.iter().any(|it| it.writes_cache);
    let prompts = |it: &&Forward| prompts(it, width, writes_cache);
    let tokens = tokens_upload(forwards.iter().filter_map(|it| Some((*it, prompts(it)?))));
    let work = |it: &&Forward| match prompts(it) {
        Some((requests, tokens)) => Work::Prompts(requests, tokens),
        None => generation(it, width, tokens).map_or(Work::Unknown, Work::Generation),
    };
    let works: Vec<Work> = forwards.iter().map(work).collect();
    let (is_step, is_apart) = steps(&works)?;
    let is_exact = graphs_of_several_batches(forwards, &works);
    let batch = |(at, forward): (usize, &&Forward)| {
        let (class, chosen, tokens) = match works[at] {
            _ if !is_step[at] => return None,
            Work::Unknown => return None,
            Work::Prompts(requests, tokens) => (StepClass::Prefill, requests, Some(tokens)),
            Work::Generation(requests) => (StepClass::Decode, requests, None),
        };
        let is_exact = is_exact || !matches!(forward.launched, Launched::Graph(_));
        Some(Batch {
            class,
            prefill_requests: tokens.and(Some(chosen)),
            prefill_tokens: tokens,
            decode_requests: (tokens.is_none() && is_exact).then_some(chosen),
            chosen,
            width,
        })
    };
    let batches = forwards.iter().enumerate().map(batch).collect();
    Ok(Batches { batches, is_apart })
}

/// Bytes of a chosen token, by the forwards that read more tokens than they choose; `None` if these
/// disagree.
fn width(forwards: &[&Forward]) -> Option<u64> {
    let width = |it: &&Forward| {
        let (Launched::Eager(Some(rows)), Some(states)) = (it.launched, it.states) else {
            return None;
        };
        let is_width = |width: &u64| states.checked_mul(*width) == it.chosen_bytes;
        WIDTHS.into_iter().find(is_width).filter(|_| rows > states)
    };
    let mut widths = forwards.iter().filter_map(width);
    let first = widths.next()?;
    widths.all(|width| width == first).then_some(first)
}

fn chosen(forward: &Forward, width: u64) -> Option<u64> {
    let bytes = forward.chosen_bytes.filter(|bytes| *bytes > 0 && bytes % width == 0)?;
    Some(bytes / width)
}

/// Requests and tokens of a forward that chooses a token for each of several sequences of rows.
/// Nothing can be generated from a prompt whose keys and values are not kept.
fn prompts(forward: &Forward, width: u64, writes_cache: bool) -> Option<(u64, u64)> {
    let chosen = chosen(forward, width)?;
    match forward.launched {
        Launched::Eager(Some(rows))
            if rows > chosen
                && forward.states == Some(chosen)
                && forward.writes_cache == writes_cache =>
        {
            Some((chosen, rows))
        }
        _ => None,
    }
}

/// Position of the tokens among the uploads before a forward, and bytes of each, as far as all
/// prompts agree.
fn tokens_upload<'a>(
    mut prompts: impl Iterator<Item = (&'a Forward, (u64, u64))>,
) -> Option<(usize, u64)> {
    let is_tokens = |it: &Forward, tokens: u64, (at, width): (usize, u64)| {
        it.uploads.get(at).copied() == tokens.checked_mul(width)
    };
    let (first, (_, tokens)) = prompts.next()?;
    let all = (0..first.uploads.len()).flat_map(|at| WIDTHS.map(|width| (at, width)));
    let mut found: Vec<(usize, u64)> = all.filter(|it| is_tokens(first, tokens, *it)).collect();
    for (forward, (_, tokens)) in prompts {
        found.retain(|it| is_tokens(forward, tokens, *it));
    }
    found.first().copied()
}

/// Requests of a forward that reads one token for each token that it chooses.
fn generation(forward: &Forward, width: u64, tokens: Option<(usize, u64)>) -> Option<u64> {
    let chosen = chosen(forward, width)?;
    let rows = match forward.launched {
        Launched::Eager(Some(rows)) => rows,
        Launched::Eager(None) | Launched::Graph(_) => {
            let (at, width) = tokens?;
            let bytes = forward.uploads.get(at).filter(|bytes| **bytes % width == 0)?;
            bytes / width
        }
        Launched::Pieces => return None,
    };
    (rows == chosen).then_some(chosen)
}

/// Which forwards are steps, and whether prompts are read apart from generation. A request
/// generates if it did so before, or if its prompt was read.
fn steps(works: &[Work]) -> Result<(Vec<bool>, bool), &'static str> {
    let mut is_step: Vec<bool> = works.iter().map(|it| *it != Work::Unknown).collect();
    // Requests that may generate next, once that is known; and prompts since the last generation.
    let mut running: Option<u64> = None;
    let mut prompts: Vec<usize> = Vec::new();
    let (mut is_apart, mut is_first) = (false, true);
    for (at, work) in works.iter().enumerate() {
        match *work {
            Work::Unknown => {
                (running, prompts) = (None, Vec::new());
            }
            Work::Prompts(requests, _) => {
                running = running.map(|running| running.saturating_add(requests));
                prompts.push(at);
            }
            Work::Generation(requests) => {
                if running.is_some_and(|running| requests > running) {
                    return Err(GROWTH);
                }
                let last = prompts.last().map(|last| works[*last]);
                is_apart |= matches!(last, Some(Work::Prompts(read, _)) if read < requests);
                if is_first {
                    drop_unused(works, &mut is_step[..at], requests);
                }
                (running, prompts, is_first) = (Some(requests), Vec::new(), false);
            }
        }
    }
    for (is_step, work) in is_step.iter_mut().zip(works) {
        *is_step &= is_apart || !matches!(work, Work::Prompts(..));
    }
    Ok((is_step, is_apart))
}

/// Drops the prompts before the first generation that are not needed to explain its requests, as
/// a warm-up reads: nothing is generated from them.
fn drop_unused(works: &[Work], is_step: &mut [bool], mut requests: u64) {
    for (is_step, work) in is_step.iter_mut().zip(works).rev() {
        if let Work::Prompts(read, _) = work {
            *is_step &= requests > 0;
            requests = requests.saturating_sub(*read);
        }
    }
}

/// Returns true if a graph runs with several numbers of chosen tokens: the padding, which is always
/// the same for a graph, is not chosen from.
fn graphs_of_several_batches(forwards: &[&Forward], works: &[Work]) -> bool {
    let mut batches: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for (forward, work) in forwards.iter().zip(works) {
        if let (Launched::Graph(graph), Work::Generation(requests)) = (forward.launched, work)
            && graph != UNKNOWN_GRAPH
        {
            batches.entry(graph).or_default().insert(*requests);
        }
    }
    batches.values().any(|it| it.len() > 1)
}

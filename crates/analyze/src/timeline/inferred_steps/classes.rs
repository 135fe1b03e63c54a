//! Classes of forwards: decode by few rows and repetition, prefill by many rows before a decode.
//!
//! A class needs all of its evidence; without it a forward has none, and a reason.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::trace::engine_steps::StepClass;

use super::{
    roles::Rows,
    segments::{Segment, StartEvidence},
};

/// Least forwards alike in a row that are decode steps; of graphs without recorded kernels, three.
const LEAST_ALIKE: usize = 2;
/// Least forwards alike in a row that are decode steps without a forward of many rows before them:
/// as few short prompts look the same.
const LEAST_WITHOUT: usize = 8;
/// Max rows of a decode step of one sequence by the same measure: a kernel has at least one block.
const MAX_OF_ONE: u64 = 2;
/// Max rows of so few decode steps, by the blocks of the prompt before them: more rows may be
/// short prompts without generation.
const MAX_ROWS: u64 = 4;
/// Least layers of a model.
const LEAST_LAYERS: u32 = 2;

pub const NO_START: &str = "no lookup of an embedding, wait of the host or graph launch shows \
                            where it starts";
pub const NO_END: &str = "no choice of a token and no graph launch shows where it ends";
pub const NO_LAYERS: &str = "no kernel of attention or softmax repeats within it, so it need not \
                             be a whole model";
pub const NOT_ALIKE: &str = "its neighbours are not alike, so it need not be decode";
pub const NO_ROWS: &str = "neither its lookup nor its products show the number of rows";
pub const CONTINUOUS: &str = "the engine batches prompts with generation, so a step of many rows \
                              may be prefill or both";
pub const PARTS: &str = "what ends before it ends otherwise, so it may be a part of a forward";
pub const NO_DECODE: &str = "no decode step follows whose attention differs, or of one sequence \
                             before and after it";

/// Class of a forward with the number of forwards alike in its row, or the reason for none.
pub type Classed = Result<(StepClass, usize), &'static str>;

/// Classes of all forwards of a sequence.
pub fn classes(segments: &[Segment], is_continuous: bool) -> Vec<Classed> {
    let bounded: Vec<Result<(), &'static str>> =
        (0..segments.len()).map(|at| is_bounded(segments, at)).collect();
    let mut classes: Vec<Classed> = bounded.iter().map(|it| it.and(Err(NO_ROWS))).collect();
    let is_prefill =
        |at: usize| bounded[at].is_ok() && segments[at].has_many_rows() && !segments[at].is_opaque;
    let runs = runs(segments, &bounded);
    let is_mixture = is_mixture(segments, &runs);
    let fewest = fewest_blocks(segments);
    for (from, to) in runs {
        let first = &segments[from];
        let is_decode = if first.is_opaque {
            to - from > LEAST_ALIKE && from > 0 && is_prefill(from - 1)
        } else {
            to - from >= LEAST_ALIKE
                && first.has_few_rows()
                && (first.is_graph() || !is_mixture)
                && (first.is_graph()
                    || to - from >= LEAST_WITHOUT
                    || (is_after_prompt(segments, from) && is_single(segments, from, &fewest)))
        };
        let unclear = if first.has_few_rows() || first.is_opaque { NOT_ALIKE } else { NO_ROWS };
        let class = if is_decode { Ok((StepClass::Decode, to - from)) } else { Err(unclear) };
        classes[from..to].fill(class);
    }
    let attention = DecodeAttention::of(segments, &classes);
    // From the last to the first: a prefill is followed by decode, or by such a prefill.
    for at in (0..segments.len()).rev().filter(|at| is_prefill(*at)) {
        classes[at] = if is_continuous {
            Err(CONTINUOUS)
        } else if !is_alone(segments, &classes, at) {
            Err(PARTS)
        } else if is_followed(segments, &classes, at, &attention) {
            Ok((StepClass::Prefill, 1))
        } else {
            Err(NO_DECODE)
        };
    }
    classes
}

/// Rows of bounded forwards alike, as ranges of indices.
fn runs(segments: &[Segment], bounded: &[Result<(), &str>]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for at in (0..segments.len()).filter(|at| bounded[*at].is_ok()) {
        match runs.last_mut() {
            Some((_, to)) if *to == at && alike(&segments[at - 1], &segments[at]) => *to += 1,
            _ => runs.push((at, at + 1)),
        }
    }
    runs
}

/// Returns true if the forward before the one at `at` has many rows.
fn is_after_prompt(segments: &[Segment], at: usize) -> bool {
    at.checked_sub(1).is_some_and(|before| segments[before].has_many_rows())
}

/// Fewest blocks of the complete forwards of few rows, by their layers.
fn fewest_blocks(segments: &[Segment]) -> BTreeMap<u32, u64> {
    let mut fewest = BTreeMap::new();
    for it in segments.iter().filter(|it| it.end.is_some() && it.has_few_rows()) {
        let known = fewest.entry(it.layers).or_insert(it.blocks);
        *known = it.blocks.min(*known);
    }
    fewest
}

/// Returns true if the forward at `at`, after a prompt, is of no more rows than any other of few
/// rows, and of few by the prompt's known rows: blocks of elementwise kernels grow with the rows.
fn is_single(segments: &[Segment], at: usize, fewest: &BTreeMap<u32, u64>) -> bool {
    let (it, prompt) = (&segments[at], &segments[at - 1]);
    let is_smaller = |blocks: &u64| blocks.saturating_mul(5) < it.blocks.saturating_mul(4);
    fits_rows(it, prompt, MAX_ROWS) != Some(false)
        && !fewest.get(&it.layers).is_some_and(is_smaller)
}

/// True for a forward of at most `max` rows, by its blocks and the blocks of a prompt with known
/// rows.
fn fits_rows(it: &Segment, prompt: &Segment, max: u64) -> Option<bool> {
    match prompt.rows {
        Rows::Exactly(rows) => {
            Some(it.blocks.saturating_mul(rows.into()) <= prompt.blocks.saturating_mul(max))
        }
        _ => None,
    }
}

/// Returns true if forwards not of many rows are alone as often as in rows: routers of experts that
/// choose as tokens are chosen cut each forward into parts, and only the middle ones repeat. The
/// first forward may be incomplete.
fn is_mixture(segments: &[Segment], runs: &[(usize, usize)]) -> bool {
    let is_eager = |at: usize| !segments[at].is_graph() && !segments[at].has_many_rows();
    let mut is_alike = vec![false; segments.len()];
    let mut rows = 0;
    for (from, to) in runs.iter().filter(|(from, to)| to - from >= LEAST_ALIKE && is_eager(*from)) {
        is_alike[*from..*to].fill(true);
        rows += 1;
    }
    let first = usize::from(segments.first().is_some_and(|it| it.start.is_none()));
    let is_alone = |at: &usize| is_eager(*at) && segments[*at].end.is_some() && !is_alike[*at];
    let alone = (first..segments.len()).filter(is_alone).count();
    alone > 0 && alone >= rows
}

/// Start and end are evident, and it has layers.
pub fn is_bounded(segments: &[Segment], at: usize) -> Result<(), &'static str> {
    let it = &segments[at];
    let is_confirmed = |by: StartEvidence| match by {
        StartEvidence::FirstLookup => segments.iter().enumerate().any(|(other, segment)| {
            other != at
                && segment.head == it.head
                && segment.start.is_some_and(|(_, by)| by == StartEvidence::Lookup)
        }),
        _ => true,
    };
    if !it.start.is_some_and(|(_, by)| is_confirmed(by)) {
        return Err(NO_START);
    }
    if it.end.is_none() {
        return Err(NO_END);
    }
    if it.layers < LEAST_LAYERS && !(it.is_opaque && it.is_graph()) {
        return Err(NO_LAYERS);
    }
    Ok(())
}

/// Returns true if both launch the same layers, products of the same geometry for the most part,
/// with the same rows.
fn alike(a: &Segment, b: &Segment) -> bool {
    if a.is_graph() != b.is_graph() || a.is_opaque != b.is_opaque || a.lookup != b.lookup {
        return false;
    }
    if a.is_graph() {
        return a.graph == b.graph;
    }
    if a.last != b.last {
        return false;
    }
    let (least, most) = (a.blocks.min(b.blocks), a.blocks.max(b.blocks));
    let total = |it: &Segment| it.signature.values().map(|count| u64::from(*count)).sum::<u64>();
    let shared: u64 = a
        .signature
        .iter()
        .map(|(entry, count)| u64::from(*count.min(b.signature.get(entry).unwrap_or(&0))))
        .sum();
    least * 5 >= most * 4 && shared * 5 >= total(a).max(total(b)) * 4
}

/// Returns true if the forward before the one at `at` ends alike: a decode step, or one with the
/// same last product and choice of a token. A router that chooses as tokens are chosen cuts a
/// forward into parts that end differently.
fn is_alone(segments: &[Segment], classes: &[Classed], at: usize) -> bool {
    let Some(before) = at.checked_sub(1) else { return true };
    matches!(classes[before], Ok((StepClass::Decode, _)))
        || (segments[before].last.0.is_some() && segments[before].last == segments[at].last)
}

/// Attention kernels of all decode steps.
struct DecodeAttention {
    names: BTreeSet<u32>,
    /// False if a graph was traced as a whole: its kernels are unknown.
    is_complete: bool,
}

impl DecodeAttention {
    fn of(segments: &[Segment], classes: &[Classed]) -> Self {
        let is_decode = |class: &Classed| matches!(class, Ok((StepClass::Decode, _)));
        let decode = || segments.iter().zip(classes).filter(|(_, class)| is_decode(class));
        Self {
            names: decode().flat_map(|(it, _)| it.attention.iter().copied()).collect(),
            is_complete: !decode().any(|(it, _)| it.is_opaque),
        }
    }

    /// Returns true if no decode step has a kernel of `attention`.
    fn differs(&self, attention: &[u32]) -> bool {
        let is_known = |name: &u32| self.names.contains(name);
        attention.is_empty() || (self.is_complete && !attention.iter().any(is_known))
    }
}

/// Returns true if a classified step follows, and attention of no decode step is in the forward or
/// one sequence generates before and after it.
fn is_followed(
    segments: &[Segment],
    classes: &[Classed],
    at: usize,
    decode: &DecodeAttention,
) -> bool {
    classes.get(at + 1).is_some_and(Result::is_ok)
        && (decode.differs(&segments[at].attention) || is_between_alike(segments, classes, at))
}

/// Returns true if the decode steps before and after are alike and of one sequence: a prompt read
/// together with a step of that sequence would have added one.
fn is_between_alike(segments: &[Segment], classes: &[Classed], at: usize) -> bool {
    let is_decode = |at: usize| matches!(classes.get(at), Some(Ok((StepClass::Decode, _))));
    let Some(before) = at.checked_sub(1).filter(|before| is_decode(*before)) else { return false };
    is_decode(at + 1)
        && alike(&segments[before], &segments[at + 1])
        && fits_rows(&segments[before], &segments[at], MAX_OF_ONE) == Some(true)
}

//! Decode steps by speculation: forwards of a smaller model draft tokens, and one forward of a
//! larger model verifies them.
//!
//! The rows are the evidence. The larger model reads the drafted tokens and the one before them; of
//! a prompt, all that the smaller model read and the drafted tokens. A program that generates a
//! part of each token with a smaller model, as codes of audio, reads one row for each sequence in
//! both.
//!
//! Drafts without a model, such as n-grams of the context, have only rows as evidence: between two
//! prompts a batch gains no rows, so a decode step with more rows than one before verifies drafts.

use std::collections::BTreeMap;

use llmprof_core::trace::engine_steps::StepClass;

use super::{
    classes::{Classed, is_bounded},
    roles::Rows,
    segments::Segment,
};

/// Least rounds with drafts.
const LEAST_ROUNDS: usize = 8;
/// Least rounds whose rows are evidence, of decode; of prompts, one.
const LEAST_PROVEN: usize = 3;
/// Max rows of the first draft of a decode step: the last token, and the one before if all drafts
/// were accepted.
const MAX_FIRST: u32 = 2;

/// Reason for no class of a round.
pub const OTHER_ROWS: &str = "its forwards have other rows than drafted tokens and their \
                              verification";

/// Evidence of a step that verifies drafts without a model.
pub const MORE_ROWS: &str = "more rows than other steps since the prompt: it verifies drafts";

/// Drafts and their verification, as indices of forwards; the last one verifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Round {
    pub from: usize,
    pub to: usize,
    pub class: Option<StepClass>,
}

/// Evidence of the rows of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// Both models read the prompt.
    Prompt,
    Proven,
    Possible,
    No,
}

/// The rounds of a sequence of forwards; `None` if it has no speculation that the rows prove.
pub fn rounds(segments: &[Segment]) -> Option<Vec<Round>> {
    let is_whole: Vec<bool> =
        (0..segments.len()).map(|at| is_bounded(segments, at).is_ok()).collect();
    let mut layers: BTreeMap<u32, usize> = BTreeMap::new();
    let whole = || segments.iter().zip(&is_whole).filter(|it| *it.1).map(|it| it.0);
    whole().for_each(|it| *layers.entry(it.layers).or_default() += 1);
    let mut counts: Vec<(u32, usize)> = layers.into_iter().collect();
    counts.sort_by_key(|it| std::cmp::Reverse(it.1));
    let [one, other, ..] = counts.as_slice() else { return None };
    let (small, large) = (one.0.min(other.0), one.0.max(other.0));
    if (one.1 + other.1) * 20 < segments.len() * 19 {
        return None;
    }
    let mut found: Vec<(Round, Fit)> = Vec::new();
    let mut from = None;
    for (at, it) in segments.iter().enumerate() {
        match it.layers {
            layers if is_whole[at] && layers == small => {
                from.get_or_insert(at);
            }
            layers if is_whole[at] && layers == large => {
                let from = from.take().unwrap_or(at);
                let fit = fit(&segments[from..at], it);
                found.push((Round { from, to: at + 1, class: None }, fit));
            }
            _ => from = None,
        }
    }
    let number = |is: fn(Fit) -> bool| found.iter().filter(|it| is(it.1)).count();
    let is_proven =
        number(|it| it == Fit::Prompt) > 0 || number(|it| it == Fit::Proven) >= LEAST_PROVEN;
    let drafted = found.iter().filter(|it| it.0.to - it.0.from > 1).count();
    let fitting = number(|it| it != Fit::No);
    if !is_proven || drafted < LEAST_ROUNDS || fitting * 10 < found.len() * 9 {
        return None;
    }
    let firsts = found.iter().filter(|it| it.0.to - it.0.from > 1);
    let fewest = firsts.map(|it| segments[it.0.from].blocks).min().unwrap_or(0);
    Some(found.into_iter().map(|(it, fit)| it.classified(fit, segments, fewest)).collect())
}

/// True for each forward that verifies drafts without a model: if decode steps in a row gain rows,
/// each one with more rows than the fewest of them.
pub fn verifications(segments: &[Segment], classes: &[Classed]) -> Vec<bool> {
    let rows = |(it, class): (&Segment, &Classed)| match (class, it.rows) {
        (Ok((StepClass::Decode, _)), Rows::Exactly(rows)) => Some(rows),
        _ => None,
    };
    let rows: Vec<Option<u32>> = segments.iter().zip(classes).map(rows).collect();
    let mut found = Vec::with_capacity(rows.len());
    for steps in rows.chunk_by(|a, b| a.is_some() == b.is_some()) {
        let has_drafts = steps.windows(2).any(|pair| pair[0] < pair[1]);
        let fewest = steps.iter().copied().min().flatten();
        found.extend(steps.iter().map(|rows| has_drafts && *rows > fewest));
    }
    found
}

/// The evidence of drafts and the forward after them.
fn fit(drafts: &[Segment], verify: &Segment) -> Fit {
    let number = drafts.len() as u32;
    let is_one = |it: &Segment| matches!(it.rows, Rows::Exactly(1) | Rows::AtMost(_));
    let fits = |rows: u32| match verify.rows {
        Rows::Exactly(it) => it == rows,
        Rows::AtMost(max) => rows <= max,
        Rows::Unknown => false,
    };
    let Some((first, others)) = drafts.split_first() else {
        return if fits(1) { Fit::Possible } else { Fit::No };
    };
    if !others.iter().all(is_one) {
        return Fit::No;
    }
    let is_exact = matches!(verify.rows, Rows::Exactly(_));
    match first.rows {
        Rows::Exactly(rows) if rows > MAX_FIRST => {
            if is_exact && fits(rows + number) {
                Fit::Prompt
            } else {
                Fit::No
            }
        }
        Rows::Exactly(rows) if is_exact && fits(number + 1) => {
            if rows < number + 1 {
                Fit::Proven
            } else {
                Fit::Possible
            }
        }
        Rows::Exactly(_) | Rows::AtMost(_) if fits(number + 1) => Fit::Possible,
        _ => Fit::No,
    }
}

impl Round {
    /// `fewest` is the number of blocks of the smallest first forward. More than two rows have more
    /// than twice as many: a short prompt.
    fn classified(self, fit: Fit, segments: &[Segment], fewest: u64) -> Self {
        let first = &segments[self.from];
        let is_short = self.to - self.from > 1
            && !matches!(first.rows, Rows::Exactly(_))
            && first.blocks > 2 * fewest;
        // Drafts of the first round may lie before the recording.
        let is_cut = self.from == 0 && fit == Fit::Possible;
        let class = match fit {
            Fit::Prompt => Some(StepClass::Prefill),
            Fit::Proven | Fit::Possible if !is_short && !is_cut => Some(StepClass::Decode),
            _ => None,
        };
        Self { class, ..self }
    }

    /// The forwards by what they launch, and the class by them.
    pub fn evidence(&self, segments: &[Segment]) -> String {
        let [drafts @ .., verify] = &segments[self.from..self.to] else { return String::new() };
        let layers = verify.layers;
        let rows = match (verify.rows, self.class) {
            (_, None) => format!("; no class: {OTHER_ROWS}"),
            (Rows::Exactly(rows), Some(StepClass::Prefill)) => {
                format!(": {rows} rows, the prompt's and one for each draft")
            }
            (Rows::Exactly(rows), _) => format!(": {rows} rows, one for each draft and one more"),
            _ => String::new(),
        };
        match drafts {
            [] => format!("a forward of {layers} layers without a draft{rows}"),
            [only] => format!(
                "a draft by a forward of {} layers, verified by one of {layers}{rows}",
                only.layers
            ),
            [first, ..] => format!(
                "{} drafts by forwards of {} layers, verified by one of {layers}{rows}",
                drafts.len(),
                first.layers
            ),
        }
    }
}

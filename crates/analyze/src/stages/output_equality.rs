//! Equality of the outputs of passes: tokens, and the hash of the logits they were sampled from.

use llmprof_core::trace::event::{DECODE_STEP, Event, Output};
use serde::{Deserialize, Serialize};

use crate::events::Events;

/// Result of comparing outputs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OutputCheck {
    /// True when all measured repeats of the unprofiled pass agree; `null` with fewer than two.
    pub repeats_agree: Option<bool>,
    /// True when the traced pass generated the same tokens as the unprofiled pass, as far as it
    /// ran; `null` without a traced pass.
    pub traced_tokens_equal: Option<bool>,
    /// True when the logits of both passes have the same hash; `null` without a traced pass of the
    /// same length.
    pub traced_logits_equal: Option<bool>,
}

/// Compares the baseline's repeats of each sample with each other, and the traced repeats with the
/// first of them.
pub fn outputs(plain: &Events, traced: &Events) -> OutputCheck {
    let steps = |events: &Events<'_>| {
        events
            .ranges
            .iter()
            .filter(|it| it.name == DECODE_STEP && !it.warmup && it.repeat == 0)
            .count()
    };
    let same_steps = steps(plain) == steps(traced);
    let (plain, traced) = (measured(plain), measured(traced));
    let Some((_, any)) = plain.first() else { return OutputCheck::default() };
    let all = |outputs: &[(u32, &Output)], same: &dyn Fn(&Output, &Output) -> bool| {
        let equal = |(sample, it): &(u32, &Output)| {
            first_of(&plain, *sample).is_none_or(|first| same(it, first))
        };
        (!outputs.is_empty()).then(|| outputs.iter().all(equal))
    };
    let is_repeated = |(sample, it): &&(u32, &Output)| {
        first_of(&plain, *sample).is_some_and(|first| first.repeat != it.repeat)
    };
    let repeated: Vec<(u32, &Output)> = plain.iter().filter(is_repeated).copied().collect();
    OutputCheck {
        repeats_agree: all(&repeated, &|it, first| {
            it.tokens == first.tokens && it.logits_sha256 == first.logits_sha256
        }),
        // A part of a model generates no tokens.
        traced_tokens_equal: all(&traced, &is_prefix).filter(|_| !any.tokens.is_empty()),
        traced_logits_equal: if same_steps
            && traced.iter().all(|(_, it)| it.tokens.len() == any.tokens.len())
        {
            all(&traced, &|it, first| it.logits_sha256 == first.logits_sha256)
        } else {
            None
        },
    }
}

/// Outputs of the measured repeats, each with its sample.
fn measured<'a>(events: &Events<'a>) -> Vec<(u32, &'a Output)> {
    let measured = events.outputs.iter().filter(|it| !it.warmup);
    measured.map(|it| (events.sample_of(it.repeat), *it)).collect()
}

/// The first output of a sample.
fn first_of<'a>(outputs: &[(u32, &'a Output)], sample: u32) -> Option<&'a Output> {
    outputs.iter().find(|(of, _)| *of == sample).map(|(_, output)| *output)
}

/// Returns true when the tokens of `short` are a prefix of the tokens of `long`. Empty ones prove
/// nothing.
fn is_prefix(short: &Output, long: &Output) -> bool {
    short.tokens.is_empty() == long.tokens.is_empty() && long.tokens.starts_with(&short.tokens)
}

/// Compares the tokens of a pass with the tokens of the unprofiled pass, as far as it ran; `None`
/// when either has none.
pub fn same_tokens(plain: &[Event], pass: &[Event]) -> Option<bool> {
    let (plain, pass) = (Events::of(plain), Events::of(pass));
    let (plain, pass) = (measured(&plain), measured(&pass));
    plain.first()?;
    // A pass that ends with prefill generates at most one token.
    let same = |(sample, it): &(u32, &Output)| {
        first_of(&plain, *sample).is_none_or(|first| first.tokens.starts_with(&it.tokens))
    };
    (!pass.is_empty()).then(|| pass.iter().all(same))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(tokens: &[u32]) -> Vec<Event> {
        vec![Event::Output(Output {
            warmup: false,
            repeat: 0,
            tokens: tokens.to_vec(),
            logits_sha256: format!("{tokens:?}"),
        })]
    }

    #[test]
    fn a_shorter_pass_generates_a_prefix_of_the_tokens() {
        let plain = pass(&[7, 8, 9]);
        assert_eq!(same_tokens(&plain, &pass(&[7, 8])), Some(true));
        assert_eq!(same_tokens(&plain, &pass(&[7, 9])), Some(false));
        assert_eq!(same_tokens(&plain, &pass(&[7, 8, 9, 1])), Some(false));
        assert_eq!((same_tokens(&plain, &[]), same_tokens(&[], &plain)), (None, None));
        let short = pass(&[7, 8]);
        let check = outputs(&Events::of(&plain), &Events::of(&short));
        assert_eq!((check.traced_tokens_equal, check.traced_logits_equal), (Some(true), None));
    }
}

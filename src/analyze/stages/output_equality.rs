//! Equality of the outputs of passes: tokens, and the hash of the logits they were sampled from.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    analyze::events::Events,
    trace::event::{Event, Output},
};

/// Result of comparing outputs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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

/// Compares the baseline's repeats with each other, and the traced repeats with the first of them.
pub fn outputs(plain: &Events, traced: &Events) -> OutputCheck {
    let measured = |events: &Events<'_>| {
        events
            .outputs
            .iter()
            .filter(|it| !it.warmup)
            .map(|it| (*it).clone())
            .collect::<Vec<Output>>()
    };
    let steps = |events: &Events<'_>| {
        events
            .ranges
            .iter()
            .filter(|it| it.name == "decode_step" && !it.warmup && it.repeat == 0)
            .count()
    };
    let same_steps = steps(plain) == steps(traced);
    let (plain, traced) = (measured(plain), measured(traced));
    let Some(first) = plain.first() else { return OutputCheck::default() };
    let all = |outputs: &[Output], same: &dyn Fn(&Output) -> bool| {
        (!outputs.is_empty()).then(|| outputs.iter().all(same))
    };
    OutputCheck {
        repeats_agree: all(&plain[1..], &|it| {
            it.tokens == first.tokens && it.logits_sha256 == first.logits_sha256
        }),
        // A part of a model generates no tokens.
        traced_tokens_equal: all(&traced, &|it| is_prefix(it, first))
            .filter(|_| !first.tokens.is_empty()),
        traced_logits_equal: if same_steps
            && traced.iter().all(|it| it.tokens.len() == first.tokens.len())
        {
            all(&traced, &|it| it.logits_sha256 == first.logits_sha256)
        } else {
            None
        },
    }
}

/// Returns true when the tokens of `short` are a prefix of those of `long`. Empty ones prove
/// nothing.
fn is_prefix(short: &Output, long: &Output) -> bool {
    short.tokens.is_empty() == long.tokens.is_empty() && long.tokens.starts_with(&short.tokens)
}

/// Compares the tokens of a pass with those of the unprofiled pass, as far as it ran; `None` when
/// either has none.
pub fn same_tokens(plain: &[Event], pass: &[Event]) -> Option<bool> {
    let outputs = |events: &[Event]| -> Vec<Output> {
        Events::of(events).outputs.into_iter().filter(|it| !it.warmup).cloned().collect()
    };
    let (plain, pass) = (outputs(plain), outputs(pass));
    let first = plain.first()?;
    // A pass that ends with prefill generates at most one token.
    (!pass.is_empty()).then(|| pass.iter().all(|it| first.tokens.starts_with(&it.tokens)))
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

//! Whether the passes computed the same thing: tokens and the hash of the logits they were sampled from.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::events::Events;
use crate::trace::event::{Event, Output};

/// What comparing outputs has shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputCheck {
    /// Whether all measured repeats of the plain pass agree; `null` with fewer than two.
    pub repeats_agree: Option<bool>,
    /// Whether the traced pass made the plain pass's tokens, as many as it made; `null` without a traced pass.
    pub traced_tokens_equal: Option<bool>,
    /// Whether the traced pass's logits hash to the plain pass's; `null` without a traced pass of the same length.
    pub traced_logits_equal: Option<bool>,
}

/// Compares the plain pass's repeats with each other, and the traced pass's with the first of them.
pub fn outputs(plain: &Events, traced: &Events) -> OutputCheck {
    let measured =
        |events: &Events<'_>| events.outputs.iter().filter(|it| !it.warmup).map(|it| (*it).clone()).collect::<Vec<Output>>();
    let steps =
        |events: &Events<'_>| events.ranges.iter().filter(|it| it.name == "decode_step" && !it.warmup && it.repeat == 0).count();
    let same_steps = steps(plain) == steps(traced);
    let (plain, traced) = (measured(plain), measured(traced));
    let Some(first) = plain.first() else { return OutputCheck::default() };
    let all = |outputs: &[Output], same: &dyn Fn(&Output) -> bool| (!outputs.is_empty()).then(|| outputs.iter().all(same));
    OutputCheck {
        repeats_agree: all(&plain[1..], &|it| it.tokens == first.tokens && it.logits_sha256 == first.logits_sha256),
        // A part of a model makes no tokens.
        traced_tokens_equal: all(&traced, &|it| begins(it, first)).filter(|_| !first.tokens.is_empty()),
        traced_logits_equal: if same_steps && traced.iter().all(|it| it.tokens.len() == first.tokens.len()) {
            all(&traced, &|it| it.logits_sha256 == first.logits_sha256)
        } else {
            None
        },
    }
}

/// A shorter pass makes the first tokens of a longer one. None prove nothing.
fn begins(short: &Output, long: &Output) -> bool {
    short.tokens.is_empty() == long.tokens.is_empty() && long.tokens.starts_with(&short.tokens)
}

/// Whether a pass made the tokens of the plain one, as many as it made; `None` when one of them told none.
pub fn same_tokens(plain: &[Event], pass: &[Event]) -> Option<bool> {
    let made =
        |events: &[Event]| -> Vec<Output> { Events::of(events).outputs.into_iter().filter(|it| !it.warmup).cloned().collect() };
    let (plain, pass) = (made(plain), made(pass));
    let first = plain.first()?;
    // A pass that ends with prefill makes no token, or the first.
    (!pass.is_empty()).then(|| pass.iter().all(|it| first.tokens.starts_with(&it.tokens)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(tokens: &[u32]) -> Vec<Event> {
        vec![Event::Output(Output { warmup: false, repeat: 0, tokens: tokens.to_vec(), logits_sha256: format!("{tokens:?}") })]
    }

    #[test]
    fn a_shorter_pass_makes_the_first_tokens_of_a_longer_one() {
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

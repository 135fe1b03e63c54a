//! Whether the passes computed the same thing: tokens and the hash of the logits they were sampled from.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::events::Events;
use crate::trace::event::Output;

/// What comparing outputs has shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputCheck {
    /// Whether all measured repeats of the plain pass agree; `null` with fewer than two.
    pub repeats_agree: Option<bool>,
    /// Whether the traced pass made the plain pass's tokens; `null` without a traced pass.
    pub traced_tokens_equal: Option<bool>,
    /// Whether the traced pass's logits hash to the plain pass's; `null` without a traced pass.
    pub traced_logits_equal: Option<bool>,
}

/// Compares the plain pass's repeats with each other, and the traced pass's with the first of them.
pub fn outputs(plain: &Events, traced: &Events) -> OutputCheck {
    let measured =
        |events: &Events<'_>| events.outputs.iter().filter(|it| !it.warmup).map(|it| (*it).clone()).collect::<Vec<Output>>();
    let (plain, traced) = (measured(plain), measured(traced));
    let Some(first) = plain.first() else { return OutputCheck::default() };
    let all = |outputs: &[Output], same: &dyn Fn(&Output) -> bool| (!outputs.is_empty()).then(|| outputs.iter().all(same));
    OutputCheck {
        repeats_agree: all(&plain[1..], &|it| it.tokens == first.tokens && it.logits_sha256 == first.logits_sha256),
        traced_tokens_equal: all(&traced, &|it| it.tokens == first.tokens),
        traced_logits_equal: all(&traced, &|it| it.logits_sha256 == first.logits_sha256),
    }
}

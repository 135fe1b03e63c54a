//! A part of a model: its path, what it is aligned with, and how the part that runs alone may differ.
//!
//! Plain values. Which parts a model has is in `model`.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Dtype, UnknownWord, whole::maybe_whole, words};

/// Module path of a part of a model: `decoder.layers.3.self_attn`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(min_length = 1, max_length = 200, pattern = "^[a-z0-9_]+([.][a-z0-9_]+)*$", example = "decoder.layers.3.self_attn")]
pub struct PartPath(pub String);

words! {
    /// What a part that ran alone is aligned with.
    AlignWith {
        /// The same part inside the whole model, which the run profiles too.
        E2e = "e2e",
    }
}

/// Differences of the mock from the model: the question is whether it still is what the model runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MockChange {
    /// Dtype; the run's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Dtype>,
    /// Whether decode replays a captured CUDA graph; as the run does when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_graph: Option<bool>,
    /// Positions of the prompt; the inputs' when absent. Only for parts of a decoder.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "maybe_whole")]
    #[schema(minimum = 1, maximum = 1048576)]
    pub prompt_tokens: Option<u32>,
}

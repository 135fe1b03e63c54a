//! What a run profiles in place of a whole model: a part of one, held to the whole perhaps, or a command of the host.
//!
//! Plain values. Which parts a model has is in `model`.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Dtype, RunSpec, UnknownWord, command::CommandCall, whole::maybe_whole, words};

/// What a run profiles in place of a whole model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Target {
    Part(PartPath),
    Command(CommandCall),
}

impl Target {
    /// Module path of the part, perhaps with its model before it.
    pub fn part(&self) -> Option<&str> {
        match self {
            Self::Part(PartPath(path)) => Some(path),
            Self::Command(_) => None,
        }
    }

    /// The command that is called.
    pub fn command(&self) -> Option<&CommandCall> {
        match self {
            Self::Part(_) => None,
            Self::Command(call) => Some(call),
        }
    }
}

impl RunSpec {
    /// Devices that the run gets at once.
    pub fn gpus(&self) -> u32 {
        self.target.as_ref().and_then(|target| target.command()?.gpus).unwrap_or(1).max(1)
    }
}

/// A part of a model: `decoder.layers.3.self_attn`, or with its model `deepseek-ocr:decoder.layers.3.self_attn`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(
    min_length = 1,
    max_length = 200,
    pattern = r"^([^:\u0000-\u001f\u007f-\u009f]+:)?[a-z0-9_]+([.][a-z0-9_]+)*$",
    example = "decoder.layers.3.self_attn"
)]
pub struct PartPath(pub String);

words! {
    /// What a part that ran alone is aligned with.
    AlignWith {
        /// The same part inside the whole model, which the run profiles too.
        E2e = "e2e",
    }
}

/// What is different about the mock: the question is whether it still is what the model runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MockChange {
    /// Number format; the run's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Dtype>,
    /// Whether decode replays a captured CUDA graph; as the run does when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_graph: Option<bool>,
    /// Positions of the prompt; the inputs' when absent. Of parts of a decoder.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "maybe_whole")]
    #[schema(minimum = 1, maximum = 1048576)]
    pub prompt_tokens: Option<u32>,
}

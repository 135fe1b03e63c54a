//! A part of a model: its path, its alignment, and the changes of the part that runs alone.
//!
//! Plain values. `model::parts` lists the parts of a model.

use serde::{Deserialize, Serialize};

use crate::domain::{dtype::Dtype, json_numbers::Within, named_values::named_values};

/// Module path of a part of a model: `decoder.layers.3.self_attn`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(transparent)]
#[cfg_attr(
    feature = "schema",
    schema(
        min_length = 1,
        max_length = 200,
        pattern = "^[a-z0-9_]+([.][a-z0-9_]+)*$",
        example = "decoder.layers.3.self_attn"
    )
)]
pub struct PartPath(pub String);

named_values! {
    /// Counterpart of a part that ran alone.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    AlignWith {
        /// The same part inside the whole model, which the run also profiles.
        E2e = "e2e",
    }
}

/// Differences of the mock from the model, to test whether it still runs the same kernels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MockChange {
    /// Dtype; the run's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Dtype>,
    /// Decode by replaying a captured CUDA graph; as in the run when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_graph: Option<bool>,
    /// Positions of the prompt; the inputs' when absent. Only for parts of a decoder.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "Within::<1, 1_048_576>::optional"
    )]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 1048576))]
    pub prompt_tokens: Option<u32>,
}

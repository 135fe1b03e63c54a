//! Data types of weights and activations.

use super::named_values::named_values;

named_values! {
    /// Data type of weights and activations.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    Dtype {
        F32 = "f32",
        F16 = "f16",
        Bf16 = "bf16",
    }
}

impl Dtype {
    /// Bytes per element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

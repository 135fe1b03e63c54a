//! Products of activations with weights, by their shapes.

use std::collections::BTreeMap;

use llmprof_core::trace::framework::OperatorSignature;

use super::{
    formulas::{is_linear, product_shape},
    kinds::base,
};

/// `[rows, inputs] x [inputs, outputs]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WeightProduct {
    pub rows: u64,
    pub inputs: u64,
    pub outputs: u64,
    pub dtype: String,
}

impl WeightProduct {
    /// The product of a call; `None` for other operators and for batches of matrices.
    pub fn of(call: &OperatorSignature) -> Option<Self> {
        if !["mm", "addmm"].contains(&base(&call.name)) && !is_linear(&call.name) {
            return None;
        }
        let shape = product_shape(call)?;
        Some(Self { rows: shape.m, inputs: shape.k, outputs: shape.n, dtype: shape.left_type })
    }

    pub const fn flops(&self) -> f64 {
        2.0 * self.rows as f64 * self.inputs as f64 * self.outputs as f64
    }
}

/// Calls by product.
pub type ProductCalls = BTreeMap<WeightProduct, u64>;

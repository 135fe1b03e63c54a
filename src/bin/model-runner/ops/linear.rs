//! Products with weights: linear layers and the embedding table.
//!
//! Weights are kept as published, `[out, in]`; an input of any rank is multiplied as one matrix.

use candle_core::{D, Result, Tensor};
use candle_nn::Init;

use super::matmul_flops;
use crate::{record::Op, site::Site};

/// `x W^T + b`.
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    op: Op,
}

impl Linear {
    /// Builds from `weight` `[outputs, inputs]`, and `bias` where there is one.
    pub fn new(site: &Site, inputs: usize, outputs: usize, bias: bool) -> Result<Self> {
        let init = Init::Randn { mean: 0.0, stdev: (inputs as f64).sqrt().recip() };
        let weight = site.get((outputs, inputs), "weight", init)?;
        let bias = bias.then(|| site.get(outputs, "bias", Init::Const(0.0))).transpose()?;
        Ok(Self { weight, bias, op: site.op("linear") })
    }

    /// Shares weights that another module owns: a tied lm_head.
    pub fn shared(site: &Site, weight: Tensor) -> Self {
        Self { weight, bias: None, op: site.op("linear") }
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (outputs, inputs) = self.weight.dims2()?;
        let rows = x.elem_count() / inputs;
        let mut operands = vec![x, &self.weight];
        operands.extend(&self.bias);
        self.op.call(&operands, matmul_flops(1, rows, inputs, outputs), || {
            let mut shape = x.dims().to_vec();
            if let Some(last) = shape.last_mut() {
                *last = outputs;
            }
            let y = x.reshape((rows, inputs))?.matmul(&self.weight.t()?)?;
            let y = match &self.bias {
                Some(bias) => y.broadcast_add(bias)?,
                None => y,
            };
            y.reshape(shape)
        })
    }
}

/// A table of vectors, looked up by token.
pub struct Embedding {
    weight: Tensor,
    op: Op,
}

impl Embedding {
    /// Builds from `weight` `[rows, width]`.
    pub fn new(site: &Site, rows: usize, width: usize) -> Result<Self> {
        let weight = site.get((rows, width), "weight", Init::Randn { mean: 0.0, stdev: 1.0 })?;
        Ok(Self { weight, op: site.op("embedding") })
    }

    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Vectors of `tokens`, `[.., width]`.
    pub fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let width = self.weight.dim(D::Minus1)?;
        let row = (width * self.weight.dtype().size_in_bytes() + tokens.dtype().size_in_bytes()) as u64;
        self.op.call_reading(&[tokens, &self.weight], tokens.elem_count() as u64 * row, 0, || {
            let mut shape = tokens.dims().to_vec();
            shape.push(width);
            self.weight.index_select(&tokens.flatten_all()?, 0)?.reshape(shape)
        })
    }
}

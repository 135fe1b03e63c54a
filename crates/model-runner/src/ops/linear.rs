//! Products with weights: linear layers and the embedding table.
//!
//! Weights are as published, `[out, in]`; an input of any rank is multiplied as one matrix. On a
//! GPU a single vector is multiplied by a kernel of this project, and biases and activations are
//! one pass over the product.

use candle_core::{D, Result, Tensor};
use candle_nn::Init;

use super::{Activation, gate, matmul_flops};
use crate::{
    module_scope::Site,
    record::{Op, OperatorWork},
};

/// `f(x W^T + b)`, with an optional activation `f`.
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    activation: Option<Activation>,
    op: Op,
}

impl Linear {
    /// Builds from `weight` `[outputs, inputs]`, and `bias` if requested.
    pub fn new(site: &Site, inputs: usize, outputs: usize, bias: bool) -> Result<Self> {
        let weight = weight(site, inputs, outputs)?;
        let bias = bias.then(|| site.get(outputs, "bias", Init::Const(0.0))).transpose()?;
        Ok(Self { weight, bias, activation: None, op: site.op("linear") })
    }

    /// Builds one layer, named `name` in operator paths, from several with the same input: `parts`
    /// with their number of outputs.
    pub fn fused(
        site: &Site,
        name: &str,
        inputs: usize,
        parts: &[(&str, usize)],
        bias: bool,
    ) -> Result<Self> {
        let get = |&(part, outputs): &(&str, usize)| weight(&site.pp(part), inputs, outputs);
        let weight = Tensor::cat(&parts.iter().map(get).collect::<Result<Vec<_>>>()?, 0)?;
        let get =
            |&(part, outputs): &(&str, usize)| site.pp(part).get(outputs, "bias", Init::Const(0.0));
        let bias = bias
            .then(|| Tensor::cat(&parts.iter().map(get).collect::<Result<Vec<_>>>()?, 0))
            .transpose()?;
        Ok(Self { weight, bias, activation: None, op: site.part(name, "").op("linear") })
    }

    /// Shares the weights of another module: a tied lm_head.
    pub fn shared(site: &Site, weight: Tensor) -> Self {
        Self { weight, bias: None, activation: None, op: site.op("linear") }
    }

    /// Appends the activation `function`.
    pub fn then(self, function: Activation) -> Self {
        Self { activation: Some(function), ..self }
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
            if self.activation.is_none() {
                gpu_kernel!(gemv(x, &self.weight, self.bias.as_ref()));
            }
            let y = product(&x.reshape((rows, inputs))?, &self.weight)?;
            self.finish(y)?.reshape(shape)
        })
    }

    /// Adds the bias and applies the activation.
    fn finish(&self, y: Tensor) -> Result<Tensor> {
        if self.bias.is_some() || self.activation.is_some() {
            gpu_kernel!(bias(
                &y,
                self.bias.as_ref(),
                None,
                self.activation.map_or(0, |function| function as i32)
            ));
        }
        let y = match &self.bias {
            Some(bias) => y.broadcast_add(bias)?,
            None => y,
        };
        self.activation.map_or(Ok(y.clone()), |function| function.apply(&y))
    }
}

/// `silu(gate x) * (up x)`: the first half of a SwiGLU, in one product.
pub struct GatedLinear {
    /// Gates, then ups, `[2 * width, inputs]`.
    weight: Tensor,
    op: Op,
}

impl GatedLinear {
    /// Builds from `gate_proj` and `up_proj`, `[width, inputs]` each.
    pub fn new(site: &Site, inputs: usize, width: usize) -> Result<Self> {
        let Linear { weight, op, .. } = Linear::fused(
            site,
            "gate_up_proj",
            inputs,
            &[("gate_proj", width), ("up_proj", width)],
            false,
        )?;
        Ok(Self { weight, op })
    }

    /// Forward of `x` `[tokens, inputs]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, (outputs, inputs)) = (x.dim(0)?, self.weight.dims2()?);
        self.op.call(&[x, &self.weight], matmul_flops(1, rows, inputs, outputs), || {
            gpu_kernel!(gated(x, &self.weight, None));
            let both = product(x, &self.weight)?;
            gpu_kernel!(swiglu(&both));
            gate(&both)
        })
    }
}

/// `x W^T` of `x` `[rows, inputs]`.
pub(super) fn product(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    gpu_kernel!(product(x, weight));
    x.matmul(&weight.t()?)
}

/// A weight `[outputs, inputs]`, whose synthetic values keep the scale of the input.
fn weight(site: &Site, inputs: usize, outputs: usize) -> Result<Tensor> {
    site.get(
        (outputs, inputs),
        "weight",
        Init::Randn { mean: 0.0, stdev: (inputs as f64).sqrt().recip() },
    )
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
        let row =
            (width * self.weight.dtype().size_in_bytes() + tokens.dtype().size_in_bytes()) as u64;
        let work =
            OperatorWork { read: tokens.elem_count() as u64 * row, ..OperatorWork::default() };
        self.op.call_with_work(&[tokens, &self.weight], work, || {
            gpu_kernel!(embed(tokens, &self.weight));
            let mut shape = tokens.dims().to_vec();
            shape.push(width);
            self.weight.index_select(&tokens.flatten_all()?, 0)?.reshape(shape)
        })
    }
}

//! Self-attention of an encoder: every token to every other, one fused projection for queries, keys and values.
//!
//! Knows no positions: whoever has them adds them to the scores.

use candle_core::{Result, Tensor};

use crate::{
    ops::{Linear, Matmul, Pointwise, Softmax},
    record::Op,
    site::Site,
};

/// Multi-head self-attention with biases.
pub struct SelfAttention {
    module: Op,
    qkv: Linear,
    split: Pointwise,
    scale: Pointwise,
    scores: Matmul,
    softmax: Softmax,
    mix: Matmul,
    join: Pointwise,
    output: Linear,
    heads: usize,
}

impl SelfAttention {
    /// Builds the fused projection and the output's, which the weights call `qkv` and `output`.
    pub fn new(site: &Site, width: usize, heads: usize, qkv: &str, output: &str) -> Result<Self> {
        Ok(Self {
            module: site.module(),
            qkv: Linear::new(&site.pp(qkv), width, 3 * width, true)?,
            split: Pointwise::new(&site.pp("split")),
            scale: Pointwise::new(&site.pp("scale")),
            scores: Matmul::new(&site.pp("scores")),
            softmax: Softmax::new(&site.pp("softmax")),
            mix: Matmul::new(&site.pp("mix")),
            join: Pointwise::new(&site.pp("join")),
            output: Linear::new(&site.pp(output), width, width, true)?,
            heads,
        })
    }

    /// Forward of `x` `[batch, tokens, width]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, |_, scores| Ok(scores))
    }

    /// Like [`SelfAttention::forward`]; `adjust` gets the queries `[batch * heads, tokens, head_dim]`, unscaled, and the scores.
    pub fn forward_with(&self, x: &Tensor, adjust: impl FnOnce(&Tensor, Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let _scope = self.module.enter();
        let (batch, tokens, width) = x.dims3()?;
        let head_dim = width / self.heads;
        let qkv = self.qkv.forward(x)?;
        // One copy that leaves queries, keys and values contiguous each.
        let qkv = self.split.run(&[&qkv], || {
            let split = qkv.reshape((batch, tokens, 3, self.heads, head_dim))?.permute((2, 0, 3, 1, 4))?;
            split.reshape((3, batch * self.heads, tokens, head_dim))
        })?;
        let (query, key, value) = (qkv.get(0)?, qkv.get(1)?, qkv.get(2)?);

        let scaled = self.scale.run(&[&query], || &query * (head_dim as f64).sqrt().recip())?;
        let scores = adjust(&query, self.scores.forward(&scaled, &key.t()?)?)?;
        let mixed = self.mix.forward(&self.softmax.forward(&scores)?, &value)?;
        let joined = self.join.run(&[&mixed], || {
            mixed.reshape((batch, self.heads, tokens, head_dim))?.transpose(1, 2)?.reshape((batch, tokens, width))
        })?;
        self.output.forward(&joined)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{D, DType, Device};
    use candle_nn::Init;

    use super::*;
    use crate::{record::Recorder, weights};

    #[test]
    fn attention_agrees_with_its_definition() -> anyhow::Result<()> {
        let site = Site::root(weights::synthetic(5, DType::F32, &Device::Cpu), Recorder::new());
        let attention = SelfAttention::new(&site, 4, 2, "qkv_proj", "out_proj")?;
        let x = Tensor::randn(0f32, 1.0, (1, 3, 4), &Device::Cpu)?;
        let linear = |name: &str, x: &Tensor, outputs: usize| -> Result<Tensor> {
            x.matmul(&site.pp(name).get((outputs, 4), "weight", Init::Randn { mean: 0.0, stdev: 0.5 })?.t()?)
        };
        let qkv = linear("qkv_proj", &x.squeeze(0)?, 12)?;
        let head = |part: usize, head: usize| qkv.narrow(1, 4 * part + 2 * head, 2);
        let mut mixed = Vec::new();
        for h in 0..2 {
            let scores = (head(0, h)?.matmul(&head(1, h)?.t()?)? / 2f64.sqrt())?;
            mixed.push(candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&head(2, h)?)?);
        }
        let expected = linear("out_proj", &Tensor::cat(&mixed, 1)?, 4)?;
        let difference = (attention.forward(&x)?.squeeze(0)? - expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(difference < 1e-5, "{difference}");
        Ok(())
    }
}

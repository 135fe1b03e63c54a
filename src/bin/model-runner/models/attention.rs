//! Causal self-attention with rotary positions and a key-value cache of fixed size.
//!
//! The cache is written in place: nothing grows while a stage is timed, and positions are all that changes between steps.

use candle_core::{DType, Device, Result, Tensor};
use llmprof::model::Decoder as Spec;

use crate::{
    ops::{Linear, Matmul, Pointwise, RmsNorm, Rope, Softmax},
    record::Op,
    site::Site,
};

/// Keys and values of one layer, `[1, kv_heads, capacity, head_dim]` each.
pub struct LayerCache {
    keys: Tensor,
    values: Tensor,
}

impl LayerCache {
    pub fn new(spec: &Spec, capacity: usize, dtype: DType, device: &Device) -> Result<Self> {
        let shape = (1, spec.kv_heads, capacity, spec.head_dim);
        Ok(Self { keys: Tensor::zeros(shape, dtype, device)?, values: Tensor::zeros(shape, dtype, device)? })
    }
}

/// One layer's attention.
pub struct Attention {
    module: Op,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    norms: Option<(RmsNorm, RmsNorm)>,
    rope: Rope,
    scale: Pointwise,
    append: Pointwise,
    scores: Matmul,
    mask: Pointwise,
    softmax: Softmax,
    mix: Matmul,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl Attention {
    /// Builds `q_proj`, `k_proj`, `v_proj`, `o_proj` for up to `positions` tokens.
    pub fn new(site: &Site, spec: &Spec, positions: usize) -> Result<Self> {
        let Spec { hidden, heads, kv_heads, head_dim, .. } = *spec;
        let norm = |name| RmsNorm::new(&site.pp(name), head_dim, spec.rms_norm_eps);
        Ok(Self {
            module: site.module(),
            query: Linear::new(&site.pp("q_proj"), hidden, heads * head_dim, spec.qkv_bias)?,
            key: Linear::new(&site.pp("k_proj"), hidden, kv_heads * head_dim, spec.qkv_bias)?,
            value: Linear::new(&site.pp("v_proj"), hidden, kv_heads * head_dim, spec.qkv_bias)?,
            output: Linear::new(&site.pp("o_proj"), heads * head_dim, hidden, false)?,
            norms: spec.qk_norm.then(|| Ok::<_, candle_core::Error>((norm("q_norm")?, norm("k_norm")?))).transpose()?,
            rope: Rope::new(&site.pp("rope"), positions, head_dim, spec.rope_theta)?,
            scale: Pointwise::new(&site.pp("scale")),
            append: Pointwise::new(&site.pp("cache")),
            scores: Matmul::new(&site.pp("scores")),
            mask: Pointwise::new(&site.pp("mask")),
            softmax: Softmax::new(&site.pp("softmax")),
            mix: Matmul::new(&site.pp("mix")),
            heads,
            kv_heads,
            head_dim,
        })
    }

    /// Attends from `x` `[1, tokens, hidden]`, whose first token stands at `position`, to all that the cache then holds.
    pub fn forward(&self, x: &Tensor, position: usize, mask: Option<&Tensor>, cache: &LayerCache) -> Result<Tensor> {
        let _scope = self.module.enter();
        let tokens = x.dim(1)?;
        let length = position + tokens;
        let split = |x: Tensor, heads| x.reshape((1, tokens, heads, self.head_dim))?.transpose(1, 2);

        let mut query = split(self.query.forward(x)?, self.heads)?;
        let mut key = split(self.key.forward(x)?, self.kv_heads)?;
        let value = split(self.value.forward(x)?, self.kv_heads)?;
        if let Some((query_norm, key_norm)) = &self.norms {
            (query, key) = (query_norm.forward(&query)?, key_norm.forward(&key)?);
        }
        let (query, key) = (self.rope.forward(&query, position)?, self.rope.forward(&key, position)?);
        let keys = self.append.run(&[&key], || append(&cache.keys, &key, position, length))?;
        let values = self.append.run(&[&value], || append(&cache.values, &value, position, length))?;

        // Query heads that share a key head are rows of one product, so keys are never repeated in memory.
        let query = self.scale.run(&[&query], || &query * (self.head_dim as f64).sqrt().recip())?;
        let rows = (1, self.kv_heads, self.heads / self.kv_heads * tokens, self.head_dim);
        let scores = self.scores.forward(&query.reshape(rows)?, &keys.t()?)?;
        let scores = scores.reshape((1, self.heads, tokens, length))?;
        let scores = match mask {
            Some(mask) => self.mask.add(&scores, mask)?,
            None => scores,
        };
        let weights = self.softmax.forward(&scores)?;
        let mixed = self.mix.forward(&weights.reshape((1, self.kv_heads, rows.2, length))?, &values)?;
        let mixed = mixed.reshape((1, self.heads, tokens, self.head_dim))?.transpose(1, 2)?;
        self.output.forward(&mixed.reshape((1, tokens, self.heads * self.head_dim))?)
    }
}

/// Writes `new` at `position` and returns a view of the first `length` positions.
fn append(cache: &Tensor, new: &Tensor, position: usize, length: usize) -> Result<Tensor> {
    cache.slice_set(&new.contiguous()?, 2, position)?;
    cache.narrow(2, 0, length)
}

/// Adds minus infinity where a token would see a later one; `None` when there is only one token.
pub fn causal_mask(tokens: usize, position: usize, dtype: DType, device: &Device) -> Result<Option<Tensor>> {
    if tokens == 1 {
        return Ok(None);
    }
    let length = position + tokens;
    let row = |i: usize| (0..length).map(move |j| if j > position + i { f32::NEG_INFINITY } else { 0.0 });
    let mask = Tensor::from_iter((0..tokens).flat_map(row), device)?;
    mask.reshape((tokens, length))?.to_dtype(dtype).map(Some)
}

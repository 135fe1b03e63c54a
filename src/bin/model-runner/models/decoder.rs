//! A decoder-only transformer, dense or with mixtures of experts, by its dimensions.
//!
//! Knows tokens and positions, and nothing of prompts, images or sampling.

use candle_core::{DType, Device, IndexOp, Result, Tensor};
use llmprof::model::Decoder as Spec;

use super::{
    attention::{Attention, LayerCache, causal_mask},
    mlp::FeedForward,
};
use crate::{
    ops::{Embedding, Linear, Pointwise, RmsNorm},
    record::Op,
    site::Site,
};

/// Keys and values of all layers, and how many positions are filled.
pub struct Cache {
    layers: Vec<LayerCache>,
    filled: usize,
    capacity: usize,
}

impl Cache {
    /// Makes a cache with room for `capacity` positions.
    pub fn new(spec: &Spec, capacity: usize, dtype: DType, device: &Device) -> Result<Self> {
        let layers = (0..spec.layers).map(|_| LayerCache::new(spec, capacity, dtype, device)).collect::<Result<_>>()?;
        Ok(Self { layers, filled: 0, capacity })
    }

    /// Forgets what was said; the memory stays.
    pub fn clear(&mut self) {
        self.filled = 0;
    }
}

struct Layer {
    module: Op,
    attention_norm: RmsNorm,
    attention: Attention,
    add_attention: Pointwise,
    mlp_norm: RmsNorm,
    mlp: FeedForward,
    add_mlp: Pointwise,
}

impl Layer {
    fn new(site: &Site, spec: &Spec, layer: usize, positions: usize) -> Result<Self> {
        Ok(Self {
            module: site.module(),
            attention_norm: RmsNorm::new(&site.pp("input_layernorm"), spec.hidden, spec.rms_norm_eps)?,
            attention: Attention::new(&site.pp("self_attn"), spec, positions)?,
            add_attention: Pointwise::new(&site.pp("add_attention")),
            mlp_norm: RmsNorm::new(&site.pp("post_attention_layernorm"), spec.hidden, spec.rms_norm_eps)?,
            mlp: FeedForward::new(&site.pp("mlp"), spec, layer)?,
            add_mlp: Pointwise::new(&site.pp("add_mlp")),
        })
    }

    fn forward(&self, x: &Tensor, position: usize, mask: Option<&Tensor>, cache: &LayerCache) -> Result<Tensor> {
        let _scope = self.module.enter();
        let attended = self.attention.forward(&self.attention_norm.forward(x)?, position, mask, cache)?;
        let x = self.add_attention.add(x, &attended)?;
        let fed = self.mlp.forward(&self.mlp_norm.forward(&x)?)?;
        self.add_mlp.add(&x, &fed)
    }
}

/// The language side of a model.
pub struct Decoder {
    module: Op,
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
}

impl Decoder {
    /// Builds from the root of the weights, for up to `positions` tokens.
    pub fn new(root: &Site, spec: &Spec, positions: usize) -> Result<Self> {
        let site = root.part("decoder", "model");
        let embedding = Embedding::new(&site.pp("embed_tokens"), spec.vocab, spec.hidden)?;
        let layers = (0..spec.layers)
            .map(|layer| Layer::new(&site.pp("layers").pp(layer), spec, layer, positions))
            .collect::<Result<_>>()?;
        let norm = RmsNorm::new(&site.pp("norm"), spec.hidden, spec.rms_norm_eps)?;
        let head = root.part("decoder.lm_head", "lm_head");
        let head = match spec.tied_embeddings {
            true => Linear::shared(&head, embedding.weight().clone()),
            false => Linear::new(&head, spec.hidden, spec.vocab, false)?,
        };
        Ok(Self { module: site.module(), embedding, layers, norm, head })
    }

    /// Vectors of `tokens`, `[tokens, hidden]`.
    pub fn embed(&self, tokens: &Tensor) -> Result<Tensor> {
        self.embedding.forward(tokens)
    }

    /// Continues the cached text with `x` `[tokens, hidden]`; returns the logits after its last token, `[vocab]`.
    pub fn forward(&self, x: &Tensor, cache: &mut Cache) -> Result<Tensor> {
        let _scope = self.module.enter();
        let (tokens, position) = (x.dim(0)?, cache.filled);
        if position + tokens > cache.capacity {
            candle_core::bail!("{} positions do not fit a cache of {}", position + tokens, cache.capacity);
        }
        let mask = causal_mask(tokens, position, x.dtype(), x.device())?;
        let mut x = x.unsqueeze(0)?;
        for (layer, cache) in self.layers.iter().zip(&cache.layers) {
            x = layer.forward(&x, position, mask.as_ref(), cache)?;
        }
        cache.filled += tokens;
        let last = x.i((0, tokens - 1..tokens))?;
        self.head.forward(&self.norm.forward(&last)?)?.squeeze(0)
    }
}

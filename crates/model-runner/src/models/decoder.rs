//! A decoder-only transformer, dense or with mixtures of experts, by its dimensions.
//!
//! Works on tokens and positions; independent of prompts, images and sampling.

use candle_core::{DType, Device, Result, Tensor};
use llmprof_core::domain::model::DecoderSpec as Spec;

use super::{attention::DecoderAttention, mlp::FeedForward};
use crate::{
    module_scope::Site,
    ops::{Cursor, Embedding, LayerCache, Linear, Norm, Room, RopeTables, Span, join},
    record::Op,
};

/// Keys and values of all layers, and the position of the next token.
pub struct KvCache {
    layers: Vec<LayerCache>,
    pub cursor: Cursor,
    room: Room,
}

impl KvCache {
    pub fn new(spec: &Spec, room: Room, dtype: DType, device: &Device) -> Result<Self> {
        let layers = (0..spec.layers)
            .map(|_| LayerCache::new(spec, room, dtype, device))
            .collect::<Result<_>>()?;
        Ok(Self { layers, cursor: Cursor::new(room.sequences, spec.heads, device)?, room })
    }

    /// Clears the texts; memory is kept.
    pub fn clear(&mut self) -> Result<()> {
        self.cursor.clear()
    }
}

/// One layer: attention, then feed-forward, each after a norm.
pub struct DecoderLayer {
    module: Op,
    attention_norm: Norm,
    attention: DecoderAttention,
    mlp_norm: Norm,
    mlp: FeedForward,
}

impl DecoderLayer {
    /// Builds layer `layer`, for batches that fit `room`.
    pub fn new(
        site: &Site,
        spec: &Spec,
        layer: usize,
        tables: &RopeTables,
        room: Room,
    ) -> Result<Self> {
        Ok(Self {
            module: site.module(),
            attention_norm: Norm::rms(&site.pp("input_layernorm"), spec.hidden, spec.rms_norm_eps)?,
            attention: DecoderAttention::new(&site.pp("self_attn"), spec, tables)?,
            mlp_norm: Norm::rms(
                &site.pp("post_attention_layernorm"),
                spec.hidden,
                spec.rms_norm_eps,
            )?,
            mlp: FeedForward::new(&site.pp("mlp"), spec, layer, room.tokens())?,
        })
    }

    /// Continues from `x` and the addend of the layer before, `[tokens, hidden]` each; returns the
    /// same two.
    pub fn forward(
        &self,
        x: &Tensor,
        delta: Option<&Tensor>,
        cache: &LayerCache,
        cursor: &Cursor,
    ) -> Result<(Tensor, Tensor)> {
        let _scope = self.module.enter();
        let (x, normed) = match delta {
            Some(delta) => self.attention_norm.forward_sum(x, delta)?,
            None => (x.clone(), self.attention_norm.forward(x)?),
        };
        let attended = self.attention.forward(&normed, cache, cursor)?;
        let (x, normed) = self.mlp_norm.forward_sum(&x, &attended)?;
        let fed = self.mlp.forward(&normed, cursor)?;
        Ok((x, fed))
    }

    pub fn mlp(&self) -> &FeedForward {
        &self.mlp
    }

    /// Both halves, each without the norm before it.
    pub fn into_parts(self) -> (DecoderAttention, FeedForward) {
        (self.attention, self.mlp)
    }
}

/// The language side of a model.
pub struct Decoder {
    module: Op,
    embedding: Embedding,
    layers: Vec<DecoderLayer>,
    norm: Norm,
    head: Linear,
}

impl Decoder {
    /// Builds from the root of the weights, for batches that fit `room`.
    pub fn new(root: &Site, spec: &Spec, room: Room) -> Result<Self> {
        let site = root.part("decoder", "model");
        let embedding = Embedding::new(&site.pp("embed_tokens"), spec.vocab, spec.hidden)?;
        let tables = RopeTables::new(room.positions, &spec.rope_frequencies(), site.device())?;
        let layers = (0..spec.layers)
            .map(|layer| {
                DecoderLayer::new(&site.pp("layers").pp(layer), spec, layer, &tables, room)
            })
            .collect::<Result<_>>()?;
        let norm = Norm::rms(&site.pp("norm"), spec.hidden, spec.rms_norm_eps)?;
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

    /// Continues the cached texts with `x` `[rows, hidden]`, whose rows the cursor reads; returns
    /// the logits after the last token of each, `[sequences, vocab]`.
    pub fn forward(&self, x: &Tensor, cache: &mut KvCache) -> Result<Tensor> {
        let _scope = self.module.enter();
        let spans = cache.cursor.spans();
        let rows: usize = spans.clone().map(|span| span.tokens).sum();
        let (longest, positions) = (spans.map(Span::length).max(), cache.room.positions);
        if rows != x.dim(0)? || longest.is_none_or(|longest| longest > positions) {
            let texts: Vec<usize> = cache.cursor.spans().map(Span::length).collect();
            candle_core::bail!(
                "texts of {texts:?} tokens do not fit a cache of {positions} positions and {} rows",
                x.dim(0)?
            );
        }
        let (mut x, mut delta) = (x.clone(), None);
        for (layer, layer_cache) in self.layers.iter().zip(&cache.layers) {
            let (sum, fed) = layer.forward(&x, delta.as_ref(), layer_cache, &cache.cursor)?;
            (x, delta) = (sum, Some(fed));
        }
        // Only the last token of each text predicts the next one.
        let last = |x: &Tensor| match cache.cursor.reads_one() {
            true => Ok(x.clone()),
            false => {
                let spans = cache.cursor.spans();
                join(spans.map(|span| x.narrow(0, span.row + span.tokens - 1, 1)))
            }
        };
        let normed = match delta {
            Some(delta) => self.norm.forward_sum(&last(&x)?, &last(&delta)?)?.1,
            None => self.norm.forward(&last(&x)?)?,
        };
        let logits = self.head.forward(&normed)?;
        cache.cursor.advance()?;
        Ok(logits)
    }

    /// Starts or stops balancing each router by its inputs in the following forwards.
    pub fn set_balancing(&self, on: bool) {
        self.layers.iter().for_each(|layer| layer.mlp.set_balancing(on));
    }

    /// Records the experts that only the GPU knows, of `forwards`, each with its number of tokens.
    pub fn record_experts(&self, forwards: &[usize]) -> Result<()> {
        self.layers.iter().try_for_each(|layer| layer.mlp.record_experts(forwards))
    }
}

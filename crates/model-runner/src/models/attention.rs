//! Causal self-attention with rotary positions and a KV cache of fixed size.
//!
//! Queries, keys and values are one GEMM.

use candle_core::{Result, Tensor};
use llmprof_core::domain::model::DecoderSpec as Spec;

use crate::{
    module_scope::Site,
    ops::{CausalAttention, Cursor, LayerCache, Linear, Rope, RopeTables},
    record::Op,
};

/// One layer's attention.
pub struct DecoderAttention {
    module: Op,
    qkv: Linear,
    rope: Rope,
    attend: CausalAttention,
    output: Linear,
}

impl DecoderAttention {
    /// Builds `q_proj`, `k_proj`, `v_proj`, `o_proj`.
    pub fn new(site: &Site, spec: &Spec, tables: &RopeTables) -> Result<Self> {
        let Spec { hidden, heads, kv_heads, head_dim, .. } = *spec;
        let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
        let parts = [("q_proj", queries), ("k_proj", keys), ("v_proj", keys)];
        Ok(Self {
            module: site.module(),
            qkv: Linear::fused(site, "qkv_proj", hidden, &parts, spec.qkv_bias)?,
            rope: Rope::new(site, spec, tables)?,
            attend: CausalAttention::new(&site.part("attend", "")),
            output: Linear::new(&site.pp("o_proj"), queries, hidden, false)?,
        })
    }

    /// Attends from `x` `[tokens, hidden]`, whose first token is at the cursor, to the cache with
    /// these tokens.
    pub fn forward(&self, x: &Tensor, cache: &LayerCache, cursor: &Cursor) -> Result<Tensor> {
        let _scope = self.module.enter();
        let queries = self.rope.forward(&self.qkv.forward(x)?, cache, cursor)?;
        self.output.forward(&self.attend.forward(&queries, cache, cursor)?)
    }
}

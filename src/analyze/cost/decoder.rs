//! Cost of a decoder: attention, dense or mixed feed-forward, embedding, head.
//!
//! Counts from dimensions; never looks at what ran.

use super::{Tally, Workload, matmul};
use crate::model::Decoder;

/// Elements of keys and values that one position keeps over all layers.
pub fn kv_elements_per_token(decoder: &Decoder) -> u64 {
    (decoder.layers * 2 * decoder.kv_heads * decoder.head_dim) as u64
}

/// Counts the decoder into `tally`; gives the parameters that one decoded token touches.
pub fn count(tally: &mut Tally, decoder: &Decoder, work: &Workload) -> u64 {
    let (hidden, vocab) = (decoder.hidden as u64, decoder.vocab as u64);
    let mut active = 0;

    tally.parameters("decoder.embed_tokens", vocab * hidden);
    for layer in 0..decoder.layers {
        active += attention(tally, decoder, work);
        active += feed_forward(tally, decoder, layer, work);
        tally.parameters("decoder.layers.*.norms", 2 * hidden);
        active += 2 * hidden;
    }
    tally.parameters("decoder.norm", hidden);
    if !decoder.tied_embeddings {
        tally.parameters("decoder.lm_head", vocab * hidden);
    }
    tally.prefill("decoder.lm_head", matmul(1, hidden, vocab));
    tally.decode("decoder.lm_head", matmul(work.new_tokens, hidden, vocab));
    active + hidden + vocab * hidden
}

fn attention(tally: &mut Tally, decoder: &Decoder, work: &Workload) -> u64 {
    let (prompt, steps) = (work.prompt_tokens, work.new_tokens);
    let hidden = decoder.hidden as u64;
    let queries = (decoder.heads * decoder.head_dim) as u64;
    let keys = (decoder.kv_heads * decoder.head_dim) as u64;
    let mut active = 0;
    for (path, inputs, outputs) in [
        ("decoder.layers.*.self_attn.q_proj", hidden, queries),
        ("decoder.layers.*.self_attn.k_proj", hidden, keys),
        ("decoder.layers.*.self_attn.v_proj", hidden, keys),
        ("decoder.layers.*.self_attn.o_proj", queries, hidden),
    ] {
        tally.parameters(path, inputs * outputs);
        tally.prefill(path, matmul(prompt, inputs, outputs));
        tally.decode(path, matmul(steps, inputs, outputs));
        active += inputs * outputs;
    }
    // Step i (from 0) attends to the prompt, the tokens before it and itself: prompt + i + 1 positions.
    let attended = steps * prompt + steps * (steps + 1) / 2;
    let scores = "decoder.layers.*.self_attn (scores and values)";
    tally.prefill(scores, 2 * matmul(prompt, queries, prompt));
    tally.decode(scores, 2 * matmul(1, queries, attended));
    active
}

fn feed_forward(tally: &mut Tally, decoder: &Decoder, layer: usize, work: &Workload) -> u64 {
    let (prompt, steps) = (work.prompt_tokens, work.new_tokens);
    let hidden = decoder.hidden as u64;
    // Gate, up and down of a SwiGLU are of one size: `tokens` of them run, `kept` of them are kept.
    let mut swiglu = |path, width: u64, per_token: u64, kept: u64| {
        let weights = 3 * hidden * width;
        tally.parameters(path, kept * weights);
        tally.prefill(path, 3 * matmul(prompt * per_token, hidden, width));
        tally.decode(path, 3 * matmul(steps * per_token, hidden, width));
        per_token * weights
    };
    let Some(moe) = decoder.moe.as_ref().filter(|moe| layer >= moe.first_layer) else {
        return swiglu("decoder.layers.*.mlp", decoder.intermediate as u64, 1, 1);
    };
    let (width, experts, shared) = (moe.intermediate as u64, moe.experts as u64, moe.shared as u64);
    let mut active = swiglu("decoder.layers.*.mlp.experts.*", width, moe.top_k as u64, experts);
    if shared > 0 {
        active += swiglu("decoder.layers.*.mlp.shared_experts", shared * width, 1, 1);
    }
    let router = "decoder.layers.*.mlp.gate";
    tally.parameters(router, hidden * experts);
    tally.prefill(router, matmul(prompt, hidden, experts));
    tally.decode(router, matmul(steps, hidden, experts));
    active + hidden * experts
}

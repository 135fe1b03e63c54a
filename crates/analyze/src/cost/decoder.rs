//! Cost of a decoder: embedding, attention, dense or MoE feed-forward, head, sampling.
//!
//! Derived only from dimensions. Projections of the same input count as one product, as in the
//! runner.

use llmprof_core::domain::model::{DecoderSpec, MoeSpec};

use super::{
    CostInputs,
    tally::{CostStage, CostTally, LinearShape, MovedElements, OperatorWork, matmul},
};

/// Bytes of a token id, and of a rotary position's angle.
const WORD: u128 = 4;

/// Forward passes of one stage: `times` forwards of `tokens` tokens each, of all sequences.
struct Forwards {
    stage: CostStage,
    times: u128,
    tokens: u128,
    /// Sequences; each samples one position.
    sequences: u128,
    /// Query-key pairs in the attention mask, over all forwards.
    pairs: u128,
    /// Keys read from the cache, including the forward's own, over all forwards.
    keys: u128,
    /// True when image embeddings replace prompt positions.
    images: bool,
}

/// Elements of keys and values cached per position, over all layers.
pub fn kv_elements_per_token(decoder: &DecoderSpec) -> u128 {
    decoder.layers as u128 * 2 * (decoder.kv_heads * decoder.head_dim) as u128
}

/// Counts the decoder into `tally`; returns the parameters used by one decoded token.
pub fn count(tally: &mut CostTally, decoder: &DecoderSpec, work: &CostInputs) -> u128 {
    let steps = u128::from(work.new_tokens);
    let (batch, prompt) = (u128::from(work.prompts.sequences), work.prompts.positions);
    let active = parameters(tally, decoder);
    let images = !work.images.is_empty();
    // Causal attention: a prompt token attends to itself and its predecessors, and step i (from 0)
    // to prompt + i + 1 positions.
    let seen = steps * prompt + batch * (steps * (steps + 1) / 2);
    if prompt > 0 {
        forwards(
            tally,
            decoder,
            &Forwards {
                stage: CostStage::Prefill,
                times: 1,
                tokens: prompt,
                sequences: batch,
                pairs: work.prompts.pairs,
                keys: prompt,
                images,
            },
        );
    }
    if steps > 0 {
        let decode = Forwards {
            stage: CostStage::Decode,
            times: steps,
            tokens: batch,
            sequences: batch,
            pairs: seen,
            keys: seen,
            images: false,
        };
        forwards(tally, decoder, &decode);
    }
    active
}

fn mixture(decoder: &DecoderSpec, layer: usize) -> Option<&MoeSpec> {
    decoder.moe.as_ref().filter(|moe| layer >= moe.first_layer)
}

/// Adds the parameters of each operator; returns those used by one token.
fn parameters(tally: &mut CostTally, decoder: &DecoderSpec) -> u128 {
    let [hidden, vocab, head] =
        [decoder.hidden, decoder.vocab, decoder.head_dim].map(|n| n as u128);
    let (queries, keys) = (decoder.heads as u128 * head, decoder.kv_heads as u128 * head);
    let mut active = 0;
    let all = |count| (count, count);
    tally.parameters("decoder.embed_tokens", "embedding", vocab * hidden);
    for layer in 0..decoder.layers {
        tally.set_layer(Some(layer));
        // Operators without parameters get a row too, so that rows are in forward order.
        let mut operator = |path, op, (count, touched): (u128, u128)| {
            tally.parameters(path, op, count);
            active += touched;
        };
        operator("decoder.layers.*.input_layernorm", "norm", all(hidden));
        let outputs = queries + 2 * keys;
        let biases = if decoder.qkv_bias { outputs } else { 0 };
        operator("decoder.layers.*.self_attn.qkv_proj", "linear", all(hidden * outputs + biases));
        // The norms of queries and keys are part of the rope operator.
        operator(
            "decoder.layers.*.self_attn.rope",
            "rope",
            all(if decoder.qk_norm { 2 * head } else { 0 }),
        );
        operator("decoder.layers.*.self_attn.attend", "attention", all(0));
        operator("decoder.layers.*.self_attn.o_proj", "linear", all(queries * hidden));
        operator("decoder.layers.*.post_attention_layernorm", "norm", all(hidden));
        let swiglu = |width: usize| 3 * hidden * width as u128;
        match mixture(decoder, layer) {
            Some(moe) => {
                let (kept, used) = (moe.experts + moe.shared, moe.top_k + moe.shared);
                operator("decoder.layers.*.mlp.gate", "router", all(hidden * moe.experts as u128));
                let one = swiglu(moe.intermediate);
                operator(
                    "decoder.layers.*.mlp.experts",
                    "experts",
                    (kept as u128 * one, used as u128 * one),
                );
            }
            None => {
                let one = swiglu(decoder.intermediate);
                operator("decoder.layers.*.mlp.gate_up_proj", "linear", all(one / 3 * 2));
                operator("decoder.layers.*.mlp.down_proj", "linear", all(one / 3));
            }
        }
    }
    tally.set_layer(None);
    tally.parameters("decoder.norm", "norm", hidden);
    // A tied head shares the embedding table, which is counted once.
    let head = if decoder.tied_embeddings { 0 } else { vocab * hidden };
    tally.parameters("decoder.lm_head", "linear", head);
    active + hidden + vocab * hidden
}

fn forwards(tally: &mut CostTally, decoder: &DecoderSpec, f: &Forwards) {
    let (hidden, vocab) = (decoder.hidden as u128, decoder.vocab as u128);
    let (e, x) = (tally.element, f.tokens * hidden);
    let rows = OperatorWork::call(0, x * e, f.tokens * WORD, x * e);
    tally.add(f.stage, "decoder.embed_tokens", "embedding", rows.times(f.times));
    if f.images {
        let moved = MovedElements { read: x, written: x, weights: 0 };
        tally.pointwise(f.stage, "decoder.insert_images", "elementwise", f.times, moved);
    }
    for layer in 0..decoder.layers {
        // The norm adds the previous layer's result; the first layer has none.
        tally.set_layer(Some(layer));
        let terms = if layer == 0 { 1 } else { 2 };
        norm(tally, f, "decoder.layers.*.input_layernorm", (terms, x), hidden);
        attention(tally, decoder, f);
        norm(tally, f, "decoder.layers.*.post_attention_layernorm", (2, x), hidden);
        feed_forward(tally, decoder, layer, f);
    }
    tally.set_layer(None);
    let terms = if decoder.layers == 0 { 1 } else { 2 };
    norm(tally, f, "decoder.norm", (terms, f.sequences * hidden), hidden);
    tally.linear(
        f.stage,
        "decoder.lm_head",
        f.times,
        f.sequences,
        LinearShape { inputs: hidden, outputs: vocab, bias: false },
    );
    tally.add(
        f.stage,
        "decoder.sample",
        "argmax",
        OperatorWork::call(0, 0, f.sequences * vocab * e, f.sequences * WORD).times(f.times),
    );
}

/// A norm of the sum of `terms` operands of `elements` each; with two, the sum is written as well.
fn norm(
    tally: &mut CostTally,
    f: &Forwards,
    path: &'static str,
    (terms, elements): (u128, u128),
    width: u128,
) {
    let moved = MovedElements { weights: width, read: terms * elements, written: terms * elements };
    tally.pointwise(f.stage, path, "norm", f.times, moved);
}

fn attention(tally: &mut CostTally, decoder: &DecoderSpec, f: &Forwards) {
    let [hidden, head] = [decoder.hidden, decoder.head_dim].map(|n| n as u128);
    let (queries, keys) = (decoder.heads as u128 * head, decoder.kv_heads as u128 * head);
    let (e, tokens) = (tally.element, f.tokens);
    let qkv = LinearShape { inputs: hidden, outputs: queries + 2 * keys, bias: decoder.qkv_bias };
    tally.linear(f.stage, "decoder.layers.*.self_attn.qkv_proj", f.times, tokens, qkv);
    let norms = if decoder.qk_norm { 2 * head * e } else { 0 };
    let rotate = OperatorWork::call(
        0,
        norms,
        tokens * (qkv.outputs * e + head * WORD),
        tokens * queries * e,
    );
    let rotate = OperatorWork { kv_written: tokens * 2 * keys * e, ..rotate };
    tally.add(f.stage, "decoder.layers.*.self_attn.rope", "rope", rotate.times(f.times));
    let attend = OperatorWork {
        calls: f.times,
        flops: 2 * matmul(1, f.pairs, queries, 1),
        read: f.times * tokens * queries * e,
        written: f.times * tokens * queries * e,
        kv_read: f.keys * 2 * keys * e,
        ..OperatorWork::default()
    };
    tally.add(f.stage, "decoder.layers.*.self_attn.attend", "attention", attend);
    let output = LinearShape { inputs: queries, outputs: hidden, bias: false };
    tally.linear(f.stage, "decoder.layers.*.self_attn.o_proj", f.times, tokens, output);
}

fn feed_forward(tally: &mut CostTally, decoder: &DecoderSpec, layer: usize, f: &Forwards) {
    let (hidden, e, tokens) = (decoder.hidden as u128, tally.element, f.tokens);
    let Some(moe) = mixture(decoder, layer) else {
        let width = decoder.intermediate as u128;
        // The gate is fused with the product: only half of its outputs are written.
        let up = OperatorWork::call(
            matmul(1, tokens, hidden, 2 * width),
            2 * hidden * width * e,
            tokens * hidden * e,
            tokens * width * e,
        );
        tally.add(f.stage, "decoder.layers.*.mlp.gate_up_proj", "linear", up.times(f.times));
        let down = LinearShape { inputs: width, outputs: hidden, bias: false };
        return tally.linear(f.stage, "decoder.layers.*.mlp.down_proj", f.times, tokens, down);
    };
    let [experts, top_k, shared, width] =
        [moe.experts, moe.top_k, moe.shared, moe.intermediate].map(|n| n as u128);
    let slots = top_k + shared;
    let chosen = tokens * slots * (e + WORD);
    let router = OperatorWork::call(
        matmul(1, tokens, hidden, experts),
        hidden * experts * e,
        tokens * hidden * e,
        chosen,
    );
    tally.add(f.stage, "decoder.layers.*.mlp.gate", "router", router.times(f.times));

    let one = 3 * hidden * width * e;
    let (expected, max) = (distinct(moe, f.tokens), experts.min(tokens * top_k));
    let run = OperatorWork {
        weights: (expected * one as f64).round() as u128 + shared * one,
        max_weights: (max + shared) * one,
        ..OperatorWork::call(
            3 * matmul(1, tokens * slots, hidden, width),
            0,
            tokens * hidden * e,
            tokens * hidden * e,
        )
    };
    tally.add(f.stage, "decoder.layers.*.mlp.experts", "experts", run.times(f.times));
}

/// `E (1 - (1 - k/E)^n)`: expected distinct experts of `E` when `n` tokens choose `k` each, evenly
/// and independently.
pub fn distinct(moe: &MoeSpec, tokens: u128) -> f64 {
    let (total, top_k) = (moe.experts as f64, moe.top_k as f64);
    total * (1.0 - (1.0 - top_k / total).powf(tokens as f64))
}

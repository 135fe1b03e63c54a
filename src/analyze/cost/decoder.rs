//! Cost of a decoder: embedding, attention, dense or mixed feed-forward, head, choice of the token.
//!
//! Counts from dimensions; never looks at what ran. Projections of one input are one product, as the runner makes them.

use super::{
    Workload,
    tally::{Linear, Moved, Stage, Tally, Work, matmul},
};
use crate::model::{Decoder, Moe};

/// Bytes of a token's number, and of an angle of a rotary position.
const WORD: u128 = 4;

/// Forwards of one stage: `times` forwards of `tokens` tokens.
struct Forwards {
    stage: Stage,
    times: u128,
    tokens: u128,
    /// Pairs of a query and a key that see each other, over all forwards.
    pairs: u128,
    /// Keys that a forward finds in the cache, its own included, over all forwards.
    keys: u128,
    /// Whether images' vectors take places of the prompt.
    images: bool,
}

/// Elements of keys and values that one position keeps over all layers.
pub fn kv_elements_per_token(decoder: &Decoder) -> u128 {
    decoder.layers as u128 * 2 * (decoder.kv_heads * decoder.head_dim) as u128
}

/// Counts the decoder into `tally`; gives the parameters that one decoded token touches.
pub fn count(tally: &mut Tally, decoder: &Decoder, work: &Workload) -> u128 {
    let (prompt, steps) = (u128::from(work.prompt_tokens), u128::from(work.new_tokens));
    let active = parameters(tally, decoder);
    let images = !work.images.is_empty();
    // A token of the prompt sees those before it and itself; so does step i (from 0): prompt + i + 1 positions.
    let seen = steps * prompt + steps * (steps + 1) / 2;
    let pairs = prompt * (prompt + 1) / 2;
    if prompt > 0 {
        forwards(tally, decoder, &Forwards { stage: Stage::Prefill, times: 1, tokens: prompt, pairs, keys: prompt, images });
    }
    if steps > 0 {
        let decode = Forwards { stage: Stage::Decode, times: steps, tokens: 1, pairs: seen, keys: seen, images: false };
        forwards(tally, decoder, &decode);
    }
    active
}

fn mixture(decoder: &Decoder, layer: usize) -> Option<&Moe> {
    decoder.moe.as_ref().filter(|moe| layer >= moe.first_layer)
}

/// Adds what each operator keeps; gives what one token touches.
fn parameters(tally: &mut Tally, decoder: &Decoder) -> u128 {
    let [hidden, vocab, head] = [decoder.hidden, decoder.vocab, decoder.head_dim].map(|n| n as u128);
    let (queries, keys) = (decoder.heads as u128 * head, decoder.kv_heads as u128 * head);
    let mut active = 0;
    let mut whole = |path, op, (count, touched): (u128, u128)| {
        // What keeps nothing is named all the same: rows stand in the order of a forward.
        tally.parameters(path, op, count);
        active += touched;
    };
    let all = |count| (count, count);
    whole("decoder.embed_tokens", "embedding", (vocab * hidden, 0));
    for layer in 0..decoder.layers {
        whole("decoder.layers.*.input_layernorm", "norm", all(hidden));
        let outputs = queries + 2 * keys;
        let biases = if decoder.qkv_bias { outputs } else { 0 };
        whole("decoder.layers.*.self_attn.qkv_proj", "linear", all(hidden * outputs + biases));
        // Norms of queries and keys are part of the rotation.
        whole("decoder.layers.*.self_attn.rope", "rope", all(if decoder.qk_norm { 2 * head } else { 0 }));
        whole("decoder.layers.*.self_attn.attend", "attention", all(0));
        whole("decoder.layers.*.self_attn.o_proj", "linear", all(queries * hidden));
        whole("decoder.layers.*.post_attention_layernorm", "norm", all(hidden));
        let swiglu = |width: usize| 3 * hidden * width as u128;
        match mixture(decoder, layer) {
            Some(moe) => {
                let (kept, used) = (moe.experts + moe.shared, moe.top_k + moe.shared);
                whole("decoder.layers.*.mlp.gate", "router", all(hidden * moe.experts as u128));
                let one = swiglu(moe.intermediate);
                whole("decoder.layers.*.mlp.experts", "experts", (kept as u128 * one, used as u128 * one));
            }
            None => {
                let one = swiglu(decoder.intermediate);
                whole("decoder.layers.*.mlp.gate_up_proj", "linear", all(one / 3 * 2));
                whole("decoder.layers.*.mlp.down_proj", "linear", all(one / 3));
            }
        }
    }
    whole("decoder.norm", "norm", all(hidden));
    // A tied head reads the embedding's table, which is kept once.
    whole("decoder.lm_head", "linear", (if decoder.tied_embeddings { 0 } else { vocab * hidden }, vocab * hidden));
    active
}

fn forwards(tally: &mut Tally, decoder: &Decoder, f: &Forwards) {
    let (hidden, vocab) = (decoder.hidden as u128, decoder.vocab as u128);
    let (e, x) = (tally.element, f.tokens * hidden);
    let rows = Work::call(0, x * e, f.tokens * WORD, x * e);
    tally.add(f.stage, "decoder.embed_tokens", "embedding", rows.times(f.times));
    if f.images {
        let moved = Moved { read: x, written: x, weights: 0 };
        tally.pointwise(f.stage, "decoder.insert_images", "elementwise", f.times, moved);
    }
    for layer in 0..decoder.layers {
        // What the layer before adds is added by the norm: the first has nothing to add.
        let terms = if layer == 0 { 1 } else { 2 };
        norm(tally, f, "decoder.layers.*.input_layernorm", (terms, x), hidden);
        attention(tally, decoder, f);
        norm(tally, f, "decoder.layers.*.post_attention_layernorm", (2, x), hidden);
        feed_forward(tally, decoder, layer, f);
    }
    let terms = if decoder.layers == 0 { 1 } else { 2 };
    norm(tally, f, "decoder.norm", (terms, hidden), hidden);
    tally.linear(f.stage, "decoder.lm_head", f.times, 1, Linear { inputs: hidden, outputs: vocab, bias: false });
    tally.add(f.stage, "decoder.sample", "argmax", Work::call(0, 0, vocab * e, WORD).times(f.times));
}

/// A norm of the sum of `terms` operands of `elements` each; of two, the sum is written as well.
fn norm(tally: &mut Tally, f: &Forwards, path: &'static str, (terms, elements): (u128, u128), width: u128) {
    let moved = Moved { weights: width, read: terms * elements, written: terms * elements };
    tally.pointwise(f.stage, path, "norm", f.times, moved);
}

fn attention(tally: &mut Tally, decoder: &Decoder, f: &Forwards) {
    let [hidden, head] = [decoder.hidden, decoder.head_dim].map(|n| n as u128);
    let (queries, keys) = (decoder.heads as u128 * head, decoder.kv_heads as u128 * head);
    let (e, tokens) = (tally.element, f.tokens);
    let qkv = Linear { inputs: hidden, outputs: queries + 2 * keys, bias: decoder.qkv_bias };
    tally.linear(f.stage, "decoder.layers.*.self_attn.qkv_proj", f.times, tokens, qkv);
    let norms = if decoder.qk_norm { 2 * head * e } else { 0 };
    let rotate = Work::call(0, norms, tokens * (qkv.outputs * e + head * WORD), tokens * queries * e);
    let rotate = Work { kv_written: tokens * 2 * keys * e, ..rotate };
    tally.add(f.stage, "decoder.layers.*.self_attn.rope", "rope", rotate.times(f.times));
    let attend = Work {
        calls: f.times,
        flops: 2 * matmul(1, f.pairs, queries, 1),
        read: f.times * tokens * queries * e,
        written: f.times * tokens * queries * e,
        kv_read: f.keys * 2 * keys * e,
        ..Work::default()
    };
    tally.add(f.stage, "decoder.layers.*.self_attn.attend", "attention", attend);
    let output = Linear { inputs: queries, outputs: hidden, bias: false };
    tally.linear(f.stage, "decoder.layers.*.self_attn.o_proj", f.times, tokens, output);
}

fn feed_forward(tally: &mut Tally, decoder: &Decoder, layer: usize, f: &Forwards) {
    let (hidden, e, tokens) = (decoder.hidden as u128, tally.element, f.tokens);
    let Some(moe) = mixture(decoder, layer) else {
        let width = decoder.intermediate as u128;
        // The gate is applied to the product at once: half of its outputs are written.
        let up =
            Work::call(matmul(1, tokens, hidden, 2 * width), 2 * hidden * width * e, tokens * hidden * e, tokens * width * e);
        tally.add(f.stage, "decoder.layers.*.mlp.gate_up_proj", "linear", up.times(f.times));
        let down = Linear { inputs: width, outputs: hidden, bias: false };
        return tally.linear(f.stage, "decoder.layers.*.mlp.down_proj", f.times, tokens, down);
    };
    let [experts, top_k, shared, width] = [moe.experts, moe.top_k, moe.shared, moe.intermediate].map(|n| n as u128);
    let slots = top_k + shared;
    let chosen = tokens * slots * (e + WORD);
    let router = Work::call(matmul(1, tokens, hidden, experts), hidden * experts * e, tokens * hidden * e, chosen);
    tally.add(f.stage, "decoder.layers.*.mlp.gate", "router", router.times(f.times));

    let one = 3 * hidden * width * e;
    let (expected, at_most) = (distinct(moe, f.tokens), experts.min(tokens * top_k));
    let run = Work {
        weights: (expected * one as f64).round() as u128 + shared * one,
        weights_at_most: (at_most + shared) * one,
        ..Work::call(3 * matmul(1, tokens * slots, hidden, width), 0, tokens * hidden * e, tokens * hidden * e)
    };
    tally.add(f.stage, "decoder.layers.*.mlp.experts", "experts", run.times(f.times));
}

/// `E (1 - (1 - k/E)^n)`: distinct experts of `E` that an even router is expected to hit when `n` tokens choose `k` each.
pub fn distinct(moe: &Moe, tokens: u128) -> f64 {
    let (total, top_k) = (moe.experts as f64, moe.top_k as f64);
    total * (1.0 - (1.0 - top_k / total).powf(tokens as f64))
}

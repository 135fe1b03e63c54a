//! Attention of engines. The keys lie in a cache, so their number is in no signature: the name of
//! the step in which a call runs has the sums over its requests.
//!
//! FLOPs are 2 heads (width of keys + width of values) for each pair of a query and a key that
//! causal attention computes; bytes are the keys and values of the cache that the requests have,
//! the queries and the results.

use llmprof_core::trace::{
    engine_steps::{StepClass, StepCounts, StepPart},
    framework::OperatorSignature,
};

use super::{OperatorWork, SignatureWork, shape, size, sum, times};
use crate::operators::kinds::base;

/// Sums of the requests of one kind in a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeySums {
    pub tokens: u64,
    pub keys: u64,
    /// Pairs of a query and a key under a causal mask.
    pub pairs: u64,
}

impl KeySums {
    /// `is_absent`: a step of this class has no such requests, and its name may leave them out.
    fn of(part: &StepPart, is_absent: bool) -> Option<Self> {
        if part.tokens == Some(0) || (is_absent && part.tokens.is_none()) {
            return Some(Self::default());
        }
        Some(Self { tokens: part.tokens?, keys: part.keys?, pairs: part.causal_pairs()? })
    }
}

/// Sums of the requests of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepKeys {
    pub prefill: KeySums,
    pub decode: KeySums,
}

impl StepKeys {
    /// The sums by the name of a step; `None` if it lacks some.
    pub fn of(class: Option<StepClass>, counts: &StepCounts) -> Option<Self> {
        Some(Self {
            prefill: KeySums::of(&counts.prefill, class == Some(StepClass::Decode))?,
            decode: KeySums::of(&counts.decode, class == Some(StepClass::Prefill))?,
        })
    }

    /// The sums of the requests that a call with so many rows of queries computes. Engines compute
    /// all in one call, whose rows may be padded, or each kind in its own.
    fn of_rows(&self, rows: u64) -> Option<KeySums> {
        let (a, b) = (self.prefill, self.decode);
        let all = KeySums {
            tokens: sum(&[a.tokens, b.tokens])?,
            keys: sum(&[a.keys, b.keys])?,
            pairs: sum(&[a.pairs, b.pairs])?,
        };
        let found = match (rows == a.tokens, rows == b.tokens) {
            _ if rows >= all.tokens => all,
            (true, false) => a,
            (false, true) => b,
            _ => return None,
        };
        (found.tokens > 0).then_some(found)
    }
}

/// Attention of an engine by its signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepAttention {
    /// Queries, padding included.
    rows: u64,
    /// Keys of all requests, if they are not in a cache.
    stated_keys: Option<u64>,
    heads: u64,
    /// Widths of a key's and of a value's head together.
    widths: u64,
    /// Bytes of the keys and values of one position, of all heads, if known.
    cache_bytes: Option<u64>,
    /// Bytes of one query and its result, of all heads, if known.
    query_bytes: Option<u64>,
}

impl StepAttention {
    /// Work of a call in a step.
    pub fn work(&self, step: &StepKeys) -> Option<OperatorWork> {
        let KeySums { tokens, keys, pairs } = step.of_rows(self.rows)?;
        // Other calls attend to the rest of the keys.
        if self.stated_keys.is_some_and(|it| it < keys) {
            return None;
        }
        let flops = times(&[2, self.heads, pairs, self.widths])?;
        let bytes = match self.cache_bytes.zip(self.query_bytes) {
            Some((cache, query)) => sum(&[times(&[keys, cache])?, times(&[tokens, query])?])?,
            None => 0,
        };
        OperatorWork { flops, bytes }.possible()
    }
}

/// Bytes of an element of the KV cache, by the calls that write it. `None` without such a call, or
/// if caches differ.
pub fn cache_size(signatures: &[OperatorSignature]) -> Option<u64> {
    let writes = |it: &&OperatorSignature| {
        base(&it.name).starts_with("reshape_and_cache") || base(&it.name) == "store_cache"
    };
    // Keys, values and their caches are the first inputs.
    let sizes = signatures.iter().filter(writes).flat_map(|it| [size(it, 2), size(it, 3)]);
    let mut sizes = sizes.collect::<Option<Vec<u64>>>()?;
    sizes.dedup();
    if let [size] = sizes[..] { Some(size) } else { None }
}

/// Places of the inputs of an operator's form.
struct Form {
    query: usize,
    key: usize,
    value: usize,
    /// The result, if it is an input.
    out: Option<usize>,
}

/// The inputs that state the mask of flash attention: causal, and keys to the left and right of a
/// query, -1 for all.
type MaskInputs = [usize; 3];

/// Input `attention_chunk` of `fwd` in newer schemas.
const ATTENTION_CHUNK: usize = 27;

/// Input `indices` of `fwd_kvcache_mla`, in three dimensions: the keys that each query attends to.
const INDICES: usize = 10;

/// The attention of a signature without key lengths; `None` for other operators, and if the shapes
/// do not fit.
pub fn attention_of_step(of: &OperatorSignature, cache_size: Option<u64>) -> Option<SignatureWork> {
    let (namespace, name) = of.name.rsplit_once("::")?;
    let form = |query, key, value, out| Form { query, key, value, out };
    match (namespace, name) {
        // `vllm/attention/layer.py`, `sglang/srt/layers/radix_attention.py`: keys and values
        // belong to the new tokens, and have the heads of the cache.
        ("vllm" | "sglang", "unified_attention" | "unified_attention_with_output") => {
            let out = name.ends_with("output").then_some(3);
            let cache = cache_size.map(|it| [it; 2]);
            attention(of, &form(0, 1, 2, out), cache).map(SignatureWork::OfStep)
        }
        // `csrc/flash_attn/flash_api_torch_lib.cpp` of vllm-project/flash-attention.
        ("_vllm_fa2_C", "varlen_fwd") => flash_attention(of, &form(0, 1, 2, Some(3)), [15, 16, 17]),
        // `hopper/flash_api_torch_lib.cpp` there, `csrc/flash_extension.cc` of sgl-kernel. With
        // queries of values, the keys are latent.
        ("_vllm_fa3_C" | "sgl_kernel", "fwd") if shape(of, 5).is_none() => match is_chunked(of) {
            true => Some(SignatureWork::PartOfKeys),
            false => flash_attention(of, &form(0, 1, 2, Some(6)), [24, 25, 26]),
        },
        // `vllm/third_party/flashmla/flash_mla_interface.py`, `csrc/flashmla_extension.cc` of
        // sgl-kernel.
        (
            "_flashmla_C" | "_flashmla_extension_C" | "sgl_kernel",
            "fwd_kvcache_mla" | "fwd_kvcache_mla_fp8",
        ) => latent_attention(of),
        // `aiter/ops/attention.py`, as SGLang calls it: a page of the cache is one position.
        _ if name.contains("paged_attention_ragged") && shape(of, 3)?.get(1) == Some(&1) => {
            let caches = caches(of, 3, 4);
            attention(of, &form(2, 3, 4, Some(0)), caches).map(SignatureWork::OfStep)
        }
        _ => None,
    }
}

/// Bytes of an element of the keys and of the values, which are the cache.
fn caches(of: &OperatorSignature, key: usize, value: usize) -> Option<[u64; 2]> {
    Some([size(of, key)?, size(of, value)?])
}

/// True if `fwd` has an `attention_chunk`: a query attends to the keys of its chunk alone. Schemas
/// without this input have `softcap` in its place, which is not an integer.
fn is_chunked(of: &OperatorSignature) -> bool {
    let chunk = of.values.get(ATTENTION_CHUNK).and_then(|it| it.parse::<i64>().ok());
    chunk.is_some_and(|it| it > 0)
}

/// Attention whose inputs state the mask.
fn flash_attention(of: &OperatorSignature, form: &Form, mask: MaskInputs) -> Option<SignatureWork> {
    let [causal, left, right] = mask.map(|at| of.values.get(at).map(String::as_str));
    let is_whole = match (causal?, left?, right?) {
        // The window to the right of a causal call has no keys.
        ("True", "-1", "-1" | "0") => true,
        ("True" | "False", left, right) => {
            // In another version of the schema these are not numbers.
            let number = |it: &str| it.parse::<i64>().ok();
            number(left).and(number(right))?;
            false
        }
        _ => return None,
    };
    if !is_whole {
        return Some(SignatureWork::PartOfKeys);
    }
    let found = attention(of, form, caches(of, form.key, form.value))?;
    let stated_keys = match shape(of, form.key)? {
        [keys, _, _] => Some(*keys),
        _ => None,
    };
    Some(SignatureWork::OfStep(StepAttention { stated_keys, ..found }))
}

/// Attention to latent keys that all heads share. The first elements of a key are its value.
fn latent_attention(of: &OperatorSignature) -> Option<SignatureWork> {
    if shape(of, INDICES).is_some_and(|it| it.len() == 3) {
        return Some(SignatureWork::PartOfKeys);
    }
    let [requests, queries, heads, width] = shape(of, 0)? else { return None };
    // A packed cache has other widths.
    let [_, _, 1, key_width] = shape(of, 1)? else { return None };
    let value_width = of.values.get(2)?.parse::<u64>().ok()?;
    let is_causal = of.values.get(6)? == "True";
    if key_width != width || value_width > *width || !(is_causal || *queries == 1) {
        return None;
    }
    let widths = sum(&[*width, value_width])?;
    let cache_bytes = match size(of, 1) {
        Some(bytes) => Some(times(&[*width, bytes])?),
        None => None,
    };
    // Results of queries of one byte have another type, which is not recorded.
    let query_bytes = match size(of, 0).filter(|bytes| *bytes > 1) {
        Some(bytes) => Some(times(&[*heads, widths, bytes])?),
        None => None,
    };
    Some(SignatureWork::OfStep(StepAttention {
        rows: times(&[*requests, *queries])?,
        stated_keys: None,
        heads: *heads,
        widths,
        cache_bytes,
        query_bytes,
    }))
}

/// `cache`: bytes of an element of the keys and of the values, if known.
fn attention(
    of: &OperatorSignature,
    form: &Form,
    cache: Option<[u64; 2]>,
) -> Option<StepAttention> {
    let (query, key, value) =
        (shape(of, form.query)?, shape(of, form.key)?, shape(of, form.value)?);
    let ([_, .., key_heads, width], [_, .., value_heads, value_width]) = (key, value) else {
        return None;
    };
    let (rows, heads) = match query {
        [rows @ .., heads, same] if !rows.is_empty() && same == width => (times(rows)?, *heads),
        // Heads are not apart.
        [rows, all] if *width > 0 && all % width == 0 => (*rows, all / width),
        _ => return None,
    };
    if key_heads != value_heads || heads.checked_rem(*key_heads) != Some(0) {
        return None;
    }
    let cache_bytes = match cache {
        Some([of_key, of_value]) => {
            let position = sum(&[times(&[*width, of_key])?, times(&[*value_width, of_value])?])?;
            Some(times(&[*key_heads, position])?)
        }
        None => None,
    };
    let out = form.out.filter(|at| shape(of, *at).is_some()).unwrap_or(form.query);
    let query_bytes = match size(of, form.query).zip(size(of, out)) {
        Some((read, written)) => {
            let head = sum(&[times(&[*width, read])?, times(&[*value_width, written])?])?;
            Some(times(&[heads, head])?)
        }
        None => None,
    };
    let widths = sum(&[*width, *value_width])?;
    Some(StepAttention { rows, stated_keys: None, heads, widths, cache_bytes, query_bytes })
}

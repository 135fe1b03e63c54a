//! Attention of engines by the keys of steps.

use llmprof_core::trace::engine_steps::{StepClass, StepCounts, StepPart};

use super::*;

/// A step by requests, each as lengths of queries and keys; the first `prefill` are in prefill.
pub fn keys(requests: &[(u64, u64)], prefill: usize) -> StepKeys {
    let part = |of: &[(u64, u64)]| {
        let sum = |count: &dyn Fn(u64, u64) -> u64| {
            Some(of.iter().map(|it| count(it.0, it.1)).sum::<u64>())
        };
        StepPart {
            requests: Some(of.len() as u64),
            tokens: sum(&|q, _| q),
            keys: sum(&|_, k| k),
            products: sum(&|q, k| q * k),
            squares: sum(&|q, _| q * q),
        }
    };
    let (prefill, decode) = requests.split_at(prefill);
    let counts =
        StepCounts { prefill: part(prefill), decode: part(decode), ..StepCounts::default() };
    StepKeys::of(Some(StepClass::Mixed), &counts).unwrap()
}

/// Attention of vLLM with 4 heads of queries, 2 of keys and 8 elements each.
pub fn unified(rows: u64) -> OperatorSignature {
    let (q, k) = ([rows, 4, 8], [rows, 2, 8]);
    let inputs: [(&[u64], &str); 4] = [(&q, BF16), (&k, BF16), (&k, BF16), (&q, BF16)];
    signature("vllm::unified_attention_with_output", &inputs, &[])
}

pub fn of_step(of: &OperatorSignature, cache: Option<u64>, step: &StepKeys) -> Option<(u64, u64)> {
    match signature_work(of, cache)? {
        SignatureWork::OfStep(it) => it.work(step).map(|it| (it.flops, it.bytes)),
        _ => None,
    }
}

#[test]
fn attention_of_an_engine_counts_the_pairs_and_keys_of_its_step() {
    let mixed = keys(&[(3, 10), (1, 30), (1, 9)], 1);
    let (pairs, all_keys) = (10 + 9 + 8 + 30 + 9, 49);
    let bytes = all_keys * 2 * 8 * (1 + 1) + 5 * 4 * 8 * (2 + 2);
    assert_eq!(of_step(&unified(5), Some(1), &mixed), Some((2 * 4 * pairs * 16, bytes)));
    // Padded rows compute nothing of a request; the type of the cache may be unknown.
    assert_eq!(of_step(&unified(8), None, &mixed), Some((2 * 4 * pairs * 16, 0)));
    assert_eq!(of_step(&unified(3), None, &mixed), Some((2 * 4 * 27 * 16, 0)));
    assert_eq!(of_step(&unified(2), None, &mixed), Some((2 * 4 * 39 * 16, 0)));
    assert_eq!(of_step(&unified(4), None, &mixed), None, "neither all nor one kind");
    let equal = keys(&[(2, 2), (1, 7), (1, 7)], 1);
    assert_eq!(of_step(&unified(2), None, &equal), None, "either kind");
    let mut flat = unified(5);
    (flat.name, flat.shapes[0]) = ("sglang::unified_attention".into(), vec![5, 32]);
    assert_eq!(of_step(&flat, None, &mixed), Some((2 * 4 * pairs * 16, 0)));
    flat.shapes[1] = vec![5, 3, 8];
    assert_eq!(of_step(&flat, None, &mixed), None, "keys and values have other heads");
    // As many heads of queries as tokens.
    (flat.shapes[0], flat.shapes[1], flat.shapes[2]) = (vec![5, 80], vec![5, 16], vec![5, 16]);
    assert_eq!(of_step(&flat, None, &mixed), None, "heads of keys are not apart");
}

#[test]
fn a_step_without_the_sums_of_all_its_requests_has_no_keys() {
    let (requests, tokens, keys, products) = (Some(2), Some(2), Some(9), Some(9));
    let decode = StepPart { requests, tokens, keys, products, squares: None };
    let counts = StepCounts { decode, ..StepCounts::default() };
    let found = StepKeys::of(Some(StepClass::Decode), &counts).unwrap();
    assert_eq!((found.decode.pairs, found.prefill.tokens), (9, 0));
    assert_eq!(StepKeys::of(Some(StepClass::Mixed), &counts), None);
    let unknown = StepCounts { decode: StepPart { products: None, ..decode }, ..counts };
    assert_eq!(StepKeys::of(Some(StepClass::Decode), &unknown), None);
}

const FA2: &str = "_vllm_fa2_C::varlen_fwd";
const CACHE: &[u64] = &[50, 16, 2, 8];

/// Flash attention with 4 heads of queries and 8 elements each.
fn flash(name: &str, (rows, key): (u64, &[u64]), mask: &[(usize, &str)]) -> OperatorSignature {
    let out = if name == FA2 { 3 } else { 6 };
    let (none, q): (&[u64], &[u64]) = (&[], &[rows, 4, 8]);
    let mut inputs = vec![(none, ""); out + 1];
    for (at, input) in [(0, (q, BF16)), (1, (key, F8)), (2, (key, F8)), (out, (q, BF16))] {
        inputs[at] = input;
    }
    signature(name, &inputs, mask)
}

#[test]
fn flash_attention_counts_only_if_its_inputs_state_a_causal_mask_of_all_keys() {
    let step = keys(&[(1, 9), (1, 30)], 0);
    let fa2 = |mask: [&str; 3]| {
        let [causal, left, right] = mask;
        flash(FA2, (2, CACHE), &[(15, causal), (16, left), (17, right)])
    };
    let whole = Some((2 * 4 * 39 * 16, 39 * 2 * 8 * 2 + 2 * 4 * 8 * 4));
    assert_eq!(of_step(&fa2(["True", "-1", "-1"]), None, &step), whole);
    for mask in [["True", "127", "0"], ["False", "-1", "-1"]] {
        assert_eq!(signature_work(&fa2(mask), None), Some(SignatureWork::PartOfKeys), "{mask:?}");
    }
    for mask in [["", "", ""], ["-1", "-1", "0.0"], ["True", "0.5", "-1"]] {
        assert_eq!(signature_work(&fa2(mask), None), None, "{mask:?}");
    }
    let mask = [(24, "True"), (25, "-1"), (26, "-1")];
    for name in ["_vllm_fa3_C::fwd", "sgl_kernel::fwd"] {
        let of = |chunk| flash(name, (2, CACHE), &[&mask[..], &[(27, chunk)]].concat());
        assert_eq!(of_step(&flash(name, (2, CACHE), &mask), None, &step), whole, "{name}");
        // In older schemas, this input is `softcap`.
        for chunk in ["0", "-1", "", "0.", "30.", "0.5"] {
            assert_eq!(of_step(&of(chunk), None, &step), whole, "{name} {chunk}");
        }
        assert_eq!(signature_work(&of("128"), None), Some(SignatureWork::PartOfKeys), "{name}");
    }
    let mut latent = flash("sgl_kernel::fwd", (2, CACHE), &mask);
    latent.shapes[5] = vec![2, 4, 8];
    assert_eq!(signature_work(&latent, None), None);
    let paged = |page: u64| {
        let (cache, q, space): (&[u64], &[u64], &[u64]) = (&[900, page, 2, 8], &[2, 4, 8], &[64]);
        let u8s = "unsigned char";
        let inputs = [(q, BF16), (space, u8s), (q, BF16), (cache, F8), (cache, F8)];
        signature("aiter::paged_attention_ragged", &inputs, &[])
    };
    assert_eq!(of_step(&paged(1), None, &step), whole);
    assert_eq!(of_step(&paged(16), None, &step), None, "pages may have heads first");
}

#[test]
fn latent_attention_reads_each_key_once_for_all_heads_and_its_value_with_it() {
    let step = keys(&[(3, 10), (1, 30), (1, 9)], 1);
    let decode = |name: &str, (query, cache, value): (&str, (&[u64], &str), &str), causal: &str| {
        let (none, q): (&[u64], &[u64]) = (&[], &[2, 1, 16, 24]);
        let lengths: (&[u64], &str) = (&[2], "int");
        let inputs = [(q, query), cache, (none, "Scalar"), lengths];
        signature(name, &inputs, &[(2, value), (6, causal)])
    };
    let (pages, packed): (&[u64], &[u64]) = (&[50, 64, 1, 24], &[50, 64, 1, 32]);
    let (bf16, f8) = ((pages, BF16), (pages, F8));
    let flops = 2 * 16 * 39 * (24 + 20);
    let whole = Some((flops, 39 * 24 * 2 + 2 * 16 * (24 + 20) * 2));
    for (name, inputs, causal, expected) in [
        ("_flashmla_C::fwd_kvcache_mla", (BF16, bf16, "20"), "True", whole),
        ("sgl_kernel::fwd_kvcache_mla", (BF16, bf16, "20"), "False", whole),
        ("_flashmla_extension_C::fwd_kvcache_mla_fp8", (F8, f8, "20"), "True", Some((flops, 0))),
        ("sgl_kernel::fwd_kvcache_mla", (BF16, (packed, F8), "20"), "True", None),
        ("sgl_kernel::fwd_kvcache_mla", (BF16, bf16, "25"), "True", None),
        // An older schema has other inputs.
        ("_flashmla_C::fwd_kvcache_mla", (BF16, bf16, ""), "True", None),
        ("_flashmla_C::fwd_kvcache_mla", (BF16, bf16, "20"), "", whole),
    ] {
        assert_eq!(of_step(&decode(name, inputs, causal), None, &step), expected, "{name}");
    }
    let mut several = decode("_flashmla_C::fwd_kvcache_mla", (BF16, bf16, "20"), "False");
    several.shapes[0] = vec![1, 2, 16, 24];
    assert_eq!(of_step(&several, None, &step), None, "each query attends to all keys");
    several.values[6] = "True".into();
    assert_eq!(of_step(&several, None, &step), whole);
    several.shapes.resize(11, vec![]);
    several.shapes[10] = vec![2];
    assert_eq!(of_step(&several, None, &step), whole, "a scale of the keys");
    several.shapes[10] = vec![1, 2, 2048];
    assert_eq!(signature_work(&several, None), Some(SignatureWork::PartOfKeys));
}

#[test]
fn keys_that_are_not_in_a_cache_have_work_only_if_they_are_all_keys_of_the_step() {
    let cached = keys(&[(3, 10), (1, 30), (1, 9)], 1);
    let new = keys(&[(3, 3), (2, 2)], 2);
    let work = |pairs: u64, keys: u64, rows: u64| {
        Some((2 * 4 * pairs * 16, keys * 2 * 8 * (1 + 1) + rows * 4 * 8 * (2 + 2)))
    };
    for (step, rows, stated, expected) in [
        (&cached, 5, 5, None),
        (&cached, 5, 48, None),
        (&cached, 5, 49, work(66, 49, 5)),
        (&cached, 3, 3, None),
        (&cached, 3, 10, work(27, 10, 3)),
        (&new, 5, 5, work(9, 5, 5)),
        (&new, 8, 8, work(9, 5, 5)),
    ] {
        for (name, first) in [(FA2, 15), ("_vllm_fa3_C::fwd", 24), ("sgl_kernel::fwd", 24)] {
            let mask = [(first, "True"), (first + 1, "-1"), (first + 2, "-1")];
            let of = flash(name, (rows, &[stated, 2, 8]), &mask);
            assert_eq!(of_step(&of, None, step), expected, "{name} {rows} {stated}");
        }
    }
}

#[test]
fn a_cache_has_the_element_of_the_calls_that_write_it() {
    let write = |name: &str, cache: &str| {
        let (new, pages): (&[u64], &[u64]) = (&[4, 2, 8], &[50, 16, 2, 8]);
        signature(name, &[(new, BF16), (new, BF16), (pages, cache), (pages, cache)], &[])
    };
    let flash = "_C_cache_ops::reshape_and_cache_flash";
    assert_eq!(cache_size(&[unified(4)]), None);
    assert_eq!(cache_size(&[unified(4), write(flash, "unsigned char")]), Some(1));
    assert_eq!(cache_size(&[write("sglang::store_cache", BF16)]), Some(2));
    assert_eq!(cache_size(&[write(flash, BF16), write(flash, F8)]), None);
    assert_eq!(cache_size(&[write(flash, "other")]), None);
}

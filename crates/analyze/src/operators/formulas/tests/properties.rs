//! Properties of all formulas.

use proptest::prelude::*;

use super::{
    engines::{keys, of_step, unified},
    *,
};

/// Names of all formulas, by a sample of each.
const NAMES: [&str; 21] = [
    "aten::mm",
    "aten::addmm",
    "aten::linear",
    "aten::_grouped_mm",
    "aiter::gemm_a16w16",
    "aten::scaled_dot_product_attention",
    "aten::_flash_attention_forward",
    "vllm::inplace_fused_experts",
    "aten::layer_norm",
    "_C::rms_norm",
    "_C::fused_add_rms_norm",
    "aiter::add_rmsnorm",
    "_C::rotary_embedding",
    "sgl_kernel::apply_rope_pos_ids_cos_sin_cache",
    "_C::silu_and_mul",
    "_moe_C::moe_sum",
    "vllm::unified_attention_with_output",
    "_vllm_fa2_C::varlen_fwd",
    "sgl_kernel::fwd",
    "sgl_kernel::fwd_kvcache_mla",
    "aiter::paged_attention_ragged",
];

/// Shape and element of an input.
type Operand<'a> = (&'a [u64], &'a str);

proptest! {
    #[test]
    fn no_shapes_types_or_values_panic_or_exceed_the_largest_work(
        name in 0..NAMES.len(),
        shapes in prop::collection::vec(
            prop::collection::vec(
                prop_oneof![0_u64..4, Just(8), Just(1 << 31), Just(u64::MAX)], 0..5
            ),
            0..9,
        ),
        kind in 0_usize..5,
        value in prop_oneof![Just("True"), Just("-1"), Just("8"), Just("0"), Just("")],
        sums in prop::array::uniform3(prop_oneof![0_u64..100, Just(u64::MAX)]),
    ) {
        let types = [BF16, "float", "int", F8, "Scalar"];
        let types = (0..shapes.len()).map(|at| types[(at * 3 + kind) % 5].to_owned()).collect();
        let mut values = vec![value.to_owned(); 30];
        // Flash attention is causal.
        for at in [15, 24] {
            values[at] = "True".into();
        }
        let of = OperatorSignature { name: NAMES[name].into(), shapes, types, values };
        let [tokens, keys, pairs] = sums;
        let part = engine_attention::KeySums { tokens, keys, pairs };
        let step = StepKeys { prefill: part, decode: part };
        let found = match signature_work(&of, Some(2)) {
            Some(SignatureWork::Fixed(work)) => Some(work),
            Some(SignatureWork::OfStep(attention)) => attention.work(&step),
            Some(SignatureWork::PartOfKeys) | None => None,
        };
        let found = found.unwrap_or_default();
        prop_assert!(found.flops <= MAX_FLOPS && found.bytes <= MAX_FLOPS);
        let _ = product_shape(&of);
        let _ = cache_size(&[of]);
    }

    #[test]
    fn work_does_not_decrease_with_tokens(
        tokens in 1_u64..200,
        requests in prop::collection::vec((1_u64..50, 0_u64..500), 1..6),
    ) {
        let fixed = |tokens: u64| -> Vec<OperatorWork> {
            let (rows, both): (&[u64], &[u64]) = (&[tokens, 16], &[tokens, 32]);
            let (up, down): (&[u64], &[u64]) = (&[4, 12, 16], &[4, 16, 6]);
            let (chosen, positions): (&[u64], &[u64]) = (&[tokens, 2], &[tokens]);
            let (weight, vector, table): (&[u64], &[u64], &[u64]) = (&[5, 16], &[16], &[99, 8]);
            let none = (&[][..], "");
            let (scores, numbers) = ((chosen, "float"), (chosen, "int"));
            let forms: [(&str, Vec<Operand>); 5] = [
                ("aten::linear", vec![(rows, BF16), (weight, BF16)]),
                ("_C::rms_norm", vec![(rows, BF16), (rows, BF16), (vector, BF16)]),
                ("_C::silu_and_mul", vec![(rows, BF16), (both, BF16)]),
                (
                    "_C::rotary_embedding",
                    vec![(positions, "int"), (rows, BF16), none, none, (table, BF16)],
                ),
                (
                    "vllm::fused_experts",
                    vec![(rows, BF16), (up, BF16), (down, BF16), scores, numbers],
                ),
            ];
            let of = |(name, inputs): &(&str, Vec<(&[u64], &str)>)| {
                work(&signature(name, inputs, &[(3, "8")])).unwrap()
            };
            forms.iter().map(of).collect()
        };
        for (less, more) in fixed(tokens).iter().zip(fixed(tokens + 1)) {
            prop_assert!(less.flops <= more.flops && less.bytes <= more.bytes);
        }
        // One more request is more work of attention.
        let requests: Vec<(u64, u64)> = requests.iter().map(|(q, k)| (*q, q + k)).collect();
        let attention = |requests: &[(u64, u64)]| {
            let rows = requests.iter().map(|it| it.0).sum::<u64>();
            of_step(&unified(rows), Some(2), &keys(requests, requests.len())).unwrap()
        };
        let (less, more) = (attention(&requests[..1]), attention(&requests));
        prop_assert!(less.0 <= more.0 && less.1 <= more.1);
    }
}

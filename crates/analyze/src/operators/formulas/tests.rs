//! Work of signatures.

mod engines;
mod properties;

use super::{attention::Attended, *};

fn of(name: &str, shapes: &[&[u64]]) -> Option<(u64, u64)> {
    let shapes: Vec<Vec<u64>> = shapes.iter().map(|it| it.to_vec()).collect();
    let types = vec!["c10::BFloat16".to_owned(); shapes.len()];
    let found = work(&OperatorSignature { name: name.into(), shapes, types, values: vec![] })?;
    Some((found.flops, found.bytes))
}

#[test]
fn products_are_two_flops_per_multiply_add() {
    assert_eq!(of("aten::mm", &[&[2, 3], &[3, 5]]), Some((60, 62)));
    assert_eq!(of("aten::addmm", &[&[5], &[2, 3], &[3, 5]]), Some((60, 72)));
    assert_eq!(of("aten::bmm", &[&[4, 2, 3], &[4, 3, 5]]), Some((240, 248)));
    assert_eq!(of("aten::baddbmm", &[&[4, 2, 5], &[4, 2, 3], &[4, 3, 5]]), Some((240, 328)));
    assert_eq!(of("aten::linear", &[&[7, 2, 3], &[5, 3]]), Some((420, 254)));
    assert_eq!(of("aten::_grouped_mm", &[&[6, 3], &[2, 3, 5], &[2]]), Some((180, 0)));
}

#[test]
fn a_product_has_the_sides_of_its_operands() {
    let of = |name: &str, shapes: &[&[u64]]| {
        let shapes: Vec<Vec<u64>> = shapes.iter().map(|it| it.to_vec()).collect();
        let types = vec!["c10::BFloat16".to_owned(); shapes.len()];
        let it =
            product_shape(&OperatorSignature { name: name.into(), shapes, types, values: vec![] })?;
        assert_eq!(it.left_type, "bf16");
        Some(([it.batch, it.m, it.n, it.k], it.right_transposed))
    };
    let product = |sides| Some((sides, false));
    assert_eq!(of("aten::mm", &[&[2, 3], &[3, 5]]), product([1, 2, 5, 3]));
    assert_eq!(of("aten::addmm", &[&[5], &[2, 3], &[3, 5]]), product([1, 2, 5, 3]));
    assert_eq!(of("aten::bmm", &[&[4, 2, 3], &[4, 3, 5]]), product([4, 2, 5, 3]));
    assert_eq!(of("aten::linear", &[&[7, 2, 3], &[5, 3]]), Some(([1, 14, 5, 3], true)));
    assert_eq!(of("aten::_grouped_mm", &[&[6, 3], &[2, 3, 5], &[2]]), product([1, 6, 5, 3]));
    assert_eq!(of("aten::mm", &[&[2, 3], &[4, 5]]), None);
    assert_eq!(of("aten::softmax", &[&[2, 3]]), None);
}

#[test]
fn attention_counts_both_products_and_grouped_heads() {
    let (q, k): (&[u64], &[u64]) = (&[1, 4, 6, 8], &[1, 2, 10, 8]);
    let flops = 2 * 4 * 6 * 10 * (8 + 8);
    for name in ["scaled_dot_product_attention", "_scaled_dot_product_flash_attention"] {
        let found = of(&format!("aten::{name}"), &[q, k, k]);
        assert_eq!(found, Some((flops, 2 * (192 + 160 + 160 + 192))), "{name}");
    }
    let (q, k): (&[u64], &[u64]) = (&[1, 6, 4, 8], &[1, 10, 2, 8]);
    let found = of("aten::_flash_attention_forward", &[q, k, k]);
    assert_eq!(found.map(|it| it.0), Some(flops));
}

#[test]
fn causal_attention_counts_the_pairs_of_a_query_and_the_keys_that_it_attends_to() {
    let flops = |name: &str, at: usize, value: &str| {
        let mut values = vec![String::new(); 13];
        values[at] = value.into();
        let shapes = vec![vec![1, 2, 6, 8]; 3];
        let of = OperatorSignature { name: name.into(), shapes, values, ..Default::default() };
        work(&of).unwrap().flops
    };
    let (all, causal) = (2 * 2 * 36 * 16, 2 * 2 * 21 * 16);
    for (name, at) in [
        ("aten::scaled_dot_product_attention", 5),
        ("aten::_scaled_dot_product_attention_math", 5),
        ("aten::_scaled_dot_product_fused_attention_overrideable", 5),
        ("aten::_scaled_dot_product_flash_attention", 4),
        ("aten::_scaled_dot_product_efficient_attention", 6),
        ("aten::_scaled_dot_product_cudnn_attention", 6),
        ("aten::_cudnn_attention_forward", 10),
    ] {
        let found = [flops(name, at, "True"), flops(name, at, "False"), flops(name, 0, "True")];
        assert_eq!(found, [causal, all, all], "{name}");
    }
    // Here, 2 positions of 6 heads.
    let (all, causal) = (2 * 6 * 4 * 16, 2 * 6 * 3 * 16);
    let flash = |value| flops("aten::_flash_attention_forward", 8, value);
    assert_eq!([flash("True"), flash("False")], [causal, all]);
    let efficient = |value| flops("aten::_efficient_attention_forward", 9, value);
    assert_eq!(["0", "1", "2"].map(efficient), [all, causal, causal]);
}

#[test]
fn pairs_are_those_of_the_mask() {
    for (queries, keys) in (0..7).flat_map(|q| (0..7).map(move |k| (q, k))) {
        let count = |attends: &dyn Fn(i64, i64) -> bool| {
            let pairs = (0..queries).flat_map(|q| (0..keys).map(move |k| (q, k)));
            Some(pairs.filter(|it| attends(it.0, it.1)).count() as u64)
        };
        let pairs = |it: Attended| it.pairs(queries as u64, keys as u64);
        assert_eq!(pairs(Attended::All), count(&|_, _| true));
        assert_eq!(pairs(Attended::FromFirst), count(&|q, k| k <= q));
        let shift = keys - queries;
        assert_eq!(pairs(Attended::ToLast), count(&|q, k| k <= q + shift));
    }
}

#[test]
fn shapes_that_do_not_fit_have_no_work_and_absurd_ones_neither() {
    assert_eq!(of("aten::mm", &[&[2, 3], &[4, 5]]), None);
    assert_eq!(of("aten::mm", &[&[2, 3]]), None);
    assert_eq!(of("aten::mm", &[&[u64::MAX, 3], &[3, 5]]), None);
    assert_eq!(of("aten::bmm", &[&[1 << 40, 1 << 20, 1], &[1 << 40, 1, 1 << 20]]), None);
    assert_eq!(of("aten::_flash_attention_forward", &[&[6, 4, 8], &[6, 4, 8], &[6, 4, 8]]), None);
    assert_eq!(of("aten::add", &[&[2, 3], &[2, 3]]), None);
    let untyped = OperatorSignature {
        name: "aten::mm".into(),
        shapes: vec![vec![2, 3], vec![3, 5]],
        ..OperatorSignature::default()
    };
    assert_eq!(work(&untyped), Some(OperatorWork { flops: 60, bytes: 0 }));
}

const BF16: &str = "c10::BFloat16";
const F8: &str = "c10::Float8_e4m3fn";

/// A signature of inputs given as shape and type; an empty shape is an input without a tensor.
fn signature(name: &str, inputs: &[(&[u64], &str)], values: &[(usize, &str)]) -> OperatorSignature {
    let mut recorded = vec![String::new(); values.iter().map(|it| it.0 + 1).max().unwrap_or(0)];
    values.iter().for_each(|(at, value)| recorded[*at] = (*value).into());
    OperatorSignature {
        name: name.into(),
        shapes: inputs.iter().map(|it| it.0.to_vec()).collect(),
        types: inputs.iter().map(|it| it.1.to_owned()).collect(),
        values: recorded,
    }
}

/// FLOPs and bytes of a signature of bf16 tensors.
fn bf16(name: &str, shapes: &[&[u64]]) -> Option<(u64, u64)> {
    let inputs: Vec<(&[u64], &str)> = shapes.iter().map(|it| (*it, BF16)).collect();
    let found = work(&signature(name, &inputs, &[]))?;
    Some((found.flops, found.bytes))
}

#[test]
fn norms_and_activations_have_the_bytes_that_they_read_and_write_and_no_flops() {
    let (rows, both, experts): (&[u64], &[u64], &[u64]) = (&[4, 8], &[4, 16], &[4, 2, 8]);
    let (weight, narrow, short): (&[u64], &[u64], &[u64]) = (&[8], &[4], &[4, 7]);
    let none: &[u64] = &[];
    let one = 2 * 4 * 8;
    for (name, shapes, moved) in [
        ("aten::layer_norm", vec![rows, none, weight, weight], 2 * one + 32),
        ("aten::native_layer_norm", vec![rows, none, none, none], 2 * one),
        ("aten::rms_norm", vec![rows, none, weight], 2 * one + 16),
        ("_C::rms_norm", vec![rows, rows, weight], 2 * one + 16),
        ("_C::fused_add_rms_norm", vec![rows, rows, weight], 4 * one + 16),
        ("sgl_kernel::rmsnorm", vec![rows, rows, weight], 2 * one + 16),
        ("sgl_kernel::gemma_fused_add_rmsnorm", vec![rows, rows, weight], 4 * one + 16),
        ("flashinfer::fused_add_rmsnorm", vec![rows, rows, weight], 4 * one + 16),
        ("aiter::rms_norm", vec![rows, weight], 2 * one + 16),
        ("aiter::add_rmsnorm", vec![rows, rows, rows, rows, weight], 4 * one + 16),
        ("vllm::rocm_aiter_rmsnorm2d_fwd_with_add", vec![rows, rows, weight], 4 * one + 16),
        ("_C::silu_and_mul", vec![rows, both], 3 * one),
        ("sgl_kernel::gelu_tanh_and_mul", vec![rows, both], 3 * one),
        ("_moe_C::moe_sum", vec![experts, rows], 3 * one),
    ] {
        assert_eq!(bf16(name, &shapes), Some((0, moved)), "{name}");
    }
    for (name, shapes) in [
        ("_C::rms_norm", vec![rows, rows, narrow]),
        ("_C::fused_add_rms_norm", vec![rows, short, weight]),
        ("_C::silu_and_mul", vec![rows, rows]),
        ("other::rms_norm", vec![rows, rows, weight]),
    ] {
        assert_eq!(bf16(name, &shapes), None, "{name}");
    }
}

#[test]
fn every_operand_counts_by_its_own_type() {
    let of = |inputs: &[(&[u64], &str)]| work(&signature("_C::rms_norm", inputs, &[])).unwrap();
    let typed = of(&[(&[4, 8], F8), (&[4, 8], BF16), (&[8], "float")]);
    assert_eq!(typed.bytes, 32 + 64 + 32);
    let unknown = of(&[(&[4, 8], "c10::Other"), (&[4, 8], BF16), (&[8], "float")]);
    assert_eq!(unknown.bytes, 0);
    let product = work(&signature("aten::mm", &[(&[2, 3], F8), (&[3, 5], BF16)], &[])).unwrap();
    assert_eq!(product.bytes, 6 + 30 + 10);
}

#[test]
fn rotary_embeddings_move_heads_positions_and_the_rows_of_their_tables() {
    let in_place = |cache: &[u64], head: &[(usize, &str)]| {
        let inputs: [(&[u64], &str); 5] =
            [(&[4], "long int"), (&[4, 32], BF16), (&[4, 16], BF16), (&[], ""), (cache, BF16)];
        work(&signature("_C::rotary_embedding", &inputs, head)).map(|it| (it.flops, it.bytes))
    };
    let head = [(3, "8")];
    assert_eq!(in_place(&[100, 8], &head), Some((0, 4 * 8 + 2 * 2 * (128 + 64) + 2 * 4 * 8)));
    // Half of each head is rotated; the table has fewer rows than there are positions.
    assert_eq!(in_place(&[3, 4], &head), Some((0, 4 * 8 + 2 * (128 + 64) + 2 * 3 * 4)));
    assert_eq!(in_place(&[100, 8], &[]), None, "the size of a head is not recorded");
    assert_eq!(in_place(&[100, 16], &head), None);
    let (q, k): (&[u64], &[u64]) = (&[4, 4, 8], &[4, 2, 8]);
    let mut inputs: Vec<(&[u64], &str)> =
        vec![(q, BF16), (k, BF16), (q, BF16), (k, BF16), (&[100, 8], "float"), (&[4], "int")];
    let name = "sgl_kernel::apply_rope_pos_ids_cos_sin_cache";
    let found = work(&signature(name, &inputs, &[])).unwrap();
    assert_eq!(found.bytes, 2 * 2 * (128 + 64) + 4 * 4 * 8 + 4 * 4);
    inputs.push((&[10, 8], BF16));
    assert_eq!(work(&signature(name, &inputs, &[])), None, "the call also fills a cache");
}

#[test]
fn experts_have_the_flops_of_the_chosen_ones_and_no_bytes() {
    let all = |chosen: u64| -> Vec<(Vec<u64>, &str)> {
        let (scores, numbers) = (vec![3, chosen], vec![3, chosen]);
        vec![
            (vec![3, 8], BF16),
            (vec![4, 12, 8], BF16),
            (vec![4, 8, 6], BF16),
            (scores, "float"),
            (numbers, "int"),
        ]
    };
    let of = |name: &str, inputs: &[(Vec<u64>, &str)], values: &[(usize, &str)]| {
        let inputs: Vec<(&[u64], &str)> = inputs.iter().map(|it| (&it.0[..], it.1)).collect();
        work(&signature(name, &inputs, values)).map(|it| (it.flops, it.bytes))
    };
    let flops = Some((2 * 3 * 2 * (12 * 8 + 8 * 6), 0));
    for name in ["vllm::inplace_fused_experts", "vllm::fused_experts", "aiter::fused_moe_"] {
        assert_eq!(of(name, &all(2), &[]), flops, "{name}");
    }
    for (form, filter, other) in [("inplace", 25, 26), ("outplace", 26, 25)] {
        let name = format!("sglang::{form}_fused_experts");
        let of = |values: &[(usize, &str)]| of(&name, &all(2), values);
        assert_eq!(of(&[(filter, "False")]), flops, "{form}");
        assert_eq!(of(&[(filter, "True")]), None, "{form}");
        assert_eq!(of(&[(other, "False")]), None, "{form}");
        assert_eq!(of(&[]), None, "{form}");
    }
    let mut with_map = all(2);
    with_map.push((vec![16], "int"));
    assert_eq!(of("vllm::fused_experts", &with_map, &[]), None, "experts of other devices");
    with_map[5] = (vec![16], "float");
    assert_eq!(of("vllm::fused_experts", &with_map, &[]), flops);
    let mut packed = all(2);
    packed[1].0[2] = 4;
    assert_eq!(of("vllm::fused_experts", &packed, &[]), None);
    assert_eq!(of("vllm::fused_experts", &all(2)[..3], &[]), None, "experts are not chosen here");
    assert_eq!(of("vllm::moe_forward", &all(2)[..2], &[]), None);
}

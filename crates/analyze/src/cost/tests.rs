//! Costs of bundled models.

use super::*;

fn deepseek_ocr() -> ModelSpec {
    toml::from_str(include_str!("../../../../conf/models/deepseek-ocr.toml")).unwrap()
}

fn qwen3() -> ModelSpec {
    toml::from_str(include_str!("../../../../conf/models/qwen3-0.6b.toml")).unwrap()
}

fn page(wide: u32, high: u32) -> ImageViews {
    let crop_px = if wide * high > 0 { 640 } else { 0 };
    ImageViews {
        width: 0,
        height: 0,
        global_px: 1024,
        crop_px,
        crops_wide: wide,
        crops_high: high,
        tokens: 0,
    }
}

fn of(images: &[ImageViews], prompt_tokens: u64, new_tokens: u64) -> Cost {
    let prompts = Prompts::equal(prompt_tokens, 1);
    let inputs = CostInputs { images, prompts, new_tokens, element_bytes: 2 };
    cost(&deepseek_ocr(), &inputs)
}

#[test]
fn the_true_size_model_has_its_published_parameters() {
    let cost = of(&[], 1, 0);
    assert_eq!(cost.parameters, 3_336_106_240);
    assert_eq!(cost.active_parameters, 574_127_360);
    assert_eq!(cost.kv_bytes_per_token, 61_440);
}

#[test]
fn a_decoded_token_multiplies_its_active_weights_and_its_context() {
    let cost = of(&[], 100, 1);
    // Norms have parameters but no matrix products.
    let norms = 12 * 2 * 1280 + 1280;
    let attention = 12 * 2 * 2 * 101 * 1280;
    assert_eq!(cost.decode_flops, 2 * (cost.active_parameters - norms) + attention);
}

#[test]
fn vision_is_part_of_prefill_and_crops_add_to_it() {
    let (none, whole, crops) =
        (of(&[], 300, 0), of(&[page(0, 0)], 300, 0), of(&[page(2, 3)], 300, 0));
    assert_eq!(none.vision_flops, 0);
    assert_eq!(whole.prefill_flops - none.prefill_flops, whole.vision_flops);
    let (global, six) = (whole.vision_flops, crops.vision_flops - whole.vision_flops);
    assert_eq!(six % 6, 0);
    assert!(six / 6 < global, "a crop is smaller than the page");
}

#[test]
fn rows_per_layer_add_up_and_differ_where_the_layers_do() {
    let model = deepseek_ocr();
    let images = [page(0, 0)];
    let work = CostInputs {
        images: &images,
        prompts: Prompts::equal(300, 1),
        new_tokens: 2,
        element_bytes: 2,
    };
    let (rolled, layers) = (cost(&model, &work), cost_per_layer(&model, &work));
    assert_eq!(
        Cost { modules: vec![], ..rolled.clone() },
        Cost { modules: vec![], ..layers.clone() }
    );
    for row in &rolled.modules {
        let (start, end) = row.path.split_once(".*.").unwrap_or((&row.path, ""));
        let is_of = |it: &&ModuleCost| {
            it.op == row.op
                && (it.path == row.path
                    || it.path.strip_prefix(start).and_then(|it| it.strip_suffix(end)).is_some_and(
                        |layer| layer.len() > 2 && layer[1..layer.len() - 1].parse::<u32>().is_ok(),
                    ))
        };
        let sum =
            |of: fn(&ModuleCost) -> u64| layers.modules.iter().filter(is_of).map(of).sum::<u64>();
        assert_eq!(
            [sum(|it| it.parameters), sum(|it| it.prefill_flops), sum(|it| it.decode.bytes)],
            [row.parameters, row.prefill_flops, row.decode.bytes],
            "{}",
            row.path
        );
    }
    let flops =
        |path: &str| layers.modules.iter().find(|it| it.path == path).map(|it| it.prefill_flops);
    // Blocks 2, 5, 8 and 11 attend globally, the others in windows.
    assert!(flops("vision.sam.blocks.2.attn.attend") > flops("vision.sam.blocks.1.attn.attend"));
    assert!(
        flops("decoder.layers.0.mlp.experts").is_none()
            && flops("decoder.layers.1.mlp.experts").is_some()
    );
}

#[test]
fn sams_first_block_counts_its_padded_windows() {
    // One 1024 view: 64 x 64 patches, padded to 70 x 70 for windows of 14.
    let mut tally = CostTally::new(2, false);
    vision::sam_block(&mut tally, &deepseek_ocr().vision.unwrap().sam, (1, 64), false);
    let (padded, plain, width) = (70 * 70, 64 * 64, 768);
    let products = 2 * padded * width * (3 * width + width);
    let scores = 2 * 2 * padded * 14 * 14 * width;
    let positions = 2 * 2 * padded * 14 * width;
    assert_eq!(
        tally.flops(CostStage::Prefill, ""),
        products + scores + positions + 2 * 2 * plain * width * 3072
    );
}

#[test]
fn a_decode_step_moves_its_active_weights_and_its_context_once() {
    let cost = of(&[], 100, 1);
    // A step also reads one row of the embedding table, which is not part of the active
    // weights.
    assert_eq!(cost.decode.weight_bytes, cost.active_weight_bytes + 1280 * 2);
    assert_eq!(cost.decode.max_weight_bytes, cost.decode.weight_bytes);
    assert_eq!((cost.decode.kv_read_bytes, cost.decode.kv_written_bytes), (101 * 61_440, 61_440));
    assert_eq!(cost.kv_bytes, cost.prefill.kv_written_bytes + cost.decode.kv_written_bytes);
}

#[test]
fn a_prompt_reads_the_experts_that_an_even_router_hits_and_at_most_all() {
    let (short, long) = (of(&[], 4, 0), of(&[], 914, 0));
    let experts =
        |cost: &Cost| cost.modules.iter().find(|it| it.op == "experts").unwrap().prefill.clone();
    let one = 11 * 3 * 1280 * 896 * 2;
    assert_eq!(experts(&short).max_weight_bytes, (4 * 6 + 2) * one);
    assert!(
        experts(&short).weight_bytes < experts(&short).max_weight_bytes,
        "tokens share some of their choices"
    );
    assert_eq!(experts(&long).max_weight_bytes, (64 + 2) * one);
    assert_eq!(long.experts.map(|it| (it.experts, it.max_prefill, it.decode)), Some((64, 64, 6)));
}

#[test]
fn the_largest_activation_of_prefill_is_that_of_vision_on_a_large_page() {
    let cost = of(&[page(0, 0)], 300, 1);
    let largest = cost.modules.iter().max_by_key(|it| it.prefill.output_bytes).unwrap();
    assert_eq!(
        (largest.path.as_str(), largest.prefill.output_bytes),
        ("vision.sam.blocks.*.mlp.lin1", 64 * 64 * 3072 * 2)
    );
    assert_eq!(cost.prefill.output_bytes, largest.prefill.output_bytes);
}

#[test]
fn a_batch_reads_its_weights_once_and_computes_each_sequence() {
    let model = qwen3();
    let of = |batch| {
        let inputs = CostInputs {
            images: &[],
            prompts: Prompts::equal(100, batch),
            new_tokens: 3,
            element_bytes: 2,
        };
        cost(&model, &inputs)
    };
    let (one, four) = (of(1), of(4));
    assert_eq!(
        [four.prefill_flops, four.decode_flops, four.kv_bytes, four.decode.kv_read_bytes],
        [one.prefill_flops, one.decode_flops, one.kv_bytes, one.decode.kv_read_bytes]
            .map(|it| 4 * it)
    );
    // The embedding reads one row of weights per token.
    let rows = 1024 * 2;
    assert_eq!(four.prefill.weight_bytes - one.prefill.weight_bytes, 300 * rows);
    assert_eq!(four.decode.weight_bytes - one.decode.weight_bytes, 9 * rows);
    assert_eq!(four.weight_bytes, one.weight_bytes);
}

#[test]
fn a_batch_of_different_lengths_costs_its_sequences_apart_but_for_the_weights() {
    let model = qwen3();
    let of = |lengths: &[u64]| {
        let prompts = Prompts::of(lengths);
        cost(&model, &CostInputs { images: &[], prompts, new_tokens: 3, element_bytes: 2 })
    };
    let (both, long, short) = (of(&[100, 7]), of(&[100]), of(&[7]));
    let sums = |it: &Cost| {
        [it.prefill_flops, it.decode_flops, it.kv_bytes, it.decode.kv_read_bytes, it.prompt_tokens]
    };
    let (long, short) = (sums(&long), sums(&short));
    let apart: Vec<u64> = long.iter().zip(short).map(|(a, b)| a + b).collect();
    assert_eq!(sums(&both), apart[..]);
    assert_eq!(Prompts::of(&[5, 5, 5]), Prompts::equal(5, 3));
}

#[test]
fn a_batch_hits_more_experts_and_at_most_all() {
    let of = |batch| {
        let inputs = CostInputs {
            images: &[],
            prompts: Prompts::equal(1, batch),
            new_tokens: 1,
            element_bytes: 2,
        };
        cost(&deepseek_ocr(), &inputs).experts.unwrap().decode
    };
    assert_eq!([of(1), of(4), of(64)], [6, 24, 64]);
}

#[test]
fn absurd_dimensions_overflow_nothing() {
    let mut model = deepseek_ocr();
    (model.decoder.hidden, model.decoder.layers, model.decoder.vocab) = (1 << 20, 1024, 1 << 24);
    let cost = cost(
        &model,
        &CostInputs {
            images: &[],
            prompts: Prompts::equal(1 << 40, 1 << 8),
            new_tokens: 1 << 40,
            element_bytes: 4,
        },
    );
    assert_eq!(cost.decode_flops, u64::MAX);
}

//! Statements against sketches of captures.

use llmprof_core::{
    domain::{device_peaks::DevicePeaks, dtype::Dtype, model::PRESETS, stated_model::StatedModel},
    trace::Trace,
};
use proptest::prelude::*;

use crate::{
    Analysis, analyze, kernels::tests::capture, model_work::KnownModel,
    operators::framework::tests::with_operators,
};

/// A dense decoder of two layers: hidden 64, 4 heads of 32, MLP of 192.
fn stated() -> StatedModel {
    let mut model: llmprof_core::domain::model::ModelSpec = toml::from_str(PRESETS[3].1).unwrap();
    let decoder = &mut model.decoder;
    (decoder.hidden, decoder.layers, decoder.intermediate) = (64, 2, 192);
    (decoder.heads, decoder.kv_heads, decoder.head_dim, decoder.vocab) = (4, 4, 32, 160_000);
    StatedModel { model, prompt_tokens: 40, new_tokens: None, batch: 1, dtype: Dtype::Bf16 }
}

fn peaks(tflops: f64, memory_gb_s: f64) -> DevicePeaks {
    DevicePeaks {
        name: "d".into(),
        reported_as: vec![],
        dense_tflops: [("bf16".to_owned(), tflops), ("f16".to_owned(), tflops)].into(),
        boost_mhz: [].into(),
        memory_gb_s,
        source: "s".into(),
    }
}

/// A prefill that computes the stated model, `rows` tokens of it in each of `calls` layers.
fn prefill(rows: u64, calls: usize, inputs: u64) -> Trace {
    let mut sketch = "range 1 prefill 0..100000".to_owned();
    let mut operators: Vec<(&str, i64, i64, Vec<Vec<u64>>)> = vec![];
    let products = [[64, 384], [128, 64], [64, 2 * inputs], [inputs, 64]].repeat(calls).into_iter();
    let head = [[64, 160_000]].into_iter();
    for (at, [k, n]) in products.chain(head).enumerate() {
        let (at, start) = (at + 1, 100 + at as i64 * 100);
        sketch += &format!(
            "\ncall 1 {at} {}..{}\nkernel {at} gemm {}..{} 7",
            start + 1,
            start + 2,
            start + 10,
            start + 90
        );
        operators.push(("aten::mm", start, start + 5, vec![vec![rows, k], vec![k, n]]));
    }
    let shapes: Vec<Vec<&[u64]>> =
        operators.iter().map(|it| it.3.iter().map(Vec::as_slice).collect()).collect();
    let operators: Vec<_> = operators
        .iter()
        .zip(&shapes)
        .map(|((name, start, end, _), shapes)| (*name, *start, *end, shapes.as_slice()))
        .collect();
    with_operators(&sketch, &operators)
}

fn of(trace: &Trace, stated: &StatedModel, peaks: Option<&DevicePeaks>) -> Analysis {
    analyze(trace, Some(KnownModel::Stated(stated)), peaks)
}

fn proofs(analysis: &Analysis) -> Vec<&str> {
    analysis.refutations.iter().map(|it| it.0.as_str()).collect()
}

/// True if no figure is of the stated model, and a finding and the ledger have the reason.
fn is_without_model(analysis: &Analysis) -> bool {
    analysis.cost.is_none()
        && analysis.mfu.rows.iter().all(|it| it.flops_source == "counted")
        && analysis.ledger.stages.iter().all(|it| {
            it.floor_ns.is_none() && it.missing.iter().any(|why| why.contains("cannot be"))
        })
        && analysis.findings.iter().any(|it| it.id == "stated_model_refuted")
}

#[test]
fn the_model_of_the_capture_is_not_refuted() {
    let fast = peaks(1e6, 1e9);
    for rows in [40, 48] {
        let analysis = of(&prefill(rows, 2, 192), &stated(), Some(&fast));
        assert_eq!(proofs(&analysis), [] as [&str; 0]);
        assert!(analysis.cost.is_some());
        assert!(analysis.ledger.stages[0].floor_ns.is_some());
    }
}

#[test]
fn shapes_of_other_weights_refute_the_model() {
    let analysis = of(&prefill(40, 2, 256), &stated(), None);
    assert!(proofs(&analysis)[0].contains("down projection of the MLP of 192 x 64"));
    assert!(is_without_model(&analysis));
}

#[test]
fn other_numbers_of_layers_tokens_and_sequences_refute_the_statement() {
    let analysis = of(&prefill(40, 3, 192), &stated(), None);
    assert!(proofs(&analysis)[0].contains("has 3 products"), "{:?}", proofs(&analysis));
    assert!(is_without_model(&analysis));
    for rows in [20, 39, 80] {
        let analysis = of(&prefill(rows, 2, 192), &stated(), None);
        assert!(proofs(&analysis)[0].contains("2 layers and 40 tokens"), "{rows}");
        assert!(is_without_model(&analysis));
    }
    let batch = of(&prefill(40, 2, 192), &StatedModel { batch: 4, ..stated() }, None);
    assert!(proofs(&batch)[0].contains("160 tokens"));
    // The stated batch gives no rate of tokens either.
    let unstated = analyze(&prefill(40, 2, 192), None, None);
    assert_eq!(batch.stages, unstated.stages);
}

#[test]
fn products_of_another_dtype_refute_the_statement() {
    let analysis = of(&prefill(40, 2, 192), &StatedModel { dtype: Dtype::F16, ..stated() }, None);
    assert_eq!(proofs(&analysis), ["its products are in bf16, not in f16"]);
    assert!(is_without_model(&analysis));
}

#[test]
fn work_above_the_peaks_of_the_device_refutes_the_model() {
    let trace = |kernels: &str| Trace {
        timeline: Some(capture(&format!("range 1 prefill 0..100000\ncall 1 1 1..2\n{kernels}"))),
        ..Trace::default()
    };
    let busy = trace("kernel 1 a 10..90000 7");
    // 2 x 98,304 x 40 + lm_head 20.5 MFLOP: 28.6 MFLOP in 0.09 ms are 0.3 TFLOP/s.
    let slow = of(&busy, &stated(), Some(&peaks(0.1, 1e9)));
    assert!(proofs(&slow)[0].contains("of its peak in bf16"), "{:?}", proofs(&slow));
    assert!(is_without_model(&slow));
    assert_eq!(proofs(&of(&busy, &stated(), Some(&peaks(1.0, 1e9)))), [] as [&str; 0]);
    // The GPU worked for 1 us of the stage.
    let idle = of(&trace("kernel 1 a 10..1010 7"), &stated(), Some(&peaks(1.0, 1e9)));
    assert!(proofs(&idle)[0].contains("in 0.00100 ms of the GPU"), "{:?}", proofs(&idle));
}

/// A stage that launches these kernels.
fn launches(stage: &str, kernels: &[&str]) -> Trace {
    let mut sketch = format!("range 1 {stage} 0..100000");
    for (at, name) in (1..).zip(kernels) {
        let start = 100 * at;
        sketch += &format!(
            "\ncall 1 {at} {start}..{}\nkernel {at} {name} {}..{} 7",
            start + 1,
            start + 10,
            start + 90
        );
    }
    Trace { timeline: Some(capture(&sketch)), ..Trace::default() }
}

#[test]
fn kernels_named_after_another_dtype_or_of_other_layers_refute_the_statement() {
    let of_kernels = |kernels: &[&str]| {
        let analysis = of(&launches("prefill", kernels), &stated(), None);
        proofs(&analysis).join("; ")
    };
    assert_eq!(of_kernels(&["sm80_xmma_gemm_bf16bf16_bf16f32", "flash_fwd", "flash_fwd"]), "");
    let other = of_kernels(&["sm80_xmma_gemm_f32f32_f32f32_f32_tn"]);
    assert!(other.contains("named after f32, not bf16"), "{other}");
    let three = of_kernels(&["flash_fwd", "flash_fwd", "flash_fwd"]);
    assert!(three.contains("3 times, not a multiple of the model's 2 layers"), "{three}");
}

#[test]
fn more_attention_kernels_than_layers_refute_the_statement() {
    let of_calls = |calls: &[&str], prompt_tokens, batch| {
        let trace = launches("prefill", calls);
        let analysis = of(&trace, &StatedModel { prompt_tokens, batch, ..stated() }, None);
        (proofs(&analysis).join("; "), is_without_model(&analysis))
    };
    let proof = "a forward of prefill launches each attention kernel at least 8 times, and the \
                 model has 2 layers";
    let eight = ["flash_fwd"; 8];
    assert_eq!(of_calls(&eight, 40, 1), (proof.into(), true));
    // A layer may have several kernels, chunks of the prompt, and a kernel for each sequence.
    let split = ["flash_fwd", "flash_fwd_combine"].repeat(2);
    for (calls, tokens, batch) in [(&split[..], 40, 1), (&eight, 256, 1), (&eight, 40, 4)] {
        assert_eq!(of_calls(calls, tokens, batch).0, "", "{calls:?} {tokens} {batch}");
    }
    let both = of_calls(&["flash_fwd", "flash_fwd_combine"].repeat(4), 40, 1).0;
    assert!(both.contains("at least 4 times"), "{both}");
}

#[test]
fn attention_of_other_steps_refutes_stated_new_tokens() {
    let of_steps = |new_tokens| {
        // Two layers in three steps, each with two kernels.
        let trace = launches("decode_all", &["flash_fwd", "flash_fwd_combine"].repeat(6));
        let analysis = of(&trace, &StatedModel { new_tokens: Some(new_tokens), ..stated() }, None);
        (proofs(&analysis).join("; "), is_without_model(&analysis))
    };
    assert_eq!([of_steps(3).0, of_steps(4).0], ["", ""]);
    for tokens in [1, 2, 5, 6, 64] {
        let (proof, is_without) = of_steps(tokens);
        assert!(proof.contains("launches attention 3 times"), "{tokens}: {proof}");
        assert!(is_without);
    }
}

#[test]
fn kernels_of_a_draft_model_refute_no_layers_of_an_engines_steps() {
    // Three steps of two requests; each launches attention three times, and the model has 2 layers.
    let of_steps = |tokens: u64| {
        let mut sketch = Vec::new();
        for step in 0..3_i64 {
            let start = 1_000 * step;
            let name = format!("execute_context_0(0)_generation_2({tokens})");
            sketch.push(format!("range 1 {name} {start}..{}", start + 1_000));
            for launch in 0..3 {
                let (id, at) = (3 * step + launch + 1, start + 100 * (launch + 1));
                sketch.push(format!(
                    "call 1 {id} {at}..{}\nkernel {id} flash_fwd {}..{} 7",
                    at + 1,
                    at + 10,
                    at + 90
                ));
            }
        }
        let trace = Trace { timeline: Some(capture(&sketch.join("\n"))), ..Trace::default() };
        proofs(&of(&trace, &stated(), None)).join("; ")
    };
    let one_token = of_steps(2);
    assert!(one_token.contains("9 times, not a multiple of the model's 2 layers"), "{one_token}");
    assert_eq!(of_steps(6), "", "a draft model may be a part of the step");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn a_statement_is_refuted_if_and_only_if_its_sizes_differ(
        (rows, layers) in (1_u64..600, 1_usize..5),
        (tokens, stated_layers) in (1_u64..600, 1_usize..5)
    ) {
        let mut statement = StatedModel { prompt_tokens: tokens, ..stated() };
        statement.model.decoder.layers = stated_layers;
        let analysis = of(&prefill(rows, layers, 192), &statement, None);
        let padded = (tokens..tokens + 64).contains(&rows);
        if rows == tokens && layers == stated_layers {
            prop_assert!(proofs(&analysis).is_empty());
        }
        // Padded rows, and the chunks of a prompt, may be of the stated sizes.
        let are_chunks = layers != stated_layers && layers % stated_layers == 0;
        if !padded && !are_chunks {
            prop_assert!(!proofs(&analysis).is_empty());
        }
        if !proofs(&analysis).is_empty() {
            prop_assert!(is_without_model(&analysis));
        }
    }
}

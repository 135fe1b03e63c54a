//! Reasons for figures that a ledger lacks.

use llmprof_core::domain::{model::PRESETS, stated_model::StatedModel, subject::SubjectKind};

use super::*;
use crate::refutation::Refutation;

#[test]
fn without_counters_and_a_model_all_kernel_time_is_unexplained() {
    let case = Case::new(ONE_KERNEL, "prefill", 1100);
    insta::assert_snapshot!(case.rows(), @"
    unexplained 1000 0
    pass_difference 100 0
    ");
    let stage = case.ledger().stages.remove(0);
    assert_eq!((stage.floor_of, stage.times_floor), (None, None));
    assert!(stage.missing.iter().any(|text| text.contains("with ncu")), "{:?}", stage.missing);
}

/// GPUs of these names and bandwidths.
fn gpus(of: &[(&str, Option<u64>)]) -> Vec<Gpu> {
    let gpu = |&(name, bytes_per_s): &(&str, Option<u64>)| Gpu {
        name: name.into(),
        bytes_per_s,
        ..Gpu::default()
    };
    of.iter().map(gpu).collect()
}

/// The stage of a capture of these GPUs, which are in no table; of known work if `has_work`.
fn stage_on(of: &[(&str, Option<u64>)], has_work: bool) -> LedgerStage {
    let mut case = Case::new(ONE_KERNEL, "prefill", 1000);
    case.trace.timeline.as_mut().unwrap().target.gpus = gpus(of);
    let case = if has_work { case.operator("op", 0, 100, 0) } else { case };
    case.ledger_on(None, |_| {}).stages.remove(0)
}

#[test]
fn an_unknown_bandwidth_has_the_remedy_of_its_reason_and_an_unknown_model_has_its_own() {
    let of_floor = |it: &&String| it.starts_with("How fast it could be is unknown: ");
    for (gpus, why, remedy) in [
        (&[("", None)][..], "the capture names no GPU", "TARGET_INFO_GPU"),
        (&[], "the capture names no GPU", "deviceProperties"),
        (&[("GPU X", None)], "the memory bandwidth of GPU X", "Record with nsys"),
        (&[("X", None), ("X", Some(9))], "the memory bandwidth of X", "`--devices FILE`"),
        (&[("X", Some(8)), ("Y", Some(9))], "several models (X, Y)", "GPUs of one model"),
    ] {
        for has_work in [true, false] {
            let stage = stage_on(gpus, has_work);
            let missing: Vec<&String> = stage.missing.iter().filter(of_floor).collect();
            assert_eq!(missing.len(), 1, "one line has all that lacks: {missing:?}");
            assert!(missing[0].contains(why) && missing[0].contains(remedy), "{missing:?}");
            let asks_for_model = missing.iter().any(|it| it.contains("--model-config"));
            assert_eq!(asks_for_model, !has_work, "{missing:?}");
            assert_eq!((stage.floor_ns, stage.bytes_ceiling), (None, None));
        }
    }
}

#[test]
fn one_line_has_all_that_a_floor_lacks_and_asks_for_no_model_if_one_is_stated_or_refuted() {
    let text = PRESETS.iter().find(|it| it.0 == "qwen3-0.6b").unwrap().1;
    let stated = StatedModel {
        model: toml::from_str(text).unwrap(),
        prompt_tokens: 40,
        new_tokens: None,
        batch: 1,
        dtype: Dtype::Bf16,
    };
    let proof = Refutation("its weights are larger than the memory".into());
    for bandwidth in [None, Some(1_000_000_000)] {
        for (is_stated, proof, why) in [
            (false, None, "add the model's config.json"),
            (true, None, "several GPUs"),
            (true, Some(&proof), "cannot be the model of the capture: its weights are larger"),
        ] {
            let mut case = Case::new(ONE_KERNEL, "prefill", 1000);
            case.trace.timeline.as_mut().unwrap().target.gpus = gpus(&[("X", bandwidth)]);
            let ledger = case.ledger_on(None, |analysis| {
                analysis.stated = is_stated.then(|| stated.clone());
                analysis.refutations = proof.cloned().into_iter().collect();
                analysis.subject = SubjectKind::Import;
                let remedy = analysis.why_no_utilisation().1;
                assert_eq!(remedy.contains("model_config"), !is_stated, "{remedy}");
            });
            let missing = &ledger.stages[0].missing;
            let speeds: Vec<&String> =
                missing.iter().filter(|it| it.contains("How fast it could be")).collect();
            assert_eq!(speeds.len(), 1, "{missing:?}");
            assert!(speeds[0].contains(why), "{missing:?}");
            let lacks_bandwidth = speeds[0].contains("the memory bandwidth of X is unknown");
            assert_eq!(lacks_bandwidth, bandwidth.is_none(), "{missing:?}");
            let asks = missing.iter().any(|it| it.contains("--model-config"));
            assert_eq!(asks, !is_stated, "{missing:?}");
            let is_replaced = speeds[0].contains("State the model, dtype and sizes that ran");
            assert_eq!(is_replaced, proof.is_some(), "{missing:?}");
        }
    }
}

#[test]
fn the_bandwidth_of_a_capture_is_the_ceiling_of_a_device_that_no_table_has() {
    // 100 bytes.
    for (gpus, floor_ns) in [
        (&[("X", Some(1_000_000_000))][..], 100),
        (&[("X", Some(500_000_000)), ("X", Some(500_000_000))], 200),
    ] {
        let stage = stage_on(gpus, true);
        assert_eq!(stage.bytes_ceiling.as_deref(), Some("capture"));
        assert_eq!(stage.floor_ns, Some(floor_ns));
        assert!(!stage.missing.iter().any(|it| it.contains("bandwidth")), "{:?}", stage.missing);
    }
    let mut case = Case::new(ONE_KERNEL, "prefill", 1000).operator("op", 0, 100, 0);
    case.trace.timeline.as_mut().unwrap().target.gpus = gpus(&[("X", Some(9_000_000_000))]);
    let stage = case.ledger().stages.remove(0);
    assert_eq!(stage.bytes_ceiling.as_deref(), Some("datasheet"), "the table is preferred");
}

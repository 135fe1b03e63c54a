//! Reasons for figures that a ledger lacks.

use super::*;
use crate::ledger::floors::NO_BANDWIDTH;

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

#[test]
fn without_the_bandwidth_of_the_device_no_model_is_asked_for() {
    let case = || Case::new(ONE_KERNEL, "prefill", 1000);
    for case in [case(), case().operator("op", 0, 100, 0)] {
        let stage = case.ledger_on(None, |_| {}).stages.remove(0);
        let of_floor = |it: &&String| it.starts_with("How fast it could be");
        let missing: Vec<&String> = stage.missing.iter().filter(of_floor).collect();
        assert_eq!(missing, [NO_BANDWIDTH]);
        assert!(!stage.missing.iter().any(|it| it.contains("--model-config")));
    }
}

//! Gaps of decode in few steps that take much longer than the others.

use llmprof_core::trace::Trace;

use crate::{Analysis, analyze, kernels::tests::capture};

/// A decode of steps with kernels of 1 ms, each after a gap of these microseconds in which the host
/// launches nothing.
fn decode(gaps_us: &[i64]) -> Analysis {
    let (mut lines, mut at) = (Vec::new(), 0);
    for (id, gap_us) in (1..).zip(gaps_us) {
        let called = at + gap_us * 1_000;
        let (from, to) = (called + 2_000, called + 1_002_000);
        let end = to + 10_000;
        lines.push(format!("range 1 decode_step {at}..{end}"));
        lines.push(format!("call 1 {id} {called}..{}", called + 1_000));
        lines.push(format!("kernel {id} k {from}..{to} 7"));
        at = end;
    }
    lines.insert(0, format!("range 1 decode_all 0..{at}"));
    let timeline = Some(capture(&lines.join("\n")));
    analyze(&Trace { timeline, ..Trace::default() }, None, None)
}

#[test]
fn gaps_of_few_outlier_steps_do_not_make_decode_launch_bound() {
    let with_cold = |cold: usize, usual_us: i64| {
        let gap = |step: usize| if (5..5 + cold).contains(&step) { 40_000 } else { usual_us };
        (0..20).map(gap).collect::<Vec<i64>>()
    };
    for (cold, usual_us, is_bound) in [
        (0, 10, false),
        (0, 900, true),
        (1, 10, false),
        (3, 10, false),
        // Each step idles as well.
        (1, 900, true),
        // These are not few.
        (8, 10, true),
    ] {
        let analysis = decode(&with_cold(cold, usual_us));
        let found = analysis.findings.iter().find(|it| it.id == "decode_launch_bound");
        assert_eq!(found.is_some(), is_bound, "{cold} {usual_us}: {found:?}");
        let Some(found) = found else { continue };
        let is_left_out = found.message.contains("without the gaps of its longest steps");
        assert_eq!(is_left_out, cold == 1, "{found:?}");
        let ms = found.max_saving.as_ref().and_then(|it| it.ms).unwrap();
        let all_ms = (cold as f64 * 40.0) + (20 - cold) as f64 * usual_us as f64 / 1e3;
        let left_out_ms = if cold == 1 { 40.0 } else { 0.0 };
        assert!((ms - (all_ms - left_out_ms)).abs() < 1.0, "{ms} of {all_ms}");
    }
}

#[test]
fn a_cause_that_few_steps_have_most_of_is_stated_of_these_with_their_remedy() {
    for (cold, words) in [(1, "1 of 20 steps"), (3, "3 of 20 steps")] {
        let gap = |step: usize| if (5..5 + cold).contains(&step) { 40_000 } else { 10 };
        let analysis = decode(&(0..20).map(gap).collect::<Vec<i64>>());
        let found = analysis.findings.iter().find(|it| it.id == "ledger_gap_host").unwrap();
        let ends = format!(", most of it in {words}.");
        assert!(found.message.ends_with(&ends), "{found:?}");
        let advice = found.advice.as_deref().unwrap();
        assert!(advice.starts_with("Find what differs there"), "{advice}");
    }
}

/// Prefills of these milliseconds, one after the other.
fn prefills(ms: &[i64]) -> Analysis {
    let (mut lines, mut at) = (Vec::new(), 0);
    for (id, ms) in (1..).zip(ms) {
        let end = at + ms * 1_000_000;
        lines.push(format!("range 1 prefill {at}..{end}"));
        lines.push(format!("call 1 {id} {}..{}", at + 1_000, at + 2_000));
        lines.push(format!("kernel {id} k {}..{} 7", at + 3_000, end - 1_000));
        at = end;
    }
    let timeline = Some(capture(&lines.join("\n")));
    analyze(&Trace { timeline, ..Trace::default() }, None, None)
}

#[test]
fn a_variance_that_few_instances_make_is_stated_of_these_with_their_remedy() {
    for (ms, without) in [
        ([10, 10, 10, 10, 10, 90, 10, 10, 10, 10], Some("and 0 % without 1 of 10 instances.")),
        ([10, 10, 10, 90, 10, 80, 10, 10, 10, 10], Some("and 0 % without 2 of 10 instances.")),
        ([10, 14, 10, 14, 10, 14, 10, 14, 10, 14], None),
    ] {
        let analysis = prefills(&ms);
        let found = analysis.findings.iter().find(|it| it.id == "high_variance").unwrap();
        let ends = without.unwrap_or("% of its mean.");
        assert!(found.message.ends_with(ends), "{found:?}");
        let advice = found.advice.as_deref().unwrap();
        let is_of_few = advice.starts_with("Find what differs in the longest steps");
        assert_eq!(is_of_few, without.is_some(), "{advice}");
    }
}

//! Tests of the sentences on steps.

use llmprof_analyze::stats::{Spread, has_two_halves};

use super::*;
use crate::headline::times::tests::batch;

fn row(requests: Option<u64>, times: &[f64], tokens_per_s: Option<f64>) -> StepBatch {
    StepBatch {
        requests,
        context_min: requests.map(|it| 100 * it),
        context_max: requests.map(|it| 100 * it),
        steps: times.len() as u64,
        ms: Spread::of(times.iter().copied()).unwrap(),
        p50_ms: times[0],
        has_two_halves: has_two_halves(times.iter().copied()),
        period_ms: None,
        tokens_per_s,
        ..batch(StepClass::Decode, 0)
    }
}

#[test]
fn steps_of_several_batches_are_stated_by_the_common_batch_and_never_averaged() {
    let rows = [row(Some(4), &[2.0, 2.0, 2.0], Some(2000.0)), row(Some(8), &[4.0], None)];
    assert_eq!(
        of_batches(&rows, &Ledger::default()),
        ["4 decode steps of 4 to 8 requests with mean contexts of 400 to 800 tokens: 2.00 ms \
             with 4 requests (median of 3 steps), 2,000 tokens per second within a step; \
             all take 2.00 to 4.00 ms."]
    );
    let rows = [row(Some(4), &[2.0], Some(2000.0)), row(None, &[4.0], None)];
    let text = of_batches(&rows, &Ledger::default());
    assert_eq!(text, ["2 decode steps: 2.00 and 4.00 ms."]);
}

#[test]
fn the_median_of_an_engines_steps_of_two_halves_is_called_the_lower_one() {
    for (times, word) in [([1.0, 1.0, 1.9, 1.9], "lower median"), ([1.0, 1.0, 1.01, 1.9], "median")]
    {
        let rows = [row(Some(1), &times, None)];
        let text = of_batches(&rows, &Ledger::default());
        let base = format!(": 1.00 ms ({word} of 4 steps);");
        assert!(text[0].as_str().contains(&base), "{text:?}");
    }
}

#[test]
fn two_steps_have_no_median_and_the_time_to_the_next_step_is_stated_where_it_is_longer() {
    let mut rows = [row(Some(1), &[3.5, 40.5], None)];
    let text = of_batches(&rows, &Ledger::default());
    let steps = "2 decode steps of 1 request with a mean context of 100 tokens";
    assert_eq!(text, [format!("{steps}: 3.50 and 40.5 ms.")]);
    rows[0] = StepBatch { period_ms: Some(4.0), ..row(Some(1), &[3.0, 3.0, 3.1], Some(250.0)) };
    let text = of_batches(&rows, &Ledger::default());
    let steps = "3 decode steps of 1 request with a mean context of 100 tokens";
    assert_eq!(
        text,
        [format!(
            "{steps}: 3.00 ms (median of 3 steps), one every 4.00 ms, 250 tokens per second; \
              all take 3.00 to 3.10 ms."
        )]
    );
    rows[0].period_ms = Some(3.1);
    assert!(!of_batches(&rows, &Ledger::default())[0].as_str().contains("one every"));
}

#[test]
fn a_median_of_one_context_names_it() {
    let rows = [
        row(Some(1), &[2.0, 2.0, 2.0], None),
        StepBatch { context_min: Some(800), context_max: Some(900), ..row(Some(1), &[4.0], None) },
    ];
    let text = of_batches(&rows, &Ledger::default());
    assert_eq!(
        text,
        ["4 decode steps of 1 request with mean contexts of 100 to 900 tokens: 2.00 ms with \
          a mean context of 100 tokens (median of 3 steps); all take 2.00 to 4.00 ms."]
    );
}

#[test]
fn time_outside_the_stages_of_an_engine_is_stated_without_work_of_a_gpu_and_has_its_place() {
    let share = |device: f64, before_ms: f64| StageShare {
        stage: OUTSIDE_STAGES.into(),
        instances: None,
        wall_ms: 67.0,
        wall_share_pct: Some(67.0),
        device_ms: Some(device),
        device_share_pct: Some(device),
        before_ms: Some(before_ms),
        after_ms: Some(0.0),
    };
    let text = |it: &StageShare, has_steps| Some(outside(it, has_steps, "the stages")?.to_string());
    assert_eq!(
        text(&share(0.0, 1.0), true).as_deref(),
        Some("67 % of all wall time is outside the stages.")
    );
    assert_eq!(text(&share(0.0, 1.0), false), None);
    let named = "67 % of all wall time and 20 % of all GPU time are outside the stages, \
                 60.0 ms of wall time before the first one.";
    assert_eq!(text(&share(20.0, 60.0), false).as_deref(), Some(named));
}

#[test]
fn steps_that_each_rank_has_are_stated_with_the_number_of_processes() {
    let rows = [StepBatch { processes: 2, ..row(None, &[2.0, 2.0], None) }];
    assert_eq!(
        of_batches(&rows, &Ledger::default()),
        ["2 decode steps in 2 processes: 2.00 ms each."]
    );
}

#[test]
fn processes_that_differ_are_named_with_their_times_slowest_first() {
    let of = |process: u32, rank: Option<u32>, ms: f64| StepBatch {
        process: Some(process),
        rank,
        period_ms: Some(ms + 1.0),
        ..row(Some(6), &[ms; 20], None)
    };
    let stated = |rows: &[StepBatch]| {
        let text = of_batches(rows, &Ledger::default()).remove(0);
        assert_eq!(text.unfounded(&serde_json::json!({ "step_batches": rows })), [""; 0]);
        text.to_string()
    };
    let steps = "decode steps of 6 requests with a mean context of 600 tokens in";
    assert_eq!(
        stated(&[of(7, Some(0), 4.0), of(8, Some(1), 6.0)]),
        format!(
            "40 {steps} 2 processes: 6.00 ms in rank 1 (median of 20 steps), one every 7.00 \
             ms; 4.00 ms in rank 0 (median of 20 steps), one every 5.00 ms; all take 4.00 to \
             6.00 ms."
        )
    );
    let rare = StepBatch { period_ms: Some(9.0), ..of(8, Some(1), 4.0) };
    let text = stated(&[of(7, Some(0), 4.0), rare]);
    assert!(text.contains(": 4.00 ms in rank 1 (median of 20 steps), one every 9.00 ms; "));
    assert!(text.ends_with("; 4.00 ms in rank 0 (median of 20 steps), one every 5.00 ms."));
    let many: Vec<StepBatch> = (0..5).map(|at| of(at, None, 4.0 + f64::from(at % 4))).collect();
    let text = stated(&many);
    assert!(text.starts_with(&format!("100 {steps} 5 processes: 7.00 ms in process 3")));
    assert!(text.ends_with("; faster: 2 other processes; all take 4.00 to 7.00 ms."), "{text}");
}

#[test]
fn a_rate_has_three_digits_as_in_the_headline() {
    let rate = |rate: f64| {
        let rows = [row(Some(1), &[2.0; 3], Some(rate))];
        let text = of_batches(&rows, &Ledger::default()).remove(0).to_string();
        text.rsplit(", ").next().unwrap().trim_end_matches(" within a step.").to_owned()
    };
    for (value, expected) in [(13.23, "13.2"), (1.43, "1.43"), (171.4, "171")] {
        assert_eq!(rate(value), format!("{expected} tokens per second"));
    }
}

#[test]
fn speculation_is_stated_by_all_that_shows_it() {
    let stated = |it: StepBatch| {
        let text = of_batches(&[it], &Ledger::default());
        text.get(1).map(ToString::to_string)
    };
    let base = || row(Some(6), &[2.0; 3], None);
    let passes = "Decode speculates: on average a step has 3.0 passes of the draft model, which \
                  take 0.090 ms on the host";
    let kept = "how many tokens it keeps is not recorded.";
    let drafts = StepBatch { drafts: Some(3.0), draft_ms: Some(0.09), ..base() };
    let verified = StepBatch { verify_ms: Some(0.25), ..drafts.clone() };
    let phases = format!("{passes}, and a verification, which takes 0.250 ms; {kept}");
    assert_eq!(stated(verified), Some(phases));
    assert_eq!(stated(drafts), Some(format!("{passes}; {kept}")));
    let tokens = "Decode speculates: a step computes 24.0 tokens of 6 requests on average; how \
                  many it keeps is not recorded.";
    let computed = StepBatch { computed_tokens: Some(24.0), ..base() };
    assert_eq!(stated(computed).as_deref(), Some(tokens));
    // N-grams are proposed by the host.
    let n_grams = StepBatch { verify_ms: Some(0.25), ..base() };
    let verification = "Decode speculates: a step verifies proposed tokens, which takes 0.250 ms \
                        on the host; no pass of a draft model is recorded, nor how many tokens a \
                        step keeps.";
    assert_eq!(stated(n_grams.clone()).as_deref(), Some(verification));
    let counted = StepBatch { computed_tokens: Some(24.0), ..n_grams };
    assert_eq!(stated(counted).as_deref(), Some(tokens));
    assert_eq!(stated(base()), None);
}

#[test]
fn a_rate_with_an_outlier_is_not_stated() {
    let rows = [row(Some(1), &[2.0, 2.0, 900.0], Some(3.3))];
    assert_eq!(
        of_batches(&rows, &Ledger::default()),
        ["3 decode steps of 1 request with a mean context of 100 tokens: 2.00 ms (median of \
          3 steps); all take 2.00 to 900 ms."]
    );
}

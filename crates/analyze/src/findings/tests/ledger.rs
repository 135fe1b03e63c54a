//! Findings on the causes of the ledger.

use llmprof_core::domain::finding::catalogue;

use super::*;
use crate::{
    host_cpu::{GapFunction, HostCpuTables},
    ledger::{
        FloorOf, Ledger, LedgerCause, LedgerMember, LedgerRow, LedgerStage, host_copies::HostCopies,
    },
};

/// A ledger of a decode of 10 ms with one cause of 3 ms in three kernels.
fn with_cause(cause: LedgerCause, saving_ns: i64) -> Analysis {
    let member = |kernel: &str, ns| LedgerMember {
        stage: DECODE.into(),
        cause,
        operator: Some("op".into()),
        kernel: Some(kernel.into()),
        full_name: None,
        grid: None,
        block: None,
        calls: 1.0,
        ns,
        share_pct: None,
        pass: "ncu".into(),
        samples: 2,
        gap_parts: 0,
        evidence: "figures".into(),
        max_saving_ns: ns,
        longest_ns: None,
    };
    let stage = LedgerStage {
        stage: DECODE.into(),
        measured_ns: 10 * MS,
        traced_ns: Some(10 * MS),
        steps: Some(2),
        floor_of: Some(FloorOf::Model),
        floor_ns: Some(5 * MS),
        times_floor: Some(2.0),
        ..LedgerStage::default()
    };
    let row = LedgerRow {
        stage: DECODE.into(),
        cause,
        ns: 3 * MS,
        step_ns: None,
        share_pct: Some(30.0),
        members: 3,
        largest: None,
        pass: "ncu".into(),
        counter: "figures".into(),
        samples: 6,
        gap_parts: 0,
        max_saving_ns: saving_ns,
        saving_rank: None,
    };
    let members = vec![member("a", MS), member("b", MS), member("a", MS)];
    let ledger = Ledger { stages: vec![stage], rows: vec![row], members };
    Analysis { ledger, ..Analysis::default() }
}

#[test]
fn each_cause_of_the_ledger_is_one_finding_with_its_kernels() {
    // No change of the program is known to save these.
    let without = [
        LedgerCause::ProfilerOverhead,
        LedgerCause::UnrecordedWait,
        LedgerCause::GapUnknown,
        LedgerCause::GapWait,
    ];
    let is_saving = |it: &&LedgerCause| it.is_cause() && !without.contains(it);
    for cause in LedgerCause::ALL.iter().filter(is_saving) {
        let id = format!("ledger_{cause}");
        let found = fires(
            &id,
            (with_cause(*cause, 2 * MS), no_trace()),
            (with_cause(*cause, MS / 4), no_trace()),
        );
        let saving = found.max_saving.as_ref().unwrap();
        assert_eq!((saving.ms, saving.pct, saving.stage.as_str()), (Some(2.0), 20.0, DECODE));
        // A saving of the busiest GPU does not bound the mean time.
        assert!(found.message.starts_with("30 % of decode, 3.00 ms: "), "{}", found.message);
        let grouped = "a, 2.00 ms; largest part: a of op, 1.00 ms: figures";
        assert_eq!(found.evidence["kernel (1)"], grouped);
        assert_eq!(found.evidence["kernel (2)"], "b, 1.00 ms: figures");
    }
    let mut small = with_cause(LedgerCause::Unexplained, 0);
    small.ledger.rows[0].share_pct = Some(9.0);
    fires(
        "ledger_unexplained",
        (with_cause(LedgerCause::Unexplained, 0), no_trace()),
        (small, no_trace()),
    );
}

#[test]
fn findings_of_the_ledger_start_with_the_largest_saving() {
    let mut analysis = with_cause(LedgerCause::Waves, 2 * MS);
    let mut more = analysis.ledger.rows[0].clone();
    (more.cause, more.max_saving_ns) = (LedgerCause::Latency, 3 * MS);
    analysis.ledger.rows.push(more);
    let found = findings(&analysis, &no_trace());
    let causes: Vec<&str> =
        found.iter().map(|it| it.id.as_str()).filter(|it| it.starts_with("ledger_")).collect();
    assert_eq!(causes, ["ledger_latency", "ledger_waves"]);
}

#[test]
fn savings_and_shares_are_of_the_stage_without_a_wait_from_before_the_recording() {
    let mut analysis = with_cause(LedgerCause::GapHost, MS / 5);
    analysis.ledger.rows[0].ns = MS / 5;
    analysis.ledger.rows[0].share_pct = Some(2.0);
    let is_found = |analysis: &Analysis| {
        findings(analysis, &no_trace()).into_iter().find(|it| it.id == "ledger_gap_host")
    };
    assert_eq!(is_found(&analysis), None, "2 %");
    let mut wait = analysis.ledger.rows[0].clone();
    (wait.cause, wait.max_saving_ns) = (LedgerCause::UnrecordedWait, 0);
    (wait.ns, wait.share_pct) = (8 * MS, Some(80.0));
    analysis.ledger.rows.push(wait);
    let found = is_found(&analysis).unwrap();
    let named = "10 % of decode without its unrecorded wait, 0.200 ms: ";
    assert!(found.message.starts_with(named), "{}", found.message);
    assert!((found.max_saving.as_ref().unwrap().pct - 10.0).abs() < 1e-9);
    let row = &analysis.ledger.rows[0];
    let ledger = &analysis.ledger;
    assert!(crate::findings::ledger::is_worth_advice(ledger, &ledger.stages[0], row));
}

/// The first finding on the ledger.
fn of_ledger(analysis: &Analysis) -> Finding {
    let found = findings(analysis, &no_trace());
    found.into_iter().find(|it| it.id.starts_with("ledger_")).unwrap()
}

#[test]
fn pinned_memory_is_advised_only_where_large_copies_of_pageable_memory_can_save_enough() {
    let advice = |cause, staged, saving_pct| {
        let mut analysis = with_cause(cause, 2 * MS);
        let copies = HostCopies { calls: 10, staged, saving_pct };
        analysis.host_copies.insert(DECODE.into(), copies);
        of_ledger(&analysis).advice.clone().unwrap()
    };
    // The cause can save 20 % of the stage.
    for (cause, staged, saving_pct, is_pinned) in [
        (LedgerCause::CopiesAndCasts, 10, 3.0, true),
        (LedgerCause::CopiesAndCasts, 10, 2.9, false),
        (LedgerCause::GapCopy, 2, 0.0, true),
        (LedgerCause::GapCopy, 1, 50.0, false),
        (LedgerCause::GapHost, 10, 50.0, false),
    ] {
        let advice = advice(cause, staged, saving_pct);
        assert_eq!(advice.contains("pinned"), is_pinned, "{cause} {staged} {saving_pct}: {advice}");
    }
    let without = of_ledger(&with_cause(LedgerCause::GapCopy, 2 * MS));
    assert_eq!(without.advice.as_deref(), catalogue::LEDGER_GAP_COPY.advice);
}

#[test]
fn time_in_sends_and_receives_is_the_bubble_of_a_pipeline() {
    let advice = |largest: &str| {
        let mut analysis = with_cause(LedgerCause::Collectives, 2 * MS);
        analysis.ledger.rows[0].largest = Some(largest.into());
        let found = findings(&analysis, &no_trace()).into_iter();
        found.filter(|it| it.id == "ledger_collectives").find_map(|it| it.advice.clone()).unwrap()
    };
    assert!(advice("ncclDevKernel_SendRecv").contains("pipeline"));
    assert!(advice("ncclDevKernel_AllReduce_Sum_bf16_RING_LL").starts_with("Overlap"));
}

/// The advice on gaps of 3 ms before launches, `calls` of them.
fn advice_on_gaps(calls: f64, change: impl Fn(&mut Analysis)) -> String {
    let mut analysis = with_cause(LedgerCause::GapHost, 2 * MS);
    analysis.ledger.members.iter_mut().for_each(|it| it.calls = calls / 3.0);
    change(&mut analysis);
    of_ledger(&analysis).advice.clone().unwrap()
}

#[test]
fn graphs_are_advised_against_short_gaps_and_the_next_replay_if_the_stage_replays_them() {
    use LedgerCause::{GapGraphLaunch, GapInGraph, GapLaunch};

    let with_gaps = |of: &[(LedgerCause, u64)]| {
        advice_on_gaps(300.0, |analysis| {
            for (cause, samples) in of {
                let row = analysis.ledger.rows[0].clone();
                let row = LedgerRow { cause: *cause, samples: *samples, max_saving_ns: 0, ..row };
                analysis.ledger.rows.push(row);
            }
        })
    };
    let graph = catalogue::LEDGER_GAP_HOST.advice.unwrap();
    let next = "Launch the next replay";
    let cases: [(&[(LedgerCause, u64)], &str); 5] = [
        (&[], graph),
        (&[(GapLaunch, 100)], graph),
        (&[(GapGraphLaunch, 10), (GapLaunch, 5)], next),
        (&[(GapInGraph, 470), (GapLaunch, 6)], next),
        (&[(GapInGraph, 9), (GapGraphLaunch, 1), (GapLaunch, 100)], graph),
    ];
    for (gaps, expected) in cases {
        let advice = with_gaps(gaps);
        assert!(advice.starts_with(expected), "{gaps:?}: {advice}");
    }
}

#[test]
fn few_long_gaps_are_other_work_of_the_host_that_no_graph_shortens() {
    let is_graph = |advice: &str| advice.contains("graph");
    for (calls, is_long) in [(300.0, false), (3.0, false), (2.0, true), (1.0, true)] {
        let advice = advice_on_gaps(calls, |_| ());
        assert_eq!(advice.starts_with("Find what the host does"), is_long, "{calls}: {advice}");
        assert_eq!(is_graph(&advice), !is_long, "{calls}: {advice}");
    }
    // Many short gaps next to one that has most of the time.
    let advice = advice_on_gaps(3000.0, |analysis| {
        let longest = &mut analysis.ledger.members[0];
        (longest.ns, longest.calls) = (8 * MS, 1.0);
    });
    assert!(advice.starts_with("Find what the host does"), "{advice}");
    let sampled = advice_on_gaps(1.0, |analysis| {
        let function = GapFunction { stage: DECODE.into(), ..GapFunction::default() };
        let functions = vec![function];
        analysis.host_cpu = Some(HostCpuTables { functions, ..HostCpuTables::default() });
    });
    assert!(!sampled.contains("sample the CPU") && !is_graph(&sampled), "{sampled}");
}

#[test]
fn a_range_is_the_cause_only_with_nearly_all_of_its_time() {
    for (range_ns, is_cause) in [(300, true), (291, true), (290, false), (160, false)] {
        let mut analysis = with_cause(LedgerCause::GapLongCall, 2 * MS);
        analysis.ledger.rows[0].largest = Some("the range load_*".into());
        let member = analysis.ledger.members[0].clone();
        let of = |operator: &str, ns: i64| LedgerMember {
            operator: Some(operator.into()),
            kernel: None,
            ns: ns * MS / 100,
            ..member.clone()
        };
        let others = of("preparation of code for cuLibraryLoadData", 300 - range_ns);
        analysis.ledger.members = vec![of("the range load_*", range_ns), others];
        let row = &analysis.ledger.rows[0];
        let range = analysis.ledger.ranges_of(row).and_then(|it| it.one());
        assert_eq!(range, is_cause.then_some("load_*"), "{range_ns}");
        let found = of_ledger(&analysis);
        let most = found.message.contains("most of it, and in long calls");
        assert_eq!(most, !is_cause, "{}", found.message);
        assert!(found.message.contains("the host in the range load_*"), "{}", found.message);
        let advice = found.advice.as_ref().unwrap();
        assert!(advice.starts_with("Shorten"), "{range_ns}: {advice}");
        assert_eq!(advice.contains("load code"), !is_cause, "both parts: {advice}");
    }
}

#[test]
fn calls_of_the_operating_system_with_most_of_the_time_are_named_and_have_their_own_remedies() {
    const WORK: &str = "read and prepare input early";
    const WAIT: &str = "that it waits for";
    const CALLS: &str = "load code";
    for (parts, words, remedy) in [
        (&[("the OS call getc", 100)][..], "the host in the OS call getc.", WORK),
        (&[("a wait in poll", 100)], "the host waiting in poll, a call", WAIT),
        (&[("a wait in poll", 60), ("aten::nonzero", 40)], "the host waiting in poll", WAIT),
        (&[("aten::nonzero", 60), ("a wait in poll", 40)], "long calls of the host", CALLS),
        (
            &[("a wait in poll", 40), ("a wait in futex", 30), ("the OS call read", 30)],
            "the host waiting in calls of the operating system",
            WAIT,
        ),
        (
            &[("the OS call read", 40), ("the OS call getc", 30), ("a wait in poll", 30)],
            "the host in calls of the operating system",
            WORK,
        ),
        (&[("a wait in poll", 50), ("the range load_*", 50)], "long calls", CALLS),
    ] {
        let mut analysis = with_cause(LedgerCause::GapLongCall, 2 * MS);
        analysis.ledger.rows[0].largest = Some(parts[0].0.into());
        let member = analysis.ledger.members[0].clone();
        let of = |(name, pct): &(&str, i64)| LedgerMember {
            operator: Some((*name).into()),
            kernel: None,
            ns: 3 * MS * pct / 100,
            ..member.clone()
        };
        analysis.ledger.members = parts.iter().map(of).collect();
        let found = of_ledger(&analysis);
        assert!(found.message.contains(words), "{parts:?}: {}", found.message);
        let advice = found.advice.as_ref().unwrap();
        assert!(advice.contains(remedy), "{parts:?}: {advice}");
    }
}

#[test]
fn ranges_with_most_of_the_time_have_a_remedy_next_to_the_remedy_of_a_larger_call() {
    for (call_pct, has_ranges) in [(45, true), (55, false)] {
        let mut analysis = with_cause(LedgerCause::GapLongCall, 2 * MS);
        analysis.ledger.rows[0].largest = Some("aten::nonzero".into());
        let member = analysis.ledger.members[0].clone();
        let of = |(name, pct): (&str, i64)| LedgerMember {
            operator: Some(name.into()),
            kernel: None,
            ns: 3 * MS * pct / 100,
            ..member.clone()
        };
        let ranges = [("the range load_*", 25), ("the range sort_*", 75 - call_pct)];
        let all = [("aten::nonzero", call_pct)].into_iter().chain(ranges);
        analysis.ledger.members = all.map(of).collect();
        let found = of_ledger(&analysis);
        let words = "the host in ranges of the program and in long calls";
        assert_eq!(found.message.contains(words), has_ranges, "{}", found.message);
        let advice = found.advice.as_ref().unwrap();
        assert_eq!(advice.starts_with("Shorten the range"), has_ranges, "{advice}");
    }
}

#[test]
fn ranges_that_each_step_opens_are_not_calls_to_make_before_the_steps() {
    for (names, has_calls) in [
        (["the range load_*", "the range sort_*"], false),
        (["the range load_*", "aten::nonzero"], true),
        (["the range load_*", "preparation of code for cuLibraryLoadData"], true),
    ] {
        let mut analysis = with_cause(LedgerCause::GapLongCall, 2 * MS);
        analysis.ledger.rows[0].largest = Some(names[0].into());
        let member = analysis.ledger.members[0].clone();
        let of = |(name, ns): (&str, i64)| LedgerMember {
            operator: Some(name.into()),
            kernel: None,
            ns: ns * MS,
            ..member.clone()
        };
        analysis.ledger.members = names.into_iter().zip([2, 1]).map(of).collect();
        let found = of_ledger(&analysis);
        let advice = found.advice.as_ref().unwrap();
        assert!(advice.starts_with("Shorten the range"), "{advice}");
        assert_eq!(advice.contains("before the measured steps"), has_calls, "{names:?}: {advice}");
    }
}

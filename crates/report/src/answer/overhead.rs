//! Sentences on the cost of tracing.

use llmprof_analyze::{
    ledger::{Ledger, LedgerCause, LedgerRow, LedgerStage},
    stages::{NO_STAGE, StageTiming, in_sentence, overhead::OverheadRecord},
};

use super::{
    cited::{Cited, Figure, Row},
    times,
};
use crate::format;

/// The profiler's own work, if it is a part of a stage that matters, and its share, percent.
pub fn own_work(ledger: &Ledger, row: &LedgerRow) -> Option<(f64, Cited)> {
    const STATED_PCT: f64 = 5.0;
    let stage = ledger.stages.iter().find(|it| it.stage == row.stage)?;
    let is_own = row.cause == LedgerCause::ProfilerOverhead;
    let time = is_own.then(|| times::row_of_cause(row).ns("ns", row.ns))?;
    let share = time.share_of(&times::row_of(stage).ns("measured_ns", stage.measured_ns))?;
    (share.pct() >= STATED_PCT).then(|| {
        let pct = share.pct();
        let few = few_instances(stage, row).unwrap_or_default();
        let parts = [share.text(), Cited::name(in_sentence(&row.stage)), few];
        let text = "{} of {} is the profiler's own work{}, which an unprofiled run lacks.";
        (pct, Cited::of(text, parts))
    })
}

/// The instances of a stage that have a cause, if its gaps are fewer than the instances.
fn few_instances(stage: &LedgerStage, row: &LedgerRow) -> Option<Cited> {
    let all = stage.instances.filter(|_| stage.stage != NO_STAGE)?;
    let gaps = Some(row.samples + row.gap_parts).filter(|gaps| (1..all).contains(gaps))?;
    let noun = if stage.steps == Some(1) { "step" } else { "instance" };
    let parts = [
        Cited::words(if gaps == 1 { "" } else { "at most " }),
        gaps_of(row).shown(|it| format::count(it as u64)),
        times::row_of(stage).count("instances", all).quantity(noun),
    ];
    Some(Cited::of(" (all of it in {}{} of {})", parts))
}

/// Gaps of a cause, with the parts of gaps that another cause counts.
fn gaps_of(row: &LedgerRow) -> Figure {
    let cells = times::row_of_cause(row);
    let samples = cells.count("samples", row.samples);
    match row.gap_parts {
        0 => samples,
        parts => Figure::sum([samples, cells.count("gap_parts", parts)]),
    }
}

/// A traced pass that is shorter by more than this percentage shows that the times vary.
const UNEVEN_PCT: f64 = 25.0;

/// The cost of tracing a stage. Tracing shortens nothing: a shorter pass is noise, and so is one
/// within the unprofiled repeats.
pub fn of_stage(it: &OverheadRecord, stages: &[StageTiming]) -> Option<Cited> {
    let share = it.overhead_pct?;
    let row = Row::of("overhead").with("stage", &it.stage);
    let stage = Cited::name(in_sentence(&it.stage));
    let [traced, plain] = [("traced_ms", it.traced_ms), ("plain_ms", it.plain_ms)]
        .map(|(column, ms)| row.figure(column, ms).short());
    if share < -UNEVEN_PCT {
        let text = "The times of {} are uncertain: {} ms under the profiler and {} ms without \
                    differ by more than tracing explains. Raise warmup and repeats.";
        return Some(Cited::of(text, [stage, traced, plain]));
    }
    if let Some(ms) = it.repeats_around(stages) {
        let row = Row::of("stages").with("stage", &it.stage);
        let [least, most] =
            [("ms.min", ms.min), ("ms.max", ms.max)].map(|(of, ms)| row.figure(of, ms).short());
        if least.as_str() != most.as_str() {
            let text = "The cost of tracing {} is within the variation of its repeats: {} ms \
                        traced, {} to {} ms unprofiled.";
            return Some(Cited::of(text, [stage, traced, least, most]));
        }
    }
    if share < 0.0 || traced.as_str() == plain.as_str() {
        let parts = [stage, traced, plain];
        return Some(Cited::of("Tracing did not slow {}: {} ms traced, {} ms unprofiled.", parts));
    }
    Some(Cited::of(
        "Tracing made {} {} longer: {} ms instead of {} ms.",
        [stage, row.figure("overhead_pct", share).shown(format::share), traced, plain],
    ))
}

#[cfg(test)]
mod tests {
    use llmprof_analyze::stats::Spread;

    use super::*;

    #[test]
    fn the_profilers_work_in_few_steps_is_stated_with_their_number() {
        let text = |stage: &str, instances: Option<u64>, gaps: u64, parts: u64| {
            let ledger = serde_json::from_value::<LedgerStage>(serde_json::json!({
                "stage": stage, "measured_ns": 4_000_000, "traced_ns": 4_000_000, "steps": 1,
                "instances": instances, "capped_operators": 0, "capped_ns": 0, "overlap_ns": 0,
                "missing": []
            }));
            let ledger = Ledger { stages: vec![ledger.unwrap()], ..Ledger::default() };
            let row = serde_json::from_value::<LedgerRow>(serde_json::json!({
                "stage": stage, "cause": "profiler_overhead", "ns": 400_000, "share_pct": 10.0,
                "members": 1, "pass": "nsys", "counter": "", "samples": gaps, "gap_parts": parts,
                "max_saving_ns": 0
            }));
            own_work(&ledger, &row.unwrap()).unwrap().1.to_string()
        };
        for (instances, gaps, few) in [
            (Some(9), 1, " (all of it in 1 of 9 steps)"),
            (Some(9), 3, " (all of it in at most 3 of 9 steps)"),
            (Some(9), 9, ""),
            (Some(1), 1, ""),
            (Some(9), 0, ""),
            (None, 1, ""),
        ] {
            let own = format!("the profiler's own work{few}, which an unprofiled run lacks.");
            let expected = format!("10 % of decode is {own}");
            assert_eq!(text("decode_all", instances, gaps, 0), expected);
            assert_eq!(text("decode_all", instances, 0, gaps), expected, "parts of other gaps");
        }
        assert!(!text("", Some(9), 1, 0).contains("all of it"), "the recording has no instances");
    }

    #[test]
    fn a_cost_within_the_differences_of_the_repeats_is_not_stated() {
        let record = |traced_ms: f64, steps| OverheadRecord {
            stage: "decode_all".into(),
            plain_ms: 1_100.0,
            traced_ms,
            overhead_pct: Some(100.0 * (traced_ms / 1_100.0 - 1.0)),
            steps,
        };
        let row = |times: &[f64]| StageTiming {
            stage: "decode_all".into(),
            ms: Spread::of(times.iter().copied()).unwrap(),
            share_pct: None,
            tokens: None,
            tokens_per_s: None,
        };
        let text = |record: &OverheadRecord, times: &[f64]| {
            of_stage(record, &[row(times)]).unwrap().to_string()
        };
        let uneven = [700.0, 1_200.0, 1_400.0];
        assert_eq!(
            text(&record(1_206.0, None), &uneven),
            "The cost of tracing decode is within the variation of its repeats: 1,206 ms traced, \
             700 to 1,400 ms unprofiled."
        );
        assert_eq!(text(&record(1_206.0, Some(8)), &uneven)[..12], *"Tracing made");
        let even = [1_099.0, 1_100.0, 1_101.0];
        assert_eq!(text(&record(1_206.0, None), &even)[..12], *"Tracing made");
        assert_eq!(text(&record(1_090.0, None), &even)[..20], *"Tracing did not slow");
    }
}

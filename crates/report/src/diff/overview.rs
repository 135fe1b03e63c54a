//! The verdict of a comparison in one line, its bars, and its changed rows.

use llmprof_analyze::compare::{
    Change, ChangeVerdict, ComparabilityCheck, Diff,
    claims::{self, Claim},
    ledger::LedgerStageChange,
};
use llmprof_core::domain::{savings::Promise, units::Nanos};

use super::{ROWS, StoredReport};
use crate::{
    charts::svg::{self, Bar},
    format::{UNKNOWN, decimals, ms},
    tables::ReportTable,
};

/// The reason and the remedy of a comparison without rows.
pub(super) const NO_TIMES: &str = "neither run has times of stages; `llmprof gate` compares the \
                                   wall times and latencies of runs of a service";
/// Drawn changes.
const BARS: usize = 8;

/// True for a row with a verdict other than that nothing changed.
pub(super) fn is_changed(change: &Change) -> bool {
    use ChangeVerdict::{Faster, OnlyInA, OnlyInB, Slower};
    matches!(change.verdict, Faster | Slower | OnlyInA | OnlyInB)
}

/// The verdict, by table: `Times: 1 slower, 1 within noise; largest: decode_all +0.31 ms. ...`.
pub(super) fn verdict(diff: &Diff) -> String {
    if !diff.comparable {
        return "No verdict: the runs are not comparable".into();
    }
    let tables =
        [("Times", &diff.stages), ("Operators", &diff.operators), ("Kernels", &diff.kernels)];
    let tables = tables.into_iter().filter(|(_, rows)| !rows.is_empty());
    let parts: Vec<String> = tables.map(|(name, rows)| counts(name, rows)).collect();
    match parts.is_empty() {
        true => format!("No verdict: {NO_TIMES}"),
        false => parts.join(". "),
    }
}

fn counts(name: &str, rows: &[Change]) -> String {
    use ChangeVerdict::{Faster, NotComparable, OnlyInA, OnlyInB, Slower, Unknown, WithinNoise};
    let verdicts = [
        ("slower", &[Slower][..]),
        ("faster", &[Faster]),
        ("within noise", &[WithinNoise]),
        ("of unknown noise", &[Unknown]),
        ("not comparable", &[NotComparable]),
        ("in one run only", &[OnlyInA, OnlyInB]),
    ];
    let found = verdicts.into_iter().filter_map(|(word, of)| {
        let found = rows.iter().filter(|it| of.contains(&it.verdict)).count();
        (found > 0).then(|| format!("{found} {word}"))
    });
    let found: Vec<String> = found.collect();
    let significant = |it: &&Change| matches!(it.verdict, Slower | Faster);
    let largest = rows.iter().find(significant);
    let largest = largest.map_or(String::new(), |it| format!("; largest: {}", sentence(it)));
    format!("{name}: {}{largest}", found.join(", "))
}

pub(super) fn sentence(it: &Change) -> String {
    let stage = if it.stage.is_empty() || it.stage == it.name {
        String::new()
    } else {
        format!("{} ", it.stage)
    };
    format!("{stage}{} {}", it.name, amount(it))
}

fn amount(it: &Change) -> String {
    let sign = if it.change_ms > 0.0 { "+" } else { "" };
    let pct = it.change_pct.map(|pct| format!(" ({sign}{} %)", decimals(pct, 1)));
    format!("{sign}{} ms{}", ms(it.change_ms), pct.unwrap_or_default())
}

/// Facts that neither side states, without which equal work is assumed.
pub(super) fn unknown_facts(diff: &Diff) -> Vec<String> {
    const OF_WORK: [&str; 5] = ["model", "parameters", "dtype", "prompt positions", "decode steps"];
    let is_unknown = |it: &&ComparabilityCheck| {
        it.a.is_none() && it.b.is_none() && OF_WORK.contains(&it.what.as_str())
    };
    diff.checks.iter().filter(is_unknown).map(|it| it.what.clone()).collect()
}

/// Findings of run A and what became of their savings; none if the runs are not comparable.
pub(super) fn claims(a: &StoredReport, b: &StoredReport, diff: &Diff) -> Vec<Claim> {
    let saved = |stage: &str| saved_ms(&diff.stages, stage);
    let promises = |run: &StoredReport| Promise::of(&run.report.findings);
    claims::claims(&promises(a), &promises(b), saved)
}

/// Time that a stage takes less in run B, if a verdict proves the change.
fn saved_ms(stages: &[Change], stage: &str) -> Option<f64> {
    let row = stages.iter().find(|it| it.stage == stage && it.name == stage)?;
    let is_proven = matches!(row.verdict, ChangeVerdict::Faster | ChangeVerdict::Slower);
    row.a.zip(row.b).filter(|_| is_proven).map(|(a, b)| a.ms - b.ms)
}

/// The claims as a table.
pub(super) fn claims_table(claims: &[Claim]) -> ReportTable {
    let caption = "Findings of run A that run B no longer has, or whose saving is smaller. A \
                   promise is an upper bound; the stage's change includes everything that changed.";
    let columns = ["Finding", "Stage", "#Promised ms", "#Still promised ms", "#Realised ms"];
    let title = "Promised and realised savings";
    let mut table = ReportTable::new("claims", title, caption, &columns);
    for it in claims {
        table.row([
            it.finding.clone(),
            it.stage.clone(),
            ms(it.promised_ms),
            ms(it.remaining_ms),
            ms(it.realised_ms),
        ]);
    }
    table
}

/// Changes of the ledgers: a sentence per stage, and the parts.
pub(super) fn ledger_table(stages: &[LedgerStageChange]) -> ReportTable {
    let columns = ["Cause", "Stage", "Kernel", "Operator", "#A ms", "#B ms", "#Change ms"];
    let summaries: Vec<&str> = stages.iter().map(|it| it.summary.as_str()).collect();
    let caption = format!("{}.", summaries.join("; "));
    let mut table = ReportTable::new("ledger", "Where the time changed", caption, &columns);
    let text = |name: &Option<String>| name.clone().unwrap_or_else(|| UNKNOWN.into());
    for (stage, it) in stages.iter().flat_map(|of| of.changes.iter().map(move |it| (of, it))) {
        let sign = if it.change_ns > 0 { "+" } else { "" };
        let time = |ns: i64| ms(Nanos(ns).as_ms());
        table.row([
            it.cause.as_str().to_owned(),
            stage.stage.clone(),
            text(&it.kernel),
            text(&it.operator),
            time(it.a_ns),
            time(it.b_ns),
            format!("{sign}{}", time(it.change_ns)),
        ]);
    }
    table
        .or_gap("The ledgers are equal.", "Compare runs that differ.")
        .first(ROWS, "the others changed less")
}

/// Bars of the largest changes of stages; empty if nothing changed.
pub(super) fn bars(diff: &Diff) -> String {
    let bars: Vec<Bar> = diff
        .stages
        .iter()
        .filter(|it| it.change_ms != 0.0)
        .take(BARS)
        .map(|it| Bar {
            label: it.name.clone(),
            shown: format!("{}, {}", amount(it), it.verdict.as_str()),
            value: it.change_ms.abs(),
            class: match it.verdict {
                ChangeVerdict::Slower => "k-attention",
                ChangeVerdict::Faster => "prefill",
                _ => "other",
            },
            ..Bar::default()
        })
        .collect();
    if bars.is_empty() {
        return String::new();
    }
    let described: Vec<String> =
        bars.iter().map(|bar| format!("{}: {}", bar.label, bar.shown)).collect();
    svg::bars("change-bars", "Largest changes of stages", &described.join("; "), &bars)
}

#[cfg(test)]
mod tests {
    use llmprof_analyze::compare::{ComparedRun, Measured, RunFigures, diff};

    use super::*;

    fn side(ms: f64) -> ComparedRun {
        let measured = Measured {
            ms,
            noise_ms: Some(0.02),
            calls: None,
            repeats: Some(9),
            std_error_ms: Some(0.01),
            freedom: Some(8.0),
        };
        let still = Measured { ms: 1.0, ..measured };
        let stages: RunFigures = [
            (("decode_all".to_owned(), "decode_all".to_owned()), measured),
            (("prefill".to_owned(), "prefill".to_owned()), still),
        ]
        .into();
        ComparedRun { stages, ..ComparedRun::default() }
    }

    #[test]
    fn a_saving_is_realised_only_by_a_change_with_a_verdict() {
        let saved =
            |b: f64| saved_ms(&diff(vec![], &side(6.0), &side(b), &[]).stages, "decode_all");
        assert!((saved(5.0).unwrap() - 1.0).abs() < 1e-9);
        assert!(saved(6.31).unwrap() < 0.0, "a slower stage");
        assert_eq!(saved(5.999), None, "within noise");
    }

    #[test]
    fn the_verdict_counts_rows_and_names_the_largest_change() {
        let compared = diff(vec![], &side(6.0), &side(6.31), &[]);
        assert_eq!(
            verdict(&compared),
            "Times: 1 slower, 1 within noise; largest: decode_all +0.310 ms (+5.2 %)"
        );
        let chart = bars(&compared);
        assert!(chart.contains("k-attention") && chart.matches("class=\"track\"").count() == 1);
        let same = diff(vec![], &side(6.0), &side(6.0), &[]);
        assert_eq!(verdict(&same), "Times: 2 within noise");
        let empty = diff(vec![], &ComparedRun::default(), &ComparedRun::default(), &[]);
        assert_eq!(verdict(&empty), format!("No verdict: {NO_TIMES}"));
        assert_eq!((bars(&same), same.stages.iter().any(is_changed)), (String::new(), false));
    }
}

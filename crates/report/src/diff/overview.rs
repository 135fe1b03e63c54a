//! The verdict of a comparison in one line, its bars, and its changed rows.

use llmprof_analyze::compare::{
    Change, ChangeVerdict, Diff,
    claims::{self, Claim},
};
use llmprof_core::domain::savings::Promise;

use super::StoredReport;
use crate::{
    charts::svg::{self, Bar},
    format::{decimals, ms},
    tables::ReportTable,
};

/// Drawn changes.
const BARS: usize = 8;

/// True for a row with a verdict other than that nothing changed.
pub(super) fn is_changed(change: &Change) -> bool {
    use ChangeVerdict::{Faster, OnlyInA, OnlyInB, Slower};
    matches!(change.verdict, Faster | Slower | OnlyInA | OnlyInB)
}

/// The verdict in one line: `3 slower, 1 faster, 62 unchanged; largest: decode_all +0.31 ms`.
pub(super) fn verdict(diff: &Diff) -> String {
    let all = || diff.stages.iter().chain(&diff.operators).chain(&diff.kernels);
    if !diff.comparable {
        return "No verdict: the runs are not comparable".into();
    }
    let count = |of: &[ChangeVerdict]| all().filter(|it| of.contains(&it.verdict)).count();
    let mut parts = vec![
        format!("{} slower", count(&[ChangeVerdict::Slower])),
        format!("{} faster", count(&[ChangeVerdict::Faster])),
        format!("{} unchanged", count(&[ChangeVerdict::WithinNoise])),
    ];
    let others = [
        ("of unknown noise", &[ChangeVerdict::Unknown][..]),
        ("in one run only", &[ChangeVerdict::OnlyInA, ChangeVerdict::OnlyInB]),
    ];
    for (name, verdicts) in others {
        let found = count(verdicts);
        parts.extend((found > 0).then(|| format!("{found} {name}")));
    }
    // A stage contains its operators and kernels.
    let tables = [&diff.stages, &diff.operators, &diff.kernels];
    let significant =
        |it: &&Change| matches!(it.verdict, ChangeVerdict::Slower | ChangeVerdict::Faster);
    let largest = tables.iter().find_map(|table| table.iter().find(significant));
    let largest = largest.map_or(String::new(), |it| format!("; largest: {}", sentence(it)));
    parts.join(", ") + &largest
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

/// Bars of the largest changes of stages; empty where nothing changed.
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
            "1 slower, 0 faster, 1 unchanged; largest: decode_all +0.310 ms (+5.2 %)"
        );
        let chart = bars(&compared);
        assert!(chart.contains("k-attention") && chart.matches("class=\"track\"").count() == 1);
        let same = diff(vec![], &side(6.0), &side(6.0), &[]);
        assert_eq!(verdict(&same), "0 slower, 0 faster, 2 unchanged");
        assert_eq!((bars(&same), same.stages.iter().any(is_changed)), (String::new(), false));
    }
}

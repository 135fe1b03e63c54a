//! Bars of the stages, each with a part of it.

use std::collections::BTreeSet;

use llmprof_analyze::{Analysis, stages::StageTiming};
use llmprof_core::domain::units::Nanos;

use super::{
    super::svg::{self, Bar},
    class, drawn,
};
use crate::{
    format::{ms, pct, short_ms},
    waits::Waits,
};

/// Name of the part of a stage that is drawn lighter in its bar, and its milliseconds.
fn part(analysis: &Analysis, row: &StageTiming) -> Option<(&'static str, f64)> {
    let vision = analysis.stages.note("vision").filter(|it| it.inside == row.stage);
    vision.map(|it| ("vision", it.ms.mean)).or_else(|| {
        let wait = Waits::of(&analysis.ledger).of_stage(&row.stage)?;
        Some(("unrecorded wait", Nanos(wait.ns).as_ms()))
    })
}

/// Legend of the lighter parts of all bars.
pub fn part_legend(analysis: &Analysis) -> String {
    let parts = analysis.stages.rows.iter().filter_map(|row| part(analysis, row));
    let names: BTreeSet<&str> = parts.map(|(name, _)| name).collect();
    format!("{}, a part of its stage", Vec::from_iter(names).join(" or "))
}

pub fn stages(analysis: &Analysis) -> String {
    let bar = |row: &StageTiming| Bar {
        label: row.stage.clone(),
        shown: format!("{} ms", short_ms(row.ms.mean))
            + &row.share_pct.map(|share| format!(" · {}", pct(share))).unwrap_or_default(),
        value: row.ms.mean,
        class: class(&row.stage),
        part: part(analysis, row)
            .map(|(name, part_ms)| (format!("{name}: {} ms", ms(part_ms)), part_ms)),
        spread: row.ms.std,
    };
    let bars: Vec<Bar> = analysis.stages.rows.iter().map(bar).collect();
    let described: Vec<String> =
        bars.iter().map(|bar| format!("{} {}", bar.label, bar.shown)).collect();
    drawn(!bars.is_empty(), || {
        svg::bars("stage-bars", "Time per stage", &described.join("; "), &bars)
    })
}

#[cfg(test)]
mod tests {
    use llmprof_analyze::{
        ledger::{Ledger, LedgerCause, LedgerRow},
        stages::{DECODE, PREFILL, StageNote, Stages},
        stats::Spread,
    };

    use super::*;

    #[test]
    fn the_legend_names_exactly_the_parts_that_are_drawn() {
        let spread = |ms| Spread::of([ms]).unwrap();
        let timing = |stage: &str| StageTiming {
            stage: stage.into(),
            ms: spread(10.0),
            share_pct: None,
            tokens: None,
            tokens_per_s: None,
        };
        let wait = |stage: &&str| LedgerRow {
            stage: (*stage).into(),
            cause: LedgerCause::UnrecordedWait,
            ns: 2_000_000,
            step_ns: None,
            share_pct: Some(20.0),
            members: 1,
            largest: None,
            pass: "nsys".into(),
            counter: "calls".into(),
            samples: 1,
            gap_parts: 0,
            max_saving_ns: 0,
            saving_rank: None,
        };
        let note = |inside: &&str| StageNote {
            part: "vision".into(),
            inside: (*inside).into(),
            ms: spread(1.0),
            share_pct: None,
        };
        for (visions, waits) in [
            (&[][..], &[][..]),
            (&[PREFILL], &[]),
            (&[], &[DECODE]),
            (&[], &[PREFILL, DECODE]),
            (&[PREFILL], &[DECODE]),
            // A stage has one part in the chart.
            (&[PREFILL], &[PREFILL]),
        ] {
            let stages = Stages {
                rows: [PREFILL, DECODE].map(timing).into(),
                notes: visions.iter().map(note).collect(),
                ..Stages::default()
            };
            let rows = waits.iter().map(wait).collect();
            let ledger = Ledger { rows, ..Ledger::default() };
            let analysis = Analysis { stages, ledger, ..Analysis::default() };
            let (chart, legend) = (super::stages(&analysis), part_legend(&analysis));
            for name in ["vision", "unrecorded wait"] {
                let is_drawn = chart.contains(&format!("{name}: "));
                assert_eq!(legend.contains(name), is_drawn, "{visions:?} {waits:?}: {legend}");
            }
        }
    }
}

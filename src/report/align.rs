//! An alignment as text: Markdown, HTML, JSON, and what a stored one said before.
//!
//! What passes is decided in [`crate::analyze::align`].

use minijinja::{
    context,
    value::{Serde, Value},
};
use serde::Deserialize;

use super::{
    escape,
    format::{UNKNOWN, count, decimals, known, pct},
    json,
    table::Table,
};
use crate::{
    analyze::align::{Alignment, Check, Row, SideFacts, SidePower, Verdict},
    artifact::layout,
};

/// Places of the sequences shown to people.
const PLACES: usize = 300;

/// Stem of the reports on a stage in the folder of a run: `alignment-prefill`.
pub fn stem(stage: &str) -> String {
    format!("{}-{stage}", layout::ALIGNMENT)
}

/// What a report said before: the whole, and each check.
pub type Previous = (Verdict, Vec<(String, Verdict)>);

/// Reads what the JSON of an alignment said.
pub fn previous(text: &[u8]) -> Result<Previous, serde_json::Error> {
    #[derive(Deserialize)]
    struct Said {
        id: String,
        verdict: Verdict,
    }
    #[derive(Deserialize)]
    struct Before {
        verdict: Verdict,
        checks: Vec<Said>,
    }
    let before: Before = serde_json::from_slice(text)?;
    Ok((before.verdict, before.checks.into_iter().map(|it| (it.id, it.verdict)).collect()))
}

impl Alignment {
    /// For programs.
    pub fn json(&self) -> String {
        json(self)
    }

    /// For people, as text.
    pub fn markdown(&self) -> String {
        self.render("align.md")
    }

    /// For people, as a page.
    pub fn html(&self) -> String {
        self.render("align.html")
    }

    fn render(&self, name: &str) -> String {
        let engine = escape::engine();
        let template = engine.get_template(name).expect("the template is embedded: a test renders it");
        let checks: Vec<Value> = self.checks.iter().map(shown).collect();
        let page = context! {
            verdict => self.verdict.as_str(),
            mock => &self.mock.name,
            e2e => &self.e2e.name,
            stage => self.stage.as_deref().unwrap_or("all but the warm-up"),
            checks => checks,
            tables => Value::from(Serde(self.tables(name.ends_with(".md")))),
            places => Value::from(Serde(self.sequence.iter().take(PLACES).collect::<Vec<_>>())),
            more_places => self.sequence.len().saturating_sub(PLACES),
        };
        template.render(page).expect("the template asks only for what the page holds: a test renders it")
    }

    /// The tables below the checks; the page shows the sequences by a table of its own.
    fn tables(&self, sequences: bool) -> Vec<Table> {
        let mut sides = Table::new("sides", "Isolation", "What was found of the operation.", &["What", "Mock", "End to end"]);
        let (a, b) = (&self.mock, &self.e2e);
        let per = |it: Option<f64>| it.map_or(UNKNOWN.to_owned(), |it| format!("{it:.2}"));
        sides.row(["found by".into(), a.isolated_by.clone(), b.isolated_by.clone()]);
        sides.row(["layers in forwards".into(), count(a.instances), count(b.instances)]);
        sides.row(["left out: warm-up, capture of graphs, other stages".into(), count(a.left_out), count(b.left_out)]);
        sides.row(["kernels".into(), count(a.kernels), count(b.kernels)]);
        sides.row(["kernels per layer and forward".into(), per(a.kernels_per_instance), per(b.kernels_per_instance)]);
        sides.row(["kernels that graphs replayed".into(), count(a.replayed_kernels), count(b.replayed_kernels)]);
        if a.power.or(b.power).is_some() {
            let of = |side: &SideFacts, figure: fn(&SidePower) -> Option<f64>| {
                known(side.power.as_ref().and_then(figure), |it| decimals(it, 1))
            };
            sides.row(["mean power of the GPU, W".into(), of(a, |it| it.mean_w), of(b, |it| it.mean_w)]);
            sides.row(["mean clock of the multiprocessors, MHz".into(), of(a, |it| it.sm_mhz), of(b, |it| it.sm_mhz)]);
            sides.row(["time throttled, %".into(), of(a, |it| it.throttled_pct), of(b, |it| it.throttled_pct)]);
        }

        let caption = "The usual sequence of each side, place by place.";
        let mut sequence = Table::new("sequence", "Kernels side by side", caption, &["#Place", "Same", "Mock", "End to end"]);
        for (at, place) in self.sequence.iter().enumerate() {
            let same = if place.mock.is_some() && place.e2e.is_some() { "=" } else { "DIFFERS" };
            let said = |it: &Option<String>| it.clone().unwrap_or_else(|| UNKNOWN.into());
            sequence.row([(at + 1).to_string(), same.into(), said(&place.mock), said(&place.e2e)]);
        }
        let gap = "A side has no kernels of the operation.";
        let sequence = sequence.or_gap(gap, "The checks above say why.").first(PLACES, "the others are in the JSON");

        let columns = ["Pattern", "Reason", "Impact", "Expires", "Applies", "#Launches, mock", "#Launches, end to end"];
        let mut waivers =
            Table::new("waivers", "Known differences", "Left out of names, counts, geometry and order; never of time.", &columns);
        for it in &self.waivers {
            let applies = if it.expired { "no: expired" } else { "yes" };
            let met = [count(it.mock_launches), count(it.e2e_launches)];
            let text = [it.pattern.clone(), it.reason.clone(), it.impact.clone(), it.expires.clone(), applies.into()];
            waivers.row(text.into_iter().chain(met));
        }
        let mut tables = vec![sides, self.kernel_table()];
        if sequences {
            tables.push(sequence);
        }
        tables.push(waivers.or_gap("None are told.", "Give a file of them where a difference is known and harmless."));
        if let Some(changes) = &self.changes {
            let mut table =
                Table::new("changes", "Since the previous report", "Verdicts that changed.", &["What", "Before", "Now"]);
            changes.iter().for_each(|it| table.row([it.what.clone(), it.mock.clone(), it.e2e.clone()]));
            tables.push(table.or_gap("No verdict changed.", "Nothing needs doing."));
        }
        tables
    }
}

impl Alignment {
    /// Each kernel on both sides.
    fn kernel_table(&self) -> Table {
        let caption = "Mean time of a call with its 95 % interval, microseconds; ratio of the mock's to the whole model's.";
        let columns = [
            "Kernel",
            "#Calls, mock",
            "#Mean, mock",
            "Interval, mock",
            "#Calls, end to end",
            "#Mean, end to end",
            "Interval, end to end",
            "#Share",
            "#Ratio",
            "Interval",
            "Agreement",
            "Note",
        ];
        let mut table = Table::new("kernels", "Kernels", caption, &columns);
        let interval = |it: Option<[f64; 2]>| known(it, |[from, to]| format!("{from:.3} to {to:.3}"));
        for it in &self.kernels {
            let figures = [it.mock, it.e2e].map(|side| {
                [
                    known(side, |side| count(side.calls)),
                    known(side, |side| decimals(side.mean_us, 3)),
                    interval(side.and_then(|side| side.interval_us)),
                ]
            });
            let share = it.e2e.or(it.mock).and_then(|side| side.share_pct);
            let verdict = [
                known(share, pct),
                known(it.ratio, |ratio| decimals(ratio, 3)),
                interval(it.interval),
                it.agreement.as_str().to_owned(),
                it.note(self.triage_ratio),
            ];
            table.row([it.name.clone()].into_iter().chain(figures.into_iter().flatten()).chain(verdict));
        }
        table
            .or_gap("Neither side has kernels of the operation.", "The checks above say why.")
            .first(PLACES, "the others are in the JSON")
    }
}

fn shown(check: &Check) -> Value {
    let mut rows = Table::new("rows", "Evidence", "", &["What", "Mock", "End to end", "Note"]);
    for Row { what, mock, e2e, note } in &check.rows {
        rows.row([what.clone(), mock.clone(), e2e.clone(), note.clone()]);
    }
    context! {
        id => &check.id,
        verdict => check.verdict.as_str(),
        observed => &check.observed,
        threshold => &check.threshold,
        decisive => check.decisive,
        advice => &check.advice,
        rows => Value::from(Serde(rows)),
    }
}

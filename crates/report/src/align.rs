//! Reports of an alignment: Markdown, HTML and JSON, and the verdicts of a stored one.

mod power_rows;

use llmprof_analyze::align::{Alignment, AlignmentCheck, EvidenceRow, SideFacts, Verdict};
use llmprof_core::{domain::alignment::AlignedSide, layout};
use minijinja::{
    context,
    value::{Serde, Value},
};
use serde::Deserialize;

use self::power_rows::power_rows;
use super::{
    engine,
    format::{HALF_INTERVAL, UNKNOWN, count, decimals, known, pct},
    json,
    tables::ReportTable,
};

/// Rows of a table for people.
const MAX_ROWS: usize = 300;
/// Name of a fact, and its field.
type Fact<S, T> = (&'static str, fn(&S) -> T);

const MOCK: &str = AlignedSide::Mock.title();
const WHOLE_MODEL: &str = AlignedSide::WholeModel.title();
/// Meaning of the sides.
const SUBJECT: &str = "The mock is the part that ran alone; it is compared with the same part \
                       inside the whole model.";
const IN_JSON: &str = "the others are in the JSON";

/// Stem of the reports on a stage in the folder of a run: `alignment-prefill`.
pub fn stem(stage: &str) -> String {
    format!("{}-{stage}", layout::ALIGNMENT)
}

/// Verdicts of an earlier report: the overall one, and each check's.
pub type Previous = (Verdict, Vec<(String, Verdict)>);

/// Reads the verdicts in the JSON of an alignment.
pub fn previous(text: &[u8]) -> Result<Previous, serde_json::Error> {
    #[derive(Deserialize)]
    struct StoredVerdict {
        id: String,
        verdict: Verdict,
    }
    #[derive(Deserialize)]
    struct PreviousVerdict {
        verdict: Verdict,
        checks: Vec<StoredVerdict>,
    }
    let before: PreviousVerdict = serde_json::from_slice(text)?;
    Ok((before.verdict, before.checks.into_iter().map(|it| (it.id, it.verdict)).collect()))
}

/// The reports of an alignment.
#[derive(Debug, Clone, Copy)]
pub struct AlignmentReport<'a>(pub &'a Alignment);

impl AlignmentReport<'_> {
    /// For programs.
    pub fn json(&self) -> String {
        json(self.0)
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
        let answer = self.0.answer();
        let checks: Vec<Value> = self.0.checks.iter().map(|it| check_view(it, &answer)).collect();
        let page = context! {
            verdict => self.0.verdict.as_str(),
            answer => answer,
            subject => SUBJECT,
            mock => &self.0.mock.name,
            e2e => &self.0.e2e.name,
            sides => AlignedSide::BOTH.map(AlignedSide::title),
            only => AlignedSide::BOTH.map(only),
            stage => self.0.stage.as_deref().unwrap_or("all except warm-up"),
            checks => checks,
            tables => Value::from(Serde(self.tables(name.ends_with(".md")))),
            places => Value::from(Serde(self.0.sequence.iter().take(MAX_ROWS).collect::<Vec<_>>())),
            more_places => self.0.sequence.len().saturating_sub(MAX_ROWS),
        };
        engine::render(name, page)
    }

    /// The tables below the checks; the page lays out the sequences by itself.
    fn tables(&self, with_sequences: bool) -> Vec<ReportTable> {
        let mut tables = vec![self.sides(), self.kernel_table()];
        if with_sequences {
            tables.push(self.sequences());
        }
        tables.push(self.waiver_table());
        tables.extend(self.change_table());
        tables
    }

    /// Facts about the operation on each side.
    fn sides(&self) -> ReportTable {
        let (a, b) = (&self.0.mock, &self.0.e2e);
        let mut table = ReportTable::new(
            "sides",
            "Isolation",
            format!("Facts about the operation on each side; {HALF_INTERVAL}."),
            &["Fact", MOCK, WHOLE_MODEL],
        );
        let per = |it: Option<f64>| known(it, |it| format!("{it:.2}"));
        let counts: [Fact<SideFacts, u64>; 4] = [
            ("layers in forwards", |it| it.instances),
            ("excluded: warm-up, graph capture, other stages", |it| it.left_out),
            ("kernels", |it| it.kernels),
            ("kernels replayed by graphs", |it| it.replayed_kernels),
        ];
        table.row(["isolated by".into(), a.isolated_by.clone(), b.isolated_by.clone()]);
        for (name, field) in counts {
            table.row([name.to_owned(), count(field(a)), count(field(b))]);
        }
        table.row([
            "kernels per layer and forward".into(),
            per(a.kernels_per_instance),
            per(b.kernels_per_instance),
        ]);
        for row in power_rows(a, b) {
            table.row(row);
        }
        table
    }

    /// The usual sequence of kernels on each side.
    fn sequences(&self) -> ReportTable {
        let mut table = ReportTable::new(
            "sequence",
            "Kernels side by side",
            "The usual sequence of each side, position by position.",
            &["#Position", "Same", MOCK, WHOLE_MODEL],
        );
        for (at, place) in self.0.sequence.iter().enumerate() {
            let same = match (&place.mock, &place.e2e) {
                (Some(_), Some(_)) => "=".to_owned(),
                (Some(_), None) => only(AlignedSide::Mock),
                (None, _) => only(AlignedSide::WholeModel),
            };
            let name = |it: &Option<String>| it.clone().unwrap_or_else(|| UNKNOWN.into());
            table.row([(at + 1).to_string(), same, name(&place.mock), name(&place.e2e)]);
        }
        table
            .or_gap("A side has no kernels of the operation.", "See the checks above.")
            .first(MAX_ROWS, IN_JSON)
    }

    /// Known differences.
    fn waiver_table(&self) -> ReportTable {
        let [of_mock, of_whole] = heads("#Launches");
        let columns =
            ["Pattern", "Reason", "Impact", "Expires", "Applies", &of_mock, &of_whole].map(owned);
        let mut table = ReportTable::new(
            "waivers",
            "Known differences",
            "Excluded from names, counts, launch configurations and order, but not from times.",
            &columns,
        );
        for it in &self.0.waivers {
            let applies = if it.expired { "no: expired" } else { "yes" };
            table.row([
                it.pattern.clone(),
                it.reason.clone(),
                it.impact.clone(),
                it.expires.clone(),
                applies.into(),
                count(it.mock_launches),
                count(it.e2e_launches),
            ]);
        }
        table.or_gap("None are given.", "List differences that are known and harmless in a file.")
    }

    /// Verdicts that changed since the previous report.
    fn change_table(&self) -> Option<ReportTable> {
        let mut table = ReportTable::new(
            "changes",
            "Since the previous report",
            "Verdicts that changed.",
            &["Check", "Before", "Now"],
        );
        for it in self.0.changes.as_ref()? {
            table.row([it.what.clone(), it.mock.clone(), it.e2e.clone()]);
        }
        Some(table.or_gap("No verdict changed.", "No action is needed."))
    }

    /// Each kernel on both sides.
    fn kernel_table(&self) -> ReportTable {
        let [calls, means, intervals] = ["#Calls", "#Mean", "Interval"].map(heads);
        let of_sides = [0, 1].into_iter().flat_map(|at| {
            [&calls, &means, &intervals].map(|heads: &[String; 2]| heads[at].clone())
        });
        let verdict = ["#Share", "#Ratio", "Interval", "Agreement", "Note"].map(owned);
        let columns: Vec<String> =
            ["Kernel".to_owned()].into_iter().chain(of_sides).chain(verdict).collect();
        let caption = "Mean time of a call with its 95 % interval, microseconds; share of the \
                       whole model's time, or of the mock's if only the mock launches the kernel; \
                       ratio of the mock to the whole model.";
        let mut table = ReportTable::new("kernels", "Kernels", caption, &columns);
        let interval =
            |it: Option<[f64; 2]>| known(it, |[from, to]| format!("{from:.3} to {to:.3}"));
        for it in &self.0.kernels {
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
                it.note(self.0.triage_ratio),
            ];
            table.row(
                [it.name.clone()].into_iter().chain(figures.into_iter().flatten()).chain(verdict),
            );
        }
        table
            .or_gap("Neither side has kernels of the operation.", "See the checks above.")
            .first(MAX_ROWS, IN_JSON)
    }
}

/// The heads of a column of each side.
fn heads(of: &str) -> [String; 2] {
    AlignedSide::BOTH.map(|side| format!("{of}, {}", side.name()))
}

fn owned(head: &str) -> String {
    head.to_owned()
}

/// Marks a place of a sequence that the other side lacks.
fn only(side: AlignedSide) -> String {
    format!("{} only", side.name())
}

/// The check without the advice that the `answer` contains.
fn check_view(check: &AlignmentCheck, answer: &str) -> Value {
    let advice = check.advice.as_deref().filter(|advice| !answer.contains(advice));
    let mut rows = ReportTable::new("rows", "Evidence", "", &["Item", MOCK, WHOLE_MODEL, "Note"]);
    for EvidenceRow { what, mock, e2e, note } in &check.rows {
        rows.row([what.clone(), mock.clone(), e2e.clone(), note.clone()]);
    }
    context! {
        id => &check.id,
        verdict => check.verdict.as_str(),
        observed => &check.observed,
        threshold => &check.threshold,
        decisive => check.decisive,
        advice => advice,
        rows => Value::from(Serde(rows)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// An alignment that one check decides, with power on both sides.
    fn alignment() -> Alignment {
        let power = json!({
            "mean_w": 500.0, "mean_w_half_width": 5.0, "energy_j": 2.0, "sm_mhz": 1980.0,
            "throttled_pct": 0.0,
        });
        let side = |name: &str| {
            json!({
                "name": name, "isolated_by": "range", "ranges": 1, "counted": 1, "left_out": 0,
                "instances": 1, "kernels": 2, "kernels_per_instance": 2.0,
                "distinct_sequences": 1, "replayed_kernels": 0, "power": power,
            })
        };
        let check = |id: &str, verdict: &str| {
            json!({
                "id": id, "verdict": verdict, "observed": format!("seen by {id}"),
                "threshold": "all", "decisive": true, "advice": format!("Repair {id}."),
                "rows": [{"what": "gemm", "mock": "1", "e2e": "2", "note": ""}],
            })
        };
        serde_json::from_value(json!({
            "verdict": "fail", "checks": [check("names", "fail"), check("counts", "fail")],
            "stage": "decode", "mock": side("a.sqlite"), "e2e": side("b.sqlite"),
            "latency": null, "kernels": [], "triage_ratio": 2.0,
            "sequence": [{"mock": "gemm", "e2e": null}, {"mock": null, "e2e": "copy"}],
            "waivers": [{
                "pattern": "copy", "reason": "cache", "impact": "none", "expires": "2999-01-01",
                "expired": false, "mock_launches": 0, "e2e_launches": 1,
            }],
            "changes": null,
        }))
        .unwrap()
    }

    #[test]
    fn a_report_names_both_sides_alike_and_states_verdict_and_remedies_once() {
        let alignment = alignment();
        let report = AlignmentReport(&alignment);
        let (markdown, html) = (report.markdown(), report.html());
        let (_, page) = html.split_once("</style>").unwrap();
        for text in [markdown.as_str(), page] {
            for once in ["does not match the whole model", "Repair names.", "Repair counts."] {
                assert_eq!(text.matches(once).count(), 1, "{once} in {text}");
            }
            let lower = text.to_lowercase();
            for other in ["end to end", "e2e", "mock layer", "partial"] {
                assert!(!lower.contains(other), "{other} in {text}");
            }
            for side in AlignedSide::BOTH.map(only) {
                assert!(text.contains(&side), "{side} in {text}");
            }
            assert!(text.contains(" ± ") && text.contains(HALF_INTERVAL), "{text}");
        }
    }
}

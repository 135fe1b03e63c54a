//! Reports of a run: Markdown, HTML with charts, JSON, CSV and Perfetto.
//!
//! Pure: values in, text out; only [`pipeline`] uses files. Text from outside is escaped in every
//! form.

pub mod align;
pub mod answer;
pub mod charts;
pub mod cost;
pub mod diff;
pub mod format;
pub mod gate;
pub mod headline;
pub mod html;
pub mod kernel_names;
mod links;
pub mod part;
pub mod perfetto;
pub mod pipeline;
pub mod profile;
pub mod sweep;
pub mod tables;

mod engine;
pub mod explorer;
mod markdown;
mod narrative;
mod table_place;
mod view;
mod waits;

use minijinja::{
    context,
    value::{Serde, Value},
};
use serde::{Deserialize, Serialize};

pub use self::{
    answer::stored_answer,
    charts::tiles::{Tile, stored_tiles},
    view::MissingStep,
};
use llmprof_analyze::Analysis;
use llmprof_core::{
    domain::{
        command::CommandPlan,
        finding::Finding,
        ids::RunId,
        model::ModelSpec,
        run_files::InputFile,
        state::{RunState, StepRecord},
        subject::RunSpec,
        visible,
    },
    layout,
    trace::{Trace, environment::Environment},
};

use self::{
    charts::figures,
    tables::{CSV_FILES, run_tables},
};

/// Facts about a run in addition to its trace.
#[derive(Debug, Clone, Copy)]
pub struct RunFacts<'a> {
    pub id: RunId,
    pub spec: &'a RunSpec,
    /// The configured model; `None` if another program ran.
    pub model: Option<&'a ModelSpec>,
    pub environment: &'a Environment,
    pub steps: &'a [StepRecord],
    /// Findings of the collection.
    pub findings: &'a [Finding],
    pub inputs: &'a [InputFile],
    /// Hash of the prompts and images.
    pub inputs_sha256: Option<&'a str>,
    /// Stages of a part that was aligned with the whole model.
    pub part: &'a [part::PartStage],
    /// The command that ran in place of the model runner.
    pub command: Option<&'a CommandPlan>,
    /// The final state of the run.
    pub state: RunState,
}

impl RunFacts<'_> {
    /// Returns true for captures that were recorded elsewhere, imported or not.
    fn is_capture(&self) -> bool {
        self.spec.import().is_some()
    }

    /// The program that ran, in one sentence.
    fn description(&self) -> String {
        match (self.model, self.command, self.spec.import()) {
            (Some(model), ..) => model.description.clone(),
            (_, Some(command), _) => {
                format!("A command of this host: {}", command.command_line().join(" "))
            }
            (_, _, Some(import)) => {
                let files: Vec<&str> = import.files.iter().map(|file| file.name.as_str()).collect();
                format!("Imported captures: {}", files.join(", "))
            }
            _ => String::new(),
        }
    }
}

/// Forms of a run's report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportForm {
    Markdown,
    Html,
    Json,
}

impl ReportForm {
    /// Name of the file in the layout.
    pub const fn file(self) -> &'static str {
        match self {
            Self::Markdown => layout::REPORT_MD,
            Self::Html => layout::REPORT_HTML,
            Self::Json => layout::REPORT_JSON,
        }
    }
}

/// Renders one form of a run's report, without the other files.
pub fn render_one(
    form: ReportForm,
    facts: &RunFacts,
    trace: &Trace,
    analysis: &Analysis,
) -> String {
    match form {
        ReportForm::Json => data(facts, trace, analysis),
        ReportForm::Markdown | ReportForm::Html => {
            let page = Value::from(Serde(view::page(facts, trace, analysis, false)));
            engine::render(form.file(), page)
        }
    }
}

/// The text of `report.json`.
fn data(facts: &RunFacts, trace: &Trace, analysis: &Analysis) -> String {
    let report = json(&profile::profile(facts, trace, analysis));
    debug_assert_eq!(answer::unfounded(report.as_bytes()).ok(), Some(vec![]));
    report
}

/// The start of the capture in a stored `report.json`; as a list, which is empty without one.
pub fn stored_capture_time(report: &[u8]) -> Result<Vec<String>, serde_json::Error> {
    #[derive(Deserialize)]
    struct StoredReport {
        environment: Option<Environment>,
    }
    let StoredReport { environment } = serde_json::from_slice(report)?;
    Ok(environment.and_then(|it| it.captured_at).into_iter().collect())
}

/// The first part of a stored `report.json` for a terminal, with the text of the summary; empty if
/// it has none.
pub fn stored_first_page(
    report: &[u8],
    missing: &[MissingStep],
) -> Result<String, serde_json::Error> {
    let answers = stored_answer(report)?;
    let tiles = if answers.is_empty() { vec![] } else { stored_tiles(report)? };
    Ok(answers.iter().map(|answer| answer_page(answer, &tiles, missing)).collect())
}

/// The first part of a report for a terminal.
pub fn first_page(facts: &RunFacts, trace: &Trace, analysis: &Analysis) -> String {
    let tiles = charts::tiles::tiles(analysis);
    let findings = all_findings(facts, trace, analysis);
    answer_page(&answer::of_analysis(facts, analysis, &findings), &tiles, &view::missing(facts))
}

fn answer_page(answer: &answer::Answer, tiles: &[Tile], missing: &[MissingStep]) -> String {
    let (answer, tiles) = (Value::from(Serde(answer)), Value::from(Serde(tiles)));
    let missing = Value::from(Serde(missing));
    engine::render("answer.txt", context! { answer, tiles, missing })
}

/// Renders every file of a run's report: its name in the layout, and its text.
pub fn render(facts: &RunFacts, trace: &Trace, analysis: &Analysis) -> Vec<(&'static str, String)> {
    let page = Value::from(Serde(view::page(facts, trace, analysis, true)));
    let text = |template: &str| engine::render(template, page.clone());
    let report = data(facts, trace, analysis);
    let mut files = vec![
        (layout::REPORT_MD, text("report.md")),
        (layout::REPORT_HTML, text("report.html")),
        (layout::REPORT_JSON, report),
        (layout::SUMMARY_MD, text("stakeholder_summary.md")),
        (layout::OPERATORS_MD, text("operators.md")),
        (layout::KERNELS_MD, text("kernels.md")),
        (layout::KERNELS_JSON, json(&profile::kernels_file(facts, analysis))),
        (layout::GEMMS_MD, text("gemms.md")),
        (layout::GEMMS_JSON, json(&profile::gemms_file(facts, analysis))),
        (layout::STAGES_JSON, json(&profile::stages_file(facts, analysis))),
    ];
    files.extend(table_files(facts, trace, analysis));
    files.extend(analysis.power.as_ref().map(|power| (layout::POWER_JSON, json(power))));
    files.extend(figures::power_drawing(analysis).map(|drawing| (layout::POWER_SVG, drawing)));
    files
}

/// Renders the tables as data: each CSV file, and all tables as lines of JSON.
fn table_files(
    facts: &RunFacts,
    trace: &Trace,
    analysis: &Analysis,
) -> Vec<(&'static str, String)> {
    let findings = all_findings(facts, trace, analysis);
    let tables = run_tables(facts, analysis, &findings);
    let mut files: Vec<(&str, String)> = CSV_FILES
        .into_iter()
        .filter(|(file, _)| *file != layout::POWER_CSV || analysis.power.is_some())
        .filter_map(|(file, name)| {
            Some((file, tables.iter().find(|table| table.name == name)?.csv()))
        })
        .collect();
    files.push((layout::TABLES, tables.iter().map(tables::RunTable::line).collect()));
    files
}

fn json(value: &impl Serialize) -> String {
    visible::pretty_json(value).expect("plain values with string keys always serialise")
}

/// Findings of collection, parsing and analysis: each once, worst first.
pub fn all_findings(facts: &RunFacts, trace: &Trace, analysis: &Analysis) -> Vec<Finding> {
    let mut all: Vec<Finding> = Vec::new();
    for finding in facts.findings.iter().chain(&trace.findings).chain(&analysis.findings) {
        if !all.iter().any(|known| known.id == finding.id && known.message == finding.message) {
            all.push(finding.clone());
        }
    }
    all.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    all
}

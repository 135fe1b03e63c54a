//! A run's report as text: Markdown, HTML with figures, JSON.
//!
//! Pure: from values to strings, with no file, clock or environment. Whatever comes from outside is escaped where it is shown.

pub mod align;
pub mod cost;
pub mod data;
pub mod diff;
pub mod format;
pub mod part;
pub mod perfetto;
pub mod profile;

mod csv;
mod escape;
mod figures;
mod lanes;
mod narrative;
mod scatter;
mod svg;
mod table;
mod tables;
mod timeline;

use minijinja::value::{Serde, Value};
use serde::Serialize;

use crate::{
    analyze::Analysis,
    artifact::layout,
    model::ModelSpec,
    run::{Finding, InputFile, Mode, NOT_APPLICABLE, RunId, RunSpec, RunState, StepRecord, StepState, command::CommandPlan},
    trace::{Trace, environment::Environment},
};
pub use figures::{Tile, stored_tiles};
use table::Table;

/// The reports' style sheet, for pages that look like them.
pub const STYLE: &str = include_str!("templates/style.css");
/// The macro by which a [`Table`] is laid out as HTML.
pub const TABLE_MACRO: &str = include_str!("templates/macros.html");

/// Rows of a table in the reports that have a file of its own.
const TOP_ROWS: usize = 20;
/// Rows of a table in the one-page summary.
const SUMMARY_ROWS: usize = 5;
/// Rows of the longest tables in files of their own.
const ALL_ROWS: usize = 500;

/// What is known of a run beside its trace.
#[derive(Debug, Clone, Copy)]
pub struct RunFacts<'a> {
    pub id: RunId,
    pub spec: &'a RunSpec,
    /// The configured model; `None` where another program ran.
    pub model: Option<&'a ModelSpec>,
    pub environment: &'a Environment,
    pub steps: &'a [StepRecord],
    /// What collection noticed.
    pub findings: &'a [Finding],
    pub inputs: &'a [InputFile],
    /// Of a part that was held to the whole model, its stages.
    pub part: &'a [part::PartStage],
    /// The command that ran in place of a runner of ours.
    pub command: Option<&'a CommandPlan>,
    /// The state in which the run ends.
    pub state: RunState,
}

impl RunFacts<'_> {
    /// What ran, in one sentence.
    fn description(&self) -> String {
        match (self.model, self.command, self.spec.import()) {
            (Some(model), ..) => model.description.clone(),
            (_, Some(command), _) => format!("A command of this host: {}", command.words().join(" ")),
            (_, _, Some(import)) => {
                let files: Vec<&str> = import.files.iter().map(|file| file.name.as_str()).collect();
                format!("Captures taken elsewhere: {}", files.join(", "))
            }
            _ => String::new(),
        }
    }
}

/// Writes every file of a run's report: its name, as the layout gives it, and its text.
pub fn render(facts: &RunFacts, trace: &Trace, analysis: &Analysis) -> Vec<(&'static str, String)> {
    let engine = escape::engine();
    let page = Value::from(Serde(page(facts, trace, analysis)));
    let text = |template: &str| {
        let template = engine.get_template(template).expect("the template is embedded: tests render each of them");
        template.render(page.clone()).expect("the template asks only for what the page holds: tests render each of them")
    };
    let mut files = vec![
        (layout::REPORT_MD, text("report.md")),
        (layout::REPORT_HTML, text("report.html")),
        (layout::REPORT_JSON, json(&profile::profile(facts, trace, analysis))),
        (layout::SUMMARY_MD, text("stakeholder_summary.md")),
        (layout::OPERATORS_MD, text("operators.md")),
        (layout::KERNELS_MD, text("kernels.md")),
        (layout::KERNELS_CSV, csv::kernels(analysis)),
        (layout::KERNELS_FULL_CSV, csv::kernels_full(analysis)),
        (layout::KERNELS_JSON, json(&profile::kernels_file(facts, analysis))),
        (layout::COUNTERS_CSV, csv::counters(analysis)),
        (layout::ROOFLINE_CSV, csv::roofline(analysis)),
        (layout::MFU_CSV, csv::operator_mfu(analysis)),
        (layout::REGIONS_CSV, csv::regions(analysis)),
        (layout::GEMMS_MD, text("gemms.md")),
        (layout::GEMMS_CSV, csv::gemms(analysis)),
        (layout::GEMMS_JSON, json(&profile::gemms_file(facts, analysis))),
        (layout::STAGES_JSON, json(&profile::stages_file(facts, analysis))),
        (layout::TABLES, data::lines(&profile::whole(facts, trace, analysis))),
    ];
    if let Some(power) = &analysis.power {
        files.extend([(layout::POWER_JSON, json(power)), (layout::POWER_CSV, tables::power_csv(power))]);
    }
    files.extend(figures::power_drawing(analysis).map(|drawing| (layout::POWER_SVG, drawing)));
    files
}

fn json(value: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(value).expect("plain values with string keys always serialise");
    text.push('\n');
    text
}

/// Everything that the templates show.
#[derive(Serialize)]
struct Page<'a> {
    id: String,
    name: &'a str,
    description: String,
    mode: Option<&'static str>,
    labels: &'a [String],
    state: &'static str,
    state_means: String,
    times_of: &'static str,
    started: Option<&'a str>,
    tiles: Vec<figures::Tile>,
    figures: figures::Figures,
    /// The six tables, long ones cut for the report.
    six: Vec<Table>,
    /// The six tables, long ones cut for one page.
    brief: Vec<Table>,
    alignment: Table,
    operators: Table,
    kernels: Table,
    modules: Table,
    power: Table,
    operators_by_path: Table,
    stage_kernels: Table,
    kernels_full: Table,
    stage_gpu: Table,
    whole_graphs: Table,
    processes: Table,
    classes: Table,
    api_calls: Table,
    ranges: Table,
    counters: Table,
    roofline: Table,
    operator_mfu: Table,
    regions: Table,
    gemms: Table,
    costs: Table,
    experts: Table,
    overhead: Table,
    inputs: Table,
    decode_step: Table,
    step_slices: Table,
    steps: Table,
    narrative: Vec<String>,
    recommendations: Vec<String>,
    findings: Vec<Finding>,
    missing: Vec<Missing<'a>>,
    /// Whether a part of prefill is vision.
    vision: bool,
}

/// Something that was asked for and could not be collected.
#[derive(Serialize)]
struct Missing<'a> {
    step: &'static str,
    state: &'static str,
    message: &'a str,
}

fn page<'a>(facts: &RunFacts<'a>, trace: &Trace, analysis: &Analysis) -> Page<'a> {
    let six = tables::six(facts, trace, analysis);
    let cut = |limit: usize| -> Vec<Table> {
        let rest = |id: &str| if id == "kernels" { "all are in kernels.md" } else { "all are in operators.md" };
        let long = |table: &Table| matches!(table.id, "operators" | "kernels");
        six.iter().map(|it| if long(it) { it.clone().first(limit, rest(it.id)) } else { it.clone() }).collect()
    };
    let whole = |table: Table| table.first(ALL_ROWS, "the rest are shorter");
    let findings = all_findings(facts, trace, analysis);
    Page {
        id: facts.id.to_string(),
        name: facts.spec.name(),
        description: facts.description(),
        mode: facts.spec.mode().map(Mode::as_str),
        labels: &facts.spec.common.labels,
        state: facts.state.as_str(),
        state_means: state_means(facts),
        times_of: analysis.times_of(),
        started: facts.steps.first().map(|step| step.started_at.as_str()),
        tiles: figures::tiles(analysis),
        figures: figures::figures(analysis),
        six: cut(TOP_ROWS),
        brief: cut(SUMMARY_ROWS),
        alignment: part::table(facts.part),
        operators: whole(tables::operators(analysis)),
        kernels: whole(tables::kernels(facts, trace, analysis)),
        modules: whole(tables::modules(analysis)),
        power: tables::power(facts, analysis),
        operators_by_path: whole(tables::operators_by_path(analysis)),
        stage_kernels: tables::stage_kernels(analysis),
        kernels_full: whole(tables::kernels_full(analysis)),
        stage_gpu: tables::stage_gpu(analysis),
        whole_graphs: tables::whole_graphs(analysis).first(TOP_ROWS, "the rest are shorter"),
        processes: tables::processes(analysis),
        classes: tables::classes(analysis),
        api_calls: tables::api_calls(analysis).first(TOP_ROWS, "the rest are shorter"),
        ranges: tables::ranges(analysis).first(TOP_ROWS, "the rest are shorter"),
        roofline: tables::roofline(analysis).first(TOP_ROWS, "all are in roofline.csv"),
        operator_mfu: tables::operator_mfu(analysis).first(TOP_ROWS, "all are in mfu.csv"),
        regions: tables::regions(analysis).first(TOP_ROWS, "all are in regions.csv"),
        counters: whole(tables::counters(facts, analysis)),
        gemms: whole(tables::gemms(facts, analysis)),
        costs: tables::costs(analysis),
        experts: tables::experts(analysis),
        overhead: tables::outputs_and_overhead(analysis),
        inputs: tables::inputs(facts),
        decode_step: tables::decode_step(analysis),
        step_slices: tables::step_slices(analysis).first(ALL_ROWS, "all are in the table decode_step.slices"),
        steps: tables::steps(facts),
        narrative: narrative::narrative(analysis),
        recommendations: narrative::recommendations(&findings),
        findings,
        missing: missing(facts),
        vision: analysis.stages.note("vision").is_some(),
    }
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

/// What was asked for and could not be collected, with the step's own words.
fn missing<'a>(facts: &RunFacts<'a>) -> Vec<Missing<'a>> {
    let lost = |step: &&StepRecord| matches!(step.state, StepState::Skipped | StepState::Failed | StepState::Cancelled);
    let say = |step: &'a StepRecord| Missing {
        step: step.step.as_str(),
        state: step.state.as_str(),
        message: step.message.as_deref().unwrap_or("The step left no message; its log may tell more."),
    };
    facts.steps.iter().filter(lost).map(say).collect()
}

fn state_means(facts: &RunFacts) -> String {
    let left = facts.findings.iter().find(|finding| finding.id == NOT_APPLICABLE);
    let runs_here = facts.spec.kind().runs_here();
    let means = match facts.state {
        RunState::Succeeded if left.is_some() => "everything that applies was collected",
        RunState::Succeeded if runs_here => "everything requested was collected",
        RunState::Succeeded => "every imported file was read",
        RunState::Partial if runs_here => "some of what was requested could not be collected",
        RunState::Partial => "some of the imported data is missing or unusable",
        RunState::Failed => "the run failed; what it left is shown",
        RunState::Cancelled => "the run was cancelled; what it left is shown",
        RunState::Queued | RunState::Running => "the run has not ended",
    };
    let names = left.map(|finding| finding.evidence.keys().map(String::as_str).collect::<Vec<_>>().join(", "));
    names.map_or_else(|| means.to_owned(), |names| format!("{means}; not applicable here: {names}"))
}

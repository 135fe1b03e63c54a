//! Everything that the templates of a run's report show.

use llmprof_analyze::Analysis;
use llmprof_core::{
    domain::{
        finding::{
            Finding,
            catalogue::{self, FindingId},
        },
        mode::Mode,
        state::{RunState, StepRecord, StepState},
    },
    trace::Trace,
};
use serde::Serialize;

use super::{
    RunFacts, all_findings, answer,
    charts::{figures, tiles},
    links, narrative, part, profile,
    table_place::TablePlace,
    tables::{self, NO_MESSAGE, ReportTable, report_table::Gap},
};

/// Rows of a table in the reports that has a file of its own.
const TOP_ROWS: usize = 20;
/// Rows of a table in the one-page summary.
const SUMMARY_ROWS: usize = 5;
/// Rows of the longest tables in files of their own.
const ALL_ROWS: usize = 500;

/// Values of the templates.
#[derive(Serialize)]
pub(super) struct ReportView<'a> {
    /// `None` for a capture without a run.
    id: Option<String>,
    name: String,
    description: String,
    mode: Option<String>,
    labels: &'a [String],
    state: &'static str,
    state_means: String,
    times_of: &'static str,
    #[serde(flatten)]
    dates: RunDates<'a>,
    tiles: Vec<tiles::Tile>,
    figures: figures::ReportCharts,
    answer: answer::Answer,
    ledger: ReportTable,
    ledger_members: ReportTable,
    ledger_stages: ReportTable,
    /// The six tables, long ones cut for the report.
    six: Vec<ReportTable>,
    /// The six tables, long ones cut for one page.
    brief: Vec<ReportTable>,
    alignment: ReportTable,
    operators: ReportTable,
    kernels: ReportTable,
    modules: ReportTable,
    power: ReportTable,
    samples: ReportTable,
    operators_by_path: ReportTable,
    stage_kernels: ReportTable,
    kernels_full: ReportTable,
    stage_gpu: ReportTable,
    whole_graphs: ReportTable,
    #[serde(flatten)]
    shares: StepTables,
    #[serde(flatten)]
    host: HostTables,
    #[serde(flatten)]
    load: LoadTables,
    collectives: ReportTable,
    ranks: ReportTable,
    processes: ReportTable,
    classes: ReportTable,
    api_calls: ReportTable,
    ranges: ReportTable,
    counters: ReportTable,
    sampled_kernels: ReportTable,
    sampled_stages: ReportTable,
    sampled_operators: ReportTable,
    roofline: ReportTable,
    operator_mfu: ReportTable,
    call_sites: ReportTable,
    regions: ReportTable,
    gemms: ReportTable,
    costs: ReportTable,
    experts: ReportTable,
    memory: ReportTable,
    overhead: ReportTable,
    inputs: ReportTable,
    decode_step: ReportTable,
    step_slices: ReportTable,
    steps: ReportTable,
    narrative: Vec<String>,
    recommendations: Vec<String>,
    findings: Vec<Finding>,
    missing: Vec<MissingStep<'a>>,
    #[serde(flatten)]
    place: TablePlace,
}

/// Dates of a run.
#[derive(Serialize)]
struct RunDates<'a> {
    started: Option<&'a str>,
    /// True for captures that were recorded elsewhere, which `started` imports.
    is_capture: bool,
    /// Start of such a capture, if it states one.
    captured: Option<String>,
}

impl<'a> RunDates<'a> {
    fn of(facts: &RunFacts<'a>, trace: &Trace) -> Self {
        Self {
            started: facts.steps.first().map(|step| step.started_at.as_str()),
            is_capture: facts.is_capture(),
            captured: profile::gather::captured_at(facts, trace),
        }
    }
}

/// A requested step that left no data.
#[derive(Debug, Clone, Serialize)]
pub struct MissingStep<'a> {
    pub step: &'a str,
    pub state: &'a str,
    pub message: &'a str,
}

/// The tables of the HTML report whose rows are linked.
struct LinkedTables {
    six: Vec<ReportTable>,
    ledger_members: ReportTable,
    counters: ReportTable,
    sampled_kernels: ReportTable,
    roofline: ReportTable,
}

impl LinkedTables {
    /// Cuts the tables and links their rows.
    fn of(facts: &RunFacts, analysis: &Analysis, six: &[ReportTable]) -> Self {
        let mut linked = Self {
            six: cut(six, TOP_ROWS),
            ledger_members: tables::ledger_members(analysis)
                .first(TOP_ROWS, "all are in ledger_members.csv"),
            counters: tables::counters(facts, analysis).first(ALL_ROWS, "the rest are shorter"),
            sampled_kernels: tables::sampled_kernels(facts, analysis)
                .first(TOP_ROWS, "all are in sampled_metrics.csv"),
            roofline: tables::roofline(analysis).first(TOP_ROWS, "all are in roofline.csv"),
        };
        linked.link(analysis);
        linked
    }

    fn link(&mut self, analysis: &Analysis) {
        let at = |id: &str| self.six.iter().position(|table| table.id == id);
        let (Some(kernels), Some(operators)) = (at("kernels"), at("operators")) else { return };
        let Ok([kernels, operators]) = self.six.get_disjoint_mut([kernels, operators]) else {
            return;
        };
        let mut others = [
            ("counters", &mut self.counters),
            ("samples", &mut self.sampled_kernels),
            ("roofline", &mut self.roofline),
            ("causes", &mut self.ledger_members),
        ];
        links::link_kernels(analysis, kernels, operators, &mut others);
    }
}

/// All time of a capture, and the steps of an engine.
#[derive(Serialize)]
struct StepTables {
    stage_shares: ReportTable,
    step_times: ReportTable,
    step_batches: ReportTable,
    engine_steps: ReportTable,
}

impl StepTables {
    fn of(analysis: &Analysis, place: &TablePlace) -> Self {
        Self {
            stage_shares: tables::stage_shares(analysis),
            step_times: tables::step_times(analysis),
            step_batches: tables::step_batches(analysis)
                .first(ALL_ROWS, &place.all_in("step_batches")),
            engine_steps: table(tables::engine_steps(analysis), "engine_steps", place),
        }
    }
}

/// Threads on the cores of the host.
#[derive(Serialize)]
struct HostTables {
    host_stages: ReportTable,
    host_takers: ReportTable,
    host_functions: ReportTable,
    host_threads: ReportTable,
}

impl HostTables {
    fn of(analysis: &Analysis, place: &TablePlace) -> Self {
        Self {
            host_stages: tables::host_stages(analysis),
            host_takers: table(tables::host_takers(analysis), "host_cpu.takers", place),
            host_functions: table(tables::host_functions(analysis), "host_cpu.functions", place),
            host_threads: table(tables::host_threads(analysis), "host_cpu.threads", place),
        }
    }
}

/// Tables of the loads of a server.
#[derive(Serialize)]
struct LoadTables {
    request_latency: ReportTable,
    request_loads: ReportTable,
    requests: ReportTable,
}

impl LoadTables {
    fn of(analysis: &Analysis) -> Self {
        Self {
            request_latency: tables::request_latency(analysis),
            request_loads: tables::request_loads(analysis),
            requests: tables::requests(analysis).first(TOP_ROWS, "all are in requests.csv"),
        }
    }
}

/// Cuts a table that has no file of its own.
fn table(table: ReportTable, name: &str, place: &TablePlace) -> ReportTable {
    table.first(TOP_ROWS, &place.all_in(name))
}

/// Gathers the values of the templates; `in_folder` is true if the run's other files are written
/// next to the report.
pub(super) fn page<'a>(
    facts: &RunFacts<'a>,
    trace: &Trace,
    analysis: &Analysis,
    in_folder: bool,
) -> ReportView<'a> {
    let mut six = tables::six(facts, trace, analysis);
    shorten_gaps(&mut six, analysis);
    let place = TablePlace::of(facts, in_folder);
    let all = |table: ReportTable| table.first(ALL_ROWS, "the rest are shorter");
    let top = |table: ReportTable| table.first(TOP_ROWS, "the rest are shorter");
    let findings = all_findings(facts, trace, analysis);
    let answer = answer::of_analysis(facts, analysis, &findings);
    let linked = LinkedTables::of(facts, analysis, &six);
    ReportView {
        id: (!facts.id.0.is_nil()).then(|| facts.id.to_string()),
        name: facts.spec.title(),
        description: facts.description(),
        mode: facts.spec.mode().map(Mode::to_string),
        labels: &facts.spec.common.labels,
        state: facts.state.as_str(),
        state_means: state_means(facts),
        times_of: analysis.times_of(),
        dates: RunDates::of(facts, trace),
        tiles: tiles::tiles(analysis),
        figures: figures::figures(analysis),
        recommendations: narrative::recommendations(&findings, &answer),
        answer,
        ledger: tables::ledger(analysis),
        ledger_members: linked.ledger_members,
        ledger_stages: tables::ledger_stages(analysis),
        brief: cut(&six, SUMMARY_ROWS),
        six: linked.six,
        alignment: part::table(facts.part),
        operators: all(tables::operators(analysis)),
        kernels: all(tables::kernels(facts, trace, analysis)),
        modules: all(tables::modules(analysis)),
        power: tables::power(facts, analysis),
        samples: all(tables::samples(analysis)),
        operators_by_path: all(tables::operators_by_path(analysis)),
        stage_kernels: tables::stage_kernels(analysis),
        kernels_full: all(tables::kernels_full(analysis)),
        stage_gpu: tables::stage_gpu(analysis),
        whole_graphs: top(tables::whole_graphs(analysis)),
        shares: StepTables::of(analysis, &place),
        host: HostTables::of(analysis, &place),
        load: LoadTables::of(analysis),
        collectives: tables::collectives(analysis).first(TOP_ROWS, "all are in collectives.csv"),
        ranks: tables::ranks(analysis).first(TOP_ROWS, "all are in ranks.csv"),
        processes: tables::processes(analysis),
        classes: tables::classes(analysis),
        api_calls: top(tables::api_calls(analysis)),
        ranges: top(tables::ranges(analysis)),
        roofline: linked.roofline,
        operator_mfu: tables::operator_mfu(analysis).first(TOP_ROWS, "all are in mfu.csv"),
        call_sites: table(tables::call_sites(analysis), "call_sites", &place),
        regions: tables::regions(analysis).first(TOP_ROWS, "all are in regions.csv"),
        counters: linked.counters,
        sampled_kernels: linked.sampled_kernels,
        sampled_stages: tables::sampled_stages(analysis),
        sampled_operators: table(tables::sampled_operators(analysis), "sampled_operators", &place),
        gemms: all(tables::gemms(facts, analysis)),
        costs: tables::costs(analysis),
        experts: tables::expert_use(analysis),
        memory: all(tables::memory(analysis)),
        overhead: tables::overhead(analysis),
        inputs: tables::input_files(facts),
        decode_step: tables::decode_step(analysis),
        step_slices: tables::step_slices(analysis)
            .first(ALL_ROWS, &place.all_in("decode_step.slices")),
        steps: tables::run_steps(facts),
        narrative: narrative::narrative(analysis, answer::is_of_cpu(facts, analysis)),
        findings,
        missing: missing(facts),
        place,
    }
}

/// Shortens the gap that all tables of stages have without a stage: a finding has its reason and
/// remedy, and so has the answer if a GPU worked.
fn shorten_gaps(tables: &mut [ReportTable], analysis: &Analysis) {
    const STATED: [FindingId; 2] = [catalogue::NO_STAGES, catalogue::COMMAND_WITHOUT_STAGES];
    let is_stated = analysis.findings.iter().any(|it| STATED.iter().any(|id| it.id == *id));
    if analysis.device_totals.is_none() && !is_stated {
        return;
    }
    let (why, _) = analysis.why_no_stages();
    for gap in tables.iter_mut().filter_map(|it| it.gap.as_mut()).filter(|it| it.why == why) {
        *gap = Gap { why: "No stage was timed.".into(), remedy: String::new() };
    }
}

/// Cuts the long tables.
fn cut(tables: &[ReportTable], limit: usize) -> Vec<ReportTable> {
    let cut = |table: &ReportTable| match table.id {
        "operators" => table.clone().first(limit, "all are in operators.md"),
        "kernels" => table.clone().first(limit, "all are in kernels.md"),
        _ => table.clone(),
    };
    tables.iter().map(cut).collect()
}

/// The requested steps that left no data, each with its message.
pub(super) fn missing<'a>(facts: &RunFacts<'a>) -> Vec<MissingStep<'a>> {
    let lost = |step: &&StepRecord| {
        matches!(step.state, StepState::Skipped | StepState::Failed | StepState::Cancelled)
    };
    let missing = |step: &'a StepRecord| MissingStep {
        step: step.step.as_str(),
        state: step.state.as_str(),
        message: step.message.as_deref().unwrap_or(NO_MESSAGE),
    };
    facts.steps.iter().filter(lost).map(missing).collect()
}

/// Meaning of the run's state.
fn state_means(facts: &RunFacts) -> String {
    let left_out =
        facts.findings.iter().find(|finding| finding.id == catalogue::PASSES_NOT_APPLICABLE);
    let runs_here = facts.spec.kind().runs_here();
    let means = match facts.state {
        RunState::Succeeded if left_out.is_some() => "everything that applies was collected",
        RunState::Succeeded if runs_here => "everything requested was collected",
        RunState::Succeeded => "every imported file was read",
        RunState::Partial if runs_here => "some of the requested data could not be collected",
        RunState::Partial => "some of the imported data is missing or unusable",
        RunState::Failed => "the run failed; its partial data is shown",
        RunState::Cancelled => "the run was cancelled; its partial data is shown",
        RunState::Queued | RunState::Running => "the run has not ended",
    };
    let names = left_out
        .map(|finding| finding.evidence.keys().map(String::as_str).collect::<Vec<_>>().join(", "));
    names.map_or_else(|| means.to_owned(), |names| format!("{means}; not applicable here: {names}"))
}

//! Comparison of two stored reports, as JSON, Markdown and HTML.
//!
//! [`llmprof_analyze::compare`] decides which differences are changes.

mod checks;
mod limit;
mod overview;
mod request_latencies;
mod steps;
mod stored;
mod units;

pub use limit::SlowerVerdict;
use limit::{PER_TOKEN, WHOLE_REPEAT};
use llmprof_analyze::{
    compare::{
        Change, ComparabilityCheck, ComparedRun, Diff, Measured, RunFigures,
        claims::Claim,
        diff,
        ledger::{LedgerStageChange, ledger_changes},
    },
    kernels::{OUTSIDE, StageKernels},
    ledger::{Ledger, LedgerUnit},
    samples::WALL,
    stages::{DECODE, NO_STAGE, StageNote, cold::COLD_PART, in_sentence},
    stats::Spread,
};
use llmprof_core::domain::{ids::RunId, units::Nanos};
use minijinja::{
    context,
    value::{Serde, Value},
};
use serde::{Deserialize, Serialize};
use stored::subject;
pub use stored::{ReadJson, StoredError, StoredReport, stored};
use units::{unit_of, units};

use super::{
    answer::why_unended,
    engine,
    format::{HALF_INTERVAL, UNKNOWN, count, decimals, known, ms, of_interval},
    json,
    profile::LLMProfileReport,
    tables::ReportTable,
};

/// Version of [`RunDiff`]; it grows when a field changes its meaning or is removed.
const DIFF_VERSION: u32 = 2;
/// Rows of a table for people.
const ROWS: usize = 60;

/// Changes from run A to run B.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RunDiff {
    #[cfg_attr(feature = "schema", schema(example = 2))]
    pub schema_version: u32,
    /// Zeros for a capture that `llmprof analyze` read: it has no id, but a name.
    pub a: RunId,
    pub b: RunId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(example = "vllm-h200"))]
    pub a_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(example = "vllm-h200-graphs"))]
    pub b_name: Option<String>,
    /// Earlier runs of the same kind as A, the source of the noise between runs.
    #[serde(default)]
    pub history: Vec<RunId>,
    /// Given runs that are of another kind.
    #[serde(default)]
    pub history_left_out: Vec<LeftOut>,
    pub diff: Diff,
    /// By stage: change of the time by cause and kernel, from the ledgers of both runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub ledger: Vec<LedgerStageChange>,
    /// Findings of A whose promised saving became smaller, with the change of their stage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub claims: Vec<Claim>,
}

/// An earlier run that is not comparable with A.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = DiffLeftOut))]
pub struct LeftOut {
    pub run: RunId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(example = "vllm-h200"))]
    pub name: Option<String>,
    pub why: String,
}

/// Compares two runs by their stored reports; `history` are earlier runs of the same kind as A.
pub fn run_diff(a: &StoredReport, b: &StoredReport, history: &[StoredReport]) -> RunDiff {
    let (mut used, mut history_left_out) = (Vec::new(), Vec::new());
    let is_other = |run: &&StoredReport| {
        run.name().is_some() || [a, b].iter().all(|it| it.report.run_id != run.report.run_id)
    };
    for run in history.iter().filter(is_other) {
        let why: Vec<String> = checks::checks(&a.report, &run.report)
            .iter()
            .filter_map(ComparabilityCheck::obstacle)
            .collect();
        if why.is_empty() {
            used.push(run)
        } else {
            let (run, name) = (run.report.run_id, run.name());
            history_left_out.push(LeftOut { run, name, why: why.join("; ") })
        }
    }
    // Kernels are compared per repeat only if every side knows its repeats.
    let all = || [a, b].into_iter().chain(used.iter().copied());
    let is_cut = |stage: &str| all().any(|run| unit_of(&run.report, stage) == LedgerUnit::Step);
    let unit = |stage: &str| {
        let unit = if is_cut(stage) { LedgerUnit::Step } else { LedgerUnit::Repeat };
        all().all(|run| units(&run.report, stage, unit).is_some()).then_some(unit)
    };
    // The time per token of equally many steps repeats the time of decode.
    let steps = |run: &StoredReport| {
        let it = &run.report.aggregates;
        (it.decode_steps, it.per_token_ms.is_some())
    };
    let is_new = steps(a).0.is_none() || steps(a) != steps(b);
    let has_per_token = is_new && !is_cut(DECODE);
    let side = |run| side(run, has_per_token, &is_cut, &unit);
    let earlier: Vec<ComparedRun> = used.iter().map(|run| side(run)).collect();
    let diff = diff(checks::checks(&a.report, &b.report), &side(a), &side(b), &earlier);
    let claims = overview::claims(a, b, &diff);
    let history = used.iter().map(|run| run.report.run_id).collect();
    RunDiff {
        schema_version: DIFF_VERSION,
        a: a.report.run_id,
        b: b.report.run_id,
        a_name: a.name(),
        b_name: b.name(),
        history,
        history_left_out,
        diff,
        ledger: ledger_changes(&ledger(&a.report), &ledger(&b.report)),
        claims,
    }
}

fn ledger(report: &LLMProfileReport) -> Ledger {
    Ledger {
        stages: report.ledger_stages.clone(),
        rows: report.ledger.clone(),
        members: report.ledger_members.clone(),
    }
}

fn side(
    of: &StoredReport,
    has_per_token: bool,
    is_cut: &impl Fn(&str) -> bool,
    unit: &impl Fn(&str) -> Option<LedgerUnit>,
) -> ComparedRun {
    let report = &of.report;
    let mut stages = RunFigures::new();
    let mut add = |stage: &str, name: &str, measured| {
        _ = stages.insert((stage.into(), name.into()), measured)
    };
    let of_stage = steps::measure_of_stages(report);
    // A whole decode has nothing to be compared with if another recording cuts its decodes.
    for row in report.stages.iter().filter(|it| !is_cut(&it.stage)) {
        add(&row.stage, &row.stage, of_stage(&row.stage, &row.ms));
    }
    for it in report.step_times.iter().filter(|it| it.are_steps() && is_cut(&it.stage)) {
        let name = format!("{}, per step", it.stage);
        add(&it.stage, &name, Measured::over_instances(&it.ms));
    }
    let is_whole = |note: &&StageNote| note.part != COLD_PART && !is_cut(&note.inside);
    for note in report.stage_notes.iter().filter(is_whole) {
        let name = format!("{} (part of {})", note.part, note.inside);
        add(&note.inside, &name, of_stage(&note.part, &note.ms));
    }
    let aggregates = &report.aggregates;
    let per_token_ms = aggregates.per_token_ms.filter(|_| has_per_token);
    let wall_ms = steps::whole_repeat(report).filter(|_| !is_cut(DECODE));
    for (name, of, ms) in [(PER_TOKEN, "", per_token_ms), (WHOLE_REPEAT, WALL, wall_ms)] {
        if let Some(ms) = ms {
            add("", name, of_stage(of, &ms));
        }
    }
    let recording = report.ledger_stages.iter().find(|it| it.stage == NO_STAGE);
    if let Some(ms) = recording.and_then(|it| Spread::of([Nanos(it.measured_ns).as_ms()])) {
        add("", in_sentence(NO_STAGE), Measured::over_repeats(&ms, None));
    }
    for (name, ms) in steps::rows(&report.step_batches) {
        add("", &name, Measured::over_instances(&ms));
    }
    for (name, measured) in request_latencies::rows(&report.request_latency) {
        add("", &name, measured);
    }
    // Parts of decodes are not comparable with each other or with whole ones.
    let operators = report.operator_repeats.iter().filter(|it| !is_cut(&it.stage));
    let operators = operators.map(|it| {
        (
            (it.stage.clone(), format!("{} ({})", it.path, it.op)),
            Measured::over_repeats(&it.ms, Some(it.calls)),
        )
    });
    let mut kernels = RunFigures::new();
    // If the capture lacks kernels of a stage, their sums are not comparable, and neither is what
    // lies outside the stages if one of them has no end.
    let is_unended = why_unended(&report.findings).is_some();
    let partial = |stage: &str| {
        let lacks = |it: &StageKernels| it.stage == stage && it.kernel_ms.is_none();
        report.stage_kernels.iter().any(lacks) || is_unended && [OUTSIDE, ""].contains(&stage)
    };
    for it in
        of.kernels.as_ref().unwrap_or(&report.kernels_topk).iter().filter(|it| !partial(&it.stage))
    {
        let units = unit(&it.stage).and_then(|unit| units(report, &it.stage, unit));
        let measured = Measured::over_calls(&it.launch_ns, units);
        kernels
            .entry((it.stage.clone(), it.kernel_name.clone()))
            .and_modify(|sum| *sum = sum.and(measured))
            .or_insert(measured);
    }
    ComparedRun { stages, operators: operators.collect(), kernels }
}

impl RunDiff {
    /// For programs.
    pub fn json(&self) -> String {
        json(self)
    }

    /// For people, as text.
    pub fn markdown(&self) -> String {
        self.render("diff.md")
    }

    /// For people, as a page.
    pub fn html(&self) -> String {
        self.render("diff.html")
    }

    fn render(&self, name: &str) -> String {
        engine::render(name, self.page())
    }

    /// Values of the templates: `a`, `b`, `from`, `to`, `comparable`, `obstacles`, `unknown`,
    /// `history`, `rule`, `verdict`, `bars`, `tables`, and of the page `changed`, `unchanged` and
    /// `checks`.
    pub fn page(&self) -> Value {
        let obstacles: Vec<String> =
            self.diff.checks.iter().filter_map(ComparabilityCheck::obstacle).collect();
        context! {
            a => self.a.to_string(),
            b => self.b.to_string(),
            from => subject(self.a, self.a_name.as_deref()),
            to => subject(self.b, self.b_name.as_deref()),
            comparable => self.diff.comparable,
            obstacles => obstacles,
            unknown => overview::unknown_facts(&self.diff),
            history => self.history_text(),
            rule => &self.diff.rule,
            verdict => overview::verdict(&self.diff),
            bars => overview::bars(&self.diff),
            tables => Value::from(Serde(self.tables())),
            changed => Value::from(Serde(self.changed())),
        }
    }

    /// The source of the noise between runs.
    fn history_text(&self) -> String {
        let used = match self.history.len() {
            0 => "Noise between runs is not known: there is no other run of the build of A."
                .to_owned(),
            1 => "Noise between runs: from A and 1 other run of its build.".to_owned(),
            n => format!("Noise between runs: from A and {n} other runs of its build."),
        };
        let left_out = self
            .history_left_out
            .iter()
            .map(|it| (subject(it.run, it.name.as_deref()), &it.why))
            .map(|(run, why)| format!(" Excluded: {run} ({why})."));
        used + &left_out.collect::<String>()
    }

    /// The ledgers' difference, and the changed rows of each table that has some.
    fn changed(&self) -> Vec<ReportTable> {
        let changed = |rows: &[Change]| -> Vec<Change> {
            rows.iter().filter(|it| overview::is_changed(it)).cloned().collect()
        };
        let diff = &self.diff;
        let ledger = (!self.ledger.is_empty()).then(|| overview::ledger_table(&self.ledger));
        let tables = [
            ("changed-stages", "Changed stages", changed(&diff.stages)),
            ("changed-operators", "Changed operators", changed(&diff.operators)),
            ("changed-kernels", "Changed kernels", changed(&diff.kernels)),
        ];
        let claims = (!self.claims.is_empty()).then(|| overview::claims_table(&self.claims));
        let tables = tables.into_iter().filter(|(_, _, rows)| !rows.is_empty());
        let tables = tables.map(|(id, title, rows)| {
            table((id, title), "Rows with a verdict; largest change first.", &rows, "")
        });
        ledger.into_iter().chain(claims).chain(tables).collect()
    }

    fn tables(&self) -> Vec<ReportTable> {
        let diff = &self.diff;
        let columns = ["Condition", "A", "B", "Same", "Prevents a verdict"];
        let mut checks =
            ReportTable::new("checks", "Comparability", "Conditions of the two runs.", &columns);
        for it in &diff.checks {
            let same = known(it.same, |same| if same { "same" } else { "different" }.into());
            let text = |value: &Option<String>| value.clone().unwrap_or_else(|| UNKNOWN.into());
            let forbids = if it.forbids { "yes" } else { "no" };
            checks.row([it.what.clone(), text(&it.a), text(&it.b), same, forbids.to_owned()]);
        }
        let of_stages = format!(
            "Milliseconds per repeat: of the unprofiled pass, or of the traced one where a capture \
             is all that there is; {HALF_INTERVAL}."
        );
        let host = format!(
            "Host time of operators per repeat of the unprofiled pass, layers rolled up (*); \
             {HALF_INTERVAL}."
        );
        let device = format!(
            "Device time of kernels per repeat of their stage in the traced pass, per step of a \
             decode that a recording cuts; {HALF_INTERVAL}, by the kernel's own calls. The \
             capture's calls are counted in full, and kernels outside every stage are summed over \
             all calls."
        );
        let remedy = match (&self.a_name, &self.b_name) {
            (None, None) => "Submit both in a mode that collects them; kernels need a GPU.",
            _ => "Record them in both captures; kernels need a GPU.",
        };
        let mut tables = vec![checks];
        tables.extend((!self.ledger.is_empty()).then(|| overview::ledger_table(&self.ledger)));
        tables.extend([
            table(("stages", "Stages"), &of_stages, &diff.stages, remedy),
            table(("operators", "Operators"), &host, &diff.operators, remedy),
            table(("kernels", "Kernels"), &device, &diff.kernels, remedy),
        ]);
        tables
    }
}

/// The time of a side and half of its interval.
fn with_noise(side: Option<Measured>) -> [String; 2] {
    match side.map(|side| (side.ms, side.noise_ms)) {
        Some((time, Some(noise))) if noise > 0.0 => of_interval(time, noise),
        Some((time, noise)) => [ms(time), known(noise, ms)],
        None => [UNKNOWN.into(), UNKNOWN.into()],
    }
}

fn table(
    (id, title): (&'static str, &'static str),
    caption: &str,
    changes: &[Change],
    remedy: &str,
) -> ReportTable {
    let columns = [
        "Name",
        "Stage",
        "#A ms",
        "#± A",
        "#B ms",
        "#± B",
        "#Change ms",
        "#Change",
        "#p",
        "#Calls A",
        "#Calls B",
        "Verdict",
        "Why",
    ];
    let mut table = ReportTable::new(id, title, caption, &columns);
    for it in changes {
        let ([time_a, noise_a], [time_b, noise_b]) = (with_noise(it.a), with_noise(it.b));
        let calls = |side: Option<Measured>| known(side.and_then(|side| side.calls), count);
        let sign = if it.change_ms > 0.0 { "+" } else { "" };
        table.row([
            it.name.clone(),
            if it.stage.is_empty() { UNKNOWN.into() } else { it.stage.clone() },
            time_a,
            noise_a,
            time_b,
            noise_b,
            format!("{sign}{}", ms(it.change_ms)),
            known(it.change_pct, |pct| format!("{sign}{} %", decimals(pct, 1))),
            known(it.p_value, |p| decimals(p, 3)),
            calls(it.a),
            calls(it.b),
            it.verdict.as_str().to_owned(),
            it.reason.clone(),
        ]);
    }
    table.or_gap("Neither run has any.", remedy).first(ROWS, "the others changed less")
}

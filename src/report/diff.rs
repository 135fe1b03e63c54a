//! Two reports side by side: read as they were stored, compared, told in three forms.
//!
//! Knows the schema of reports; what counts as a change is decided in [`crate::analyze::diff`].

use minijinja::{
    context,
    value::{Serde, Value},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    escape,
    format::{UNKNOWN, count, decimals, known, ms},
    json,
    profile::{KernelsFile, LLMProfileReport, SCHEMA_VERSION},
    table::Table,
};
use crate::{
    analyze::{
        cold::COLD_PART,
        diff::{Change, Check, Diff, Figures, Measured, Side, diff},
        kernels::KernelRecord,
    },
    run::RunId,
};

/// Version of [`RunDiff`]; it grows when a field changes its meaning or goes away.
const DIFF_VERSION: u32 = 1;
/// Clocks may differ by this much, percent, before they explain a change.
const CLOCK_PCT: f64 = 5.0;
/// Rows of a table shown to people.
const ROWS: usize = 60;

/// Why a stored report cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    #[error("it is no report of a run: {0}")]
    NotAReport(#[from] serde_json::Error),
    #[error("it has schema version {found}, and {SCHEMA_VERSION} is the newest that is known here")]
    TooNew { found: u64 },
}

/// What one run left for a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    pub report: LLMProfileReport,
    /// All kernels; the report's longest ones stand for them where the table is not there.
    pub kernels: Option<Vec<KernelRecord>>,
}

/// Reads `report.json` and, where there is one, `kernels.json`.
pub fn stored(report: &[u8], kernels: Option<&[u8]>) -> Result<Stored, StoredError> {
    let value: serde_json::Value = serde_json::from_slice(report)?;
    match value["schema_version"].as_u64() {
        Some(found) if found > u64::from(SCHEMA_VERSION) => return Err(StoredError::TooNew { found }),
        _ => {}
    }
    let kernels = kernels.map(serde_json::from_slice::<KernelsFile>).transpose()?;
    Ok(Stored { report: serde_json::from_value(value)?, kernels: kernels.map(|file| file.kernels) })
}

/// What changed from run A to run B.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunDiff {
    #[schema(example = 1)]
    pub schema_version: u32,
    pub a: RunId,
    pub b: RunId,
    pub diff: Diff,
}

/// Compares two runs by what they left.
pub fn run_diff(a: &Stored, b: &Stored) -> RunDiff {
    let diff = diff(checks(&a.report, &b.report), &side(a), &side(b));
    RunDiff { schema_version: DIFF_VERSION, a: a.report.run_id, b: b.report.run_id, diff }
}

fn checks(a: &LLMProfileReport, b: &LLMProfileReport) -> Vec<Check> {
    let call = |it: &LLMProfileReport| serde_json::to_string(it.spec.call()?).ok();
    let both = |what: &str, decides: bool, of: fn(&LLMProfileReport) -> Option<String>| Check::of(what, of(a), of(b), decides);
    let clock = |stage: &str| {
        let of = |it: &LLMProfileReport| it.power.as_ref()?.stages.iter().find(|row| row.stage == stage)?.sm_mhz;
        Check::near(&format!("SM clock in {stage}"), "MHz", (of(a), of(b)), CLOCK_PCT)
    };
    let mut checks = vec![
        both("model", true, |it| it.spec.model().map(str::to_owned)),
        both("parameters", true, |it| it.model.parameters.map(count)),
        both("number format", true, |it| it.model.dtype.clone()),
        both("weights", false, |it| it.model.weights.clone()),
        both("device", true, device),
        both("driver", false, |it| it.environment.driver.clone()),
        both("inputs", true, inputs),
        both("prompt positions", true, |it| it.model.prompt_tokens.map(count)),
        both("decode steps", true, |it| it.aggregates.decode_steps.map(count)),
        both("seed", false, |it| Some(it.spec.workload()?.seed.to_string())),
        both("decode", false, |it| Some(if it.model.decode_graph? { "a replayed CUDA graph" } else { "eager" }.into())),
        both("mode", false, |it| Some(it.spec.mode()?.to_string())),
        both("warm-up and repeats", false, |it| it.spec.passes().map(|it| format!("{} and {}", it.warmup, it.repeats))),
        both("llmprof", false, |it| {
            let commit = it.environment.git_commit.as_deref().map(|commit| format!(", {commit}")).unwrap_or_default();
            Some(format!("{}{commit}", it.environment.llmprof))
        }),
        both("nsys", false, |it| it.environment.nsys.clone()),
        both("ncu", false, |it| it.environment.ncu.clone()),
    ];
    if call(a).or(call(b)).is_some() {
        checks.push(Check::of("command", call(a), call(b), true));
    }
    if a.power.is_some() || b.power.is_some() {
        checks.extend(["prefill", "decode_all"].map(clock));
    }
    checks
}

/// The product that the run was on; of a run on the processor, the processor.
fn device(report: &LLMProfileReport) -> Option<String> {
    let environment = &report.environment;
    let ran_on = environment.device.as_ref().and_then(|device| device.product.clone());
    match report.model.device.as_deref()? {
        "cpu" => Some(format!("cpu: {}, {} usable", environment.cpu.as_deref()?, environment.cpus?)),
        name => ran_on.or_else(|| environment.gpus.first().map(|gpu| gpu.name.clone())).or(Some(name.into())),
    }
}

/// The images by hash, and the manifest's name for the prompt.
fn inputs(report: &LLMProfileReport) -> Option<String> {
    let hashes: Vec<&str> = report.inputs.iter().map(|it| it.sha256.get(..12).unwrap_or(&it.sha256)).collect();
    Some(format!(
        "{} ({})",
        report.spec.workload()?.inputs_manifest,
        if hashes.is_empty() { "no images".into() } else { hashes.join(", ") }
    ))
}

fn side(of: &Stored) -> Side {
    let report = &of.report;
    let mut stages = Figures::new();
    let mut add = |stage: &str, name: &str, measured| _ = stages.insert((stage.into(), name.into()), measured);
    for row in &report.stages {
        add(&row.stage, &row.stage, Measured::over_repeats(&row.ms, None));
    }
    for note in report.stage_notes.iter().filter(|note| note.part != COLD_PART) {
        add(&note.inside, &format!("{} (part of {})", note.part, note.inside), Measured::over_repeats(&note.ms, None));
    }
    let aggregates = &report.aggregates;
    for (name, ms) in [("per token", aggregates.per_token_ms), ("whole pass", aggregates.wall_ms)] {
        if let Some(ms) = ms {
            add("", name, Measured::over_repeats(&ms, None));
        }
    }
    let operators = report
        .operator_repeats
        .iter()
        .map(|it| ((it.stage.clone(), format!("{} ({})", it.path, it.op)), Measured::over_repeats(&it.ms, Some(it.calls))));
    let mut kernels = Figures::new();
    // Where the capture lacks kernels of a stage, sums over them are no figures of it.
    let partial = |stage: &str| report.stage_kernels.iter().any(|it| it.stage == stage && it.kernel_ms.is_none());
    for it in of.kernels.as_ref().unwrap_or(&report.kernels_topk).iter().filter(|it| !partial(&it.stage)) {
        let stage = stages.get(&(it.stage.clone(), it.stage.clone()));
        let measured = Measured::over_calls(&it.launch_ns).at_least_as_noisy(stage);
        kernels.entry((it.stage.clone(), it.kernel_name.clone())).and_modify(|sum| *sum = sum.and(measured)).or_insert(measured);
    }
    Side { stages, operators: operators.collect(), kernels }
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
        let engine = escape::engine();
        let template = engine.get_template(name).expect("the template is embedded: a test renders it");
        template.render(self.page()).expect("the template asks only for what the page holds: a test renders it")
    }

    /// What a template of a comparison shows: `a`, `b`, `comparable`, `forbidding`, `rule`, `tables`.
    pub fn page(&self) -> Value {
        let forbidding: Vec<String> = self.diff.checks.iter().filter(|it| it.forbids).map(|it| it.what.clone()).collect();
        context! {
            a => self.a.to_string(),
            b => self.b.to_string(),
            comparable => self.diff.comparable,
            forbidding => forbidding,
            rule => &self.diff.rule,
            tables => Value::from(Serde(self.tables())),
        }
    }

    fn tables(&self) -> Vec<Table> {
        let diff = &self.diff;
        let columns = ["What", "A", "B", "Same", "Forbids a verdict"];
        let mut checks = Table::new("checks", "Comparability", "What the two runs have in common.", &columns);
        for it in &diff.checks {
            let same = known(it.same, |same| if same { "same" } else { "different" }.into());
            let text = |value: &Option<String>| value.clone().unwrap_or_else(|| UNKNOWN.into());
            let forbids = if it.forbids { "yes" } else { "no" };
            checks.row([it.what.clone(), text(&it.a), text(&it.b), same, forbids.to_owned()]);
        }
        let host = "Host time of operators per repeat of the plain pass, layers rolled up (*).";
        let device = "Kernels of the traced passes, all calls; ± is by how the calls of the one capture and the repeats of their stage vary.";
        vec![
            checks,
            table("stages", "Stages", "Milliseconds per repeat of the plain pass.", &diff.stages),
            table("operators", "Operators", host, &diff.operators),
            table("kernels", "Kernels", device, &diff.kernels),
        ]
    }
}

fn table(id: &'static str, title: &'static str, caption: &str, changes: &[Change]) -> Table {
    let columns =
        ["Name", "Stage", "#A ms", "#± A", "#B ms", "#± B", "#Change ms", "#Change", "#Calls A", "#Calls B", "Verdict", "Why"];
    let mut table = Table::new(id, title, caption, &columns);
    for it in changes {
        let time = |side: Option<Measured>| known(side, |side| ms(side.ms));
        let noise = |side: Option<Measured>| known(side.and_then(|side| side.noise_ms), ms);
        let calls = |side: Option<Measured>| known(side.and_then(|side| side.calls), count);
        let sign = if it.change_ms > 0.0 { "+" } else { "" };
        table.row([
            it.name.clone(),
            if it.stage.is_empty() { UNKNOWN.into() } else { it.stage.clone() },
            time(it.a),
            noise(it.a),
            time(it.b),
            noise(it.b),
            format!("{sign}{}", ms(it.change_ms)),
            known(it.change_pct, |pct| format!("{sign}{} %", decimals(pct, 1))),
            calls(it.a),
            calls(it.b),
            it.verdict.as_str().to_owned(),
            it.reason.clone(),
        ]);
    }
    table.or_gap("Neither run has any.", "Submit both in a mode that collects them.").first(ROWS, "the others changed less")
}

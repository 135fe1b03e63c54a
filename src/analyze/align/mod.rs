//! Whether a mock layer launches what the same layer launches inside the whole model: a verdict with its evidence.
//!
//! Pure: two captures and a question in, an [`Alignment`] out. A side without evidence never passes.

pub mod advice;
pub mod isolate;
pub mod kernel_times;
pub mod latency;
pub mod names;
pub mod settings;

mod checks;
mod conditions;
mod cut;
mod ground;
mod launched;
mod period;
mod ranged;
mod sequence;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use self::{
    checks::Evidence,
    isolate::{Isolated, isolate},
    kernel_times::{KernelTime, kernel_times},
    names::{Names, full_name, has},
    settings::{Operation, Question},
};
use super::power::StagePower;
pub use crate::run::alignment::Verdict;
use crate::{
    run::alignment::CheckSummary,
    trace::{event::Event, nsys::NsysTrace},
};

/// One piece of evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = EvidenceRow)]
pub struct Row {
    pub what: String,
    pub mock: String,
    pub e2e: String,
    pub note: String,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = AlignmentCheck)]
pub struct Check {
    pub id: String,
    pub verdict: Verdict,
    pub observed: String,
    pub threshold: String,
    /// Whether an inconclusive one keeps the whole from passing.
    pub decisive: bool,
    pub rows: Vec<Row>,
    /// What to do where it did not pass.
    pub advice: Option<String>,
}

/// What was found of the operation in one side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = AlignmentSide)]
pub struct SideFacts {
    pub name: String,
    /// How the operation was found.
    pub isolated_by: String,
    /// Ranges in the capture, those in the stage that counts, and the rest, which warmed up or was left out.
    pub ranges: u64,
    pub counted: u64,
    pub left_out: u64,
    /// Layers in forwards that have kernels.
    pub instances: u64,
    pub kernels: u64,
    pub kernels_per_instance: Option<f64>,
    pub distinct_sequences: u64,
    pub replayed_kernels: u64,
    /// Power and clocks in the stage; `null` where they were not sampled.
    #[serde(default)]
    pub power: Option<SidePower>,
}

/// Power and clocks of one side, of the whole GPU in the stage.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = AlignmentPower)]
pub struct SidePower {
    pub mean_w: Option<f64>,
    pub sm_mhz: Option<f64>,
    /// Share of the samples in which the device was slowed down, percent.
    pub throttled_pct: Option<f64>,
}

/// A kernel in the usual sequence of both sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = AlignmentPlace)]
pub struct Place {
    pub mock: Option<String>,
    pub e2e: Option<String>,
}

/// A known difference and what it met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = AlignmentWaived)]
pub struct Waived {
    pub pattern: String,
    pub reason: String,
    pub impact: String,
    pub expires: String,
    /// An expired one does not apply.
    pub expired: bool,
    /// Distinct launches that it took out of the checks.
    pub mock_launches: u64,
    pub e2e_launches: u64,
}

/// The verdict with its evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Alignment {
    pub verdict: Verdict,
    pub checks: Vec<Check>,
    pub stage: Option<String>,
    pub mock: SideFacts,
    pub e2e: SideFacts,
    pub latency: Option<latency::Latency>,
    /// Each kernel on both sides, longest in the whole model first.
    #[serde(default)]
    pub kernels: Vec<KernelTime>,
    /// Ratio from which kernels and latencies are marked as far apart.
    #[serde(default)]
    pub triage_ratio: f64,
    /// The usual sequences side by side.
    pub sequence: Vec<Place>,
    pub waivers: Vec<Waived>,
    /// What changed since the previous report of the pair.
    pub changes: Option<Vec<Row>>,
}

/// One side: a capture, and what a run's folder tells beside it.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    pub name: &'a str,
    pub trace: &'a NsysTrace,
    /// What the runner told; nothing beside a bare capture.
    pub events: &'a [Event],
    /// Power and clocks in the stage.
    pub power: Option<&'a StagePower>,
}

/// Aligns a mock with the whole model.
pub fn align(mock: &Side, e2e: &Side, question: &Question) -> Alignment {
    let stage = question.stage.as_deref();
    let mut names = Names::default();
    let level = question.thresholds.names;
    let keys = [names.of(mock.trace, level), names.of(e2e.trace, level)];
    let found_mock = isolate(mock.trace, &question.operation, stage, &keys[0], None);
    let named = matches!(question.operation, Operation::Range { .. } | Operation::Operator(_));
    let mut found_e2e = None;
    if named {
        // Where only the mock marks the operation, its sequence is looked for.
        found_e2e = Some(isolate(e2e.trace, &question.operation, stage, &keys[1], None))
            .filter(|it| it.ranges > 0 || found_mock.ranges == 0);
    }
    let by_sequence = found_e2e.is_none() && !matches!(question.operation, Operation::Kernels(_));
    let found_e2e = found_e2e.unwrap_or_else(|| {
        let needle: Vec<u32> = found_mock.usual().iter().map(|kind| keys[0][*kind as usize]).collect();
        let operation = if named { &Operation::Sequence } else { &question.operation };
        isolate(e2e.trace, operation, stage, &keys[1], Some(&needle))
    });
    let (waived, waivers) = waivers(question, [mock.trace, e2e.trace]);
    let evidence = Evidence {
        sides: [mock, e2e],
        found: [&found_mock, &found_e2e],
        keys: &keys,
        names: &names.texts,
        waived: &waived,
        by_sequence,
        question,
    };
    let kernels = kernel_times(&evidence);
    let (checks, sequence) = checks::checks(&evidence, &kernels);
    Alignment {
        verdict: overall(&checks),
        checks,
        stage: question.stage.clone(),
        mock: facts(mock, &found_mock),
        e2e: facts(e2e, &found_e2e),
        latency: latency::latency(&found_mock.units, &found_e2e.units),
        kernels,
        triage_ratio: question.thresholds.triage_ratio,
        sequence,
        waivers,
        changes: None,
    }
}

/// Says whether every other check stands on this one.
fn ground(check: &&Check) -> bool {
    ["complete", "isolation"].contains(&check.id.as_str())
}

/// Without whole captures and an operation in both, a difference may be the capture's: nothing is decided.
fn overall(checks: &[Check]) -> Verdict {
    let inconclusive = |check: &&Check| check.decisive && check.verdict == Verdict::Inconclusive;
    if checks.iter().filter(ground).any(|check| check.verdict == Verdict::Inconclusive) {
        return Verdict::Inconclusive;
    }
    if checks.iter().any(|check| check.verdict == Verdict::Fail) {
        return Verdict::Fail;
    }
    if checks.iter().any(|check| inconclusive(&check)) { Verdict::Inconclusive } else { Verdict::Pass }
}

fn facts(side: &Side, found: &Isolated) -> SideFacts {
    let instances = found.units.len() as u64;
    SideFacts {
        name: side.name.to_owned(),
        isolated_by: found.how.clone(),
        ranges: found.ranges,
        counted: found.counted,
        left_out: found.ranges - found.counted,
        instances,
        kernels: found.kernels,
        kernels_per_instance: (instances > 0).then(|| found.kernels as f64 / instances as f64),
        distinct_sequences: found.forms.len() as u64,
        replayed_kernels: found.replayed,
        power: side.power.map(|it| SidePower { mean_w: it.mean_w, sm_mhz: it.sm_mhz, throttled_pct: it.throttled_pct }),
    }
}

/// Which kinds of launches of each side are waived, and what each waiver met.
fn waivers(question: &Question, traces: [&NsysTrace; 2]) -> ([Vec<bool>; 2], Vec<Waived>) {
    let mut waived = traces.map(|trace| vec![false; trace.kernels.kinds().len()]);
    let told = question.waivers.iter().map(|waiver| {
        let expired = waiver.expires < question.today;
        let mut met = [0u64; 2];
        for (side, trace) in traces.iter().enumerate().filter(|_| !expired) {
            for (at, kind) in trace.kernels.kinds().iter().enumerate() {
                if has(&waiver.pattern, full_name(trace, kind.full_name, kind.name)) {
                    waived[side][at] = true;
                    met[side] += 1;
                }
            }
        }
        Waived {
            pattern: waiver.pattern.clone(),
            reason: waiver.reason.clone(),
            impact: waiver.impact.clone(),
            expires: waiver.expires.clone(),
            expired,
            mock_launches: met[0],
            e2e_launches: met[1],
        }
    });
    let told = told.collect();
    (waived, told)
}

impl Alignment {
    /// The checks that the verdict rests on where it is no pass: those that fail, or those that could not be made.
    pub fn decisive(&self) -> impl Iterator<Item = &Check> {
        let is = |check: &&Check| check.verdict == self.verdict && check.decisive && self.verdict != Verdict::Pass;
        let grounded = self.checks.iter().filter(ground).any(|check| check.verdict == Verdict::Inconclusive);
        self.checks.iter().filter(is).filter(move |check| !grounded || ground(check))
    }

    /// The checks without their evidence.
    pub fn summary(&self) -> Vec<CheckSummary> {
        let short = |it: &Check| CheckSummary {
            id: it.id.clone(),
            verdict: it.verdict,
            observed: it.observed.clone(),
            threshold: it.threshold.clone(),
            decisive: it.decisive,
            advice: it.advice.clone(),
        };
        self.checks.iter().map(short).collect()
    }

    /// Notes what changed since `previous`.
    pub fn since(&mut self, previous: &[(String, Verdict)], verdict: Verdict) {
        let row = |what: &str, before: Option<Verdict>, now: Option<Verdict>| {
            let said = |it: Option<Verdict>| it.map_or("not checked", Verdict::as_str).to_owned();
            (before != now).then(|| Row { what: what.into(), mock: said(before), e2e: said(now), note: String::new() })
        };
        let before = |id: &str| previous.iter().find(|it| it.0 == id).map(|it| it.1);
        let mut rows: Vec<Row> = row("whole alignment", Some(verdict), Some(self.verdict)).into_iter().collect();
        rows.extend(self.checks.iter().filter_map(|it| row(&it.id, before(&it.id), Some(it.verdict))));
        let gone = previous.iter().filter(|it| !self.checks.iter().any(|check| check.id == it.0));
        rows.extend(gone.filter_map(|it| row(&it.0, Some(it.1), None)));
        self.changes = Some(rows);
    }
}

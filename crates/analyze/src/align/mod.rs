//! Alignment: a verdict, with its evidence, on whether a mock layer launches the same kernels as
//! the layer inside the whole model.
//!
//! Pure: two captures and a question in, an [`Alignment`] out. A side without evidence never
//! passes.

pub mod advice;
pub mod kernel_times;
pub mod latency;
pub mod names;
pub mod operation_instances;
mod segment_by_sequence;
pub mod settings;

mod checks;
mod launched;
mod period;
mod ranged;
mod sequence;

use serde::{Deserialize, Serialize};

use self::{
    checks::AlignmentEvidence,
    kernel_times::{KernelTime, kernel_times},
    names::{NameNumbers, full_name, has},
    settings::{Operation, Question},
};
use super::power::StagePower;
use crate::align::operation_instances::{AlignedCapture, IsolatedOperation, isolate};
pub use llmprof_core::domain::alignment::Verdict;
use llmprof_core::{
    domain::alignment::{self, CheckSummary, is_precondition},
    trace::{event::Event, timeline::Timeline},
};

/// One piece of evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EvidenceRow {
    pub what: String,
    pub mock: String,
    pub e2e: String,
    pub note: String,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AlignmentCheck {
    pub id: String,
    pub verdict: Verdict,
    pub observed: String,
    pub threshold: String,
    /// An inconclusive check keeps the alignment from passing.
    pub decisive: bool,
    pub rows: Vec<EvidenceRow>,
    /// Remedy if the check did not pass.
    pub advice: Option<String>,
}

/// The operation on one side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = AlignmentSide))]
pub struct SideFacts {
    pub name: String,
    /// Method of isolating the operation.
    pub isolated_by: String,
    /// Ranges in the capture, those in the counted stage, and the rest: warm-up or excluded.
    pub ranges: u64,
    pub counted: u64,
    pub left_out: u64,
    /// Layers in forwards that have kernels.
    pub instances: u64,
    pub kernels: u64,
    pub kernels_per_instance: Option<f64>,
    pub distinct_sequences: u64,
    pub replayed_kernels: u64,
    /// Power and clocks in the stage; `null` if not sampled.
    #[serde(default)]
    pub power: Option<SidePower>,
}

/// Power and clocks of the whole GPU in the stage, on one side.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = AlignmentPower))]
pub struct SidePower {
    pub mean_w: Option<f64>,
    /// Half of the 95 % interval of `mean_w`; the interval of `energy_j` has the same relative
    /// width. `null` if the samples do not suffice.
    #[serde(default)]
    pub mean_w_half_width: Option<f64>,
    /// Joules of the whole GPU in one instance of the stage.
    #[serde(default)]
    pub energy_j: Option<f64>,
    pub sm_mhz: Option<f64>,
    /// Share of the samples in which the device was throttled, percent.
    pub throttled_pct: Option<f64>,
    /// Work that the figures cover; joules of different work are not comparable. `null` if the
    /// program does not state it.
    #[serde(default)]
    pub scope: Option<PowerScope>,
}

/// Work that the power of a side covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = AlignmentPowerScope))]
#[serde(rename_all = "snake_case")]
pub enum PowerScope {
    /// The part, which runs alone. Back to back its caches are warm.
    Part,
    /// All layers and the head of the model.
    WholeModel,
}

impl PowerScope {
    /// The scope of the model runner's events; `None` for other programs.
    fn of(events: &[Event]) -> Option<Self> {
        let start = events.iter().find_map(|event| match event {
            Event::Start(start) => Some(start),
            _ => None,
        });
        start.map(|it| if it.target.is_some() { Self::Part } else { Self::WholeModel })
    }
}

/// A place in the usual sequences of both sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = AlignmentPlace))]
pub struct KernelPlace {
    pub mock: Option<String>,
    pub e2e: Option<String>,
}

/// A known difference and the launches that it covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(as = AlignmentWaived))]
pub struct WaivedDifference {
    pub pattern: String,
    pub reason: String,
    pub impact: String,
    pub expires: String,
    /// An expired one does not apply.
    pub expired: bool,
    /// Distinct launches that it excludes from the checks.
    pub mock_launches: u64,
    pub e2e_launches: u64,
}

/// The verdict with its evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Alignment {
    pub verdict: Verdict,
    pub checks: Vec<AlignmentCheck>,
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
    pub sequence: Vec<KernelPlace>,
    pub waivers: Vec<WaivedDifference>,
    /// Changes since the previous report of the pair.
    pub changes: Option<Vec<EvidenceRow>>,
}

/// One side: a capture, and the data of a run folder next to it.
#[derive(Debug, Clone, Copy)]
pub struct AlignmentSide<'a> {
    pub name: &'a str,
    pub trace: &'a Timeline,
    /// Events of the runner; empty for a bare capture.
    pub events: &'a [Event],
    /// Power and clocks in the stage.
    pub power: Option<&'a StagePower>,
}

/// Aligns a mock with the whole model.
pub fn align(mock: &AlignmentSide, e2e: &AlignmentSide, question: &Question) -> Alignment {
    let stage = question.stage.as_deref();
    let mut names = NameNumbers::default();
    let level = question.thresholds.names;
    let keys = [names.of(mock.trace, level), names.of(e2e.trace, level)];
    let captures = [mock.trace, e2e.trace].map(AlignedCapture::of);
    let isolate_mock = |needle: Option<&[u32]>| {
        isolate(&captures[0], &question.operation, stage, &keys[0], needle)
    };
    let mut found_mock = isolate_mock(None);
    let named = matches!(question.operation, Operation::Range { .. } | Operation::Operator(_));
    let mut found_e2e = None;
    if named {
        // If only the mock marks the operation, its sequence is searched for.
        found_e2e = Some(isolate(&captures[1], &question.operation, stage, &keys[1], None))
            .filter(|it| it.ranges > 0 || found_mock.ranges == 0);
    }
    let by_sequence = found_e2e.is_none() && !matches!(question.operation, Operation::Kernels(_));
    let found_e2e = found_e2e.unwrap_or_else(|| {
        let needle: Vec<u32> =
            found_mock.usual().iter().map(|kind| keys[0][*kind as usize]).collect();
        if !named {
            // One rule cuts both sides: where the mock repeats is known only now.
            found_mock = isolate_mock(Some(&needle));
        }
        let operation = if named { &Operation::Sequence } else { &question.operation };
        isolate(&captures[1], operation, stage, &keys[1], Some(&needle))
    });
    let (waived, waivers) = waivers(question, [mock.trace, e2e.trace]);
    let evidence = AlignmentEvidence {
        sides: [mock, e2e],
        captures: &captures,
        operations: [&found_mock, &found_e2e],
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
        latency: latency::latency(&found_mock.instances, &found_e2e.instances),
        kernels,
        triage_ratio: question.thresholds.triage_ratio,
        sequence,
        waivers,
        changes: None,
    }
}

/// The verdict of all checks. Without complete captures and the operation on both sides, a
/// difference may be the capture's, so the verdict is inconclusive.
fn overall(checks: &[AlignmentCheck]) -> Verdict {
    let inconclusive =
        |check: &&AlignmentCheck| check.decisive && check.verdict == Verdict::Inconclusive;
    let blocks =
        |it: &AlignmentCheck| is_precondition(&it.id) && it.verdict == Verdict::Inconclusive;
    if checks.iter().any(blocks) {
        return Verdict::Inconclusive;
    }
    if checks.iter().any(|check| check.verdict == Verdict::Fail) {
        return Verdict::Fail;
    }
    if checks.iter().any(|check| inconclusive(&check)) {
        Verdict::Inconclusive
    } else {
        Verdict::Pass
    }
}

fn facts(side: &AlignmentSide, found: &IsolatedOperation) -> SideFacts {
    let instances = found.instances.len() as u64;
    SideFacts {
        name: side.name.to_owned(),
        isolated_by: found.isolated_by.clone(),
        ranges: found.ranges,
        counted: found.counted,
        left_out: found.ranges - found.counted,
        instances,
        kernels: found.kernels,
        kernels_per_instance: (instances > 0).then(|| found.kernels as f64 / instances as f64),
        distinct_sequences: found.sequences.len() as u64,
        replayed_kernels: found.replayed,
        power: side.power.map(|it| SidePower {
            mean_w: it.mean_w,
            mean_w_half_width: it.mean_w_half_width,
            energy_j: it.energy_j,
            sm_mhz: it.sm_mhz,
            throttled_pct: it.throttled_pct,
            scope: PowerScope::of(side.events),
        }),
    }
}

/// The waived kinds of launches of each side, and the launches that each waiver covers.
fn waivers(question: &Question, traces: [&Timeline; 2]) -> ([Vec<bool>; 2], Vec<WaivedDifference>) {
    let mut waived = traces.map(|trace| vec![false; trace.kernels.kinds().len()]);
    let known = question.waivers.iter().map(|waiver| {
        let expired = waiver.expires < question.today;
        let mut covered = [0u64; 2];
        for (side, trace) in traces.iter().enumerate().filter(|_| !expired) {
            for (at, kind) in trace.kernels.kinds().iter().enumerate() {
                if has(&waiver.pattern, full_name(trace, kind.full_name, kind.name)) {
                    waived[side][at] = true;
                    covered[side] += 1;
                }
            }
        }
        WaivedDifference {
            pattern: waiver.pattern.clone(),
            reason: waiver.reason.clone(),
            impact: waiver.impact.clone(),
            expires: waiver.expires.clone(),
            expired,
            mock_launches: covered[0],
            e2e_launches: covered[1],
        }
    });
    let known = known.collect();
    (waived, known)
}

impl Alignment {
    /// The verdict in a sentence, with the observation that decides it and its remedy.
    pub fn answer(&self) -> String {
        alignment::answer(self.verdict, &self.summary())
    }

    /// The checks without their evidence.
    pub fn summary(&self) -> Vec<CheckSummary> {
        let short = |it: &AlignmentCheck| CheckSummary {
            id: it.id.clone(),
            verdict: it.verdict,
            observed: it.observed.clone(),
            threshold: it.threshold.clone(),
            decisive: it.decisive,
            advice: it.advice.clone(),
        };
        self.checks.iter().map(short).collect()
    }

    /// Records the changes since `previous`.
    pub fn record_changes(&mut self, previous: &[(String, Verdict)], verdict: Verdict) {
        let row = |what: &str, before: Option<Verdict>, now: Option<Verdict>| {
            let text = |it: Option<Verdict>| it.map_or("not checked", Verdict::as_str).to_owned();
            (before != now).then(|| EvidenceRow {
                what: what.into(),
                mock: text(before),
                e2e: text(now),
                note: String::new(),
            })
        };
        let before = |id: &str| previous.iter().find(|it| it.0 == id).map(|it| it.1);
        let mut rows: Vec<EvidenceRow> =
            row("alignment", Some(verdict), Some(self.verdict)).into_iter().collect();
        rows.extend(
            self.checks.iter().filter_map(|it| row(&it.id, before(&it.id), Some(it.verdict))),
        );
        let gone = previous.iter().filter(|it| !self.checks.iter().any(|check| check.id == it.0));
        rows.extend(gone.filter_map(|it| row(&it.0, Some(it.1), None)));
        self.changes = Some(rows);
    }
}

//! The gap ledger: for each stage, the time that the hardware needs at least, the named causes of
//! the rest, and what no evidence explains. The rows add up to the measured time in nanoseconds.
//!
//! Times of the device are from the traced pass, scaled to one repeat of the unprofiled pass. The
//! difference of the two passes is a row of its own and the only one that may be negative.
//! `specs/formulas.md` has the formulas.

mod cause;
mod causes;
mod evidence;
mod few_steps;
mod floors;
mod gaps;
pub mod host_copies;
mod kernel_floors;
mod long_launches;
mod missing_figures;
mod necessary;
mod other_work;
mod part_names;
mod rows;
mod sampled_values;
mod savings;
mod scale;
mod stage_floors;
mod step_floors;
mod work;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::{
    cause::LedgerCause,
    evidence::{SAMPLED_PASS, tile_fills},
    few_steps::{FewSteps, StepOfCause, varying},
    gaps::{CauseOsCalls, CauseRanges},
    necessary::work,
    rows::length_of,
    savings::launch_ns,
    step_floors::step_floors,
};

use llmprof_core::{
    domain::{dtype::Dtype, finding::catalogue, named_values::named_values},
    trace::{framework::TimelineTool, timeline::Timeline},
};

use self::{
    evidence::KernelEvidence, floors::Rates, missing_figures::ModelState, necessary::NecessaryWork,
    rows::StageRows, stage_floors::stage_floors,
};
use super::{
    Analysis,
    collectives::KernelWait,
    roofline::ceilings::DeviceCeilings,
    timeline::gpu::split::{WindowSplit, WindowSplits},
};
use crate::stages::{DECODE, STAGES};

named_values! {
    /// Source of a floor.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    FloorOf {
        /// FLOPs and bytes of the model's operators.
        Model = "model",
        /// FLOPs and bytes counted in the kernels: what they do, not what is necessary.
        Kernels = "kernels",
    }
}

named_values! {
    /// The part of a program whose time a stage of the ledger has.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    #[derive(Default)]
    LedgerUnit {
        /// One repeat of the stage.
        #[default]
        Repeat = "repeat",
        /// One decode step: every decode is cut by the recording.
        Step = "step",
    }
}

/// One stage of the ledger. Times are nanoseconds of one unit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LedgerStage {
    pub stage: String,
    /// Mean of the unprofiled repeats; of the traced ones if there is no other pass.
    pub measured_ns: i64,
    /// Time on the GPU in the traced pass; `None` without a timeline.
    pub traced_ns: Option<i64>,
    /// Decode steps of one unit.
    pub steps: Option<u64>,
    #[serde(default)]
    pub unit: LedgerUnit,
    /// Units that a capture alone shows; `None` for timed repeats, which each have the stage.
    #[serde(default)]
    pub instances: Option<u64>,
    /// `None` if no floor is known.
    pub floor_of: Option<FloorOf>,
    pub floor_ns: Option<i64>,
    /// `measured_ns / floor_ns`; `None` also if the floor is of a part of the work.
    pub times_floor: Option<f64>,
    /// `measured` on this device, of the `datasheet` or, of bytes, recorded in the `capture`;
    /// `None` if unknown or not used.
    pub flops_ceiling: Option<String>,
    pub bytes_ceiling: Option<String>,
    /// Operators whose kernels took less than their floor, which is then their time, and the
    /// difference.
    pub capped_operators: u64,
    pub capped_ns: i64,
    /// Part of the floor that could overlap: operators limited by FLOPs next to those limited by
    /// bytes. Not subtracted.
    pub overlap_ns: i64,
    /// Share of the kernel time whose kernels have counters or samples, percent.
    pub evidence_pct: Option<f64>,
    /// Figures that are missing, each with its remedy.
    pub missing: Vec<String>,
}

/// Min share of a stage, percent, of an unrecorded wait that is named.
const NAMED_WAIT_PCT: f64 = 1.0;

/// One cause in one stage, over all its kernels or gaps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LedgerRow {
    pub stage: String,
    pub cause: LedgerCause,
    pub ns: i64,
    /// Nanoseconds of one decode step.
    pub step_ns: Option<f64>,
    /// Share of the measured time, percent.
    pub share_pct: Option<f64>,
    /// Kernels or gaps of the row, and the largest of them.
    pub members: u64,
    pub largest: Option<String>,
    /// Pass and counters of the evidence.
    pub pass: String,
    pub counter: String,
    /// Profiled launches, samples of the GPU or gaps. A gap is counted by its largest cause.
    pub samples: u64,
    /// Parts of gaps that another cause or member counts.
    #[serde(default)]
    pub gap_parts: u64,
    /// Upper bound of what removing the cause saves; 0 for rows that are not causes. If ranks wait
    /// for one another in the stage, the saving on the rank with the most.
    pub max_saving_ns: i64,
    /// That rank, if it has more of the cause than the others.
    #[serde(default)]
    pub saving_rank: Option<u32>,
}

impl LedgerRow {
    /// True for an unrecorded wait that is long enough to be named: figures are without it.
    pub fn is_named_wait(&self) -> bool {
        let is_long = |pct: f64| (NAMED_WAIT_PCT..=100.0).contains(&pct);
        self.cause == LedgerCause::UnrecordedWait && self.share_pct.is_some_and(is_long)
    }
}

/// A kernel or gap of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LedgerMember {
    pub stage: String,
    pub cause: LedgerCause,
    /// Path, layers rolled up; `None` outside all operators. For a long call of the host, the
    /// operator or function.
    pub operator: Option<String>,
    /// The kernel or copy; for a gap, the work that ended before it.
    pub kernel: Option<String>,
    /// Name of the kernel with its arguments; `None` of a copy, graph or gap.
    #[serde(default)]
    pub full_name: Option<String>,
    pub grid: Option<[u32; 3]>,
    pub block: Option<[u32; 3]>,
    /// Launches or gaps of one repeat.
    pub calls: f64,
    pub ns: i64,
    pub share_pct: Option<f64>,
    /// Pass of the evidence.
    pub pass: String,
    pub samples: u64,
    /// Parts of gaps that another member counts, as traced.
    #[serde(default)]
    pub gap_parts: u64,
    /// The figures that prove the cause.
    pub evidence: String,
    pub max_saving_ns: i64,
    /// The longest of its gaps and parts of gaps, as traced; `None` for a kernel.
    #[serde(default)]
    pub longest_ns: Option<i64>,
}

/// The ledgers of all stages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ledger {
    pub stages: Vec<LedgerStage>,
    /// By stage, in the order of [`LedgerCause`].
    pub rows: Vec<LedgerRow>,
    /// By stage and cause, largest first.
    pub members: Vec<LedgerMember>,
}

impl Ledger {
    /// The same ledger, of a timeline by another profiler than nsys.
    pub fn recorded_by(mut self, tool: TimelineTool) -> Self {
        if tool != TimelineTool::Nsys {
            let passes = self.rows.iter_mut().map(|it| &mut it.pass);
            for pass in passes.chain(self.members.iter_mut().map(|it| &mut it.pass)) {
                *pass = pass.replace(TimelineTool::Nsys.as_str(), tool.as_str());
            }
        }
        self
    }

    /// The rows of one stage.
    pub fn of_stage<'a>(&'a self, stage: &'a str) -> impl Iterator<Item = &'a LedgerRow> {
        self.rows.iter().filter(move |it| it.stage == stage)
    }

    /// The named wait of a stage.
    pub fn named_wait(&self, stage: &str) -> Option<&LedgerRow> {
        self.rows.iter().find(|it| it.stage == stage && it.is_named_wait())
    }

    /// Part of a stage without its named wait, above 0 to 1: shares and savings are of this part.
    pub fn own_part(&self, stage: &str) -> f64 {
        let wait = self.named_wait(stage);
        let pct = wait.and_then(|it| it.share_pct).filter(|pct| *pct < 100.0);
        1.0 - pct.unwrap_or(0.0) / 100.0
    }

    /// The causes of one stage, largest saving first: tracing lengthens gaps.
    pub fn causes<'a>(&'a self, stage: &'a str) -> Vec<&'a LedgerRow> {
        let mut causes: Vec<&LedgerRow> =
            self.of_stage(stage).filter(|it| it.cause.is_cause() && it.ns > 0).collect();
        causes.sort_by_key(|it| std::cmp::Reverse((it.max_saving_ns, it.ns)));
        causes
    }

    /// The members of one row, largest first.
    pub fn members<'a>(
        &'a self,
        stage: &'a str,
        cause: LedgerCause,
    ) -> impl Iterator<Item = &'a LedgerMember> {
        self.members.iter().filter(move |it| it.stage == stage && it.cause == cause)
    }
}

/// Inputs that are not part of the analysis.
pub struct LedgerInput<'a> {
    pub nsys: Option<&'a Timeline>,
    pub splits: &'a WindowSplits,
    /// Work by stage and operator; `None` if the model is unknown.
    pub work: Option<NecessaryWork>,
    /// Dtype of the model; `None` if it is unknown.
    pub dtype: Option<Dtype>,
    pub ceilings: &'a DeviceCeilings<'a>,
    /// Waiting of collective operations by stage and kernel.
    pub waits: &'a BTreeMap<(String, u32), KernelWait>,
    /// Share of the tiles of GEMM kernels with results, percent, by stage, kernel and grid.
    pub tile_fill: evidence::TileFills,
    /// Least time of a kernel launch, nanoseconds: no change of the kernel saves it.
    pub launch_ns: i64,
}

/// Computes the ledger of every stage with a time.
pub fn ledger(analysis: &Analysis, input: &LedgerInput) -> Ledger {
    let rates = Rates::of(input.dtype, input.ceilings, input.nsys);
    let gpu = input.nsys.and_then(|nsys| nsys.target.gpus.first());
    let evidence = KernelEvidence::of(analysis, input, gpu);
    let ranks = analysis.collectives.ranks.iter().map(|it| (it.device, it.rank)).collect();
    let mut names: Vec<&str> = STAGES.to_vec();
    let measured = input.splits.stages.iter().map(|it| it.stage.as_str());
    names.extend(measured.filter(|it| !STAGES.contains(it)));
    let advice = catalogue::STATED_MODEL_REFUTED.advice.unwrap_or_default();
    let model = match analysis.why_refuted() {
        Some(why) => ModelState::Refuted(format!("{why} {advice}")),
        None if analysis.stated.is_some() || input.work.is_some() => ModelState::Known,
        None => ModelState::Unstated,
    };
    let mut ledger = Ledger::default();
    for stage in names {
        let split = input.splits.stages.iter().find(|it| it.stage == stage);
        let split = split.filter(|_| is_complete(analysis, stage));
        let Some(times) = StageTimes::of(analysis, stage, split) else { continue };
        let floors = stage_floors(analysis, &times, input, &rates);
        if times.split.is_none() && !floors.is_model {
            continue;
        }
        let rows = StageRows {
            times: &times,
            floors: &floors,
            model: &model,
            evidence: &evidence,
            rates: &rates,
            launch_ns: input.launch_ns,
            ranks: &ranks,
        };
        rows.add_to(input, &mut ledger);
    }
    ledger
}

/// True if the timeline of the stage is complete and attributed.
fn is_complete(analysis: &Analysis, stage: &str) -> bool {
    let total = analysis.stage_gpu.totals.iter().find(|it| it.stage == stage);
    total.is_some_and(|it| it.busy_ms.is_some())
}

/// Factor from the sum over all windows of a stage to the mean window of one instance on one GPU.
/// If instances overlap on a GPU, its window has their common time once.
fn mean_window(split: &WindowSplit) -> scale::Fraction {
    let [all, once] = [split.instances_ns, split.window_ns].map(|ns| ns.max(0) as u64);
    scale::Fraction::new(1, split.windows).times(scale::Fraction::new(all, once))
}

/// Measured and traced time of one stage.
struct StageTimes<'a> {
    stage: &'a str,
    measured_ns: i64,
    steps: Option<u64>,
    /// Recorded decode steps, if the recording cuts every decode: a step is then the repeat.
    cut_steps: Option<u64>,
    split: Option<&'a WindowSplit>,
    /// Factor from the sum over all traced windows to one repeat.
    scale: scale::Fraction,
    is_only_traced: bool,
}

impl<'a> StageTimes<'a> {
    fn of(analysis: &Analysis, stage: &'a str, split: Option<&'a WindowSplit>) -> Option<Self> {
        let row = analysis.stages.row(stage);
        let cut_steps = analysis.stages.steps_as_repeats(stage).filter(|_| split.is_some());
        let steps = match cut_steps {
            Some(_) => Some(1),
            None => analysis.stages.decode_steps.filter(|_| stage == DECODE),
        };
        let overhead = analysis.overhead.iter().find(|it| it.stage == stage);
        let traced_steps = overhead.and_then(|it| it.steps);
        let (steps_of_repeat, steps_of_window) = steps.zip(traced_steps).unwrap_or((1, 1));
        let whole_ns = row.map(|row| (row.ms.mean * 1e6).round() as i64);
        // The sums have parts of decodes that the recording cuts; the measured time does not.
        let has_parts = stage == DECODE && analysis.only_traced && analysis.stages.cut_steps > 0;
        let scale = split.map_or_else(Default::default, |it| match whole_ns {
            Some(ns) if has_parts => {
                scale::Fraction::new(ns.max(0) as u64, it.window_ns.max(0) as u64)
            }
            _ => {
                let steps = scale::Fraction::new(steps_of_repeat, steps_of_window);
                let of_steps = cut_steps.map(|steps| scale::Fraction::new(it.instances, steps));
                steps.times(mean_window(it)).times(of_steps.unwrap_or_default())
            }
        });
        let traced_ns = split.map(|it| scale.of(it.window_ns));
        let measured_ns = whole_ns.or(traced_ns)?;
        let is_only_traced = analysis.only_traced || row.is_none();
        (measured_ns > 0).then_some(Self {
            stage,
            measured_ns,
            steps,
            cut_steps,
            split,
            scale,
            is_only_traced,
        })
    }
}

#[cfg(test)]
mod tests;

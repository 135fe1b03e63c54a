//! `report.json`: the whole report for programs, under a versioned schema.
//!
//! Holds what analysis and collection said, and formats nothing. Every number is finite; what is not known is `null`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{RunFacts, narrative};
use crate::{
    analyze::{
        Analysis,
        command::CommandTiming,
        cost::Cost,
        counters::CounterRecord,
        experts::ExpertUse,
        gemms::GemmRecord,
        gpu::StageGpu,
        graphs::WholeGraph,
        kernels::{ClassRecord, FullKernelRecord, KernelRecord, StageKernels},
        mfu::{Ceilings, MfuRecord, OperatorMfu},
        operators::OperatorRecord,
        outputs::OutputCheck,
        overhead::OverheadRecord,
        power::Power,
        processes::{ProcessKernel, ProcessRange, ProcessStage},
        regions::Region,
        repeats::OperatorRepeats,
        roofline::Roofline,
        stages::{StageNote, StageTiming},
        stats::Spread,
        step::StepTimeline,
        sums::{CallSum, RangeSum},
    },
    run::{Finding, InputFile, Mode, RunId, RunSpec, RunState, StepRecord},
    trace::{Trace, environment::Environment, event::ImageViews, stage::StageRules},
};

/// Version of [`LLMProfileReport`]; it grows when a field changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 2;

/// Records kept of a long table; its `*_total` says how many there were.
const TOP: usize = 200;

/// A run's report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LLMProfileReport {
    #[schema(example = 2)]
    pub schema_version: u32,
    pub run_id: RunId,
    /// State of the run as it ended.
    pub state: RunState,
    /// `null` of captures that were taken elsewhere.
    pub mode: Option<Mode>,
    pub model: ModelIdentity,
    pub environment: Environment,
    pub spec: RunSpec,
    pub aggregates: Aggregates,
    /// One record per stage. Vision is no stage: it is in `stage_notes`.
    pub stages: Vec<StageTiming>,
    pub stage_notes: Vec<StageNote>,
    /// Operators and modules, rolled up over layers, longest total first.
    pub operators: Vec<OperatorRecord>,
    /// Records there were before the list was cut.
    pub operators_total: u64,
    /// The same per layer, longest total first.
    pub operators_by_path: Vec<OperatorRecord>,
    /// Records there were before the list was cut.
    pub operators_by_path_total: u64,
    /// How the time of each operator spreads over the repeats, layers rolled up: the noise of a comparison.
    #[serde(default)]
    pub operator_repeats: Vec<OperatorRepeats>,
    /// Kernels by stage and name, longest total first, warm-up left out.
    pub kernels_topk: Vec<KernelRecord>,
    /// Records there were before the list was cut.
    pub kernels_total: u64,
    /// Kernels by stage and full name, longest total first, warm-up and set-up left out.
    #[serde(default)]
    pub kernels_full: Vec<FullKernelRecord>,
    pub stage_kernels: Vec<StageKernels>,
    /// What the GPUs did in each stage of the traced pass, summed over GPUs; none where no GPU was used.
    #[serde(default)]
    pub stage_gpu: Vec<StageGpu>,
    /// The same for each GPU by itself; none where one GPU did everything.
    #[serde(default)]
    pub stage_gpu_devices: Vec<StageGpu>,
    /// CUDA graphs of the traced pass that were traced as a whole, longest first.
    #[serde(default)]
    pub whole_graphs: Vec<WholeGraph>,
    /// One decode step, slice by slice; `null` where none is told apart.
    #[serde(default)]
    pub decode_step: Option<StepTimeline>,
    /// What each process did on each device, by stage of the traced pass.
    #[serde(default)]
    pub processes: Vec<ProcessStage>,
    /// Kernels of each process on each device, longest first; empty where one process was on one device.
    #[serde(default)]
    pub process_kernels: Vec<ProcessKernel>,
    /// Ranges of each process, longest first; empty where one process alone has ranges.
    #[serde(default)]
    pub process_ranges: Vec<ProcessRange>,
    /// Kernel time by stage and class.
    #[serde(default)]
    pub kernel_classes: Vec<ClassRecord>,
    /// Share of kernel time whose class is known, percent.
    #[serde(default)]
    pub classified_pct: Option<f64>,
    /// CUDA calls of the traced pass by name, longest first.
    #[serde(default)]
    pub api_calls: Vec<CallSum>,
    /// Ranges of the traced pass by domain and name, longest first.
    #[serde(default)]
    pub ranges: Vec<RangeSum>,
    /// Whether all times are of the traced pass, because there was no plain one.
    #[serde(default)]
    pub only_traced: bool,
    /// Which ranges of the capture are stages and which count, where others than the standard ones were named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_rules: Option<CaptureRules>,
    /// What ncu read, by kernel and geometry, longest in the timeline first.
    #[serde(default)]
    pub counters: Vec<CounterRecord>,
    /// Profiled kernels under the device's roofs.
    #[serde(default)]
    pub roofline: Roofline,
    /// Named ranges of the traced pass with the kernels and counters inside, longest first.
    #[serde(default)]
    pub regions: Vec<Region>,
    /// Matrix products by stage and shape, most operations first.
    #[serde(default)]
    pub gemms: Vec<GemmRecord>,
    /// Utilisation per scope: each stage, and `model`.
    pub mfu: Vec<MfuRecord>,
    /// Utilisation per operator, layers rolled up, longest first.
    #[serde(default)]
    pub operator_mfu: Vec<OperatorMfu>,
    pub ceilings: Option<Ceilings>,
    pub costs: Option<Cost>,
    pub experts: Vec<ExpertUse>,
    pub overhead: Vec<OverheadRecord>,
    /// Energy, power and clocks; `null` where no GPU was sampled.
    pub power: Option<Power>,
    pub outputs: OutputCheck,
    /// The narrative, a sentence each.
    pub notes: Vec<String>,
    /// Worst first.
    pub findings: Vec<Finding>,
    pub inputs: Vec<InputFile>,
    pub steps: Vec<StepRecord>,
}

/// Which ranges of a capture are stages, and which count.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CaptureRules {
    /// `STAGE=RANGE` or `STAGE=RANGE@DOMAIN`; none where stages have their standard names.
    #[schema(example = json!(["prefill=ctx@vllm", "decode_all=decode_all", "decode_all=decode"]))]
    pub stages: Vec<String>,
    /// Only what lies in ranges of these names counts; all does when there is none.
    pub within: Vec<String>,
    /// Nothing in ranges of these names counts.
    pub without: Vec<String>,
}

/// The model as it was configured and built.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelIdentity {
    /// `null` of a command, and of captures whose sender named none, as is the description.
    #[schema(example = "deepseek-ocr-tiny")]
    pub name: Option<String>,
    pub description: Option<String>,
    /// As built; `null` when the runner did not get that far, as are the fields below.
    pub parameters: Option<u64>,
    pub weight_bytes: Option<u64>,
    /// `synthetic` or `loaded`.
    #[schema(example = "synthetic")]
    pub weights: Option<String>,
    #[schema(example = "f32")]
    pub dtype: Option<String>,
    /// `cpu` or `cuda:INDEX`.
    #[schema(example = "cpu")]
    pub device: Option<String>,
    /// Whether decode replayed a captured CUDA graph.
    pub decode_graph: Option<bool>,
    pub prompt_tokens: Option<u64>,
    /// Part of `prompt_tokens`.
    pub image_tokens: Option<u64>,
    /// How each image was cut.
    #[schema(value_type = Vec<Object>)]
    pub images: Vec<ImageViews>,
}

/// Figures over all measured repeats of the unprofiled pass; of the traced one where `only_traced`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Aggregates {
    /// Measured repeats.
    pub repeats: u32,
    /// Wall times of a command from outside; absent where a runner of ours ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandTiming>,
    /// Stage to milliseconds per repeat.
    pub stage_ms: BTreeMap<String, Spread>,
    /// Time to the first token.
    pub first_token_ms: Option<Spread>,
    /// Decode's time over its steps.
    pub per_token_ms: Option<Spread>,
    /// Both stages, from the first's start to the last's end.
    pub wall_ms: Option<Spread>,
    /// Decode steps per second of decode.
    pub decode_tokens_per_s: Option<Spread>,
    /// All tokens made, per second of the whole pass.
    pub tokens_per_s: Option<Spread>,
    pub decode_steps: Option<u64>,
    /// Peak resident memory of the runner.
    pub peak_rss_bytes: Option<u64>,
    /// Peak device memory; `null` on the CPU.
    pub peak_device_bytes: Option<u64>,
}

/// `stages.json`: the stages and the aggregates alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StagesFile {
    pub schema_version: u32,
    pub run_id: RunId,
    pub aggregates: Aggregates,
    pub stages: Vec<StageTiming>,
    pub stage_notes: Vec<StageNote>,
    /// Mean over repeats of each decode step, in order.
    pub decode_step_ms: Vec<f64>,
}

/// `kernels.json`: every kernel by stage and name, and the counters by geometry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KernelsFile {
    pub schema_version: u32,
    pub run_id: RunId,
    pub stages: Vec<StageKernels>,
    pub kernels: Vec<KernelRecord>,
    pub counters: Vec<CounterRecord>,
}

/// `gemms.json`: every matrix product by stage and shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GemmsFile {
    pub schema_version: u32,
    pub run_id: RunId,
    /// Decode steps of the logged pass.
    pub decode_steps: u64,
    pub gemms: Vec<GemmRecord>,
}

/// Gathers the report of one run, long lists cut.
pub fn profile(facts: &RunFacts, trace: &Trace, analysis: &Analysis) -> LLMProfileReport {
    gather(facts, trace, analysis, TOP)
}

/// Gathers the report of one run with its lists whole.
pub fn whole(facts: &RunFacts, trace: &Trace, analysis: &Analysis) -> LLMProfileReport {
    gather(facts, trace, analysis, usize::MAX)
}

fn gather(facts: &RunFacts, trace: &Trace, analysis: &Analysis, limit: usize) -> LLMProfileReport {
    let kernels: Vec<KernelRecord> = analysis.kernels.measured().cloned().collect();
    LLMProfileReport {
        schema_version: SCHEMA_VERSION,
        run_id: facts.id,
        state: facts.state,
        mode: facts.spec.mode(),
        model: identity(facts, analysis),
        environment: facts.environment.clone(),
        spec: facts.spec.clone(),
        aggregates: aggregates(analysis),
        stages: analysis.stages.rows.clone(),
        stage_notes: analysis.stages.notes.clone(),
        operators: top(&analysis.operators.rolled, limit),
        operators_total: analysis.operators.rolled.len() as u64,
        operators_by_path: top(&analysis.operators.by_path, limit),
        operators_by_path_total: analysis.operators.by_path.len() as u64,
        operator_repeats: top(&analysis.operator_repeats, limit),
        kernels_topk: top(&kernels, limit),
        kernels_total: kernels.len() as u64,
        kernels_full: analysis.kernels.measured_full().take(limit).cloned().collect(),
        stage_kernels: analysis.kernels.stages.clone(),
        stage_gpu: analysis.stage_gpu.totals.clone(),
        stage_gpu_devices: analysis.stage_gpu.devices.clone(),
        whole_graphs: top(&analysis.graphs, limit),
        decode_step: analysis.step.clone(),
        processes: analysis.processes.stages.clone(),
        process_kernels: top(&analysis.processes.kernels, limit),
        process_ranges: top(&analysis.processes.ranges, limit),
        kernel_classes: analysis.kernels.classes.clone(),
        classified_pct: analysis.kernels.classified_pct,
        api_calls: top(&analysis.sums.calls, limit),
        ranges: top(&analysis.sums.ranges, limit),
        only_traced: analysis.only_traced,
        stage_rules: trace.nsys.as_ref().and_then(|nsys| stage_rules(&nsys.rules)),
        counters: top(&analysis.counters, limit),
        roofline: Roofline { points: top(&analysis.roofline.points, limit), ..analysis.roofline.clone() },
        regions: top(&analysis.regions, limit),
        gemms: top(&analysis.gemms.records, limit),
        mfu: analysis.mfu.rows.clone(),
        operator_mfu: top(&analysis.mfu.operators, limit),
        ceilings: analysis.mfu.ceilings.clone(),
        costs: analysis.cost.clone(),
        experts: analysis.experts.clone(),
        overhead: analysis.overhead.clone(),
        power: analysis.power.clone(),
        outputs: analysis.outputs,
        notes: narrative::narrative(analysis),
        findings: super::all_findings(facts, trace, analysis),
        inputs: facts.inputs.to_vec(),
        steps: facts.steps.to_vec(),
    }
}

/// The stages of one run.
pub fn stages_file(facts: &RunFacts, analysis: &Analysis) -> StagesFile {
    StagesFile {
        schema_version: SCHEMA_VERSION,
        run_id: facts.id,
        aggregates: aggregates(analysis),
        stages: analysis.stages.rows.clone(),
        stage_notes: analysis.stages.notes.clone(),
        decode_step_ms: analysis.stages.step_curve_ms.clone(),
    }
}

/// The kernels of one run.
pub fn kernels_file(facts: &RunFacts, analysis: &Analysis) -> KernelsFile {
    KernelsFile {
        schema_version: SCHEMA_VERSION,
        run_id: facts.id,
        stages: analysis.kernels.stages.clone(),
        kernels: analysis.kernels.measured().cloned().collect(),
        counters: analysis.counters.clone(),
    }
}

/// The matrix products of one run.
pub fn gemms_file(facts: &RunFacts, analysis: &Analysis) -> GemmsFile {
    let gemms = &analysis.gemms;
    GemmsFile { schema_version: SCHEMA_VERSION, run_id: facts.id, decode_steps: gemms.decode_steps, gemms: gemms.records.clone() }
}

/// The rules of a capture; `None` for the standard ones.
fn stage_rules(rules: &StageRules) -> Option<CaptureRules> {
    let standard = StageRules::default();
    if (&rules.stages, &rules.within, &rules.without) == (&standard.stages, &standard.within, &standard.without) {
        return None;
    }
    let named = rules.stages != standard.stages;
    let stages = rules.stages.iter().filter(|_| named).map(ToString::to_string).collect();
    Some(CaptureRules { stages, within: rules.within.clone(), without: rules.without.clone() })
}

fn identity(facts: &RunFacts, analysis: &Analysis) -> ModelIdentity {
    let start = analysis.start.as_ref();
    ModelIdentity {
        name: facts.spec.model().map(str::to_owned),
        description: facts.model.map(|it| it.description.clone()),
        parameters: start.map(|it| it.parameters),
        weight_bytes: start.map(|it| it.weight_bytes),
        weights: start.map(|it| it.weights.clone()),
        dtype: start.map(|it| it.dtype.clone()),
        device: start.map(|it| it.device.clone()),
        decode_graph: start.map(|it| it.decode_graph),
        prompt_tokens: start.map(|it| it.prompt_tokens),
        image_tokens: start.map(|it| it.image_tokens),
        images: start.map(|it| it.images.clone()).unwrap_or_default(),
    }
}

fn aggregates(analysis: &Analysis) -> Aggregates {
    let stages = &analysis.stages;
    Aggregates {
        repeats: stages.repeats,
        command: analysis.command.clone(),
        stage_ms: stages.rows.iter().map(|row| (row.stage.clone(), row.ms)).collect(),
        first_token_ms: stages.first_token_ms,
        per_token_ms: stages.per_token_ms,
        wall_ms: stages.wall_ms,
        decode_tokens_per_s: stages.decode_tokens_per_s,
        tokens_per_s: stages.tokens_per_s,
        decode_steps: stages.decode_steps,
        peak_rss_bytes: analysis.end.as_ref().map(|end| end.peak_rss_bytes),
        peak_device_bytes: analysis.end.as_ref().and_then(|end| end.peak_device_bytes),
    }
}

fn top<T: Clone>(records: &[T], limit: usize) -> Vec<T> {
    records.iter().take(limit).cloned().collect()
}

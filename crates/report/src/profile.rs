//! `report.json`: the whole report for programs, under a versioned schema.
//!
//! Numbers are unformatted and finite; unknown figures are `null`.

pub(crate) mod gather;

use std::collections::BTreeMap;

use llmprof_analyze::{
    collectives::{CollectiveRecord, RankRecord},
    cost::Cost,
    host_cpu::HostCpuTables,
    kernels::{
        ClassRecord, FullKernelRecord, KernelRecord, StageKernels,
        call_sites::CallSite,
        counters::CounterRecord,
        gemms::GemmRecord,
        nsys_sums::{CallSum, RangeSum},
    },
    ledger::{LedgerMember, LedgerRow, LedgerStage},
    memory::MemoryRecord,
    operators::OperatorRecord,
    power::Power,
    requests::{LatencyRecord, LoadRecord, RequestRow},
    roofline::{
        Roofline,
        mfu::{Ceilings, MfuRecord, OperatorMfu},
    },
    sampled::{
        coverage::GpuSampleCoverage,
        figures::{SampledKernel, SampledOperator, SampledStage},
    },
    samples::{SampleSpread, SampleTiming},
    stages::{
        StageNote, StageTiming, command::CommandTiming, experts::ExpertUse,
        output_equality::OutputCheck, overhead::OverheadRecord, repeat_medians::RepeatMedians,
        repeats::OperatorRepeats, step_times::StepTimes,
    },
    stats::Spread,
    step_batches::StepBatch,
    timeline::{
        decode_timeline::StepTimeline,
        device_totals::DeviceTotals,
        engine_steps::EngineStepRecord,
        gpu::StageGpu,
        graphs::WholeGraph,
        processes::{ProcessKernel, ProcessRange, ProcessStage},
        regions::Region,
        time_shares::StageShare,
    },
};
use llmprof_core::{
    domain::{
        finding::Finding,
        ids::RunId,
        mode::Mode,
        run_files::InputFile,
        state::{RunState, StepRecord},
        subject::RunSpec,
    },
    trace::{environment::Environment, event::ImageViews},
};
use serde::{Deserialize, Serialize};

pub use self::gather::{gemms_file, kernels_file, profile, stages_file};

/// Version of [`LLMProfileReport`]; it grows when a field changes its meaning or is removed.
pub const SCHEMA_VERSION: u32 = 3;

/// A run's report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LLMProfileReport {
    #[cfg_attr(feature = "schema", schema(example = 3))]
    pub schema_version: u32,
    pub run_id: RunId,
    /// Final state of the run.
    pub state: RunState,
    /// `null` for imported captures.
    pub mode: Option<Mode>,
    pub model: ModelIdentity,
    pub environment: Environment,
    pub spec: RunSpec,
    pub aggregates: Aggregates,
    /// One record per stage. Vision is a part of prefill and listed in `stage_notes`.
    pub stages: Vec<StageTiming>,
    pub stage_notes: Vec<StageNote>,
    /// Times of each sample; absent for a run with one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<SampleTiming>,
    /// Spread of each stage over the samples; absent for a run with one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sample_spread: Vec<SampleSpread>,
    /// Operators and modules, rolled up over layers, longest total first.
    pub operators: Vec<OperatorRecord>,
    /// `torch_profiler` if they are of that pass; `null` if they are of the timed one.
    pub operators_pass: Option<String>,
    /// Number of records before the list was cut.
    pub operators_total: u64,
    /// The same per layer, longest total first.
    pub operators_by_path: Vec<OperatorRecord>,
    /// Number of records before the list was cut.
    pub operators_by_path_total: u64,
    /// Spread of each operator over the repeats, layers rolled up: the noise of a comparison.
    #[serde(default)]
    pub operator_repeats: Vec<OperatorRepeats>,
    /// Kernels by stage and name, longest total first, without warm-up.
    pub kernels_topk: Vec<KernelRecord>,
    /// Number of records before the list was cut.
    pub kernels_total: u64,
    /// Kernels by stage and full name, longest total first, without warm-up and set-up.
    #[serde(default)]
    pub kernels_full: Vec<FullKernelRecord>,
    pub stage_kernels: Vec<StageKernels>,
    /// Use of the GPUs in each stage of the traced pass, summed over GPUs; empty if no GPU was
    /// used.
    #[serde(default)]
    pub stage_gpu: Vec<StageGpu>,
    /// The same for each GPU; empty if a single GPU was used.
    #[serde(default)]
    pub stage_gpu_devices: Vec<StageGpu>,
    /// CUDA graphs of the traced pass that were traced as a whole, longest first.
    #[serde(default)]
    pub whole_graphs: Vec<WholeGraph>,
    /// Steps of a server or of a generating program in order, by the names of ranges or inferred;
    /// absent without such.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub engine_steps: Vec<EngineStepRecord>,
    /// Times of single steps of each stage, with their outliers; absent without several steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub step_times: Vec<StepTimes>,
    /// Times of these steps by class, requests and context; absent without such.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub step_batches: Vec<StepBatch>,
    /// Shares of the stages in all time of a capture, with the time outside them; absent for a run
    /// with an unprofiled pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stage_shares: Vec<StageShare>,
    /// Collective operations of several ranks, and their time by rank: rows of the tables of these
    /// names; absent without such.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub collectives: Vec<CollectiveRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub ranks: Vec<RankRecord>,
    /// Requests of the loads of a server, and percentiles of their latencies: rows of the tables
    /// of these names; absent without a load.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub requests: Vec<RequestRow>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub request_latency: Vec<LatencyRecord>,
    /// One decode step, slice by slice; `null` if none was identified.
    #[serde(default)]
    pub decode_step: Option<StepTimeline>,
    /// Work of each process on each device, by stage of the traced pass.
    #[serde(default)]
    pub processes: Vec<ProcessStage>,
    /// Kernels of each process on each device, longest first; empty for a single process on a
    /// single device.
    #[serde(default)]
    pub process_kernels: Vec<ProcessKernel>,
    /// Ranges of each process, longest first; empty if a single process has ranges.
    #[serde(default)]
    pub process_ranges: Vec<ProcessRange>,
    /// Kernel time by stage and class.
    #[serde(default)]
    pub kernel_classes: Vec<ClassRecord>,
    /// Share of kernel time whose class is known, percent.
    #[serde(default)]
    pub classified_pct: Option<f64>,
    /// Calls of the runtime and driver, CUDA or HIP, of the traced pass by name, longest first.
    #[serde(default)]
    pub api_calls: Vec<CallSum>,
    /// Ranges of the traced pass by domain and name, longest first.
    #[serde(default)]
    pub ranges: Vec<RangeSum>,
    /// True if all times are of the traced pass, since there is no unprofiled one.
    #[serde(default)]
    pub only_traced: bool,
    /// Stage and range rules of the capture, if they differ from the standard ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage_rules: Option<CaptureRules>,
    /// Threads on the cores of the host, of captures with CPU samples or context switches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_cpu: Option<HostCpuTables>,
    /// Counters by kernel and launch configuration, longest in the timeline first.
    #[serde(default)]
    pub counters: Vec<CounterRecord>,
    /// Sampled metrics by kernel, longest first; absent, as are the next three, without samples.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sampled_metrics: Vec<SampledKernel>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sampled_stages: Vec<SampledStage>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sampled_operators: Vec<SampledOperator>,
    /// Samples expected and present in each stage: rows of the table of this name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub gpu_sample_coverage: Vec<GpuSampleCoverage>,
    /// Kernels by the line of code that launched them, of captures with stacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub call_sites: Vec<CallSite>,
    /// Profiled kernels under the device's roofs.
    #[serde(default)]
    pub roofline: Roofline,
    /// Named ranges of the traced pass with the kernels and counters inside, longest first.
    #[serde(default)]
    pub regions: Vec<Region>,
    /// GEMMs by stage and shape, most operations first.
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
    /// Floor, causes and rest of each stage: rows of the tables of these names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub ledger: Vec<LedgerRow>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub ledger_members: Vec<LedgerMember>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub ledger_stages: Vec<LedgerStage>,
    pub overhead: Vec<OverheadRecord>,
    /// Device memory of stages, then of operators; empty if the runner did not record it.
    #[serde(default)]
    pub memory: Vec<MemoryRecord>,
    /// Energy, power and clocks; `null` if no GPU was sampled.
    pub power: Option<Power>,
    pub outputs: OutputCheck,
    /// The summary, a sentence each.
    pub notes: Vec<String>,
    /// Worst first.
    pub findings: Vec<Finding>,
    pub inputs: Vec<InputFile>,
    /// SHA-256 of the prompts and of the hashes of their images: runs with an equal one read the
    /// same inputs, whatever their names. `null` if another program ran.
    #[serde(default)]
    #[cfg_attr(
        feature = "schema",
        schema(example = "5924de6aa56e7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")
    )]
    pub inputs_sha256: Option<String>,
    pub steps: Vec<StepRecord>,
}

/// Stage and range rules of a capture.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CaptureRules {
    /// `STAGE=RANGE` or `STAGE=RANGE@DOMAIN`; none if stages have their standard names.
    #[cfg_attr(
        feature = "schema",
        schema(example = json!(
            ["prefill=ctx@vllm", "decode_all=decode_all", "decode_all=decode"]
        ))
    )]
    pub stages: Vec<String>,
    /// Only work inside ranges of these names counts; all work when empty.
    pub include_ranges: Vec<String>,
    /// Work inside ranges of these names does not count.
    pub exclude_ranges: Vec<String>,
}

/// The model as it was configured and built.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ModelIdentity {
    /// `null` for commands, and for captures without a named model; so is the description.
    #[cfg_attr(feature = "schema", schema(example = "deepseek-ocr-tiny"))]
    pub name: Option<String>,
    pub description: Option<String>,
    /// As built; `null` if the runner ended earlier, as are the fields below.
    pub parameters: Option<u64>,
    pub weight_bytes: Option<u64>,
    /// `synthetic` or `loaded`.
    #[cfg_attr(feature = "schema", schema(example = "synthetic"))]
    pub weights: Option<String>,
    #[cfg_attr(feature = "schema", schema(example = "f32"))]
    pub dtype: Option<String>,
    /// `cpu` or `cuda:INDEX`.
    #[cfg_attr(feature = "schema", schema(example = "cpu"))]
    pub device: Option<String>,
    /// True if decode replayed a captured CUDA graph.
    pub decode_graph: Option<bool>,
    /// Sequences that are computed at the same time.
    #[serde(default)]
    pub batch: Option<u64>,
    /// Prompt tokens of all sequences.
    pub prompt_tokens: Option<u64>,
    /// Part of `prompt_tokens`.
    pub image_tokens: Option<u64>,
    /// Views of each image.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub images: Vec<ImageViews>,
}

/// Figures over all measured repeats of the unprofiled pass; of the traced one if `only_traced`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Aggregates {
    /// Measured repeats of all samples: the repeats of each times the number of samples.
    pub repeats: u32,
    /// Wall times of a command; absent if the model runner ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandTiming>,
    /// Stage to milliseconds per repeat.
    pub stage_ms: BTreeMap<String, Spread>,
    /// The figures that stand for the run, each the median over its repeats; absent in reports of
    /// earlier versions.
    #[serde(default)]
    pub medians: Option<RepeatMedians>,
    /// Time to the first token.
    pub first_token_ms: Option<Spread>,
    /// Time per output token: decode time over its steps.
    pub per_token_ms: Option<Spread>,
    /// From the start of the first stage to the end of the last.
    pub wall_ms: Option<Spread>,
    /// Tokens of decode steps, of all sequences, per second of decode.
    pub decode_tokens_per_s: Option<Spread>,
    /// All produced tokens per second of a whole repeat.
    pub tokens_per_s: Option<Spread>,
    pub decode_steps: Option<u64>,
    /// Decode steps of one repeat of a capture, stated without its model; absent if not stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stated_steps: Option<u64>,
    /// Requests and rates of each load of a server; absent without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub loads: Vec<LoadRecord>,
    /// Work of the devices of a capture without stages; absent for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<DeviceTotals>,
    /// Peak resident memory of the runner.
    pub peak_rss_bytes: Option<u64>,
    /// Peak device memory; `null` on the CPU.
    pub peak_device_bytes: Option<u64>,
}

/// `stages.json`: only the stages and the aggregates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StagesFile {
    pub schema_version: u32,
    pub run_id: RunId,
    pub aggregates: Aggregates,
    pub stages: Vec<StageTiming>,
    pub stage_notes: Vec<StageNote>,
    /// Mean over repeats of each decode step, in order.
    pub decode_step_ms: Vec<f64>,
}

/// `kernels.json`: every kernel by stage and name, and the counters by launch configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KernelsFile {
    pub schema_version: u32,
    pub run_id: RunId,
    pub stages: Vec<StageKernels>,
    pub kernels: Vec<KernelRecord>,
    pub counters: Vec<CounterRecord>,
}

/// `gemms.json`: every GEMM by stage and shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GemmsFile {
    pub schema_version: u32,
    pub run_id: RunId,
    /// Decode steps of the logged pass.
    pub decode_steps: u64,
    pub gemms: Vec<GemmRecord>,
}

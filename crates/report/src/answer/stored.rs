//! The parts of a stored `report.json` that the answer needs.

use llmprof_analyze::{
    host_cpu::HostCpuTables,
    kernels::{
        KernelRecord,
        nsys_sums::{CallSum, RangeSum},
    },
    ledger::{LedgerMember, LedgerRow, LedgerStage},
    operators::OperatorRecord,
    requests::{LatencyRecord, LoadRecord},
    stages::{
        StageTiming, command::CommandTiming, overhead::OverheadRecord,
        repeat_medians::RepeatMedians, step_times::StepTimes,
    },
    stats::Spread,
    step_batches::StepBatch,
    timeline::{
        device_totals::DeviceTotals, gpu::StageGpu, processes::ProcessStage,
        time_shares::StageShare,
    },
};
use llmprof_core::{
    domain::{finding::Finding, subject::RunSpec},
    trace::environment::Environment,
};
use serde::Deserialize;

use crate::profile::ModelIdentity;

/// The parts of a report that the answer needs.
#[derive(Deserialize)]
pub struct StoredAnswer {
    #[serde(default)]
    pub stages: Vec<StageTiming>,
    #[serde(default)]
    pub ledger: Vec<LedgerRow>,
    #[serde(default)]
    pub ledger_members: Vec<LedgerMember>,
    #[serde(default)]
    pub ledger_stages: Vec<LedgerStage>,
    #[serde(default)]
    pub overhead: Vec<OverheadRecord>,
    #[serde(default)]
    pub step_times: Vec<StepTimes>,
    #[serde(default)]
    pub step_batches: Vec<StepBatch>,
    #[serde(default)]
    pub stage_shares: Vec<StageShare>,
    #[serde(default)]
    pub processes: Vec<ProcessStage>,
    #[serde(default)]
    pub request_latency: Vec<LatencyRecord>,
    #[serde(default)]
    pub operators: Vec<OperatorRecord>,
    #[serde(default)]
    pub stage_gpu: Vec<StageGpu>,
    #[serde(default)]
    pub stage_gpu_devices: Vec<StageGpu>,
    #[serde(default)]
    pub aggregates: StoredAggregates,
    #[serde(default)]
    pub samples: Vec<StoredSample>,
    #[serde(default)]
    pub kernels_topk: Vec<KernelRecord>,
    #[serde(default)]
    pub api_calls: Vec<CallSum>,
    #[serde(default)]
    pub ranges: Vec<RangeSum>,
    pub host_cpu: Option<HostCpuTables>,
    #[serde(default)]
    pub only_traced: bool,
    #[serde(default)]
    pub findings: Vec<Finding>,
    pub costs: Option<StoredCosts>,
    pub model: Option<ModelIdentity>,
    pub environment: Option<Environment>,
    pub spec: Option<RunSpec>,
}

/// The part of the costs that the answer needs.
#[derive(Deserialize)]
pub struct StoredCosts {
    pub decode_steps: u64,
}

/// The part of a sample that the answer needs.
#[derive(Deserialize)]
pub struct StoredSample {
    pub sample: u32,
}

/// The part of the aggregates that the answer needs.
#[derive(Default, Deserialize)]
pub struct StoredAggregates {
    pub command: Option<CommandTiming>,
    #[serde(default)]
    pub loads: Vec<LoadRecord>,
    pub devices: Option<DeviceTotals>,
    pub decode_steps: Option<u64>,
    pub stated_steps: Option<u64>,
    pub medians: Option<RepeatMedians>,
    pub per_token_ms: Option<Spread>,
}

//! All shares of an analysis, by the name of their report field.

use super::super::{Analysis, host_cpu::HostCpuTables, operators::OperatorRecord};

/// Calls `visit` with each share: its field, its subject, and a mutable reference. A share in a
/// list removes its row when it becomes `None`.
pub fn visit_shares(
    analysis: &mut Analysis,
    visit: &mut impl FnMut(&'static str, &str, &mut Option<f64>),
) {
    for it in &mut analysis.stages.rows {
        visit("StageTiming.share_pct", &it.stage, &mut it.share_pct);
    }
    for it in &mut analysis.stage_shares {
        visit("StageShare.wall_share_pct", &it.stage, &mut it.wall_share_pct);
        visit("StageShare.device_share_pct", &it.stage, &mut it.device_share_pct);
    }
    if let Some(it) = &mut analysis.device_totals {
        visit("DeviceTotals.busy_pct", "the capture", &mut it.busy_pct);
        visit("DeviceTotals.min_busy_pct", "the least busy GPU", &mut it.min_busy_pct);
        visit("DeviceTotals.max_busy_pct", "the busiest GPU", &mut it.max_busy_pct);
    }
    if let Some(host) = &mut analysis.host_cpu {
        host_cpu(host, visit);
    }
    for it in &mut analysis.step_batches {
        visit("StepBatch.busy_pct", it.class.as_str(), &mut it.busy_pct);
    }
    for it in &mut analysis.stages.notes {
        visit("StageNote.share_pct", &it.part, &mut it.share_pct);
    }
    let Analysis { operators, .. } = analysis;
    for it in operators.by_path.iter_mut().chain(&mut operators.rolled) {
        operator(it, visit);
    }
    for (stage, it) in &mut operators.work {
        visit("StageWork.covered_pct", stage, &mut it.covered_pct);
    }
    kernels(analysis, visit);
    regions(analysis, visit);
    for it in &mut analysis.roofline.points {
        visit("RooflinePoint.share_pct", &it.kernel_name, &mut it.share_pct);
        visit("RooflinePoint.sm_pct", &it.kernel_name, &mut it.sm_pct);
        visit("RooflinePoint.memory_pct", &it.kernel_name, &mut it.memory_pct);
        visit("RooflinePoint.dram_pct", &it.kernel_name, &mut it.dram_pct);
        visit(
            "RooflinePoint.achieved_occupancy_pct",
            &it.kernel_name,
            &mut it.achieved_occupancy_pct,
        );
    }
    for it in &mut analysis.sampled.kernels {
        visit("SampledKernel.share_pct", &it.kernel_name, &mut it.share_pct);
    }
    for it in &mut analysis.sampled.stages {
        for value in it.metrics.values_mut() {
            visit("SampledStageValue.alone_pct", &it.stage, &mut value.alone_pct);
            visit("SampledStageValue.grouped_pct", &it.stage, &mut value.grouped_pct);
            visit("SampledStageValue.unresolved_pct", &it.stage, &mut value.unresolved_pct);
        }
    }
    for it in &mut analysis.gemms.records {
        visit("GemmRecord.share_pct", &it.stage, &mut it.share_pct);
        visit("GemmRecord.tile_fill_pct", &it.stage, &mut it.tile_fill_pct);
    }
    for it in &mut analysis.mfu.operators {
        visit("OperatorMfu.exclusive_pct", &it.path, &mut it.exclusive_pct);
    }
    let gpus = &mut analysis.stage_gpu;
    for it in gpus.totals.iter_mut().chain(&mut gpus.devices) {
        visit("StageGpu.busy_pct", &it.stage, &mut it.busy_pct);
        visit("StageGpu.launch_bound_pct", &it.stage, &mut it.launch_bound_pct);
    }
    power(analysis, visit);
}

fn operator(it: &mut OperatorRecord, visit: &mut impl FnMut(&'static str, &str, &mut Option<f64>)) {
    visit("OperatorRecord.inclusive_pct", &it.path, &mut it.inclusive_pct);
    visit("OperatorRecord.exclusive_pct", &it.path, &mut it.exclusive_pct);
    if let Some(device) = &mut it.device {
        visit("OperatorDevice.inclusive_pct", &it.path, &mut device.inclusive_pct);
        visit("OperatorDevice.exclusive_pct", &it.path, &mut device.exclusive_pct);
    }
}

fn kernels(analysis: &mut Analysis, visit: &mut impl FnMut(&'static str, &str, &mut Option<f64>)) {
    for it in &mut analysis.kernels.full {
        visit("FullKernelRecord.share_pct", &it.kernel_name, &mut it.share_pct);
    }
    for it in &mut analysis.kernels.records {
        let name = &it.kernel_name;
        visit("KernelRecord.share_pct", name, &mut it.share_pct);
        if let Some(counters) = &mut it.counters {
            visit("KernelCounters.covered_pct", name, &mut counters.covered_pct);
            visit("KernelCounters.sm_pct", name, &mut counters.sm_pct);
            visit("KernelCounters.dram_pct", name, &mut counters.dram_pct);
            visit(
                "KernelCounters.achieved_occupancy_pct",
                name,
                &mut counters.achieved_occupancy_pct,
            );
            visit("KernelCounters.tensor_pct", name, &mut counters.tensor_pct);
        }
    }
    for it in &mut analysis.kernels.classes {
        visit("ClassRecord.share_pct", &it.class, &mut it.share_pct);
    }
    visit("LLMProfileReport.classified_pct", "all kernels", &mut analysis.kernels.classified_pct);
}

fn regions(analysis: &mut Analysis, visit: &mut impl FnMut(&'static str, &str, &mut Option<f64>)) {
    for it in &mut analysis.regions {
        visit("Region.share_pct", &it.name, &mut it.share_pct);
        for class in &mut it.classes {
            visit("RegionClass.share_pct", &it.name, &mut class.share_pct);
        }
        if let Some(counters) = &mut it.counters {
            visit("RegionCounters.covered_pct", &it.name, &mut counters.covered_pct);
            visit("RegionCounters.sm_pct", &it.name, &mut counters.sm_pct);
            visit("RegionCounters.memory_pct", &it.name, &mut counters.memory_pct);
            visit("RegionCounters.dram_pct", &it.name, &mut counters.dram_pct);
            visit("RegionCounters.l2_hit_pct", &it.name, &mut counters.l2_hit_pct);
            visit(
                "RegionCounters.achieved_occupancy_pct",
                &it.name,
                &mut counters.achieved_occupancy_pct,
            );
            visit("RegionCounters.tensor_pct", &it.name, &mut counters.tensor_pct);
        }
    }
}

fn power(analysis: &mut Analysis, visit: &mut impl FnMut(&'static str, &str, &mut Option<f64>)) {
    let Some(power) = &mut analysis.power else { return };
    visit("Power.busy_pct", "the sampler", &mut power.busy_pct);
    for it in &mut power.stages {
        visit("StagePower.gpu_active_pct", &it.stage, &mut it.gpu_active_pct);
        visit("StagePower.memory_active_pct", &it.stage, &mut it.memory_active_pct);
        visit("StagePower.throttled_pct", &it.stage, &mut it.throttled_pct);
        it.reasons.retain(|reason| {
            let mut share = Some(reason.share_pct);
            visit("ReasonShare.share_pct", &it.stage, &mut share);
            share.is_some()
        });
    }
}

fn host_cpu(
    host: &mut HostCpuTables,
    visit: &mut impl FnMut(&'static str, &str, &mut Option<f64>),
) {
    visit("HostCpuTables.calls_on_core_pct", "all calls", &mut host.calls_on_core_pct);
    for it in &mut host.threads {
        let thread = it.thread_name.clone().unwrap_or_default();
        visit("HostThread.function_pct", &thread, &mut it.function_pct);
    }
    for it in &mut host.takers {
        visit("CoreTaker.share_pct", &it.stage, &mut it.share_pct);
    }
    for it in &mut host.functions {
        visit("GapFunction.share_pct", &it.stage, &mut it.share_pct);
    }
}

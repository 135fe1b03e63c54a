//! Every share of an analysis, by the name of its field in the report.

use super::super::{Analysis, operators::OperatorRecord};

/// Calls `look` with each share: its field, what it is of, and where it is kept. A share in a list that is left out takes its row along.
pub fn each_share(analysis: &mut Analysis, look: &mut impl FnMut(&'static str, &str, &mut Option<f64>)) {
    for it in &mut analysis.stages.rows {
        look("StageTiming.share_pct", &it.stage, &mut it.share_pct);
    }
    for it in &mut analysis.stages.notes {
        look("StageNote.share_pct", &it.part, &mut it.share_pct);
    }
    let Analysis { operators, .. } = analysis;
    for it in operators.by_path.iter_mut().chain(&mut operators.rolled) {
        operator(it, look);
    }
    for (stage, it) in &mut operators.work {
        look("StageWork.covered_pct", stage, &mut it.covered_pct);
    }
    kernels(analysis, look);
    regions(analysis, look);
    for it in &mut analysis.roofline.points {
        look("RooflinePoint.share_pct", &it.kernel_name, &mut it.share_pct);
        look("RooflinePoint.sm_pct", &it.kernel_name, &mut it.sm_pct);
        look("RooflinePoint.memory_pct", &it.kernel_name, &mut it.memory_pct);
        look("RooflinePoint.dram_pct", &it.kernel_name, &mut it.dram_pct);
        look("RooflinePoint.achieved_occupancy_pct", &it.kernel_name, &mut it.achieved_occupancy_pct);
    }
    for it in &mut analysis.gemms.records {
        look("GemmRecord.share_pct", &it.stage, &mut it.share_pct);
    }
    for it in &mut analysis.mfu.operators {
        look("OperatorMfu.exclusive_pct", &it.path, &mut it.exclusive_pct);
    }
    let gpus = &mut analysis.stage_gpu;
    for it in gpus.totals.iter_mut().chain(&mut gpus.devices) {
        look("StageGpu.busy_pct", &it.stage, &mut it.busy_pct);
        look("StageGpu.launch_bound_pct", &it.stage, &mut it.launch_bound_pct);
    }
    power(analysis, look);
}

fn operator(it: &mut OperatorRecord, look: &mut impl FnMut(&'static str, &str, &mut Option<f64>)) {
    look("OperatorRecord.inclusive_pct", &it.path, &mut it.inclusive_pct);
    look("OperatorRecord.exclusive_pct", &it.path, &mut it.exclusive_pct);
    if let Some(device) = &mut it.device {
        look("OperatorDevice.inclusive_pct", &it.path, &mut device.inclusive_pct);
        look("OperatorDevice.exclusive_pct", &it.path, &mut device.exclusive_pct);
    }
}

fn kernels(analysis: &mut Analysis, look: &mut impl FnMut(&'static str, &str, &mut Option<f64>)) {
    for it in &mut analysis.kernels.full {
        look("FullKernelRecord.share_pct", &it.kernel_name, &mut it.share_pct);
    }
    for it in &mut analysis.kernels.records {
        let name = &it.kernel_name;
        look("KernelRecord.share_pct", name, &mut it.share_pct);
        if let Some(counters) = &mut it.counters {
            look("KernelCounters.covered_pct", name, &mut counters.covered_pct);
            look("KernelCounters.sm_pct", name, &mut counters.sm_pct);
            look("KernelCounters.dram_pct", name, &mut counters.dram_pct);
            look("KernelCounters.achieved_occupancy_pct", name, &mut counters.achieved_occupancy_pct);
            look("KernelCounters.tensor_pct", name, &mut counters.tensor_pct);
        }
    }
    for it in &mut analysis.kernels.classes {
        look("ClassRecord.share_pct", &it.class, &mut it.share_pct);
    }
    look("LLMProfileReport.classified_pct", "all kernels", &mut analysis.kernels.classified_pct);
}

fn regions(analysis: &mut Analysis, look: &mut impl FnMut(&'static str, &str, &mut Option<f64>)) {
    for it in &mut analysis.regions {
        look("Region.share_pct", &it.name, &mut it.share_pct);
        for class in &mut it.classes {
            look("RegionClass.share_pct", &it.name, &mut class.share_pct);
        }
        if let Some(counters) = &mut it.counters {
            look("RegionCounters.covered_pct", &it.name, &mut counters.covered_pct);
            look("RegionCounters.sm_pct", &it.name, &mut counters.sm_pct);
            look("RegionCounters.memory_pct", &it.name, &mut counters.memory_pct);
            look("RegionCounters.dram_pct", &it.name, &mut counters.dram_pct);
            look("RegionCounters.l2_hit_pct", &it.name, &mut counters.l2_hit_pct);
            look("RegionCounters.achieved_occupancy_pct", &it.name, &mut counters.achieved_occupancy_pct);
            look("RegionCounters.tensor_pct", &it.name, &mut counters.tensor_pct);
        }
    }
}

fn power(analysis: &mut Analysis, look: &mut impl FnMut(&'static str, &str, &mut Option<f64>)) {
    let Some(power) = &mut analysis.power else { return };
    look("Power.busy_pct", "the sampler", &mut power.busy_pct);
    for it in &mut power.stages {
        look("StagePower.throttled_pct", &it.stage, &mut it.throttled_pct);
        it.reasons.retain(|reason| {
            let mut share = Some(reason.share_pct);
            look("ReasonShare.share_pct", &it.stage, &mut share);
            share.is_some()
        });
    }
}

//! Counters of a launch from metrics by name. With `flops`, the only place that knows ncu's metric
//! names.

use llmprof_core::trace::counter::{CounterValues, Stall};

use super::{
    flops::{ON_TENSOR_PIPE, TENSOR_OPS, TensorActivity, add_flops},
    labels,
    metrics::LaunchMetrics,
};

pub(super) const DURATION: &[&str] = &["gpu__time_duration.sum", "gpu__time_duration.avg"];
pub(super) const SM: &str = "sm__throughput.avg.pct_of_peak_sustained_elapsed";
pub(super) const MEMORY: &str = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed";
pub(super) const DRAM: &[&str] = &[
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
];
pub(super) const L1: &str = "l1tex__t_sector_hit_rate.pct";
pub(super) const L2: &str = "lts__t_sector_hit_rate.pct";
pub(super) const ACHIEVED: &str = "sm__warps_active.avg.pct_of_peak_sustained_active";
pub(super) const THEORETICAL: &str = "sm__maximum_warps_per_active_cycle_pct";
pub(super) const WAVES: &str = "launch__waves_per_multiprocessor";
pub(super) const REGISTERS: &str = "launch__registers_per_thread";
pub(super) const DRAM_RATE: &str = "dram__bytes.sum.per_second";
/// Units of an SM whose utilisation stands for the SM's if the section SpeedOfLight, which takes
/// ten passes, was not collected: issue slots and pipes; with the tensor cores, they are those that
/// a kernel can saturate.
const SM_UNITS: [&str; 4] = [
    "sm__inst_issued.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed",
];
/// Throughput of the L2 cache: of its busiest unit, else of its accesses to sectors.
const L2_THROUGHPUT: [&str; 2] =
    ["lts__throughput.avg.pct_of_peak_sustained_elapsed", MEMORY_UNITS[0]];
/// Units of the memory system: L2 and the data stage of L1; with device memory.
const MEMORY_UNITS: [&str; 2] = [
    "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
];
/// Shares of device memory's bandwidth, which add up.
const DRAM_PARTS: [&str; 2] = [
    "dram__bytes_read.sum.pct_of_peak_sustained_elapsed",
    "dram__bytes_write.sum.pct_of_peak_sustained_elapsed",
];
/// Cycles of matrix instructions only; products of f64 have a metric of their own.
const TENSOR: (&str, &str) =
    ("sm__pipe_tensor_type_", "_cycles_active.avg.pct_of_peak_sustained_elapsed");
const TENSOR_F64: &str = "sm__pipe_tensor_op_dmma_cycles_active.avg.pct_of_peak_sustained_elapsed";
/// Cycles of the pipe, which include loads of constants by half-precision multiply-adds: up to
/// 2.9 % in kernels without matrix instructions on an H200.
const TENSOR_PIPE: &[&str] = &[
    TENSOR_F64,
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_tensor_op_imma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
];
const MIN_PIPE_PCT: f64 = 3.0;
/// The cycles of matrix instructions alone are a difference of two replays: 0.04 % without any.
const MIN_TENSOR_PCT: f64 = 0.5;
const STALL: (&str, &str) = ("smsp__average_warps_issue_stalled_", "_per_issue_active.ratio");
/// The issuing warp, which does not wait.
const SELECTED: &str = "selected";
const TOP_STALLS: usize = 3;

/// Returns true if a value is computed from this metric.
pub fn is_used(name: &str) -> bool {
    let counted = |prefix: &str| name.starts_with(prefix) && name.contains("_pred_on.sum");
    labels::shows(name)
        || DURATION.contains(&name)
        || DRAM.contains(&name)
        || TENSOR_PIPE.contains(&name)
        || SM_UNITS.contains(&name)
        || MEMORY_UNITS.contains(&name)
        || L2_THROUGHPUT.contains(&name)
        || DRAM_PARTS.contains(&name)
        || [TENSOR, TENSOR_OPS, STALL]
            .iter()
            .any(|(from, to)| name.starts_with(from) && name.ends_with(to))
        || matches!(
            name,
            "dram__bytes_read.sum"
                | "dram__bytes_write.sum"
                | "dram__bytes.sum"
                | ON_TENSOR_PIPE
                | "smsp__cycles_elapsed.avg.per_second"
        )
        || counted("sm__sass_thread_inst_executed_op_")
        || counted("smsp__sass_thread_inst_executed_op_")
}

/// Computes the counters of one launch.
pub fn values(metrics: &LaunchMetrics) -> CounterValues {
    let duration_ns = metrics.any(DURATION);
    let seconds = duration_ns.map(|ns| ns / 1e9);
    let tensor = tensor_activity(metrics);
    let tensor_pct = tensor.pct;
    let dram_pct = metrics.any(DRAM).or_else(|| {
        let [read, written] = DRAM_PARTS.map(|part| metrics.get(part));
        Some(read? + written?)
    });
    let mut values = CounterValues {
        registers: metrics.get(REGISTERS).map(|value| value as u32),
        duration_ns,
        sm_pct: metrics.get(SM).or_else(|| busiest(metrics, &SM_UNITS, tensor_pct)),
        memory_pct: metrics.get(MEMORY).or_else(|| busiest(metrics, &MEMORY_UNITS, dram_pct)),
        dram_pct,
        l1_hit_pct: metrics.get(L1),
        l2_hit_pct: metrics.get(L2),
        l2_pct: metrics.any(&L2_THROUGHPUT),
        waves: metrics.get(WAVES),
        achieved_occupancy_pct: metrics.get(ACHIEVED),
        theoretical_occupancy_pct: metrics.get(THEORETICAL),
        tensor_pct,
        dram_bytes: dram_bytes(metrics, seconds),
        stalls: stalls(metrics),
        ..CounterValues::default()
    };
    add_flops(&mut values, metrics, tensor);
    values
}

/// Activity of the busiest kind of matrix instruction; else of the pipe.
fn tensor_activity(metrics: &LaunchMetrics) -> TensorActivity {
    let most = |values: &mut dyn Iterator<Item = f64>| values.reduce(f64::max);
    match most(&mut metrics.between(TENSOR.0, TENSOR.1).map(|(_, pct)| pct)) {
        Some(pct) => {
            let pct = pct.max(metrics.get(TENSOR_F64).unwrap_or(0.0));
            TensorActivity { pct: Some(pct), min_pct: MIN_TENSOR_PCT }
        }
        None => TensorActivity {
            pct: most(&mut TENSOR_PIPE.iter().filter_map(|name| metrics.get(name))),
            min_pct: MIN_PIPE_PCT,
        },
    }
}

/// Utilisation of the busiest of these units and `other`; `None` unless all were counted.
fn busiest(metrics: &LaunchMetrics, units: &[&str], other: Option<f64>) -> Option<f64> {
    units.iter().try_fold(other?, |most, unit| Some(most.max(metrics.get(unit)?)))
}

/// Counted bytes; else the rate times the duration.
fn dram_bytes(metrics: &LaunchMetrics, seconds: Option<f64>) -> Option<f64> {
    let both = metrics.get("dram__bytes_read.sum").zip(metrics.get("dram__bytes_write.sum"));
    let counted =
        both.map(|(read, written)| read + written).or_else(|| metrics.get("dram__bytes.sum"));
    counted.or_else(|| Some(metrics.get(DRAM_RATE)? * seconds?))
}

fn stalls(metrics: &LaunchMetrics) -> Vec<Stall> {
    let all: Vec<(&str, f64)> = metrics.between(STALL.0, STALL.1).collect();
    let sum: f64 = all.iter().map(|(_, warps)| warps).sum();
    let mut stalls: Vec<Stall> = all
        .into_iter()
        .filter(|(reason, warps)| *reason != SELECTED && *warps > 0.0)
        .map(|(reason, warps)| Stall {
            reason: reason.to_owned(),
            warps_per_issue: warps,
            share_pct: 100.0 * warps / sum,
        })
        .collect();
    stalls.sort_by(|a, b| b.warps_per_issue.total_cmp(&a.warps_per_issue));
    stalls.truncate(TOP_STALLS);
    stalls
}

#[cfg(test)]
mod tests {
    use super::{super::numbers::DecimalMark, *};

    fn of(fields: &[(&str, &str, &str)]) -> CounterValues {
        let mut metrics = LaunchMetrics::default();
        fields
            .iter()
            .for_each(|(name, unit, text)| metrics.take(name, unit, text, DecimalMark::Point));
        values(&metrics)
    }

    #[test]
    fn without_speed_of_light_the_busiest_counted_unit_stands_for_the_sm_and_for_memory() {
        let mut fields: Vec<(&str, &str, &str)> = vec![
            (TENSOR_PIPE[0], "%", "12.0"),
            (DRAM_PARTS[0], "%", "30.5"),
            (DRAM_PARTS[1], "%", "11.5"),
        ];
        fields.extend(
            SM_UNITS.iter().zip(["20.0", "9.0", "41.0", "0.0"]).map(|(it, pct)| (*it, "%", pct)),
        );
        fields.extend(MEMORY_UNITS.iter().zip(["35.0", "2.0"]).map(|(it, pct)| (*it, "%", pct)));
        let found = of(&fields);
        assert_eq!(
            (found.sm_pct, found.dram_pct, found.memory_pct),
            (Some(41.0), Some(42.0), Some(42.0))
        );
        fields.push((SM, "%", "55.0"));
        assert_eq!(of(&fields).sm_pct, Some(55.0), "the section's own value comes first");
        // One unit without a value could be the busiest.
        let (without_alu, without_l2) = (&fields[..5], &fields[..7]);
        assert_eq!((of(without_alu).sm_pct, of(without_l2).memory_pct), (None, None));
        assert!(SM_UNITS.iter().chain(&MEMORY_UNITS).chain(&DRAM_PARTS).all(|it| is_used(it)));
    }

    #[test]
    fn intensity_is_unknown_when_the_tensor_cores_worked_uncounted() {
        let fp32 = ["fadd", "fmul", "ffma"]
            .map(|op| format!("sm__sass_thread_inst_executed_op_{op}_pred_on.sum"));
        let mut fields: Vec<(&str, &str, &str)> =
            fp32.iter().map(|name| (name.as_str(), "inst", "10")).collect();
        fields.push(("dram__bytes.sum", "Kbyte", "0.02"));
        fields.push((TENSOR_PIPE[0], "%", "0"));
        // 10 + 10 + 2 x 10 operations over 20 bytes
        assert_eq!(of(&fields).arithmetic_intensity(), Some(2.0));
        fields.push((TENSOR_PIPE[0], "%", "12.5"));
        assert_eq!((of(&fields).arithmetic_intensity(), of(&fields).flops["fp32"]), (None, 40.0));
    }

    #[test]
    fn tensor_activity_is_that_of_the_busiest_instructions() {
        let [f64s, halves, integers, pipe] = TENSOR_PIPE else { panic!("{TENSOR_PIPE:?}") };
        let own = format!("{}hmma_imma{}", TENSOR.0, TENSOR.1);
        for (fields, expected) in [
            (&[(*halves, "%", "0.02"), (integers, "%", "60")][..], 60.0),
            (&[(halves, "%", "0.02"), (f64s, "%", "70")], 70.0),
            (&[(halves, "%", "0.02"), (pipe, "%", "80")], 80.0),
            (&[(pipe, "%", "1.8"), (&own, "%", "0")], 0.0),
            (&[(pipe, "%", "1.8"), (&own, "%", "0"), (f64s, "%", "1.7")], 1.7),
        ] {
            assert_eq!(of(fields).tensor_pct, Some(expected), "{fields:?}");
            assert!(fields.iter().all(|(name, ..)| is_used(name)));
        }
    }

    #[test]
    fn the_longest_stalls_come_first_and_the_issuing_warp_is_none() {
        let name = |reason: &str| format!("{}{reason}{}", STALL.0, STALL.1);
        let names = ["selected", "wait", "barrier", "long_scoreboard", "drain"].map(name);
        let counts = ["1", "2", "0", "6", "1"];
        let fields: Vec<_> =
            names.iter().zip(counts).map(|(name, warps)| (name.as_str(), "inst", warps)).collect();
        let stalls = of(&fields).stalls;
        let shares: Vec<_> = stalls.iter().map(|it| (it.reason.as_str(), it.share_pct)).collect();
        assert_eq!(shares, [("long_scoreboard", 60.0), ("wait", 20.0), ("drain", 10.0)]);
    }
}

//! Causes of a kernel's time above its floor, in a fixed order: each gets at most what the causes
//! before it have left, so that no nanosecond counts twice.
//!
//! A cause needs evidence of its own: the time above the floor alone proves nothing.

use llmprof_core::{
    domain::digits,
    trace::counter::{CounterValues, Stall},
};

use super::{
    LedgerCause,
    evidence::{LaunchEvidence, SampledUse},
    floors::{OperatorFloor, Rates},
};
use crate::{kernels::kernel_classes::work_of_class, roofline::AT_ROOF_PCT, stats::ratio};

/// Tensor cores are unused below this activity, percent: sampled counters read at least 1 if
/// anything runs.
const NO_TENSOR_PCT: f64 = 2.0;
/// Occupancy below which few warps hide latency, percent.
const LOW_OCCUPANCY_PCT: f64 = 50.0;
/// Share of the warps waiting for memory above which more of them would not help, percent.
const WAITING_PCT: f64 = 50.0;
/// States of a warp waiting for data.
const FOR_MEMORY: [&str; 5] =
    ["long_scoreboard", "short_scoreboard", "lg_throttle", "mio_throttle", "tex_throttle"];
/// States of a warp other than waiting.
const NOT_WAITING: [&str; 2] = ["not_selected", "selected"];

/// Sources of causes.
const NAMES: &str = "kernel and copy names";
const RANKS: &str = "starts and ends on all ranks";
const SAMPLED_LATENCY: &str =
    "warps_in_flight, sms_active, sm_issue, dram_read, dram_write, tensor_active";

/// A kernel's time in one repeat of a stage.
#[derive(Debug, Clone)]
pub struct KernelTime<'a> {
    pub ns: i64,
    /// Part of `ns` that is its operator's floor.
    pub floor_ns: i64,
    pub calls: f64,
    pub class: &'static str,
    /// True for products that read weights, or keys and values.
    pub reads_operands: bool,
    pub is_collective: bool,
    /// Parts of a collective operation; `None` if it is not joined across ranks.
    pub across_ranks: Option<AcrossRanks>,
    /// False for a copy or cast that its operator does not need.
    pub is_needed: bool,
    /// Time of its bytes of device memory above the necessary ones, and their evidence.
    pub excess: Option<(f64, String)>,
    pub evidence: LaunchEvidence<'a>,
}

/// Parts of a collective operation's time, as joined across ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct AcrossRanks {
    /// Shares of the time until the last rank started, and from then on; the rest is not joined.
    pub wait: f64,
    pub transfer: f64,
    pub launches: u64,
    pub joined: u64,
}

/// Classes of kernels that compute matrix products and little else.
const MATRIX_PRODUCTS: [&str; 2] = ["gemm", "conv"];
/// Classes of kernels that compute no products.
const NO_PRODUCTS: [&str; 6] = ["norm", "softmax", "elementwise", "copy", "reduce", "sort"];

impl KernelTime<'_> {
    /// False for a kernel whose class computes no products: the operations of a floor are not its.
    pub fn may_multiply(&self) -> bool {
        !NO_PRODUCTS.contains(&self.class)
    }

    /// True for products that leave the tensor cores idle: their operations are in no sample.
    pub fn multiplies_without_tensor_cores(&self) -> bool {
        let is_product = MATRIX_PRODUCTS.contains(&self.class);
        is_product && self.evidence.tensor_pct.is_some_and(|pct| pct < NO_TENSOR_PCT)
    }

    /// The cause of time in which memory is the busiest unit: products read weights, or keys and
    /// values, and other kernels pass activations on.
    fn traffic(&self) -> LedgerCause {
        match self.reads_operands {
            true => LedgerCause::OperandTraffic,
            false => LedgerCause::MemoryTraffic,
        }
    }
}

/// A part of a kernel's time with its cause.
#[derive(Debug, Clone, PartialEq)]
pub struct CausePart {
    pub cause: LedgerCause,
    pub ns: i64,
    pub evidence: String,
    /// Names of the figures that prove it.
    pub sources: &'static str,
    /// True if the timeline proves it, without counters or samples.
    pub by_timeline: bool,
}

impl CausePart {
    /// Time of launches above their kernel's median.
    pub const fn of_long_launches(ns: i64, evidence: String) -> Self {
        let (cause, sources) = (LedgerCause::LongLaunches, "times of its launches");
        Self { cause, ns, evidence, sources, by_timeline: true }
    }
}

/// Assigns the time of one kernel above its floor; the last part is the unexplained rest.
pub fn assign(
    kernel: &KernelTime,
    operator: Option<&OperatorFloor>,
    rates: &Rates,
) -> Vec<CausePart> {
    let mut rest = Rest { ns: kernel.ns - kernel.floor_ns, parts: Vec::new() };
    if kernel.is_collective {
        if let Some(parts) = &kernel.across_ranks {
            across_ranks(kernel.ns, parts, &mut rest);
        }
        rest.take(LedgerCause::Collectives, f64::MAX, NAMES, || {
            "named as a collective operation".into()
        });
    }
    if !kernel.is_needed {
        let evidence = || format!("by its name, it {}", work_of_class(kernel.class));
        rest.take(LedgerCause::CopiesAndCasts, f64::MAX, NAMES, evidence);
    }
    if let Some((ns, text)) = &kernel.excess {
        let is_cold = kernel.evidence.bytes.is_some_and(|bytes| bytes.is_cold);
        let sources = if is_cold { "dram_bytes" } else { "dram_read, dram_write" };
        rest.take(LedgerCause::MoreBytes, *ns, sources, || text.clone());
    }
    let used_ns = kernel.floor_ns + rest.taken();
    if let Some((ns, text)) = without_tensor_cores(kernel, operator, rates) {
        rest.take(LedgerCause::TensorCores, ns - used_ns as f64, "tensor_pct, flops", || text);
    }
    if let Some(fill) = kernel.evidence.tile_fill_pct {
        let ns = kernel.ns as f64 * (1.0 - fill / 100.0);
        let evidence = || format!("{fill:.0} % of the tiles have results");
        rest.take(LedgerCause::Tiles, ns, "tile and shape", evidence);
    }
    idle_sms(kernel, &mut rest);
    match kernel.evidence.counters {
        Some(values) => {
            busy_units(kernel, values, used_ns, &mut rest);
            latency(kernel, values, &mut rest);
        }
        None => by_samples(kernel, used_ns, &mut rest),
    }
    let evidence = || unexplained(&kernel.evidence);
    rest.take(LedgerCause::Unexplained, f64::MAX, "", evidence);
    rest.parts
}

/// The reason for which time has no cause.
fn unexplained(evidence: &LaunchEvidence) -> String {
    let SampledUse { sms_pct, issue_pct, dram_pct, .. } = evidence.sampled;
    if evidence.counters.is_some() {
        return "the counters show no cause".into();
    }
    if evidence.pass.is_empty() {
        return "no counters and no samples".into();
    }
    let of = [
        ("SMs active", sms_pct),
        ("issue slots", issue_pct),
        ("device memory", dram_pct),
        ("tensor cores", evidence.tensor_pct),
        ("occupancy", evidence.sampled.occupancy_pct),
    ];
    let missing = of.into_iter().filter(|it| it.1.is_none()).map(|it| it.0);
    match missing.collect::<Vec<_>>().as_slice() {
        [] => "the samples show no cause".into(),
        missing => format!("no value of the kernel alone: {}", missing.join(", ")),
    }
}

/// Waiting and transfer of a collective operation.
fn across_ranks(ns: i64, parts: &AcrossRanks, rest: &mut Rest) {
    let AcrossRanks { wait, transfer, launches, joined } = *parts;
    let [of, all] = [joined, launches].map(digits::count);
    let count = format!("{of} of {all} launches of the stage joined across ranks");
    rest.take(LedgerCause::CollectiveWait, ns as f64 * wait, RANKS, || {
        format!("{count}: {:.0} % of the time until the last rank started", wait * 100.0)
    });
    let transfer_ns = if joined == launches { f64::MAX } else { ns as f64 * transfer };
    rest.take(LedgerCause::CollectiveTransfer, transfer_ns, RANKS, || {
        format!("{count}: {:.0} % of the time after the last rank started", transfer * 100.0)
    });
}

/// Time in which SMs had no block: by the grid, or as sampled if that is more.
fn idle_sms(kernel: &KernelTime, rest: &mut Rest) {
    let waves = kernel.evidence.waves;
    let by_waves = waves.map_or(0.0, |it| 1.0 - ratio(it.count, it.count.ceil()).unwrap_or(1.0));
    let sampled = kernel.evidence.sampled.sms_pct.filter(|_| kernel.evidence.counters.is_none());
    let by_samples = sampled.map_or(0.0, |pct| 1.0 - pct / 100.0);
    if let Some(pct) = sampled.filter(|_| by_samples > by_waves) {
        let evidence = || format!("{pct:.0} % of the SMs active");
        rest.take(LedgerCause::Waves, kernel.ns as f64 * by_samples, "sms_active", evidence);
    } else if let Some(waves) = waves {
        let count = rest.parts.len();
        let sources = if waves.by_grid { "grid" } else { "grid, block, theoretical_occupancy_pct" };
        rest.take(LedgerCause::Waves, kernel.ns as f64 * by_waves, sources, || waves.text());
        rest.parts[count..].iter_mut().for_each(|it| it.by_timeline = waves.by_grid);
    }
}

/// The time above the floor that has no cause yet.
struct Rest {
    ns: i64,
    parts: Vec<CausePart>,
}

impl Rest {
    fn take(
        &mut self,
        cause: LedgerCause,
        ns: f64,
        sources: &'static str,
        evidence: impl FnOnce() -> String,
    ) {
        // A conversion from a float saturates; a figure that is not a number becomes 0.
        let ns = (ns.round() as i64).clamp(0, self.ns.max(0));
        if ns > 0 {
            self.ns -= ns;
            let evidence = evidence();
            self.parts.push(CausePart { cause, ns, evidence, sources, by_timeline: false });
        }
    }

    fn taken(&self) -> i64 {
        self.parts.iter().map(|part| part.ns).sum()
    }
}

/// Time of the counted operations of a matrix product at the ceilings of the dtypes that it used,
/// if these are not the operator's on tensor cores.
fn without_tensor_cores(
    kernel: &KernelTime,
    operator: Option<&OperatorFloor>,
    rates: &Rates,
) -> Option<(f64, String)> {
    operator.filter(|it| it.flops > 0.0 && kernel.may_multiply())?;
    let (values, tensor) = (kernel.evidence.counters?, kernel.evidence.tensor_pct?);
    let own_dtype = match rates.dtype.as_str() {
        "bf16" => "tensor_bf16",
        "f16" => "tensor_fp16",
        _ => return None,
    };
    let in_own = values.flops.get(own_dtype).is_some_and(|flops| *flops > 0.0);
    if tensor >= NO_TENSOR_PCT && in_own {
        return None;
    }
    let ns = rates.counted_ns(values)? * kernel.calls;
    let used = values.flops.iter().max_by(|a, b| a.1.total_cmp(b.1)).map_or("", |it| it.0);
    Some((ns, format!("tensor cores active {tensor:.1} % of the time, most operations in {used}")))
}

/// Time in which the busiest unit works, other than the tensor cores.
fn busy_units(kernel: &KernelTime, values: &CounterValues, used_ns: i64, rest: &mut Rest) {
    let busy_ns = |pct: f64| {
        let launch = values.duration_ns.map_or(f64::MAX, |ns| ns * kernel.calls);
        (pct / 100.0) * launch.min(kernel.ns as f64) - used_ns as f64
    };
    let Some((sm, memory)) = values.sm_pct.zip(values.memory_pct) else { return };
    if memory > sm {
        let dram = values.dram_pct.map(|pct| format!(", device memory {pct:.0} %"));
        let evidence = || format!("memory system {memory:.0} %{}", dram.unwrap_or_default());
        let sources = "memory_pct, sm_pct";
        rest.take(kernel.traffic(), busy_ns(memory), sources, evidence);
    } else if let Some(tensor) = kernel.evidence.tensor_pct.filter(|tensor| sm > *tensor) {
        let evidence = || format!("SM {sm:.0} %, tensor cores {tensor:.0} %");
        let sources = "sm_pct, tensor_pct, memory_pct";
        rest.take(LedgerCause::Instructions, busy_ns(sm), sources, evidence);
    }
}

/// Time in which no unit works, for a kernel without a unit at its roof: its warps are few and
/// wait, or half of them wait for memory.
fn latency(kernel: &KernelTime, values: &CounterValues, rest: &mut Rest) {
    let found = || {
        let occupancy = values.achieved_occupancy_pct?;
        let busiest = values.sm_pct?.max(values.memory_pct?);
        let for_memory = |stall: &&Stall| FOR_MEMORY.contains(&stall.reason.as_str());
        let waiting: f64 = values.stalls.iter().filter(for_memory).map(|it| it.share_pct).sum();
        let text = if occupancy < LOW_OCCUPANCY_PCT {
            let is_wait = |stall: &&Stall| !NOT_WAITING.contains(&stall.reason.as_str());
            let stall = values.stalls.iter().find(is_wait)?;
            format!("{:.0} % of the warps wait: {}", stall.share_pct, stall.reason)
        } else if waiting >= WAITING_PCT {
            format!("{waiting:.0} % of the warps wait for memory")
        } else {
            return None;
        };
        (busiest < AT_ROOF_PCT).then_some((format!("occupancy {occupancy:.0} %, {text}"), busiest))
    };
    let Some((evidence, busiest)) = found() else { return };
    let ns = kernel.ns as f64 * (1.0 - busiest / 100.0);
    let sources = "achieved_occupancy_pct, stalls, sm_pct, memory_pct";
    rest.take(LedgerCause::Latency, ns, sources, || evidence);
}

/// The same for a kernel with samples only: instructions or traffic of device memory, whichever
/// takes longer, and latency if the SMs that have work hold few warps. A unit without a value of
/// the kernel's own may be the busiest, so nothing is known of the others.
fn by_samples(kernel: &KernelTime, used_ns: i64, rest: &mut Rest) {
    let SampledUse { issue_pct, dram_pct, occupancy_pct, .. } = kernel.evidence.sampled;
    let Some((issue, dram)) = issue_pct.zip(dram_pct) else { return };
    let busy_ns = |pct: f64| kernel.ns as f64 * pct / 100.0 - used_ns as f64;
    let sources = "sm_issue, dram_read, dram_write";
    if issue >= dram && kernel.multiplies_without_tensor_cores() {
        let evidence = || format!("tensor cores idle, issue slots {issue:.0} % in use");
        let sources = "sm_issue, tensor_active, dram_read, dram_write";
        rest.take(LedgerCause::TensorCores, busy_ns(issue), sources, evidence);
    } else if issue >= dram {
        let evidence = || format!("issue slots {issue:.0} % in use");
        rest.take(LedgerCause::Instructions, busy_ns(issue), sources, evidence);
    } else {
        let evidence = || format!("device memory {dram:.0} %, issue slots {issue:.0} % in use");
        rest.take(kernel.traffic(), busy_ns(dram), sources, evidence);
    }
    let Some((tensor, occupancy)) = kernel.evidence.tensor_pct.zip(occupancy_pct) else { return };
    let busiest = issue.max(dram).max(tensor);
    if occupancy < LOW_OCCUPANCY_PCT && busiest < AT_ROOF_PCT {
        let ns = kernel.ns as f64 * (1.0 - busiest / 100.0);
        rest.take(LedgerCause::Latency, ns, SAMPLED_LATENCY, || {
            format!("occupancy {occupancy:.0} %, issue slots {issue:.0} % in use")
        });
    }
}

/// Divides `total` over parts by their weights, each at most its limit.
pub fn fill(total: f64, parts: &[(i64, f64)]) -> Vec<i64> {
    let mut given = vec![0.0_f64; parts.len()];
    let mut left = total.max(0.0);
    // Each round fills at least one part or divides all that is left.
    for _ in 0..parts.len() {
        let open = |at: &usize| given[*at] < parts[*at].0 as f64;
        let weights: f64 = (0..parts.len()).filter(open).map(|at| parts[at].1).sum();
        let Some(each) = ratio(left, weights) else { break };
        let wanted: Vec<usize> = (0..parts.len()).filter(open).collect();
        for at in wanted {
            let more = (each * parts[at].1).min(parts[at].0 as f64 - given[at]);
            given[at] += more;
            left -= more;
        }
    }
    given.iter().zip(parts).map(|(ns, part)| (ns.round() as i64).clamp(0, part.0)).collect()
}

//! Floors of kernels: parts of an operator's floor, or of their own counters or samples; and the
//! time of bytes above them.

use super::{
    LedgerCause,
    causes::{self, KernelTime},
    evidence::{LaunchEvidence, SAMPLED_PASS},
    floors::{OperatorFloor, Rates},
    rows::StageRows,
    work::{OperatorGroups, StageSums, WorkName},
};
use crate::stats::ratio;

/// Floor of a kernel by its own evidence.
struct KernelFloor {
    ns: f64,
    pass: &'static str,
    samples: u64,
    sources: &'static str,
    text: String,
}

impl KernelFloor {
    /// The floor of `calls` launches that took `ns`: needs both the operations and the bytes,
    /// counted or as sampled shares of the peak.
    fn of(evidence: &LaunchEvidence, rates: &Rates, calls: f64, ns: i64) -> Option<Self> {
        let flops = evidence.counters.and_then(|values| rates.counted_ns(values));
        let bytes = evidence.bytes.zip(rates.bytes).map(|(at, rate)| rate.ns(at.bytes));
        let counted = flops.zip(bytes).map(|(flops, bytes)| Self {
            ns: flops.max(bytes) * calls,
            pass: evidence.pass,
            samples: evidence.samples,
            sources: "flops, dram_bytes, ceilings",
            text: format!("FLOPs and bytes counted by {}", evidence.pass),
        });
        let sampled = || {
            let peak = evidence.sampled_peak?;
            Some(Self {
                ns: peak.pct() / 100.0 * ns as f64,
                pass: SAMPLED_PASS,
                samples: peak.samples,
                sources: "dram_read, dram_write, tensor_active",
                text: peak.text(),
            })
        };
        counted.or_else(sampled)
    }
}

impl StageRows<'_> {
    /// Floors of kernels from their own counters or samples.
    pub fn place_kernel_floors(
        &self,
        path: &str,
        groups: &OperatorGroups,
        kernels: &mut [KernelTime],
        sums: &mut StageSums,
    ) {
        for ((work, group), kernel) in groups.iter().zip(kernels) {
            let WorkName { name, full_name, launch, .. } = work;
            let it = &kernel.evidence;
            let floor = KernelFloor::of(it, self.rates, group.calls, kernel.ns);
            let is_sampled = |it: &KernelFloor| it.pass == SAMPLED_PASS;
            let floor =
                floor.filter(|it| !is_sampled(it) || !kernel.multiplies_without_tensor_cores());
            let Some(floor) = floor.filter(|_| kernel.is_needed) else {
                let has_none = kernel.is_needed && !kernel.is_collective && !group.is_graph;
                sums.without_floor_ns += if has_none { group.ns } else { 0 };
                continue;
            };
            sums.is_any_floor = true;
            let wanted = floor.ns.round() as i64;
            kernel.floor_ns = wanted.clamp(0, kernel.ns);
            sums.capped += u64::from(wanted > kernel.ns);
            sums.capped_ns += (wanted - kernel.ns).max(0);
            let operator = Some(path.to_owned()).filter(|path| !path.is_empty());
            let mut member = self.member(LedgerCause::Floor, operator, Some(name.clone()));
            member.set_launch(*launch);
            member.full_name = full_name.map(str::to_owned);
            member.calls = group.calls;
            member.ns = kernel.floor_ns;
            (member.samples, member.pass) = (floor.samples, floor.pass.into());
            member.evidence = floor.text;
            sums.add(member, floor.sources);
        }
    }

    /// Time of bytes above the necessary ones. Replays with cold caches read all operands.
    pub fn place_excess(&self, kernels: &mut [KernelTime], floor: Option<&OperatorFloor>) {
        let Some(rate) = self.rates.bytes else { return };
        if floor.is_some_and(|it| it.bytes.is_none()) {
            return;
        }
        let bytes = |it: &KernelTime| it.evidence.bytes.map_or(0.0, |at| at.bytes * it.calls);
        let counted: f64 = kernels.iter().filter(|it| it.is_needed).map(bytes).sum();
        let is_cold = kernels.iter().any(|it| it.evidence.bytes.is_some_and(|bytes| bytes.is_cold));
        let needed = floor.and_then(|it| it.bytes).unwrap_or_default();
        let needed = if is_cold { needed.all.max(needed.needed) } else { needed.needed };
        let floor_ns = floor.map_or(0.0, |it| it.ns);
        let excess = rate.ns(counted) - rate.ns(needed).max(floor_ns);
        if excess <= 0.0 || !excess.is_finite() {
            return;
        }
        let text = format!("{:.2} MB moved, {:.2} MB necessary", counted / 1e6, needed / 1e6);
        for it in kernels.iter_mut().filter(|it| it.is_needed) {
            let share = ratio(bytes(it), counted).unwrap_or(0.0);
            it.excess = (share > 0.0).then(|| (excess * share, text.clone()));
        }
    }
}

/// Distributes an operator's floor over its kernels: by their bytes if bytes limit it, else by
/// their operations, else by the time of those that may compute products, else by their time.
pub fn place_floor(
    kernels: &mut [KernelTime],
    floor: Option<&OperatorFloor>,
    rates: &Rates,
    sums: &mut StageSums,
) {
    let Some(floor) = floor.filter(|it| it.ns > 0.0) else { return };
    let weight = |it: &KernelTime| match floor.is_memory_bound {
        true => it.evidence.bytes.map(|at| at.bytes * it.calls),
        false => Some(rates.counted_ns(it.evidence.counters?)? * it.calls),
    };
    let needed = || kernels.iter().filter(|it| it.is_needed && !it.is_collective);
    let is_counted = needed().all(|it| weight(it).is_some_and(|weight| weight > 0.0));
    let by_products =
        !is_counted && !floor.is_memory_bound && needed().any(KernelTime::may_multiply);
    let part = |it: &KernelTime| {
        if !it.is_needed || it.is_collective || (by_products && !it.may_multiply()) {
            return (0, 0.0);
        }
        (it.ns, if is_counted { weight(it).unwrap_or(0.0) } else { it.ns as f64 })
    };
    let parts: Vec<(i64, f64)> = kernels.iter().map(part).collect();
    let placed = causes::fill(floor.ns, &parts);
    let all: i64 = parts.iter().map(|it| it.0).sum();
    let wanted = floor.ns.round() as i64;
    if wanted > all {
        sums.capped += 1;
        sums.capped_ns += wanted - all;
    }
    kernels.iter_mut().zip(placed).for_each(|(it, ns)| it.floor_ns = ns);
}

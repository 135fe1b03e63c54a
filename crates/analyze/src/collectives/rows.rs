//! Rows of one group: by stage, kind and size, by rank, by step, and by kernel.

use std::collections::BTreeMap;

use llmprof_core::{
    domain::units::Nanos,
    trace::{collectives::CollectiveKind, timeline::pid_of},
};

use super::{
    Aligned, CollectiveRecord, CollectiveTables, GroupNote, JoinedOperation, KernelWait,
    RankRecord, StepSkew,
    members::{CollectiveLaunch, MemberGroup},
    verdict::{RankVerdict, verdict},
};
use crate::{
    kernels::is_measured,
    stats::{median, median_of, percent, ratio},
    timeline::capture::Capture,
};

/// Stage number, kind, dtype and size.
type RowKey = (usize, CollectiveKind, Option<&'static str>, Option<u64>);

fn key_of(it: &CollectiveLaunch) -> RowKey {
    (it.stage, it.operation, it.dtype, it.bytes)
}

/// Sums of one row.
#[derive(Default)]
struct RowSums {
    /// By member.
    calls: Vec<u64>,
    last: Vec<u64>,
    kernel_ns: i64,
    skew_ns: Vec<i64>,
    wait_ns: Vec<f64>,
    transfer_ns: Vec<i64>,
}

/// Sums of one member over the measured stages.
#[derive(Clone, Default)]
struct MemberSums {
    calls: u64,
    joined: u64,
    kernel_ns: i64,
    wait_ns: i64,
    transfer_ns: i64,
    last: u64,
}

/// Sums of one instance of a stage.
#[derive(Default)]
struct StepSums {
    joined: u64,
    skew_ns: i64,
    wait_ns: f64,
    transfer_ns: i64,
    last: Vec<u64>,
}

/// Adds the rows of a group.
pub fn add_group(aligned: &Aligned, capture: &Capture, tables: &mut CollectiveTables) {
    let group = &aligned.group;
    let count = group.members.len();
    let is_counted = |it: &CollectiveLaunch| is_measured(capture.stage_label(it.stage));
    let mut rows: BTreeMap<RowKey, RowSums> = BTreeMap::new();
    let mut members = vec![MemberSums::default(); count];
    let mut steps: BTreeMap<(usize, u32), StepSums> = BTreeMap::new();
    let mut waits: BTreeMap<(usize, u32), KernelWait> = BTreeMap::new();
    for (at, member) in group.members.iter().enumerate() {
        for it in member.launches.iter().filter(|it| is_counted(it)) {
            let row = rows.entry(key_of(it)).or_default();
            row.calls.resize(count, 0);
            row.calls[at] += 1;
            row.kernel_ns = row.kernel_ns.saturating_add(it.ns());
            members[at].calls += 1;
            members[at].kernel_ns = members[at].kernel_ns.saturating_add(it.ns());
            let wait = waits.entry((it.stage, it.kind)).or_default();
            wait.launches += 1;
            wait.ns = wait.ns.saturating_add(it.ns());
        }
    }
    for operation in aligned.operations() {
        let first = launch(group, &operation, 0);
        if !is_counted(first) {
            continue;
        }
        rows.entry(key_of(first)).or_default().add(&operation);
        if first.stage > 0 {
            steps.entry((first.stage, first.instance)).or_default().add(&operation);
        }
        for (at, wait_ns) in operation.wait_ns.iter().enumerate() {
            let it = launch(group, &operation, at);
            let sums = &mut members[at];
            sums.joined += 1;
            sums.last += u64::from(operation.last == Some(at));
            sums.wait_ns = sums.wait_ns.saturating_add(*wait_ns);
            sums.transfer_ns = sums.transfer_ns.saturating_add(it.ns() - wait_ns);
            let wait = waits.entry((it.stage, it.kind)).or_default();
            wait.joined += 1;
            wait.wait_ns = wait.wait_ns.saturating_add(*wait_ns);
            wait.transfer_ns = wait.transfer_ns.saturating_add(it.ns() - wait_ns);
        }
    }
    let note = note(aligned, &members);
    let records = rows.into_iter().filter(|(_, row)| !row.calls.is_empty());
    tables.records.extend(
        records.map(|(key, row)| row.record(group, capture.stage_label(key.0), key, note.verdict)),
    );
    tables.ranks.extend((0..count).map(|at| rank(aligned, at, &members[at])));
    tables.steps.extend(step_rows(group, capture, steps));
    for ((stage, kind), wait) in waits {
        let stage = capture.stage_label(stage).to_owned();
        tables.waits.entry((stage, kind)).or_default().add(&wait);
    }
    tables.groups.push(note);
}

fn launch<'a>(group: &'a MemberGroup, of: &JoinedOperation, at: usize) -> &'a CollectiveLaunch {
    &group.members[at].launches[of.launches[at] as usize]
}

fn mean(waits: &[i64]) -> f64 {
    waits.iter().map(|ns| *ns as f64).sum::<f64>() / waits.len().max(1) as f64
}

fn add_last(times: &mut Vec<u64>, operation: &JoinedOperation) {
    times.resize(operation.launches.len(), 0);
    if let Some(last) = operation.last {
        times[last] += 1;
    }
}

/// The member that was last most often, the first of several, with its count.
fn slowest(times: &[u64]) -> Option<(usize, u64)> {
    let most = *times.iter().max().filter(|most| **most > 0)?;
    times.iter().position(|it| *it == most).map(|at| (at, most))
}

impl KernelWait {
    fn add(&mut self, other: &Self) {
        self.launches += other.launches;
        self.ns = self.ns.saturating_add(other.ns);
        self.joined += other.joined;
        self.wait_ns = self.wait_ns.saturating_add(other.wait_ns);
        self.transfer_ns = self.transfer_ns.saturating_add(other.transfer_ns);
    }
}

impl RowSums {
    fn add(&mut self, operation: &JoinedOperation) {
        add_last(&mut self.last, operation);
        self.skew_ns.push(operation.skew_ns);
        self.wait_ns.push(mean(&operation.wait_ns));
        self.transfer_ns.push(operation.transfer_ns);
    }

    fn record(
        self,
        group: &MemberGroup,
        stage: &str,
        (_, kind, dtype, bytes): RowKey,
        verdict: Option<RankVerdict>,
    ) -> CollectiveRecord {
        let joined = self.skew_ns.len() as u64;
        let transfer_ns = median_of(self.transfer_ns).filter(|ns| *ns > 0);
        let rate =
            bytes.zip(transfer_ns).and_then(|(bytes, ns)| ratio(bytes as f64 * 1e9, ns as f64));
        let (slowest, lasts) = (slowest(&self.last), self.last.iter().sum::<u64>());
        let us = |ns: f64| ns / 1e3;
        CollectiveRecord {
            stage: stage.to_owned(),
            group: group.name.clone(),
            kind,
            dtype: dtype.map(str::to_owned),
            bytes,
            ranks: group.members.len() as u32,
            calls: self.calls.iter().copied().max().unwrap_or(0),
            joined,
            kernel_ms: Nanos(self.kernel_ns).as_ms(),
            skew_us: median_of(self.skew_ns).map(|ns| us(ns as f64)),
            wait_us: median(self.wait_ns).map(us),
            transfer_us: transfer_ns.map(|ns| us(ns as f64)),
            algorithm_bytes_per_s: rate.filter(|_| kind.bus_factor(group.members.len()).is_some()),
            bus_bytes_per_s: rate.zip(kind.bus_factor(group.members.len())).map(|(a, b)| a * b),
            slowest_rank: slowest.map(|(at, _)| group.members[at].rank),
            slowest_pct: slowest.and_then(|(_, most)| percent(most as f64, lasts as f64)),
            verdict,
        }
    }
}

impl StepSums {
    fn add(&mut self, operation: &JoinedOperation) {
        add_last(&mut self.last, operation);
        self.joined += 1;
        self.skew_ns = self.skew_ns.max(operation.skew_ns);
        self.wait_ns += mean(&operation.wait_ns);
        self.transfer_ns = self.transfer_ns.saturating_add(operation.transfer_ns.max(0));
    }
}

fn note(aligned: &Aligned, members: &[MemberSums]) -> GroupNote {
    let group = &aligned.group;
    let sum = |of: fn(&MemberSums) -> i64| members.iter().map(of).fold(0, i64::saturating_add);
    let (wait_ns, transfer_ns) = (sum(|it| it.wait_ns), sum(|it| it.transfer_ns));
    let times_last: Vec<u64> = members.iter().map(|it| it.last).collect();
    let waiting = percent(wait_ns as f64, wait_ns.saturating_add(transfer_ns) as f64);
    let joined = members.iter().map(|it| it.joined).max().unwrap_or(0);
    let launches = || group.members.iter().flat_map(|it| &it.launches);
    GroupNote {
        group: group.name.clone(),
        ranks: group.members.iter().map(|it| it.rank).collect(),
        joined: aligned.joined.len(),
        unpaired: aligned.joined.unpaired,
        problem: aligned.joined.problem.clone(),
        clocks: aligned.clocks.clone(),
        verdict: (joined > 0).then(|| verdict(joined, &times_last, waiting.unwrap_or(0.0))),
        times_last,
        wait_ns,
        kernel_ns: wait_ns.saturating_add(transfer_ns),
        has_sizes: launches().any(|it| it.bytes.is_some()),
    }
}

fn rank(aligned: &Aligned, at: usize, sums: &MemberSums) -> RankRecord {
    let member = &aligned.group.members[at];
    let clock = Some(aligned.clocks[at]).filter(|it| it.is_estimated);
    let us = |ns: i64| ns as f64 / 1e3;
    let joined = |ns: i64| (sums.joined > 0).then(|| Nanos(ns).as_ms());
    RankRecord {
        group: aligned.group.name.clone(),
        rank: member.rank,
        process: pid_of(member.process),
        device: member.device,
        calls: sums.calls,
        joined: sums.joined,
        kernel_ms: Nanos(sums.kernel_ns).as_ms(),
        wait_ms: joined(sums.wait_ns),
        transfer_ms: joined(sums.transfer_ns),
        times_last: (sums.joined > 0).then_some(sums.last),
        clock_offset_us: clock.map(|it| us(it.ns)),
        clock_spread_us: clock.map(|it| us(it.spread_ns)),
    }
}

/// One row for each instance of a stage, in order.
fn step_rows(
    group: &MemberGroup,
    capture: &Capture,
    steps: BTreeMap<(usize, u32), StepSums>,
) -> Vec<StepSkew> {
    let mut numbers: BTreeMap<usize, u64> = BTreeMap::new();
    let row = |((stage, _), sums): ((usize, u32), StepSums)| {
        let number = numbers.entry(stage).or_default();
        *number += 1;
        let slowest = slowest(&sums.last);
        StepSkew {
            stage: capture.stage_label(stage).to_owned(),
            group: group.name.clone(),
            step: *number - 1,
            joined: sums.joined,
            skew_us: sums.skew_ns as f64 / 1e3,
            wait_ms: sums.wait_ns / 1e6,
            transfer_ms: Nanos(sums.transfer_ns).as_ms(),
            slowest_rank: slowest.map(|(at, _)| group.members[at].rank),
        }
    };
    steps.into_iter().map(row).collect()
}

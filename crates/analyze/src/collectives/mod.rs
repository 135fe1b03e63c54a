//! Collective operations joined across ranks: waiting for the last rank apart from transfer.
//!
//! A rank waits from its own start until the last rank has started; the rest of its time is the
//! transfer. Both are absent if the operations of all ranks cannot be paired. `specs/formulas.md`
//! has the formulas.

mod clocks;
mod join;
mod members;
mod rows;
mod split;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::{clocks::ClockOffset, join::NotJoined, verdict::RankVerdict};
use llmprof_core::trace::collectives::CollectiveKind;

use self::{join::JoinedGroup, members::MemberGroup};
use super::timeline::{
    capture::Capture,
    withheld::{TimelineFigure, Withheld},
};

/// Ranks start together within this part of an operation's time: one in 10.
const TOGETHER: i64 = 10;

/// Operations of one group, kind and size in one stage. Times are medians over operations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CollectiveRecord {
    pub stage: String,
    pub group: String,
    pub kind: CollectiveKind,
    pub dtype: Option<String>,
    /// Size of the whole array; `null` if it is not recorded.
    pub bytes: Option<u64>,
    /// Ranks in the capture.
    pub ranks: u32,
    /// Operations of the rank with the most.
    pub calls: u64,
    /// Operations that were paired across all ranks.
    pub joined: u64,
    /// Time of the kernels of all ranks.
    pub kernel_ms: f64,
    /// From the first rank's start to the last one's; `null`, as all below, if none was paired.
    pub skew_us: Option<f64>,
    /// Mean over the ranks of the time until the last one started.
    pub wait_us: Option<f64>,
    /// From the last rank's start to the last end.
    pub transfer_us: Option<f64>,
    /// `bytes` by the transfer.
    pub algorithm_bytes_per_s: Option<f64>,
    /// The same times NCCL's factor of the kind.
    pub bus_bytes_per_s: Option<f64>,
    /// The rank that was last most often, and its share of the operations with a last rank.
    pub slowest_rank: Option<u32>,
    pub slowest_pct: Option<f64>,
    /// Verdict on the whole group.
    pub verdict: Option<RankVerdict>,
}

/// One rank in one group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankRecord {
    pub group: String,
    pub rank: u32,
    pub process: u32,
    pub device: u32,
    /// Operations outside the warm-up, and those paired across all ranks.
    pub calls: u64,
    pub joined: u64,
    pub kernel_ms: f64,
    /// Wait in the paired operations; `null`, as are the next two, if none was paired.
    pub wait_ms: Option<f64>,
    pub transfer_ms: Option<f64>,
    /// Operations in which it started last, by more than 10 % of the operation's time.
    pub times_last: Option<u64>,
    /// Offset of its clock from the group's first rank; `null` if they share one.
    pub clock_offset_us: Option<f64>,
    pub clock_spread_us: Option<f64>,
}

/// Operations of one group in one instance of a stage, as of one step of an engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepSkew {
    pub stage: String,
    pub group: String,
    /// Instance of the stage on the group's first rank, from 0.
    pub step: u64,
    pub joined: u64,
    /// Largest distance between the first rank's start and the last one's.
    pub skew_us: f64,
    /// Sum of the mean waits.
    pub wait_ms: f64,
    pub transfer_ms: f64,
    /// The rank that was last most often; `None` if the ranks started together.
    pub slowest_rank: Option<u32>,
}

/// Waiting of the launches of one kernel in one stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelWait {
    pub launches: u64,
    pub ns: i64,
    /// Paired launches, with their parts.
    pub joined: u64,
    pub wait_ns: i64,
    pub transfer_ns: i64,
}

/// Result of joining one group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupNote {
    pub group: String,
    pub ranks: Vec<u32>,
    pub joined: usize,
    pub unpaired: usize,
    pub problem: Option<NotJoined>,
    /// By rank.
    pub clocks: Vec<ClockOffset>,
    /// `None` if nothing was paired.
    pub verdict: Option<RankVerdict>,
    /// By rank, of the paired operations.
    pub times_last: Vec<u64>,
    pub wait_ns: i64,
    pub kernel_ns: i64,
    /// True if the sizes of operations are recorded.
    pub has_sizes: bool,
}

/// The collective operations of a capture.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CollectiveTables {
    /// Longest kernel time first.
    pub records: Vec<CollectiveRecord>,
    pub ranks: Vec<RankRecord>,
    pub steps: Vec<StepSkew>,
    pub groups: Vec<GroupNote>,
    /// By stage and index of the kernel's kind.
    pub waits: BTreeMap<(String, u32), KernelWait>,
}

impl CollectiveTables {
    /// Removes the figures of stages that are withheld, and sums that include these.
    pub fn withhold(&mut self, withheld: &Withheld) {
        let is_kept = |stage: &str| !withheld.has(stage, TimelineFigure::Collectives);
        self.records.retain(|it| is_kept(&it.stage));
        self.steps.retain(|it| is_kept(&it.stage));
        self.waits.retain(|(stage, _), _| is_kept(stage));
        if withheld.has_in_capture(TimelineFigure::Ranks) {
            self.ranks.clear();
        }
    }
}

/// True for a stage with collective operations, in which a busy GPU may wait for an idle one.
/// `waits` are of [`CollectiveTables`].
pub fn are_in_stage(waits: &BTreeMap<(String, u32), KernelWait>, stage: &str) -> bool {
    waits.keys().any(|(of, _)| of == stage)
}

/// Joins the collective operations of a capture; empty without any.
pub fn collectives(capture: &Capture) -> CollectiveTables {
    let mut tables = CollectiveTables::default();
    for group in members::groups(capture) {
        let mut joined = join::join(&group);
        let clocks = clocks::align(&group, &mut joined);
        rows::add_group(&Aligned { group, joined, clocks }, capture, &mut tables);
    }
    tables.records.sort_by(|a, b| b.kernel_ms.total_cmp(&a.kernel_ms));
    tables
}

/// A group whose operations are paired, with the clocks of its members.
struct Aligned {
    group: MemberGroup,
    joined: JoinedGroup,
    clocks: Vec<ClockOffset>,
}

/// One operation of all ranks, on the clock of the first.
#[derive(Debug, Clone, PartialEq)]
struct JoinedOperation {
    /// Index of each member's launch.
    launches: Vec<u32>,
    /// Time of each member until the last one started, within its own time.
    wait_ns: Vec<i64>,
    /// Member that started last; `None` if the members started together.
    last: Option<usize>,
    skew_ns: i64,
    /// From the last start to the last end; not positive if the clocks contradict.
    transfer_ns: i64,
}

impl Aligned {
    /// The paired operations.
    fn operations(&self) -> impl Iterator<Item = JoinedOperation> {
        self.joined.iter().map(|row| {
            let of = |member: usize| {
                let launch = &self.group.members[member].launches[row[member] as usize];
                let offset = self.clocks[member].ns;
                (launch.start_ns.saturating_sub(offset), launch.end_ns.saturating_sub(offset))
            };
            let times: Vec<(i64, i64)> = (0..row.len()).map(of).collect();
            let starts = || times.iter().map(|it| it.0);
            let (first, latest) = (starts().min().unwrap_or(0), starts().max().unwrap_or(0));
            let end = times.iter().map(|it| it.1).max().unwrap_or(0);
            let wait = |it: &(i64, i64)| latest.saturating_sub(it.0).clamp(0, it.1 - it.0);
            let (skew_ns, transfer_ns) = (latest.saturating_sub(first), end.saturating_sub(latest));
            let together = skew_ns.saturating_add(transfer_ns) / TOGETHER;
            JoinedOperation {
                launches: row.to_vec(),
                wait_ns: times.iter().map(wait).collect(),
                last: starts().position(|it| it == latest).filter(|_| skew_ns > together),
                skew_ns,
                transfer_ns,
            }
        })
    }
}

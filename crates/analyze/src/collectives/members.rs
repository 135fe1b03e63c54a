//! Launches of collective operations by group and rank, in order of their starts.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;
use llmprof_core::trace::{
    collectives::{CollectiveKind, dtype_of_kernel},
    kernel::TracedKernel,
    names::base_name,
    timeline::{Timeline, process_of},
};

use super::split::split;
use crate::timeline::capture::{Capture, Join};

/// One launch of a collective operation by one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CollectiveLaunch {
    pub start_ns: i64,
    pub end_ns: i64,
    pub operation: CollectiveKind,
    pub bytes: Option<u64>,
    pub dtype: Option<&'static str>,
    /// Number in the group, if it is recorded.
    pub sequence: Option<u64>,
    /// Index of the kernel's kind.
    pub kind: u32,
    /// Stage number of [`Capture`], and its instance.
    pub stage: usize,
    pub instance: u32,
}

impl CollectiveLaunch {
    pub const fn ns(&self) -> i64 {
        self.end_ns - self.start_ns
    }
}

/// The launches of one rank in one group.
#[derive(Debug, Clone, Default)]
pub struct GroupMember {
    pub process: i64,
    pub device: u32,
    /// Among all ranks of the program; the member's place in the group if it is not recorded.
    pub rank: u32,
    /// The file that recorded it: members of one file share a clock.
    pub file: u32,
    pub launches: Vec<CollectiveLaunch>,
}

/// A group of ranks with their launches.
#[derive(Debug, Clone, Default)]
pub struct MemberGroup {
    /// Name and purpose, or the place of its stream if the group is not recorded.
    pub name: String,
    /// Ranks that the program has in it; of a group that is not recorded all ranks of the program,
    /// if the capture lacks some; `None` if that is unknown.
    pub size: Option<u32>,
    /// In order of their ranks.
    pub members: Vec<GroupMember>,
}

/// Identity of a group before it has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum GroupKey {
    Recorded(u32),
    /// The n-th stream of a rank that runs collective operations without a record.
    Stream(usize),
}

/// Launches by group and by process and device.
type Found = BTreeMap<GroupKey, BTreeMap<(i64, u32), Vec<CollectiveLaunch>>>;

/// The groups of a capture.
pub fn groups(capture: &Capture) -> Vec<MemberGroup> {
    let name = |at: u32| capture.trace.text(at);
    let kinds = capture.trace.kernels.kinds().iter().map(|kind| base_name(name(kind.full_name)));
    let (named, dtypes): (Vec<_>, Vec<_>) =
        kinds.map(|it| (CollectiveKind::of_kernel(it), dtype_of_kernel(it))).unzip();
    let recorded = &capture.trace.collectives;
    if recorded.calls.is_empty() && named.iter().all(Option::is_none) {
        return Vec::new();
    }
    let mut found = Found::new();
    let mut streams: HashMap<(i64, u32), Vec<u32>> = HashMap::default();
    for ((kind, kernel), Join { instance, .. }) in capture.kernels_by_kind() {
        let process = process_of(kernel.global_pid);
        let call = recorded.call(process, kernel.correlation_id);
        let Some(operation) = call.map(|it| it.kind).or(named[kind as usize]) else { continue };
        // A process has one place in its group in all of its recording windows.
        let of = (recorded.owner(process), kernel.device);
        let key = match call {
            Some(call) => GroupKey::Recorded(call.group),
            None => {
                let known = streams.entry(of).or_default();
                let at = known.iter().position(|it| *it == kernel.stream);
                GroupKey::Stream(at.unwrap_or_else(|| {
                    known.push(kernel.stream);
                    known.len() - 1
                }))
            }
        };
        let TracedKernel { start_ns, end_ns, .. } = kernel;
        found.entry(key).or_default().entry(of).or_default().push(CollectiveLaunch {
            start_ns,
            end_ns,
            operation,
            bytes: call.and_then(|it| it.bytes()),
            dtype: call.and_then(|it| it.dtype).or(dtypes[kind as usize]),
            sequence: call.and_then(|it| it.sequence),
            kind,
            stage: capture.stage_number(instance),
            instance,
        });
    }
    let groups = found.into_iter().flat_map(|(key, members)| {
        let group = group(key, members, capture.trace);
        if matches!(key, GroupKey::Stream(_)) { split(group) } else { vec![group] }
    });
    groups.collect()
}

fn group(
    key: GroupKey,
    members: BTreeMap<(i64, u32), Vec<CollectiveLaunch>>,
    trace: &Timeline,
) -> MemberGroup {
    let recorded = &trace.collectives;
    let mut members: Vec<GroupMember> = members
        .into_iter()
        .enumerate()
        .map(|(at, ((process, device), launches))| GroupMember {
            process,
            device,
            rank: recorded.processes.get(&process).and_then(|it| it.rank).unwrap_or(at as u32),
            file: recorded.file(process),
            launches,
        })
        .collect();
    members.sort_by_key(|it| (it.rank, it.process, it.device));
    let world = recorded.owners().filter_map(|it| it.world_size).max();
    let ranks: BTreeSet<_> = recorded.owners().filter_map(|it| it.rank).collect();
    let world = world.filter(|size| *size as usize > ranks.len());
    let (name, size) = match key {
        GroupKey::Stream(0) => ("stream of collectives".to_owned(), world),
        GroupKey::Stream(at) => (format!("stream of collectives {}", at + 1), world),
        GroupKey::Recorded(at) => {
            let group = recorded.groups.get(at as usize).cloned().unwrap_or_default();
            let listed = Some(group.ranks.len() as u32).filter(|it| *it > 0);
            let name = match (group.name.as_str(), group.description.as_str()) {
                ("", "") => "group".to_owned(),
                (name, "" | "undefined") => format!("group {name}"),
                ("", text) => text.to_owned(),
                (name, text) => format!("{text} ({name})"),
            };
            (name, listed.or(group.size))
        }
    };
    MemberGroup { name, size, members }
}

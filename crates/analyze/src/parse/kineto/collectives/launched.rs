//! The recorded operations of a launch: the operator around it on its thread, or the operators that
//! PyTorch recorded one by one and launches as one.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashSet};
use llmprof_core::trace::{
    collectives::{CollectiveCall, CollectiveKind},
    timeline::{ApiCall, ApiCalls},
};

use super::OnThread;

/// Range in which PyTorch launches operations that it recorded before.
const COALESCED: &str = "nccl:coalesced";
/// Max operators that are searched for one around a launch.
const MAX_NESTED: usize = 4;

/// Operators that record calls, and the ranges that launch several of them.
#[derive(Debug, Default)]
pub struct LaunchRecords {
    /// By thread: start, end and index of the call.
    operators: BTreeMap<u32, Vec<(i64, i64, u32)>>,
    /// By thread: start and end.
    coalesced: BTreeMap<u32, Vec<(i64, i64)>>,
}

impl LaunchRecords {
    /// Adds the operator of a call.
    pub fn add(&mut self, call: u32, (thread, start_ns, end_ns): OnThread) {
        self.operators.entry(thread).or_default().push((start_ns, end_ns, call));
    }

    /// Adds a range, which may launch several operations.
    pub fn add_range(&mut self, name: &str, (thread, start_ns, end_ns): OnThread) {
        if name == COALESCED {
            self.coalesced.entry(thread).or_default().push((start_ns, end_ns));
        }
    }

    /// The calls of the launches of `kernels`, by correlation id.
    pub fn by_launch(
        mut self,
        kernels: &HashSet<u32>,
        launches: &ApiCalls,
        calls: &[CollectiveCall],
    ) -> HashMap<u32, CollectiveCall> {
        self.operators.values_mut().for_each(|it| it.sort_unstable());
        self.coalesced.values_mut().for_each(|it| it.sort_unstable());
        let launch = |it: ApiCall| {
            let id = u32::try_from(it.correlation_id).ok().filter(|id| kernels.contains(id))?;
            Some((u32::try_from(it.global_tid).ok()?, it.start_ns, id))
        };
        let mut ordered: Vec<(u32, i64, u32)> = launches.iter().filter_map(launch).collect();
        ordered.sort_unstable();
        let mut found = HashMap::default();
        let mut last: Option<(u32, i64)> = None;
        for (thread, at, correlation) in ordered {
            let from = last.filter(|it| it.0 == thread).map_or(i64::MIN, |it| it.1);
            let one = self.around(thread, at).map(|it| calls[it as usize]);
            if let Some(call) = one.or_else(|| self.coalesced((thread, from, at), calls)) {
                found.entry(correlation).or_insert(call);
            }
            last = Some((thread, at));
        }
        found
    }

    /// The call of the innermost operator around a time.
    fn around(&self, thread: u32, at: i64) -> Option<u32> {
        let operators = self.operators.get(&thread)?;
        let before = &operators[..operators.partition_point(|it| it.0 <= at)];
        // Operators inside it may have ended before.
        before.iter().rev().take(MAX_NESTED).find(|it| at <= it.1).map(|it| it.2)
    }

    /// The call of a launch in a range of several operations, by the operators after the launch
    /// before it. Their sizes add up, except for sends and receives, which are two directions.
    fn coalesced(
        &self,
        (thread, from, at): OnThread,
        calls: &[CollectiveCall],
    ) -> Option<CollectiveCall> {
        let ranges = self.coalesced.get(&thread)?;
        let range = ranges[..ranges.partition_point(|it| it.0 <= at)].last()?;
        let operators = self.operators.get(&thread).filter(|_| at <= range.1)?;
        let first = operators.partition_point(|it| it.0 <= from);
        let until = operators.partition_point(|it| it.0 <= at);
        let of_launch = operators.get(first..until)?.iter().map(|it| calls[it.2 as usize]);
        let mut of_launch = of_launch.filter(|it| it.kind != CollectiveKind::Other);
        let mut sum = of_launch.next()?;
        for it in of_launch {
            if (it.group, it.kind) != (sum.group, sum.kind) {
                return None;
            }
            let has_sum = it.kind != CollectiveKind::SendReceive && it.dtype == sum.dtype;
            let add = |a: Option<u64>, b: Option<u64>| {
                a.zip(b).filter(|_| has_sum).and_then(|(a, b)| a.checked_add(b))
            };
            sum.in_elements = add(sum.in_elements, it.in_elements);
            sum.out_elements = add(sum.out_elements, it.out_elements);
        }
        Some(sum)
    }
}

//! Joins device work to the call that launched it, and that call to the stage open at its start.
//!
//! The keys are process and correlation id. Work usually comes in the order of its calls, so most
//! calls are found next to the last one.

use std::{collections::BTreeMap, sync::Arc};

use llmprof_core::trace::{
    kernel::TracedKernel,
    nsys::{ApiCalls, CallPart, NsysTrace, process_of},
    packed::{PackedReader, PackedRows},
};
use rayon::prelude::*;

use crate::{
    kernels::{OUTSIDE, WARMUP},
    timeline::{
        framework_nests::FrameworkIndex,
        open_ranges::{EXCLUDED, NONE, OpenStages, Segments},
    },
};

/// Calls of each process in order of their correlation ids.
pub struct CallIndex(BTreeMap<i64, PackedRows<2>>);

impl CallIndex {
    pub fn of(calls: &ApiCalls) -> Self {
        let of_site: Vec<i64> =
            calls.sites().iter().map(|(_, thread)| process_of(*thread)).collect();
        let mut processes = of_site.clone();
        processes.sort_unstable();
        processes.dedup();
        let slot = |process: &i64| processes.partition_point(|known| known < process);
        let slots: Vec<usize> = of_site.iter().map(slot).collect();
        let (mut parts, mut first) = (Vec::new(), 0);
        for part in calls.parts(rayon::current_num_threads()) {
            let length = part.len();
            parts.push((first, part));
            first += length;
        }
        let ids = |(first, calls): (usize, CallPart)| {
            let mut ids = vec![PackedRows::<2>::default(); processes.len()];
            for (at, (site, call)) in calls.enumerate() {
                if call.correlation_id > 0 {
                    ids[slots[site as usize]].push([call.correlation_id, (first + at) as i64]);
                }
            }
            ids
        };
        let parts: Vec<Vec<PackedRows<2>>> = parts.into_par_iter().map(ids).collect();
        let mut all = vec![PackedRows::default(); processes.len()];
        for part in parts {
            all.iter_mut().zip(part).for_each(|(all, part)| all.append(part));
        }
        all.iter_mut().for_each(PackedRows::sort);
        Self(processes.into_iter().zip(all).collect())
    }

    pub fn lookup(&self) -> CallLookup<'_> {
        CallLookup { index: self, process: None, last: 0 }
    }
}

/// Finds calls, most of them near the last one.
pub struct CallLookup<'a> {
    index: &'a CallIndex,
    /// The last process, and its calls.
    process: Option<(i64, PackedReader<'a, 2>)>,
    last: usize,
}

impl CallLookup<'_> {
    /// The call with this correlation id in this process; [`NONE`] when the capture lacks it.
    #[inline]
    pub fn find(&mut self, process: i64, correlation: i64) -> u32 {
        /// Typical number of calls between two launches, for a linear search from the last hit.
        const NEAR: usize = 16;
        let process = process_of(process);
        if self.process.as_ref().is_none_or(|(known, _)| *known != process) {
            let Some(rows) = self.index.0.get(&process) else { return NONE };
            (self.process, self.last) = (Some((process, rows.reader())), 0);
        }
        let Some((_, reader)) = &mut self.process else { return NONE };
        let near = self.last..(self.last + NEAR).min(reader.len());
        let found = near.into_iter().find(|at| reader.get(*at)[0] == correlation);
        let Some(at) = found.or_else(|| reader.find(correlation)) else { return NONE };
        self.last = at;
        reader.get(at)[1] as u32
    }
}

/// A set of calls by their indices.
pub struct CallSet(Vec<u64>);

impl CallSet {
    /// An empty set of calls below `count`.
    pub fn below(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    pub fn insert(&mut self, call: u32) {
        self.0[call as usize / 64] |= 1 << (call % 64);
    }

    pub fn contains(&self, call: usize) -> bool {
        self.0[call / 64] >> (call % 64) & 1 == 1
    }
}

/// Looks up open ranges on several threads, remembering the position in the current one.
#[derive(Default)]
pub struct Cursor<'a> {
    thread: Option<i64>,
    segments: Option<&'a Segments>,
    hint: usize,
}

impl<'a> Cursor<'a> {
    /// The value open on `thread` at `t`; `of` returns the thread's segments.
    #[inline]
    pub fn at(&mut self, thread: i64, t: i64, of: impl FnOnce(i64) -> Option<&'a Segments>) -> u32 {
        if Some(thread) != self.thread {
            (self.thread, self.segments, self.hint) = (Some(thread), of(thread), 0);
        }
        self.segments.map_or(NONE, |segments| segments.at(t, &mut self.hint))
    }
}

/// By kernel, copy or graph: its launching call and the stage instance open at the call's start, or
/// [`NONE`].
#[derive(Debug, Default)]
pub struct Joins(PackedRows<2>);

impl Joins {
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u32, u32)> + Clone + '_ {
        self.0.iter().map(|[call, instance]| (call as u32, instance as u32))
    }

    /// The pair at index `at`.
    pub fn get(&self, at: usize) -> (u32, u32) {
        let [call, instance] = self.0.get(at);
        (call as u32, instance as u32)
    }
}

/// Launching call and stage of every kernel, copy and whole-traced graph of a capture.
pub struct LaunchIndex {
    pub stages: OpenStages,
    pub kernels: Arc<Joins>,
    pub copies: Arc<Joins>,
    /// By launch of a whole-traced graph.
    pub graphs: Arc<Joins>,
    /// Operators of a framework; `None` for a capture without their calls.
    pub framework: Option<FrameworkIndex>,
    /// Label of work launched outside all stages.
    pub outside: &'static str,
}

impl LaunchIndex {
    pub fn of(trace: &NsysTrace) -> Self {
        let (stages, index) =
            rayon::join(|| OpenStages::of(trace, WARMUP), || CallIndex::of(&trace.cuda_calls));
        let join = |ids: &mut dyn Iterator<Item = (i64, i64)>| -> PackedRows<2> {
            let (mut lookup, mut calls) = (index.lookup(), trace.cuda_calls.reader());
            let mut cursor = Cursor::default();
            let joined = ids.map(|(process, correlation)| {
                let call = lookup.find(process, correlation);
                let instance = if call == NONE {
                    // Without a launching call, the included range is unknown.
                    if trace.rules.include_ranges.is_empty() { NONE } else { EXCLUDED }
                } else {
                    let call = calls.get(call);
                    cursor.at(call.global_tid, call.start_ns, |thread| stages.on(thread))
                };
                [call.into(), instance.into()]
            });
            joined.collect()
        };
        let parts: Vec<_> = trace.kernels.parts(rayon::current_num_threads()).collect();
        let join_part = |kernels| {
            let ids = |it: TracedKernel| (it.global_pid, it.correlation_id);
            join(&mut Iterator::map(kernels, ids))
        };
        let parts: Vec<PackedRows<2>> = parts.into_par_iter().map(join_part).collect();
        let mut kernels = PackedRows::default();
        parts.into_iter().for_each(|part| kernels.append(part));
        let kernels = Arc::new(Joins(kernels));
        let copies = trace.copies.iter().map(|it| (it.global_pid, it.correlation_id));
        let copies = Arc::new(Joins(join(&mut { copies })));
        let graphs = trace.graphs.iter().map(|it| (it.global_pid, it.correlation_id));
        let graphs = Arc::new(Joins(join(&mut { graphs })));
        let framework = (!trace.framework.is_empty()).then(|| FrameworkIndex::of(trace, &kernels));
        Self { stages, kernels, copies, graphs, framework, outside: "" }
    }

    /// The same launches under the present labels of the stages, without operators of a framework.
    pub fn as_recorded(&self) -> Self {
        Self {
            stages: self.stages.clone(),
            kernels: self.kernels.clone(),
            copies: self.copies.clone(),
            graphs: self.graphs.clone(),
            framework: None,
            outside: "",
        }
    }

    /// The stage label of an instance; [`Self::outside`] outside all stages.
    pub fn stage(&self, instance: u32) -> &str {
        self.stage_label(self.stage_number(instance))
    }

    /// Stage number for tables: 0 outside all stages, else label index plus one; the last number is
    /// for work outside the included ranges.
    #[inline]
    pub fn stage_number(&self, instance: u32) -> usize {
        match instance {
            EXCLUDED => self.stages.labels.len() + 1,
            _ => self.stages.instances.get(instance as usize).map_or(0, |it| it.label + 1),
        }
    }

    /// The label of a stage number.
    pub fn stage_label(&self, number: usize) -> &str {
        match number.checked_sub(1) {
            None => self.outside,
            Some(label) => self.stages.labels.get(label).map_or(OUTSIDE, String::as_str),
        }
    }

    /// Count of stage numbers.
    pub fn stage_count(&self) -> usize {
        self.stages.labels.len() + 2
    }
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::nsys::ApiCall;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_call_is_found_by_process_and_id_in_any_order_of_calls(
            ids in prop::collection::hash_set((0i64..3, 1i64..60), 0..60), sorted in any::<bool>()
        ) {
            let mut ids: Vec<(i64, i64)> = ids.into_iter().collect();
            if sorted {
                ids.sort_unstable();
            }
            let call = |(process, correlation_id): &(i64, i64)| ApiCall {
                name: 0,
                start_ns: 0,
                end_ns: 1,
                global_tid: (process << 24) | 5,
                correlation_id: *correlation_id,
            };
            let calls: ApiCalls = ids.iter().map(call).collect();
            let index = CallIndex::of(&calls);
            let mut lookup = index.lookup();
            let keys = (0..4).flat_map(|process| (0..62).map(move |id| (process, id)));
            for (process, correlation) in keys {
                let position = ids.iter().position(|id| *id == (process, correlation));
                let expected = position.map_or(NONE, |at| at as u32);
                prop_assert_eq!(lookup.find(process << 24, correlation), expected);
            }
        }
    }
}

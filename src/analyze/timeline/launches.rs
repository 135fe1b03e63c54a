//! Joins device work to the call that launched it, and that call to the stage open at its start.
//!
//! The keys are process and correlation id. Calls usually come in the order of their ids, so the
//! join is a merge; otherwise an index is sorted once.

use crate::{
    analyze::{
        kernels::{OUTSIDE, WARMUP},
        timeline::{
            framework_nests::FrameworkIndex,
            open_ranges::{EXCLUDED, NONE, OpenStages, Segments},
        },
    },
    trace::nsys::{ApiCalls, NsysTrace, process_of},
};

/// Index of calls by process and correlation id.
pub struct CallIndex<'a> {
    calls: &'a ApiCalls,
    /// Calls in order of their keys; `None` when they already are.
    order: Option<Vec<u32>>,
    last: usize,
}

impl<'a> CallIndex<'a> {
    pub fn of(calls: &'a ApiCalls) -> Self {
        let mut index = Self { calls, order: None, last: 0 };
        if !(1..calls.len()).all(|at| index.key(at as u32 - 1) <= index.key(at as u32)) {
            let mut order: Vec<u32> = (0..calls.len() as u32).collect();
            order.sort_by_key(|at| index.key(*at));
            index.order = Some(order);
        }
        index
    }

    #[inline]
    fn key(&self, call: u32) -> (i64, u32) {
        let (_, thread) = self.calls.sites()[self.calls.site(call as usize) as usize];
        (process_of(thread), self.calls.correlation(call as usize))
    }

    fn call_at(&self, place: usize) -> u32 {
        self.order.as_ref().map_or(place as u32, |order| order[place])
    }

    /// The call with this correlation id in this process; [`NONE`] when the capture lacks it.
    #[inline]
    pub fn find(&mut self, process: i64, correlation: i64) -> u32 {
        /// Typical number of calls between two launches, for a linear search from the last hit.
        const NEAR: usize = 16;
        let Ok(id @ 1..) = u32::try_from(correlation) else { return NONE };
        let wanted = (process_of(process), id);
        let near = self.last..(self.last + NEAR).min(self.calls.len());
        let found = near.clone().find(|place| self.key(self.call_at(*place)) == wanted);
        let place = found.unwrap_or_else(|| {
            let (mut from, mut to) = (0, self.calls.len());
            while from < to {
                let middle = from.midpoint(to);
                if self.key(self.call_at(middle)) < wanted {
                    from = middle + 1
                } else {
                    to = middle
                }
            }
            from
        });
        if place >= self.calls.len() || self.key(self.call_at(place)) != wanted {
            return NONE;
        }
        self.last = place;
        self.call_at(place)
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

/// Launching call and stage of every kernel, copy and whole-traced graph of a capture.
pub struct LaunchIndex {
    pub stages: OpenStages,
    /// By kernel: its launching call and the stage instance open at the call's start, or [`NONE`].
    pub kernels: Vec<(u32, u32)>,
    /// The same by copy.
    pub copies: Vec<(u32, u32)>,
    /// The same by launch of a whole-traced graph.
    pub graphs: Vec<(u32, u32)>,
    /// Operators of a framework; `None` for a capture without their calls.
    pub framework: Option<FrameworkIndex>,
    /// Label of work launched outside all stages.
    pub outside: &'static str,
}

impl LaunchIndex {
    pub fn of(trace: &NsysTrace) -> Self {
        let stages = OpenStages::of(trace, WARMUP);
        let join = |ids: &mut dyn Iterator<Item = (i64, i64)>| {
            let (mut index, mut cursor) = (CallIndex::of(&trace.cuda_calls), Cursor::default());
            let mut joined = Vec::with_capacity(ids.size_hint().0);
            for (process, correlation) in ids {
                let call = index.find(process, correlation);
                let instance = if call == NONE {
                    // Without a launching call, the included range is unknown.
                    if trace.rules.include_ranges.is_empty() { NONE } else { EXCLUDED }
                } else {
                    let call = trace.cuda_calls.get(call as usize);
                    cursor.at(call.global_tid, call.start_ns, |thread| stages.on(thread))
                };
                joined.push((call, instance));
            }
            joined
        };
        let kernels = join(&mut trace.kernels.iter().map(|it| (it.global_pid, it.correlation_id)));
        let copies = join(&mut trace.copies.iter().map(|it| (it.global_pid, it.correlation_id)));
        let graphs = join(&mut trace.graphs.iter().map(|it| (it.global_pid, it.correlation_id)));
        let framework = (!trace.framework.is_empty()).then(|| FrameworkIndex::of(trace, &kernels));
        Self { stages, kernels, copies, graphs, framework, outside: "" }
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
    use proptest::prelude::*;

    use super::*;
    use crate::trace::nsys::ApiCall;

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
            let mut index = CallIndex::of(&calls);
            let keys = (0..4).flat_map(|process| (0..62).map(move |id| (process, id)));
            for (process, correlation) in keys {
                let position = ids.iter().position(|id| *id == (process, correlation));
                let expected = position.map_or(NONE, |at| at as u32);
                prop_assert_eq!(index.find(process << 24, correlation), expected);
            }
        }
    }
}

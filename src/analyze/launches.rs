//! From what ran on a device to the call that launched it, and from there to the stage that was open.
//!
//! Joined by process and correlation id. Calls come in the order of their ids, so the join is a merge; where they do not, an index of
//! them is sorted once.

use super::{
    kernels::{OUTSIDE, WARMUP},
    scopes::{EXCLUDED, NONE, Segments, StageScopes},
};
use crate::trace::nsys::{ApiCalls, NsysTrace, process_of};

/// Finds calls by process and correlation id.
pub struct CallIndex<'a> {
    calls: &'a ApiCalls,
    /// Calls in order of their keys; `None` when they come in it.
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

    fn key(&self, call: u32) -> (i64, u32) {
        let (_, thread) = self.calls.sites()[self.calls.site(call as usize) as usize];
        (process_of(thread), self.calls.correlation(call as usize))
    }

    fn call_at(&self, place: usize) -> u32 {
        self.order.as_ref().map_or(place as u32, |order| order[place])
    }

    /// The call with this correlation id in this process; [`NONE`] when the capture lacks it.
    pub fn find(&mut self, process: i64, correlation: i64) -> u32 {
        /// Calls between two launches: those that set attributes, ask for names and the like.
        const NEAR: usize = 16;
        let Ok(id @ 1..) = u32::try_from(correlation) else { return NONE };
        let wanted = (process_of(process), id);
        let near = self.last..(self.last + NEAR).min(self.calls.len());
        let found = near.clone().find(|place| self.key(self.call_at(*place)) == wanted);
        let place = found.unwrap_or_else(|| {
            let (mut from, mut to) = (0, self.calls.len());
            while from < to {
                let middle = from.midpoint(to);
                if self.key(self.call_at(middle)) < wanted { from = middle + 1 } else { to = middle }
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

/// Answers for several threads, each with its own place in its segments.
#[derive(Default)]
pub struct Cursor<'a> {
    thread: Option<i64>,
    segments: Option<&'a Segments>,
    hint: usize,
}

impl<'a> Cursor<'a> {
    /// What is open on `thread` at `t`; `of` gives the thread's segments.
    pub fn at(&mut self, thread: i64, t: i64, of: impl FnOnce(i64) -> Option<&'a Segments>) -> u32 {
        if Some(thread) != self.thread {
            (self.thread, self.segments, self.hint) = (Some(thread), of(thread), 0);
        }
        self.segments.map_or(NONE, |segments| segments.at(t, &mut self.hint))
    }
}

/// Every kernel, copy and whole-traced graph of a capture with its call and its stage.
pub struct Launches {
    pub stages: StageScopes,
    /// By kernel: the call that launched it, and the instance of the stage that was open then; or [`NONE`].
    pub kernels: Vec<(u32, u32)>,
    /// The same by copy.
    pub copies: Vec<(u32, u32)>,
    /// The same by launch of a graph that was traced as a whole.
    pub graphs: Vec<(u32, u32)>,
    /// The stage of what was launched outside all of them.
    pub outside: &'static str,
}

impl Launches {
    pub fn of(trace: &NsysTrace) -> Self {
        let stages = StageScopes::of(trace, WARMUP);
        let join = |ids: &mut dyn Iterator<Item = (i64, i64)>| {
            let (mut index, mut cursor) = (CallIndex::of(&trace.cuda_calls), Cursor::default());
            let mut joined = Vec::with_capacity(ids.size_hint().0);
            for (process, correlation) in ids {
                let call = index.find(process, correlation);
                let instance = if call == NONE {
                    // Without its launch, nothing says that it lies in an included range.
                    if trace.rules.within.is_empty() { NONE } else { EXCLUDED }
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
        Self { stages, kernels, copies, graphs, outside: "" }
    }

    /// The label of an instance: its stage, or nothing outside all of them.
    pub fn stage(&self, instance: u32) -> &str {
        self.numbered(self.stage_number(instance))
    }

    /// A number of the stage for tables: 0 outside all of them, else one more than its label; the
    /// last one is of what lies outside the included ranges.
    pub fn stage_number(&self, instance: u32) -> usize {
        match instance {
            EXCLUDED => self.stages.labels.len() + 1,
            _ => self.stages.instances.get(instance as usize).map_or(0, |it| it.label + 1),
        }
    }

    /// The stage with such a number.
    pub fn numbered(&self, number: usize) -> &str {
        match number.checked_sub(1) {
            None => self.outside,
            Some(label) => self.stages.labels.get(label).map_or(OUTSIDE, String::as_str),
        }
    }

    /// How many numbers there are.
    pub fn numbers(&self) -> usize {
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
        fn a_call_is_found_by_its_process_and_id_in_whatever_order_calls_come(
            ids in prop::collection::hash_set((0i64..3, 1i64..60), 0..60), sorted in any::<bool>()
        ) {
            let mut ids: Vec<(i64, i64)> = ids.into_iter().collect();
            if sorted {
                ids.sort_unstable();
            }
            let call = |(process, correlation_id): &(i64, i64)| {
                ApiCall { name: 0, start_ns: 0, end_ns: 1, global_tid: (process << 24) | 5, correlation_id: *correlation_id }
            };
            let calls: ApiCalls = ids.iter().map(call).collect();
            let mut index = CallIndex::of(&calls);
            for (process, correlation) in (0..4).flat_map(|process| (0..62).map(move |id| (process, id))) {
                let expected = ids.iter().position(|id| *id == (process, correlation)).map_or(NONE, |at| at as u32);
                prop_assert_eq!(index.find(process << 24, correlation), expected);
            }
        }
    }
}

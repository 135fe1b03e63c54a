//! Finds calls by process and correlation id.
//!
//! Work usually comes in the order of its calls, so most calls are found next to the last one.

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::{
    packed::{PackedReader, PackedRows},
    timeline::{ApiCalls, CallPart, process_of},
};

/// Process and correlation id, which join work on a device to its call.
pub type LaunchId = (i64, i64);

/// Index of a call that the timeline lacks.
pub const NO_CALL: u32 = u32::MAX;

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
    /// The call with this correlation id in this process; [`NO_CALL`] when the capture lacks it.
    #[inline]
    pub fn find(&mut self, process: i64, correlation: i64) -> u32 {
        /// Typical number of calls between two launches, for a linear search from the last hit.
        const NEAR: usize = 16;
        let process = process_of(process);
        if self.process.as_ref().is_none_or(|(known, _)| *known != process) {
            let Some(rows) = self.index.0.get(&process) else { return NO_CALL };
            (self.process, self.last) = (Some((process, rows.reader())), 0);
        }
        let Some((_, reader)) = &mut self.process else { return NO_CALL };
        let near = self.last..(self.last + NEAR).min(reader.len());
        let found = near.into_iter().find(|at| reader.get(*at)[0] == correlation);
        let Some(at) = found.or_else(|| reader.find(correlation)) else { return NO_CALL };
        self.last = at;
        reader.get(at)[1] as u32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trace::timeline::ApiCall;

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
                let expected = position.map_or(NO_CALL, |at| at as u32);
                prop_assert_eq!(lookup.find(process << 24, correlation), expected);
            }
        }
    }
}

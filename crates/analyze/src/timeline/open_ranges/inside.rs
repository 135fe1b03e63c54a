//! Steps inside a decode that count in no time. Each is taken out of its decode, and becomes an
//! instance of its own.

use std::collections::BTreeMap;

use llmprof_core::trace::timeline::process_of;

use super::{Extent, OpenStages, Segments, StageInstance};
use crate::timeline::{interval::Interval, step_states::LEFT_OUT};

/// A step inside a decode that counts in no time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepInside {
    /// Its range on the host.
    pub range: Interval,
    /// Thread or process on which it is open.
    pub place: i64,
    /// Its time, to the end of its work.
    pub span: Interval,
}

impl StepInside {
    /// True if a thread, or the threads of a process, see the step.
    pub fn is_seen_from(&self, place: i64) -> bool {
        self.place == place || self.place == process_of(place) || process_of(self.place) == place
    }
}

impl OpenStages {
    /// Makes each of these steps an instance that counts in no time. Its decode is not whole.
    pub fn take_out(&mut self, steps: &[StepInside]) {
        let label = self.label_of(LEFT_OUT);
        for it in steps {
            let Some(at) = self.at(it.place, it.range.0) else { continue };
            let outer = &mut self.instances[at as usize];
            if outer.extent == Extent::Whole {
                outer.extent = Extent::Cut;
            }
        }
        let is_counted: Vec<bool> = self.instances.iter().map(|it| it.label > 0).collect();
        let first = self.instances.len();
        self.instances.extend(steps.iter().map(|it| StageInstance {
            label,
            start_ns: it.range.0,
            end_ns: it.range.1,
            place: it.place,
            extent: Extent::Whole,
        }));
        let mut order: Vec<usize> = (0..self.instances.len()).collect();
        order.sort_by_key(|at| self.instances[*at].start_ns);
        let mut moved = vec![0u32; order.len()];
        for (to, from) in order.iter().enumerate() {
            moved[*from] = to as u32;
        }
        self.instances = order.iter().map(|at| self.instances[*at]).collect();
        let mut of_place: BTreeMap<i64, Vec<(Interval, u32)>> = BTreeMap::new();
        for (it, number) in steps.iter().zip(&moved[first..]) {
            of_place.entry(it.place).or_default().push((it.range, *number));
        }
        for (thread, segments) in self.threads.iter_mut().chain(&mut self.processes) {
            let places = [process_of(*thread), *thread].into_iter();
            let seen = places.filter_map(|place| of_place.get(&place)).flatten();
            let seen = seen.map(|((start_ns, end_ns), number)| (*start_ns, (*end_ns, *number)));
            let seen: BTreeMap<i64, (i64, u32)> = seen.collect();
            *segments = segments.taking_out(&seen, &moved, &is_counted);
        }
    }
}

impl Segments {
    /// The segments with the new numbers of instances (`moved`), and with `steps` in the instances
    /// that count. `steps`: end and number by start.
    fn taking_out(
        &self,
        steps: &BTreeMap<i64, (i64, u32)>,
        moved: &[u32],
        is_counted: &[bool],
    ) -> Self {
        let mut points = self.from.clone();
        points.extend(steps.iter().flat_map(|(start, (end, _))| [*start, *end]));
        points.sort_unstable();
        points.dedup();
        let (mut found, mut hint) = (Self::default(), 0);
        for t in points {
            let value = self.at(t, &mut hint);
            let step = steps.range(..=t).next_back().filter(|(_, (end, _))| t < *end);
            let counts = is_counted.get(value as usize).copied();
            found.push(
                t,
                match (step, counts) {
                    (Some((_, (_, number))), Some(true)) => *number,
                    (_, Some(_)) => moved[value as usize],
                    (_, None) => value,
                },
            );
        }
        found
    }
}

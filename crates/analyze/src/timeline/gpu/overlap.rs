//! Time in which several operations of a stage run at once on one GPU: kernels on several streams
//! or branches of a graph, and copies next to kernels.

use super::super::{
    activity::{Activity, Busy, DeviceWork},
    interval::{Interval, IntervalSet},
};

/// Sums over activities added in order of start, nanoseconds. A whole-traced graph counts as one
/// kernel.
#[derive(Debug, Default)]
pub struct Overlap {
    /// Time with at least two kernels.
    pub kernels_ns: i64,
    /// Time with at least one copy.
    pub copies_ns: i64,
    /// Time with at least one copy and one kernel.
    pub both_ns: i64,
    /// Time with a kernel, with two kernels, with a copy, and with a copy and a kernel.
    kernel: Busy,
    kernels: Busy,
    copy: Busy,
    both: Busy,
    /// Position of the last lookup in the window.
    near: usize,
}

impl Overlap {
    /// Adds the part of an activity inside `window`.
    pub fn add(&mut self, it: &Activity, window: &IntervalSet) {
        let near = &mut self.near;
        let mut inside = |(from, to): Interval| {
            if from < to { window.overlap_near(from, to, near) } else { 0 }
        };
        let time = (it.start_ns, it.end_ns);
        match it.work {
            DeviceWork::Kernel(_) | DeviceWork::Graph => {
                let twice = self.kernel.covered(time);
                self.kernels_ns += inside(self.kernels.add(twice.0, twice.1));
                let both = self.copy.covered(time);
                self.both_ns += inside(self.both.add(both.0, both.1));
                self.kernel.add(time.0, time.1);
            }
            DeviceWork::Copy(_) => {
                let both = self.kernel.covered(time);
                self.both_ns += inside(self.both.add(both.0, both.1));
                self.copies_ns += inside(self.copy.add(time.0, time.1));
            }
            DeviceWork::Fill => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::timeline::CopyKind;
    use proptest::prelude::*;

    use super::*;
    use crate::timeline::{capture::Join, open_ranges::NONE};

    fn activity(work: DeviceWork, start_ns: i64, end_ns: i64) -> Activity {
        Activity {
            start_ns,
            end_ns,
            device: 0,
            process: 0,
            join: Join { call: NONE, instance: NONE },
            work,
            row: 0,
            graph_node: None,
        }
    }

    proptest! {
        #[test]
        fn every_instant_counts_by_the_operations_that_run(
            work in prop::collection::vec((0usize..4, -20i64..40, 1i64..15), 0..14),
            window in (-20i64..30, 1i64..40),
        ) {
            use DeviceWork::{Copy, Fill, Graph, Kernel};
            let (kernel, copy) = (Kernel(0), Copy(CopyKind::Other));
            let window = (window.0, window.0 + window.1);
            let mut work: Vec<Activity> = work
                .iter()
                .map(|(kind, start, length)| {
                    activity([kernel, Graph, copy, Fill][*kind], *start, start + length)
                })
                .collect();
            work.sort_by_key(|it| it.start_ns);
            let mut found = Overlap::default();
            let inside = IntervalSet::new([window]);
            work.iter().for_each(|it| found.add(it, &inside));
            let mut expected = [0i64; 3];
            for t in window.0..window.1 {
                let count = |kinds: &[DeviceWork]| {
                    let runs = |it: &&Activity| {
                        kinds.contains(&it.work) && (it.start_ns..it.end_ns).contains(&t)
                    };
                    work.iter().filter(runs).count()
                };
                let (kernels, copies) = (count(&[kernel, Graph]), count(&[copy]));
                expected[0] += i64::from(kernels >= 2);
                expected[1] += i64::from(copies >= 1);
                expected[2] += i64::from(copies >= 1 && kernels >= 1);
            }
            prop_assert_eq!([found.kernels_ns, found.copies_ns, found.both_ns], expected);
        }
    }
}

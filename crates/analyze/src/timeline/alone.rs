//! Device time in which exactly one kernel ran, which would be idle time without that kernel.
//!
//! Work that overlaps other work is not alone on the critical path, so removing it saves nothing.

use std::collections::BTreeMap;

use foldhash::HashMap;
use llmprof_core::domain::units::Nanos;

use super::{
    activity::{DeviceWork, activities},
    at_once::{ActiveWork, RunningWork},
    capture::Capture,
    interval::Interval,
};

/// Milliseconds by stage and kernel name, summed over stage instances.
pub type AloneTimes = BTreeMap<(String, String), f64>;

/// Stage number and kernel name; `None` for other work.
type AloneKey = (usize, Option<u32>);

/// Adds a time to the kernel that is the only one in it, maybe several times.
fn add_alone(
    sums: &mut HashMap<AloneKey, i64>,
    (from, to): Interval,
    active: &ActiveWork<AloneKey>,
) {
    let first = active[0].1;
    if active.iter().all(|it| it.1 == first) {
        *sums.entry(first).or_default() += to - from;
    }
}

/// Sums the time in which each kernel ran alone on its device.
pub fn alone(capture: &Capture) -> AloneTimes {
    let mut devices: BTreeMap<u32, RunningWork<AloneKey>> = BTreeMap::new();
    let mut sums: HashMap<AloneKey, i64> = HashMap::default();
    let kinds = capture.trace.kernels.kinds();
    for it in activities(capture) {
        let name = match it.work {
            DeviceWork::Kernel(kind) => Some(kinds[kind as usize].name),
            _ => None,
        };
        let key = (capture.stage_number(it.join.instance), name);
        let running = devices.entry(it.device).or_default();
        running.start((it.start_ns, it.end_ns), key, |time, active| {
            add_alone(&mut sums, time, active);
        });
    }
    for running in devices.values_mut() {
        running.advance(i64::MAX, |time, active| add_alone(&mut sums, time, active));
    }
    let name = |at: u32| capture.trace.text(at).to_owned();
    let mut alone = AloneTimes::new();
    // In order, so that sums of rounded times do not depend on the hashes.
    for ((number, kernel), ns) in sums.into_iter().collect::<BTreeMap<_, _>>() {
        let Some(kernel) = kernel else { continue };
        *alone.entry((capture.stage_label(number).to_owned(), name(kernel))).or_default() +=
            Nanos(ns).as_ms();
    }
    alone
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::tests::capture;

    fn of(sketch: &str) -> Vec<(String, i64)> {
        let trace = capture(sketch);
        let alone = alone(&Capture::of(&trace));
        alone.into_iter().map(|((_, kernel), ms)| (kernel, (ms * 1e6).round() as i64)).collect()
    }

    #[test]
    fn overlapping_kernels_are_not_alone() {
        let sketch =
            "kernel 1 a 0..10 7\nkernel 2 b 5..8 8\nkernel 3 a 9..12 8\nkernel 4 b 20..25 7";
        assert_eq!(
            of(sketch),
            [("a".to_owned(), 9), ("b".to_owned(), 5)],
            "a 0..5 and 8..12, overlapping itself; b 20..25"
        );
    }

    proptest! {
        #[test]
        fn every_instant_counts_for_the_only_kernel_that_runs(
            kernels in prop::collection::vec((0usize..3, 0i64..40, 1i64..15), 0..12)
        ) {
            let mut kernels = kernels;
            kernels.sort_by_key(|it| it.1);
            let line = |(at, (name, start, length)): (usize, &(usize, i64, i64))| {
                format!("kernel {} k{name} {start}..{} {at}", at + 1, start + length)
            };
            let sketch = kernels.iter().enumerate().map(line).collect::<Vec<_>>().join("\n");
            let mut expected: BTreeMap<String, i64> = BTreeMap::new();
            for t in 0..60 {
                let runs = |it: &&(usize, i64, i64)| (it.1..it.1 + it.2).contains(&t);
                let mut on: Vec<usize> = kernels.iter().filter(runs).map(|it| it.0).collect();
                on.sort_unstable();
                on.dedup();
                if let [only] = on[..] {
                    *expected.entry(format!("k{only}")).or_default() += 1;
                }
            }
            prop_assert_eq!(of(&sketch), expected.into_iter().collect::<Vec<_>>());
        }
    }
}

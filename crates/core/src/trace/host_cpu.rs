//! The cores of the host as nsys records them: times of threads on cores, by switches of threads,
//! and the functions that samples found there.

use std::collections::BTreeMap;

use super::{interner::Interner, interval::Interval, packed::PackedRows};

/// Threads on the cores of a host.
#[derive(Debug, Clone, Default)]
pub struct HostCpu {
    /// True if threads of all processes are recorded, false if the profiled command and its
    /// programs alone are; `None` if the export does not show it.
    pub is_system_wide: Option<bool>,
    /// First and last switch; `None` without switches.
    pub bounds: Option<Interval>,
    /// Switches without a counterpart: a time on a core lacks its start or its end.
    pub unpaired: u64,
    /// Names of threads by nsys thread id, indices into the strings of the timeline.
    pub names: BTreeMap<i64, u32>,
    /// Start, duration, site; in order of start.
    runs: PackedRows<3>,
    run_sites: Interner<(u32, i64)>,
    /// Time and site.
    samples: PackedRows<2>,
    sample_sites: Interner<(i64, Option<SampledFunction>)>,
}

/// A thread on a core, from its switch to the core to the switch from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreRun {
    pub start_ns: i64,
    pub end_ns: i64,
    pub core: u32,
    pub global_tid: i64,
}

/// A sample of a thread on a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuSample {
    pub at_ns: i64,
    pub global_tid: i64,
    /// The innermost function; `None` if the sample has no call chain.
    pub function: Option<SampledFunction>,
}

/// A function and the file that contains it, indices into the strings of the timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SampledFunction {
    /// `None` if the file has no name for the address.
    pub name: Option<u32>,
    pub module: u32,
}

/// A switch of a thread to a core, or from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    pub at_ns: i64,
    pub core: u32,
    pub global_tid: i64,
    pub is_to_core: bool,
}

/// Switches of an export, in any order.
#[derive(Debug, Default)]
pub struct Switches {
    /// Twice the time, plus 1 for a switch to a core, so that a core is left before it is entered;
    /// site.
    rows: PackedRows<2>,
    sites: Interner<(u32, i64)>,
}

impl Switches {
    pub fn push(&mut self, it: Switch) {
        let site = self.sites.number((it.core, it.global_tid));
        self.rows.push([2 * it.at_ns + i64::from(it.is_to_core), site.into()]);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn sorted(&mut self) -> impl Iterator<Item = Switch> + '_ {
        self.rows.sort();
        self.rows.iter().map(|[at, site]| {
            let (core, global_tid) = self.sites.values()[site as usize];
            Switch { at_ns: at >> 1, core, global_tid, is_to_core: at & 1 == 1 }
        })
    }
}

/// State of a core between two switches.
#[derive(Clone, Copy)]
enum Core {
    Empty,
    Running { global_tid: i64, since_ns: i64 },
}

impl HostCpu {
    /// Pairs switches. A thread whose first switch leaves a core was there since the first switch
    /// of all; a thread that leaves no core was there until the last one.
    pub fn of(mut switches: Switches) -> Self {
        let mut host = Self::default();
        let mut cores: BTreeMap<u32, Core> = BTreeMap::new();
        let (mut runs, mut bounds) = (PackedRows::default(), None::<Interval>);
        for it in switches.sorted() {
            let (first_ns, _) = *bounds.get_or_insert((it.at_ns, it.at_ns));
            bounds = Some((first_ns, it.at_ns));
            let next = match it.is_to_core {
                true => Core::Running { global_tid: it.global_tid, since_ns: it.at_ns },
                false => Core::Empty,
            };
            let ran = match (cores.insert(it.core, next), it.is_to_core) {
                (Some(Core::Running { global_tid, since_ns }), false)
                    if global_tid == it.global_tid =>
                {
                    Some(since_ns)
                }
                (None, false) => Some(first_ns),
                (Some(Core::Empty) | None, true) => None,
                (Some(_), _) => {
                    host.unpaired += 1;
                    None
                }
            };
            if let Some(since_ns) = ran {
                let site = host.run_sites.number((it.core, it.global_tid));
                runs.push([since_ns, it.at_ns - since_ns, site.into()]);
            }
        }
        host.bounds = bounds;
        let last_ns = bounds.map_or(0, |it| it.1);
        for (core, state) in cores {
            if let Core::Running { global_tid, since_ns } = state {
                let site = host.run_sites.number((core, global_tid));
                runs.push([since_ns, last_ns - since_ns, site.into()]);
            }
        }
        runs.sort();
        host.runs = runs;
        host
    }

    pub fn push_sample(&mut self, it: CpuSample) {
        let site = self.sample_sites.number((it.global_tid, it.function));
        self.samples.push([it.at_ns, site.into()]);
    }

    /// True without switches and samples.
    pub fn is_empty(&self) -> bool {
        !self.has_switches() && !self.has_samples()
    }

    pub fn has_switches(&self) -> bool {
        self.bounds.is_some()
    }

    pub fn has_samples(&self) -> bool {
        !self.samples.is_empty()
    }

    /// Times of threads on cores, in order of start.
    pub fn runs(&self) -> impl ExactSizeIterator<Item = CoreRun> + '_ {
        self.runs.iter().map(|[start_ns, ns, site]| {
            let (core, global_tid) = self.run_sites.values()[site as usize];
            CoreRun { start_ns, end_ns: start_ns + ns, core, global_tid }
        })
    }

    pub fn samples(&self) -> impl ExactSizeIterator<Item = CpuSample> + '_ {
        self.samples.iter().map(|[at_ns, site]| {
            let (global_tid, function) = self.sample_sites.values()[site as usize];
            CpuSample { at_ns, global_tid, function }
        })
    }

    /// Maps the string indices of all names through `names`.
    pub fn rename(&mut self, names: impl Fn(u32) -> u32) {
        self.names.values_mut().for_each(|it| *it = names(*it));
        self.sample_sites.change(|(_, function)| {
            if let Some(it) = function {
                *it = SampledFunction { name: it.name.map(&names), module: names(it.module) };
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs of `+thread@core time` and `-thread@core time`, as `thread@core start..end`.
    fn runs(sketch: &str) -> (Vec<String>, u64) {
        let mut switches = Switches::default();
        for word in sketch.split(',') {
            let (place, at) = word.trim().split_once(' ').unwrap();
            let (thread, core) = place[1..].split_once('@').unwrap();
            switches.push(Switch {
                at_ns: at.parse().unwrap(),
                core: core.parse().unwrap(),
                global_tid: thread.parse().unwrap(),
                is_to_core: place.starts_with('+'),
            });
        }
        let host = HostCpu::of(switches);
        let text =
            |it: CoreRun| format!("{}@{} {}..{}", it.global_tid, it.core, it.start_ns, it.end_ns);
        (host.runs().map(text).collect(), host.unpaired)
    }

    #[test]
    fn a_thread_is_on_a_core_between_its_switches_and_to_the_bounds_of_the_recording() {
        let (found, unpaired) =
            runs("+7@0 10, -7@0 20, +8@0 20, -9@1 15, -8@0 40, +7@1 50, +8@0 60");
        assert_eq!(found, ["9@1 10..15", "7@0 10..20", "8@0 20..40", "7@1 50..60", "8@0 60..60"]);
        assert_eq!(unpaired, 0);
    }

    #[test]
    fn a_time_without_its_start_or_end_is_counted_and_left_out() {
        assert_eq!(runs("+7@0 10, +8@0 30, -8@0 40"), (vec!["8@0 30..40".to_owned()], 1));
        assert_eq!(runs("+7@0 10, -8@0 30, +7@0 40, -7@0 50").1, 1);
    }

    proptest! {
        #[test]
        fn runs_of_one_core_never_overlap_and_lie_within_the_bounds(
            switches in prop::collection::vec((-50i64..50, 0u32..3, 0i64..4, any::<bool>()), 0..60)
        ) {
            let mut all = Switches::default();
            for (at_ns, core, global_tid, is_to_core) in switches {
                all.push(Switch { at_ns, core, global_tid, is_to_core });
            }
            let host = HostCpu::of(all);
            let runs: Vec<CoreRun> = host.runs().collect();
            prop_assert!(runs.is_sorted_by_key(|it| it.start_ns));
            let (from, to) = host.bounds.unwrap_or_default();
            for it in &runs {
                prop_assert!(from <= it.start_ns && it.start_ns <= it.end_ns && it.end_ns <= to);
            }
            for core in 0..3 {
                let of_core: Vec<&CoreRun> = runs.iter().filter(|it| it.core == core).collect();
                prop_assert!(of_core.windows(2).all(|it| it[0].end_ns <= it[1].start_ns));
            }
        }
    }
}

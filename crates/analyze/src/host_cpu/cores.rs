//! Threads on cores, by thread and by core, for lookups of intervals.

use foldhash::HashMap;
use llmprof_core::trace::{
    clocks::CLOCK_TOLERANCE_NS, host_cpu::SampledFunction, interval::Interval, timeline::Timeline,
};

use super::PROVEN_PCT;
use crate::stats::percent;

/// Runs of the threads that made calls of CUDA, and of all cores.
#[derive(Default)]
pub struct Cores {
    /// Share of the calls of recorded threads that start while the thread is on a core, percent;
    /// `None` without such calls. A thread that calls is on a core, so switches that contradict the
    /// calls were recorded at other times.
    pub calls_on_core_pct: Option<f64>,
    bounds: Option<Interval>,
    /// Start, end and core, in order.
    threads: HashMap<i64, Vec<(i64, i64, u32)>>,
    /// Start, end and thread, in order.
    cores: HashMap<u32, Vec<(i64, i64, i64)>>,
    /// Time and innermost function, in order.
    samples: HashMap<i64, Vec<(i64, Option<SampledFunction>)>>,
}

/// Part of an interval in which a thread was off its cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffCore {
    pub span: Interval,
    /// The core that the thread left.
    pub core: u32,
}

/// An interval of a thread.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ThreadTime {
    pub on_core_ns: i64,
    pub off_core: Vec<OffCore>,
    /// Time outside the recorded switches, or before the first of the thread.
    pub unknown_ns: i64,
}

impl Cores {
    /// `None` for a capture without switches and samples.
    pub fn of(trace: &Timeline) -> Option<Self> {
        let (host, callers) = (trace.host_cpu.as_ref()?, trace.cuda_calls.threads());
        let mut all = Self { bounds: host.bounds, ..Self::default() };
        for run in host.runs() {
            let of_core = all.cores.entry(run.core).or_default();
            of_core.push((run.start_ns, run.end_ns, run.global_tid));
            if callers.contains(&run.global_tid) {
                let of_thread = all.threads.entry(run.global_tid).or_default();
                of_thread.push((run.start_ns, run.end_ns, run.core));
            }
        }
        for it in host.samples().filter(|it| callers.contains(&it.global_tid)) {
            all.samples.entry(it.global_tid).or_default().push((it.at_ns, it.function));
        }
        all.samples.values_mut().for_each(|it| it.sort_unstable_by_key(|it| it.0));
        all.calls_on_core_pct = all.on_core_pct(trace);
        Some(all)
    }

    fn on_core_pct(&self, trace: &Timeline) -> Option<f64> {
        let (from, to) = self.bounds?;
        let (mut calls, mut on_core) = (0u64, 0u64);
        for call in trace.cuda_calls.iter().filter(|it| from <= it.start_ns && it.start_ns <= to) {
            let Some(runs) = self.threads.get(&call.global_tid) else { continue };
            let after = runs.partition_point(|it| it.0 <= call.start_ns + CLOCK_TOLERANCE_NS);
            let last = after.checked_sub(1).map(|at| runs[at].1);
            calls += 1;
            on_core += u64::from(last.is_some_and(|end| end + CLOCK_TOLERANCE_NS >= call.start_ns));
        }
        percent(on_core as f64, calls as f64)
    }

    /// True unless calls contradict the switches.
    pub fn is_proven(&self) -> bool {
        self.calls_on_core_pct.is_none_or(|pct| pct >= PROVEN_PCT)
    }

    pub fn has_switches(&self) -> bool {
        self.bounds.is_some()
    }

    /// Divides an interval of a thread.
    pub fn divide(&self, thread: i64, (from, to): Interval) -> ThreadTime {
        let mut divided = ThreadTime::default();
        let known = match (self.bounds, self.threads.get(&thread)) {
            (Some(bounds), Some(runs)) => Some((from.max(bounds.0), to.min(bounds.1), runs)),
            _ => None,
        };
        let Some((start, end, runs)) = known.filter(|it| it.0 < it.1) else {
            return ThreadTime { unknown_ns: to - from, ..divided };
        };
        divided.unknown_ns = (to - from) - (end - start);
        let first = runs.partition_point(|it| it.1 <= start);
        let mut at = start;
        let mut core = first.checked_sub(1).map(|it| runs[it].2);
        let mut leave = |span: Interval, core: Option<u32>| match core {
            _ if span.0 >= span.1 => {}
            Some(core) => divided.off_core.push(OffCore { span, core }),
            None => divided.unknown_ns += span.1 - span.0,
        };
        for run in runs[first..].iter().take_while(|it| it.0 < end) {
            leave((at, run.0), core);
            let (on, off) = (run.0.max(at), run.1.min(end));
            divided.on_core_ns += (off - on).max(0);
            (at, core) = (at.max(off), Some(run.2));
        }
        leave((at, end), core);
        divided
    }

    /// Calls `take` with each thread on a core in an interval, and its time there.
    pub fn on_core(&self, core: u32, (from, to): Interval, mut take: impl FnMut(i64, i64)) {
        let runs = self.cores.get(&core).map_or(&[][..], Vec::as_slice);
        let first = runs.partition_point(|it| it.1 <= from);
        for (start, end, thread) in runs[first..].iter().take_while(|it| it.0 < to) {
            let ns = to.min(*end) - from.max(*start);
            if ns > 0 {
                take(*thread, ns);
            }
        }
    }

    /// Innermost functions of the samples of a thread in an interval.
    pub fn sampled(
        &self,
        thread: i64,
        (from, to): Interval,
    ) -> impl Iterator<Item = Option<SampledFunction>> + '_ {
        let samples = self.samples.get(&thread).map_or(&[][..], Vec::as_slice);
        let first = samples.partition_point(|it| it.0 < from);
        samples[first..].iter().take_while(move |it| it.0 < to).map(|it| it.1)
    }
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::{
        host_cpu::{HostCpu, Switch, Switches},
        timeline::ApiCall,
    };
    use proptest::prelude::*;

    use super::*;

    fn cores(switches: &[(i64, u32, i64, bool)], calls: &[(i64, i64)]) -> Cores {
        let mut all = Switches::default();
        for (at_ns, core, global_tid, is_to_core) in switches.iter().copied() {
            all.push(Switch { at_ns, core, global_tid, is_to_core });
        }
        let call = |(global_tid, start_ns): &(i64, i64)| ApiCall {
            name: 0,
            start_ns: *start_ns,
            end_ns: start_ns + 1,
            global_tid: *global_tid,
            correlation_id: 0,
        };
        let (cuda_calls, host_cpu) = (calls.iter().map(call).collect(), Some(HostCpu::of(all)));
        Cores::of(&Timeline { cuda_calls, host_cpu, ..Timeline::default() }).unwrap()
    }

    #[test]
    fn an_interval_is_divided_into_time_on_a_core_off_it_and_outside_the_switches() {
        let switches = [
            (0, 0, 7, true),
            (100, 0, 7, false),
            (110, 0, 9, true),
            (150, 0, 9, false),
            (160, 1, 7, true),
            (200, 1, 7, false),
        ];
        let cores = cores(&switches, &[(7, 0), (9, 0)]);
        let divided = cores.divide(7, (50, 300));
        let off = |span| OffCore { span, core: 0 };
        assert_eq!(divided.off_core, [off((100, 160))]);
        assert_eq!((divided.on_core_ns, divided.unknown_ns), (90, 100));
        let mut found = Vec::new();
        cores.on_core(0, (100, 160), |thread, ns| found.push((thread, ns)));
        assert_eq!(found, [(9, 40)]);
        assert_eq!(cores.divide(8, (50, 60)).unknown_ns, 10, "a thread without switches");
        assert_eq!(cores.divide(9, (50, 120)).unknown_ns, 60, "before its first switch");
    }

    #[test]
    fn calls_of_a_thread_off_its_core_refute_the_switches() {
        let switches = [(0, 0, 7, true), (100_000, 0, 7, false), (900_000, 0, 7, true)];
        let fitting = cores(&switches, &[(7, 50_000), (7, 105_000)]);
        assert_eq!(fitting.calls_on_core_pct, Some(100.0));
        let others = cores(&switches, &[(7, 50_000), (7, 500_000)]);
        assert_eq!(others.calls_on_core_pct, Some(50.0));
        assert!(fitting.is_proven() && !others.is_proven());
    }

    proptest! {
        #[test]
        fn the_parts_of_an_interval_add_up_to_it(
            switches in prop::collection::vec((0i64..60, 0u32..2, 0i64..3, any::<bool>()), 0..40),
            from in -5i64..60, length in 1i64..30
        ) {
            let cores = cores(&switches, &[(0, 0), (1, 0)]);
            for thread in 0..2 {
                let divided = cores.divide(thread, (from, from + length));
                let off: i64 = divided.off_core.iter().map(|it| it.span.1 - it.span.0).sum();
                prop_assert!(divided.on_core_ns >= 0 && divided.unknown_ns >= 0);
                if thread_runs_never_overlap(&cores, thread) {
                    prop_assert_eq!(divided.on_core_ns + off + divided.unknown_ns, length);
                }
            }
        }
    }

    /// Switches that are made up may have a thread on two cores at once.
    fn thread_runs_never_overlap(cores: &Cores, thread: i64) -> bool {
        let runs = cores.threads.get(&thread).map_or(&[][..], Vec::as_slice);
        runs.windows(2).all(|it| it[0].1 <= it[1].0)
    }
}

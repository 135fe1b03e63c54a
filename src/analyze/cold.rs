//! The cold first instance of a stage, in captures where no runner marks its warm-up.
//!
//! The first run of a stage pays once for loading modules (CUDA loads them lazily, at the first launch
//! of a kernel: CUDA C++ Programming Guide, "Lazy Loading"), for compilation, tuning and allocation.
//! Start-up is a distribution of its own and is not averaged with the steady state (Georges, Buytaert,
//! Eeckhout: "Statistically Rigorous Java Performance Evaluation", OOPSLA 2007).
//!
//! Of a stage with two instances or more in a process, the first is cold where all of these hold:
//! 1. it takes at least 1.5 times the median of the others;
//! 2. device time explains at most half of what it takes longer, so that it is no larger request;
//! 3. it is the first to launch some kernel, or loads, compiles or allocates more than the others do.
//!
//! Where no CUDA call was traced, 2 and 3 cannot be seen, and it has to take at least 10 times the median.

use std::collections::{BTreeMap, HashSet};

use super::{
    launches::Launches,
    scopes::{Instance, NONE},
};
use crate::{
    run::{Finding, Severity},
    trace::{
        nsys::{NsysTrace, process_of},
        units::Nanos,
    },
};

/// Part of a stage, in its notes, that is the cold first instance.
pub const COLD_PART: &str = "cold first instance";
/// From so many times the median of the others on, an instance may be cold.
const COLD_TIMES: f64 = 1.5;
/// The same where nothing but ranges was traced.
const COLD_TIMES_UNSEEN: f64 = 10.0;
/// Calls that a warm program does not make.
const ONCE: [&str; 8] = ["Module", "Library", "Link", "Malloc", "MemAlloc", "MemCreate", "HostAlloc", "Nvrtc"];

/// A first instance that was cold.
#[derive(Debug, Clone, PartialEq)]
pub struct ColdInstance {
    pub stage: String,
    pub ms: f64,
    /// Median of the other instances of the stage in its process, and how many there are.
    pub others_ms: f64,
    pub others: usize,
    /// Kernels that it is the first to launch.
    pub first_kernels: usize,
    /// Calls in it that load, compile or allocate.
    pub once_calls: u64,
}

/// One instance, and what happened in it.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    wall_ns: i64,
    device_ns: i64,
    once_calls: u64,
    first_kernels: usize,
}

/// Finds cold first instances, and makes them warm-up.
pub fn mark(trace: &NsysTrace, launches: &mut Launches) -> Vec<ColdInstance> {
    let mut groups: BTreeMap<(usize, i64), Vec<usize>> = BTreeMap::new();
    for (at, it) in launches.stages.instances.iter().enumerate() {
        if it.label > 0 && it.start_ns < it.end_ns && !it.estimated {
            groups.entry((it.label, process_of(it.place))).or_default().push(at);
        }
    }
    groups.retain(|_, of| of.len() > 1);
    if groups.is_empty() {
        return Vec::new();
    }
    let seen = look(trace, launches);
    let mut found = Vec::new();
    for ((label, _), of) in &groups {
        let others: Vec<Seen> = of[1..].iter().map(|at| seen[*at]).collect();
        if is_cold(seen[of[0]], &others, trace.cuda_calls.is_empty()) {
            let first = seen[of[0]];
            found.push(ColdInstance {
                stage: launches.stages.labels[*label].clone(),
                ms: Nanos(first.wall_ns).as_ms(),
                others_ms: Nanos(median(&others, |it| it.wall_ns)).as_ms(),
                others: others.len(),
                first_kernels: first.first_kernels,
                once_calls: first.once_calls,
            });
            launches.stages.instances[of[0]].label = 0;
        }
    }
    found
}

fn is_cold(first: Seen, others: &[Seen], unseen: bool) -> bool {
    let wall = median(others, |it| it.wall_ns);
    let times = if unseen { COLD_TIMES_UNSEEN } else { COLD_TIMES };
    if (first.wall_ns as f64) < times * wall as f64 {
        return false;
    }
    let longer_on_device = first.device_ns - median(others, |it| it.device_ns);
    let unexplained = 2 * longer_on_device.max(0) <= first.wall_ns - wall;
    let once = first.first_kernels > 0 || first.once_calls as i64 > median(others, |it| it.once_calls as i64);
    unseen || (unexplained && once)
}

fn median(of: &[Seen], field: fn(&Seen) -> i64) -> i64 {
    let mut values: Vec<i64> = of.iter().map(field).collect();
    values.sort_unstable();
    let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
    low + (high - low) / 2
}

/// What happened in each instance.
fn look(trace: &NsysTrace, launches: &Launches) -> Vec<Seen> {
    let wall = |it: &Instance| Seen { wall_ns: it.end_ns - it.start_ns, ..Seen::default() };
    let mut seen: Vec<Seen> = launches.stages.instances.iter().map(wall).collect();
    let mut launched: Vec<(i64, usize)> = Vec::new();
    for (at, (kernel, (call, instance))) in trace.kernels.iter().zip(&launches.kernels).enumerate() {
        if let Some(seen) = seen.get_mut(*instance as usize) {
            seen.device_ns += kernel.ns();
        }
        if *call != NONE {
            launched.push((trace.cuda_calls.get(*call as usize).start_ns, at));
        }
    }
    launched.sort_unstable();
    let mut known: HashSet<(i64, u32)> = HashSet::new();
    for (_, at) in launched {
        let kernel = trace.kernels.get(at);
        let is_first = known.insert((process_of(kernel.global_pid), kernel.full_name));
        if let Some(seen) = seen.get_mut(launches.kernels[at].1 as usize).filter(|_| is_first) {
            seen.first_kernels += 1;
        }
    }
    let calls = &trace.cuda_calls;
    let name = |name: u32| trace.strings.get(name as usize).map_or("", String::as_str);
    let once: Vec<bool> = calls.sites().iter().map(|(at, _)| ONCE.iter().any(|word| name(*at).contains(word))).collect();
    for at in (0..calls.len()).filter(|at| once[calls.site(*at) as usize]) {
        let call = calls.get(at);
        let instance = launches.stages.on(call.global_tid).map_or(NONE, |open| open.at(call.start_ns, &mut 0));
        if let Some(seen) = seen.get_mut(instance as usize) {
            seen.once_calls += 1;
        }
    }
    seen
}

/// A finding for each cold first instance.
pub fn findings(cold: &[ColdInstance]) -> Vec<Finding> {
    let finding = |it: &ColdInstance| {
        let times = it.ms / it.others_ms;
        let message = format!("The first instance of {} was cold: it took {times:.1} times the median of the others.", it.stage);
        Finding::new("cold_first_instance", Severity::Info, message)
            .with("stage", &it.stage)
            .with("cold ms", format!("{:.3}", it.ms))
            .with("median of the others, ms", format!("{:.3}", it.others_ms))
            .with("others", it.others)
            .with("kernels launched for the first time", it.first_kernels)
            .with("calls that load, compile or allocate", it.once_calls)
            .advise("It counts as warm-up, and figures of the stage are of the others. Warm up before anything is recorded.")
    };
    cold.iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::kernels::tests::capture, *};
    use crate::{analyze::analyze, trace::Trace};

    /// Two prefills, of `cold` and 100 ns, that launch these kernels for so many ns each.
    fn two(cold: i64, first: (&str, i64), second: (&str, i64)) -> Trace {
        let later = cold + 1000;
        let sketch = format!(
            "range 1 prefill 0..{cold}\nrange 1 prefill {later}..{}\ncall 1 1 1..2\ncall 1 2 {}..{}
             kernel 1 {} 2..{} 7\nkernel 2 {} {}..{} 7",
            later + 100,
            later + 1,
            later + 2,
            first.0,
            2 + first.1,
            second.0,
            later + 2,
            later + 2 + second.1,
        );
        Trace { nsys: Some(capture(&sketch)), ..Trace::default() }
    }

    fn cold(trace: &Trace) -> usize {
        analyze(trace, None, None).findings.iter().filter(|it| it.id == "cold_first_instance").count()
    }

    #[test]
    fn a_cold_first_instance_is_a_part_of_its_own_even_of_two() {
        let analysis = analyze(&two(2000, ("a", 50), ("a", 50)), None, None);
        let row = analysis.stages.row("prefill").unwrap();
        assert_eq!((row.ms.n, (row.ms.mean * 1e6).round()), (1, 100.0));
        let note = analysis.stages.note(COLD_PART).unwrap();
        assert_eq!((note.inside.as_str(), (note.ms.mean * 1e6).round()), ("prefill", 2000.0));
        assert_eq!(analysis.kernels.measured().map(|it| it.calls).sum::<u64>(), 1, "its kernels are of the warm-up");
        assert_eq!(analysis.stage_gpu.totals.iter().find(|it| it.stage == "prefill").map(|it| it.instances), Some(1));
    }

    #[test]
    fn a_larger_first_request_and_one_that_is_hardly_slower_are_not_cold() {
        assert_eq!(cold(&two(2000, ("a", 1900), ("a", 50))), 0, "the device explains it");
        assert_eq!(cold(&two(140, ("a", 50), ("a", 50))), 0);
        let mut warm = two(2000, ("a", 50), ("a", 50));
        let nsys = warm.nsys.as_mut().unwrap();
        let before = capture("call 1 90 -20..-19\nkernel 90 a -10..-5 7");
        nsys.cuda_calls = before.cuda_calls.iter().chain(nsys.cuda_calls.iter()).collect();
        nsys.kernels = before.kernels.iter().chain(nsys.kernels.iter()).collect();
        assert_eq!(cold(&warm), 0, "nothing was done for the first time");
    }

    #[test]
    fn without_cuda_calls_only_a_first_instance_of_ten_times_the_others_is_cold() {
        let ranges = |cold: i64| {
            let sketch = format!("range 1 prefill 0..{cold}\nrange 1 prefill 5000..5100\nrange 1 prefill 6000..6100");
            cold_of(&sketch)
        };
        assert_eq!((ranges(900), ranges(1100)), (0, 1));
    }

    fn cold_of(sketch: &str) -> usize {
        cold(&Trace { nsys: Some(capture(sketch)), ..Trace::default() })
    }
}

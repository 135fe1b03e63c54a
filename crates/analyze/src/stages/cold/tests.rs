//! Cold first instances of sketches.

use llmprof_core::trace::{
    Trace,
    collectives::ProcessRank,
    timeline::{ApiCall, tid_of},
};

use super::*;
use crate::{analyze, kernels::tests::capture};

/// Distance of the processes of two recording windows.
const WINDOW: i64 = 8 << 24;

/// Two prefills, of `cold` and 100 ns, each launching a kernel of a given name and duration.
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
    Trace { timeline: Some(capture(&sketch)), ..Trace::default() }
}

fn cold(trace: &Trace) -> usize {
    analyze(trace, None, None).findings.iter().filter(|it| it.id == "cold_first_instance").count()
}

#[test]
fn a_cold_first_instance_is_a_separate_note_even_with_two_instances() {
    let analysis = analyze(&two(2000, ("a", 50), ("a", 50)), None, None);
    let row = analysis.stages.row("prefill").unwrap();
    assert_eq!((row.ms.n, (row.ms.mean * 1e6).round()), (1, 100.0));
    let note = analysis.stages.note(COLD_PART).unwrap();
    assert_eq!((note.inside.as_str(), (note.ms.mean * 1e6).round()), ("prefill", 2000.0));
    assert_eq!(
        analysis.kernels.measured().map(|it| it.calls).sum::<u64>(),
        1,
        "its kernels count as warm-up"
    );
    assert_eq!(
        analysis.stage_gpu.totals.iter().find(|it| it.stage == "prefill").map(|it| it.instances),
        Some(1)
    );
}

#[test]
fn a_larger_first_request_and_one_that_is_hardly_slower_are_not_cold() {
    assert_eq!(cold(&two(2000, ("a", 1900), ("a", 50))), 0, "the device explains it");
    assert_eq!(cold(&two(140, ("a", 50), ("a", 50))), 0);
    let mut warm = two(2000, ("a", 50), ("a", 50));
    let nsys = warm.timeline.as_mut().unwrap();
    let before = capture("call 1 90 -20..-19\nkernel 90 a -10..-5 7");
    nsys.cuda_calls = before.cuda_calls.iter().chain(nsys.cuda_calls.iter()).collect();
    nsys.kernels = before.kernels.iter().chain(nsys.kernels.iter()).collect();
    assert_eq!(cold(&warm), 0, "nothing happens for the first time");
    let nsys = warm.timeline.as_mut().unwrap();
    let name = nsys.strings.len() as u32;
    nsys.strings.push("hipModuleLaunchKernel".into());
    let more = capture("call 1 91 3..4");
    let calls = nsys.cuda_calls.iter().chain(more.cuda_calls.iter());
    nsys.cuda_calls = calls.map(|call| ApiCall { name, ..call }).collect();
    nsys.cuda_calls.sort();
    assert_eq!(cold(&warm), 0, "a launch of a kernel of a module loads no module");
}

#[test]
fn without_cuda_calls_only_a_first_instance_of_ten_times_the_others_is_cold() {
    let ranges = |cold: i64| {
        let sketch = format!(
            "range 1 prefill 0..{cold}\nrange 1 prefill 5000..5100\nrange 1 prefill 6000..6100"
        );
        cold_of(&sketch)
    };
    assert_eq!((ranges(900), ranges(1100)), (0, 1));
}

/// Number of cold steps; `steps` has names, starts and ends. Only the first step launches a new
/// kernel.
fn cold_steps(steps: &[(&str, i64, i64)]) -> usize {
    let step = |(at, (name, start, end)): (usize, &(&str, i64, i64))| {
        let (id, launch) = (at + 1, start + 1);
        format!(
            "range 1 {name} {start}..{end}\ncall 1 {id} {launch}..{}\nkernel {id} a {}..{} 7",
            launch + 1,
            launch + 2,
            launch + 12
        )
    };
    let sketch: Vec<String> = steps.iter().enumerate().map(step).collect();
    cold_of(&sketch.join("\n"))
}

#[test]
fn a_first_step_of_more_tokens_is_not_cold_by_what_they_may_take() {
    let prefill = |tokens: u64| format!("execute_context_1({tokens})_generation_0(0)");
    let (long, short) = (prefill(4000), prefill(2000));
    let first = |ns: i64, name: &str| {
        let after = [(short.as_str(), 10_000, 10_100), (short.as_str(), 20_000, 20_100)];
        cold_steps(&[&[(name, 0, ns)][..], &after].concat())
    };
    assert_eq!((first(390, &long), first(390, &short)), (0, 1));
    assert_eq!(first(700, &long), 1, "four times the time at most");
    let decode = |requests: u64| format!("execute_context_0(0)_generation_{requests}({requests})");
    let (many, few) = (decode(64), decode(8));
    assert_eq!(cold_steps(&[(&many, 0, 800), (&few, 1_000, 1_100), (&few, 2_000, 2_100)]), 0);
}

#[test]
fn the_time_of_a_first_instance_starts_after_the_work_that_it_queued_behind() {
    // The host waits in the first decode for the prefill before it.
    let sketch = "range 1 prefill 0..10\ncall 1 1 1..2\nkernel 1 a 3..1000 7
        range 1 decode 20..1100\ncall 1 2 21..22\nkernel 2 b 1001..1101 7
        range 1 decode 1200..1300\ncall 1 3 1201..1202\nkernel 3 b 1203..1303 7";
    assert_eq!(cold_of(sketch), 0);
}

#[test]
fn an_instance_without_a_time_of_its_own_is_not_cold_and_makes_no_other_cold() {
    let instance = |wall_ns: i64, overhead_ns: i64| InstanceActivity {
        wall_ns,
        overhead_ns,
        first_kernels: 1,
        ..InstanceActivity::default()
    };
    for (first, later, expected) in [
        (instance(0, 0), instance(0, 0), false),
        (instance(0, 0), instance(100, 0), false),
        (instance(2000, 0), instance(0, 0), false),
        (instance(2000, 0), instance(100, 100), false),
        (instance(2000, 2000), instance(100, 100), false),
        (instance(2000, 0), instance(100, 0), true),
    ] {
        for ranges_only in [false, true] {
            let found = is_cold(first, &[later, later], ranges_only);
            assert_eq!(found, expected, "{first:?} {later:?}");
        }
    }
}

#[test]
fn cold_instances_of_several_processes_are_named_by_their_process() {
    const OTHER: i64 = 8 << 24;
    let subjects = |is_other: bool, rank: Option<u32>| {
        let mut lines = Vec::new();
        for (tid, at, ns) in [(1, 0, 2_000), (1, 3_000, 100), (2, 500, 3_000), (2, 4_000, 100)] {
            let (id, launch) = (10_000 * tid + at, at + 2);
            lines.push(format!("range {tid} prefill {at}..{}", at + ns));
            lines.push(format!("call {tid} {id} {}..{launch}", at + 1));
            lines.push(format!("kernel {id} a {launch}..{} 7", launch + 50));
        }
        let mut trace = capture(&lines.join("\n"));
        if is_other {
            let moved = |tid: i64| if tid_of(tid) == 2 { OTHER | 2 } else { tid };
            trace.ranges.iter_mut().for_each(|it| it.global_tid = moved(it.global_tid));
            let calls = trace.cuda_calls.iter();
            let calls = calls.map(|it| ApiCall { global_tid: moved(it.global_tid), ..it });
            trace.cuda_calls = calls.collect();
            trace.kernels = trace.kernels.map(|_, it| {
                if it.correlation_id >= 20_000 {
                    (it.global_pid, it.device) = (OTHER, 1);
                }
            });
            let recorded = ProcessRank { rank, ..ProcessRank::default() };
            trace.collectives.processes.insert(OTHER, recorded);
        }
        let trace = Trace { timeline: Some(trace), ..Trace::default() };
        let found = analyze(&trace, None, None).findings;
        let cold = found.iter().filter(|it| it.id == "cold_first_instance");
        let subject = |message: &str| message.split_once(" was cold").unwrap().0.to_owned();
        cold.map(|it| subject(&it.message)).collect::<Vec<_>>()
    };
    let first = "The first instance of prefill";
    let two = |other: &str| [format!("{first} in process 7"), format!("{first} in {other}")];
    assert_eq!(subjects(true, None), two("process 8"));
    assert_eq!(subjects(true, Some(3)), two("rank 3"));
    assert_eq!(subjects(false, None), [first], "threads of one process");
}

fn cold_of(sketch: &str) -> usize {
    cold(&Trace { timeline: Some(capture(sketch)), ..Trace::default() })
}

/// Evidence of one instance.
#[derive(Clone, Copy, PartialEq)]
enum Evidence {
    Nothing,
    /// It launches a kernel that no instance before it does.
    FirstLaunch,
    Allocation,
}

/// Windows of one process of a few prefills each; each has its time and evidence. Without calls,
/// only ranges are recorded.
fn in_windows(windows: &[&[(i64, Evidence)]], has_calls: bool) -> Trace {
    let (mut lines, mut allocations, mut starts) = (Vec::new(), Vec::new(), Vec::new());
    let (mut start, mut id) = (0_i64, 0_i64);
    for instances in windows {
        starts.push(start);
        for (ns, evidence) in *instances {
            lines.push(format!("range 1 prefill {start}..{}", start + ns));
            id += 1;
            let kernel = if *evidence == Evidence::FirstLaunch { id } else { 0 };
            if has_calls {
                lines.push(format!("call 1 {id} {}..{}", start + 1, start + 2));
                lines.push(format!("kernel {id} k{kernel} {}..{} 7", start + 2, start + 52));
            }
            if has_calls && *evidence == Evidence::Allocation {
                lines.push(format!("call 1 {} {}..{}", 1_000 + id, start + 60, start + 61));
                allocations.push(1_000 + id);
            }
            start += ns + 1_000;
        }
    }
    let mut trace = capture(&lines.join("\n"));
    let allocation = trace.strings.len() as u32;
    trace.strings.push("cudaMalloc_v3020".into());
    let window = |at: i64| starts.partition_point(|it| *it <= at) as i64 - 1;
    let calls = trace.cuda_calls.iter().map(|it| ApiCall {
        global_tid: it.global_tid + WINDOW * window(it.start_ns),
        name: if allocations.contains(&it.correlation_id) { allocation } else { it.name },
        ..it
    });
    trace.cuda_calls = calls.collect();
    trace.ranges.iter_mut().for_each(|it| it.global_tid += WINDOW * window(it.start_ns));
    trace.kernels = trace.kernels.map(|_, it| it.global_pid += WINDOW * window(it.start_ns));
    let process = process_of(trace.ranges[0].global_tid);
    for at in 1..windows.len() as i64 {
        let place = ProcessRank { window_of: Some(process), ..ProcessRank::default() };
        trace.collectives.processes.insert(process + WINDOW * at, place);
    }
    Trace { timeline: Some(trace), ..Trace::default() }
}

#[test]
fn the_start_of_a_recording_window_makes_no_instance_cold() {
    use Evidence::{Allocation, FirstLaunch, Nothing};
    type Windows<'a> = &'a [&'a [(i64, Evidence)]];
    let (warm, slow) = ((100, Nothing), (2_000, Nothing));
    let all: &[(Windows, bool, usize)] = &[
        (&[&[slow, warm, warm]], true, 1),
        (&[&[slow, warm], &[slow, warm], &[slow, warm]], true, 1),
        (&[&[slow], &[warm]], true, 1),
        (&[&[warm], &[slow]], true, 0),
        (&[&[warm, warm], &[slow, warm]], true, 0),
        (&[&[warm, warm], &[(2_000, FirstLaunch), warm]], true, 1),
        (&[&[warm, warm], &[(2_000, Allocation), warm]], true, 1),
        (&[&[warm, warm], &[warm, (2_000, FirstLaunch)]], true, 0),
        (&[&[slow, warm], &[(2_000, FirstLaunch), warm]], true, 2),
        (&[&[slow, warm], &[slow, warm]], false, 1),
        (&[&[warm, warm], &[slow, warm]], false, 0),
    ];
    for (at, (windows, has_calls, expected)) in all.iter().enumerate() {
        assert_eq!(cold(&in_windows(windows, *has_calls)), *expected, "case {at}");
    }
    let trace = in_windows(&[&[warm, warm], &[(2_000, FirstLaunch), warm]], true);
    let found = analyze(&trace, None, None).findings;
    let found = found.iter().find(|it| it.id == "cold_first_instance").unwrap();
    let start = "The first instance of prefill in a later recording window was cold: ";
    assert!(found.message.starts_with(start), "{}", found.message);
    assert_eq!(found.evidence["start of the instance, ns"], "2200");
}

proptest::proptest! {
    #[test]
    fn windows_of_instances_without_evidence_have_the_cold_one_of_a_single_recording(
        first in 60i64..3_000,
        slow in 100i64..3_000,
        count in 3usize..9,
        cut in 1usize..8,
    ) {
        let cut = cut.min(count - 1);
        let mut all = vec![(100, Evidence::Nothing); count];
        (all[0].0, all[cut].0) = (first, slow);
        let one = cold(&in_windows(&[&all], true));
        let two = cold(&in_windows(&[&all[..cut], &all[cut..]], true));
        proptest::prop_assert_eq!(one, two);
    }
}

//! Time of a capture that no stage has: all of it if it has no stages, and the time between the
//! steps of an engine.

use std::collections::BTreeMap;

use llmprof_core::trace::{
    stage::WARMUP,
    timeline::{ON_HOST, process_of},
};

use super::{
    activity::{activities, used_devices},
    capture::Capture,
    interval::Interval,
    open_ranges::{EXCLUDED, NONE, OpenStages},
    stage_spans::{extended, stage_spans},
};
use crate::{
    stages::{BETWEEN_STEPS, NO_STAGE},
    stats::median,
};

/// A gap this many times as long as a usual step and a usual gap is a pause without requests.
const PAUSE: f64 = 100.0;

/// A capture without stages as one stage without a name: in each process with work, from the first
/// recorded work of its GPUs to the last, after the warm-up if there is one. `None` with stages,
/// without work, and if work has no times.
pub fn whole<'a>(capture: &Capture<'a>) -> Option<Capture<'a>> {
    let all = &capture.stages;
    let has_stages = all.instances.iter().any(|it| all.labels[it.label] != WARMUP);
    if has_stages || capture.trace.lacks_times() {
        return None;
    }
    let warm_ns = stage_spans(capture).into_iter().map(|it| it.1).max().unwrap_or(i64::MIN);
    let used = used_devices(capture.trace);
    let mut of_device: BTreeMap<u32, Interval> = BTreeMap::new();
    let work = activities(capture).filter(|it| it.device != ON_HOST);
    for it in work.filter(|it| it.start_ns >= warm_ns) {
        let window = of_device.entry(it.device).or_insert((it.start_ns, it.end_ns));
        *window = extended(Some(*window), (it.start_ns, it.end_ns));
    }
    let mut windows: BTreeMap<i64, Interval> = BTreeMap::new();
    // Processes that share a GPU have one window.
    for _ in &used {
        for (process, device) in &used {
            let Some(of_device) = of_device.get_mut(device) else { continue };
            let window = extended(windows.get(process).copied(), *of_device);
            windows.insert(*process, window);
            *of_device = window;
        }
    }
    if windows.is_empty() {
        return None;
    }
    let places: Vec<i64> = windows.keys().copied().collect();
    let stages = OpenStages::of_one(NO_STAGE, capture.trace, windows.into_iter().collect());
    Some(capture.restaged(stages, |instance, process, start_ns| match instance {
        NONE if start_ns >= warm_ns => places.binary_search(&process).map_or(NONE, |at| at as u32),
        _ => EXCLUDED,
    }))
}

/// The time of a process between consecutive steps of an engine, as a stage, with the work that no
/// step launched in it. `None` without such time. Next to a cold step and in a pause there
/// is none.
pub fn between_steps<'a>(capture: &Capture<'a>) -> Option<Capture<'a>> {
    let all = &capture.stages;
    if !all.steps.iter().any(|it| it.is_scheduled) || capture.trace.lacks_times() {
        return None;
    }
    // End of the last step of each process; `None` after a warm-up.
    let mut last: BTreeMap<i64, Option<i64>> = BTreeMap::new();
    let mut gaps: Vec<(i64, Interval)> = Vec::new();
    let mut steps: Vec<f64> = Vec::new();
    for (it, (start, end)) in all.instances.iter().zip(stage_spans(capture)) {
        if it.start_ns >= it.end_ns {
            continue;
        }
        let process = process_of(it.place);
        let until = last.entry(process).or_default();
        if all.labels[it.label] == WARMUP {
            *until = None;
            continue;
        }
        if let Some(from) = until.filter(|from| *from < start) {
            gaps.push((process, (from, start)));
        }
        *until = Some(until.map_or(end, |until| until.max(end)));
        steps.push((end - start) as f64);
    }
    let length = |gap: Interval| (gap.1 - gap.0) as f64;
    let usual = [median(gaps.iter().map(|it| length(it.1))), median(steps)];
    let usual = usual.into_iter().flatten().fold(0.0, f64::max);
    gaps.retain(|it| length(it.1) <= PAUSE * usual);
    if gaps.is_empty() {
        return None;
    }
    gaps.sort_by_key(|it| it.1);
    let mut of_process: BTreeMap<i64, Vec<(Interval, u32)>> = BTreeMap::new();
    for (at, (process, gap)) in gaps.iter().enumerate() {
        of_process.entry(*process).or_default().push((*gap, at as u32));
    }
    let gap_at = |process: i64, t: i64| {
        let gaps = of_process.get(&process)?;
        let at = gaps.partition_point(|it| it.0.0 <= t).checked_sub(1)?;
        (t < gaps[at].0.1).then_some(gaps[at].1)
    };
    let stages = OpenStages::of_one(BETWEEN_STEPS, capture.trace, gaps);
    Some(capture.restaged(stages, |instance, process, start_ns| match instance {
        NONE => gap_at(process, start_ns).unwrap_or(EXCLUDED),
        _ => EXCLUDED,
    }))
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::{Trace, timeline::ApiCall};

    use super::*;
    use crate::{
        Analysis, analyze,
        kernels::tests::capture,
        ledger::{LedgerCause, LedgerStage},
    };

    fn of(sketch: &str) -> Analysis {
        analyze(&Trace { nsys: Some(capture(sketch)), ..Trace::default() }, None, None)
    }

    fn stage<'a>(analysis: &'a Analysis, name: &str) -> Option<&'a LedgerStage> {
        analysis.ledger.stages.iter().find(|it| it.stage == name)
    }

    fn ns(analysis: &Analysis, name: &str, cause: LedgerCause) -> i64 {
        let rows = analysis.ledger.of_stage(name).filter(|it| it.cause == cause);
        rows.map(|it| it.ns).sum()
    }

    fn sum(analysis: &Analysis, name: &str) -> i64 {
        analysis.ledger.of_stage(name).map(|it| it.ns).sum()
    }

    /// Kernels at 10 to 40, 60 to 100, and 130 to 150 without a call.
    const NO_STAGES: &str = "call 1 1 0..1\nkernel 1 a 10..40 7\ncall 1 2 50..51
        kernel 2 b 60..100 7\nkernel 3 c 130..150 7";

    #[test]
    fn all_time_of_a_capture_without_stages_has_causes_from_its_first_work_to_its_last() {
        let found = of(NO_STAGES);
        assert_eq!(stage(&found, NO_STAGE).map(|it| it.measured_ns), Some(140));
        assert_eq!(sum(&found, NO_STAGE), 140);
        assert_eq!(ns(&found, NO_STAGE, LedgerCause::GapHost), 10, "until the call at 50");
        assert_eq!(ns(&found, NO_STAGE, LedgerCause::GapUnknown), 30, "work without a call");
        let with_stage = of(&format!("range 1 prefill 0..200\n{NO_STAGES}"));
        assert!(stage(&with_stage, NO_STAGE).is_none());
    }

    #[test]
    fn a_capture_whose_only_stage_is_a_warm_up_has_causes_of_the_time_after_it() {
        let found = of(&format!("range 1 warmup 0..45\n{NO_STAGES}"));
        assert_eq!(stage(&found, NO_STAGE).map(|it| it.measured_ns), Some(90), "from 60 to 150");
        assert_eq!(sum(&found, NO_STAGE), 90);
        assert!(stage(&of(&format!("range 1 warmup 0..200\n{NO_STAGES}")), NO_STAGE).is_none());
    }

    #[test]
    fn two_processes_that_share_a_gpu_have_its_time_once() {
        let mut trace = capture(NO_STAGES);
        let other = capture("call 1 1 0..1\nkernel 1 a 150..160 9");
        let moved = |pid: i64| pid + (1 << 24);
        let calls = other.cuda_calls.iter();
        let calls = calls.map(|it| ApiCall { global_tid: moved(it.global_tid), ..it });
        trace.cuda_calls = trace.cuda_calls.iter().chain(calls).collect();
        let kernels = other.kernels.map(|_, it| it.global_pid = moved(it.global_pid));
        trace.kernels = trace.kernels.iter().chain(kernels.iter()).collect();
        let found = analyze(&Trace { nsys: Some(trace), ..Trace::default() }, None, None);
        let stage = stage(&found, NO_STAGE).unwrap();
        assert_eq!((stage.measured_ns, stage.instances), (150, Some(2)));
        assert_eq!(sum(&found, NO_STAGE), 150);
    }

    #[test]
    fn a_capture_without_work_has_no_ledger() {
        assert!(of("call 1 1 0..1\ncall 1 2 5..6").ledger.stages.is_empty());
        assert!(of("").ledger.stages.is_empty());
    }

    /// A step of 100 ns every 300 ns, whose kernel ends with it; `between` is launched outside.
    fn steps(between: &str) -> String {
        let step = |at: i64| {
            let (start, id) = (300 * at, at + 1);
            let name = "execute_context_0(0)_generation_8(8)";
            format!(
                "range 1 {name} {start}..{}\ncall 1 {id} {}..{}\nkernel {id} k {}..{} 7",
                start + 100,
                start + 5,
                start + 10,
                start + 20,
                start + 100,
            )
        };
        let steps: Vec<String> = (0..4).map(step).collect();
        format!("{}\n{between}\n{}", steps[0], steps[1..].join("\n"))
    }

    #[test]
    fn the_time_between_the_steps_of_an_engine_has_causes_and_the_work_launched_in_it() {
        let found = of(&steps("call 1 90 110..112\nkernel 90 sample 120..150 7"));
        let between = stage(&found, BETWEEN_STEPS).unwrap();
        assert_eq!((between.measured_ns, between.instances), (200, Some(3)), "{between:?}");
        assert_eq!(sum(&found, BETWEEN_STEPS), 200);
        let members = found.ledger.members.iter().filter(|it| it.stage == BETWEEN_STEPS);
        let work = members.filter(|it| it.cause == LedgerCause::Unexplained);
        let work: Vec<_> = work.map(|it| (it.kernel.as_deref(), it.ns)).collect();
        assert_eq!(work, [(Some("sample"), 10)], "30 in three gaps");
        let idle: i64 = found
            .ledger
            .of_stage(BETWEEN_STEPS)
            .filter(|it| it.cause.is_idle())
            .map(|it| it.ns)
            .sum();
        assert_eq!(idle, 190, "of 200");
        assert_eq!(found.stage_gpu.totals.iter().filter(|it| it.stage == BETWEEN_STEPS).count(), 1);
    }

    #[test]
    fn after_a_step_that_lost_work_nothing_shows_what_the_gpu_did() {
        let mut trace = capture(&steps("").replace("kernel 2 k 320..400 7", ""));
        let name = trace.strings.len() as u32;
        trace.strings.push("cudaLaunchKernel".into());
        trace.cuda_calls = trace.cuda_calls.iter().map(|it| ApiCall { name, ..it }).collect();
        let found = analyze(&Trace { nsys: Some(trace), ..Trace::default() }, None, None);
        assert!(found.findings.iter().any(|it| it.id == "kernels_lost"), "{:?}", found.findings);
        assert!(stage(&found, BETWEEN_STEPS).is_none());
        assert!(found.stage_gpu.totals.iter().all(|it| it.stage != BETWEEN_STEPS));
    }

    #[test]
    fn ranks_have_their_own_windows_and_a_pause_without_requests_is_no_gap() {
        let mut trace = capture("call 1 1 0..1\nkernel 1 a 10..40 7");
        let other = capture("call 1 1 5000..5001\nkernel 1 a 9000..9070 9");
        let moved = |pid: i64| pid + (1 << 24);
        let calls = other.cuda_calls.iter();
        let calls = calls.map(|it| ApiCall { global_tid: moved(it.global_tid), ..it });
        trace.cuda_calls = trace.cuda_calls.iter().chain(calls).collect();
        let second =
            other.kernels.map(|_, it| (it.global_pid, it.device) = (moved(it.global_pid), 1));
        trace.kernels = trace.kernels.iter().chain(second.iter()).collect();
        let found = analyze(&Trace { nsys: Some(trace), ..Trace::default() }, None, None);
        let of_ranks = stage(&found, NO_STAGE).unwrap();
        assert_eq!((of_ranks.measured_ns, of_ranks.instances), (50, Some(2)), "30 and 70, busy");
        assert_eq!(sum(&found, NO_STAGE), 50);

        let late = "range 1 execute_context_0(0)_generation_8(8) 900000..900100
            call 1 95 900005..900010\nkernel 95 k 900020..900100 7";
        let found = of(&format!("{}\n{late}", steps("")));
        let between = stage(&found, BETWEEN_STEPS).unwrap();
        assert_eq!((between.measured_ns, between.instances), (200, Some(3)), "{between:?}");
    }

    #[test]
    fn steps_on_two_threads_of_a_process_have_the_time_in_which_it_has_none() {
        let step = |thread: i64, start: i64, id: i64| {
            format!(
                "range {thread} execute_context_0(0)_generation_8(8) {start}..{}
                 call {thread} {id} {}..{}\nkernel {id} k {}..{} {thread}\n",
                start + 100,
                start + 5,
                start + 10,
                start + 20,
                start + 100,
            )
        };
        let sketch: String = (0..4).map(|at| step(1 + at % 2, 300 * at, at + 1)).collect();
        let found = of(&sketch);
        let between = stage(&found, BETWEEN_STEPS).unwrap();
        assert_eq!((between.measured_ns, between.instances), (200, Some(3)), "{between:?}");
        assert_eq!(ns(&found, BETWEEN_STEPS, LedgerCause::OtherStages), 0);
    }

    #[test]
    fn steps_that_follow_at_once_have_no_time_between_them() {
        let at_once = "range 1 execute_context_0(0)_generation_8(8) 0..100
            range 1 execute_context_0(0)_generation_8(8) 100..200
            call 1 1 1..2\nkernel 1 k 10..100 7\ncall 1 2 101..102\nkernel 2 k 110..200 7";
        assert!(stage(&of(at_once), BETWEEN_STEPS).is_none());
        let named = "range 1 prefill 0..100\nrange 1 decode_all 300..400
            call 1 1 1..2\nkernel 1 k 10..100 7\ncall 1 2 301..302\nkernel 2 k 310..400 7";
        assert!(stage(&of(named), BETWEEN_STEPS).is_none(), "stages, not steps");
    }
}

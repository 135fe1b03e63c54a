//! Stages whose ranges launch none of the work done for them: other threads launch it, the program
//! launches it at other times, or the ranges lie inside ranges of another stage.
//!
//! A push/pop range is open only on its thread. GPU times of a stage without any launch of its own
//! do not measure its work.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::{
    domain::{
        digits,
        finding::{Finding, catalogue},
    },
    trace::{engine_steps::IDLE, framework::TimelineTool, timeline::process_of},
};

use crate::{
    kernels::is_measured,
    stages::{coverage::StageCoverage, in_sentence},
    timeline::{
        capture::{Capture, Join},
        interval::Interval,
        open_ranges::NONE,
    },
};

/// A stage instance that launched nothing.
struct IdleInstance {
    at: usize,
    thread: i64,
    times: Interval,
}

/// Stages that launched nothing, with the number of kernels, copies and graphs that other threads
/// of their processes launched meanwhile outside every stage: 0 of stages without any, in a capture
/// that has work and the launch of all of it.
pub fn launched_elsewhere(capture: &Capture) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let stages = idle_stages(capture);
    if stages.is_empty() {
        return found;
    }
    let mut works = all_joins(capture).peekable();
    if works.peek().is_some() && works.all(Join::has_call) {
        let names = stages.iter().map(|label| capture.stages.labels[*label].clone());
        found.extend(names.map(|stage| (stage, 0)));
    }
    let idle = idle_instances(capture, &stages);
    let mut calls = capture.trace.cuda_calls.reader();
    for join in all_joins(capture) {
        if join.instance != NONE || !join.has_call() {
            continue;
        }
        let call = calls.get(join.call);
        let Some(idle) = idle.get(&process_of(call.global_tid)) else { continue };
        let after = idle.partition_point(|it| it.times.0 <= call.start_ns);
        let Some(it) = after.checked_sub(1).map(|at| &idle[at]) else { continue };
        if call.start_ns < it.times.1 && call.global_tid != it.thread {
            *found.entry(capture.stages.label(it.at).to_owned()).or_default() += 1;
        }
    }
    found
}

fn all_joins(capture: &Capture) -> impl Iterator<Item = Join> {
    capture.kernel_joins().chain(capture.copy_joins()).chain(capture.graph_joins())
}

/// Labels of measured stages without any launch.
fn idle_stages(capture: &Capture) -> BTreeSet<usize> {
    let stages = &capture.stages;
    let instances = stages.instances.iter().enumerate();
    // A step without requests needs no work.
    let needs_work = |stage: &str| is_measured(stage) && stage != IDLE;
    let measured =
        instances.filter(|(at, it)| it.start_ns < it.end_ns && needs_work(stages.label(*at)));
    let mut idle: BTreeSet<usize> = measured.map(|(_, it)| it.label).collect();
    if !idle.is_empty() {
        for it in all_joins(capture) {
            if let Some(it) = stages.instances.get(it.instance as usize) {
                idle.remove(&it.label);
            }
        }
    }
    idle
}

/// Instances on threads of these stages, by process, in the order of their starts.
fn idle_instances(capture: &Capture, of: &BTreeSet<usize>) -> BTreeMap<i64, Vec<IdleInstance>> {
    let mut idle: BTreeMap<i64, Vec<IdleInstance>> = BTreeMap::new();
    for (at, it) in capture.stages.instances.iter().enumerate() {
        let process = process_of(it.place);
        let is_on_thread = process != it.place;
        if is_on_thread && it.start_ns < it.end_ns && of.contains(&it.label) {
            let (thread, times) = (it.place, (it.start_ns, it.end_ns));
            idle.entry(process).or_default().push(IdleInstance { at, thread, times });
        }
    }
    idle
}

/// Findings on stages whose work others launched, and on stages inside another one. A stage whose
/// launches are recorded without their work has a finding on lost kernels.
pub fn findings(
    elsewhere: &BTreeMap<String, u64>,
    coverage: &[StageCoverage],
    capture: &Capture,
) -> Vec<Finding> {
    let launches = |stage: &str| {
        coverage.iter().any(|it| it.stage == stage && (it.launched > 0 || it.cut_off > 0))
    };
    let elsewhere: BTreeMap<&String, &u64> =
        elsewhere.iter().filter(|it| !launches(it.0)).collect();
    let nothing: Vec<&str> =
        elsewhere.iter().filter(|it| **it.1 == 0).map(|it| it.0.as_str()).collect();
    let without_work = (!nothing.is_empty()).then(|| {
        let stages: Vec<&str> = nothing.iter().copied().map(in_sentence).collect();
        let stages = stages.join(" and ");
        let message = format!(
            "No work of a GPU was launched in the ranges of {stages}: all work of the capture was \
             launched outside them, and the GPU times of {stages} are unknown."
        );
        Finding::new(catalogue::STAGE_WITHOUT_WORK, message).with("stages", nothing.join(", "))
    });
    let launched = |(stage, kernels): (&&String, &&u64)| {
        let message = format!(
            "The threads with the ranges of {stage} launched no work, while other threads \
             launched {} kernels, copies or graphs: the GPU times of {stage} are unknown.",
            digits::count(**kernels),
            stage = in_sentence(stage)
        );
        Finding::new(catalogue::STAGE_LAUNCHED_ELSEWHERE, message)
            .with("stage", stage)
            .with("launched by other threads", kernels)
            .advise(match capture.trace.tool {
                TimelineTool::Nsys => {
                    "Open the range on the thread that launches the work, or use start/end ranges \
                     (nvtxRangeStart), which are open on all threads of the process."
                }
                TimelineTool::Pytorch => {
                    "Open the range on the thread that launches the work: record_function counts \
                     only on its own thread."
                }
            })
    };
    let hidden = |((inner, outer), count): (&(usize, usize), &u64)| {
        let [inner, outer] = [inner, outer].map(|label| &capture.stages.labels[*label]);
        let message = format!(
            "{} ranges of {} lie inside ranges of {outer} and do not count: of stages that \
             are open at once, {outer} counts.",
            digits::count(*count),
            in_sentence(inner),
            outer = in_sentence(outer)
        );
        Finding::new(catalogue::STAGE_HIDDEN, message)
            .with("stage", inner)
            .with("inside", outer)
            .with("ranges", count)
            .advise(format!(
                "End the range of {outer} before that of {inner} starts, or name the stages of \
                 the run with {inner} first."
            ))
    };
    let launched = elsewhere.iter().filter(|it| **it.1 > 0).map(launched);
    launched.chain(without_work).chain(capture.stages.hidden.iter().map(hidden)).collect()
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::Trace;

    use crate::{Analysis, analyze, kernels::tests::capture};

    fn of(sketch: &str) -> Analysis {
        analyze(&Trace { timeline: Some(capture(sketch)), ..Trace::default() }, None, None)
    }

    fn ids(analysis: &Analysis) -> Vec<&str> {
        let known = ["stage_launched_elsewhere", "stage_without_work", "stage_hidden"];
        let ids = analysis.findings.iter().map(|it| it.id.as_str());
        ids.filter(|id| known.contains(id)).collect()
    }

    #[test]
    fn a_stage_whose_work_another_thread_launches_is_a_finding_and_has_no_gaps() {
        let work = "call 2 1 1..2\nkernel 1 a 3..9 7\ncall 1 2 22..23\nkernel 2 b 24..29 7";
        let stages = "range 1 prefill 0..20\nrange 1 decode_all 21..40";
        let found = of(&format!("{stages}\n{work}"));
        assert_eq!(ids(&found), ["stage_launched_elsewhere"]);
        let timed: Vec<_> = found.stage_gpu.totals.iter().map(|it| it.stage.as_str()).collect();
        assert_eq!(timed, ["decode_all"]);
        assert!(found.ledger.rows.iter().all(|it| it.stage != "prefill"));
        let crossing = stages.replace("range 1 prefill", "cross 1 prefill");
        assert!(ids(&of(&format!("{crossing}\n{work}"))).is_empty());
        let copy = work.replace("kernel 1 a 3..9 7", "copy 1 100 3..9");
        assert_eq!(ids(&of(&format!("{stages}\n{copy}"))), ["stage_launched_elsewhere"]);
        let both = format!("{stages}\n{work}\ncall 1 3 12..13\nkernel 3 a 14..19 7");
        assert!(ids(&of(&both)).is_empty(), "its own thread launches work too");
    }

    #[test]
    fn a_stage_that_launches_nothing_has_no_gaps_unless_a_launch_is_unknown() {
        let sketch = "range 1 prefill 0..20\nrange 1 decode_all 21..40\n\
                      call 1 1 1..2\nkernel 1 a 3..9 7\ncall 1 2 52..53\nkernel 2 b 54..59 7";
        let found = of(sketch);
        assert_eq!(ids(&found), ["stage_without_work"]);
        assert!(found.ledger.rows.iter().all(|it| it.stage != "decode_all"));
        assert!(found.ledger.rows.iter().any(|it| it.stage == "prefill"));
        let unknown = of(&format!("{sketch}\nkernel 3 c 25..29 7"));
        assert!(ids(&unknown).is_empty());
        assert!(ids(&of("range 1 prefill 0..20")).is_empty(), "the capture has no work");
        let idle = "execute_context_0(0)_generation_0(0)";
        let with_idle = sketch.replace("range 1 decode_all", &format!("range 1 {idle}"));
        assert!(ids(&of(&with_idle)).is_empty(), "a step without requests needs no work");
    }

    #[test]
    fn a_stage_inside_another_is_a_finding_and_one_in_a_warm_up_is_not() {
        let hidden = of("range 1 prefill 0..40\nrange 1 decode_all 10..30");
        assert_eq!(ids(&hidden), ["stage_hidden"]);
        assert!(ids(&of("range 1 warmup 0..40\nrange 1 decode_all 10..30")).is_empty());
        assert!(ids(&of("range 1 prefill 0..40\nrange 1 decode_all 10..50")).is_empty());
        assert!(ids(&of("range 1 decode_all 0..40\nrange 1 prefill 10..30")).is_empty());
    }
}

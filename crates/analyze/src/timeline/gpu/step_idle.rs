//! Idle time of GPUs in single steps of a process, divided as the gaps of stages are.

use std::collections::BTreeMap;

use llmprof_core::trace::timeline::process_of;

use super::{
    super::{
        capture::Capture,
        interval::{Interval, IntervalSet},
    },
    cells::GpuCells,
    gap_sums::GapReason,
    idle_gap::{IdleGap, LaneEvent},
    named_gaps::GapNames,
};

/// A step whose idle time is wanted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WantedStep<'a> {
    pub stage: &'a str,
    pub process: i64,
    pub span: Interval,
}

/// Idle time of the GPU that idles longest in a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepIdle {
    /// Nanoseconds by reason.
    pub reasons: BTreeMap<GapReason, i64>,
    /// Nanoseconds by reason in the usual steps of the process, on this GPU.
    pub in_usual: BTreeMap<GapReason, i64>,
    /// Nanoseconds by long call of the host.
    pub calls: BTreeMap<String, i64>,
    pub longest: Option<LongestGap>,
}

/// The longest gap of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LongestGap {
    /// Its part in the step.
    pub span: Interval,
    /// Thread for whose launch the GPU waited.
    pub thread: Option<i64>,
}

/// Sums of one step on one GPU.
#[derive(Default)]
struct Sums {
    reasons: BTreeMap<GapReason, i64>,
    calls: BTreeMap<u32, i64>,
    longest: Option<LongestGap>,
}

/// A process on one GPU in a stage: label, place of the GPU and process.
type Place = (usize, usize, i64);

/// The idle time of each of these steps, and of the usual ones. Gaps of other processes are not
/// theirs, and a part of a gap has its part of each reason.
pub fn step_idle(capture: &Capture, steps: &[WantedStep], usual: &[WantedStep]) -> Vec<StepIdle> {
    let labels = &capture.stages.labels;
    let label_of = |it: &WantedStep| labels.iter().position(|label| label == it.stage);
    let step_labels: Vec<Option<usize>> = steps.iter().map(label_of).collect();
    let mut usual_of: BTreeMap<(usize, i64), Vec<Interval>> = BTreeMap::new();
    for it in usual {
        if let Some(label) = label_of(it) {
            usual_of.entry((label, it.process)).or_default().push(it.span);
        }
    }
    let usual_of: BTreeMap<_, IntervalSet> =
        usual_of.into_iter().map(|(of, spans)| (of, IntervalSet::new(spans))).collect();
    let mut names = GapNames::of(capture);
    let mut in_usual: BTreeMap<Place, BTreeMap<GapReason, i64>> = BTreeMap::new();
    let mut of_step: BTreeMap<(usize, usize), Sums> = BTreeMap::new();
    GpuCells::of(capture, &mut |cells, event| {
        let LaneEvent::Gap(gap) = event else { return };
        let label = cells[gap.cell].label;
        let Some(process) = process_of_gap(gap).filter(|_| step_labels.contains(&Some(label)))
        else {
            return;
        };
        let gpu = gap.cell % (cells.len() / labels.len()).max(1);
        let mut parts: Vec<(GapReason, Option<u32>, i64)> = Vec::new();
        let long = names.divide(gap, |reason, call, ns| parts.push((reason, call, ns)));
        let share = |ns: i64, inside: i64| part_of(ns, (inside, gap.to - gap.from));
        let of_usual =
            usual_of.get(&(label, process)).map_or(0, |it| it.overlap_ns(gap.from, gap.to));
        let total = in_usual.entry((label, gpu, process)).or_default();
        for (reason, _, ns) in &parts {
            *total.entry(*reason).or_default() += share(*ns, of_usual);
        }
        for (at, step) in steps.iter().enumerate() {
            let span = (gap.from.max(step.span.0), gap.to.min(step.span.1));
            if step_labels[at] != Some(label) || step.process != process || span.0 >= span.1 {
                continue;
            }
            let sums = of_step.entry((at, gpu)).or_default();
            for (reason, call, ns) in &parts {
                *sums.reasons.entry(*reason).or_default() += share(*ns, span.1 - span.0);
                if let Some(call) = call {
                    // Only a part of the gap may be in the call.
                    let inside = long.filter(|it| it.0 == *call).map_or(span, |it| it.1);
                    let inside = inside.1.min(span.1) - inside.0.max(span.0);
                    *sums.calls.entry(*call).or_default() += (*ns).min(inside.max(0));
                }
            }
            let length = |it: Interval| it.1 - it.0;
            if sums.longest.is_none_or(|it| length(it.span) < length(span)) {
                let thread = gap.call.map(|it| it.global_tid).or(gap.last_thread);
                sums.longest = Some(LongestGap { span, thread });
            }
        }
    });
    let names = names.into_names();
    let named = |calls: BTreeMap<u32, i64>| {
        calls.into_iter().map(|(call, ns)| (names[call as usize].clone(), ns)).collect()
    };
    let mut found = vec![StepIdle::default(); steps.len()];
    for ((at, gpu), sums) in of_step {
        let idle = |reasons: &BTreeMap<GapReason, i64>| reasons.values().sum::<i64>();
        if idle(&found[at].reasons) < idle(&sums.reasons) {
            let place = step_labels[at].map(|label| (label, gpu, steps[at].process));
            let in_usual = place.and_then(|it| in_usual.get(&it)).cloned().unwrap_or_default();
            let Sums { reasons, calls, longest } = sums;
            found[at] = StepIdle { reasons, in_usual, calls: named(calls), longest };
        }
    }
    found
}

/// The process for whose work the GPU waited.
fn process_of_gap(gap: &IdleGap) -> Option<i64> {
    let thread = gap.call.map(|it| it.global_tid).or(gap.last_thread);
    let work = || gap.after.map(|it| it.process).or(gap.before.map(|it| it.process));
    thread.map(process_of).or_else(work)
}

/// The part of `ns` that is in `inside` of `length` nanoseconds.
fn part_of(ns: i64, (inside, length): (i64, i64)) -> i64 {
    (i128::from(ns) * i128::from(inside) / i128::from(length.max(1))) as i64
}

//! A step of the unprofiled pass, from the operators' host times.

use llmprof_core::trace::event::StageRange;

use super::{STEP, SliceList, StepSlice, StepTimeline, us};
use crate::{events::Events, operators::MODULE, timeline::interval::covered_ns};

/// The median step of the unprofiled pass; `None` if no step was timed individually.
pub fn unprofiled_step(events: &Events) -> Option<StepTimeline> {
    let mut steps: Vec<(i64, usize, &StageRange)> = events
        .measured(STEP)
        .enumerate()
        .map(|(at, it)| (it.end_ns - it.start_ns, at, it))
        .collect();
    let count = steps.len();
    steps.sort_by_key(|(length, at, _)| (*length, *at));
    let (_, at, step) = *steps.get(count.saturating_sub(1) / 2)?;
    let inside = |start: i64, end: i64| step.start_ns <= start && end <= step.end_ns && start < end;
    let mut calls: Vec<_> = events
        .calls
        .iter()
        .filter(|it| !it.of.warmup && !it.of.captured && inside(it.start_ns, it.end_ns))
        .collect();
    calls.sort_by_key(|it| (it.start_ns, std::cmp::Reverse(it.end_ns)));
    let mut tracks: Vec<Vec<StepSlice>> = Vec::new();
    let mut open: Vec<i64> = Vec::new();
    for it in &calls {
        open.retain(|end| *end > it.start_ns);
        if tracks.len() == open.len() {
            tracks.push(vec![]);
        }
        tracks[open.len()].push(StepSlice {
            track: format!("operators {}", open.len() + 1),
            name: it.of.path.clone(),
            class: (it.of.op != MODULE).then(|| it.of.op.clone()),
            operator: None,
            own: true,
            start_us: us(it.start_ns - step.start_ns),
            duration_us: us(it.end_ns - it.start_ns),
        });
        open.push(it.end_ns);
    }
    let leaves = calls.iter().filter(|it| it.of.op != MODULE);
    let busy = covered_ns(leaves.map(|it| (it.start_ns, it.end_ns)));
    let slices = tracks.into_iter().flatten().collect();
    let (slices, omitted) = SliceList { from: step.start_ns, slices }.limited();
    (!slices.is_empty()).then(|| StepTimeline {
        pass: "plain".into(),
        step: at as u64 + 1,
        steps: count as u64,
        window_us: us(step.end_ns - step.start_ns),
        lead_us: 0.0,
        busy_us: us(busy),
        idle_us: None,
        devices: 0,
        kernels: 0,
        whole_graphs: 0,
        slices,
        omitted,
    })
}

//! Coverage by stage: launches whose kernels must be recorded, and recorded kernels.
//!
//! A stage that lost kernels keeps its recorded kernels as a list, but has no figures that need all
//! of them (busy, idle, shares). Not counted as lost: launches into a capturing stream, graphs
//! traced as a whole, kernels launched before the capture, and the last few that its end cut off.

mod graphs;
pub mod launches;
mod tail;

use std::collections::BTreeMap;

use foldhash::HashSet;
use llmprof_core::{
    domain::{
        digits,
        finding::{Finding, catalogue},
        units::quantity,
    },
    trace::{
        runtime_call::CallKind,
        timeline::{Timeline, process_of},
    },
};

use self::{
    launches::{FirstCalls, LaunchingCall, each_launching_call},
    tail::{LaunchAtEnd, ProcessTail},
};
use super::{COMPLETE_PCT, advice};
use crate::{
    Analysis,
    kernels::OUTSIDE,
    stages::{NO_STAGE, in_sentence},
    stats::percent,
    timeline::{
        capture::Capture,
        interval::IntervalSet,
        step_states::LEFT_OUT,
        withheld::{ReasonSet, WithheldReason},
    },
};

/// Id of the finding on a stage that lost kernels; it makes a run partial.
pub const KERNELS_LOST: &str = "kernels_lost";
/// Max share of a stage's launched kernels that the end of a capture may cut off, percent. Idle
/// time of the stage is overstated by about that share.
const CUT_OFF_PCT: f64 = 5.0;
/// Id of the finding on kernels without a launching call in the capture.
pub const KERNELS_UNATTRIBUTED: &str = "kernels_unattributed";

/// Launched and recorded kernels of one stage.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StageCoverage {
    /// Empty outside every stage.
    pub stage: String,
    /// Kernels launched by the traced calls, including graph launches; a graph traced as a whole
    /// counts as one.
    pub launched: u64,
    /// Launched kernels that are in the capture.
    pub recorded: u64,
    /// Kernels in the capture without a valid time; not part of `recorded`.
    pub untimed: u64,
    /// Launches of graphs traced as a whole, whose kernels are not in the capture.
    pub whole_graphs: u64,
    /// Launches of graphs.
    pub graphs: u64,
    /// Graph launches without any recorded work, if the capture shows that its graphs have kernels.
    /// Each counts as one launched kernel or more, but may have run any number.
    pub silent_graphs: u64,
    /// Kernels of the stage with their launching call.
    pub attributed: u64,
    /// Kernels that ran during the stage without a launching call in the capture.
    pub unattributed: u64,
    /// Kernels that ran during the stage and were launched before the first recorded call.
    pub before: u64,
    /// Missing kernels that no later call waited for: the end of the capture may have cut them off.
    /// They count as launched if they are more than a small share of the stage, whose figures then
    /// cover time without its work.
    pub cut_off: u64,
    /// True when a process of the stage ran kernels but none of its launches was traced.
    pub untraced: bool,
}

impl StageCoverage {
    /// Recorded over launched kernels, percent; `None` when nothing was launched.
    pub fn pct(&self) -> Option<f64> {
        percent(self.recorded as f64, self.launched as f64)
    }

    /// Launched kernels that are not in the capture.
    pub fn missing(&self) -> u64 {
        self.launched.saturating_sub(self.recorded + self.untimed)
    }

    /// Returns true when launched kernels are missing.
    pub fn lost(&self) -> bool {
        let present = self.launched - self.missing();
        percent(present as f64, self.launched as f64).is_some_and(|pct| pct < COMPLETE_PCT)
            || self.lost_graphs()
    }

    /// Returns true when launches of graphs are missing, with an unknown number of kernels.
    fn lost_graphs(&self) -> bool {
        percent(self.silent_graphs as f64, self.graphs as f64)
            .is_some_and(|pct| pct > 100.0 - COMPLETE_PCT)
    }

    /// Returns true when too many kernels have no valid time.
    pub fn lacks_times(&self) -> bool {
        percent(self.untimed as f64, self.launched as f64)
            .is_some_and(|pct| pct > 100.0 - COMPLETE_PCT)
    }

    /// Returns true when the end of the capture cut off few of its kernels.
    fn lacks_last_few(&self) -> bool {
        percent(self.cut_off as f64, self.launched as f64).is_some_and(|pct| pct <= CUT_OFF_PCT)
    }

    /// Returns true when the stage of some kernels is unknown, because their launching calls are
    /// missing.
    pub fn unknown(&self) -> bool {
        let ran = self.attributed + self.unattributed;
        self.untraced
            || percent(self.attributed as f64, ran as f64).is_some_and(|pct| pct < COMPLETE_PCT)
    }

    /// Returns the reasons for which figures over all kernels of the stage are not valid.
    pub fn reasons(&self) -> ReasonSet {
        let are_few = self.pct().is_some_and(|pct| pct < COMPLETE_PCT);
        let reasons = [
            (self.lost(), WithheldReason::KernelsLost),
            (are_few && !self.lost(), WithheldReason::KernelsUntimed),
            (self.unknown(), WithheldReason::CallsMissing),
        ];
        reasons.into_iter().filter(|it| it.0).map(|it| it.1).collect()
    }
}

/// Counts a capture by stage, in the order of stage numbers.
pub fn by_stage(capture: &Capture) -> Vec<StageCoverage> {
    let mut counted = vec![StageCoverage::default(); capture.stage_count()];
    expected(capture, &mut counted);
    attribution(capture, &mut counted);
    for (number, stage) in counted.iter_mut().enumerate() {
        stage.stage = capture.stage_label(number).to_owned();
    }
    counted.retain(|it| {
        it.stage != OUTSIDE
            && *it != StageCoverage { stage: it.stage.clone(), ..Default::default() }
    });
    counted
}

/// Counts all launches that ran kernels, except those cut off by the end of the capture.
fn expected(capture: &Capture, counted: &mut [StageCoverage]) {
    let sites = capture.trace.cuda_calls.sites();
    let mut processes: Vec<i64> = sites.iter().map(|it| process_of(it.1)).collect();
    let of_site = processes.clone();
    processes.sort_unstable();
    processes.dedup();
    let of_site: Vec<usize> =
        of_site.iter().map(|it| processes.partition_point(|known| known < it)).collect();
    let mut tails: Vec<ProcessTail> = processes.iter().map(|_| ProcessTail::default()).collect();
    let mut open = capture.stages.cursor();
    let mut are_known = false;
    each_launching_call(capture, |it| {
        let LaunchingCall { site, kind, call, is_captured, launch } = it;
        are_known |= *kind == CallKind::Kernel && *is_captured;
        let tail = &mut tails[of_site[*site]];
        if kind.finishes_earlier_work() {
            tail.last_sync = Some(call.start_ns);
        }
        let Some(launch) = launch else { return };
        are_known |= *kind == CallKind::Graph && launch.recorded + launch.untimed > 0;
        let stage = capture.stage_number(open.at_call(call));
        let (missing, is_silent) = (launch.missing(), launch.is_silent);
        let at_end = LaunchAtEnd { start_ns: call.start_ns, stage, missing, is_silent };
        tail.add(at_end, launch.has_work || launch.is_whole);
        counted[stage].launched += launch.kernels;
        counted[stage].recorded += launch.recorded;
        counted[stage].untimed += launch.untimed;
        counted[stage].whole_graphs += u64::from(launch.is_whole);
        counted[stage].graphs += u64::from(*kind == CallKind::Graph);
        counted[stage].silent_graphs += u64::from(is_silent);
    });
    for launch in tails.iter().flat_map(ProcessTail::cut_off) {
        counted[launch.stage].cut_off += launch.missing;
        counted[launch.stage].silent_graphs -= u64::from(launch.is_silent);
    }
    // A graph may be empty.
    counted.iter_mut().filter(|_| !are_known).for_each(|it| it.silent_graphs = 0);
    for (number, it) in counted.iter_mut().enumerate() {
        // Work outside every stage has no window.
        if number == 0 || it.lacks_last_few() {
            it.launched -= it.cut_off;
        }
    }
}

/// Counts kernels with and without their launching call by the stage in which they ran.
fn attribution(capture: &Capture, counted: &mut [StageCoverage]) {
    let has_orphans = capture.kernel_joins().any(|it| !it.has_call());
    let first = has_orphans.then(|| FirstCalls::of(capture.trace));
    let mut open: BTreeMap<(i64, usize), Vec<(i64, i64)>> = BTreeMap::new();
    for it in capture.stages.instances.iter().filter(|it| it.start_ns < it.end_ns) {
        open.entry((process_of(it.place), it.label)).or_default().push((it.start_ns, it.end_ns));
    }
    let left_out = capture.stages.labels.iter().position(|it| it == LEFT_OUT);
    // A step that is taken out of a decode has its work up to the end.
    if let Some(label) = left_out {
        for it in capture.stages.states.taken_out() {
            open.entry((process_of(it.place), label)).or_default().push(it.span);
        }
    }
    let mut covers: Vec<((i64, usize), IntervalSet)> =
        open.into_iter().map(|(key, at)| (key, IntervalSet::new(at))).collect();
    covers.sort_by_key(|it| Some(it.0.1) != left_out);
    let mut untraced: HashSet<i64> = HashSet::default();
    for (kernel, join) in capture.kernels() {
        let process = process_of(kernel.global_pid);
        if join.has_call() {
            counted[capture.stage_number(join.instance)].attributed += 1;
        } else if let Some(first) = &first {
            let here = covers
                .iter()
                .find(|((of, _), cover)| *of == process && cover.contains(kernel.start_ns));
            let here = &mut counted[here.map_or(0, |((_, label), _)| label + 1)];
            match first.is_before(process, kernel.correlation_id) {
                true => here.before += 1,
                false => here.unattributed += 1,
            }
            if !first.has(process) {
                untraced.insert(process);
            }
        }
    }
    for ((process, label), _) in &covers {
        counted[label + 1].untraced |= untraced.contains(process);
    }
}

/// Findings on stages that lost kernels, and on kernels without their launching call.
pub fn findings(analysis: &Analysis, trace: &Timeline) -> Vec<Finding> {
    let stages = &analysis.coverage;
    let name = |it: &StageCoverage| {
        if it.stage.is_empty() { "outside every stage".to_owned() } else { it.stage.clone() }
    };
    let mut found: Vec<Finding> = Vec::new();
    // Another finding names steps that are left out.
    for it in stages.iter().filter(|it| it.lost() && it.stage != LEFT_OUT) {
        let missing = it.missing();
        let place = match it.stage.as_str() {
            NO_STAGE => "Outside every stage",
            stage => in_sentence(stage),
        };
        let message = match it.lost_graphs() && it.silent_graphs == missing {
            true => format!(
                "{place}: {} of {} {} no recorded kernels.",
                digits::count(it.silent_graphs),
                quantity(it.graphs, "graph launch"),
                if it.silent_graphs == 1 { "has" } else { "have" }
            ),
            false => format!(
                "{place}: {} of {} {} missing from the capture.",
                digits::count(missing),
                quantity(it.launched, "launched kernel"),
                if missing == 1 { "is" } else { "are" }
            ),
        };
        let mut finding = Finding::new(catalogue::KERNELS_LOST, message)
            .with("stage", name(it))
            .with("launched kernels", it.launched)
            .with("missing kernels", missing)
            .with("recorded", format!("{:.1} %", it.pct().unwrap_or_default()));
        if it.cut_off > 0 {
            finding = finding.with("launched after the last synchronisation", it.cut_off);
        }
        for (index, diagnostic) in trace.diagnostics.iter().take(3).enumerate() {
            finding = finding.with(&format!("nsys diagnostic ({})", index + 1), diagnostic);
        }
        // Operators of a framework have FLOPs only in calls whose kernels are recorded.
        let flops = if trace.framework.is_empty() { "" } else { "FLOP/s, " };
        found.push(finding.advise(format!(
            "Busy and idle time, launch-bound share, {flops}kernel shares and device time of \
             operators are omitted for it. {}",
            advice::lost(trace.tool, it.cut_off == missing)
        )));
    }
    found.extend(unattributed(analysis, trace));
    found
}

/// The finding on work without a launching call, if it affects the figures of a stage.
fn unattributed(analysis: &Analysis, trace: &Timeline) -> Option<Finding> {
    let gpu = analysis.withheld.stages_with(WithheldReason::UnattributedWork);
    if analysis.coverage.iter().all(|it| it.unattributed == 0) && gpu.is_empty() {
        return None;
    }
    let (kernels, orphans) = (trace.kernels.len(), analysis.kernels.orphans);
    let message = match orphans {
        _ if trace.cuda_calls.is_empty() => {
            "The capture has no calls of the CUDA API: the stages of kernels are unknown, and lost \
             kernels cannot be detected."
                .into()
        }
        0 => {
            let stages: Vec<&str> = gpu.iter().map(|stage| in_sentence(stage)).collect();
            format!(
                "Copies or graphs that ran during {} have no launching call in the capture.",
                stages.join(", ")
            )
        }
        _ => format!(
            "{} of {} kernels have no launching call in the capture.",
            digits::count(orphans),
            digits::count(kernels as u64)
        ),
    };
    let mut finding = Finding::new(catalogue::KERNELS_UNATTRIBUTED, message);
    finding = finding.with("kernels", kernels).with("without launch", orphans);
    if !gpu.is_empty() {
        finding = finding.with("omitted GPU busy time", gpu.join(", "));
    }
    let mut unknown = analysis.withheld.stages_with(WithheldReason::CallsMissing);
    unknown.retain(|stage| !stage.is_empty());
    if !unknown.is_empty() {
        finding = finding.with("omitted kernel figures", unknown.join(", "));
    }
    Some(finding.advise(advice::unattributed(trace.tool, trace.cuda_calls.is_empty())))
}

#[cfg(test)]
mod tests;

//! Figures that gaps of a capture make unknown, by stage and reason: the one rule of all tables.
//!
//! A reason holds for a stage, or for the capture. A figure is withheld if one of its reasons
//! ([`TimelineFigure::reasons`]) holds in its scope ([`TimelineFigure::scope`]), or if the figure
//! that it is a part of is withheld ([`TimelineFigure::base`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
};

use llmprof_core::domain::named_values::named_values;

use super::{capture::Capture, open_ranges::Extent, step_states::LEFT_OUT};
use crate::stages::{BETWEEN_STEPS, NO_STAGE, coverage::StageCoverage};

named_values! {
    /// Reason for which figures are withheld.
    WithheldReason {
        /// Launched kernels of the stage are missing from the capture.
        KernelsLost = "kernels_lost",
        /// Kernels of the stage have no valid time: together with missing ones, too many.
        KernelsUntimed = "kernels_untimed",
        /// Kernels ran in the stage whose launching calls are missing.
        CallsMissing = "calls_missing",
        /// The end of an instance is a bound: the capture records none.
        EstimatedEnd = "estimated_end",
        /// Other threads launch the work of the stage, or its ranges launch none.
        LaunchedElsewhere = "launched_elsewhere",
        /// Its windows are bounds, because its steps are left out, or its work runs in the time of
        /// a step that is left out.
        NoOwnWindows = "no_own_windows",
        /// No GPU of its processes has recorded work.
        NoDeviceWork = "no_device_work",
        /// The clock of a GPU differs from the clock of the host by an unknown offset.
        ClocksDiffer = "clocks_differ",
        /// Work starts before its launching call.
        EarlyWork = "early_work",
        /// A graph ran meanwhile whose GPU is unknown.
        UnplacedGraph = "unplaced_graph",
        /// Work without a launching call ran on its GPUs meanwhile.
        UnattributedWork = "unattributed_work",
    }
}

named_values! {
    /// Figures that are withheld together.
    TimelineFigure {
        /// All figures of a stage on the GPUs, counts included.
        StageRow = "stage_row",
        /// The same of a capture without stages.
        RecordingRow = "recording_row",
        /// The same of the time between steps.
        BetweenStepsRow = "between_steps_row",
        /// Length of a stage's windows on the GPUs.
        Window = "window",
        /// Idle time, its reasons and gaps.
        Idle = "idle",
        /// Busy time, its overlaps, and the time of other stages' work.
        Busy = "busy",
        /// Work and gaps that a window divides into.
        Division = "division",
        /// Threads of the host in idle time.
        HostThreads = "host_threads",
        /// Long calls of the host in idle time.
        LongCalls = "long_calls",
        /// Sums over all kernels of a stage, of a process too, and shares of them.
        KernelTime = "kernel_time",
        /// Share of all kernel time with a known class.
        ClassifiedShare = "classified_share",
        /// Device time of operators.
        OperatorTime = "operator_time",
        /// FLOPs of operators.
        Flops = "flops",
        /// Timeline of one decode step.
        DecodeTimeline = "decode_timeline",
        /// Times on the devices of the steps of an engine.
        StepWork = "step_work",
        /// Work inside named ranges, which launch into any stage.
        Regions = "regions",
        /// Durations of ranges on the GPU.
        ProjectedRanges = "projected_ranges",
        /// Collective operations of a stage.
        Collectives = "collectives",
        /// Sums over the collective operations of a rank.
        Ranks = "ranks",
        /// Busy share of the devices over the whole capture.
        DevicesBusy = "devices_busy",
    }
}

/// Stages for which a reason has to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FigureScope {
    /// The stage of the figure.
    Stage,
    /// Any stage, or the work outside all stages, except steps that are left out.
    AnyCounted,
    /// Any stage, or the capture.
    Any,
}

impl TimelineFigure {
    /// The figures of a stage on the GPUs.
    pub fn row_of(stage: &str) -> Self {
        match stage {
            NO_STAGE => Self::RecordingRow,
            BETWEEN_STEPS => Self::BetweenStepsRow,
            _ => Self::StageRow,
        }
    }

    /// The reasons that withhold it, next to the reasons of its base.
    pub const fn reasons(self) -> &'static [WithheldReason] {
        use WithheldReason::{
            CallsMissing, ClocksDiffer, EarlyWork, EstimatedEnd, KernelsLost, KernelsUntimed,
            LaunchedElsewhere, NoDeviceWork, NoOwnWindows, UnattributedWork, UnplacedGraph,
        };
        match self {
            Self::StageRow => &[
                KernelsLost,
                KernelsUntimed,
                CallsMissing,
                EstimatedEnd,
                LaunchedElsewhere,
                NoOwnWindows,
            ],
            // Work without a launching call is of the recording as a whole, too.
            Self::RecordingRow | Self::DevicesBusy => &[KernelsLost],
            // The end of a step that lost work is unknown, and so is the time after it.
            Self::BetweenStepsRow => {
                &[KernelsLost, KernelsUntimed, CallsMissing, LaunchedElsewhere]
            }
            Self::Window => &[NoDeviceWork, ClocksDiffer, EarlyWork],
            Self::Idle => &[UnplacedGraph],
            Self::Busy => &[UnattributedWork],
            Self::Division | Self::HostThreads => &[],
            Self::LongCalls => &[ClocksDiffer],
            Self::Flops => &[KernelsLost, KernelsUntimed],
            Self::KernelTime
            | Self::ClassifiedShare
            | Self::OperatorTime
            | Self::DecodeTimeline
            | Self::StepWork
            | Self::Regions
            | Self::ProjectedRanges
            | Self::Collectives
            | Self::Ranks => &[KernelsLost, KernelsUntimed, CallsMissing],
        }
    }

    /// Stages for which its reasons have to hold.
    pub const fn scope(self) -> FigureScope {
        match self {
            // Regions have no work of steps that are left out, and no time lies next to these.
            Self::BetweenStepsRow | Self::Regions => FigureScope::AnyCounted,
            Self::LongCalls
            | Self::ClassifiedShare
            | Self::ProjectedRanges
            | Self::Ranks
            | Self::DevicesBusy => FigureScope::Any,
            Self::StageRow
            | Self::RecordingRow
            | Self::Window
            | Self::Idle
            | Self::Busy
            | Self::Division
            | Self::HostThreads
            | Self::KernelTime
            | Self::OperatorTime
            | Self::Flops
            | Self::DecodeTimeline
            | Self::StepWork
            | Self::Collectives => FigureScope::Stage,
        }
    }

    /// The figure of the same stage that it is a part of.
    pub fn base(self, stage: &str) -> Option<Self> {
        match self {
            Self::Window => Some(Self::row_of(stage)),
            Self::Idle => Some(Self::Window),
            Self::Busy | Self::HostThreads => Some(Self::Idle),
            Self::Division => Some(Self::Busy),
            _ => None,
        }
    }

    /// The figure and the figures that contain it, innermost first.
    fn with_bases(self, stage: &str) -> impl Iterator<Item = Self> {
        iter::successors(Some(self), move |it| it.base(stage))
    }

    /// True if one of these reasons of a stage withholds its figure.
    pub fn is_withheld_by(self, reasons: &ReasonSet, stage: &str) -> bool {
        self.with_bases(stage).flat_map(Self::reasons).any(|it| reasons.contains(it))
    }
}

/// Reasons that hold for one stage.
pub type ReasonSet = BTreeSet<WithheldReason>;

/// Reasons of a capture to withhold figures, by stage.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Withheld {
    /// All stages of the capture in their order, then other names that have reasons, or work
    /// outside all stages.
    stages: Vec<(String, ReasonSet)>,
    /// Reasons that hold for the capture, next to the reasons of its stages.
    capture: ReasonSet,
}

impl Withheld {
    /// Collects the reasons. `launched_elsewhere` has the stages whose work other threads launched,
    /// `gpus` the reasons that the measurement of each stage on the GPUs found.
    pub fn of(
        capture: &Capture,
        coverage: &[StageCoverage],
        launched_elsewhere: &BTreeMap<String, u64>,
        gpus: &[(String, ReasonSet)],
    ) -> Self {
        let stages = &capture.stages;
        let mut found = Self::default();
        found.stages.extend(stages.labels.iter().map(|it| (it.clone(), ReasonSet::new())));
        for it in coverage {
            found.add(&it.stage, it.reasons());
        }
        for it in stages.instances.iter().filter(|it| it.extent == Extent::EstimatedEnd) {
            found.add(&stages.labels[it.label], [WithheldReason::EstimatedEnd]);
        }
        for stage in launched_elsewhere.keys() {
            found.add(stage, [WithheldReason::LaunchedElsewhere]);
        }
        for (stage, reasons) in gpus {
            found.add(stage, reasons.iter().copied());
        }
        if !capture.trace.unequal_clocks.is_empty() {
            found.capture.insert(WithheldReason::ClocksDiffer);
        }
        found
    }

    fn add(&mut self, stage: &str, reasons: impl IntoIterator<Item = WithheldReason>) {
        match self.stages.iter_mut().find(|it| it.0 == stage) {
            Some((_, known)) => known.extend(reasons),
            None => self.stages.push((stage.to_owned(), reasons.into_iter().collect())),
        }
    }

    /// Reasons for which a figure of a stage is withheld; empty if it is known.
    pub fn why(&self, stage: &str, figure: TimelineFigure) -> ReasonSet {
        let mut found = ReasonSet::new();
        for it in figure.with_bases(stage) {
            let held = it.reasons().iter().filter(|reason| self.holds(**reason, it.scope(), stage));
            found.extend(held);
        }
        found
    }

    fn holds(&self, reason: WithheldReason, scope: FigureScope, stage: &str) -> bool {
        let is_in_scope = |name: &str| match scope {
            FigureScope::Stage => name == stage,
            FigureScope::AnyCounted => name != LEFT_OUT,
            FigureScope::Any => true,
        };
        let is_of_capture = scope != FigureScope::Stage && self.capture.contains(&reason);
        is_of_capture
            || self.stages.iter().any(|(name, of)| is_in_scope(name) && of.contains(&reason))
    }

    /// True if a figure of a stage is withheld.
    pub fn has(&self, stage: &str, figure: TimelineFigure) -> bool {
        !self.why(stage, figure).is_empty()
    }

    /// True if a figure of the whole capture is withheld.
    pub fn has_in_capture(&self, figure: TimelineFigure) -> bool {
        self.has(NO_STAGE, figure)
    }

    /// Stages whose figure is withheld, in the order of the capture's stages.
    pub fn stages_without(&self, figure: TimelineFigure) -> impl Iterator<Item = &str> {
        let names = self.stages.iter().map(|it| it.0.as_str());
        names.filter(move |stage| self.has(stage, figure))
    }

    /// Stages for which a reason holds, in the same order.
    pub fn stages_with(&self, reason: WithheldReason) -> Vec<&str> {
        let with_it = self.stages.iter().filter(|it| it.1.contains(&reason));
        with_it.map(|it| it.0.as_str()).collect()
    }
}

#[cfg(test)]
mod tests;

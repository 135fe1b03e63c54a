//! Operators of a pass of its own, under the profiler of PyTorch.

use llmprof_core::trace::timeline::Timeline;

use super::{Operators, attach, framework::framework};
use crate::{
    Analysis,
    external_capture::CaptureEvents,
    stages,
    timeline::{
        capture::Capture, gpu::step_idle::WantedSteps, step_states, tables::TimelineTables,
    },
};

/// Operators of one pass, and the repeats that it timed.
#[derive(Debug, Clone, Default)]
pub struct ProfiledOperators {
    pub operators: Operators,
    pub repeats: u32,
}

impl ProfiledOperators {
    /// Operators of a trace by the profiler of PyTorch, by the stages of that trace; `None` without
    /// any.
    pub fn of(trace: &Timeline) -> Option<Self> {
        let mut capture = Capture::of(trace);
        step_states::mark(&mut capture);
        let derived = CaptureEvents::of(&capture, None);
        let stages = stages::stages(&derived.by_kind(trace));
        let index = capture.framework.as_ref()?;
        let tables = TimelineTables::of(&capture, &[], &WantedSteps::default());
        let sums = framework(&capture, index, &stages, &tables.withheld);
        let events = (&derived.by_kind(trace), true);
        let operators = attach(sums, &tables.device, events, &tables.kernels.stages);
        Some(Self { operators, repeats: stages.repeats })
    }
}

impl Analysis {
    /// The operators to list: from the timed pass, else from PyTorch's profiler.
    pub fn listed_operators(&self) -> &Operators {
        match &self.pytorch {
            Some(pass) if self.lists_pytorch() => &pass.operators,
            _ => &self.operators,
        }
    }

    /// True if the listed operators are from PyTorch's profiler.
    pub fn lists_pytorch(&self) -> bool {
        self.pytorch.is_some() && self.operators.rolled.is_empty()
    }
}

//! Launches of the traced pass, and the same for sampled metrics.

use llmprof_core::trace::Trace;

use super::{kernels, timeline::launches::LaunchIndex};

/// Launches of the capture.
#[derive(Default)]
pub struct IndexedLaunches {
    pub launches: Option<LaunchIndex>,
    /// The same for sampled metrics, which include the cold instances that are marked later.
    pub recorded: Option<LaunchIndex>,
}

impl IndexedLaunches {
    /// Joins the launches.
    pub fn of(trace: &Trace, only_traced: bool) -> Self {
        let Some(nsys) = &trace.nsys else { return Self::default() };
        let outside = if only_traced { "" } else { kernels::SETUP };
        let launches = LaunchIndex { outside, ..LaunchIndex::of(nsys) };
        let recorded = nsys.samples.is_some().then(|| launches.as_recorded());
        Self { launches: Some(launches), recorded }
    }
}

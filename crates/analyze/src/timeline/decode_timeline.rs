//! Timeline of one decode step: device work by stream and operator, and concurrent host calls.
//!
//! The step is the one of median length among the measured ones, so that neither the first step nor
//! an outlier represents all. It is taken from the traced pass if that has GPU work: a step's own
//! kernels, copies and whole-traced graphs are those launched while its range was open. Otherwise
//! it is taken from the unprofiled pass, with operators as they ran on the host.

mod device;
mod owners;
mod traced;
mod unprofiled;

use serde::{Deserialize, Serialize};

pub use llmprof_core::trace::event::DECODE_STEP as STEP;

pub use self::{traced::traced_step, unprofiled::unprofiled_step};
use super::interval::Interval;

/// Max slices of a step: more than a figure can show.
const MAX_SLICES: usize = 8192;

/// One decode step. Times are microseconds since the start of the window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StepTimeline {
    /// `traced` if kernels are shown, else `plain`: the unprofiled pass.
    #[cfg_attr(feature = "schema", schema(example = "traced"))]
    pub pass: String,
    /// Number of the step among the measured ones, from 1.
    pub step: u64,
    /// Count of measured steps.
    pub steps: u64,
    /// Length of the window: from the start of the step to the end of the last work that it
    /// launched. If the GPU was still busy with an earlier step, the window starts with the step's
    /// first device work.
    pub window_us: f64,
    /// Time from the start of the step on the host to the start of the window.
    pub lead_us: f64,
    /// Time in which work of this step ran on any stream, summed over GPUs; host time in the
    /// unprofiled pass. An upper bound if `whole_graphs` is above zero.
    pub busy_us: f64,
    /// Time in which no work ran, summed over GPUs; `null` in the unprofiled pass.
    pub idle_us: Option<f64>,
    /// GPUs used by the step's process; 0 in the unprofiled pass.
    #[serde(default)]
    pub devices: u64,
    /// Recorded kernels of this step.
    pub kernels: u64,
    /// Launches of CUDA graphs of this step traced as a whole: their kernels are not recorded.
    #[serde(default)]
    pub whole_graphs: u64,
    /// In order of track and start.
    pub slices: Vec<StepSlice>,
    /// Slices beyond the limit.
    pub omitted: u64,
}

/// An event with a duration on a track.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StepSlice {
    /// `calls` (of the host: CUDA or HIP), `operators N` (by nesting depth, outermost first, at the
    /// times of their kernels), `stream N`.
    #[cfg_attr(feature = "schema", schema(example = "stream 7"))]
    pub track: String,
    #[cfg_attr(feature = "schema", schema(example = "attend_one_128_bf16"))]
    pub name: String,
    /// Class of a kernel; kind of an operator in the unprofiled pass.
    #[cfg_attr(feature = "schema", schema(example = "attention"))]
    pub class: Option<String>,
    /// The operator that launched a kernel.
    #[cfg_attr(feature = "schema", schema(example = "decoder.layers.3.self_attn.attend"))]
    pub operator: Option<String>,
    /// True when it belongs to this step; kernels of other steps in the window are shown too.
    pub own: bool,
    pub start_us: f64,
    pub duration_us: f64,
}

/// Collects slices with times relative to the start of the window.
struct SliceList {
    from: i64,
    slices: Vec<StepSlice>,
}

impl SliceList {
    fn push(
        &mut self,
        track: &str,
        name: &str,
        (start, end): Interval,
        own: bool,
    ) -> &mut StepSlice {
        self.slices.push(StepSlice {
            track: track.into(),
            name: name.into(),
            class: None,
            operator: None,
            own,
            start_us: us(start - self.from),
            duration_us: us(end - start),
        });
        self.slices.last_mut().expect("one was pushed")
    }

    /// The first [`MAX_SLICES`] slices, and the number of the others.
    fn limited(mut self) -> (Vec<StepSlice>, u64) {
        let omitted = self.slices.len().saturating_sub(MAX_SLICES);
        self.slices.truncate(MAX_SLICES);
        (self.slices, omitted as u64)
    }
}

fn us(ns: i64) -> f64 {
    ns as f64 / 1e3
}

#[cfg(test)]
mod tests;

//! Where the time of a run went, from a [`Trace`].
//!
//! Everything here is arithmetic on values: no files, no clock, no failure. What the trace does not hold is `None` and a
//! [`Finding`], never guessed.

pub mod cost;
pub mod device;
pub mod experts;
pub mod kernels;
pub mod mfu;
pub mod operators;
pub mod outputs;
pub mod overhead;
pub mod stages;
pub mod stats;

mod events;
pub mod findings;
mod interval;
#[cfg(test)]
mod tests;

use crate::{
    model::ModelSpec,
    run::{Dtype, Finding},
    trace::{
        Trace,
        event::{End, Start},
    },
};
use cost::{Cost, Workload};
use device::DevicePeaks;
use events::Events;
use experts::ExpertUse;
use kernels::Kernels;
use mfu::Mfu;
use operators::Operators;
use outputs::OutputCheck;
use overhead::OverheadRecord;
use stages::Stages;

/// All that is known about where the time of a run went.
#[derive(Debug, Clone, Default)]
pub struct Analysis {
    /// What the plain pass's runner said it ran.
    pub start: Option<Start>,
    /// What it said when it ended by itself.
    pub end: Option<End>,
    pub stages: Stages,
    pub operators: Operators,
    pub kernels: Kernels,
    pub cost: Option<Cost>,
    pub mfu: Mfu,
    pub overhead: Vec<OverheadRecord>,
    pub outputs: OutputCheck,
    pub experts: Vec<ExpertUse>,
    /// What is worth telling a person, worst first.
    pub findings: Vec<Finding>,
}

/// Analyses what the passes of one run left.
pub fn analyze(trace: &Trace, model: Option<&ModelSpec>, peaks: Option<&DevicePeaks>) -> Analysis {
    let plain = Events::of(&trace.baseline);
    let traced = Events::of(&trace.traced);
    let stages = stages::stages(&plain);
    let operators = operators::operators(&plain, &stages);
    let cost = model.zip(plain.start).and_then(|(model, start)| static_cost(model, start, &stages));
    let top_k = model.and_then(|model| Some(model.decoder.moe.as_ref()?.top_k));

    let mut analysis = Analysis {
        start: plain.start.cloned(),
        end: plain.end.cloned(),
        kernels: trace.nsys.as_ref().map(kernels::kernels).unwrap_or_default(),
        mfu: mfu::mfu(&plain, &stages, &operators, cost.as_ref(), peaks),
        overhead: overhead::overhead(&stages, &stages::stages(&traced)),
        outputs: outputs::outputs(&plain, &traced),
        experts: experts::experts(&plain, top_k),
        stages,
        operators,
        cost,
        findings: Vec::new(),
    };
    analysis.findings = findings::findings(&analysis, trace);
    analysis
}

/// The cost of what ran; `None` when the runner's number format is unknown.
fn static_cost(model: &ModelSpec, start: &Start, stages: &Stages) -> Option<Cost> {
    let work = Workload {
        images: &start.images,
        prompt_tokens: start.prompt_tokens,
        new_tokens: stages.decode_steps.unwrap_or(0),
        element_bytes: start.dtype.parse::<Dtype>().ok()?.bytes(),
    };
    Some(cost::cost(model, &work))
}

//! From a run's folder to its report: read back, analyse, write. The end of every job, and all of `llmprof analyze`.
//!
//! Needs no GPU, no database and no server. It measures nothing: what the folder lacks stays unknown.

use std::{fs, io, path::Path};

use crate::{
    analyze::{self, Analysis, device::Devices},
    parse::{self, ParseError, saved},
    report::{self, RunFacts},
    run::{Finding, RunId, RunState, Step, StepRecord, StepState},
    trace::Trace,
};

#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    #[error("the run's folder does not tell what the run was")]
    Saved { source: ParseError },
    #[error("cannot read what the passes left")]
    Trace { source: ParseError },
    #[error("cannot write {name}")]
    Write { name: &'static str, source: io::Error },
}

/// A run, read back and analysed.
#[derive(Debug)]
pub struct Analyzed {
    saved: saved::SavedRun,
    trace: Trace,
    analysis: Analysis,
}

/// Reads the folder `dir` and analyses what it holds. Blocks: an export may hold millions of rows.
pub fn analyze(dir: &Path, devices: &Devices) -> Result<Analyzed, OfflineError> {
    let saved = saved::read(dir).map_err(|source| OfflineError::Saved { source })?;
    let trace = parse::read(dir).map_err(|source| OfflineError::Trace { source })?;
    let peaks = trace.environment.gpus.get(gpu_index(&saved.request.device)).and_then(|gpu| devices.find(&gpu.name));
    let analysis = analyze::analyze(&trace, Some(&saved.request.model), peaks.filter(|_| saved.request.device != "cpu"));
    Ok(Analyzed { saved, trace, analysis })
}

fn gpu_index(device: &str) -> usize {
    device.strip_prefix("cuda:").and_then(|index| index.parse().ok()).unwrap_or(usize::MAX)
}

impl Analyzed {
    /// The same with the steps that have happened since.
    pub fn up_to_date(self, dir: &Path) -> Result<Self, OfflineError> {
        let saved = saved::read(dir).map_err(|source| OfflineError::Saved { source })?;
        Ok(Self { saved, ..self })
    }

    /// Every file of the report: its name and text. A step that still runs is the one that writes it, and is told as done.
    pub fn render(&self, id: RunId) -> Vec<(&'static str, String)> {
        let steps: Vec<StepRecord> = self.saved.steps.iter().cloned().map(as_reported).collect();
        report::render(&self.facts(id, &steps), &self.trace, &self.analysis)
    }

    /// Writes the report's files into `dir`.
    pub fn write(&self, id: RunId, dir: &Path) -> Result<(), OfflineError> {
        for (name, text) in self.render(id) {
            fs::write(dir.join(name), text).map_err(|source| OfflineError::Write { name, source })?;
        }
        Ok(())
    }

    /// All that was found, by collection, parsing and analysis, worst first.
    pub fn findings(&self, id: RunId) -> Vec<Finding> {
        report::all_findings(&self.facts(id, &self.saved.steps), &self.trace, &self.analysis)
    }

    fn facts<'a>(&'a self, id: RunId, steps: &'a [StepRecord]) -> RunFacts<'a> {
        let lost = |step: &StepRecord| matches!(step.state, StepState::Skipped | StepState::Failed);
        RunFacts {
            id,
            spec: &self.saved.spec,
            model: &self.saved.request.model,
            environment: &self.trace.environment,
            steps,
            findings: &self.saved.findings,
            inputs: &self.saved.inputs,
            state: if steps.iter().any(lost) { RunState::Partial } else { RunState::Succeeded },
        }
    }
}

/// The report is the last thing a run writes, so it cannot know its own end: its step is left as begun and done.
fn as_reported(step: StepRecord) -> StepRecord {
    if step.step == Step::Report { StepRecord { state: StepState::Succeeded, ended_at: None, ..step } } else { step }
}

//! The folder of a run, or an unpacked bundle, back to what the run was: spec, model, inputs, steps and findings.
//!
//! Written by the job, read by it when it reports, and by `llmprof analyze` years later: one way for both.

use std::{fs, io, path::Path};

use serde::de::DeserializeOwned;

use super::{ParseError, command};
use crate::{
    artifact::{
        journal::{self, JournalEvent, Position},
        layout,
    },
    run::{Finding, InputFile, RunSpec, StepRecord, command::CommandPlan},
    runner::RunnerRequest,
};

/// What a run's folder says beside its trace.
#[derive(Debug, Clone)]
pub struct SavedRun {
    pub spec: RunSpec,
    /// The resolved request of our runner; `None` where another program ran.
    pub request: Option<RunnerRequest>,
    pub inputs: Vec<InputFile>,
    /// Of the last attempt.
    pub steps: Vec<StepRecord>,
    /// What collection noticed, of the last attempt.
    pub findings: Vec<Finding>,
    /// The command that ran in place of a runner of ours.
    pub command: Option<CommandPlan>,
}

/// Reads the folder `dir`.
pub fn read(dir: &Path) -> Result<SavedRun, ParseError> {
    let (steps, findings) = history(dir)?;
    let json = |bytes: &[u8]| serde_json::from_slice(bytes).map_err(|error| error.to_string());
    let spec: RunSpec = file(dir, layout::SPEC, "a run's spec", json)?;
    // Version 0.1 wrote a stand-in for the other subjects, too.
    let has_runner = spec.kind().has_runner();
    Ok(SavedRun {
        spec,
        request: has_runner.then(|| yaml(dir, layout::CONFIG, "a run's settings")).transpose()?,
        inputs: yaml(dir, layout::INPUTS, "a run's inputs")?,
        steps,
        findings,
        command: command::plan(dir)?,
    })
}

fn yaml<T: DeserializeOwned>(dir: &Path, name: &str, what: &str) -> Result<T, ParseError> {
    file(dir, name, what, |bytes| yaml_serde::from_slice(bytes).map_err(|error| error.to_string()))
}

fn file<T>(dir: &Path, name: &str, what: &str, parse: impl Fn(&[u8]) -> Result<T, String>) -> Result<T, ParseError> {
    let path = dir.join(name);
    let bytes = fs::read(&path).map_err(|source| ParseError::Read { path: path.clone(), source })?;
    parse(&bytes).map_err(|why| ParseError::Foreign { path, what: format!("not {what}: {why}") })
}

/// Steps and findings of the last attempt, from the journal.
fn history(dir: &Path) -> Result<(Vec<StepRecord>, Vec<Finding>), ParseError> {
    let failed = |source: io::Error| ParseError::Read { path: dir.join(layout::PROGRESS), source };
    let (mut steps, mut findings): (Vec<StepRecord>, _) = (Vec::new(), Vec::new());
    let mut position = Position::default();
    loop {
        let events = journal::read_from(dir, &mut position, 1_000).map_err(failed)?;
        if events.is_empty() {
            return Ok((steps, findings));
        }
        for (_, event) in events {
            match event {
                JournalEvent::Attempt { .. } => {
                    steps.clear();
                    findings.clear();
                }
                JournalEvent::Step { step } => match steps.iter_mut().find(|known| known.step == step.step) {
                    Some(known) => *known = step,
                    None => steps.push(step),
                },
                JournalEvent::Finding { finding } => findings.push(finding),
                JournalEvent::Progress { .. } | JournalEvent::Log { .. } => {}
            }
        }
    }
}

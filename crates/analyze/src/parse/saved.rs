//! Reader of a run's folder or unpacked bundle: spec, model, inputs, steps and findings.
//!
//! The job and `llmprof analyze` read a folder in the same way.

use std::{io, path::Path};

use llmprof_core::{
    domain::{
        byte_order_mark::without_mark, command::CommandPlan, finding::Finding,
        input_manifest::InputManifest, run_files::InputFile, runner::RunnerRequest,
        state::StepRecord, subject::RunSpec,
    },
    layout,
};
use serde::{Deserialize, de::DeserializeOwned};

use super::{ParseError, command};
use crate::parse::{
    journal::{self, JournalEvent, Position},
    stored::read_own,
};

/// Contents of a run's folder in addition to its trace.
#[derive(Debug, Clone)]
pub struct SavedRun {
    pub spec: RunSpec,
    /// The resolved request of the model runner; `None` if another program ran.
    pub request: Option<RunnerRequest>,
    pub inputs: Vec<InputFile>,
    /// Hash of the prompts and images; `None` if the run does not state them.
    pub inputs_sha256: Option<String>,
    /// Steps of the last attempt.
    pub steps: Vec<StepRecord>,
    /// Findings of the collection in the last attempt.
    pub findings: Vec<Finding>,
    /// The command that ran in place of the model runner.
    pub command: Option<CommandPlan>,
}

/// Reads the folder `dir`.
pub fn read(dir: &Path) -> Result<SavedRun, ParseError> {
    let (steps, findings) = history(dir)?;
    let json = |bytes: &[u8]| serde_json::from_slice(bytes).map_err(|error| error.to_string());
    let spec: RunSpec = file(dir, layout::SPEC, "a run's spec", json)?;
    // Version 0.1 wrote a placeholder for the other subjects.
    let has_runner = spec.kind().has_runner();
    let is_old = !dir.join(layout::RUNNER).exists();
    let request = if is_old { layout::CONFIG } else { layout::RUNNER };
    let (inputs, inputs_sha256) = if has_runner { inputs(dir)? } else { Default::default() };
    Ok(SavedRun {
        spec,
        request: has_runner
            .then(|| yaml(dir, request, "a request of the model runner"))
            .transpose()?,
        inputs,
        inputs_sha256,
        steps,
        findings,
        command: command::plan(dir)?,
    })
}

/// The images of a run and the hash of its inputs: of its manifest, or the list of images that
/// version 0.1 wrote.
fn inputs(dir: &Path) -> Result<(Vec<InputFile>, Option<String>), ParseError> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Inputs {
        Files(Vec<InputFile>),
        Manifest(InputManifest),
    }
    let what = "a run's inputs";
    match yaml(dir, layout::INPUTS, what)? {
        Inputs::Files(files) => Ok((files, None)),
        Inputs::Manifest(manifest) => {
            let files = manifest.files().ok_or_else(|| ParseError::Foreign {
                path: dir.join(layout::INPUTS),
                what: format!("not {what}: an image lacks its hash or size"),
            })?;
            Ok((files, manifest.content_sha256()))
        }
    }
}

fn yaml<T: DeserializeOwned>(dir: &Path, name: &str, what: &str) -> Result<T, ParseError> {
    file(dir, name, what, |bytes| {
        yaml_serde::from_slice(without_mark(bytes)).map_err(|error| error.to_string())
    })
}

fn file<T>(
    dir: &Path,
    name: &str,
    what: &str,
    parse: impl Fn(&[u8]) -> Result<T, String>,
) -> Result<T, ParseError> {
    let path = dir.join(name);
    let bytes =
        read_own(&path).map_err(|source| ParseError::Read { path: path.clone(), source })?;
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
                JournalEvent::Step { step } => {
                    match steps.iter_mut().find(|known| known.step == step.step) {
                        Some(known) => *known = step,
                        None => steps.push(step),
                    }
                }
                JournalEvent::Finding { finding } => findings.push(finding),
                JournalEvent::Progress { .. } | JournalEvent::Log { .. } => {}
            }
        }
    }
}

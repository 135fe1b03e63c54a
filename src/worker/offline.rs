//! From a run's folder to its report: read back, analyse, write. The end of every job, and all of `llmprof analyze`.
//!
//! Needs no GPU, no database and no server. It measures nothing: what the folder lacks stays unknown.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};

use super::part;

use crate::{
    analyze::{
        self, Analysis,
        coverage::StageCoverage,
        device::{self, Devices},
    },
    artifact::layout,
    parse::{self, ParseError, ncu, nsys, saved},
    report::{self, RunFacts, part::PartStage, perfetto},
    run::{
        Common, Finding, RunId, RunSpec, RunState, Severity, Step, StepRecord, StepState, Subject, SubjectKind,
        import::{CaptureKind, Import, ImportedFile},
    },
    runner::RunnerRequest,
    trace::{
        Trace,
        environment::{Environment, Gpu},
        nsys::NsysTrace,
        stage::{StageRules, UnknownRange},
    },
};

#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    #[error("the run's folder does not tell what the run was")]
    Saved { source: ParseError },
    #[error("cannot read what the passes left")]
    Trace { source: ParseError },
    #[error("cannot read the capture")]
    Capture { source: ParseError },
    #[error("a rule does not fit the capture")]
    Rules { source: UnknownRange },
    #[error("cannot write {name}")]
    Write { name: &'static str, source: io::Error },
}

/// A run, read back and analysed.
#[derive(Debug)]
pub struct Analyzed {
    saved: saved::SavedRun,
    trace: Trace,
    analysis: Analysis,
    part: Vec<PartStage>,
}

/// Reads the folder `dir` and analyses what it holds. Blocks: an export may hold millions of rows.
pub fn analyze(dir: &Path, devices: &Devices) -> Result<Analyzed, OfflineError> {
    analyze_with(dir, StageRules::default(), devices)
}

/// Like [`analyze`], with other rules of what is a stage in the capture.
pub fn analyze_with(dir: &Path, rules: StageRules, devices: &Devices) -> Result<Analyzed, OfflineError> {
    let saved = saved::read(dir).map_err(|source| OfflineError::Saved { source })?;
    let mut trace = parse::read(dir).map_err(|source| OfflineError::Trace { source })?;
    trace.subject = saved.spec.kind();
    if let Some(import) = saved.spec.import().cloned() {
        return imported(saved, trace, dir, &import, rules, devices);
    }
    let own = saved.command.as_ref().filter(|_| rules == StageRules::default());
    let named = own.is_none();
    let rules = own.map_or(rules, |it| rules_of(&it.stages, &it.within, &it.without));
    if let Some(nsys) = trace.nsys.take() {
        // A command may leave out a range that its settings name; who analyses it again may not mistype one.
        trace.nsys = Some(if named { with_rules(nsys, rules)? } else { nsys.with_rules(rules) });
    }
    let device = match &saved.request {
        Some(request) => gpu_of(request, &trace.environment),
        None => first_gpu(&trace.environment),
    };
    let peaks = device.and_then(|gpu| devices.find(&gpu.name));
    let analysis = analyze::analyze(&trace, saved.request.as_ref().map(|it| &it.model), peaks);
    let part = part::read(dir).map_err(|source| OfflineError::Trace { source })?;
    Ok(Analyzed { saved, trace, analysis, part })
}

/// Analyses an nsys export of any program, next to ncu pages of it. The device is the one that the export and all pages name.
pub fn analyze_capture(export: &Path, pages: &[PathBuf], rules: StageRules, devices: &Devices) -> Result<Analyzed, OfflineError> {
    let nsys = nsys::read(export).map_err(|source| OfflineError::Capture { source })?;
    let mut nsys = with_rules(nsys, rules)?;
    let environment = Environment { llmprof: env!("CARGO_PKG_VERSION").into(), ..nsys.target.clone() };
    let findings = std::mem::take(&mut nsys.findings);
    let trace = Trace { subject: SubjectKind::Import, environment, nsys: Some(nsys), findings, ..Trace::default() };
    of_captures(run_of_files(export, pages), trace, pages, devices)
}

/// Analyses what was imported. Its own rules of what is a stage hold, unless others are given.
fn imported(
    saved: saved::SavedRun,
    mut trace: Trace,
    dir: &Path,
    import: &Import,
    rules: StageRules,
    devices: &Devices,
) -> Result<Analyzed, OfflineError> {
    if let Some(nsys) = trace.nsys.take() {
        let own = rules == StageRules::default();
        let rules = if own { rules_of(&import.stages, &import.within, &import.without) } else { rules };
        // The host that reads a capture is not the one that it was taken on.
        trace.environment = Environment { llmprof: trace.environment.llmprof.clone(), ..nsys.target.clone() };
        trace.nsys = Some(with_rules(nsys, rules)?);
    }
    let pages = import.files.iter().filter(|it| it.kind == CaptureKind::Counters).count();
    let pages: Vec<PathBuf> = (1..=pages).map(|number| dir.join(layout::imported_page(number))).collect();
    of_captures(saved, trace, &pages, devices)
}

/// Sets the rules of a capture, each range of which must be in it.
fn with_rules(nsys: NsysTrace, rules: StageRules) -> Result<NsysTrace, OfflineError> {
    nsys.check_rules(&rules).map_err(|source| OfflineError::Rules { source })?;
    Ok(nsys.with_rules(rules))
}

/// The standard rules with these before them.
pub(super) fn rules_of(stages: &[String], within: &[String], without: &[String]) -> StageRules {
    // Each was read when it came.
    let stages = stages.iter().filter_map(|rule| rule.parse().ok()).collect();
    StageRules::with(stages, within.to_vec(), without.to_vec())
}

/// Analyses captures of a program of which nothing else is known.
fn of_captures(saved: saved::SavedRun, mut trace: Trace, pages: &[PathBuf], devices: &Devices) -> Result<Analyzed, OfflineError> {
    let mut named: BTreeSet<String> = trace.environment.gpus.iter().map(|gpu| device::model(&gpu.name).to_owned()).collect();
    for path in pages {
        let page = ncu::read_file(path).map_err(|source| OfflineError::Capture { source })?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        trace.findings.extend(page.gaps(&name));
        trace.findings.extend(page.device.as_ref().filter(|_| !named.is_empty()).and_then(|device| other_device(device, &named)));
        named.extend(page.device.map(|name| device::model(name.trim()).to_owned()));
        trace.counters.extend(page.launches);
    }
    let peaks = if named.len() == 1 { named.first().and_then(|name| devices.find(name)) } else { None };
    let analysis = analyze::analyze(&trace, None, peaks);
    Ok(Analyzed { saved, trace, analysis, part: vec![] })
}

/// The finding that counters are of a device that the timeline did not run on.
fn other_device(device: &str, timeline: &BTreeSet<String>) -> Option<Finding> {
    let same = timeline.contains(device::model(device.trim()));
    let ran_on = timeline.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let message = format!("the counters are of {device}, the timeline of {ran_on}: no peak of a device is used");
    let advice = "take counters and timeline on the same kind of GPU";
    (!same).then(|| Finding::new("counters_of_another_device", Severity::Warning, message).advise(advice))
}

/// The run that these files would be if they were imported.
fn run_of_files(export: &Path, pages: &[PathBuf]) -> saved::SavedRun {
    let file = |path: &Path, kind| ImportedFile {
        name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        kind,
        bytes: fs::metadata(path).map_or(0, |it| it.len()),
        path: String::new(),
    };
    let files = std::iter::once(file(export, CaptureKind::Timeline));
    let files = files.chain(pages.iter().map(|page| file(page, CaptureKind::Counters))).collect();
    let name = export.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let import = Import { name, model: None, files, stages: vec![], within: vec![], without: vec![] };
    let common = Common { labels: vec![], priority: 0, timeout_s: 0 };
    let spec = RunSpec { subject: Subject::Import(import), common };
    saved::SavedRun { spec, request: None, inputs: vec![], steps: vec![], findings: vec![], command: None }
}

/// The GPU that a command was on: the one that the run was given.
fn first_gpu(environment: &Environment) -> Option<&Gpu> {
    let uuid = environment.device.as_ref()?.uuid.as_ref()?;
    environment.gpus.iter().find(|gpu| gpu.uuid == *uuid)
}

/// The GPU that our runner was on: by UUID, and by index only where none was noted. An instance (MIG) is not a whole GPU.
fn gpu_of<'a>(request: &RunnerRequest, environment: &'a Environment) -> Option<&'a Gpu> {
    match &request.gpu {
        Some(uuid) => environment.gpus.iter().find(|gpu| gpu.uuid == *uuid),
        None => environment.gpus.get(request.device.strip_prefix("cuda:")?.parse::<usize>().ok()?),
    }
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

    /// Writes the files of the report into `dir`, the timeline too, and returns the texts.
    pub fn write(&self, id: RunId, dir: &Path) -> Result<Vec<(&'static str, String)>, OfflineError> {
        let report = || {
            let files = self.render(id);
            for (name, text) in &files {
                fs::write(dir.join(name), text).map_err(|source| OfflineError::Write { name, source })?;
            }
            Ok(files)
        };
        let name = layout::TIMELINE;
        let timeline = || self.write_timeline(&dir.join(name)).map_err(|source| OfflineError::Write { name, source });
        let (files, timeline) = rayon::join(report, timeline);
        timeline.and(files)
    }

    /// Streams the timeline into its file: it may be longer than the capture.
    fn write_timeline(&self, path: &Path) -> io::Result<()> {
        let packed = GzEncoder::new(BufWriter::new(fs::File::create(path)?), Compression::fast());
        let out = perfetto::write(&self.trace, BufWriter::new(packed))?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?.flush()
    }

    /// Whether kernels of a stage are missing from the capture.
    pub fn lost_kernels(&self) -> bool {
        self.analysis.coverage.iter().any(StageCoverage::lost)
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
            model: self.saved.request.as_ref().map(|it| &it.model),
            environment: &self.trace.environment,
            steps,
            findings: &self.saved.findings,
            inputs: &self.saved.inputs,
            part: &self.part,
            command: self.saved.command.as_ref(),
            state: if steps.iter().any(lost) || self.lost_kernels() { RunState::Partial } else { RunState::Succeeded },
        }
    }
}

/// The report is the last thing a run writes, so it cannot know its own end: its step is left as begun and done.
fn as_reported(step: StepRecord) -> StepRecord {
    if step.step == Step::Report { StepRecord { state: StepState::Succeeded, ended_at: None, ..step } } else { step }
}

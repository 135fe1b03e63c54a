//! Reads a run's folder, analyses it and writes its report: the last steps of every job, and all of
//! `llmprof analyze`.
//!
//! Needs no GPU, no database and no server. It measures nothing: values that the folder lacks stay
//! unknown.

pub mod align_pair;
pub mod align_part;
mod series;
mod stage_rules;
mod statements;

use std::{
    collections::BTreeSet,
    fs,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};
use llmprof_analyze::{
    Analysis,
    model_work::KnownModel,
    parse::{self, ParseError, capture_path::CapturePath, ncu, saved, stored::resolved},
    stages::coverage::StageCoverage,
};
use llmprof_core::{
    domain::{
        device_peaks::{self, Devices},
        finding::{Finding, catalogue},
        ids::RunId,
        import::{CaptureKind, Import, ImportedFile},
        runner::RunnerRequest,
        state::{RunState, Step, StepRecord, StepState},
        stated_model::StatedModel,
        subject::{Common, RunSpec, Subject, SubjectKind},
    },
    layout,
    trace::{
        Trace,
        environment::{Environment, Gpu},
        framework::TimelineTool,
        stage::{StageRules, UnknownRange},
        timeline::Timeline,
    },
};

use crate::{ReportForm, RunFacts, part::PartStage, perfetto};
use stage_rules::with_rules;
pub use stage_rules::{apply as apply_rules, rules_of};
pub use statements::Statements;

#[derive(Debug, thiserror::Error)]
pub enum AnalyzeError {
    #[error("cannot read what the run was from its folder")]
    Saved { source: ParseError },
    #[error("cannot read the files of the passes")]
    Trace { source: ParseError },
    #[error("cannot read the capture")]
    Capture { source: ParseError },
    #[error("a stage rule does not match the capture")]
    Rules { source: UnknownRange },
    #[error("the run's own model and steps are known; state them only for a command or a capture")]
    KnownModel,
    #[error("cannot write {name}")]
    Write { name: &'static str, source: io::Error },
}

/// A run that was read and analysed.
#[derive(Debug)]
pub struct Analyzed {
    saved: saved::SavedRun,
    trace: Trace,
    analysis: Analysis,
    part: Vec<PartStage>,
}

/// Analyses the run in `dir`, whose nsys export is not parsed again if `timeline` has it. Blocks:
/// an export may have millions of rows.
pub fn analyze(
    dir: &Path,
    timeline: Option<Timeline>,
    devices: &Devices,
) -> Result<Analyzed, AnalyzeError> {
    analyze_parsed(dir, timeline, Statements::default(), devices)
}

/// Analyses the run in `dir` with other statements about its capture.
pub fn analyze_with(
    dir: &Path,
    stated: Statements,
    devices: &Devices,
) -> Result<Analyzed, AnalyzeError> {
    analyze_parsed(dir, None, stated, devices)
}

fn analyze_parsed(
    dir: &Path,
    timeline: Option<Timeline>,
    Statements { rules, model, steps }: Statements,
    devices: &Devices,
) -> Result<Analyzed, AnalyzeError> {
    let dir = &resolved(dir);
    let mut saved = saved::read(dir).map_err(|source| AnalyzeError::Saved { source })?;
    statements::state(&mut saved, model, steps)?;
    let mut trace =
        parse::read_parsed(dir, timeline).map_err(|source| AnalyzeError::Trace { source })?;
    trace.subject = saved.spec.kind();
    trace.settings = saved.spec.passes().and_then(|it| it.profiling.clone());
    trace.stated_steps = steps;
    if let Some(import) = saved.spec.import().cloned() {
        return analyze_import(saved, trace, dir, &import, rules, devices);
    }
    let own = saved.command.as_ref().filter(|_| rules == StageRules::default());
    let is_named = own.is_none();
    let rules =
        own.map_or(rules, |it| rules_of(&it.stages, &it.include_ranges, &it.exclude_ranges));
    let sampled = std::mem::take(&mut trace.sampled);
    trace.sampled = sampled.into_iter().map(|it| apply_rules(it, rules.clone())).collect();
    stage_rules::set(&mut trace, rules, is_named)?;
    let device = match &saved.request {
        Some(request) => gpu_of(request, &trace.environment),
        None => first_gpu(&trace.environment),
    };
    let peaks = device.and_then(|gpu| devices.find(&gpu.name));
    let known = match (&saved.request, &saved.command) {
        (Some(request), _) => Some(KnownModel::Runner(&request.model)),
        (None, Some(command)) => command.computes.as_deref().map(KnownModel::Stated),
        (None, None) => None,
    };
    let analysis = llmprof_analyze::analyze(&trace, known, peaks);
    let part = align_part::read(dir).map_err(|source| AnalyzeError::Trace { source })?;
    Ok(Analyzed { saved, trace, analysis, part })
}

/// Analyses a capture of any program together with ncu pages of it: an nsys export, or traces by
/// the profiler of PyTorch, one per process. The device is the one that the capture and all pages
/// name.
pub fn analyze_capture(
    files: &[PathBuf],
    pages: &[PathBuf],
    Statements { rules, model, steps }: Statements,
    devices: &Devices,
) -> Result<Analyzed, AnalyzeError> {
    let timeline = parse::timeline(files).map_err(|source| AnalyzeError::Capture { source })?;
    let files = windows_first(files, &timeline.graph_captures.files);
    let mut nsys = with_rules(timeline, rules)?;
    let environment =
        Environment { llmprof: env!("CARGO_PKG_VERSION").into(), ..nsys.target.clone() };
    let (findings, tool) = (std::mem::take(&mut nsys.findings), nsys.tool);
    let trace = Trace {
        subject: SubjectKind::Import,
        environment,
        timeline: Some(nsys),
        findings,
        ..Trace::default()
    };
    let kind = match tool {
        TimelineTool::Nsys => CaptureKind::Timeline,
        TimelineTool::Pytorch => CaptureKind::PytorchTrace,
    };
    let saved = import_of_files((&files, kind), pages, (model, steps));
    let pages: Result<Vec<_>, _> = pages.iter().map(|page| CapturePath::named(page)).collect();
    let pages = pages.map_err(|source| AnalyzeError::Capture { source })?;
    analyze_captures(saved, trace, &pages, devices)
}

/// Analyses an import, by its own stage rules unless others are given.
fn analyze_import(
    saved: saved::SavedRun,
    mut trace: Trace,
    dir: &Path,
    import: &Import,
    rules: StageRules,
    devices: &Devices,
) -> Result<Analyzed, AnalyzeError> {
    if let Some(nsys) = trace.timeline.take() {
        let own = || rules_of(&import.stages, &import.include_ranges, &import.exclude_ranges);
        let rules = if rules == StageRules::default() { own() } else { rules };
        // The host that reads a capture is not the host it was taken on.
        trace.environment =
            Environment { llmprof: trace.environment.llmprof.clone(), ..nsys.target.clone() };
        trace.timeline = Some(with_rules(nsys, rules)?);
    }
    let numbers = import.files.iter().filter(|it| it.kind.has_counters()).map(|it| it.kind);
    // A report that ncu could not print has no page, and a finding.
    let pages: Vec<CapturePath> = numbers
        .zip(1..)
        .map(|(kind, number)| (kind, dir.join(layout::imported_page(number))))
        .filter(|(kind, page)| *kind == CaptureKind::Counters || page.exists())
        .map(|(_, page)| page.as_path().into())
        .collect();
    analyze_captures(saved, trace, &pages, devices)
}

/// Analyses captures of a program about which nothing else is known.
fn analyze_captures(
    saved: saved::SavedRun,
    mut trace: Trace,
    pages: &[CapturePath],
    devices: &Devices,
) -> Result<Analyzed, AnalyzeError> {
    let mut named: BTreeSet<String> = trace
        .environment
        .gpus
        .iter()
        .map(|gpu| device_peaks::model(gpu.name.trim()).to_owned())
        .filter(|name| !name.is_empty())
        .collect();
    for path in pages {
        let page = ncu::read_file(path).map_err(|source| AnalyzeError::Capture { source })?;
        trace.findings.extend(page.gaps(&path.name()));
        trace.findings.extend(
            page.device
                .as_ref()
                .filter(|_| !named.is_empty())
                .and_then(|device| other_device(device, &named)),
        );
        named.extend(page.device.map(|name| device_peaks::model(name.trim()).to_owned()));
        trace.counters.extend(page.launches);
    }
    let peaks =
        if named.len() == 1 { named.first().and_then(|name| devices.find(name)) } else { None };
    let import = saved.spec.import();
    trace.stated_steps = import.and_then(|import| import.new_tokens);
    let stated = import.and_then(|import| import.computes.as_deref());
    let analysis = llmprof_analyze::analyze(&trace, stated.map(KnownModel::Stated), peaks);
    Ok(Analyzed { saved, trace, analysis, part: vec![] })
}

/// The finding for counters of a device that the timeline did not run on.
fn other_device(device: &str, timeline: &BTreeSet<String>) -> Option<Finding> {
    let same = timeline.contains(device_peaks::model(device.trim()));
    let ran_on = timeline.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let message = format!(
        "the counters are of {device}, the timeline is of {ran_on}: no device peak is used"
    );
    let advice = "take counters and timeline on the same kind of GPU";
    (!same).then(|| Finding::new(catalogue::COUNTERS_OF_ANOTHER_DEVICE, message).advise(advice))
}

/// The files, captures of graphs last: the first file names the import.
fn windows_first(files: &[PathBuf], captures: &[String]) -> Vec<PathBuf> {
    let is_capture = |path: &PathBuf| captures.contains(&CapturePath::from(path).name());
    let mut files = files.to_vec();
    files.sort_by_key(is_capture);
    files
}

/// The import that these files would be.
fn import_of_files(
    (timelines, kind): (&[PathBuf], CaptureKind),
    pages: &[PathBuf],
    (computes, new_tokens): (Option<StatedModel>, Option<u64>),
) -> saved::SavedRun {
    let file = |path: &Path, kind| ImportedFile {
        name: CapturePath::from(path).name(),
        kind,
        bytes: fs::metadata(path).map_or(0, |it| it.len()),
        path: String::new(),
    };
    let files = timelines.iter().map(|path| file(path, kind));
    let files = files.chain(pages.iter().map(|page| file(page, CaptureKind::Counters))).collect();
    let first = timelines.first().and_then(|path| path.file_stem()).unwrap_or_default();
    let name = first.to_string_lossy().into_owned();
    let import = Import {
        name,
        model: None,
        files,
        stages: vec![],
        include_ranges: vec![],
        exclude_ranges: vec![],
        computes: computes.map(Box::new),
        new_tokens,
    };
    let spec = RunSpec { subject: Subject::Import(import), common: Common::default() };
    saved::SavedRun {
        spec,
        request: None,
        inputs: vec![],
        inputs_sha256: None,
        steps: vec![],
        findings: vec![],
        command: None,
    }
}

/// The GPU of a command: the run's device.
fn first_gpu(environment: &Environment) -> Option<&Gpu> {
    let uuid = environment.device.as_ref()?.uuid.as_ref()?;
    environment.gpus.iter().find(|gpu| gpu.uuid == *uuid)
}

/// The GPU of our runner: by UUID, or by index if none was recorded. A MIG instance is not a GPU.
fn gpu_of<'a>(request: &RunnerRequest, environment: &'a Environment) -> Option<&'a Gpu> {
    match &request.gpu {
        Some(uuid) => environment.gpus.iter().find(|gpu| gpu.uuid == *uuid),
        None => environment.gpus.get(request.device.strip_prefix("cuda:")?.parse::<usize>().ok()?),
    }
}

impl Analyzed {
    /// The same run, with the steps recorded since it was read.
    pub fn with_latest_steps(self, dir: &Path) -> Result<Self, AnalyzeError> {
        let saved = saved::read(dir).map_err(|source| AnalyzeError::Saved { source })?;
        Ok(Self { saved, ..self })
    }

    /// Every file of the report: its name and text.
    pub fn render(&self, id: RunId) -> Vec<(&'static str, String)> {
        crate::render(&self.facts(id, &self.steps()), &self.trace, &self.analysis)
    }

    /// The text of one form of the report.
    pub fn render_one(&self, form: ReportForm, id: RunId) -> String {
        crate::render_one(form, &self.facts(id, &self.steps()), &self.trace, &self.analysis)
    }

    /// The first page for a terminal.
    pub fn first_page(&self, id: RunId) -> String {
        crate::first_page(&self.facts(id, &self.steps()), &self.trace, &self.analysis)
    }

    fn steps(&self) -> Vec<StepRecord> {
        self.saved.steps.iter().cloned().map(as_reported).collect()
    }

    /// Writes the files of the report into `dir`, the timeline too, and returns the texts.
    pub fn write(
        &self,
        id: RunId,
        dir: &Path,
    ) -> Result<Vec<(&'static str, String)>, AnalyzeError> {
        let report = || {
            let files = self.render(id);
            for (name, text) in &files {
                fs::write(dir.join(name), text)
                    .map_err(|source| AnalyzeError::Write { name, source })?;
            }
            Ok(files)
        };
        let name = layout::TIMELINE;
        let timeline = || {
            self.write_timeline(&dir.join(name))
                .map_err(|source| AnalyzeError::Write { name, source })
        };
        let (files, timeline) = rayon::join(report, timeline);
        timeline.and(files)
    }

    /// Streams the timeline into its file: it may be larger than the capture.
    fn write_timeline(&self, path: &Path) -> io::Result<()> {
        let packed = GzEncoder::new(BufWriter::new(fs::File::create(path)?), Compression::fast());
        let out = perfetto::write(&self.trace, &self.analysis, BufWriter::new(packed))?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?.flush()
    }

    /// Returns true if kernels of a stage are missing from the capture, or samples of metrics.
    pub fn lost_records(&self) -> bool {
        self.analysis.coverage.iter().any(StageCoverage::lost) || self.analysis.sampled.lost
    }

    /// Findings of collection, parsing and analysis, worst first.
    pub fn findings(&self, id: RunId) -> Vec<Finding> {
        crate::all_findings(&self.facts(id, &self.saved.steps), &self.trace, &self.analysis)
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
            inputs_sha256: self.saved.inputs_sha256.as_deref(),
            part: &self.part,
            command: self.saved.command.as_ref(),
            state: if steps.iter().any(lost) || self.lost_records() {
                RunState::Partial
            } else {
                RunState::Succeeded
            },
        }
    }
}

/// The step as the report lists it. The report is written in its own last step, which is listed as
/// succeeded without an end.
fn as_reported(step: StepRecord) -> StepRecord {
    if step.step == Step::Report {
        StepRecord { state: StepState::Succeeded, ended_at: None, ..step }
    } else {
        step
    }
}

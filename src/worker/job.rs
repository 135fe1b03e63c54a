//! One run, from claim to report, told as a paragraph.
//!
//! Whatever happens, its folder is left as evidence: logs, what was collected, and a manifest over all of it.

mod command;
mod deep;
mod import;
mod part;

use std::{fs, io, path::Path, sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    offline,
    order::{Gathered, Order, OrderedSubject},
    steps::{Ended, Steps, Told, now},
};
use crate::{
    analyze::{choose::Choice, device::Devices},
    artifact::{
        inputs,
        journal::{Journal, JournalEvent},
        layout, manifest,
    },
    collect::{ChildLine, CollectError, Collector, Ended as ChildEnded, Leash, Pass, space::Space},
    model::ModelSpec,
    profiling::Profiling,
    run::{
        Dtype, Finding, RunSpec, RunState, Severity, Step, StepRecord, StepState, Subject, SubjectKind,
        part::PartPath,
        subject::{Passes, Workload},
    },
    runner::{self, RunnerRequest},
    store::Outcome,
    trace::device::Device,
};

/// Why a run cannot go on: the step that stopped it, and how that step ended.
#[derive(Debug)]
struct Stop(Ended);

/// What a job has besides its order: the tools of the host that it is on, and the peaks of known devices.
#[derive(Debug, Clone)]
pub struct Host {
    pub collector: Arc<Collector>,
    pub devices: Arc<Devices>,
}

/// Carries one run from its beginning to its report in the folder `dir`, and says how it ended. `halt` ends it early, whatever it is
/// doing.
pub async fn execute(order: &Order, dir: &Path, device: &Device, host: &Host, halt: &CancellationToken) -> Outcome {
    let mut job = match Job::begin(order, dir, device, host, halt) {
        Ok(job) => job,
        Err(message) => return lost(message),
    };
    let stopped = match job.gather().await {
        Ok(()) => job.analyze().await.err(),
        Err(stop) => Some(stop),
    };
    job.outcome(stopped).await
}

/// Carries one run up to its analysis, and keeps in its folder what [`conclude`] goes on from.
pub async fn gather(
    order: &Order,
    dir: &Path,
    device: &Device,
    host: &Host,
    halt: &CancellationToken,
) -> Result<Gathered, String> {
    let mut job = Job::begin(order, dir, device, host, halt)?;
    let stopped = job.gather().await.err().map(|Stop(ended)| ended);
    Ok(Gathered { attempt: order.attempt, stopped, findings: job.findings })
}

/// Analyses and reports a run that [`gather`] left, perhaps on another machine. Needs no GPU.
pub async fn conclude(order: &Order, gathered: Gathered, dir: &Path, host: &Host, halt: &CancellationToken) -> Outcome {
    let mut told = Told::default();
    let journal = match told.look(dir).and_then(|_| Journal::open(dir)) {
        Ok(journal) => journal,
        Err(error) => return lost(format!("cannot read the run's journal: {error}")),
    };
    let device = Device::cpu();
    let mut job = Job::new(order, dir, &device, host, halt, journal, told.records);
    job.findings = gathered.findings;
    let stopped = match gathered.stopped {
        None => job.analyze().await.err(),
        Some(ended) => Some(Stop(ended)),
    };
    job.outcome(stopped).await
}

struct Job<'a> {
    order: &'a Order,
    device: &'a Device,
    cx: &'a Host,
    halt: &'a CancellationToken,
    dir: &'a Path,
    deadline: Instant,
    steps: Steps,
    journal: Journal,
    findings: Vec<Finding>,
    /// Whether the capture lacks kernels of a stage.
    lost_kernels: bool,
}

impl<'a> Job<'a> {
    /// Makes the run's folder anew and begins its journal's next attempt.
    fn begin(
        order: &'a Order,
        dir: &'a Path,
        device: &'a Device,
        cx: &'a Host,
        halt: &'a CancellationToken,
    ) -> Result<Self, String> {
        let journal = make_folder(dir, &order.spec)
            .and_then(|()| Journal::open(dir))
            .map_err(|error| format!("cannot make the run's folder: {error}"))?;
        journal.write(&JournalEvent::Attempt { attempt: order.attempt, at: now() });
        Ok(Self::new(order, dir, device, cx, halt, journal, Vec::new()))
    }

    fn new(
        order: &'a Order,
        dir: &'a Path,
        device: &'a Device,
        cx: &'a Host,
        halt: &'a CancellationToken,
        journal: Journal,
        records: Vec<StepRecord>,
    ) -> Self {
        Self {
            order,
            device,
            cx,
            halt,
            dir,
            deadline: Instant::now() + order.limit(),
            steps: Steps::new(journal.clone(), records),
            journal,
            findings: Vec::new(),
            lost_kernels: false,
        }
    }

    /// Takes all steps that need the device.
    async fn gather(&mut self) -> Result<(), Stop> {
        let order = self.order;
        match (&order.spec.subject, &order.subject) {
            (Subject::Model(it), OrderedSubject::Model { model, profiling }) => {
                let request = self.preflight(&it.workload, &it.passes, model, profiling, None).await?;
                self.passes(&request, profiling).await
            }
            (Subject::Part(it), OrderedSubject::Model { model, profiling }) => self.part(it, model, profiling).await,
            (Subject::Command(it), OrderedSubject::Command { plan, profiling }) => {
                self.commanded(plan, &it.passes, profiling).await
            }
            (Subject::Import(it), OrderedSubject::Import) => self.imported(it).await,
            _ => Err(Stop(Ended::failed("the order is of another subject than the run"))),
        }
    }

    /// Takes the passes of our runner.
    async fn passes(&mut self, request: &RunnerRequest, settings: &Profiling) -> Result<(), Stop> {
        self.baseline(request, settings).await?;
        let chosen = if settings.nsys.enabled { self.nsys(request, settings).await } else { Vec::new() };
        self.list_not_applicable(settings);
        if settings.ncu.enabled && !self.device.is_cpu() {
            self.counters(request, &chosen, settings).await;
        }
        if settings.gemm_log.enabled && !self.device.is_cpu() {
            self.products(request, settings).await;
        }
        Ok(())
    }

    /// Looks at the host, resolves inputs and model, and keeps all of it before anything is started.
    ///
    /// `part`: the part that runs in place of the whole model.
    async fn preflight(
        &mut self,
        workload: &Workload,
        passes: &Passes,
        model: &ModelSpec,
        settings: &Profiling,
        part: Option<&PartPath>,
    ) -> Result<RunnerRequest, Stop> {
        self.steps.begin(Step::Preflight);
        let prepared = self.prepare(workload, passes, model, settings, part).await;
        let ended = match &prepared {
            Ok(_) => Ended::well(),
            Err(message) => Ended::failed(message),
        };
        self.steps.end(&ended);
        prepared.map_err(|_| Stop(ended))
    }

    async fn prepare(
        &mut self,
        workload: &Workload,
        passes: &Passes,
        model: &ModelSpec,
        settings: &Profiling,
        part: Option<&PartPath>,
    ) -> Result<RunnerRequest, String> {
        self.look_at_host(settings, true).await?;
        let (root, manifest) = (self.order.inputs.clone(), workload.inputs_manifest.clone());
        let (resolved, files) = tokio::task::spawn_blocking(move || {
            let resolved = inputs::read(&root, &manifest)?;
            let files = inputs::hash_images(&root, &resolved)?;
            Ok::<_, inputs::InputsError>((resolved, files))
        })
        .await
        .map_err(|error| error.to_string())?
        .map_err(|error| crate::chain(&error))?;
        self.write(layout::INPUTS, &yaml(&files)?)?;
        let request = RunnerRequest {
            model: model.clone(),
            weights: model.weights.clone(),
            seed: workload.seed,
            prompt: resolved.prompt,
            images: resolved.images.into_iter().map(|image| image.path).collect(),
            dtype: workload.dtype.unwrap_or_else(|| default_dtype(model, self.device)),
            device: self.device.inside().to_owned(),
            gpu: self.device.uuid.clone(),
            warmup: passes.warmup,
            repeats: passes.repeats,
            max_new_tokens: workload.max_new_tokens,
            decode_graph: !self.device.is_cpu(),
            steady_ms: 0,
            ceilings: true,
            target: part.map(|PartPath(path)| path.clone()),
            prompt_tokens: None,
            extracted: false,
            cold_cache: false,
        };
        self.write(layout::CONFIG, &yaml(&request)?)?;
        Ok(request)
    }

    /// Describes the host and checks what the run asks of it; `runner`: of the model runner, too.
    async fn look_at_host(&mut self, settings: &Profiling, runner: bool) -> Result<(), String> {
        let (leash, lines) = self.leash(Step::Preflight);
        let found = self.cx.collector.preflight(settings, self.device, runner, self.dir, &leash).await;
        drop(leash);
        lines.await.ok();
        self.write(layout::ENV, &pretty(&found.environment)?)?;
        let hopeless = found.findings.iter().find(|finding| finding.severity == Severity::Critical).cloned();
        found.findings.into_iter().for_each(|finding| self.find(finding));
        hopeless.map_or(Ok(()), |finding| Err(finding.message))
    }

    /// The plain pass: the only source of reported timings, so a run without it has failed.
    async fn baseline(&mut self, request: &RunnerRequest, settings: &Profiling) -> Result<(), Stop> {
        self.steps.begin(Step::Baseline);
        let (leash, lines) = self.leash(Step::Baseline);
        let pass = self.cx.collector.baseline(self.dir, request, &settings.nvml, &leash).await;
        drop(leash);
        lines.await.ok();
        let ended = self.settle(pass);
        self.steps.end(&ended);
        if ended.state == StepState::Succeeded {
            self.publish_predictions().map_err(|why| Stop(Ended::failed(why)))
        } else {
            Err(Stop(ended))
        }
    }

    /// The pass under Nsight Systems; without it the run is partial. Returns the kernels whose counters are worth reading.
    async fn nsys(&mut self, request: &RunnerRequest, settings: &Profiling) -> Vec<Choice> {
        self.steps.begin(Step::Nsys);
        let (mut leash, lines) = self.leash(Step::Nsys);
        if !self.device.is_cpu() && (settings.ncu.enabled || settings.gemm_log.enabled) {
            // A timeline that does not end leaves time for the passes after it.
            leash = deep::share_of(&leash, 2);
        }
        let pass = self.cx.collector.nsys(self.dir, request, &settings.nsys, &leash).await;
        drop(leash);
        lines.await.ok();
        let ended = self.settle(pass);
        let checked = if ended.state == StepState::Succeeded { self.timeline(request, settings).await } else { Ok(Vec::new()) };
        self.end_timeline(ended, checked)
    }

    /// Ends the step of a timeline that was checked, and returns the kernels that were chosen of it.
    fn end_timeline(&mut self, ended: Ended, checked: Result<Vec<Choice>, String>) -> Vec<Choice> {
        match checked {
            Ok(chosen) => {
                self.steps.end(&ended);
                chosen
            }
            Err(message) => {
                // What failed its checks stays as evidence, under a name that no report is made from.
                reject(&self.dir.join(layout::NSYS_EXPORT));
                self.steps.end(&Ended::failed(message).exit_code(ended.exit_code));
                Vec::new()
            }
        }
    }

    /// How a pass ended as a step. What is not installed here is skipped with its remedy, which preflight knows.
    fn settle(&mut self, pass: Result<Pass, CollectError>) -> Ended {
        match pass {
            Ok(pass) => {
                pass.findings.into_iter().for_each(|finding| self.find(finding));
                Ended::well().exit_code(Some(0))
            }
            Err(error @ CollectError::NotInstalled { tool }) => {
                let id = format!("{tool}_missing");
                let remedy = self.findings.iter().find(|finding| finding.id == id).and_then(|finding| finding.advice.clone());
                Ended::skipped(remedy.map_or_else(|| error.to_string(), |remedy| format!("{error}: {remedy}")))
            }
            Err(error) => {
                error.finding().into_iter().for_each(|finding| self.find(finding));
                let code = match error.ended() {
                    Some(ChildEnded::Exited(code)) => Some(code),
                    _ => None,
                };
                Ended::failed(crate::chain(&error)).exit_code(code)
            }
        }
    }

    /// The generated tokens stand at the top of the folder: people look for them there.
    fn publish_predictions(&self) -> Result<(), String> {
        let from = self.dir.join(layout::BASELINE).join(runner::PREDICTIONS);
        fs::rename(from, self.dir.join(layout::PREDICTIONS)).map_err(|error| format!("the runner left no predictions: {error}"))
    }

    /// Reads back what the passes left, and writes tables and reports from it.
    async fn analyze(&mut self) -> Result<(), Stop> {
        self.steps.begin(Step::Analyze);
        let (dir, devices) = (self.dir.to_owned(), self.cx.devices.clone());
        let analyzed = blocking(move || offline::analyze(&dir, &devices)).await;
        let ended = analyzed.as_ref().map_or_else(Ended::failed, |_| Ended::well());
        self.steps.end(&ended);
        let analyzed = analyzed.map_err(|_| Stop(ended))?;

        self.findings = analyzed.findings(self.order.id);
        self.lost_kernels = analyzed.lost_kernels();
        self.steps.begin(Step::Report);
        let (dir, id) = (self.dir.to_owned(), self.order.id);
        let written = blocking(move || analyzed.up_to_date(&dir)?.write(id, &dir)).await;
        let ended = written.map_or_else(Ended::failed, |_| Ended::well());
        self.steps.end(&ended);
        if ended.state == StepState::Succeeded { Ok(()) } else { Err(Stop(ended)) }
    }

    /// Ends the journal, seals the folder, and says how the run ended.
    async fn outcome(self, stopped: Option<Stop>) -> Outcome {
        let state = match &stopped {
            Some(_) => RunState::Failed,
            None if self.steps.has_gap() || self.lost_kernels => RunState::Partial,
            None => RunState::Succeeded,
        };
        let failed_step = stopped.as_ref().and_then(|_| self.steps.records().last()).map(|record| record.step);
        let message = stopped.and_then(|Stop(ended)| ended.message);
        let dir = self.dir.to_owned();
        let sealed = tokio::task::spawn_blocking(move || manifest::seal(&dir)).await;
        match sealed.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(artifacts) => Outcome { state, failed_step, message, findings: self.findings, artifacts },
            Err(error) => Outcome { findings: self.findings, ..lost(format!("cannot seal the run's folder: {error}")) },
        }
    }

    /// What holds the children of `step`, and the task that hands what they say to the journal until it is dropped.
    fn leash(&self, step: Step) -> (Leash, tokio::task::JoinHandle<()>) {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let journal = self.journal.clone();
        let lines = tokio::spawn(async move {
            while let Some(line) = receiver.recv().await {
                match line {
                    ChildLine::Log(line) => journal.log(step, &line),
                    ChildLine::Progress(p) => {
                        journal.write(&JournalEvent::Progress { step, phase: p.phase, done: p.done, total: p.total })
                    }
                }
            }
        });
        let grace = Duration::from_secs(self.order.grace_s.into());
        let limits = &self.order.limits;
        let space = Space { dir: self.dir.to_owned(), most_bytes: limits.run_bytes, free_bytes: limits.free_bytes };
        let (deadline, stop) = (self.deadline, self.halt.clone());
        let leash = Leash { run: self.order.id, deadline, grace, stop, lines: Some(sender), space: Some(space) };
        (leash, lines)
    }

    fn find(&mut self, finding: Finding) {
        self.journal.write(&JournalEvent::Finding { finding: finding.clone() });
        self.findings.push(finding);
    }

    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        fs::write(self.dir.join(name), text).map_err(|error| format!("cannot write {name}: {error}"))
    }
}

/// Runs `work` where it may block, and says in one line what went wrong.
async fn blocking<T: Send + 'static, E: std::error::Error>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(move || work().map_err(|error| crate::chain(&error))).await;
    done.unwrap_or_else(|error| Err(error.to_string()))
}

/// Renames a file of a pass that is no good, `run.sqlite` to `run.rejected.sqlite`: it stays, and is not read back.
fn reject(path: &Path) {
    let name = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let rejected = format!("{}.rejected.{}", name(path.file_stem()), name(path.extension()));
    match fs::rename(path, path.with_file_name(rejected)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "cannot set aside a file that is no good");
        }
        _ => {}
    }
}

/// An outcome without a folder to show for it.
pub fn lost(message: String) -> Outcome {
    Outcome { state: RunState::Failed, failed_step: None, message: Some(message), findings: Vec::new(), artifacts: Vec::new() }
}

/// Makes the run's folder anew; of an earlier attempt only the journal stays, and what the executor keeps there.
fn make_folder(dir: &Path, spec: &RunSpec) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        // What was imported cannot be collected anew.
        if spec.kind() == SubjectKind::Import && layout::IMPORTED.iter().any(|kept| path.ends_with(kept)) {
            continue;
        }
        if path.is_dir() {
            fs::remove_dir_all(path)?;
        } else if !layout::KEPT.iter().any(|kept| path.ends_with(kept)) {
            fs::remove_file(path)?;
        }
    }
    fs::write(dir.join(layout::SPEC), serde_json::to_vec_pretty(spec)?)
}

fn default_dtype(model: &ModelSpec, device: &Device) -> Dtype {
    if device.is_cpu() { model.cpu_dtype } else { model.dtype }
}

fn pretty(value: &impl serde::Serialize) -> Result<String, String> {
    serde_json::to_string_pretty(value).map_err(|error| error.to_string())
}

fn yaml(value: &impl serde::Serialize) -> Result<String, String> {
    yaml_serde::to_string(value).map_err(|error| error.to_string())
}

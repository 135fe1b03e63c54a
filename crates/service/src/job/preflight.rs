//! The preflight step: checks the host, resolves inputs and model, and keeps both in the run's
//! folder before any pass starts.

use std::{io, path::PathBuf};

use llmprof_core::{
    domain::{
        command::CommandPlan,
        device::Device,
        dtype::Dtype,
        finding::Severity,
        model::ModelSpec,
        part::PartPath,
        profiling::Profiling,
        run_config::{ResolvedConfig, WeightSource},
        runner::{RunnerRequest, RunnerSample},
        state::Step,
        subject::{Passes, Workload},
    },
    layout,
};

use super::{
    RunningJob,
    folder::{json, yaml},
    step_runner::{JobStep, StepOutcome},
};
use crate::{
    artifact::inputs::{self, InputsError, copies},
    collect::{Preflight, ProcessLimits},
    job::step_journal::StepResult,
    runtime::work::SlicedWork,
};

/// Preflight of a run of our runner.
pub(super) struct RunnerPreflight<'a> {
    pub workload: &'a Workload,
    pub passes: &'a Passes,
    pub model: &'a ModelSpec,
    /// The part that runs in place of the whole model.
    pub part: Option<&'a PartPath>,
    pub settings: &'a Profiling,
    pub host: Preflight,
}

impl JobStep for RunnerPreflight<'_> {
    const STEP: Step = Step::Preflight;
    type Output = RunnerRequest;

    async fn run(&mut self, job: &mut RunningJob<'_>, limits: &ProcessLimits) -> StepOutcome {
        let collector = &job.host.collector;
        self.host = collector.preflight(self.settings, job.device, true, job.dir, limits).await;
        StepOutcome::Settled(StepResult::succeeded())
    }

    async fn verify(&mut self, job: &mut RunningJob<'_>) -> Result<RunnerRequest, String> {
        job.check_host(std::mem::take(&mut self.host))?;
        let request = job.resolve(self.workload, self.passes, self.model, self.part).await?;
        let portable = request.relative_to(job.dir);
        job.write(layout::RUNNER, &yaml(&portable)?)?;
        job.write_config(Some((self.model, request.dtype)))?;
        Ok(request)
    }
}

/// Preflight of a command.
pub(super) struct CommandPreflight<'a> {
    pub plan: &'a CommandPlan,
    pub settings: &'a Profiling,
    pub host: Preflight,
}

impl JobStep for CommandPreflight<'_> {
    const STEP: Step = Step::Preflight;
    type Output = ();

    async fn run(&mut self, job: &mut RunningJob<'_>, limits: &ProcessLimits) -> StepOutcome {
        let collector = &job.host.collector;
        self.host = collector.preflight(self.settings, job.device, false, job.dir, limits).await;
        StepOutcome::Settled(StepResult::succeeded())
    }

    async fn verify(&mut self, job: &mut RunningJob<'_>) -> Result<(), String> {
        job.check_host(std::mem::take(&mut self.host))?;
        job.write_config(None)?;
        job.write(layout::COMMAND_PLAN, &json(self.plan)?)
    }
}

impl RunningJob<'_> {
    /// Writes the resolved configuration, with the model and its dtype if one runs.
    fn write_config(&self, model: Option<(&ModelSpec, Dtype)>) -> Result<(), String> {
        let Some(mut config) = self.spec.spec.submission() else { return Ok(()) };
        let devices = [self.device].into_iter().chain(&self.spec.other_gpus);
        let name = |device: &Device| device.uuid.as_ref().unwrap_or(&device.name).clone();
        let (model, dtype) = model.unzip();
        let resolved = ResolvedConfig {
            devices: devices.map(name).collect(),
            run_s: self.spec.time_limit().as_secs() as u32,
            run_bytes: self.spec.folder_bytes(),
            mode: self.spec.spec.mode().cloned(),
            dtype,
            weights: model.map(|it| WeightSource::of(it.weights.as_deref())),
            model: model.map(|model| ModelSpec { weights: None, ..model.clone() }),
        };
        config.insert("resolved".into(), serde_json::json!(resolved));
        let text = format!("# llmprof submit config.yaml\n{}", yaml(&config)?);
        self.write(layout::CONFIG, &text)
    }

    /// Keeps the description of the host; a critical finding is an error.
    fn check_host(&mut self, host: Preflight) -> Result<(), String> {
        self.write(layout::ENV, &json(&host.environment)?)?;
        let critical = host.findings.iter().find(|it| it.severity == Severity::Critical);
        let critical = critical.map(|it| it.message.clone());
        self.environment = host.environment;
        self.add_findings(host.findings);
        critical.map_or(Ok(()), Err)
    }

    /// Reads and hashes the inputs, and fills in the runner's request.
    async fn resolve(
        &self,
        workload: &Workload,
        passes: &Passes,
        model: &ModelSpec,
        part: Option<&PartPath>,
    ) -> Result<RunnerRequest, String> {
        let (root, manifest) = (self.spec.inputs.clone(), workload.inputs_manifest.clone());
        let dir = self.dir.to_owned();
        let resolve = move |work: &SlicedWork| {
            let original = inputs::read(&root, &manifest)?;
            let resolved = copies::copy_into(&dir, &original)
                .map_err(|source| InputsError::Read { name: manifest.clone(), source })?;
            let files = inputs::hash_images(&resolved, work)?;
            Ok::<_, InputsError>((resolved, files))
        };
        let (resolved, files) =
            self.stoppable(move |work| resolve(work).map_err(io::Error::other)).await?;
        let manifest = copies::manifest_of(self.dir, &resolved, &files, workload.seed);
        self.write(layout::INPUTS, &yaml(&manifest)?)?;
        let mut samples = resolved.samples.into_iter().map(|sample| RunnerSample {
            prompt: sample.prompt,
            images: sample.images.into_iter().map(|image| image.path).collect(),
        });
        let first = samples.next().ok_or("the inputs have no sample")?;
        Ok(RunnerRequest {
            model: model.clone(),
            weights: self.name_weights(model)?,
            seed: workload.seed,
            prompt: first.prompt,
            images: first.images,
            further_samples: samples.collect(),
            batch: workload.batch,
            dtype: workload.dtype.unwrap_or_else(|| model.default_dtype(self.device.is_cpu())),
            device: self.device.visible_name().to_owned(),
            gpu: self.device.uuid.clone(),
            warmup: passes.warmup,
            repeats: passes.repeats,
            max_new_tokens: workload.max_new_tokens,
            cache_tokens: None,
            decode_graph: !self.device.is_cpu(),
            steady_ms: 0,
            ceilings: true,
            target: part.map(|PartPath(path)| path.clone()),
            prompt_tokens: None,
            extracted: false,
            cold_cache: false,
            operators: true,
            operator_ranges: true,
            predictions: true,
            memory: false,
        })
    }

    /// Writes the path of the model's weights to a file of the run's folder that is not an
    /// artifact; returns the file, which the requests name in place of the path.
    fn name_weights(&self, model: &ModelSpec) -> Result<Option<PathBuf>, String> {
        let Some(folder) = &model.weights else { return Ok(None) };
        let failed = |why: String| format!("cannot use the weights of {}: {why}", model.name);
        let folder = folder.canonicalize().map_err(|error| failed(error.to_string()))?;
        let text = folder.to_str().ok_or_else(|| failed("their path is not UTF-8".into()))?;
        self.write(layout::WEIGHTS, text)?;
        Ok(Some(self.dir.join(layout::WEIGHTS)))
    }
}

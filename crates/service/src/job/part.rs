//! A run of a part of a model: the part alone (the mock), or the whole model followed by the mock
//! and by the part extracted from its layer, and their alignments.
//!
//! Each side has a subfolder with an unprofiled pass and a timeline. A failure here leaves the run
//! partial.

use std::fs;

use llmprof_analyze::align::Verdict;
use llmprof_core::{
    domain::{
        alignment::{conclusion, decisive},
        finding::{Finding, catalogue},
        model::ModelSpec,
        part::{MockChange, PartPath},
        profiling::{Profiling, RunnerPass},
        runner::RunnerRequest,
        state::Step,
        subject::PartSubject,
    },
    layout,
};
use llmprof_report::pipeline::align_part::{AlignedStage, align_part};

use super::{
    RunningJob, StoppedBy,
    folder::blocking,
    step_runner::{JobStep, StepOutcome},
};
use crate::{
    collect::{CollectError, NsysPass, Pass, ProcessLimits},
    job::step_journal::StepResult,
};

/// Repeats of a part at least: a part is small, and more repeats narrow the confidence interval of
/// a comparison.
const MIN_REPEATS: u32 = 10;

/// Runs the mock and the extracted part, and aligns both with the whole model.
struct AlignStep<'a> {
    whole: &'a RunnerRequest,
    subject: &'a PartSubject,
    settings: &'a Profiling,
}

impl JobStep for AlignStep<'_> {
    const STEP: Step = Step::Align;
    type Output = ();

    async fn run(&mut self, job: &mut RunningJob<'_>, limits: &ProcessLimits) -> StepOutcome {
        let PartPath(part) = &self.subject.part;
        let sides = [
            (layout::MOCK, mock(self.whole, part, self.subject.mock.unwrap_or_default())),
            (layout::EXTRACTED, part_alone(self.whole, part, true)),
        ];
        let mut result = StepResult::succeeded();
        for (folder, request) in sides {
            let passes = self.run_side(folder, &request, job, limits).await;
            // The first failure is the step's; the other side still runs, for its timings.
            if result.is_success() {
                result = passes;
            }
        }
        if result.is_success() {
            return StepOutcome::Settled(StepResult::succeeded());
        }
        let message = format!("{part}: there are no timelines to align");
        let finding = Finding::new(catalogue::ALIGNMENT_INCONCLUSIVE, message);
        job.add_finding(finding.advise(result.message.clone().unwrap_or_default()));
        StepOutcome::Settled(result)
    }

    async fn verify(&mut self, job: &mut RunningJob<'_>) -> Result<(), String> {
        let PartPath(part) = &self.subject.part;
        let (dir, path, timeline) = (job.dir.to_owned(), part.clone(), job.timeline.take());
        let (stages, timeline) = blocking(move || align_part(&dir, &path, timeline)).await?;
        job.timeline = job.keeps_timeline.then_some(timeline);
        job.add_findings(stages.iter().map(|stage| alignment_finding(part, stage)));
        Ok(())
    }
}

impl AlignStep<'_> {
    /// The unprofiled pass and the timeline of one side, in its subfolder.
    async fn run_side(
        &self,
        folder: &str,
        request: &RunnerRequest,
        job: &mut RunningJob<'_>,
        limits: &ProcessLimits,
    ) -> StepResult {
        let dir = job.dir.join(folder);
        let in_folder = |result: StepResult| StepResult {
            message: result.message.map(|message| format!("{folder}: {message}")),
            ..result
        };
        if let Err(error) = fs::create_dir_all(&dir) {
            return in_folder(StepResult::failed(format!("cannot make the folder: {error}")));
        }
        let (host, settings) = (job.host, self.settings);
        let of = |pass| RunnerRequest { memory: false, ..request.of_pass(pass, settings) };
        let baseline = of(RunnerPass::Baseline);
        let pass = host.collector.baseline(&dir, &baseline, &settings.nvml, limits);
        let result = job.run_side_pass(&format!("{folder}/{}", layout::BASELINE), pass).await;
        if !result.is_success() {
            return in_folder(result);
        }
        let mut nsys = settings.nsys.clone();
        nsys.repeats = nsys.repeats.max(MIN_REPEATS);
        let timeline = NsysPass::timeline(&nsys);
        let traced = of(RunnerPass::Nsys);
        let pass = host.collector.nsys(&dir, &traced, &timeline, limits);
        in_folder(job.run_side_pass(&format!("{folder}/{}", layout::NSYS), pass).await)
    }
}

impl RunningJob<'_> {
    /// Executes all steps of a part, up to the analysis.
    pub(super) async fn run_part(
        &mut self,
        subject: &PartSubject,
        model: &ModelSpec,
        settings: &Profiling,
    ) -> Result<(), StoppedBy> {
        let PartSubject { workload, passes, .. } = subject;
        let alone = subject.align_with.is_none().then_some(&subject.part);
        let request = self.preflight(workload, passes, model, alone, settings).await?;
        self.run_passes(&request, settings).await?;
        if subject.align_with.is_some() {
            self.run_step(AlignStep { whole: &request, subject, settings }).await?;
        }
        Ok(())
    }

    /// Runs the pass with the folder `name`, unless it finished in an earlier attempt.
    async fn run_side_pass(
        &mut self,
        name: &str,
        pass: impl Future<Output = Result<Pass, CollectError>>,
    ) -> StepResult {
        match self.finished_pass(name).await {
            Ok(Some(finished)) => {
                self.add_findings(finished.findings);
                return StepResult::succeeded().with_exit_code(Some(0));
            }
            Ok(None) => {}
            Err(result) => return result,
        }
        let (started_at, before) = (self.journal.now(), self.findings.len());
        let mut result = self.settle(pass.await);
        if result.is_success()
            && let Err(message) = self.check_events(name).await
        {
            result = StepResult::failed(message).with_exit_code(result.exit_code);
        }
        if result.is_success() {
            let findings = self.findings[before..].to_vec();
            self.finish_pass(name, started_at, findings).await;
        }
        result
    }
}

/// Request that runs a part in place of the whole model, with a cache as the whole model leaves it.
fn part_alone(whole: &RunnerRequest, part: &str, extracted: bool) -> RunnerRequest {
    RunnerRequest {
        target: Some(part.to_owned()),
        extracted,
        cold_cache: true,
        repeats: whole.repeats.max(MIN_REPEATS),
        ceilings: false,
        ..whole.clone()
    }
}

/// Request of the mock: only the part, with the changes that the submission makes.
fn mock(whole: &RunnerRequest, part: &str, change: MockChange) -> RunnerRequest {
    let alone = part_alone(whole, part, false);
    RunnerRequest {
        dtype: change.dtype.unwrap_or(alone.dtype),
        decode_graph: change.decode_graph.unwrap_or(alone.decode_graph),
        prompt_tokens: change.prompt_tokens,
        ..alone
    }
}

/// The finding of one stage's alignment.
fn alignment_finding(part: &str, aligned: &AlignedStage) -> Finding {
    let (stage, mock) = (aligned.stage, &aligned.mock);
    let id = match mock.verdict {
        Verdict::Pass | Verdict::Warn => catalogue::ALIGNMENT_PASSED,
        Verdict::Fail => catalogue::ALIGNMENT_FAILED,
        Verdict::Inconclusive => catalogue::ALIGNMENT_INCONCLUSIVE,
    };
    let conclusion = conclusion(mock.verdict);
    let mut finding = Finding::new(id, format!("{stage}, {part}: {conclusion}"));
    let checks = mock.summary();
    let decisive = decisive(mock.verdict, &checks);
    for check in &decisive {
        finding = finding.with(&check.id, &check.observed);
    }
    finding = finding.with("extracted from its layer", aligned.extracted.verdict.as_str());
    match decisive.first().and_then(|check| check.advice.clone()) {
        Some(advice) => finding.advise(advice),
        None => finding,
    }
}

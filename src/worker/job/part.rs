//! A part of a model beside the whole: the part alone (the mock), the part taken out of its layer, and what an alignment says of both.
//!
//! Each has a folder in the run's with a plain pass and a timeline. What fails here leaves the run partial.

use std::fs;

use super::{Job, Stop, blocking};
use crate::{
    analyze::align::Verdict,
    artifact::layout,
    collect::Leash,
    model::ModelSpec,
    profiling::Profiling,
    run::{
        Finding, Severity, Step, StepState,
        part::{MockChange, PartPath},
        subject::PartSubject,
    },
    runner::RunnerRequest,
    worker::{
        part::{AlignedStage, align_part},
        steps::Ended,
    },
};

/// Repeats of a part at least: it is small beside the model, and more of them narrow the interval of a comparison.
const REPEATS: u32 = 10;

impl Job<'_> {
    /// Takes the passes of a part: alone, or of the whole model and then of the part next to it.
    pub(super) async fn part(&mut self, subject: &PartSubject, model: &ModelSpec, settings: &Profiling) -> Result<(), Stop> {
        let alone = subject.align_with.is_none().then_some(&subject.part);
        let request = self.preflight(&subject.workload, &subject.passes, model, settings, alone).await?;
        self.passes(&request, settings).await?;
        if subject.align_with.is_some() {
            self.aligned(&request, subject, settings).await;
        }
        Ok(())
    }

    /// Runs the part alone and taken out of its layer, and aligns both with the whole model.
    async fn aligned(&mut self, whole: &RunnerRequest, subject: &PartSubject, settings: &Profiling) {
        let PartPath(part) = &subject.part;
        self.steps.begin(Step::Align);
        let (leash, lines) = self.leash(Step::Align);
        let mut ended = Ended::well();
        for (folder, request) in
            [(layout::MOCK, mock(whole, part, subject.mock.unwrap_or_default())), (layout::EXTRACTED, of_part(whole, part, true))]
        {
            let passes = self.pair_of_passes(folder, &request, settings, &leash).await;
            // The first of them says what went wrong; the second is tried all the same, for its plain times.
            if ended.state == StepState::Succeeded {
                ended = passes;
            }
        }
        drop(leash);
        lines.await.ok();
        if ended.state == StepState::Succeeded {
            ended = self.align(part).await;
        } else {
            let message = format!("{part}: there are no timelines to align");
            let finding = Finding::new("alignment_inconclusive", Severity::Warning, message);
            self.find(finding.advise(ended.message.clone().unwrap_or_default()));
        }
        self.steps.end(&ended);
    }

    /// The plain pass and the timeline of one side, in a folder of its own.
    async fn pair_of_passes(&mut self, folder: &str, request: &RunnerRequest, settings: &Profiling, leash: &Leash) -> Ended {
        let dir = self.dir.join(folder);
        let place = |ended: Ended| Ended { message: ended.message.map(|message| format!("{folder}: {message}")), ..ended };
        if let Err(error) = fs::create_dir_all(&dir) {
            return place(Ended::failed(format!("cannot make the folder: {error}")));
        }
        let plain = self.cx.collector.baseline(&dir, request, &settings.nvml, leash).await;
        let ended = self.settle(plain);
        if ended.state != StepState::Succeeded {
            return place(ended);
        }
        let mut nsys = settings.nsys.clone();
        nsys.repeats = nsys.repeats.max(REPEATS);
        let traced = self.cx.collector.nsys(&dir, request, &nsys, leash).await;
        let ended = self.settle(traced);
        place(ended)
    }

    async fn align(&mut self, part: &str) -> Ended {
        let (dir, path) = (self.dir.to_owned(), part.to_owned());
        match blocking(move || align_part(&dir, &path)).await {
            Ok(stages) => {
                stages.iter().map(|it| told(part, it)).for_each(|finding| self.find(finding));
                Ended::well()
            }
            Err(message) => Ended::failed(message),
        }
    }
}

/// What a runner is asked that runs a part in place of the whole model, with a cache as the whole model leaves it.
fn of_part(whole: &RunnerRequest, part: &str, extracted: bool) -> RunnerRequest {
    let repeats = whole.repeats.max(REPEATS);
    RunnerRequest { target: Some(part.to_owned()), extracted, cold_cache: true, repeats, ceilings: false, ..whole.clone() }
}

/// The request of the mock's runner: the part alone, with the changes that the submission makes.
fn mock(whole: &RunnerRequest, part: &str, change: MockChange) -> RunnerRequest {
    let alone = of_part(whole, part, false);
    RunnerRequest {
        dtype: change.dtype.unwrap_or(alone.dtype),
        decode_graph: change.decode_graph.unwrap_or(alone.decode_graph),
        prompt_tokens: change.prompt_tokens,
        ..alone
    }
}

/// What one stage's alignment of the mock comes to.
fn told(part: &str, aligned: &AlignedStage) -> Finding {
    let (stage, found) = (aligned.stage, &aligned.mock);
    let (id, severity, says) = match found.verdict {
        Verdict::Pass | Verdict::Warn => {
            ("alignment_passed", Severity::Info, "the mock launches what the whole model launches there")
        }
        Verdict::Fail => ("alignment_failed", Severity::Warning, "the mock is not what the whole model runs there"),
        Verdict::Inconclusive => {
            ("alignment_inconclusive", Severity::Warning, "the captures do not tell whether the mock is what the model runs")
        }
    };
    let mut finding = Finding::new(id, severity, format!("{stage}, {part}: {says}"));
    for check in found.decisive() {
        finding = finding.with(&check.id, &check.observed);
    }
    finding = finding.with("taken out of its layer", aligned.extracted.verdict.as_str());
    match found.decisive().next().and_then(|check| check.advice.clone()) {
        Some(advice) => finding.advise(advice),
        None => finding,
    }
}

//! A part of a model beside the whole: the part alone (the mock), the part taken out of its layer, and what an alignment says of both.
//!
//! Each has a folder in the run's with a plain pass and a timeline. What fails here leaves the run partial.

use std::fs;

use super::{Job, blocking};
use crate::{
    analyze::align::Verdict,
    artifact::layout,
    collect::Leash,
    run::{Finding, Severity, Step, StepState, target::Target},
    runner::RunnerRequest,
    worker::{
        part::{AlignedStage, align_part},
        steps::Ended,
    },
};

/// Repeats of a part at least: it is small beside the model, and more of them narrow the interval of a comparison.
const REPEATS: u32 = 10;

impl Job<'_> {
    /// The part that the passes in the usual places are of; none where they are of the whole model.
    pub(super) fn part_alone(&self) -> Option<String> {
        let spec = &self.order.spec;
        spec.target.as_ref().filter(|_| spec.align_with.is_none()).and_then(|target| target.part().map(str::to_owned))
    }

    /// Runs the part alone and taken out of its layer, where the run asks for it, and aligns both with the whole model.
    pub(super) async fn aligned(&mut self, whole: &RunnerRequest) {
        let spec = &self.order.spec;
        let Some(part) = spec.target.as_ref().filter(|_| spec.align_with.is_some()).and_then(Target::part) else { return };
        self.steps.begin(Step::Align);
        let (leash, lines) = self.leash(Step::Align);
        let mut ended = Ended::well();
        for (folder, request) in [(layout::MOCK, self.mock(whole, part)), (layout::EXTRACTED, of_part(whole, part, true))] {
            let passes = self.pair_of_passes(folder, &request, &leash).await;
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

    /// What the mock's runner is asked: the part alone, with what the request makes different.
    fn mock(&self, whole: &RunnerRequest, part: &str) -> RunnerRequest {
        let change = self.order.spec.mock.unwrap_or_default();
        let alone = of_part(whole, part, false);
        RunnerRequest {
            dtype: change.dtype.unwrap_or(alone.dtype),
            decode_graph: change.decode_graph.unwrap_or(alone.decode_graph),
            prompt_tokens: change.prompt_tokens,
            ..alone
        }
    }

    /// The plain pass and the timeline of one side, in a folder of its own.
    async fn pair_of_passes(&mut self, folder: &str, request: &RunnerRequest, leash: &Leash) -> Ended {
        let dir = self.dir.join(folder);
        let place = |ended: Ended| Ended { message: ended.message.map(|message| format!("{folder}: {message}")), ..ended };
        if let Err(error) = fs::create_dir_all(&dir) {
            return place(Ended::failed(format!("cannot make the folder: {error}")));
        }
        let plain = self.cx.collector.baseline(&dir, request, &self.settings.nvml, leash).await;
        let ended = self.settle(plain);
        if ended.state != StepState::Succeeded {
            return place(ended);
        }
        let mut settings = self.settings.nsys.clone();
        settings.repeats = settings.repeats.max(REPEATS);
        let traced = self.cx.collector.nsys(&dir, request, &settings, leash).await;
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

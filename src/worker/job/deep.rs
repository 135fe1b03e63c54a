//! What a deep run on a GPU adds: counters of the kernels that its timeline shows, and the shapes of its matrix products.
//!
//! Neither is needed for the rest: what fails here leaves the run partial.

use std::{fs, path::Path, time::Duration};

use tokio::time::Instant;

use super::{Job, blocking, pretty, reject};
use crate::{
    analyze::{
        choose::{self, Choice},
        coverage::coverage,
        outputs,
        stages::{DECODE, PREFILL},
    },
    artifact::layout,
    collect::{CollectError, Ended as ChildEnded, Leash, argv::Argv, ncu::Selection, output},
    parse::{self, ParseError, ncu::CounterPage},
    profiling::{NcuSettings, Profiling, TraceApi},
    run::{Finding, NOT_APPLICABLE, Severity, Step, StepState},
    runner::{self, RunnerRequest},
    trace::stage::StageRules,
    worker::steps::Ended,
};

/// Lines of the tool's log that a finding may quote.
const QUOTED: usize = 5;
/// Lines from the end of a log that are looked through for complaints.
const LOOKED_AT: usize = 200;

impl Job<'_> {
    /// Reads the timeline back: whether it covers what was launched, and whose counters are worth reading.
    pub(super) async fn timeline(&mut self, request: &RunnerRequest, settings: &Profiling) -> Result<Vec<Choice>, String> {
        let nsys = &settings.nsys;
        let expected = Expected {
            kernels: !self.device.is_cpu() && nsys.trace.contains(&TraceApi::Cuda),
            ranges: match request.max_new_tokens {
                // What is recorded of a part of a run is up to that part.
                _ if !nsys.is_whole() => &[],
                0 => &[PREFILL],
                _ => &[PREFILL, DECODE],
            },
        };
        let (dir, ncu) = (self.dir.to_owned(), settings.ncu.clone());
        let read = blocking(move || read_timeline(&dir, &expected, StageRules::default(), &ncu)).await;
        let (choices, finding) = read.map_err(|why| self.unreadable(&why))?;
        self.same_tokens(layout::NSYS).await.inspect_err(|_| reject(&self.dir.join(layout::NSYS).join(runner::EVENTS)))?;
        match finding {
            Some(finding) => {
                let message = finding.message.clone();
                self.find(finding);
                Err(message)
            }
            None => Ok(choices),
        }
    }

    /// Lists the passes that the mode has and the CPU has not: it runs no kernels that ncu could count or a GEMM library could log.
    pub(super) fn list_not_applicable(&mut self, settings: &Profiling) {
        let passes = [
            (Step::Ncu, settings.ncu.enabled, "a CPU runs no kernels whose counters ncu could read"),
            (Step::GemmLog, settings.gemm_log.enabled, "a CPU calls no cuBLAS that could log its matrix products"),
        ];
        let left: Vec<_> = passes.into_iter().filter(|(_, enabled, _)| *enabled && self.device.is_cpu()).collect();
        if left.is_empty() {
            return;
        }
        let names: Vec<&str> = left.iter().map(|(step, ..)| step.as_str()).collect();
        let message = format!("Not applicable on the CPU: {}.", names.join(", "));
        let finding = Finding::new(NOT_APPLICABLE, Severity::Info, message).advise("run on a GPU to collect them");
        self.find(left.iter().fold(finding, |finding, (step, _, why)| finding.with(step.as_str(), why)));
    }

    /// Tells that the timeline cannot be read, and returns that as the step's message.
    pub(super) fn unreadable(&mut self, why: &str) -> String {
        let message = "the timeline that nsys exported cannot be read";
        let finding = Finding::new("nsys_export_unreadable", Severity::Warning, message).with("reason", why);
        self.find(
            finding.advise("look at the nsys step's log; use an nsys as new as the driver, and see that its disk has space"),
        );
        format!("{message}: {why}")
    }

    /// Checks that the pass in `folder` made the tokens that the plain pass made: else it watched something else.
    async fn same_tokens(&mut self, folder: &str) -> Result<(), String> {
        let [plain, pass] = [layout::BASELINE, folder].map(|folder| self.dir.join(folder).join(runner::EVENTS));
        let compared = blocking(move || {
            let (plain, pass) = (parse::events::read(&plain)?, parse::events::read(&pass)?);
            Ok::<_, ParseError>(outputs::same_tokens(&plain.events, &pass.events))
        });
        let message = match compared.await {
            Ok(Some(true)) => return Ok(()),
            Ok(Some(false)) => format!("{folder}: the pass made other tokens than the plain pass"),
            Ok(None) => format!("{folder}: the pass told no tokens, so nothing shows that it ran what the plain pass ran"),
            Err(why) => format!("{folder}: what the runner told cannot be read: {why}"),
        };
        let advice = "do not attribute this pass to the timed run; look at its log, and whether the model's repeats agree";
        self.find(Finding::new("pass_not_proven", Severity::Warning, &message).with("pass", folder).advise(advice));
        Err(message)
    }

    /// The passes under Nsight Compute, one per stage, over the kernels chosen.
    pub(super) async fn counters(&mut self, request: &RunnerRequest, choices: &[Choice], settings: &Profiling) {
        self.steps.begin(Step::Ncu);
        let (leash, lines) = self.leash(Step::Ncu);
        let ended = self.profile_stages(Counted::Runner(request), choices, settings, &leash).await;
        drop(leash);
        lines.await.ok();
        self.steps.end(&ended);
    }

    pub(super) async fn profile_stages(
        &mut self,
        counted: Counted<'_>,
        choices: &[Choice],
        settings: &Profiling,
        leash: &Leash,
    ) -> Ended {
        if choices.is_empty() && self.cx.collector.ncu.is_some() {
            return Ended::skipped("kernels are chosen from the timeline of the same run, which holds none: see the nsys step");
        }
        let metrics = match self.cx.collector.ncu_metrics(self.dir, &settings.ncu.metrics, leash).await {
            Ok((metrics, finding)) => {
                finding.into_iter().for_each(|finding| self.find(finding));
                metrics
            }
            Err(error) => return self.settle(Err(error)),
        };
        let (mut failures, mut code) = (Vec::new(), Some(0));
        for (at, choice) in choices.iter().enumerate() {
            // A pass that hangs leaves time for the stages after it, and for the step after this.
            let share = share_of(leash, choices.len() - at + 1);
            match self.profile_stage(counted, choice, (settings, &metrics), &share).await {
                Ok(findings) => findings.into_iter().for_each(|finding| self.find(finding)),
                Err(error) => {
                    for page in [layout::NCU_RAW, layout::NCU_DETAILS] {
                        reject(&self.dir.join(layout::NCU).join(&choice.stage).join(page));
                    }
                    if let Stage::Collect(error) = &error {
                        error.finding().into_iter().for_each(|finding| self.find(finding));
                        code = error.ended().and_then(ChildEnded::exit_code);
                    }
                    let hopeless = matches!(&error, Stage::Collect(it) if matches!(it.ended(), Some(ChildEnded::DeadlinePassed | ChildEnded::Stopped)));
                    failures.push(format!("{}: {}", choice.stage, crate::chain(&error)));
                    if hopeless {
                        break;
                    }
                }
            }
        }
        if failures.is_empty() { Ended::well() } else { Ended::failed(failures.join("; ")) }.exit_code(code)
    }

    /// Profiles one stage and reads back what it left.
    async fn profile_stage(
        &mut self,
        counted: Counted<'_>,
        choice: &Choice,
        (settings, metrics): (&Profiling, &[String]),
        leash: &Leash,
    ) -> Result<Vec<Finding>, Stage> {
        let window = choice.window;
        let tokens = match counted {
            Counted::Runner(request) if choice.stage == DECODE => {
                request.max_new_tokens.min(settings.nsys.max_new_tokens).div_ceil(window.part)
            }
            _ => 0,
        };
        let selection = Selection {
            stage: choice.stage.clone(),
            range: choice.range.clone(),
            kernels: choice.names(),
            skip: window.skip,
            count: window.count,
            max_new_tokens: tokens,
        };
        let (collector, ncu) = (&self.cx.collector, &settings.ncu);
        let pass = match counted {
            Counted::Runner(request) => collector.ncu(self.dir, request, &selection, ncu, metrics, leash).await,
            Counted::Command(target) => collector.ncu_command(self.dir, target, &selection, ncu, metrics, leash).await,
        };
        let folder = self.dir.join(layout::NCU).join(&choice.stage);
        if let Ok(text) = pretty(choice) {
            // Kept for those who ask why these kernels; a disk that is full says so elsewhere.
            fs::write(folder.join(layout::NCU_CHOICE), text).ok();
        }
        let mut findings = pass?.findings;
        let (dir, stage) = (self.dir.to_owned(), choice.stage.clone());
        let read = move || parse::ncu::read(&dir, &stage);
        let page = blocking(read).await.map_err(Stage::Page)?.unwrap_or_else(CounterPage::default);
        if let Some(failure) = page.failure(&selection.kernels) {
            let finding = Finding::new("counters_unusable", Severity::Warning, format!("{}: {failure}", choice.stage));
            self.find(
                finding.advise("look at the stage's ncu log and pages; another version of ncu may read what this one does not"),
            );
            return Err(Stage::Page(failure));
        }
        if let Counted::Runner(_) = counted {
            self.same_tokens(&format!("{}/{}", layout::NCU, choice.stage)).await.map_err(Stage::Page)?;
        }
        findings.extend(page.findings(&choice.stage, &selection.kernels));
        findings.extend(choice.finding(settings.ncu.min_share_pct));
        Ok(findings)
    }

    /// The passes with the libraries' logs on.
    pub(super) async fn products(&mut self, request: &RunnerRequest, settings: &Profiling) {
        self.steps.begin(Step::GemmLog);
        let (leash, lines) = self.leash(Step::GemmLog);
        let pass = self.cx.collector.gemm_log(self.dir, request, &settings.gemm_log, &leash).await;
        drop(leash);
        lines.await.ok();
        let mut ended = self.settle(pass);
        if ended.state == StepState::Succeeded {
            let dir = self.dir.to_owned();
            let read = blocking(move || parse::cublas::read(&dir)).await;
            let calls = read.map(|it| it.map_or(0, |it| it.all.calls.len() + it.lt_all.calls.len() + it.prefill.calls.len()));
            match calls {
                Ok(0) => ended = Ended::failed("the libraries' logs hold no whole matrix product").exit_code(Some(0)),
                Ok(_) => {
                    for pass in [layout::GEMM_PREFILL, layout::GEMM_ALL] {
                        if let Err(message) = self.same_tokens(&format!("{}/{pass}", layout::GEMM_LOG)).await {
                            ended = Ended::failed(message).exit_code(Some(0));
                        }
                    }
                }
                Err(message) => ended = Ended::failed(message).exit_code(Some(0)),
            }
        }
        if ended.state != StepState::Succeeded {
            for (pass, log) in [layout::GEMM_PREFILL, layout::GEMM_ALL]
                .into_iter()
                .flat_map(|pass| [layout::CUBLAS_LOG, layout::CUBLASLT_LOG].map(|log| (pass, log)))
            {
                reject(&self.dir.join(layout::GEMM_LOG).join(pass).join(log));
            }
        }
        self.steps.end(&ended);
    }
}

/// What ncu profiles.
#[derive(Debug, Clone, Copy)]
pub(super) enum Counted<'a> {
    Runner(&'a RunnerRequest),
    Command(&'a Argv),
}

/// Why a stage has no counters.
#[derive(Debug, thiserror::Error)]
enum Stage {
    #[error(transparent)]
    Collect(#[from] CollectError),
    #[error("{0}")]
    Page(String),
}

/// The same leash for one part of `parts` of the time that is left.
pub(super) fn share_of(leash: &Leash, parts: usize) -> Leash {
    let left = leash.deadline.saturating_duration_since(Instant::now());
    let share = left / u32::try_from(parts).unwrap_or(u32::MAX).max(1);
    Leash { deadline: Instant::now() + share.max(Duration::from_millis(1)), ..leash.clone() }
}

/// What a timeline must hold.
pub(super) struct Expected {
    pub kernels: bool,
    pub ranges: &'static [&'static str],
}

/// Choices from the timeline in `dir`, or what is wrong with it.
pub(super) fn read_timeline(
    dir: &Path,
    expected: &Expected,
    rules: StageRules,
    ncu: &NcuSettings,
) -> Result<(Vec<Choice>, Option<Finding>), ParseError> {
    let trace = parse::nsys::read(&dir.join(layout::NSYS_EXPORT))?.with_rules(rules);
    let logs =
        ["nsys.stdout.log", "nsys.stderr.log"].map(|name| output::last_lines(&dir.join(layout::LOGS).join(name), LOOKED_AT));
    let complains = |line: &String| ["error", "warning", "fail"].iter().any(|word| line.to_lowercase().contains(word));
    let log: Vec<String> = logs.into_iter().flatten().filter(complains).take(QUOTED).collect();
    let covered = coverage(&trace, expected.ranges);
    let told = serde_json::json!({ "pct": covered.pct(), "coverage": covered });
    // Kept for those who ask how whole the timeline is; a disk that is full says so elsewhere.
    fs::write(dir.join(layout::NSYS_COVERAGE), told.to_string()).ok();
    let finding = covered.finding(expected.kernels, &trace, &log);
    Ok((choose::choose(&trace, ncu), finding))
}

#[cfg(test)]
mod tests;

//! The nsys step: records a timeline, verifies that it covers the kernels launched, and selects the
//! kernels whose counters are worth reading.

use std::{fs, path::Path};

use llmprof_analyze::{
    kernels::kernel_selection::{self, CounterPlan, TracedProgram},
    parse::{self, ParseError},
    stages::{DECODE, PREFILL, coverage::coverage, import_error::ImportError, output_equality},
};
use llmprof_core::{
    domain::{
        finding::{Finding, catalogue},
        profiling::{CpuScope, NsysSettings, Profiling, TraceApi},
        runner::{self, RunnerRequest},
        state::Step,
    },
    layout,
    trace::{host_cpu::HostCpu, stage::StageRules, timeline::Timeline},
};
use llmprof_report::pipeline::{apply_rules, rules_of};

use super::{
    RunningJob,
    folder::{blocking, reject},
    step_runner::{JobStep, StepOutcome, share_of_time},
};
use crate::collect::{
    CollectError, CommandRun, NsysPass, Pass, ProcessLimits,
    process::output,
    tools::{nsys, nsys_report},
};

/// Lines of the tool's log that a finding quotes at most.
const MAX_QUOTED: usize = 5;
/// Lines from the end of a log that are searched for complaints.
const MAX_SEARCHED: usize = 200;

/// Program that nsys records.
#[derive(Debug, Clone, Copy)]
pub(super) enum TimelineTarget<'a> {
    Runner(&'a RunnerRequest),
    Command(&'a CommandRun),
}

/// The pass under Nsight Systems.
pub(super) struct TimelineStep<'a> {
    pub target: TimelineTarget<'a>,
    pub settings: &'a Profiling,
}

/// Contents that a timeline must have.
pub(super) struct ExpectedTimeline {
    pub kernels: bool,
    pub ranges: &'static [&'static str],
    pub rules: StageRules,
    program: TracedProgram,
}

/// A timeline that was read back.
struct ReadTimeline {
    trace: Timeline,
    selected: CounterPlan,
    /// Why it does not count.
    incomplete: Option<Finding>,
    /// Errors of the import of a complete timeline.
    import_errors: Option<Finding>,
    /// Requested samples of the CPU that a complete timeline lacks.
    without_samples: Option<Finding>,
}

impl JobStep for TimelineStep<'_> {
    const STEP: Step = Step::Nsys;
    /// Kernels for the counter passes.
    type Output = CounterPlan;

    fn pass(&self) -> Option<&'static str> {
        Some(layout::NSYS)
    }

    /// A timeline that does not end leaves time for the passes after it.
    fn limits(&self, job: &RunningJob<'_>, of_run: ProcessLimits) -> ProcessLimits {
        let Profiling { gpu_metrics, ncu, gemm_log, .. } = self.settings;
        let more = gpu_metrics.enabled || ncu.enabled || gemm_log.enabled;
        if !job.device.is_cpu() && more { share_of_time(&of_run, 2) } else { of_run }
    }

    async fn run(&mut self, job: &mut RunningJob<'_>, limits: &ProcessLimits) -> StepOutcome {
        let pass = NsysPass::timeline(&self.settings.nsys);
        let recorded = self.target.record(job, &pass, limits).await;
        if recorded.is_err() && pass.is_system_wide() {
            // The files of a failed pass stay in the run.
            let exposed = nsys::sees_all_processes();
            job.add_findings(nsys_report::with_recorded_files(exposed, job.dir, &[layout::NSYS]));
        }
        StepOutcome::Pass(recorded)
    }

    async fn verify(&mut self, job: &mut RunningJob<'_>) -> Result<CounterPlan, String> {
        let read = self.read(job).await;
        if read.is_err() {
            reject(&job.dir.join(layout::NSYS_EXPORT));
        }
        let ReadTimeline { trace, selected, .. } = read?;
        job.timeline = job.keeps_timeline.then_some(trace);
        Ok(selected)
    }
}

impl TimelineStep<'_> {
    /// Reads the timeline back; an error if it is unreadable, incomplete or of another output.
    async fn read(&self, job: &mut RunningJob<'_>) -> Result<ReadTimeline, String> {
        let expected = self.target.expected(self.settings, job);
        let (dir, settings) = (job.dir.to_owned(), self.settings.clone());
        let read = blocking(move || read_timeline(&dir, expected, &settings)).await;
        let read = read.map_err(|reason| job.report_unreadable(&reason))?;
        if let TimelineTarget::Runner(_) = self.target {
            job.check_output(layout::NSYS)
                .await
                .inspect_err(|_| reject(&job.dir.join(layout::NSYS).join(runner::EVENTS)))?;
        }
        match read.incomplete {
            Some(finding) => {
                let message = finding.message.clone();
                job.add_finding(finding);
                Err(message)
            }
            None => {
                job.add_findings(read.import_errors.clone());
                job.add_findings(read.without_samples.clone());
                Ok(read)
            }
        }
    }
}

impl TimelineTarget<'_> {
    /// Runs a pass of nsys.
    pub async fn record(
        self,
        job: &RunningJob<'_>,
        pass: &NsysPass<'_>,
        limits: &ProcessLimits,
    ) -> Result<Pass, CollectError> {
        let collector = &job.host.collector;
        match self {
            Self::Runner(it) => collector.nsys(job.dir, it, pass, limits).await,
            Self::Command(it) => collector.traced_command(job.dir, it, pass, limits).await,
        }
    }

    /// Contents of its timelines.
    pub fn expected(self, settings: &Profiling, job: &RunningJob<'_>) -> ExpectedTimeline {
        let nsys = &settings.nsys;
        let cuda = nsys.trace.contains(&TraceApi::Cuda);
        match self {
            TimelineTarget::Runner(request) => ExpectedTimeline {
                kernels: !job.device.is_cpu() && cuda,
                ranges: match request.max_new_tokens {
                    // A capture of a part of the run may have any ranges.
                    _ if !nsys.records_all() => &[],
                    0 => &[PREFILL],
                    _ => &[PREFILL, DECODE],
                },
                rules: StageRules::default(),
                program: TracedProgram { samples: request.samples(), is_runner: true },
            },
            TimelineTarget::Command(CommandRun { plan, gpus, .. }) => ExpectedTimeline {
                kernels: !gpus.is_empty() && plan.gpus > 0 && cuda,
                ranges: &[],
                rules: rules_of(&plan.stages, &plan.include_ranges, &plan.exclude_ranges),
                program: TracedProgram { samples: 1, is_runner: false },
            },
        }
    }
}

impl RunningJob<'_> {
    /// Reports a timeline that cannot be read; returns the step's message.
    fn report_unreadable(&mut self, reason: &str) -> String {
        let message = "cannot read the timeline that nsys exported";
        let finding =
            Finding::new(catalogue::NSYS_EXPORT_UNREADABLE, message).with("reason", reason).advise(
                "read the log of the nsys step; use an nsys that is as new as the driver, and \
                 check the free space of its disk",
            );
        self.add_finding(finding);
        format!("{message}: {reason}")
    }

    /// Returns true if the pass in `folder` generated the tokens of the unprofiled pass; `None` if
    /// it recorded none.
    pub(super) async fn has_same_tokens(&self, folder: &str) -> Result<Option<bool>, String> {
        let [baseline, pass] =
            [layout::BASELINE, folder].map(|folder| self.dir.join(folder).join(runner::EVENTS));
        blocking(move || {
            let (baseline, pass) = (parse::events::read(&baseline)?, parse::events::read(&pass)?);
            Ok::<_, ParseError>(output_equality::same_tokens(&baseline.events, &pass.events))
        })
        .await
    }

    /// Checks that the events of the pass in `folder` are whole. A runner may exit with 0 and leave
    /// a part of them, as on a full disk.
    pub(super) async fn check_events(&mut self, folder: &str) -> Result<(), String> {
        let path = self.dir.join(folder).join(runner::EVENTS);
        let read = blocking(move || parse::events::read(&path)).await;
        let log = read.map_err(|why| unreadable_events(folder, &why))?;
        let Some(gap) = log.findings.into_iter().next() else { return Ok(()) };
        let message = format!(
            "{folder}: the pass is incomplete: {} Check the free space of the disk, and run it \
             again.",
            gap.message
        );
        self.add_finding(gap.with("pass", folder));
        Err(message)
    }

    /// Checks that the pass in `folder` is whole and generated the tokens of the unprofiled pass.
    pub(super) async fn check_output(&mut self, folder: &str) -> Result<(), String> {
        self.check_events(folder).await?;
        self.compare_tokens(folder).await
    }

    /// Checks that the pass in `folder` generated the tokens of the unprofiled pass. Otherwise its
    /// measurements are not of the timed run.
    pub(super) async fn compare_tokens(&mut self, folder: &str) -> Result<(), String> {
        let message = match self.has_same_tokens(folder).await {
            Ok(Some(true)) => return Ok(()),
            Ok(Some(false)) => {
                format!("{folder}: the pass generated other tokens than the unprofiled pass")
            }
            Ok(None) => format!(
                "{folder}: the pass recorded no tokens, so it cannot be compared with the \
                 unprofiled pass"
            ),
            Err(why) => unreadable_events(folder, &why),
        };
        let finding =
            Finding::new(catalogue::PASS_NOT_PROVEN, &message).with("pass", folder).advise(
                "do not attribute this pass to the timed run; read its log, and check that the \
                 model's repeats agree",
            );
        self.add_finding(finding);
        Err(message)
    }
}

fn unreadable_events(folder: &str, why: &str) -> String {
    format!("{folder}: cannot read the runner's events: {why}")
}

/// Parses the timeline in `dir`, keeps its coverage, and selects kernels.
fn read_timeline(
    dir: &Path,
    expected: ExpectedTimeline,
    Profiling { nsys, ncu, .. }: &Profiling,
) -> Result<ReadTimeline, ParseError> {
    let trace = parse::nsys::read(&dir.join(layout::NSYS_EXPORT))?;
    let trace = apply_rules(trace, expected.rules);
    let logs = ["nsys.stdout.log", "nsys.stderr.log"]
        .map(|name| output::last_lines(&dir.join(layout::LOGS).join(name), MAX_SEARCHED));
    let complains = |line: &String| {
        ["error", "warning", "fail"].iter().any(|word| line.to_lowercase().contains(word))
    };
    let log: Vec<String> = logs.into_iter().flatten().collect();
    let import_error = ImportError::find(&log);
    let log: Vec<String> = log.into_iter().filter(complains).collect();
    let covered = coverage(&trace, expected.ranges);
    let record = serde_json::json!({ "pct": covered.pct(), "coverage": covered });
    // Evidence only; a full disk fails the step elsewhere.
    fs::write(dir.join(layout::NSYS_COVERAGE), record.to_string()).ok();
    let import_errors = import_error
        .as_ref()
        .map(|error| covered.import_errors(error, &trace, nsys.is_system_wide()));
    let quoted = &log[..log.len().min(MAX_QUOTED)];
    let incomplete = covered.finding(expected.kernels, &trace, quoted);
    let selected = kernel_selection::select_kernels(&trace, ncu, expected.program);
    let without_samples = without_samples(nsys, &trace, import_error.as_ref());
    Ok(ReadTimeline { trace, selected, incomplete, import_errors, without_samples })
}

/// The finding that requested samples of the CPU, or switches of threads, are not in the timeline.
fn without_samples(
    settings: &NsysSettings,
    trace: &Timeline,
    import_error: Option<&ImportError>,
) -> Option<Finding> {
    let host = trace.host_cpu.as_ref();
    let lacks_samples =
        settings.sample != CpuScope::None && !host.is_some_and(HostCpu::has_samples);
    let lacks_switches =
        settings.cpuctxsw != CpuScope::None && !host.is_some_and(HostCpu::has_switches);
    let missing = match (lacks_samples, lacks_switches) {
        (false, false) => return None,
        (true, false) => "samples of the CPU",
        (false, true) => "switches of threads",
        (true, true) => "samples of the CPU and switches of threads",
    };
    let message = format!("nsys was to record {missing}, and its report has none");
    let finding = Finding::new(catalogue::CPU_SAMPLES_MISSING, message);
    let Some(error) = import_error else {
        // `cpu_sampling_denied` is the finding of a kernel that forbids it.
        return Some(finding.advise(
            "read the log of the nsys step; a program that ends within a millisecond has none, and \
             a container's seccomp profile may forbid perf_event_open (in Docker: \
             --security-opt seccomp=unconfined)",
        ));
    };
    let unknown =
        || "the import of nsys ended with errors (nsys_import_errors); run again".to_owned();
    let remedy = error.foreign_file(settings.is_system_wide()).unwrap_or_else(unknown);
    let quoted = error.reason.as_ref().unwrap_or(&error.line);
    Some(finding.with("nsys", quoted).advise(remedy))
}

#[cfg(test)]
mod tests;

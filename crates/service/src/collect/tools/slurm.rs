//! Slurm's commands: arguments of sbatch, squeue, scancel and scontrol, and their output.
//!
//! Makes no decisions. No text of a request reaches a shell unquoted: a job's line contains only
//! the program and the run's folder.

use std::{
    io,
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use llmprof_core::domain::ids::RunId;
use tokio::{process::Command, time::timeout};

use crate::{
    collect::process::{argv::Argv, start},
    config::{SlurmSettings, environment},
    runtime,
};

/// Time limit of a command.
const LIMIT: Duration = Duration::from_secs(30);
/// Suffix of the name of a separate analysis job.
const ANALYSIS_SUFFIX: &str = ".analyze";
/// Variables that a job gets from the service. None contains a secret.
const EXPORTED: &str =
    "PATH,HOME,USER,LOGNAME,LANG,LC_ALL,TZ,LD_LIBRARY_PATH,CUDA_HOME,LLMPROF_LOG";
/// Time limit of a job above its run's limit, for start and end: the run ends by itself, and
/// Slurm's limit is the last resort.
const MARGIN: Duration = Duration::from_secs(120);
/// Reason of a job that was requeued too often (MaxBatchRequeue of slurm.conf).
const REQUEUED_TOO_OFTEN: &str = "JobHoldMaxRequeue";
/// Reasons of jobs that Slurm holds because they could not be started. Jobs held by a user are not
/// released.
const HELD: [&str; 2] = ["launch failed requeued held", REQUEUED_TOO_OFTEN];

#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    #[error("cannot start {program}")]
    Start { program: &'static str, source: io::Error },
    #[error("{program} did not respond within {} seconds", LIMIT.as_secs())]
    TimedOut { program: &'static str },
    /// A permanent failure.
    #[error("{program} rejected the job: {message}")]
    Refused { program: &'static str, message: String },
    #[error("{program} failed: {message}")]
    Failed { program: &'static str, message: String },
    #[error("unexpected output of {program}: {output:?}")]
    Unreadable { program: &'static str, output: String },
}

/// One job in squeue's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedJob {
    pub run: RunId,
    /// True for a separate analysis job.
    pub apart: bool,
    pub job: String,
    /// `PENDING`, `RUNNING`, `COMPLETING` and others.
    pub state: String,
    /// `None` for a running job.
    pub reason: Option<String>,
}

impl QueuedJob {
    /// True if Slurm could not start the job and holds it until it is released.
    pub fn is_held(&self) -> bool {
        self.reason.as_ref().is_some_and(|reason| HELD.contains(&reason.replace('_', " ").as_str()))
    }

    /// True if it failed to start so often that it would be held again.
    pub fn is_given_up(&self) -> bool {
        self.reason.as_ref().is_some_and(|reason| reason == REQUEUED_TOO_OFTEN)
    }
}

/// Request of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SbatchSpec<'a> {
    pub run: RunId,
    pub dir: &'a Path,
    pub program: &'a Path,
    pub gpus: u32,
    /// Type of GPU in gres.conf.
    pub kind: Option<&'a str>,
    pub limit: Duration,
    /// Flag of `llmprof execute` for a part of the run.
    pub part: Option<&'static str>,
    /// Job after which this one starts, whatever its result.
    pub after: Option<&'a str>,
}

/// Returns the job's name: the run's id, so that a restarted service finds it.
pub fn name(run: RunId, apart: bool) -> String {
    format!("{run}{}", if apart { ANALYSIS_SUFFIX } else { "" })
}

/// Submits a job.
pub fn sbatch(spec: &SbatchSpec, settings: &SlurmSettings, log: &str) -> Argv {
    let apart = spec.after.is_some();
    let minutes = (spec.limit + MARGIN).as_secs().div_ceil(60);
    let option = |name: &str, value: &str| (!value.is_empty()).then(|| format!("--{name}={value}"));
    let partition = if apart && !settings.analyze_partition.is_empty() {
        &settings.analyze_partition
    } else {
        &settings.partition
    };
    let mut argv = Argv::new("sbatch")
        .arg("--parsable")
        .arg("--requeue")
        .arg("--open-mode=append")
        .arg("--ntasks=1")
        .arg(format!("--job-name={}", name(spec.run, apart)))
        .arg(format!("--chdir={}", spec.dir.display()))
        .arg(format!("--output={}", spec.dir.join(log).display()))
        .arg(format!("--export={EXPORTED}"))
        .arg(format!("--time={minutes}"))
        .args(option("partition", partition))
        .args(option("account", &settings.account))
        .args(option("qos", &settings.qos));
    if apart {
        argv = argv.args(&settings.analyze_extra);
    } else {
        argv = argv
            .args(option("constraint", &settings.constraint))
            .args(settings.exclusive.then_some("--exclusive"));
        if spec.gpus > 0 {
            let kind = spec.kind.map(|kind| format!("{kind}:")).unwrap_or_default();
            argv = argv.arg(format!("--gres=gpu:{kind}{}", spec.gpus));
        }
        argv = argv.args(&settings.extra);
    }
    argv = argv.args(spec.after.map(|job| format!("--dependency=afterany:{job}")));
    let body =
        Argv::new(spec.program).arg("execute").args(spec.part).arg("--run-dir").arg(spec.dir);
    argv.arg(format!("--wrap=exec {}", body.shell()))
}

/// Lists this user's jobs, or one run's jobs.
pub fn squeue(run: Option<RunId>) -> Argv {
    let names = run.map(|run| format!("--name={},{}", name(run, false), name(run, true)));
    Argv::new("squeue").arg("--me").arg("--noheader").arg("--format=%A|%j|%T|%r").args(names)
}

/// Parses squeue's output; other programs' jobs are left out.
pub fn parse_squeue(text: &str) -> Vec<QueuedJob> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<QueuedJob> {
    let mut parts = line.trim().splitn(4, '|');
    let (job, name, state, reason) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let (id, apart) = name.strip_suffix(ANALYSIS_SUFFIX).map_or((name, false), |id| (id, true));
    let reason = Some(reason).filter(|reason| !matches!(*reason, "" | "None")).map(str::to_owned);
    Some(QueuedJob {
        run: id.parse().ok()?,
        apart,
        job: job.to_owned(),
        state: state.to_owned(),
        reason,
    })
}

/// Parses the job number in sbatch's output: `4711`, or `4711;cluster`.
fn parse_submitted(output: &str) -> Option<&str> {
    let job = output.trim().split(';').next()?;
    (!job.is_empty() && job.bytes().all(|byte| byte.is_ascii_digit())).then_some(job)
}

/// Submits a job and returns its number.
pub async fn submit(
    spec: &SbatchSpec<'_>,
    settings: &SlurmSettings,
    log: &str,
) -> Result<String, SlurmError> {
    let output = run("sbatch", &sbatch(spec, settings, log)).await?;
    parse_submitted(&output)
        .map(str::to_owned)
        .ok_or(SlurmError::Unreadable { program: "sbatch", output })
}

/// Returns this user's jobs in the queue, of one run or of all.
pub async fn queued(of: Option<RunId>) -> Result<Vec<QueuedJob>, SlurmError> {
    Ok(parse_squeue(&run("squeue", &squeue(of)).await?))
}

/// Cancels jobs by their numbers; ended jobs are not an error.
pub async fn cancel(jobs: &[String]) -> Result<(), SlurmError> {
    if jobs.is_empty() {
        return Ok(());
    }
    run("scancel", &Argv::new("scancel").arg("--quiet").args(jobs)).await.map(drop)
}

/// Releases a held job.
pub async fn release(job: &str) -> Result<(), SlurmError> {
    run("scontrol", &Argv::new("scontrol").args(["release", job])).await.map(drop)
}

/// Last state of a job, and the exit code of its script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastState {
    pub state: String,
    pub exit_code: Option<u8>,
}

/// Returns the last state of a run's job that has left the queue, from Slurm's accounting or its
/// recent jobs, if still known.
pub async fn last_state(of: RunId, job: &str) -> Option<LastState> {
    let format = "--format=JobName,State,ExitCode";
    let sacct = ["--noheader", "--parsable2", "--allocations", format, "--jobs", job];
    let accounted = run("sacct", &Argv::new("sacct").args(sacct)).await.ok();
    if let Some(state) = accounted.and_then(|text| accounted_state(&text, of)) {
        return Some(state);
    }
    let shown = run("scontrol", &Argv::new("scontrol").args(["--oneliner", "show", "job", job]))
        .await
        .ok()?;
    shown_state(&shown, of)
}

// A controller that lost its state reuses numbers: a job with another name is not the run's.

fn accounted_state(text: &str, of: RunId) -> Option<LastState> {
    let mut jobs = text.lines().filter_map(|line| {
        let (line, exit) = line.rsplit_once('|')?;
        let (job, state) = line.rsplit_once('|')?;
        Some((job, state, exit))
    });
    let (_, state, exit) = jobs.find(|(job, ..)| is_of(job, of))?;
    let state = state.split_whitespace().next()?.to_owned();
    Some(LastState { state, exit_code: exit_code(exit) })
}

fn shown_state(text: &str, of: RunId) -> Option<LastState> {
    let word = |key: &str| text.split_whitespace().find_map(|word| word.strip_prefix(key));
    word("JobName=").filter(|job| is_of(job, of))?;
    let state = word("JobState=")?.to_owned();
    Some(LastState { state, exit_code: word("ExitCode=").and_then(exit_code) })
}

/// Parses `75:0`, the code and the signal.
fn exit_code(text: &str) -> Option<u8> {
    text.split(':').next()?.parse().ok()
}

fn is_of(job: &str, run: RunId) -> bool {
    job == name(run, false) || job == name(run, true)
}

async fn run(program: &'static str, argv: &Argv) -> Result<String, SlurmError> {
    if let Some(answer) = runtime::simulated(|it| it.cluster(program, &argv.args)) {
        return answer.await.map_err(|message| SlurmError::Failed { program, message });
    }
    let mut argv = argv.clone();
    argv.pass = ["SLURM_CONF", "LLMPROF_LOG"].map(str::to_owned).to_vec();
    let mut command = Command::new(&argv.program);
    command.args(&argv.args).env_clear().envs(argv.environment(environment::variables()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = async {
        let (child, _process) = start::spawn(command).await?;
        child.wait_with_output().await
    };
    let Output { status, stdout, stderr } = timeout(LIMIT, output)
        .await
        .map_err(|_| SlurmError::TimedOut { program })?
        .map_err(|source| SlurmError::Start { program, source })?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&stderr);
    let message = errors
        .lines()
        .rfind(|line| !line.trim().is_empty())
        .unwrap_or("no error message")
        .trim()
        .to_owned();
    // A rejection is permanent; connection problems and limits are temporary.
    let rejected = program == "sbatch"
        && (errors.contains("Batch job submission failed") || errors.contains("nvalid"));
    let temporary =
        ["ontact", "onnect", "imed out", "busy", "temporarily", "QOSMaxSubmit", "MaxSubmitJob"]
            .iter()
            .any(|it| errors.contains(it));
    Err(if rejected && !temporary {
        SlurmError::Refused { program, message }
    } else {
        SlurmError::Failed { program, message }
    })
}

/// Returns the first required program of Slurm that is not on PATH.
pub fn missing_program() -> Option<&'static str> {
    let folders = environment::search_path();
    ["sbatch", "squeue", "scancel"].into_iter().find(|name| {
        !folders.iter().any(|folder| crate::collect::tools::is_program(&folder.join(name)))
    })
}

#[cfg(test)]
mod tests;

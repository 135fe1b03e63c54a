//! Slurm's commands: what is said to sbatch, squeue, scancel and scontrol as values, and what they answer.
//!
//! Decides nothing. No text of a request reaches a shell unquoted: a run's folder and the program are all that a job's line holds.

use std::{
    io,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use tokio::{process::Command, time::timeout};

use super::argv::Argv;
use crate::{config::Slurm, run::RunId};

/// Longest that a command may take to answer.
const LIMIT: Duration = Duration::from_secs(30);
/// What the name of the job has after the run's id that analyses apart.
const APART: &str = ".analyze";
/// Variables that a job gets from the service, where they are set. None holds a secret.
const EXPORTED: &str = "PATH,HOME,USER,LOGNAME,LANG,LC_ALL,TZ,LD_LIBRARY_PATH,CUDA_HOME,LLMPROF_LOG";
/// Over the run's own limit, for the job's beginning and end: the run ends by itself and reports; Slurm's limit is the last resort.
const MARGIN: Duration = Duration::from_secs(120);
/// The reason of a job that was begun again too often (MaxBatchRequeue of slurm.conf).
const REQUEUED_TOO_OFTEN: &str = "JobHoldMaxRequeue";
/// Reasons for which Slurm itself holds a job, where it could not be started. That a person holds one is left to that person.
const HELD: [&str; 2] = ["launch failed requeued held", REQUEUED_TOO_OFTEN];

#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    #[error("cannot start {program}")]
    Start { program: &'static str, source: io::Error },
    #[error("{program} did not answer within {} seconds", LIMIT.as_secs())]
    TimedOut { program: &'static str },
    /// Asking again gives the same answer.
    #[error("{program} refuses: {message}")]
    Refused { program: &'static str, message: String },
    #[error("{program} failed: {message}")]
    Failed { program: &'static str, message: String },
    #[error("{program} answered {answer:?}")]
    Unreadable { program: &'static str, answer: String },
}

/// One job as squeue shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedJob {
    pub run: RunId,
    /// The one that analyses apart.
    pub apart: bool,
    pub job: String,
    /// `PENDING`, `RUNNING`, `COMPLETING` and others.
    pub state: String,
    /// `None` of a job that runs.
    pub reason: Option<String>,
}

impl QueuedJob {
    /// Says that Slurm could not start the job, and now keeps it until somebody releases it.
    pub fn is_held(&self) -> bool {
        self.reason.as_ref().is_some_and(|reason| HELD.contains(&reason.replace('_', " ").as_str()))
    }

    /// Says that it has failed to start so often that it would be held again.
    pub fn is_given_up(&self) -> bool {
        self.reason.as_ref().is_some_and(|reason| reason == REQUEUED_TOO_OFTEN)
    }
}

/// What a job asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSpec<'a> {
    pub run: RunId,
    pub dir: &'a Path,
    pub program: &'a Path,
    pub gpus: u32,
    /// A type of GPU, as gres.conf calls it.
    pub kind: Option<&'a str>,
    pub limit: Duration,
    /// What `llmprof execute` is told of the part that it is to do.
    pub part: Option<&'static str>,
    /// The job that this one waits for, whatever becomes of that.
    pub after: Option<&'a str>,
}

/// The job's name: the run's id, so that whoever comes back finds it.
pub fn name(run: RunId, apart: bool) -> String {
    format!("{run}{}", if apart { APART } else { "" })
}

/// The command that submits a job.
pub fn sbatch(spec: &JobSpec, settings: &Slurm, log: &str) -> Argv {
    let apart = spec.after.is_some();
    let minutes = (spec.limit + MARGIN).as_secs().div_ceil(60);
    let given = |name: &str, value: &str| (!value.is_empty()).then(|| format!("--{name}={value}"));
    let partition =
        if apart && !settings.analyze_partition.is_empty() { &settings.analyze_partition } else { &settings.partition };
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
        .args(given("partition", partition))
        .args(given("account", &settings.account))
        .args(given("qos", &settings.qos));
    if apart {
        argv = argv.args(&settings.analyze_extra);
    } else {
        argv = argv.args(given("constraint", &settings.constraint)).args(settings.exclusive.then_some("--exclusive"));
        if spec.gpus > 0 {
            let kind = spec.kind.map(|kind| format!("{kind}:")).unwrap_or_default();
            argv = argv.arg(format!("--gres=gpu:{kind}{}", spec.gpus));
        }
        argv = argv.args(&settings.extra);
    }
    argv = argv.args(spec.after.map(|job| format!("--dependency=afterany:{job}")));
    let body = Argv::new(spec.program).arg("execute").args(spec.part).arg("--run-dir").arg(spec.dir);
    argv.arg(format!("--wrap=exec {}", body.shell()))
}

/// The command that lists this user's jobs, or those of one run.
pub fn squeue(run: Option<RunId>) -> Argv {
    let names = run.map(|run| format!("--name={},{}", name(run, false), name(run, true)));
    Argv::new("squeue").arg("--me").arg("--noheader").arg("--format=%A|%j|%T|%r").args(names)
}

/// The jobs in squeue's answer; those of others are left out.
pub fn parse_squeue(text: &str) -> Vec<QueuedJob> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<QueuedJob> {
    let mut parts = line.trim().splitn(4, '|');
    let (job, name, state, reason) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let (id, apart) = name.strip_suffix(APART).map_or((name, false), |id| (id, true));
    let reason = Some(reason).filter(|reason| !matches!(*reason, "" | "None")).map(str::to_owned);
    Some(QueuedJob { run: id.parse().ok()?, apart, job: job.to_owned(), state: state.to_owned(), reason })
}

/// The number of the job in sbatch's answer: `4711`, or `4711;cluster`.
fn parse_submitted(answer: &str) -> Option<&str> {
    let job = answer.trim().split(';').next()?;
    (!job.is_empty() && job.bytes().all(|byte| byte.is_ascii_digit())).then_some(job)
}

/// Submits a job and returns its number.
pub async fn submit(spec: &JobSpec<'_>, settings: &Slurm, log: &str) -> Result<String, SlurmError> {
    let answer = run("sbatch", &sbatch(spec, settings, log)).await?;
    parse_submitted(&answer).map(str::to_owned).ok_or(SlurmError::Unreadable { program: "sbatch", answer })
}

/// This user's jobs that are in the queue, of one run or of all.
pub async fn queued(of: Option<RunId>) -> Result<Vec<QueuedJob>, SlurmError> {
    Ok(parse_squeue(&run("squeue", &squeue(of)).await?))
}

/// Cancels jobs by their numbers; what has ended already is no failure.
pub async fn cancel(jobs: &[String]) -> Result<(), SlurmError> {
    if jobs.is_empty() {
        return Ok(());
    }
    run("scancel", &Argv::new("scancel").arg("--quiet").args(jobs)).await.map(drop)
}

/// Lets a held job start.
pub async fn release(job: &str) -> Result<(), SlurmError> {
    run("scontrol", &Argv::new("scontrol").args(["release", job])).await.map(drop)
}

/// The state that a run's job which left the queue ended in, where Slurm still knows it: by its accounting, else by its short memory.
pub async fn last_state(of: RunId, job: &str) -> Option<String> {
    let sacct = ["--noheader", "--parsable2", "--allocations", "--format=JobName,State", "--jobs", job];
    let accounted = run("sacct", &Argv::new("sacct").args(sacct)).await.ok();
    if let Some(state) = accounted.and_then(|text| accounted_state(&text, of)) {
        return Some(state);
    }
    let shown = run("scontrol", &Argv::new("scontrol").args(["--oneliner", "show", "job", job])).await.ok()?;
    shown_state(&shown, of)
}

// A controller that lost its state gives numbers away again: what has another name is another's job.

fn accounted_state(text: &str, of: RunId) -> Option<String> {
    let mut jobs = text.lines().filter_map(|line| line.rsplit_once('|'));
    let (_, state) = jobs.find(|(job, _)| is_of(job, of))?;
    state.split_whitespace().next().map(str::to_owned)
}

fn shown_state(text: &str, of: RunId) -> Option<String> {
    let word = |key: &str| text.split_whitespace().find_map(|word| word.strip_prefix(key));
    word("JobName=").filter(|job| is_of(job, of))?;
    word("JobState=").map(str::to_owned)
}

fn is_of(job: &str, run: RunId) -> bool {
    job == name(run, false) || job == name(run, true)
}

async fn run(program: &'static str, argv: &Argv) -> Result<String, SlurmError> {
    let mut argv = argv.clone();
    argv.pass = ["SLURM_CONF", "LLMPROF_LOG"].map(str::to_owned).to_vec();
    let mut command = Command::new(&argv.program);
    command.args(&argv.args).env_clear().envs(argv.environment(std::env::vars_os()));
    command.stdin(Stdio::null()).kill_on_drop(true);
    let Output { status, stdout, stderr } = timeout(LIMIT, command.output())
        .await
        .map_err(|_| SlurmError::TimedOut { program })?
        .map_err(|source| SlurmError::Start { program, source })?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&stderr);
    let message = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing").trim().to_owned();
    // What the controller refuses it says so; what keeps it from answering passes.
    let refused = program == "sbatch" && (said.contains("Batch job submission failed") || said.contains("nvalid"));
    let passes = ["ontact", "onnect", "imed out", "busy", "temporarily", "QOSMaxSubmit", "MaxSubmitJob"]
        .iter()
        .any(|it| said.contains(it));
    Err(if refused && !passes { SlurmError::Refused { program, message } } else { SlurmError::Failed { program, message } })
}

/// The programs that the service needs on its own host, where one is missing.
pub fn missing(path: Option<&std::ffi::OsStr>) -> Option<&'static str> {
    let folders: Vec<PathBuf> = path.map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
    ["sbatch", "squeue", "scancel"]
        .into_iter()
        .find(|name| !folders.iter().any(|folder| super::tools::is_program(&folder.join(name))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn words(argv: &Argv) -> Vec<String> {
        argv.args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect()
    }

    fn spec(run: RunId) -> JobSpec<'static> {
        let (dir, program) = (Path::new("/data/it's/runs"), Path::new("/opt/llmprof"));
        JobSpec { run, dir, program, gpus: 2, kind: Some("h200"), limit: Duration::from_secs(1800), part: None, after: None }
    }

    #[test]
    fn a_job_is_named_by_its_run_and_asks_for_what_is_configured() {
        let run = RunId::now();
        let mut settings = Config::load(None, std::iter::empty()).unwrap().executor.slurm;
        let plain = words(&sbatch(&spec(run), &settings, "out.log"));
        for word in [format!("--job-name={run}"), "--gres=gpu:h200:2".into(), "--time=32".into()] {
            assert!(plain.contains(&word), "{word} is not in {plain:?}");
        }
        assert_eq!(plain.last().unwrap(), r"--wrap=exec /opt/llmprof execute --run-dir '/data/it'\''s/runs'");
        assert!(!plain.iter().any(|word| word.starts_with("--partition") || word == "--exclusive"));
        settings.partition = "gpu".into();
        settings.exclusive = true;
        settings.constraint = "nvlink".into();
        settings.extra = vec!["--comment=a b; $(c)".into()];
        let asked = words(&sbatch(&spec(run), &settings, "out.log"));
        for word in ["--partition=gpu", "--exclusive", "--constraint=nvlink", "--comment=a b; $(c)"] {
            assert!(asked.iter().any(|it| it == word), "{word} is not in {asked:?}");
        }
    }

    #[test]
    fn the_job_that_analyses_waits_for_the_other_and_asks_for_no_gpu() {
        let run = RunId::now();
        let mut settings = Config::load(None, std::iter::empty()).unwrap().executor.slurm;
        (settings.partition, settings.analyze_partition) = ("gpu".into(), "cpu".into());
        let second = JobSpec { gpus: 0, kind: None, after: Some("7"), part: Some("--conclude"), ..spec(run) };
        let words = words(&sbatch(&second, &settings, "out.log"));
        for word in [format!("--job-name={run}.analyze"), "--dependency=afterany:7".into(), "--partition=cpu".into()] {
            assert!(words.contains(&word), "{word} is not in {words:?}");
        }
        assert!(!words.iter().any(|word| word.starts_with("--gres")));
    }

    #[test]
    fn the_queue_is_read_and_jobs_of_others_are_left_out() {
        let run = RunId::now();
        let text = format!(
            "12|{run}|PENDING|Resources\n13|{run}.analyze|PENDING|Dependency\n14|{run}|RUNNING|None\n15|train|RUNNING|None\n\n"
        );
        let jobs = parse_squeue(&text);
        let seen: Vec<_> = jobs.iter().map(|it| (it.job.as_str(), it.apart, it.state.as_str(), it.reason.as_deref())).collect();
        assert_eq!(
            seen,
            [
                ("12", false, "PENDING", Some("Resources")),
                ("13", true, "PENDING", Some("Dependency")),
                ("14", false, "RUNNING", None)
            ]
        );
        assert!(jobs.iter().all(|job| job.run == run));
    }

    #[test]
    fn a_job_that_could_not_be_started_is_told_from_one_that_a_person_holds() {
        let held = |reason: &str| {
            let jobs = parse_squeue(&format!("12|{}|PENDING|{reason}\n", RunId::now()));
            (jobs[0].is_held(), jobs[0].is_given_up())
        };
        assert_eq!(held("launch failed requeued held"), (true, false));
        assert_eq!(held("launch_failed_requeued_held"), (true, false));
        assert_eq!(held("JobHoldMaxRequeue"), (true, true));
        for reason in ["JobHeldUser", "JobHeldAdmin", "job requeued in held state", "Resources", "None"] {
            assert_eq!(held(reason), (false, false), "{reason}");
        }
    }

    #[test]
    fn a_number_that_was_given_away_again_tells_nothing_of_the_job_that_had_it() {
        let (run, other) = (RunId::now(), RunId::now());
        let accounted = format!("{other}|RUNNING\n{run}|CANCELLED by 0\n");
        assert_eq!(accounted_state(&accounted, run).as_deref(), Some("CANCELLED"));
        assert_eq!(accounted_state("train|x|RUNNING\n", run), None);
        let shown = format!("JobId=2 JobName={run} UserId=root(0) JobState=NODE_FAIL Reason=None");
        assert_eq!(shown_state(&shown, run).as_deref(), Some("NODE_FAIL"));
        assert_eq!(shown_state(&shown, other), None);
    }

    #[test]
    fn the_number_of_a_submitted_job_is_read_with_and_without_its_cluster() {
        assert_eq!((parse_submitted("4711\n"), parse_submitted("4711;east\n")), (Some("4711"), Some("4711")));
        assert_eq!((parse_submitted(""), parse_submitted("sbatch: error")), (None, None));
    }
}

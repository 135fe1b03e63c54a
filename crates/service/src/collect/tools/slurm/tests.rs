//! Tests of the arguments of Slurm's commands and of their output.

use super::*;
use crate::config::Config;

fn words(argv: &Argv) -> Vec<String> {
    argv.args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect()
}

fn spec(run: RunId) -> SbatchSpec<'static> {
    let (dir, program) = (Path::new("/data/it's/runs"), Path::new("/opt/llmprof"));
    SbatchSpec {
        run,
        dir,
        program,
        gpus: 2,
        kind: Some("h200"),
        limit: Duration::from_secs(1800),
        part: None,
        after: None,
    }
}

#[test]
fn a_job_has_the_name_of_its_run_and_the_configured_options() {
    let run = RunId::now();
    let mut settings = Config::default().executor.slurm;
    let defaults = words(&sbatch(&spec(run), &settings, "out.log"));
    for word in [format!("--job-name={run}"), "--gres=gpu:h200:2".into(), "--time=32".into()] {
        assert!(defaults.contains(&word), "{word} is not in {defaults:?}");
    }
    assert_eq!(
        defaults.last().unwrap(),
        r"--wrap=exec /opt/llmprof execute --run-dir '/data/it'\''s/runs'"
    );
    assert!(!defaults.iter().any(|word| word.starts_with("--partition") || word == "--exclusive"));
    settings.partition = "gpu".into();
    settings.exclusive = true;
    settings.constraint = "nvlink".into();
    settings.extra = vec!["--comment=a b; $(c)".into()];
    let configured = words(&sbatch(&spec(run), &settings, "out.log"));
    for word in ["--partition=gpu", "--exclusive", "--constraint=nvlink", "--comment=a b; $(c)"] {
        assert!(configured.iter().any(|it| it == word), "{word} is not in {configured:?}");
    }
}

#[test]
fn an_analysis_job_depends_on_the_other_and_requests_no_gpu() {
    let run = RunId::now();
    let mut settings = Config::default().executor.slurm;
    (settings.partition, settings.analyze_partition) = ("gpu".into(), "cpu".into());
    let second =
        SbatchSpec { gpus: 0, kind: None, after: Some("7"), part: Some("--conclude"), ..spec(run) };
    let words = words(&sbatch(&second, &settings, "out.log"));
    for word in [
        format!("--job-name={run}.analyze"),
        "--dependency=afterany:7".into(),
        "--partition=cpu".into(),
    ] {
        assert!(words.contains(&word), "{word} is not in {words:?}");
    }
    assert!(!words.iter().any(|word| word.starts_with("--gres")));
}

#[test]
fn other_jobs_of_the_queue_are_left_out() {
    let run = RunId::now();
    let text = format!(
        "12|{run}|PENDING|Resources\n13|{run}.analyze|PENDING|Dependency\n\
         14|{run}|RUNNING|None\n15|train|RUNNING|None\n\n"
    );
    let jobs = parse_squeue(&text);
    let seen: Vec<_> = jobs
        .iter()
        .map(|it| (it.job.as_str(), it.apart, it.state.as_str(), it.reason.as_deref()))
        .collect();
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
fn a_job_that_could_not_be_started_differs_from_one_held_by_a_user() {
    let held = |reason: &str| {
        let jobs = parse_squeue(&format!("12|{}|PENDING|{reason}\n", RunId::now()));
        (jobs[0].is_held(), jobs[0].is_given_up())
    };
    assert_eq!(held("launch failed requeued held"), (true, false));
    assert_eq!(held("launch_failed_requeued_held"), (true, false));
    assert_eq!(held("JobHoldMaxRequeue"), (true, true));
    for reason in ["JobHeldUser", "JobHeldAdmin", "job requeued in held state", "Resources", "None"]
    {
        assert_eq!(held(reason), (false, false), "{reason}");
    }
}

#[test]
fn a_reused_number_is_not_the_runs_job() {
    let (run, other) = (RunId::now(), RunId::now());
    let state = |state: &str, exit_code| Some(LastState { state: state.into(), exit_code });
    let accounted = format!("{other}|RUNNING|0:0\n{run}|CANCELLED by 0|75:0\n");
    assert_eq!(accounted_state(&accounted, run), state("CANCELLED", Some(75)));
    assert_eq!(accounted_state("train|x|RUNNING|0:0\n", run), None);
    let shown = format!("JobId=2 JobName={run} JobState=NODE_FAIL Reason=None ExitCode=1:0");
    assert_eq!(shown_state(&shown, run), state("NODE_FAIL", Some(1)));
    assert_eq!(shown_state(&shown, other), None);
}

#[test]
fn the_number_of_a_submitted_job_is_read_with_and_without_its_cluster() {
    assert_eq!(
        (parse_submitted("4711\n"), parse_submitted("4711;east\n")),
        (Some("4711"), Some("4711"))
    );
    assert_eq!((parse_submitted(""), parse_submitted("sbatch: error")), (None, None));
}

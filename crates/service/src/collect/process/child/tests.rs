//! Tests with shell scripts as misbehaving children.

use std::path::Path;

use llmprof_core::domain::ids::{FolderId, RunId};
use nix::{sys::stat::Mode, unistd::mkfifo};
use tokio::sync::mpsc;

use super::{super::output::last_lines, *};
use crate::collect::process::orphans::{
    FOLDER_MARKER, MARKER, end_orphans, marked, programs, scratch, targets, variables,
};

/// A script with its folder and limits.
pub(super) struct Case {
    dir: tempfile::TempDir,
    pub(super) argv: Argv,
    pub(super) limits: ProcessLimits,
}

impl Case {
    pub(super) fn new(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut argv = Argv::new("/bin/sh").args(["-c", script]);
        argv.cwd = Some(dir.path().into());
        let limits =
            ProcessLimits::new(RunId::now(), Duration::from_secs(60), CancellationToken::new());
        Self { dir, argv, limits: ProcessLimits { grace: Duration::from_millis(100), ..limits } }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn logs(&self) -> Logs {
        Logs { cap: 200_000, ..Logs::named(self.dir.path(), "child") }
    }

    pub(super) async fn run(&self) -> ExitReason {
        run(&self.argv, &self.logs(), &self.limits).await.unwrap()
    }

    /// Runs the script and stops it after its first output.
    async fn stopped_after_output(&mut self) -> ExitReason {
        let (to, mut from) = mpsc::unbounded_channel();
        self.limits.lines = Some(to);
        let stop = self.limits.stop.clone();
        let (ended, _) = tokio::join!(self.run(), async {
            from.recv().await;
            stop.cancel();
        });
        ended
    }
}

#[tokio::test]
async fn a_program_that_clears_its_environment_is_running_until_it_ends() {
    let program = "env -i /bin/sh -c 'echo started; read line < go'";
    let mut case = Case::new(&format!("{program}; echo ended; read line < never"));
    for pipe in ["go", "never"] {
        mkfifo(&case.path(pipe), Mode::S_IRWXU).unwrap();
    }
    let (to, mut from) = mpsc::unbounded_channel();
    case.limits.lines = Some(to);
    let (run, stop, go) = (case.limits.run, case.limits.stop.clone(), case.path("go"));
    let count = || (marked(run).len(), targets(run).len(), programs(run).len());
    let (_, found) = tokio::join!(case.run(), async {
        from.recv().await;
        let during = count();
        let end = move || std::fs::write(go, "\n");
        runtime::blocking(end).await.unwrap().unwrap();
        from.recv().await;
        let after = count();
        stop.cancel();
        [during, after]
    });
    assert_eq!(found, [(1, 0, 1), (1, 0, 0)], "the profiler is still running");
}

#[tokio::test]
async fn an_exit_code_and_both_outputs_are_kept() {
    let case = Case::new("echo out; echo err >&2; exit 3");
    assert_eq!(case.run().await, ExitReason::Exited(3));
    assert_eq!(last_lines(&case.logs().stdout, 9), ["out"]);
    assert_eq!(case.logs().last_output(9), ["err"]);
}

#[tokio::test]
async fn a_killed_child_reports_the_signal() {
    let ended = Case::new("kill -SEGV $$").run().await;
    assert_eq!(ended, ExitReason::Signalled(11));
    assert_eq!(ended.to_string(), "was ended by SIGSEGV");
}

#[tokio::test]
async fn a_missing_program_is_an_error() {
    let mut case = Case::new("");
    case.argv.program = "/nowhere/at-all".into();
    let error = run(&case.argv, &case.logs(), &case.limits).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(!scratch(case.limits.run).exists());
}

#[tokio::test]
async fn a_child_ends_at_its_deadline() {
    let mut case = Case::new("sleep 1000");
    case.limits.deadline = Instant::now();
    assert_eq!(case.run().await, ExitReason::DeadlinePassed);
    assert_eq!(marked(case.limits.run), []);
}

#[tokio::test]
async fn a_child_that_handles_term_has_time_to_clean_up() {
    let mut case = Case::new(
        "trap 'echo tidy > tidied; exit 0' TERM; echo ready; while :; do sleep 0.01; done",
    );
    case.limits.grace = Duration::from_secs(30);
    assert_eq!(case.stopped_after_output().await, ExitReason::Stopped);
    assert_eq!(last_lines(&case.dir.path().join("tidied"), 1), ["tidy"]);
}

#[tokio::test]
async fn a_child_that_ignores_term_is_killed() {
    let mut case = Case::new("trap '' TERM; echo ready; while :; do sleep 1000; done");
    assert_eq!(case.stopped_after_output().await, ExitReason::Stopped);
    assert_eq!(marked(case.limits.run), []);
}

#[tokio::test]
async fn a_daemon_that_left_its_group_is_found_and_ended() {
    // The daemon keeps the output open and ignores TERM; the child exits once the daemon runs.
    let daemon = "trap \"\" TERM; echo $$ > pid; while :; do sleep 1000; done";
    let case = Case::new(&format!(
        "setsid sh -c '{daemon}' & while [ ! -s pid ]; do sleep 0.01; done; exit 0"
    ));
    assert_eq!(case.run().await, ExitReason::Exited(0));
    assert_eq!(marked(case.limits.run), []);
    let daemon = last_lines(&case.dir.path().join("pid"), 1).remove(0);
    let stat = std::fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "the daemon still runs: {stat}");
}

#[tokio::test]
async fn orphans_of_a_killed_service_are_ended() {
    let run = RunId::now();
    let mut left =
        std::process::Command::new("sleep").arg("1000").envs(variables(run)).spawn().unwrap();
    assert_eq!(end_orphans(RunId::now()), 0, "another run's processes are not touched");
    let copy = RunMark { folder: FolderId(uuid::Uuid::now_v7()), run };
    assert_eq!(end_orphans(copy), 0, "nor are those of a copy of the data folder");
    while marked(run).is_empty() {
        std::hint::spin_loop(); // until `sleep` has its environment
    }
    assert_eq!(end_orphans(run), 1);
    assert_eq!(left.wait().unwrap().signal(), Some(9));
}

#[tokio::test]
async fn a_child_with_unlimited_output_does_not_fill_the_disk() {
    let case = Case::new("head -c 300000000 /dev/zero; echo; echo the end");
    assert_eq!(case.run().await, ExitReason::Exited(0));
    assert!(std::fs::metadata(case.logs().stdout).unwrap().len() < 201_000);
    assert_eq!(last_lines(&case.logs().stdout, 1), ["the end"]);
}

#[tokio::test]
async fn a_child_without_a_waiting_caller_is_ended() {
    let mut case = Case::new("echo ready; sleep 1000");
    let (to, mut from) = mpsc::unbounded_channel();
    case.limits.lines = Some(to);
    let (argv, logs, limits) = (case.argv.clone(), case.logs(), case.limits.clone());
    let waiting = tokio::spawn(async move { run(&argv, &logs, &limits).await });
    from.recv().await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    assert_eq!(marked(case.limits.run), []);
}

#[tokio::test]
async fn a_child_gets_no_secret_of_the_service() {
    let case = Case::new("env | cut -d= -f1 | sort");
    case.run().await;
    let mut allowed: Vec<_> = super::super::argv::PASSED.to_vec();
    allowed.extend([MARKER, FOLDER_MARKER, "TMPDIR"]);
    allowed.extend(["PWD", "SHLVL", "_"]); // set by the shell
    let seen = last_lines(&case.logs().stdout, 100);
    assert!(seen.contains(&MARKER.to_owned()) && seen.contains(&"PATH".to_owned()));
    assert_eq!(
        seen.iter().filter(|name| !allowed.contains(&name.as_str())).collect::<Vec<_>>(),
        [""; 0]
    );
}

#[tokio::test]
async fn temporary_files_are_removed_with_the_child() {
    let case = Case::new("touch $TMPDIR/left && echo $TMPDIR");
    assert_eq!(case.run().await, ExitReason::Exited(0));
    let scratch = last_lines(&case.logs().stdout, 1).remove(0);
    assert!(!scratch.is_empty() && !Path::new(&scratch).exists());
}

#[tokio::test]
async fn a_stopped_run_starts_nothing() {
    let case = Case::new("touch started");
    case.limits.stop.cancel();
    assert_eq!(case.run().await, ExitReason::Stopped);
    assert!(!case.dir.path().join("started").exists());
}

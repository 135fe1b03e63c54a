//! Children that misbehave, each a small shell script.

use tokio::sync::mpsc;

use super::{
    super::{
        output::last_lines,
        sweep::{marked, scratch},
    },
    *,
};

/// A script, the folder it runs in, and what holds it.
struct Case {
    dir: tempfile::TempDir,
    argv: Argv,
    leash: Leash,
}

impl Case {
    fn new(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut argv = Argv::new("/bin/sh").args(["-c", script]);
        argv.cwd = Some(dir.path().into());
        let leash = Leash::new(RunId::now(), Duration::from_secs(60), CancellationToken::new());
        Self { dir, argv, leash: Leash { grace: Duration::from_millis(100), ..leash } }
    }

    fn logs(&self) -> Logs {
        Logs { cap: 200_000, ..Logs::named(self.dir.path(), "child") }
    }

    async fn run(&self) -> Ended {
        run(&self.argv, &self.logs(), &self.leash).await.unwrap()
    }

    /// Runs the script, and stops it when it has said something.
    async fn stopped_when_it_speaks(&mut self) -> Ended {
        let (to, mut from) = mpsc::unbounded_channel();
        self.leash.lines = Some(to);
        let stop = self.leash.stop.clone();
        let (ended, _) = tokio::join!(self.run(), async {
            from.recv().await;
            stop.cancel();
        });
        ended
    }
}

#[tokio::test]
async fn an_exit_code_and_both_outputs_are_kept() {
    let case = Case::new("echo out; echo err >&2; exit 3");
    assert_eq!(case.run().await, Ended::Exited(3));
    assert_eq!(last_lines(&case.logs().stdout, 9), ["out"]);
    assert_eq!(case.logs().last_words(9), ["err"]);
}

#[tokio::test]
async fn a_child_that_was_killed_tells_the_signal() {
    let ended = Case::new("kill -SEGV $$").run().await;
    assert_eq!(ended, Ended::Signalled(11));
    assert_eq!(ended.to_string(), "was ended by SIGSEGV");
}

#[tokio::test]
async fn a_program_that_is_missing_is_an_error() {
    let mut case = Case::new("");
    case.argv.program = "/nowhere/at-all".into();
    let error = run(&case.argv, &case.logs(), &case.leash).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(!scratch(case.leash.run).exists());
}

#[tokio::test]
async fn a_child_ends_at_its_deadline() {
    let mut case = Case::new("sleep 1000");
    case.leash.deadline = Instant::now();
    assert_eq!(case.run().await, Ended::DeadlinePassed);
    assert_eq!(marked(case.leash.run), []);
}

#[tokio::test]
async fn a_child_that_handles_term_has_time_to_tidy_up() {
    let mut case = Case::new("trap 'echo tidy > tidied; exit 0' TERM; echo ready; while :; do sleep 0.01; done");
    case.leash.grace = Duration::from_secs(30);
    assert_eq!(case.stopped_when_it_speaks().await, Ended::Stopped);
    assert_eq!(last_lines(&case.dir.path().join("tidied"), 1), ["tidy"]);
}

#[tokio::test]
async fn a_child_that_ignores_term_is_killed() {
    let mut case = Case::new("trap '' TERM; echo ready; while :; do sleep 1000; done");
    assert_eq!(case.stopped_when_it_speaks().await, Ended::Stopped);
    assert_eq!(marked(case.leash.run), []);
}

#[tokio::test]
async fn a_daemon_that_left_its_group_is_found_and_ended() {
    // The daemon holds the output open and ignores TERM; the child exits well, once the daemon stands.
    let daemon = "trap \"\" TERM; echo $$ > pid; while :; do sleep 1000; done";
    let case = Case::new(&format!("setsid sh -c '{daemon}' & while [ ! -s pid ]; do sleep 0.01; done; exit 0"));
    assert_eq!(case.run().await, Ended::Exited(0));
    assert_eq!(marked(case.leash.run), []);
    let daemon = last_lines(&case.dir.path().join("pid"), 1).remove(0);
    let stat = std::fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "the daemon still runs: {stat}");
}

#[tokio::test]
async fn what_a_killed_service_left_is_swept() {
    let run = RunId::now();
    let mut left = std::process::Command::new("sleep").arg("1000").env(MARKER, run.to_string()).spawn().unwrap();
    assert_eq!(sweep(RunId::now()), 0, "another run's processes are not touched");
    while marked(run).is_empty() {
        std::hint::spin_loop(); // until `sleep` has its environment
    }
    assert_eq!(sweep(run), 1);
    assert_eq!(left.wait().unwrap().signal(), Some(9));
}

#[tokio::test]
async fn a_child_that_floods_its_output_fills_no_disk() {
    let case = Case::new("head -c 300000000 /dev/zero; echo; echo the end");
    assert_eq!(case.run().await, Ended::Exited(0));
    assert!(std::fs::metadata(case.logs().stdout).unwrap().len() < 201_000);
    assert_eq!(last_lines(&case.logs().stdout, 1), ["the end"]);
}

#[tokio::test]
async fn a_child_nobody_waits_for_is_ended() {
    let mut case = Case::new("echo ready; sleep 1000");
    let (to, mut from) = mpsc::unbounded_channel();
    case.leash.lines = Some(to);
    let (argv, logs, leash) = (case.argv.clone(), case.logs(), case.leash.clone());
    let waiting = tokio::spawn(async move { run(&argv, &logs, &leash).await });
    from.recv().await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    assert_eq!(marked(case.leash.run), []);
}

#[tokio::test]
async fn a_child_sees_no_secret_of_the_service() {
    let case = Case::new("env | cut -d= -f1 | sort");
    case.run().await;
    let mut allowed: Vec<_> = super::super::argv::PASSED.to_vec();
    allowed.extend([MARKER, "TMPDIR", "PWD", "SHLVL", "_"]); // the last three are the shell's own
    let seen = last_lines(&case.logs().stdout, 100);
    assert!(seen.contains(&MARKER.to_owned()) && seen.contains(&"PATH".to_owned()));
    assert_eq!(seen.iter().filter(|name| !allowed.contains(&name.as_str())).collect::<Vec<_>>(), [""; 0]);
}

#[tokio::test]
async fn temporary_files_go_with_the_child() {
    let case = Case::new("touch $TMPDIR/left && echo $TMPDIR");
    assert_eq!(case.run().await, Ended::Exited(0));
    let scratch = last_lines(&case.logs().stdout, 1).remove(0);
    assert!(!scratch.is_empty() && !Path::new(&scratch).exists());
}

#[tokio::test]
async fn a_stopped_run_starts_nothing() {
    let case = Case::new("touch started");
    case.leash.stop.cancel();
    assert_eq!(case.run().await, Ended::Stopped);
    assert!(!case.dir.path().join("started").exists());
}

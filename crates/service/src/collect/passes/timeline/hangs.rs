//! Tests of an nsys that does not end after its program.

use super::*;
use crate::artifact::packed::read_own;
use crate::collect::{
    process::stall::StallLimits,
    tests::{RUNNER, TestHost},
};

/// An nsys that records its program, and the first time hangs: before it starts the program, or
/// instead of writing its report.
fn hangs_once(hang: &str, is_before: bool) -> String {
    let script = r#"
case $1 in
profile) while [ "$1" != --output ]; do shift; done; stem=$2; shift 2
  BEFORE; LLMPROF_TARGET=1 "$@" || exit $?; AFTER
  echo report > "$stem.nsys-rep";;
export) while [ "$1" != --output ]; do shift; done; cat "$3" > "$2";;
esac"#;
    let hang = format!(r#"[ -e "$stem.hung" ] || {{ touch "$stem.hung"; {hang}; }}"#);
    let (before, after) = if is_before { (&*hang, ":") } else { (":", &*hang) };
    script.replace("BEFORE", before).replace("AFTER", after)
}

/// Looks a long path up again and again: nearly all of its time is in the kernel.
const SPIN: &str = r#"path=/; while [ ${#path} -lt 4000 ]; do path=$path./; done
    while :; do [ -e "$path" ]; done"#;

/// Computes in user mode.
const COMPUTE: &str = "while :; do :; done";

/// A short limit without progress, and a short one without output.
const IDLE: StallLimits = StallLimits { idle: Duration::from_secs(5), busy: LONG };
const BUSY: StallLimits = StallLimits { idle: LONG, busy: Duration::from_secs(5) };
const LONG: Duration = Duration::from_secs(600);

/// A runner that runs for `seconds`: thirty looks at its processes or more, so that it is seen on a
/// busy machine, too.
fn long_runner(seconds: u64) -> String {
    format!("{RUNNER}\nsleep {seconds}")
}

/// Runs an nsys that hangs once, and returns the message about its first start.
async fn message_of_hang(hang: &str, is_before: bool, stall: StallLimits) -> String {
    let mut host = TestHost::new(&long_runner(3), Some(&hangs_once(hang, is_before)));
    host.collector.stall = stall;
    let recorded = host.timeline().await.unwrap();
    let [again] = &recorded.findings[..] else { panic!("{:?}", recorded.findings) };
    assert_eq!(again.id, "nsys_started_again");
    assert_eq!(again.evidence["starts"], "2");
    let text = again.evidence["nsys"].clone();
    assert!(text.starts_with("nsys did not finish its report: it "), "{text}");
    text
}

#[tokio::test]
async fn an_nsys_that_hangs_after_its_program_is_ended_and_started_again() {
    let (sleeps, spins, computes) = tokio::join!(
        message_of_hang("exec sleep 600", false, IDLE),
        message_of_hang(SPIN, false, IDLE),
        message_of_hang(COMPUTE, false, BUSY),
    );
    let (idle, busy) = ("made no progress", "wrote nothing");
    for (text, failed) in [(sleeps, idle), (spins, idle), (computes, busy)] {
        assert!(text.contains(&format!("{failed} for 5 s after the program had ended")), "{text}");
    }
}

#[tokio::test]
async fn an_nsys_that_hangs_before_its_program_is_not_reported_as_one_that_hangs_after_it() {
    let text = message_of_hang("exec sleep 600", true, IDLE).await;
    assert!(text.contains("for 5 s, and its program was not seen running"), "{text}");
}

/// An nsys that records its program, and whose export hangs.
const EXPORT_HANGS: &str = r#"
case $1 in
profile) while [ "$1" != --output ]; do shift; done; stem=$2; shift 2
  LLMPROF_TARGET=1 "$@" || exit $?; echo report > "$stem.nsys-rep";;
export) HANG;;
esac"#;

/// Returns the error of a pass, or of an import, whose export hangs.
async fn error_of_export(hang: &str, is_import: bool, stall: StallLimits) -> String {
    let mut host = TestHost::new(RUNNER, Some(&EXPORT_HANGS.replace("HANG", hang)));
    host.collector.stall = stall;
    let ended = match is_import {
        true => {
            // The folder of an upload.
            std::fs::create_dir_all(host.run().join("nsys")).unwrap();
            host.collector.export(&host.run(), &host.limits).await
        }
        false => host.timeline().await,
    };
    ended.unwrap_err().to_string()
}

#[tokio::test]
async fn an_export_that_hangs_is_ended_by_the_limits_of_a_pass() {
    let ended = tokio::join!(
        error_of_export("exec sleep 600", false, IDLE),
        error_of_export(COMPUTE, false, BUSY),
        error_of_export(SPIN, true, IDLE),
        error_of_export(COMPUTE, true, BUSY),
    );
    let (idle, busy) = ("made no progress", "used the CPU and wrote nothing");
    for (text, failed) in [(ended.0, idle), (ended.1, busy), (ended.2, idle), (ended.3, busy)] {
        assert!(text.starts_with(&format!("nsys export did not finish: it {failed} ")), "{text}");
        assert!(text.contains(" for 5 s; update nsys"), "{text}");
    }
}

/// An nsys that records its program and hangs, and exits with code 1 if it is started again.
const HANGS_THEN_EXITS: &str = r#"
while [ "$1" != --output ]; do shift; done; stem=$2; shift 2; echo start >> "$stem.starts"
[ $(wc -l < "$stem.starts") = 1 ] || exit 1
LLMPROF_TARGET=1 "$@" || exit $?
exec sleep 600"#;

/// Checks that the hang of a program of `runner_s` is stated after this number of starts.
async fn assert_stated(runner_s: u64, deadline_s: u64, starts: usize) {
    let mut host = TestHost::new(&long_runner(runner_s), Some(HANGS_THEN_EXITS));
    host.collector.stall = IDLE;
    host.limits.deadline = tokio::time::Instant::now() + Duration::from_secs(deadline_s);
    let text = host.timeline().await.unwrap_err().to_string();
    assert!(text.contains("made no progress for 5 s after the program had ended"), "{text}");
    let started = read_own(&host.run().join("nsys/run.starts")).unwrap();
    assert_eq!(started.split(|byte| *byte == b'\n').count() - 1, starts, "{text}");
}

#[tokio::test]
async fn a_hang_is_stated_if_the_next_start_fails_or_cannot_end_before_the_deadline() {
    // A program of 10 s cannot run again in the 9 s that its hang leaves.
    tokio::join!(assert_stated(3, 60, 2), assert_stated(10, 24, 1));
}

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

/// A runner that runs long enough to be seen.
fn long_runner() -> String {
    format!("{RUNNER}\nsleep 1")
}

/// Runs an nsys that hangs once, and returns the message about its first start.
async fn message_of_hang(hang: &str, is_before: bool, stall: StallLimits) -> String {
    let mut host = TestHost::new(&long_runner(), Some(&hangs_once(hang, is_before)));
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
    let (short, long) = (Duration::from_secs(5), Duration::from_secs(600));
    let (idle, busy) = ((short, long, "made no progress"), (long, short, "wrote nothing"));
    for (hang, (idle, busy, failed)) in [("exec sleep 600", idle), (SPIN, idle), (COMPUTE, busy)] {
        let text = message_of_hang(hang, false, StallLimits { idle, busy }).await;
        assert!(text.contains(&format!("{failed} for 5 s after the program had ended")), "{text}");
    }
}

#[tokio::test]
async fn an_nsys_that_hangs_before_its_program_is_not_reported_as_one_that_hangs_after_it() {
    let (idle, busy) = (Duration::from_secs(5), Duration::from_secs(600));
    let text = message_of_hang("exec sleep 600", true, StallLimits { idle, busy }).await;
    assert!(text.contains("for 5 s, and its program was not seen running"), "{text}");
}

/// An nsys that records its program and hangs, and exits with code 1 if it is started again.
const HANGS_THEN_EXITS: &str = r#"
while [ "$1" != --output ]; do shift; done; stem=$2; shift 2; echo start >> "$stem.starts"
[ $(wc -l < "$stem.starts") = 1 ] || exit 1
LLMPROF_TARGET=1 "$@" || exit $?
exec sleep 600"#;

#[tokio::test]
async fn a_hang_is_stated_if_the_next_start_fails_or_cannot_end_before_the_deadline() {
    let stall = StallLimits { idle: Duration::from_secs(5), busy: Duration::from_secs(600) };
    // A program of 5 s cannot run again in the 5 s that its hang leaves.
    for (runner_s, deadline_s, starts) in [(1, 60, 2), (5, 15, 1)] {
        let mut host =
            TestHost::new(&format!("{RUNNER}\nsleep {runner_s}"), Some(HANGS_THEN_EXITS));
        host.collector.stall = stall;
        let deadline = Duration::from_secs(deadline_s);
        host.limits.deadline = tokio::time::Instant::now() + deadline;
        let text = host.timeline().await.unwrap_err().to_string();
        assert!(text.contains("made no progress for 5 s after the program had ended"), "{text}");
        let started = read_own(&host.run().join("nsys/run.starts")).unwrap();
        assert_eq!(started.split(|byte| *byte == b'\n').count() - 1, starts, "{text}");
    }
}

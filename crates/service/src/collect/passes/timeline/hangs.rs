//! Tests of an nsys that does not end after its program.

use super::*;
use crate::collect::tests::{RUNNER, TestHost};

/// An nsys that records its program, and the first time hangs instead of writing its report.
fn hangs_once(hang: &str) -> String {
    let script = r#"
case $1 in
profile) while [ "$1" != --output ]; do shift; done; stem=$2; shift 2; "$@" || exit $?
  [ -e "$stem.hung" ] || { touch "$stem.hung"; HANG; }
  echo report > "$stem.nsys-rep";;
export) while [ "$1" != --output ]; do shift; done; cat "$3" > "$2";;
esac"#;
    script.replace("HANG", hang)
}

/// Looks a long path up again and again: nearly all of its time is in the kernel.
const SPIN: &str = r#"path=/; while [ ${#path} -lt 4000 ]; do path=$path./; done
    while :; do [ -e "$path" ]; done"#;

#[tokio::test]
async fn an_nsys_that_hangs_after_its_program_is_ended_and_started_again() {
    for hang in ["exec sleep 600", SPIN] {
        let mut host = TestHost::new(RUNNER, Some(&hangs_once(hang)));
        host.collector.stalled_after = Duration::from_secs(5);
        let recorded = host.timeline().await.unwrap();
        let [again] = &recorded.findings[..] else { panic!("{:?}", recorded.findings) };
        assert_eq!(again.id, "nsys_started_again");
        assert_eq!(again.evidence["starts"], "2");
        assert!(again.evidence["nsys"].contains("made no progress for 5 s"), "{again:?}");
    }
}

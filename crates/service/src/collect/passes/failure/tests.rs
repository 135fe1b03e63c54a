//! Tests of the messages about passes that failed.

use super::*;
use crate::artifact::dropped_files::TEMPORARY_FILES;

#[test]
fn a_server_whose_command_succeeds_has_to_stay_in_the_foreground() {
    for (what, ended, is_refused) in [
        (THE_SERVER, ExitReason::Exited(0), true),
        (SESSION_SERVER, ExitReason::Exited(0), true),
        (THE_SERVER, ExitReason::Exited(4), false),
        (THE_SERVER, ExitReason::Stopped, false),
        ("the client", ExitReason::Exited(0), false),
    ] {
        let error = CollectError::Ended { what, ended, last_words: vec!["started".into()] };
        let message = error.to_string();
        assert!(message.starts_with(what) && !message.contains('\n'), "{message}");
        assert_eq!(message.contains("in the foreground"), is_refused, "{message}");
    }
}

#[test]
fn a_deadline_after_the_end_of_the_program_is_an_unfinished_report_with_its_remedy() {
    let ended = |ended| CollectError::Ended {
        what: "nsys profile",
        ended,
        last_words: vec!["a line of the program".into()],
    };
    let after = |reason, s| ended(reason).of_profiler(Some(Duration::from_secs(s)));
    let unfinished = after(ExitReason::DeadlinePassed, 90);
    let message = unfinished.to_string();
    assert!(message.starts_with("nsys did not finish its report: "), "{message}");
    assert!(message.contains("90 s after the end of the program"), "{message}");
    assert!(message.contains("nsys.sample") && !message.contains("a line of"), "{message}");
    assert_eq!(unfinished.ended(), Some(ExitReason::DeadlinePassed));
    assert_eq!(unfinished.finding().unwrap().id, "run_out_of_time");
    for error in [
        after(ExitReason::DeadlinePassed, 0),
        after(ExitReason::Exited(1), 90),
        ended(ExitReason::DeadlinePassed).of_profiler(None),
    ] {
        assert!(matches!(error, CollectError::Ended { .. }), "{error}");
    }
}

#[test]
fn a_limit_in_time_has_no_line_of_the_log_as_its_reason_unless_it_is_an_error() {
    let info = "2026-11-30T01:37:57Z  INFO llmprof_runner::run: loaded parameters=4100000";
    let error = "RuntimeError: CUDA error: an illegal memory access was encountered";
    let last_words = |line: &str| vec!["Error: an earlier one".to_owned(), line.to_owned()];
    let ended = |ended, line| {
        let last_words = last_words(line);
        CollectError::Ended { what: "the model runner", ended, last_words }.to_string()
    };
    let not_ready = |line| {
        let (how, last_words) = ("no 2xx response".to_owned(), last_words(line));
        CollectError::NotReady { how, within_s: 1, last_words }.to_string()
    };
    let passed = ExitReason::DeadlinePassed;
    assert_eq!(ended(passed, info), format!("the model runner {passed}"));
    assert_eq!(ended(passed, error), format!("the model runner {passed}: {error}"));
    assert!(not_ready(info).ends_with("no 2xx response"), "{}", not_ready(info));
    assert!(not_ready(error).ends_with(error), "{}", not_ready(error));
    assert!(ended(ExitReason::Exited(1), info).ends_with(info), "an exit has its last line");
}

#[test]
fn a_hang_is_after_the_program_only_if_the_program_was_seen() {
    let after = Duration::from_secs(20);
    for stall in [Stall::Idle(after), Stall::Busy(after)] {
        for target_seen in [true, false] {
            let message = CollectError::Hung { stall, target_seen }.to_string();
            let parts = [" for 20 s after the program had ended", "record less"];
            for part in parts {
                assert_eq!(message.contains(part), target_seen, "{message}");
            }
            let is_unseen = message.contains("its program was not seen running");
            assert_eq!(is_unseen, !target_seen, "{message}");
            assert!(message.contains("nsys.sample"), "{message}");
        }
    }
}

#[test]
fn an_exceeded_quota_is_stated_with_its_size() {
    for (max_bytes, shown) in [
        (1 << 20, "(1.0 MB)"),
        (999_000_000, "(999.0 MB)"),
        (2_000_000_000, "(2.0 GB)"),
        (40_000_000_000, "(40.0 GB)"),
    ] {
        let (what, pass) = ("ncu", "ncu/process-1".to_owned());
        let error = CollectError::TooLarge { what, pass, max_bytes, dropped: vec![] };
        let message = error.finding().unwrap().message.clone();
        assert!(message.contains(&format!("disk quota exceeded {shown}")), "{message}");
    }
}

#[test]
fn the_remedy_of_an_exceeded_quota_is_of_the_dropped_files() {
    let advice = |what, pass: &str, path: &str| {
        let dropped = vec![(path.to_owned(), 9)];
        let error = CollectError::TooLarge { what, pass: pass.to_owned(), max_bytes: 1, dropped };
        error.finding().unwrap().advice.clone().unwrap()
    };
    let of_program = advice("nsys profile", "nsys", "nsys/out/big.bin");
    assert!(!of_program.contains("profiling."), "{of_program}");
    let of_tool = advice("the server", "nsys", TEMPORARY_FILES);
    assert!(of_tool.contains("profiling.nsys"), "{of_tool}");
    let of_runner = advice("the model runner", "baseline", "baseline/events.jsonl");
    assert!(of_runner.contains("profiling.runner.operators=[]"), "{of_runner}");
}

//! Tests of the unprofiled pass with failing runners.

use std::fs;

use super::*;
use crate::collect::{
    ChildLine, ExitReason,
    process::disk_quota::DiskQuota,
    tests::{RUNNER, TestHost, settings},
};

#[tokio::test]
async fn the_unprofiled_pass_leaves_request_command_events_and_output() {
    let mut host = TestHost::new(RUNNER, None);
    let (to, mut from) = tokio::sync::mpsc::unbounded_channel();
    host.limits.lines = Some(to);
    host.baseline().await.unwrap();
    assert_eq!(host.runner_request(layout::BASELINE), host.request());
    for file in [
        "baseline/events.jsonl",
        "baseline/cmd.txt",
        "logs/baseline.stdout.log",
        "logs/baseline.stderr.log",
    ] {
        assert!(host.run().join(file).is_file(), "{file}");
    }
    assert!(
        matches!(from.try_recv(), Ok(ChildLine::Progress(progress)) if progress.phase == "measure")
    );
}

#[tokio::test]
async fn a_runner_that_fails_is_quoted() {
    let host = TestHost::new("echo loading; echo image x.png is corrupt >&2; exit 2", None);
    let error = host.baseline().await.unwrap_err();
    assert_eq!(error.to_string(), "the model runner exited with code 2: image x.png is corrupt");
    assert_eq!(error.ended(), Some(ExitReason::Exited(2)));
    assert!(host.run().join("logs/baseline.stdout.log").is_file(), "the logs are kept");
}

#[tokio::test]
async fn a_missing_library_of_the_runner_is_named_with_the_remedy() {
    let loader = "error while loading shared libraries: libcuda.so.1: cannot open shared object \
                  file: No such file or directory";
    let host = TestHost::new(&format!("echo \"$0: {loader}\" >&2; exit 127"), None);
    let error = host.baseline().await.unwrap_err();
    let message = error.to_string();
    assert!(
        message.starts_with("the model runner cannot start: libcuda.so.1 is missing: "),
        "{message}"
    );
    assert!(message.contains("install the driver") && message.lines().count() == 1, "{message}");
    assert_eq!(error.ended(), Some(ExitReason::Exited(127)));
    assert!(error.last_words()[0].ends_with(loader));
}

#[tokio::test]
async fn exit_0_and_empty_is_a_failure() {
    let error = TestHost::new("exit 0", None).baseline().await.unwrap_err();
    assert_eq!(error.to_string(), "the model runner exited with code 0 but left no events.jsonl");
}

#[tokio::test]
async fn a_missing_runner_is_named() {
    let mut host = TestHost::new(RUNNER, None);
    host.collector.runner = "/nowhere/model-runner".into();
    let error = anyhow::Error::from(host.baseline().await.unwrap_err());
    assert_eq!(
        format!("{error:#}"),
        "cannot run /nowhere/model-runner: No such file or directory (os error 2)"
    );
}

#[tokio::test]
async fn a_second_attempt_starts_with_an_empty_folder() {
    let host = TestHost::new("exit 0", None);
    fs::create_dir_all(host.run().join("baseline")).unwrap();
    fs::write(host.run().join("baseline/events.jsonl"), "of the first attempt").unwrap();
    host.baseline().await.unwrap_err();
}

#[tokio::test]
async fn dropped_files_have_their_paths_in_the_run_also_in_the_folder_of_a_mock() {
    let large = "while [ $# -gt 0 ]; do case $1 in --out) out=$2; shift;; esac; shift; done
                 truncate -s 4000000 \"$out/events.jsonl\"; exec sleep 1000";
    let mut host = TestHost::new(large, None);
    host.limits.quota = Some(DiskQuota { dir: host.run(), max_bytes: 2_000_000, free_bytes: 0 });
    for (side, path) in
        [("", "baseline/events.jsonl"), (layout::MOCK, "mock/baseline/events.jsonl")]
    {
        let (dir, nvml) = (host.run().join(side), settings().nvml);
        fs::create_dir_all(&dir).unwrap();
        let (collector, request) = (&host.collector, host.request());
        let error = collector.baseline(&dir, &request, &nvml, &host.limits).await.unwrap_err();
        let dropped = format!("dropped: {path} (4000000 bytes)");
        assert!(error.to_string().ends_with(&dropped), "{error}");
        let finding = error.finding().unwrap();
        assert_eq!(finding.evidence[path], "4000000 bytes, dropped");
        assert!(dir.join("baseline/dropped.txt").is_file());
    }
}

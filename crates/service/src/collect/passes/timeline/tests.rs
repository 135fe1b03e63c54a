//! Tests of the timeline pass with nsys scripts that fail in known ways.

use std::fs;

use llmprof_core::domain::profiling::CpuScope;

use super::*;
use crate::collect::{
    process::disk_quota::DiskQuota,
    tests::{NSYS, RUNNER, TestHost, program, settings},
};

#[tokio::test]
async fn the_timeline_pass_runs_once_and_leaves_report_export_and_commands() {
    let host = TestHost::new(RUNNER, Some(NSYS));
    assert_eq!(host.timeline().await.unwrap().findings, []);
    let request = host.runner_request(layout::NSYS);
    assert_eq!((request.repeats, request.warmup, request.ceilings), (1, 1, false));
    for file in [
        layout::NSYS_REPORT,
        layout::NSYS_EXPORT,
        "nsys/events.jsonl",
        "logs/nsys.stdout.log",
        "logs/nsys-export.stderr.log",
    ] {
        assert!(host.run().join(file).is_file(), "{file}");
    }
    let commands = fs::read_to_string(host.run().join(layout::NSYS_COMMAND)).unwrap();
    let commands: Vec<_> = commands.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
    assert_eq!(commands, ["profile", "export"]);
}

#[tokio::test]
async fn without_nsys_there_is_no_timeline() {
    let error = TestHost::new(RUNNER, None).timeline().await.unwrap_err();
    assert!(matches!(error, CollectError::NotInstalled { tool: "nsys" }));
}

#[tokio::test]
async fn an_nsys_that_exits_0_and_leaves_nothing_is_quoted() {
    let host = TestHost::new(RUNNER, Some("echo 'Importer error status: broken' >&2"));
    let error = host.timeline().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "nsys profile exited with code 0 but left no nsys/run.nsys-rep: Importer error status: \
         broken"
    );
}

#[test]
fn only_a_target_that_ended_within_the_delay_is_reported_as_early() {
    let lines = || vec!["last line".to_owned()];
    let empty =
        || CollectError::Empty { what: "nsys profile", file: "x".into(), last_words: lines() };
    let ended = || CollectError::Ended {
        what: "nsys profile",
        ended: ExitReason::Exited(3),
        last_words: lines(),
    };
    let s = |seconds: f64| Duration::from_secs_f64(seconds);
    let early = |error: CollectError, ran: Option<f64>, elapsed: f64| {
        let text = error.of_delayed(1, ran.map(s), s(elapsed)).to_string();
        text.starts_with("the program ended before recording started (delay 1 s").then_some(text)
    };
    let unknown = |error: CollectError| error.of_delayed(0, Some(s(0.2)), s(0.5)).to_string();
    assert!(unknown(empty()).starts_with("nsys profile exited with code 0"), "without a delay");
    let text = early(empty(), Some(0.2), 3.0).unwrap();
    assert!(text.contains("(delay 1 s, runtime 0.2 s): it exited with code 0; set"), "{text}");
    let text = early(ended(), Some(0.2), 3.0).unwrap();
    assert!(text.contains("it exited with code 3: last line; set nsys.delay_s"), "{text}");
    // The start of nsys counts: without a report, nothing was recorded.
    for ran in [0.99, 1.0, 1.03, 1.99] {
        let text = early(empty(), Some(ran), 3.0).unwrap();
        assert!(text.contains("set nsys.delay_s to at least 1 s less than its runtime"), "{text}");
    }
    let text = early(empty(), None, 0.5).unwrap();
    assert!(text.contains("(delay 1 s, runtime at most 0.5 s): it exited"), "{text}");
    for (error, ran, elapsed) in [
        (empty(), Some(2.0), 3.0),
        (empty(), None, 2.5),
        (ended(), Some(1.2), 1.5),
        // nsys may have failed by itself.
        (ended(), None, 0.5),
    ] {
        assert_eq!(early(error, ran, elapsed), None, "{ran:?} {elapsed}");
    }
}

/// An nsys that loses its helper process in the first `times` profiles.
fn losing_helper(times: u32) -> TestHost {
    let lose = format!(
        "if [ $1 = profile ]; then echo try >> \"${{0%/*}}/tries\"; \
         if [ $(wc -l < \"${{0%/*}}/tries\") -le {times} ]; then \
         echo 'Connection to the Agent lost.' >&2; exit 0; fi; fi\n{NSYS}"
    );
    TestHost::new(RUNNER, Some(&lose))
}

#[tokio::test]
async fn an_nsys_that_lost_its_helper_is_started_again_with_a_finding() {
    let pass = losing_helper(2).timeline().await.unwrap();
    let found: Vec<_> =
        pass.findings.iter().map(|it| (it.id.as_str(), it.evidence["starts"].as_str())).collect();
    assert_eq!(found, [("nsys_started_again", "3")]);
}

#[tokio::test]
async fn an_nsys_that_loses_its_helper_each_time_fails_after_three() {
    let host = losing_helper(99);
    let error = host.timeline().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "nsys profile exited with code 0 but left no nsys/run.nsys-rep: Connection to the Agent \
         lost."
    );
    assert_eq!(fs::read_to_string(host.dir.path().join("bin/tries")).unwrap().lines().count(), 3);
}

/// An nsys whose command `command` fails with `message` the first time.
fn failing_once(command: &str, message: &str) -> TestHost {
    let lose = format!(
        "if [ $1 = {command} ] && mkdir \"${{0%/*}}/tried\" 2>/dev/null; then \
         echo '{message}' >&2; exit 1; fi\n{NSYS}"
    );
    TestHost::new(RUNNER, Some(&lose))
}

#[tokio::test]
async fn an_end_of_file_between_the_processes_of_nsys_is_retried() {
    for command in ["profile", "export"] {
        let pass = failing_once(command, "Error: End of file").timeline().await.unwrap();
        let found: Vec<_> =
            pass.findings.iter().map(|it| (it.id.as_str(), it.evidence["nsys"].as_str())).collect();
        assert_eq!(found, [("nsys_started_again", "Error: End of file")], "{command}");
        let error = failing_once(command, "no space left").timeline().await.unwrap_err();
        assert!(error.to_string().contains("no space left"), "{error}");
    }
}

#[tokio::test]
async fn a_report_of_a_newer_nsys_is_rejected_with_both_versions_and_the_remedy() {
    let host = TestHost::new(
        RUNNER,
        Some(
            "case $1 in --version) echo 'NVIDIA Nsight Systems version 2022.4.2.1-df9881f';; \
             export) echo 'Version number is invalid: 2025@6@1' >&2; exit 1;; esac",
        ),
    );
    fs::create_dir_all(host.run().join("nsys")).unwrap();
    let error = host.collector.export(&host.run(), &host.limits).await.unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("nsys 2025.6.1")
            && message.contains("(2022.4.2.1-df9881f)")
            && message.contains("nsys export --type sqlite"),
        "{message}"
    );
    assert_eq!(error.finding().unwrap().id, "nsys_report_newer");
}

/// An nsys that leaves raw data, because it does not find its importer in NVIDIA's layout.
fn unlinked(importer: &str) -> TestHost {
    let mut host = TestHost::new(
        RUNNER,
        Some(
            &NSYS
                .replace("nsys-rep;;", "qdstrm; echo 'importer not found' >&2;;")
                .replace(".nsys-rep", ".qdstrm"),
        ),
    );
    let root = host.dir.path().join("nsight");
    program(&root.join("host-linux-x64/QdstrmImporter"), importer);
    fs::create_dir(root.join("target-linux-x64")).unwrap();
    let nsys = root.join("target-linux-x64/nsys");
    fs::rename(host.dir.path().join("bin/nsys"), &nsys).unwrap();
    host.collector.nsys = Some(nsys);
    host
}

#[tokio::test]
async fn raw_data_is_imported_where_the_importer_is_found() {
    let host = unlinked(r#"cat "$3" > "$5""#);
    let pass = host.timeline().await.unwrap();
    assert_eq!(
        pass.findings.iter().map(|f| f.id.as_str()).collect::<Vec<_>>(),
        ["nsys_importer_unlinked"]
    );
    assert!(
        host.run().join(layout::NSYS_EXPORT).is_file()
            && !host.run().join("nsys/run.qdstrm").exists()
    );
}

#[tokio::test]
async fn a_failed_importer_is_quoted() {
    let error = unlinked("echo incompatible stream >&2; exit 1").timeline().await.unwrap_err();
    assert_eq!(error.to_string(), "QdstrmImporter exited with code 1: incompatible stream");
    let error = unlinked("echo done").timeline().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "QdstrmImporter exited with code 0 but left no run.nsys-rep: done"
    );
}

/// Limits the size of the run.
fn limit_size(host: &mut TestHost, max_bytes: u64) {
    host.limits.quota = Some(DiskQuota { dir: host.run(), max_bytes, free_bytes: 0 });
    host.limits.grace = Duration::from_millis(100);
}

#[tokio::test]
async fn a_tool_that_exceeds_the_quota_is_ended_and_its_raw_data_removed() {
    let endless = r#"while [ "$1" != --output ]; do shift; done; stem=$2; shift 2; "$@" || exit $?
head -c 3000000 /dev/zero > "$stem.nsys-rep"; exec sleep 1000"#;
    let mut host = TestHost::new(RUNNER, Some(endless));
    limit_size(&mut host, 2_000_000);
    let error = host.timeline().await.unwrap_err();
    assert_eq!(error.ended(), Some(ExitReason::QuotaExceeded { temporary: 0 }));
    assert_eq!(
        error.to_string(),
        "nsys profile was ended: disk quota exceeded (2.0 MB); dropped: nsys/run.nsys-rep \
         (3000000 bytes)"
    );
    let finding = error.finding().unwrap();
    assert_eq!(
        (finding.id.as_str(), finding.evidence["nsys/run.nsys-rep"].as_str()),
        ("run_too_large", "3000000 bytes, dropped")
    );
    assert!(
        !host.run().join(layout::NSYS_REPORT).exists()
            && host.run().join("nsys/events.jsonl").is_file()
    );
    assert!(
        fs::read_to_string(host.run().join("nsys/dropped.txt"))
            .unwrap()
            .contains("run.nsys-rep: 3000000 bytes")
    );
}

#[tokio::test]
async fn a_tool_is_ended_on_a_nearly_full_disk_and_its_raw_data_removed() {
    let endless = r#"while [ "$1" != --output ]; do shift; done; stem=$2; shift 2; "$@" || exit $?
head -c 3000000 /dev/zero > "$stem.nsys-rep"; exec sleep 1000"#;
    let mut host = TestHost::new(RUNNER, Some(endless));
    limit_size(&mut host, 1 << 40);
    // More than any disk has free: the tool is ended at the first check.
    host.limits.quota.as_mut().unwrap().free_bytes = u64::MAX;
    let error = host.timeline().await.unwrap_err();
    assert_eq!(
        (error.ended(), error.finding().unwrap().id.as_str()),
        (Some(ExitReason::DiskFull), "disk_full")
    );
    assert!(
        error
            .to_string()
            .starts_with("nsys profile was ended because the disk of the runs is nearly full"),
        "{error}"
    );
    assert!(!host.run().join(layout::NSYS_REPORT).exists());
}

#[tokio::test]
async fn temporary_files_and_large_exports_count_towards_the_quota() {
    let mut host = TestHost::new(
        RUNNER,
        Some(r#"head -c 3000000 /dev/zero > "$TMPDIR/raw"; exec sleep 1000"#),
    );
    limit_size(&mut host, 2_000_000);
    let error = host.timeline().await.unwrap_err();
    assert_eq!(error.ended(), Some(ExitReason::QuotaExceeded { temporary: 0 }));
    let finding = error.finding().unwrap();
    assert_eq!(finding.evidence["temporary files of the tool"], "3000000 bytes, dropped");
    let note = fs::read_to_string(host.run().join("nsys/dropped.txt")).unwrap();
    assert!(note.contains("temporary files of the tool: 3000000 bytes"), "{note}");
    let mut host = TestHost::new(
        RUNNER,
        Some(&NSYS.replace(r#"cat "$3" > "$2""#, r#"head -c 3000000 /dev/zero > "$2""#)),
    );
    limit_size(&mut host, 2_000_000);
    let error = host.timeline().await.unwrap_err();
    assert!(
        error.to_string().starts_with("nsys export was ended: disk quota exceeded (2.0 MB)"),
        "{error}"
    );
    assert!(
        !host.run().join(layout::NSYS_EXPORT).exists()
            && !host.run().join(layout::NSYS_REPORT).exists()
    );
}

#[tokio::test]
async fn a_hanging_tool_is_ended_at_its_deadline_with_a_finding() {
    let mut host = TestHost::new(RUNNER, Some("exec sleep 1000"));
    host.limits.deadline = tokio::time::Instant::now() + Duration::from_millis(200);
    let error = host.timeline().await.unwrap_err();
    assert_eq!(
        (error.ended(), error.finding().unwrap().id.as_str()),
        (Some(ExitReason::DeadlinePassed), "run_out_of_time")
    );
}

/// An nsys whose program leaves a child behind: it exits when that child has been reaped, as the
/// real one does.
const PATIENT: &str = r#"
case $1 in
profile) while [ "$1" != --output ]; do shift; done; stem=$2; shift 2; "$@" || exit $?
  setsid sh -c 'sleep 0.1 & echo $! > "$0"' "$stem.left"
  while [ -e "/proc/$(cat "$stem.left")" ]; do sleep 0.05; done
  echo report > "$stem.nsys-rep";;
export) while [ "$1" != --output ]; do shift; done; cat "$3" > "$2";;
esac"#;

#[tokio::test]
async fn an_orphan_in_its_own_process_tree_is_reaped() {
    let mut host = TestHost::new(RUNNER, Some(PATIENT));
    host.collector.isolate = true;
    host.timeline().await.unwrap();
}

/// An nsys that records the options of its profile next to its report, and leaves its raw data.
const OBSERVED: &str = r#"
case $1 in
profile) options=$*; while [ "$1" != --output ]; do shift; done; stem=$2; shift 2; "$@" || exit $?
  echo "$options" > "$stem.options"; readlink /proc/self/ns/pid > "$stem.namespace"
  echo raw > "$stem.qdstrm"; echo report > "$stem.nsys-rep";;
export) while [ "$1" != --output ]; do shift; done; cat "$3" > "$2";;
esac"#;

/// Deep settings that sample all processes.
fn system_wide() -> NsysSettings {
    let (sample, cpuctxsw) = (CpuScope::SystemWide, CpuScope::ProcessTree);
    NsysSettings { sample, cpuctxsw, ..settings().nsys }
}

async fn observed(host: &TestHost, pass: &NsysPass<'_>) -> Result<Pass, CollectError> {
    host.collector.nsys(&host.run(), &host.request(), pass, &host.limits).await
}

/// A text file of a pass.
fn text(host: &TestHost, pass: &NsysPass<'_>, file: &str) -> String {
    fs::read_to_string(host.run().join(pass.folder()).join(file)).unwrap()
}

#[tokio::test]
async fn a_system_wide_pass_sees_the_processes_of_the_host_and_states_it() {
    let mut host = TestHost::new(RUNNER, Some(OBSERVED));
    host.collector.isolate = true;
    let wide = system_wide();
    let timeline = NsysPass::timeline(&wide);
    let recorded = observed(&host, &timeline).await.unwrap();
    let findings: Vec<_> = recorded.findings.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(findings, ["nsys_sees_environments"]);
    let advice = recorded.findings[0].advice.as_deref().unwrap();
    assert!(advice.contains("do not share") && advice.contains("process-tree"), "{advice}");
    let files = recorded.findings[0].evidence["files of nsys"].as_str();
    assert_eq!(files, "nsys/run.nsys-rep, nsys/run.sqlite");
    let named = ["report.json", "report.html", "report.md", "tables.jsonl"];
    named
        .into_iter()
        .chain(["timeline.perfetto-trace.gz"])
        .for_each(|file| assert!(advice.contains(file), "{file}: {advice}"));
    let own = fs::read_link("/proc/self/ns/pid").unwrap();
    assert_eq!(text(&host, &timeline, "run.namespace").trim(), own.to_str().unwrap());
    let command = text(&host, &timeline, layout::COMMAND);
    assert!(!command.contains("unshare"), "{command}");
    let options = text(&host, &timeline, "run.options");
    assert!(options.contains("--sample=system-wide --cpuctxsw=process-tree"), "{options}");
}

#[tokio::test]
async fn a_pass_that_samples_metrics_samples_no_process_and_keeps_its_process_tree() {
    let mut host = TestHost::new(RUNNER, Some(OBSERVED));
    host.collector.isolate = true;
    host.collector.system_wide_sampling = false;
    let wide = system_wide();
    let metrics = Some(SampledPass { rate_hz: 10_000, repeats: 1, max_new_tokens: 1 });
    let pass = NsysPass { settings: &wide, metrics };
    let exposed = observed(&host, &pass).await.unwrap().findings.pop();
    let options = text(&host, &pass, "run.options");
    assert!(options.contains("--sample=none --cpuctxsw=none"), "{options}");
    // A host without namespaces is named as the reason.
    let isolated = text(&host, &pass, layout::COMMAND).contains("unshare");
    let advice = exposed.and_then(|it| it.advice.clone()).unwrap_or_default();
    assert!(isolated != advice.contains("namespaces"), "{advice}");
}

#[tokio::test]
async fn all_processes_are_not_sampled_if_the_operator_forbids_it() {
    let mut host = TestHost::new(RUNNER, Some(OBSERVED));
    host.collector.system_wide_sampling = false;
    let wide = system_wide();
    let error = observed(&host, &NsysPass::timeline(&wide)).await.unwrap_err();
    assert!(matches!(error, CollectError::SamplingForbidden { .. }), "{error}");
    assert!(error.to_string().contains("tools.system_wide_sampling"), "{error}");
    assert!(!host.run().join("nsys/run.options").exists(), "nsys was not started");
    let tree = NsysSettings { sample: CpuScope::ProcessTree, ..wide };
    observed(&host, &NsysPass::timeline(&tree)).await.unwrap();
}

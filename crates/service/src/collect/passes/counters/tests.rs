//! Tests of the counter passes with ncu scripts that fail in known ways.

use std::{fs, time::Duration};

use super::*;
use crate::collect::tests::{RUNNER, TestHost, program, settings};

/// A working ncu: lists a metric, runs the target, prints pages.
const NCU: &str = r#"
case $1 in
--query-metrics) echo 'Device X'; echo 'dram__bytes_read  Counter  byte';;
--import) echo '==PROF== page'; printf '"ID","Kernel Name"\n"0","gemm"\n';;
*) while [ "$1" != --export ]; do shift; done; report=$2; shift 2; "$@" || exit $?
   echo report > "$report"
   echo '==PROF== Disconnected from process 7';;
esac"#;

/// A host with this script as ncu.
fn host(ncu: &str) -> TestHost {
    let mut host = TestHost::new(RUNNER, None);
    let path = host.dir.path().join("bin/ncu");
    program(&path, ncu);
    host.collector.ncu = Some(path);
    host
}

fn selection() -> LaunchSelection {
    LaunchSelection {
        process: "process-1".into(),
        ranges: vec!["LLM@prefill/".into(), "LLM@decode_all/".into()],
        kernels: vec!["gemm".into()],
        symbols: vec![],
        max_new_tokens: 8,
    }
}

async fn profile(host: &TestHost) -> Result<CounterPass, CollectError> {
    let settings = NcuSettings { details: true, ..settings().ncu };
    profile_with(host, &settings).await
}

async fn profile_with(
    host: &TestHost,
    settings: &NcuSettings,
) -> Result<CounterPass, CollectError> {
    host.collector
        .ncu(&host.run(), &host.request(), &selection(), settings, &[], &host.limits)
        .await
}

#[tokio::test]
async fn a_process_leaves_report_pages_commands_and_logs() {
    let host = host(NCU);
    let CounterPass { pass, cut } = profile(&host).await.unwrap();
    assert!(pass.findings.is_empty() && cut.is_none(), "{pass:?} {cut:?}");
    let request = host.runner_request("ncu/process-1");
    assert_eq!(
        (request.repeats, request.warmup, request.ceilings, request.max_new_tokens),
        (1, 0, false, 1)
    );
    for file in ["run.ncu-rep", "raw.csv", "details.csv", "events.jsonl", "cmd.txt"] {
        assert!(host.run().join("ncu/process-1").join(file).is_file(), "{file}");
    }
    let commands = fs::read_to_string(host.run().join("ncu/process-1/cmd.txt")).unwrap();
    assert_eq!(commands.lines().count(), 3);
    assert!(host.run().join("logs/ncu-process-1.stdout.log").is_file());
}

#[tokio::test]
async fn the_details_page_is_printed_on_request_only() {
    let host = host(NCU);
    assert!(!settings().ncu.details);
    profile_with(&host, &settings().ncu).await.unwrap();
    let folder = host.run().join("ncu/process-1");
    assert!(folder.join("raw.csv").is_file() && !folder.join("details.csv").exists());
    assert_eq!(fs::read_to_string(folder.join("cmd.txt")).unwrap().lines().count(), 2);
}

#[tokio::test]
async fn the_metrics_of_the_device_are_queried_from_ncu() {
    let host = host(NCU);
    let (metrics, finding) = host
        .collector
        .ncu_metrics(&host.run(), &settings().ncu.metrics, &host.limits)
        .await
        .unwrap();
    let of_bytes = ["dram__bytes_read.sum", "dram__bytes_read.sum.pct_of_peak_sustained_elapsed"];
    assert_eq!((metrics, finding), (of_bytes.map(str::to_owned).into(), None));
    let broken = self::host("echo 'no device' >&2; exit 1");
    let (metrics, finding) = broken
        .collector
        .ncu_metrics(&broken.run(), &settings().ncu.metrics, &broken.limits)
        .await
        .unwrap();
    assert_eq!((metrics.len(), finding.unwrap().evidence["ncu"].as_str()), (0, "no device"));
}

#[tokio::test]
async fn an_ncu_that_exits_0_and_leaves_nothing_is_a_failure() {
    let error = profile(&host("exit 0")).await.unwrap_err();
    assert_eq!(error.to_string(), "ncu exited with code 0 but left no run.ncu-rep");
    let empty_pages = NCU.replace("echo '==PROF== page'; printf", "true");
    let error = profile(&host(&empty_pages)).await.unwrap_err();
    assert_eq!(error.to_string(), "ncu --import exited with code 0 but left no raw.csv");
}

#[tokio::test]
async fn no_profiled_kernel_is_a_failure_although_ncu_exits_with_0() {
    let nothing = NCU
        .replace("==PROF== Disconnected from process 7", "==WARNING== No kernels were profiled.");
    let error = profile(&host(&nothing)).await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("ncu read no counters in process-1: no selected kernel ran; "),
        "{error}"
    );
    assert_eq!(error.ended().and_then(child::ExitReason::exit_code), Some(0));
}

#[tokio::test]
async fn forbidden_counters_are_reported_with_the_remedy() {
    let refused = "echo '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission'; exit 1";
    let error = profile(&host(refused)).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("may not read the GPU's performance counters; load the nvidia module with"),
        "{error}"
    );
    assert_eq!(error.ended().and_then(child::ExitReason::exit_code), Some(1));
}

#[tokio::test]
async fn an_ncu_that_hangs_is_ended_at_its_deadline() {
    let mut host = host("exec sleep 1000");
    host.limits = ProcessLimits {
        grace: Duration::from_millis(10),
        ..host.limits.short(Duration::from_millis(100))
    };
    let error = profile(&host).await.unwrap_err();
    assert_eq!(error.to_string(), "ncu ran past its deadline and was ended");
}

/// A runner that hangs under ncu.
const HANGING_RUNNER: &str = r#"[ -z "$LLMPROF_TARGET" ] || exec sleep 1000"#;

#[tokio::test]
async fn at_its_deadline_ncu_may_write_the_report_of_a_target_that_hangs() {
    let ended_by_its_target = NCU.replace("|| exit $?", "; [ $? = 143 ] || exit 9");
    let mut host = host(&ended_by_its_target);
    program(&host.collector.runner, HANGING_RUNNER);
    host.limits = host.limits.short(Duration::from_secs(2));
    let CounterPass { cut, .. } = profile(&host).await.unwrap();
    let cut = cut.unwrap().to_string();
    assert!(cut.starts_with("ncu ran past its deadline and was ended"), "{cut}");
    let folder = host.run().join("ncu/process-1");
    assert!(folder.join("raw.csv").is_file() && folder.join("details.csv").is_file());
}

#[tokio::test]
async fn a_report_that_cannot_be_printed_after_the_deadline_does_not_count() {
    let cut = NCU.replace("|| exit $?", ";").replace("--import) ", "--import) exit 1; ");
    let mut host = host(&cut);
    program(&host.collector.runner, HANGING_RUNNER);
    host.limits = host.limits.short(Duration::from_secs(2));
    let error = profile(&host).await.unwrap_err().to_string();
    assert!(error.starts_with("ncu ran past its deadline and was ended"), "{error}");
}

#[tokio::test]
async fn without_ncu_there_are_no_counters() {
    let error = profile(&TestHost::new(RUNNER, None)).await.unwrap_err();
    assert!(matches!(error, CollectError::NotInstalled { tool: "ncu" }));
}

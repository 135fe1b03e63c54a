//! The step of sampled metrics, with stand-ins for nsys that misbehave.

use std::{fs, time::Duration};

use llmprof_core::domain::state::{StepRecord, StepState};

use super::*;
use crate::job::tests::{Bench, LIMIT, NCU, NSYS, events, ids, results, samples};

/// An nsys whose passes with samples are preceded by `lines`.
fn sampling(lines: &str) -> String {
    format!("case \"$*\" in *gpu_metrics*) {lines};; esac\n{NSYS}")
}

/// The step at two rates with this script as nsys.
async fn sample(bench: &mut Bench, nsys: &str, limit: Duration) -> (StepRecord, Vec<Finding>) {
    bench.replace("nsys", nsys);
    let (steps, findings) = bench.sampled(&[10_000, 20_000], limit).await;
    assert_eq!(steps.len(), 1, "{steps:?}");
    (steps.into_iter().next().unwrap(), findings)
}

fn export(bench: &Bench, rate: u32, name: &str) -> bool {
    bench.run_dir().join(layout::metrics_pass(rate)).join(name).is_file()
}

/// Changes the export that holds samples.
fn alter(bench: &Bench, sql: &str) {
    samples(&bench.dir.path().join("sampled.sqlite"), sql);
}

#[tokio::test]
async fn each_rate_is_a_pass_with_samples_in_a_folder_of_its_own() {
    let mut bench = Bench::new(NCU);
    let (step, findings) = sample(&mut bench, NSYS, LIMIT).await;
    let succeeded = (Step::GpuMetrics, StepState::Succeeded, Some(0));
    assert_eq!((results(&[step]), ids(&findings)), (vec![succeeded], vec![]));
    for rate in [10_000, 20_000] {
        let pass = bench.run_dir().join(layout::metrics_pass(rate));
        let commands = fs::read_to_string(pass.join(layout::COMMAND)).unwrap();
        let sampled = format!(
            "--cuda-graph-trace=node --gpu-metrics-devices=cuda-visible \
             --gpu-metrics-frequency={rate} "
        );
        assert!(commands.contains(&sampled), "{commands}");
        assert_eq!(commands.lines().count(), 2, "profile and export");
        assert!(export(&bench, rate, layout::NSYS_EXPORT_FILE));
        let request = fs::read_to_string(pass.join(layout::REQUEST)).unwrap();
        let request: serde_json::Value = serde_json::from_str(&request).unwrap();
        assert_eq!((&request["repeats"], &request["max_new_tokens"]), (&5.into(), &8.into()));
    }
    let trace = parse::read(&bench.run_dir()).unwrap();
    assert_eq!((trace.sampled.len(), trace.timeline.is_some()), (2, false));
}

#[tokio::test]
async fn counters_that_are_denied_or_held_fail_the_step_once_with_the_remedy() {
    for (output, id, remedy) in [
        (
            "Illegal --gpu-metrics-devices argument: cuda-visible.\nInsufficient privilege, see \
             https://developer.nvidia.com/ERR_NVGPUCTRPERM.",
            "counters_forbidden",
            "NVreg_RestrictProfilingToAdminUsers=0",
        ),
        ("NVIDIA L40S PCI[0000:01:00.0] - Already under profiling", "counters_held", "dcgmi"),
        (
            "Illegal --gpu-metrics-devices argument: cuda-visible.\nNone of the installed GPUs \
             are supported",
            "gpu_metrics_unsupported",
            "--gpu-metrics-devices=help",
        ),
        (
            "unrecognised option '--gpu-metrics-devices=cuda-visible'",
            "gpu_metrics_unsupported",
            "2025.3",
        ),
    ] {
        let mut bench = Bench::new(NCU);
        fs::write(bench.dir.path().join("output"), output).unwrap();
        let refusal = "echo x >> \"$HERE/starts\"; cat \"$HERE/output\" >&2; exit 1";
        let (step, findings) = sample(&mut bench, &sampling(refusal), LIMIT).await;
        assert_eq!((step.state, step.exit_code), (StepState::Failed, Some(1)), "{step:?}");
        assert_eq!(ids(&findings), [id], "{findings:?}");
        let message = step.message.unwrap();
        assert!(
            message.starts_with("gpu_metrics/rate-10000: nsys read no counters in")
                && message.contains(remedy),
            "{message}"
        );
        let starts = fs::read_to_string(bench.dir.path().join("starts")).unwrap();
        assert_eq!(starts.lines().count(), 1, "a refusal is the same at every rate");
    }
}

#[tokio::test]
async fn a_missing_nsys_skips_the_step() {
    let mut bench = Bench::new(NCU);
    let collector = crate::collect::Collector { nsys: None, ..(*bench.host.collector).clone() };
    bench.host.collector = std::sync::Arc::new(collector);
    let (step, _) = sample(&mut bench, NSYS, LIMIT).await;
    assert_eq!(
        (step.state, step.message.as_deref()),
        (StepState::Skipped, Some("nsys is not installed"))
    );
}

#[tokio::test]
async fn captures_without_usable_samples_are_set_aside_with_the_reason() {
    for (sql, id, message) in [
        ("delete from GPU_METRICS", "gpu_metrics_empty", "nsys recorded no samples"),
        (
            "drop table GPU_METRICS; drop table TARGET_INFO_GPU_METRICS",
            "gpu_metrics_empty",
            "nsys recorded no samples",
        ),
        (
            "update TARGET_INFO_GPU_METRICS set metricName = 'Unit X [Throughput %]'",
            "gpu_metrics_empty",
            "no valid value of a known one",
        ),
        (
            "insert into DIAGNOSTIC_EVENT (timestamp, timestampType, source, severity, text, \
             globalPid) values (5, 1, 2, 3, 'GPU Metrics [0]: Sampling buffer overflow', 0)",
            "gpu_metrics_overflowed",
            "The buffer of samples overflowed on GPU 0",
        ),
        (
            "delete from CUPTI_ACTIVITY_KIND_KERNEL where rowid % 4 <> 0",
            "incomplete_capture",
            "launched kernels are recorded (25.0 %)",
        ),
        ("update GPU_METRICS set value = 'x'", "gpu_metrics_empty", "no valid value"),
        (
            "delete from TARGET_INFO_GPU_METRICS",
            "gpu_metrics_empty",
            "without the names of the metrics",
        ),
    ] {
        let mut bench = Bench::new(NCU);
        alter(&bench, sql);
        let (step, findings) = sample(&mut bench, NSYS, LIMIT).await;
        assert_eq!((step.state, step.exit_code), (StepState::Failed, Some(0)), "{sql}: {step:?}");
        assert_eq!(ids(&findings), [id; 2], "{sql}: one for each rate");
        let text = format!("{findings:?}");
        assert!(text.contains(message), "{sql}: {text}");
        assert!(findings.iter().all(|it| it.advice.is_some()), "{findings:?}");
        for rate in [10_000, 20_000] {
            assert!(export(&bench, rate, "run.rejected.sqlite"), "{sql}");
            assert!(!export(&bench, rate, layout::NSYS_EXPORT_FILE), "{sql}");
        }
        assert_eq!(parse::read(&bench.run_dir()).unwrap().sampled.len(), 0);
    }
}

#[tokio::test]
async fn half_a_capture_is_set_aside_and_the_other_rate_counts() {
    let mut bench = Bench::new(NCU);
    let cut = NSYS.replace(
        "export) ",
        "export) case \"$*\" in *rate-10000/*) while [ \"$1\" != --output ]; do shift; done; \
         head -c 300000 \"$HERE/sampled.sqlite\" > \"$2\"; exit 0;; esac; ",
    );
    let (step, findings) = sample(&mut bench, &cut, LIMIT).await;
    assert_eq!((step.state, step.exit_code), (StepState::Failed, Some(0)), "{step:?}");
    assert_eq!(ids(&findings), ["nsys_export_unreadable"]);
    assert!(findings[0].evidence["reason"].contains("cut short"), "{findings:?}");
    assert_eq!(parse::read(&bench.run_dir()).unwrap().sampled.len(), 1);
}

#[tokio::test]
async fn a_pass_that_hangs_is_ended_and_the_next_rate_has_its_time() {
    let mut bench = Bench::new(NCU);
    let hang = NSYS
        .replace("profile) ", "profile) case \"$*\" in *rate-10000/*) exec sleep 1000;; esac; ");
    let (step, findings) = sample(&mut bench, &hang, Duration::from_secs(12)).await;
    assert_eq!((step.state, step.exit_code), (StepState::Failed, None));
    let message = step.message.unwrap();
    assert_eq!(message, "gpu_metrics/rate-10000: nsys profile ran past its deadline and was ended");
    assert_eq!(ids(&findings), ["run_out_of_time"]);
    assert!(export(&bench, 20_000, layout::NSYS_EXPORT_FILE));
}

#[tokio::test]
async fn samples_of_a_pass_with_other_tokens_do_not_count() {
    let mut bench = Bench::new(NCU);
    fs::write(bench.dir.path().join("events.jsonl"), events("9,8")).unwrap();
    let (step, findings) = sample(&mut bench, NSYS, LIMIT).await;
    assert_eq!(step.state, StepState::Failed);
    assert_eq!(ids(&findings), ["pass_not_proven"; 2]);
    assert!(!export(&bench, 20_000, layout::NSYS_EXPORT_FILE));
}

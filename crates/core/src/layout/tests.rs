//! Files by pass and by step.

use super::*;

#[test]
fn every_pass_has_its_own_files() {
    let of = |path: &str| {
        let passes = [
            "baseline",
            "nsys",
            "gpu_metrics/rate-1000",
            "gpu_metrics/rate-10000",
            "ncu/a",
            "ncu/a-2",
            "gemm_log",
            "torch_profiler",
            "mock/baseline",
            "mock/nsys",
        ];
        passes.into_iter().filter(|pass| is_of_pass(pass, path)).collect::<Vec<_>>()
    };
    for (path, pass) in [
        ("baseline/nvml.jsonl", "baseline"),
        ("predictions.jsonl", "baseline"),
        ("logs/baseline-warmup-1.stderr.log", "baseline"),
        ("nsys/run.sqlite", "nsys"),
        ("logs/nsys-import.stdout.log", "nsys"),
        ("gpu_metrics/rate-1000/run.sqlite", "gpu_metrics/rate-1000"),
        ("logs/gpu_metrics-rate-10000-export.stderr.log", "gpu_metrics/rate-10000"),
        ("logs/gpu_metrics-rate-1000.stdout.log", "gpu_metrics/rate-1000"),
        ("ncu/a/raw.csv", "ncu/a"),
        ("logs/ncu-a-raw.stderr.log", "ncu/a"),
        ("logs/ncu-a-2.stderr.log", "ncu/a-2"),
        ("logs/ncu-a-2-details.stderr.log", "ncu/a-2"),
        ("gemm_log/all/cublas.log", "gemm_log"),
        ("logs/gemm_log-prefill.stdout.log", "gemm_log"),
        ("torch_profiler/process-12.json.gz", "torch_profiler"),
        ("logs/torch_profiler-client-1.stdout.log", "torch_profiler"),
        ("mock/baseline/events.jsonl", "mock/baseline"),
        ("mock/logs/nsys-export.stdout.log", "mock/nsys"),
    ] {
        assert_eq!(of(path), [pass], "{path}");
    }
    for path in [
        "report.md",
        "env.json",
        "logs/nsys-version.stdout.log",
        "logs/preflight-features.stdout.log",
        "nsys/coverage.json",
        "ncu/a/choice.json",
        "extracted/baseline/events.jsonl",
    ] {
        assert_eq!(of(path), [""; 0], "{path}");
    }
}

#[test]
fn every_file_is_known_by_its_step() {
    assert_eq!(step_of("logs/nsys-export.stderr.log"), Some(Step::Nsys));
    assert_eq!(step_of("logs/baseline.stdout.log"), Some(Step::Baseline));
    assert_eq!(step_of(NSYS_EXPORT), Some(Step::Nsys));
    assert_eq!(step_of("logs/gpu_metrics-rate-10.stderr.log"), Some(Step::GpuMetrics));
    assert_eq!(step_of("gpu_metrics/rate-10/run.sqlite"), Some(Step::GpuMetrics));
    assert_eq!((metrics_rate("rate-10"), metrics_rate("rate-x")), (Some(10), None));
    assert_eq!(step_of("torch_profiler/process-1.json.gz"), Some(Step::TorchProfiler));
    assert_eq!(step_of("logs/torch_profiler.stdout.log"), Some(Step::TorchProfiler));
    assert!(is_torch_trace("process-12.json.gz"));
    assert!(
        !["process-.json.gz", "process-1x.json.gz", "unfinished-1.json.gz", "times.json"]
            .into_iter()
            .any(is_torch_trace)
    );
    assert_eq!(step_of("env.json"), Some(Step::Preflight));
    assert_eq!(step_of(REPORT_HTML), Some(Step::Report));
    assert_eq!((step_of(NVML), step_of(POWER_CSV)), (Some(Step::Baseline), Some(Step::Report)));
    assert_eq!((step_of(TIMELINE), media_type(TIMELINE)), (Some(Step::Report), "application/gzip"));
    assert_eq!(step_of(SPEC), None);
}

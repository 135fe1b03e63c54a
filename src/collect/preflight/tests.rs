//! What preflight says about hosts that lack something.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::*;
use crate::{collect::tests::program, run::RunId, trace::environment::Gpu};

fn spec(mode: Mode, device: &str) -> RunSpec {
    RunSpec {
        model: "m".into(),
        inputs_manifest: "inputs.yaml".into(),
        mode,
        repeats: 1,
        warmup: 0,
        max_new_tokens: 1,
        seed: 0,
        dtype: None,
        device: device.into(),
        timeout_s: 60,
        labels: vec![],
        priority: 0,
    }
}

/// The findings about devices on a host with so many GPUs.
fn said(mode: Mode, device: &str, gpus: usize) -> Vec<(String, Severity)> {
    let environment = Environment { gpus: vec![Gpu::default(); gpus], ..Environment::default() };
    let state = if gpus == 0 { Err(NoGpu::NoDriver) } else { Ok(()) };
    super::device(&spec(mode, device), &environment, state).into_iter().map(|f| (f.id, f.severity)).collect()
}

#[test]
fn a_gpu_that_was_asked_for_and_is_not_there_is_critical() {
    assert_eq!(said(Mode::Basic, "cuda:0", 0), [("no_gpu".into(), Severity::Critical)]);
    assert_eq!(said(Mode::Basic, "cuda:2", 2), [("no_such_gpu".into(), Severity::Critical)]);
    assert_eq!(said(Mode::Deep, "cuda:1", 2), []);
}

#[test]
fn a_host_without_gpu_is_told_that_there_are_no_kernels() {
    assert_eq!(said(Mode::Deep, "auto", 0), [("no_gpu".into(), Severity::Info)]);
    assert_eq!(said(Mode::Basic, "auto", 0), []);
    assert_eq!(said(Mode::Deep, "auto", 1), []);
}

#[test]
fn little_space_is_a_warning_and_names_the_figures() {
    let dir = tempfile::tempdir().unwrap();
    assert!(disk(dir.path(), 0).is_none());
    let finding = disk(dir.path(), u64::MAX).unwrap();
    assert!(finding.id == "disk_low" && finding.evidence.contains_key("free_bytes") && finding.advice.is_some());
    assert_eq!(disk(&dir.path().join("none"), 1).unwrap().severity, Severity::Warning);
}

/// Runs preflight with a shell script as nsys.
async fn with_nsys(script: Option<&str>, mode: Mode) -> Preflight {
    let dir = tempfile::tempdir().unwrap();
    let nsys = dir.path().join("nsys");
    program(&nsys, script.unwrap_or_default());
    let collector = Collector { nsys: script.map(|_| nsys), ..Collector::new("model-runner") };
    let leash = Leash::new(RunId::now(), Duration::from_secs(60), CancellationToken::new());
    collector.preflight(&spec(mode, "cpu"), dir.path(), &leash).await
}

fn nsys_finding(preflight: &Preflight) -> Option<(&str, Option<&str>)> {
    let finding = preflight.findings.iter().find(|f| f.id.starts_with("nsys"))?;
    Some((&finding.id, finding.evidence.get("reason").map(String::as_str)))
}

#[tokio::test]
async fn a_missing_nsys_names_its_remedy() {
    let preflight = with_nsys(None, Mode::Light).await;
    assert_eq!(nsys_finding(&preflight), Some(("nsys_missing", None)));
    let advice = preflight.findings.iter().find_map(|f| (f.id == "nsys_missing").then(|| f.advice.clone()?.into())).flatten();
    assert!(
        advice.is_some_and(|advice: String| advice.contains("scripts/install-nsight.sh") && advice.contains("nsight-systems"))
    );
}

#[tokio::test]
async fn the_version_of_nsys_is_part_of_the_environment() {
    let preflight = with_nsys(Some("echo NVIDIA Nsight Systems version 2025.3.2.474"), Mode::Light).await;
    assert_eq!(preflight.environment.nsys.as_deref(), Some("2025.3.2.474"));
    assert_eq!(nsys_finding(&preflight), None);
}

#[tokio::test]
async fn an_nsys_that_does_not_start_is_told_with_its_own_words() {
    let preflight = with_nsys(Some("echo libfoo.so: cannot open >&2; exit 127"), Mode::Light).await;
    assert_eq!(nsys_finding(&preflight), Some(("nsys_unusable", Some("it exited with code 127: libfoo.so: cannot open"))));
}

#[tokio::test]
async fn a_basic_run_asks_for_no_tool() {
    assert_eq!(nsys_finding(&with_nsys(None, Mode::Basic).await), None);
}

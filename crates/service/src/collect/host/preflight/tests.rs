//! Tests of the preflight on incomplete hosts.

use std::time::Duration;

use llmprof_core::{
    domain::{ids::RunId, mode::Mode},
    trace::environment::{GpuInstance, GpuProcess},
};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::collect::tests::program;

fn gpu(index: u32) -> Device {
    Device { uuid: Some(format!("GPU-{index}")), ..Device::unknown(&format!("cuda:{index}")) }
}

fn host(gpus: u32) -> Result<Driver, NoGpu> {
    let gpu = |index| Gpu { index, uuid: format!("GPU-{index}"), ..Gpu::default() };
    if gpus == 0 {
        Err(NoGpu::NoDriver)
    } else {
        Ok(Driver { gpus: (0..gpus).map(gpu).collect(), ..Driver::default() })
    }
}

/// Findings about `device` on a host.
fn findings(
    mode: Mode,
    device: &Device,
    driver: &Result<Driver, NoGpu>,
) -> Vec<(String, Severity)> {
    device_findings(mode != Mode::BASIC, device, driver)
        .into_iter()
        .map(|f| (f.id.clone(), f.severity))
        .collect()
}

#[test]
fn a_missing_gpu_is_critical() {
    assert_eq!(findings(Mode::BASIC, &gpu(0), &host(0)), [("no_gpu".into(), Severity::Critical)]);
    assert_eq!(
        findings(Mode::BASIC, &gpu(2), &host(2)),
        [("no_such_gpu".into(), Severity::Critical)]
    );
    assert_eq!(findings(Mode::DEEP, &gpu(1), &host(2)), []);
}

#[test]
fn a_gpu_is_identified_by_its_uuid_not_its_index() {
    let moved = Device { uuid: Some("GPU-0".into()), ..gpu(1) };
    assert_eq!(findings(Mode::BASIC, &moved, &host(1)), []);
    let replaced = Device { uuid: Some("GPU-9".into()), ..gpu(0) };
    assert_eq!(
        findings(Mode::BASIC, &replaced, &host(1)),
        [("no_such_gpu".into(), Severity::Critical)]
    );
    assert_eq!(findings(Mode::BASIC, &Device::unknown("cuda:0"), &host(1)), []);
}

#[test]
fn an_instance_is_found_in_its_gpu_without_the_gpus_processes() {
    let mut driver = host(1);
    let whole = &mut driver.as_mut().unwrap().gpus[0];
    whole.mig = Some(true);
    whole.processes = vec![GpuProcess { pid: u32::MAX, ..GpuProcess::default() }];
    whole.instances = vec![GpuInstance { uuid: "MIG-1".into(), ..GpuInstance::default() }];
    assert_eq!(
        findings(
            Mode::BASIC,
            &Device { uuid: Some("MIG-1".into()), ..Device::unknown("MIG-1") },
            &driver
        ),
        []
    );
    assert_eq!(findings(Mode::BASIC, &gpu(0), &driver), [("gpu_busy".into(), Severity::Warning)]);
}

#[test]
fn a_run_without_gpu_has_a_finding_about_missing_kernels() {
    assert_eq!(findings(Mode::DEEP, &Device::cpu(), &host(0)), [("no_gpu".into(), Severity::Info)]);
    assert_eq!(findings(Mode::BASIC, &Device::cpu(), &host(0)), []);
    assert_eq!(findings(Mode::DEEP, &Device::cpu(), &host(1)), []);
}

/// Runs the preflight with a script as nsys.
async fn with_nsys(script: Option<&str>, mode: Mode) -> Preflight {
    let dir = tempfile::tempdir().unwrap();
    let nsys = dir.path().join("nsys");
    program(&nsys, script.unwrap_or_default());
    let collector = Collector { nsys: script.map(|_| nsys), ..Collector::new("model-runner") };
    let limits =
        ProcessLimits::new(RunId::now(), Duration::from_secs(60), CancellationToken::new());
    collector
        .preflight(&Profiling::bundled(&mode).unwrap(), &Device::cpu(), true, dir.path(), &limits)
        .await
}

fn nsys_finding(preflight: &Preflight) -> Option<(&str, Option<&str>)> {
    let finding = preflight.findings.iter().find(|f| f.id.starts_with("nsys"))?;
    Some((&finding.id, finding.evidence.get("reason").map(String::as_str)))
}

#[tokio::test]
async fn a_missing_nsys_names_its_remedy() {
    let preflight = with_nsys(None, Mode::LIGHT).await;
    assert_eq!(nsys_finding(&preflight), Some(("nsys_missing", None)));
    let advice = preflight
        .findings
        .iter()
        .find_map(|f| (f.id == "nsys_missing").then(|| f.advice.clone()?.into()))
        .flatten();
    assert!(advice.is_some_and(|advice: String| advice.contains("scripts/install-nsight.sh")
        && advice.contains("nsight-systems")));
}

#[tokio::test]
async fn the_version_of_nsys_is_part_of_the_environment() {
    let preflight =
        with_nsys(Some("echo NVIDIA Nsight Systems version 2025.3.2.474"), Mode::LIGHT).await;
    assert_eq!(preflight.environment.nsys.as_deref(), Some("2025.3.2.474"));
    assert_eq!(nsys_finding(&preflight), None);
}

#[tokio::test]
async fn an_nsys_that_does_not_start_is_quoted() {
    let preflight = with_nsys(Some("echo libfoo.so: cannot open >&2; exit 127"), Mode::LIGHT).await;
    assert_eq!(
        nsys_finding(&preflight),
        Some(("nsys_unusable", Some("it exited with code 127: libfoo.so: cannot open")))
    );
}

#[tokio::test]
async fn a_basic_run_needs_no_tool() {
    assert_eq!(nsys_finding(&with_nsys(None, Mode::BASIC).await), None);
}

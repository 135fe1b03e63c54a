//! Tests of the checks with hosts as values; every problem has a remedy.

use llmprof_core::trace::{
    checkup::{CheckState, HostCheck},
    environment::{GpuInstance, GpuProcess},
};

use super::*;

fn h200() -> Gpu {
    Gpu {
        index: 1,
        uuid: "GPU-1".into(),
        name: "NVIDIA H200".into(),
        memory_bytes: 140 << 30,
        memory_free_bytes: Some(139 << 30),
        compute_capability: Some("9.0".into()),
        mig: Some(false),
        ..Gpu::default()
    }
}

fn host(version: &str, cuda: &str) -> Driver {
    Driver { version: Some(version.into()), cuda: Some(cuda.into()), gpus: vec![h200()] }
}

/// Id and severity of a problem; fails without a remedy.
#[track_caller]
fn problem(checked: CheckResult) -> (String, Severity) {
    let finding = checked.unwrap_err();
    assert!(finding.advice.as_ref().is_some_and(|advice| !advice.is_empty()));
    (finding.id.clone(), finding.severity)
}

#[test]
fn a_driver_works_is_missing_or_is_broken() {
    let words = driver(&Ok(host("580.159", "13.0"))).unwrap();
    assert_eq!(words, "driver 580.159, which supports CUDA up to 13.0, GPUs: 1");
    assert_eq!(problem(driver(&Err(NoGpu::NoDriver))), ("no_gpu".into(), Severity::Warning));
    assert_eq!(problem(driver(&Ok(Driver::default()))), ("no_gpu".into(), Severity::Warning));
    let broken = NoGpu::Broken(nvml_wrapper::error::NvmlError::GpuLost);
    assert_eq!(problem(driver(&Err(broken))), ("driver_unusable".into(), Severity::Warning));
}

#[test]
fn an_nsys_older_than_the_driver_is_a_warning() {
    let finding = nsys_age("2023.4.4.54-234433681190v0", &host("580.159", "13.0")).unwrap_err();
    assert_eq!(
        (finding.id.as_str(), finding.severity),
        ("nsys_older_than_driver", Severity::Warning)
    );
    assert_eq!(finding.evidence["wanted"], "nsys 2025.3 or newer");
    assert!(nsys_age("2025.3.2.474", &host("580.159", "13.0")).is_ok());
    assert!(nsys_age("2025.10.1", &host("580.159", "13.0")).is_ok(), "10 comes after 3");
    assert!(nsys_age("2023.4.4", &host("550.54", "12.4")).is_ok());
    assert!(nsys_age("2025.3.2", &host("600.1", "13.3")).is_ok(), "newer drivers are unknown");
    assert!(nsys_age("2022.4.2.1-df9881f", &host("535.1", "12.2")).is_err());
    assert!(nsys_age("2022.4.2", &Driver::default()).is_ok());
}

#[test]
fn a_gpu_used_by_others_is_a_warning_but_not_by_runs() {
    let mut gpu = h200();
    assert!(gpu_memory(&gpu).is_ok() && gpu_processes(&gpu, |_| false).is_ok());
    gpu.processes = vec![
        GpuProcess { pid: 7, name: Some("python3".into()), memory_bytes: None },
        GpuProcess { pid: 8, ..GpuProcess::default() },
    ];
    gpu.memory_free_bytes = Some(20 << 30);
    assert_eq!(problem(gpu_memory(&gpu)), ("gpu_memory_taken".into(), Severity::Warning));
    let busy = gpu_processes(&gpu, |pid| pid == 8).unwrap_err();
    assert_eq!(busy.evidence["processes"], "7 python3");
    assert!(gpu_processes(&gpu, |_| true).is_ok());
}

#[test]
fn a_gpu_in_mig_mode_needs_an_instance() {
    let mut gpu = h200();
    assert_eq!(mig(&gpu).unwrap(), "cuda:1 is not in MIG mode");
    gpu.mig = Some(true);
    assert_eq!(problem(mig(&gpu)), ("mig_without_instances".into(), Severity::Warning));
    gpu.instances.push(GpuInstance { uuid: "MIG-1".into(), ..GpuInstance::default() });
    assert!(mig(&gpu).unwrap().contains("MIG-1"));
}

#[test]
fn monitoring_that_may_use_the_counters_is_a_warning() {
    let names = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
    assert!(monitors(&names(&["bash", "nv-hostengine-x"])).is_ok());
    assert_eq!(
        problem(monitors(&names(&["nv-hostengine"]))),
        ("dcgm_running".into(), Severity::Warning)
    );
    assert!(process_names().len() > 1);
}

#[test]
fn little_space_is_a_warning_with_its_figures() {
    let dir = tempfile::tempdir().unwrap();
    assert!(disk(dir.path(), 0).is_ok());
    let finding = disk(dir.path(), u64::MAX).unwrap_err();
    assert!(
        finding.id == "disk_low"
            && finding.evidence.contains_key("free_bytes")
            && finding.advice.is_some()
    );
    assert_eq!(disk(&dir.path().join("none"), 1).unwrap_err().severity, Severity::Warning);
}

#[test]
fn an_unwritable_temporary_folder_is_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    assert!(temporary_folder(dir.path()).is_ok());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the probe is gone");
    let nowhere = temporary_folder(&dir.path().join("none"));
    assert_eq!(HostCheck::of("temporary_folder", nowhere).state, CheckState::Failure);
    // The kernel's file system allows neither programs nor files.
    assert_eq!(problem(temporary_folder(Path::new("/proc"))).0, "temporary_folder_unusable");
}

#[test]
fn a_runner_without_cuda_is_a_failure_only_where_there_is_a_gpu() {
    let features = |cuda| Ok(Features { cuda, version: "0.1.0".into() });
    let path = Path::new("/opt/model-runner");
    assert!(
        runner(&features(false), path, None).is_ok()
            && runner(&features(true), path, Some(Severity::Critical)).is_ok()
    );
    assert_eq!(
        problem(runner(&features(false), path, Some(Severity::Critical))),
        ("runner_without_cuda".into(), Severity::Critical)
    );
    let broken =
        Err("it exited with code 127: libcuda.so.1: cannot open shared object file".into());
    assert_eq!(
        problem(runner(&broken, path, None)),
        ("runner_unusable".into(), Severity::Critical)
    );
}

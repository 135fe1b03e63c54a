//! Check before a run: its device, and the requested data that cannot be collected here.
//!
//! Changes nothing and never fails: problems are findings with remedies. A warning means that
//! requested data will be missing, a critical finding that the run cannot succeed, an info that
//! there is no such data.

use std::path::Path;

use llmprof_core::{
    domain::{
        device::Device,
        finding::{Finding, Severity, catalogue},
        profiling::Profiling,
    },
    layout,
    trace::environment::{Driver, Environment, Gpu},
};

use super::{checks, doctor::read_driver};
use crate::{
    collect::{
        Collector,
        gpu::nvml::NoGpu,
        host,
        process::{child::ProcessLimits, orphans::is_ours, output::Logs},
        tools,
    },
    config::environment,
    runtime,
};

/// Result of the check before a run.
#[derive(Debug, Default)]
pub struct Preflight {
    pub environment: Environment,
    pub findings: Vec<Finding>,
}

impl Collector {
    /// Describes the host and checks the requirements of `settings` on `device`, and the
    /// requirements of model-runner if `runner`. `dir` is the run's folder.
    pub async fn preflight(
        &self,
        settings: &Profiling,
        device: &Device,
        runner: bool,
        dir: &Path,
        limits: &ProcessLimits,
    ) -> Preflight {
        // The blocking task only fails when it panics; an unknown host does not fail the run.
        let mut described = runtime::blocking(host::describe).await.unwrap_or_default();
        let driver = read_driver().await;
        let mut findings = device_findings(settings.nsys.enabled, device, &driver);
        findings.extend(checks::disk(dir, self.min_free_bytes).err());
        findings.extend(checks::temporary_folder(&environment::temp_dir()).err());
        let driver = driver.unwrap_or_default();

        // On failure each tool reports the missing folder.
        let logs = dir.join(layout::LOGS);
        let _ = std::fs::create_dir_all(&logs);
        let hopeless = findings.iter().any(|finding| finding.severity == Severity::Critical);
        if runner && !device.is_cpu() && !hopeless {
            let features =
                tools::features(&self.runner, &Logs::named(&logs, "preflight-features"), limits)
                    .await;
            findings
                .extend(checks::runner(&features, &self.runner, Some(Severity::Critical)).err());
        }
        if settings.nsys.enabled {
            let version = self.tool_version(self.nsys.as_deref(), &logs, "nsys", limits).await;
            findings.extend(checks::nsys(&version).err());
            let rights = checks::SamplingRights::read();
            findings.extend(checks::cpu_sampling(&settings.nsys, rights).err());
            described.nsys = version.ok();
            let on_gpu = described.nsys.as_ref().filter(|_| !device.is_cpu());
            findings.extend(on_gpu.and_then(|version| checks::nsys_age(version, &driver).err()));
        }
        // Samples of nsys need the same permission as ncu, which probes it.
        if (settings.ncu.enabled || settings.gpu_metrics.enabled) && !device.is_cpu() {
            let version = self.tool_version(self.ncu.as_deref(), &logs, "ncu", limits).await;
            findings.extend(checks::ncu(&version).err().filter(|_| settings.ncu.enabled));
            described.ncu = version.ok();
            findings
                .extend(self.counter_findings(device, &described, &findings, &logs, limits).await);
        }
        (described.driver, described.cuda, described.gpus) =
            (driver.version, driver.cuda, driver.gpus);
        described.device = Some(device.clone());
        Preflight { environment: described, findings }
    }

    /// Findings about reading counters; none if that cannot be determined.
    async fn counter_findings(
        &self,
        device: &Device,
        environment: &Environment,
        findings: &[Finding],
        logs: &Path,
        limits: &ProcessLimits,
    ) -> Vec<Finding> {
        let hopeless = findings.iter().any(|finding| finding.severity == Severity::Critical);
        let can_probe = environment.ncu.is_some() || self.ncu.is_none();
        let (Some(gpu), true, false) = (&device.uuid, can_probe, hopeless) else {
            return Vec::new();
        };
        match self.counter_permission(gpu, true, logs, limits).await {
            Some(Err(finding)) => {
                let monitors = checks::monitors(&checks::process_names()).err();
                std::iter::once(finding).chain(monitors).collect()
            }
            Some(Ok(_)) | None => Vec::new(),
        }
    }
}

/// Findings about the device on this host; `timeline` is true if kernels are requested.
fn device_findings(
    timeline: bool,
    device: &Device,
    driver: &Result<Driver, NoGpu>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(checks::driver(driver).err().filter(|finding| finding.id == "driver_unusable"));
    let none = Driver::default();
    let gpus = driver.as_ref().map_or(&none.gpus, |driver| &driver.gpus);
    if device.is_cpu() {
        if gpus.is_empty() && timeline {
            let message = "this host has no usable NVIDIA GPU: the run is on the CPU, without \
                           kernels";
            let remedy = "for kernels and counters, run the service on a host with a GPU and \
                          NVIDIA's driver";
            findings.push(Finding::new(catalogue::NO_GPU, message).advise(remedy));
        }
        return findings;
    }
    let name = &device.name;
    match gpus.iter().find(|gpu| matches_device(gpu, device)) {
        Some(gpu) => {
            // Memory and processes of the whole GPU are not an instance's.
            if device.uuid.as_ref() == Some(&gpu.uuid) {
                let checked = [
                    checks::mig(gpu),
                    checks::gpu_memory(gpu),
                    checks::gpu_processes(gpu, is_ours),
                ];
                findings.extend(checked.into_iter().filter_map(Result::err));
            }
        }
        None if gpus.is_empty() => {
            let message = format!("the run needs {name}, and this host has no usable NVIDIA GPU");
            let remedy = "install NVIDIA's driver on a host with a GPU, or request the device cpu";
            findings.push(
                Finding::new(catalogue::NO_GPU, message)
                    .severity(Severity::Critical)
                    .advise(remedy),
            );
        }
        None => {
            let message = format!("the run needs {name}, and this host has no such GPU");
            let known: Vec<String> =
                gpus.iter().map(|gpu| format!("cuda:{} ({})", gpu.index, gpu.uuid)).collect();
            let remedy = "restart the service to detect its GPUs again, or request another device \
                          (GET /devices)";
            findings.push(
                Finding::new(catalogue::NO_SUCH_GPU, message)
                    .with("wanted", device.uuid.as_ref().unwrap_or(name))
                    .with("gpus", known.join(", "))
                    .advise(remedy),
            );
        }
    }
    findings
}

/// True if `device` is this GPU or an instance of it. The index counts only without a UUID.
fn matches_device(gpu: &Gpu, device: &Device) -> bool {
    match &device.uuid {
        Some(uuid) => {
            *uuid == gpu.uuid || gpu.instances.iter().any(|instance| instance.uuid == *uuid)
        }
        None => device.name == format!("cuda:{}", gpu.index),
    }
}

#[cfg(test)]
mod tests;

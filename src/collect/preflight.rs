//! Looks before a run starts: where it will run, and what of its wish cannot be collected here.
//!
//! Changes nothing and never fails: what is missing is a finding with its remedy. A warning means that something asked for will be
//! missing, a critical finding that the run cannot succeed, an info that there is nothing of the kind to collect.

use std::path::Path;

use super::{Collector, checks, child::Leash, doctor::read_driver, host, nvml::NoGpu, output::Logs, sweep::is_ours, tools};
use crate::{
    artifact::layout,
    profiling::Profiling,
    run::{Finding, Severity},
    trace::{
        device::Device,
        environment::{Driver, Environment, Gpu},
    },
};

/// What was found before a run.
#[derive(Debug, Default)]
pub struct Preflight {
    pub environment: Environment,
    pub findings: Vec<Finding>,
}

impl Collector {
    /// Describes the host and checks what `settings` ask for on `device`; of the model runner only where `runner` runs. `dir` is the run's
    /// folder.
    pub async fn preflight(&self, settings: &Profiling, device: &Device, runner: bool, dir: &Path, leash: &Leash) -> Preflight {
        // The blocking task only fails when it panics: the host is then unknown, which is no reason to fail the run.
        let mut environment = tokio::task::spawn_blocking(host::describe).await.unwrap_or_default();
        let driver = read_driver().await;
        let mut findings = on_device(settings.nsys.enabled, device, &driver);
        findings.extend(checks::disk(dir, self.min_free_bytes).err());
        findings.extend(checks::temporary_folder(&std::env::temp_dir()).err());
        let driver = driver.unwrap_or_default();

        // Where the folder cannot be made, each tool says so for itself.
        let logs = dir.join(layout::LOGS);
        let _ = std::fs::create_dir_all(&logs);
        let hopeless = findings.iter().any(|finding| finding.severity == Severity::Critical);
        if runner && !device.is_cpu() && !hopeless {
            let features = tools::features(&self.runner, &Logs::named(&logs, "preflight-features"), leash).await;
            findings.extend(checks::runner(&features, &self.runner, Some(Severity::Critical)).err());
        }
        if settings.nsys.enabled {
            let version = self.tool_version(self.nsys.as_deref(), &logs, "nsys", leash).await;
            findings.extend(checks::nsys(&version).err());
            environment.nsys = version.ok();
            let on_gpu = environment.nsys.as_ref().filter(|_| !device.is_cpu());
            findings.extend(on_gpu.and_then(|version| checks::nsys_age(version, &driver).err()));
        }
        if settings.ncu.enabled && !device.is_cpu() {
            let version = self.tool_version(self.ncu.as_deref(), &logs, "ncu", leash).await;
            findings.extend(checks::ncu(&version).err());
            environment.ncu = version.ok();
            findings.extend(self.counter_findings(device, &environment, &findings, &logs, leash).await);
        }
        (environment.driver, environment.cuda, environment.gpus) = (driver.version, driver.cuda, driver.gpus);
        environment.device = Some(device.clone());
        Preflight { environment, findings }
    }

    /// Whether counters may be read, and what may be in the way; nothing where ncu cannot be tried.
    async fn counter_findings(
        &self,
        device: &Device,
        environment: &Environment,
        findings: &[Finding],
        logs: &Path,
        leash: &Leash,
    ) -> Vec<Finding> {
        let hopeless = findings.iter().any(|finding| finding.severity == Severity::Critical);
        let (Some(gpu), Some(_), false) = (&device.uuid, &environment.ncu, hopeless) else { return Vec::new() };
        match self.counters(gpu, true, logs, leash).await {
            Some(Err(finding)) => {
                let monitors = checks::monitors(&checks::process_names()).err();
                std::iter::once(finding).chain(monitors).collect()
            }
            Some(Ok(_)) | None => Vec::new(),
        }
    }
}

/// What the device means on this host; `timeline` says whether kernels are looked for.
fn on_device(timeline: bool, device: &Device, driver: &Result<Driver, NoGpu>) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(checks::driver(driver).err().filter(|finding| finding.id == "driver_unusable"));
    let none = Driver::default();
    let gpus = driver.as_ref().map_or(&none.gpus, |driver| &driver.gpus);
    if device.is_cpu() {
        if gpus.is_empty() && timeline {
            let message = "this host has no NVIDIA GPU in use: the run is on the CPU, where there are no kernels to collect";
            let remedy = "for kernels and counters, run the service on a host with a GPU and NVIDIA's driver";
            findings.push(Finding::new("no_gpu", Severity::Info, message).advise(remedy));
        }
        return findings;
    }
    let name = &device.name;
    match gpus.iter().find(|gpu| holds(gpu, device)) {
        Some(gpu) => {
            // Of an instance, memory and processes are not those of the whole GPU.
            if device.uuid.as_ref() == Some(&gpu.uuid) {
                let whole = [checks::mig(gpu), checks::gpu_memory(gpu), checks::gpu_processes(gpu, is_ours)];
                findings.extend(whole.into_iter().filter_map(Result::err));
            }
        }
        None if gpus.is_empty() => {
            let message = format!("the run is to be on {name}, and this host has no NVIDIA GPU in use");
            let remedy = "install NVIDIA's driver on a host with a GPU, or ask for the device cpu";
            findings.push(Finding::new("no_gpu", Severity::Critical, message).advise(remedy));
        }
        None => {
            let message = format!("the run is to be on {name}, and this host has no such GPU");
            let known: Vec<String> = gpus.iter().map(|gpu| format!("cuda:{} ({})", gpu.index, gpu.uuid)).collect();
            let remedy = "start the service again, so that it finds its GPUs anew, or ask for another device (GET /devices)";
            findings.push(
                Finding::new("no_such_gpu", Severity::Critical, message)
                    .with("wanted", device.uuid.as_ref().unwrap_or(name))
                    .with("gpus", known.join(", "))
                    .advise(remedy),
            );
        }
    }
    findings
}

/// Says whether `device` is this GPU, or an instance of it. An index counts only where no UUID was ever known.
fn holds(gpu: &Gpu, device: &Device) -> bool {
    match &device.uuid {
        Some(uuid) => *uuid == gpu.uuid || gpu.instances.iter().any(|instance| instance.uuid == *uuid),
        None => device.name == format!("cuda:{}", gpu.index),
    }
}

#[cfg(test)]
mod tests;

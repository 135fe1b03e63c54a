//! Looks before a run starts: where it will run, and what of its wish cannot be collected here.
//!
//! Changes nothing and never fails: what is missing is a finding with its remedy. A warning means that something asked for will be
//! missing, a critical finding that the run cannot succeed, an info that there is nothing of the kind to collect.

use std::{io, path::Path};

use nix::sys::statvfs::statvfs;

use super::{
    Collector,
    child::Leash,
    host::{self, NoGpu},
    output::Logs,
    tools,
};
use crate::{
    artifact::layout,
    run::{Finding, Mode, RunSpec, Severity},
    trace::environment::Environment,
};

/// Below this a run cannot even write its events.
const NO_SPACE_BYTES: u64 = 64 << 20;

/// What was found before a run.
#[derive(Debug, Default)]
pub struct Preflight {
    pub environment: Environment,
    pub findings: Vec<Finding>,
}

impl Collector {
    /// Describes the host and checks what `spec` asks for. `dir` is the run's folder.
    pub async fn preflight(&self, spec: &RunSpec, dir: &Path, leash: &Leash) -> Preflight {
        let described = tokio::task::spawn_blocking(|| {
            let mut environment = host::describe();
            let gpus = host::describe_gpus(&mut environment);
            (environment, gpus)
        });
        // The blocking task only fails when it panics: the host is then unknown, which is no reason to fail the run.
        let (mut environment, gpus) = described.await.unwrap_or_else(|_| (Environment::default(), Err(NoGpu::NoDriver)));
        let mut findings = device(spec, &environment, gpus);
        findings.extend(disk(dir, self.min_free_bytes));

        // Where the folder cannot be made, each tool says so for itself.
        let _ = std::fs::create_dir_all(dir.join(layout::LOGS));
        let logs = |name: &str| self.logs(dir, name);
        if spec.mode != Mode::Basic {
            match self.version(self.nsys.as_deref(), logs("nsys-version"), leash).await {
                Ok(version) => environment.nsys = Some(version),
                Err(why) => findings.push(no_nsys(why)),
            }
        }
        if spec.mode == Mode::Deep && !environment.gpus.is_empty() {
            match self.version(self.ncu.as_deref(), logs("ncu-version"), leash).await {
                Ok(version) => environment.ncu = Some(version),
                Err(why) => findings.push(no_ncu(why)),
            }
        }
        Preflight { environment, findings }
    }

    /// The version of a tool, or why there is none: `None` when it was not found.
    async fn version(&self, tool: Option<&Path>, logs: Logs, leash: &Leash) -> Result<String, Option<String>> {
        tools::version(tool.ok_or(None)?, &logs, leash).await.map_err(Some)
    }
}

fn no_nsys(why: Option<String>) -> Finding {
    let remedy = format!(
        "install nsys: on Debian the package nsight-systems of the component non-free (scripts/install-nsight.sh does it), elsewhere \
         NVIDIA's package nsight-systems-cli; then have it on the service's PATH or name it in the configuration. Without it the run \
         has no {}",
        layout::NSYS_REPORT
    );
    tool_finding("nsys", "Nsight Systems", "the timeline was not collected", why).advise(remedy)
}

fn no_ncu(why: Option<String>) -> Finding {
    let remedy = "install ncu (NVIDIA's package nsight-compute, or the CUDA toolkit's cuda-nsight-compute), have it on the service's PATH \
                  or name it in the configuration, and permit counters: NVreg_RestrictProfilingToAdminUsers=0 for the nvidia module";
    tool_finding("ncu", "Nsight Compute", "kernel counters were not collected", why).advise(remedy)
}

fn tool_finding(tool: &str, name: &str, loss: &str, why: Option<String>) -> Finding {
    match why {
        None => Finding::new(&format!("{tool}_missing"), Severity::Warning, format!("{name} ({tool}) is not installed: {loss}")),
        Some(why) => {
            Finding::new(&format!("{tool}_unusable"), Severity::Warning, format!("{name} ({tool}) does not work here: {loss}"))
                .with("reason", why)
        }
    }
}

/// What the asked device means on this host.
fn device(spec: &RunSpec, environment: &Environment, gpus: Result<(), NoGpu>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Err(NoGpu::Broken(error)) = &gpus {
        let message = "the NVIDIA driver is installed but does not answer";
        let remedy = "run nvidia-smi: it names the mismatch of driver and library, or the device that fell off the bus";
        findings.push(Finding::new("driver_unusable", Severity::Warning, message).with("reason", error).advise(remedy));
    }
    match spec.device.strip_prefix("cuda:").map(str::parse::<usize>) {
        Some(Ok(index)) if index < environment.gpus.len() => {}
        Some(_) if environment.gpus.is_empty() => findings.push(
            Finding::new(
                "no_gpu",
                Severity::Critical,
                format!("the run asks for {}, and this host has no NVIDIA GPU in use", spec.device),
            )
            .advise("install NVIDIA's driver on a host with a GPU, or ask for the device cpu"),
        ),
        Some(_) => findings.push(
            Finding::new(
                "no_such_gpu",
                Severity::Critical,
                format!("the run asks for {}, and this host has no such GPU", spec.device),
            )
            .with("gpus", environment.gpus.len())
            .advise(format!("ask for cuda:0 to cuda:{}", environment.gpus.len() - 1)),
        ),
        None if environment.gpus.is_empty() && spec.mode != Mode::Basic => findings.push(
            Finding::new(
                "no_gpu",
                Severity::Info,
                "this host has no NVIDIA GPU in use: the run is on the CPU, where there are no kernels to collect",
            )
            .advise("for kernels and counters, run the service on a host with a GPU and NVIDIA's driver"),
        ),
        None => {}
    }
    findings
}

fn disk(dir: &Path, min_free_bytes: u64) -> Option<Finding> {
    let (severity, message, free) = match free_bytes(dir) {
        Ok(free) if free >= min_free_bytes => return None,
        Ok(free) if free < NO_SPACE_BYTES => (Severity::Critical, "the disk of the runs is full", free.to_string()),
        Ok(free) => (Severity::Warning, "the disk of the runs is nearly full: a timeline may not fit", free.to_string()),
        Err(error) => (Severity::Warning, "the free space for runs cannot be told", error.to_string()),
    };
    let finding = Finding::new("disk_low", severity, message).with("free_bytes", free).with("wanted_bytes", min_free_bytes);
    Some(finding.advise("delete runs that are no longer needed (DELETE /runs/{id}), or move the data folder"))
}

fn free_bytes(dir: &Path) -> io::Result<u64> {
    let stat = statvfs(dir)?;
    Ok(stat.blocks_available().saturating_mul(stat.fragment_size()))
}

#[cfg(test)]
mod tests;

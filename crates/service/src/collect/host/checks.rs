//! Checks of the host: each returns a message, or a finding with its remedy.
//!
//! Most checks are pure; those that read the host change nothing. The doctor lists all of them, the
//! preflight of a run the relevant ones.

mod cpu_sampling;

use std::{
    fs::{self, File},
    path::Path,
};

pub use self::cpu_sampling::{SamplingRights, cpu_sampling, perf_events};

use llmprof_core::{
    domain::{
        finding::{
            Finding, Severity,
            catalogue::{self, FindingId},
        },
        runner::Features,
    },
    layout,
    trace::{
        checkup::CheckResult,
        environment::{Driver, Gpu, driver_versions},
    },
};
use nix::sys::statvfs::{FsFlags, statvfs};
use serde::Deserialize;

use crate::{
    artifact::free_space::{START_BYTES, free_bytes},
    collect::{gpu::nvml::NoGpu, tools::version_numbers},
};

/// Share of a GPU's memory in use from which a run may lack memory, percent.
const USED_PCT: u64 = 10;
/// Processes of NVIDIA's monitoring that may use the counters.
const MONITORS: [&str; 2] = ["nv-hostengine", "dcgm-exporter"];
const NSYS_OF_CUDA: &str = include_str!("../../../../../conf/nsys.toml");

fn found(id: FindingId, message: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding::new(id, message).advise(remedy)
}

/// Checks that the driver works.
pub fn driver(driver: &Result<Driver, NoGpu>) -> CheckResult {
    match driver {
        Ok(driver) if driver.gpus.is_empty() => Err(found(
            catalogue::NO_GPU,
            "NVIDIA's driver is loaded but has no GPU: runs execute on the CPU",
            "check nvidia-smi -L; start a container with --gpus all",
        )
        .severity(Severity::Warning)),
        Ok(driver) => {
            let versions = driver_versions(driver.version.as_deref(), driver.cuda.as_deref());
            let versions = versions.unwrap_or_else(|| "driver of unknown version".into());
            Ok(format!("{versions}, GPUs: {}", driver.gpus.len()))
        }
        Err(NoGpu::NoDriver) => Err(found(
            catalogue::NO_GPU,
            "no NVIDIA driver is loaded: runs execute on the CPU, without kernels",
            "install NVIDIA's driver on a host with a GPU; start a container with --gpus all",
        )
        .severity(Severity::Warning)),
        Err(error) => Err(found(
            catalogue::DRIVER_UNUSABLE,
            "the NVIDIA driver is installed but does not respond",
            "run nvidia-smi: it reports a mismatch of driver and library, or a lost device",
        )
        .with("reason", llmprof_core::chain(error))),
    }
}

/// Describes a GPU.
pub fn gpu(gpu: &Gpu) -> CheckResult {
    let capability = gpu
        .compute_capability
        .as_ref()
        .map(|it| format!(", compute capability {it}"))
        .unwrap_or_default();
    Ok(format!(
        "cuda:{} is {}, {} of memory{capability}, {}",
        gpu.index,
        gpu.name,
        gib(gpu.memory_bytes),
        gpu.uuid
    ))
}

/// Checks that a GPU in MIG mode has an instance.
pub fn mig(gpu: &Gpu) -> CheckResult {
    match (gpu.mig, gpu.instances.as_slice()) {
        (None, _) => Ok(format!("cuda:{} does not support MIG", gpu.index)),
        (Some(false), _) => Ok(format!("cuda:{} is not in MIG mode", gpu.index)),
        (Some(true), []) => Err(found(
            catalogue::MIG_WITHOUT_INSTANCES,
            format!("cuda:{} is in MIG mode without an instance: nothing can run on it", gpu.index),
            format!(
                "sudo nvidia-smi mig -i {0} -lgip lists profiles, sudo nvidia-smi mig -i {0} \
                 -cgi PROFILE -C creates an instance, sudo nvidia-smi -i {0} -mig 0 turns MIG off",
                gpu.uuid
            ),
        )),
        (Some(true), instances) => {
            let uuids: Vec<&str> = instances.iter().map(|it| it.uuid.as_str()).collect();
            Ok(format!("cuda:{} has MIG instances: {}", gpu.index, uuids.join(", ")))
        }
    }
}

/// Checks that the memory of a GPU is free.
pub fn gpu_memory(gpu: &Gpu) -> CheckResult {
    let Some(free) = gpu.memory_free_bytes else {
        return Ok(format!("cuda:{} does not report its free memory", gpu.index));
    };
    let used = gpu.memory_bytes.saturating_sub(free);
    if used <= gpu.memory_bytes / 100 * USED_PCT {
        return Ok(format!(
            "cuda:{} has {} of {} free",
            gpu.index,
            gib(free),
            gib(gpu.memory_bytes)
        ));
    }
    let message =
        format!("cuda:{} has only {} of {} free", gpu.index, gib(free), gib(gpu.memory_bytes));
    let remedy = format!("nvidia-smi -i {} lists the processes; stop them, or wait", gpu.uuid);
    Err(found(catalogue::GPU_MEMORY_TAKEN, message, remedy))
}

/// Checks that no other process uses a GPU; `ours` is true for processes of runs.
pub fn gpu_processes(gpu: &Gpu, ours: impl Fn(u32) -> bool) -> CheckResult {
    let others: Vec<String> = gpu
        .processes
        .iter()
        .filter(|it| !ours(it.pid))
        .map(|it| format!("{} {}", it.pid, it.name.as_deref().unwrap_or("(not visible from here)")))
        .collect();
    if others.is_empty() {
        return Ok(format!("no other process uses cuda:{}", gpu.index));
    }
    let message = format!(
        "other processes use cuda:{}: times, power and clocks include their work",
        gpu.index
    );
    let remedy = format!("stop them, or wait: nvidia-smi -i {} lists them", gpu.uuid);
    Err(found(catalogue::GPU_BUSY, message, remedy).with("processes", others.join(", ")))
}

/// A tool's version, or the reason why it is unknown; `None` if it was not found.
pub type ToolVersion = Result<String, Option<String>>;

pub fn nsys(version: &ToolVersion) -> CheckResult {
    let remedy = format!(
        "install nsys: on Debian the package nsight-systems of the component non-free \
         (scripts/install-nsight.sh), elsewhere NVIDIA's package nsight-systems-cli; then add it \
         to the service's PATH or set tools.nsys. Without it the run has no {}",
        layout::NSYS_REPORT
    );
    let ids = [catalogue::NSYS_MISSING, catalogue::NSYS_UNUSABLE];
    tool(ids, "Nsight Systems (nsys)", "no timeline can be collected", version, remedy)
}

pub fn ncu(version: &ToolVersion) -> CheckResult {
    let remedy = "install ncu (NVIDIA's package nsight-compute, or cuda-nsight-compute of the CUDA \
                  toolkit), add it to the service's PATH or set tools.ncu, and permit counters: \
                  NVreg_RestrictProfilingToAdminUsers=0 for the nvidia module";
    let ids = [catalogue::NCU_MISSING, catalogue::NCU_UNUSABLE];
    let loss = "no kernel counters can be collected";
    tool(ids, "Nsight Compute (ncu)", loss, version, remedy.into())
}

fn tool(
    [missing, unusable]: [FindingId; 2],
    name: &str,
    loss: &str,
    version: &ToolVersion,
    remedy: String,
) -> CheckResult {
    match version {
        Ok(version) => Ok(format!("{name} {version}")),
        Err(None) => Err(found(missing, format!("{name} is not installed: {loss}"), remedy)),
        Err(Some(why)) => {
            let message = format!("{name} does not work here: {loss}");
            Err(found(unusable, message, remedy).with("reason", why))
        }
    }
}

#[derive(Deserialize)]
struct Toolkits {
    toolkit: Vec<Toolkit>,
}

#[derive(Deserialize)]
struct Toolkit {
    cuda: String,
    nsys: String,
}

/// Checks that nsys is as new as the driver: an older one exits with 0 and loses kernels.
pub fn nsys_age(nsys: &str, driver: &Driver) -> CheckResult {
    let Some(cuda) = &driver.cuda else {
        return Ok("the driver does not report its CUDA version".into());
    };
    let toolkits =
        toml::from_str::<Toolkits>(NSYS_OF_CUDA).map(|it| it.toolkit).unwrap_or_default();
    let fitting =
        toolkits.into_iter().filter(|it| version_numbers(&it.cuda) <= version_numbers(cuda));
    let Some(fitting) = fitting.max_by_key(|it| version_numbers(&it.cuda)) else {
        return Ok(format!("no known problem of nsys {nsys} with a driver of CUDA {cuda}"));
    };
    let release = |version: &str| version_numbers(version).into_iter().take(2).collect::<Vec<_>>();
    if release(nsys) >= release(&fitting.nsys) {
        return Ok(format!("nsys {nsys} is new enough for the driver's CUDA {cuda}"));
    }
    let message =
        format!("nsys {nsys} is older than the driver: it may exit with 0 and lose most kernels");
    let remedy = format!(
        "install nsys {0} or newer: from NVIDIA's repository, sudo apt-get install \
         nsight-systems-cli; then set tools.nsys or put it first on PATH",
        fitting.nsys
    );
    let finding = found(catalogue::NSYS_OLDER_THAN_DRIVER, message, remedy);
    let version = driver.version.clone().unwrap_or_else(|| "unknown".into());
    Err(finding
        .with("driver", format!("{version}, which supports CUDA up to {cuda}"))
        .with("wanted", format!("nsys {} or newer", fitting.nsys)))
}

/// Checks for NVIDIA's monitoring, which may use the counters; `names` are all processes' names.
pub fn monitors(names: &[String]) -> CheckResult {
    let running: Vec<&str> =
        MONITORS.into_iter().filter(|monitor| names.iter().any(|name| name == monitor)).collect();
    if running.is_empty() {
        return Ok("no process of DCGM uses the counters".into());
    }
    let message = format!(
        "DCGM is running ({}) and may use the GPU's counters: ncu would read none",
        running.join(", ")
    );
    let remedy = "pause its profiling during deep runs: dcgmi profile --pause (and --resume), or \
                  sudo systemctl stop nvidia-dcgm";
    Err(found(catalogue::DCGM_RUNNING, message, remedy))
}

/// Names of all visible processes.
pub fn process_names() -> Vec<String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter(|entry| {
        entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit())
    });
    processes
        .filter_map(|entry| {
            Some(fs::read_to_string(entry.path().join("comm")).ok()?.trim().to_owned())
        })
        .collect()
}

/// Checks the free disk space for a run.
pub fn disk(dir: &Path, wanted_bytes: u64) -> CheckResult {
    let (severity, message, free) = match free_bytes(dir) {
        Ok(free) if free >= wanted_bytes => return Ok(format!("{} free for runs", gib(free))),
        Ok(free) if free < START_BYTES => {
            (Severity::Critical, "the disk of the runs is full", free.to_string())
        }
        Ok(free) => (
            Severity::Warning,
            "the disk of the runs is nearly full: a timeline may not fit",
            free.to_string(),
        ),
        Err(error) => (Severity::Warning, "the free space for runs is unknown", error.to_string()),
    };
    let remedy =
        "delete runs that are no longer needed (DELETE /runs/{id}), or move the data folder";
    Err(found(catalogue::DISK_LOW, message, remedy)
        .severity(severity)
        .with("free_bytes", free)
        .with("wanted_bytes", wanted_bytes))
}

/// Checks that tools can write and execute temporary files.
pub fn temporary_folder(dir: &Path) -> CheckResult {
    const ID: FindingId = catalogue::TEMPORARY_FOLDER_UNUSABLE;
    let remedy = "start the service with TMPDIR=/var/tmp, or another folder that is writable and \
                  not mounted noexec";
    let shown = dir.display();
    let probe = dir.join(format!("llmprof-probe-{}", std::process::id()));
    if let Err(error) = File::create(&probe) {
        let message =
            format!("cannot write to {shown}, the folder for temporary files: no tool can start");
        return Err(found(ID, message, remedy).severity(Severity::Critical).with("reason", error));
    }
    let _ = fs::remove_file(&probe); // it was just created
    let forbids = statvfs(dir).is_ok_and(|stat| stat.flags().contains(FsFlags::ST_NOEXEC));
    if forbids {
        let message = format!(
            "{shown}, the folder for temporary files, is mounted noexec: tools that unpack \
             programs there fail"
        );
        let remedy = format!("sudo mount -o remount,exec {shown}, or {remedy}");
        return Err(found(ID, message, remedy));
    }
    Ok(format!("{shown} is writable and allows programs"))
}

/// Checks that model-runner starts; `without_cuda` is the severity of one built without the feature
/// cuda, if that is a problem.
pub fn runner(
    features: &Result<Features, String>,
    path: &Path,
    without_cuda: Option<Severity>,
) -> CheckResult {
    let shown = path.display();
    let build = "build it on a host with the CUDA toolkit: cargo install --path . --locked \
                 --features cuda; then set tools.model_runner or install it next to llmprof";
    match features {
        Ok(it) if it.cuda => Ok(format!("{shown}, version {}, built for CUDA", it.version)),
        Ok(it) => match without_cuda {
            None => Ok(format!("{shown}, version {}, built for the CPU", it.version)),
            Some(severity) => {
                let message =
                    "the model runner was not built with the feature cuda: it cannot use the GPU";
                Err(found(catalogue::RUNNER_WITHOUT_CUDA, message, build)
                    .severity(severity)
                    .with("runner", shown))
            }
        },
        Err(why) => {
            let message = "the model runner does not report its features";
            Err(found(catalogue::RUNNER_UNUSABLE, message, build)
                .with("runner", shown)
                .with("reason", why))
        }
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests;

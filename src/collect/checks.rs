//! What is looked at before anything runs, check by check: what is in order, or a finding with its remedy.
//!
//! Each check is arithmetic on what was read elsewhere; the few that look at the host themselves change nothing there. The doctor tells
//! all of them, the preflight of a run those that concern it.

use std::{
    fs::{self, File},
    path::Path,
};

use nix::sys::statvfs::{FsFlags, statvfs};
use serde::Deserialize;

use super::{nvml::NoGpu, space::free_bytes, tools::version_numbers};
use crate::{
    artifact::layout,
    run::{Finding, Severity},
    runner::Features,
    trace::{
        checkup::Checked,
        environment::{Driver, Gpu},
    },
};

/// Below this a run cannot even write its events.
const NO_SPACE_BYTES: u64 = 64 << 20;
/// From this share of a GPU's memory on, percent, what others hold may be missing to a run.
const TAKEN_PCT: u64 = 10;
/// Processes of NVIDIA's monitoring that may hold the counters.
const MONITORS: [&str; 2] = ["nv-hostengine", "dcgm-exporter"];
const NSYS_OF_CUDA: &str = include_str!("../../conf/nsys.toml");

fn found(id: &str, severity: Severity, message: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding::new(id, severity, message).advise(remedy)
}

/// Whether there is a driver that works.
pub fn driver(driver: &Result<Driver, NoGpu>) -> Checked {
    match driver {
        Ok(driver) if driver.gpus.is_empty() => Err(found(
            "no_gpu",
            Severity::Warning,
            "NVIDIA's driver is loaded and knows no GPU: runs are carried out on the CPU",
            "look at nvidia-smi -L; in a container, start it with --gpus all",
        )),
        Ok(driver) => {
            let known = |version: &Option<String>| version.clone().unwrap_or_else(|| "of unknown version".into());
            Ok(format!("driver {}, CUDA {}, GPUs: {}", known(&driver.version), known(&driver.cuda), driver.gpus.len()))
        }
        Err(NoGpu::NoDriver) => Err(found(
            "no_gpu",
            Severity::Warning,
            "no NVIDIA driver is loaded: runs are carried out on the CPU, and there are no kernels to collect",
            "on a host with a GPU install NVIDIA's driver; in a container, start it with --gpus all",
        )),
        Err(error) => Err(found(
            "driver_unusable",
            Severity::Warning,
            "the NVIDIA driver is installed but does not answer",
            "run nvidia-smi: it names the mismatch of driver and library, or the device that fell off the bus",
        )
        .with("reason", crate::chain(error))),
    }
}

/// What a GPU is.
pub fn gpu(gpu: &Gpu) -> Checked {
    let capability = gpu.compute_capability.as_ref().map(|it| format!(", compute capability {it}")).unwrap_or_default();
    Ok(format!("cuda:{} is {}, {} of memory{capability}, {}", gpu.index, gpu.name, gib(gpu.memory_bytes), gpu.uuid))
}

/// Whether a GPU that is cut into instances has one.
pub fn mig(gpu: &Gpu) -> Checked {
    match (gpu.mig, gpu.instances.as_slice()) {
        (None, _) => Ok(format!("cuda:{} cannot be cut into instances (MIG)", gpu.index)),
        (Some(false), _) => Ok(format!("cuda:{} is whole (MIG is off)", gpu.index)),
        (Some(true), []) => Err(found(
            "mig_without_instances",
            Severity::Warning,
            format!("cuda:{} is set to be cut into instances (MIG) and has none: nothing can run on it", gpu.index),
            format!(
                "sudo nvidia-smi mig -i {0} -lgip lists profiles, sudo nvidia-smi mig -i {0} -cgi PROFILE -C makes an instance, \
                 sudo nvidia-smi -i {0} -mig 0 makes it whole",
                gpu.uuid
            ),
        )),
        (Some(true), instances) => {
            let uuids: Vec<&str> = instances.iter().map(|it| it.uuid.as_str()).collect();
            Ok(format!("cuda:{} is cut into instances (MIG): {}", gpu.index, uuids.join(", ")))
        }
    }
}

/// Whether the memory of a GPU is free.
pub fn gpu_memory(gpu: &Gpu) -> Checked {
    let Some(free) = gpu.memory_free_bytes else { return Ok(format!("cuda:{} does not tell its free memory", gpu.index)) };
    let taken = gpu.memory_bytes.saturating_sub(free);
    if taken <= gpu.memory_bytes / 100 * TAKEN_PCT {
        return Ok(format!("cuda:{} has {} of {} free", gpu.index, gib(free), gib(gpu.memory_bytes)));
    }
    let message = format!("cuda:{} has only {} of {} free", gpu.index, gib(free), gib(gpu.memory_bytes));
    let remedy = format!("nvidia-smi -i {} shows what holds the memory; end it, or wait", gpu.uuid);
    Err(found("gpu_memory_taken", Severity::Warning, message, remedy))
}

/// Whether somebody else computes on a GPU; `ours` says which processes are parts of our runs.
pub fn gpu_processes(gpu: &Gpu, ours: impl Fn(u32) -> bool) -> Checked {
    let others: Vec<String> = gpu
        .processes
        .iter()
        .filter(|it| !ours(it.pid))
        .map(|it| format!("{} {}", it.pid, it.name.as_deref().unwrap_or("(not visible from here)")))
        .collect();
    if others.is_empty() {
        return Ok(format!("nobody else computes on cuda:{}", gpu.index));
    }
    let message = format!("other processes compute on cuda:{}: times, power and clocks are theirs too", gpu.index);
    let remedy = format!("end them, or wait: nvidia-smi -i {} lists them", gpu.uuid);
    Err(found("gpu_busy", Severity::Warning, message, remedy).with("processes", others.join(", ")))
}

/// A tool's version, or why there is none: `None` when it was not found.
pub type Version = Result<String, Option<String>>;

pub fn nsys(version: &Version) -> Checked {
    let remedy = format!(
        "install nsys: on Debian the package nsight-systems of the component non-free (scripts/install-nsight.sh does it), elsewhere \
         NVIDIA's package nsight-systems-cli; then have it on the service's PATH or name it in the configuration. Without it the run \
         has no {}",
        layout::NSYS_REPORT
    );
    tool("nsys", "Nsight Systems", "no timeline can be collected", version, remedy)
}

pub fn ncu(version: &Version) -> Checked {
    let remedy = "install ncu (NVIDIA's package nsight-compute, or the CUDA toolkit's cuda-nsight-compute), have it on the service's PATH \
                  or name it in the configuration, and permit counters: NVreg_RestrictProfilingToAdminUsers=0 for the nvidia module";
    tool("ncu", "Nsight Compute", "no kernel counters can be collected", version, remedy.into())
}

fn tool(tool: &str, name: &str, loss: &str, version: &Version, remedy: String) -> Checked {
    match version {
        Ok(version) => Ok(format!("{name} ({tool}) {version}")),
        Err(None) => {
            Err(found(&format!("{tool}_missing"), Severity::Warning, format!("{name} ({tool}) is not installed: {loss}"), remedy))
        }
        Err(Some(why)) => {
            let message = format!("{name} ({tool}) does not work here: {loss}");
            Err(found(&format!("{tool}_unusable"), Severity::Warning, message, remedy).with("reason", why))
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

/// Whether nsys is as new as the driver: an older one exits with 0 and loses kernels.
pub fn nsys_age(nsys: &str, driver: &Driver) -> Checked {
    let Some(cuda) = &driver.cuda else { return Ok("the driver does not tell its CUDA version".into()) };
    let toolkits = toml::from_str::<Toolkits>(NSYS_OF_CUDA).map(|it| it.toolkit).unwrap_or_default();
    let fitting = toolkits.into_iter().filter(|it| version_numbers(&it.cuda) <= version_numbers(cuda));
    let Some(fitting) = fitting.max_by_key(|it| version_numbers(&it.cuda)) else {
        return Ok(format!("nothing is known against nsys {nsys} on a driver of CUDA {cuda}"));
    };
    let release = |version: &str| version_numbers(version).into_iter().take(2).collect::<Vec<_>>();
    if release(nsys) >= release(&fitting.nsys) {
        return Ok(format!("nsys {nsys} is as new as the driver's CUDA {cuda} wants"));
    }
    let message = format!("nsys {nsys} is older than the driver: it may exit well and lose most kernels");
    let remedy = format!(
        "install nsys {0} or newer: from NVIDIA's repository, sudo apt-get install nsight-systems-cli; then name it in tools.nsys or \
         have it first on PATH",
        fitting.nsys
    );
    let finding = found("nsys_older_than_driver", Severity::Warning, message, remedy);
    let version = driver.version.clone().unwrap_or_else(|| "unknown".into());
    Err(finding.with("driver", format!("{version}, CUDA {cuda}")).with("wanted", format!("nsys {} or newer", fitting.nsys)))
}

/// Whether NVIDIA's monitoring runs, which may hold the counters that ncu wants; `names` are those of the host's processes.
pub fn monitors(names: &[String]) -> Checked {
    let running: Vec<&str> = MONITORS.into_iter().filter(|monitor| names.iter().any(|name| name == monitor)).collect();
    if running.is_empty() {
        return Ok("no process of DCGM is seen that could hold the counters".into());
    }
    let message = format!("DCGM runs ({}) and may hold the GPU's counters: then ncu finds them taken", running.join(", "));
    let remedy = "pause its profiling while deep runs are carried out: dcgmi profmgr --pause (and --resume), or \
                  sudo systemctl stop nvidia-dcgm";
    Err(found("dcgm_running", Severity::Warning, message, remedy))
}

/// Names of all processes that are seen from here.
pub fn process_names() -> Vec<String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()));
    processes.filter_map(|entry| Some(fs::read_to_string(entry.path().join("comm")).ok()?.trim().to_owned())).collect()
}

/// Whether there is space for what a run leaves.
pub fn disk(dir: &Path, wanted_bytes: u64) -> Checked {
    let (severity, message, free) = match free_bytes(dir) {
        Ok(free) if free >= wanted_bytes => return Ok(format!("{} free for runs", gib(free))),
        Ok(free) if free < NO_SPACE_BYTES => (Severity::Critical, "the disk of the runs is full", free.to_string()),
        Ok(free) => (Severity::Warning, "the disk of the runs is nearly full: a timeline may not fit", free.to_string()),
        Err(error) => (Severity::Warning, "the free space for runs cannot be told", error.to_string()),
    };
    let remedy = "delete runs that are no longer needed (DELETE /runs/{id}), or move the data folder";
    Err(found("disk_low", severity, message, remedy).with("free_bytes", free).with("wanted_bytes", wanted_bytes))
}

/// Whether tools can write temporary files, and start what they write.
pub fn temporary_folder(dir: &Path) -> Checked {
    const ID: &str = "temporary_folder_unusable";
    let remedy = "start the service with TMPDIR=/var/tmp, or another folder that is writable and may hold programs";
    let shown = dir.display();
    let probe = dir.join(format!("llmprof-probe-{}", std::process::id()));
    if let Err(error) = File::create(&probe) {
        let message = format!("the folder for temporary files, {shown}, cannot be written: no tool can be started");
        return Err(found(ID, Severity::Critical, message, remedy).with("reason", error));
    }
    let _ = fs::remove_file(&probe); // it was just made
    let forbids = statvfs(dir).is_ok_and(|stat| stat.flags().contains(FsFlags::ST_NOEXEC));
    if forbids {
        let message = format!("the folder for temporary files, {shown}, is mounted noexec: tools that unpack helpers there fail");
        let remedy = format!("sudo mount -o remount,exec {shown}, or {remedy}");
        return Err(found(ID, Severity::Warning, message, remedy));
    }
    Ok(format!("{shown} is writable and may hold programs"))
}

/// Whether the kernel lets a user sample the CPU; `level` is what `/proc/sys/kernel/perf_event_paranoid` holds.
pub fn perf_events(level: Option<&str>) -> Checked {
    match level.and_then(|level| level.trim().parse::<i32>().ok()) {
        None => Ok("the kernel does not tell perf_event_paranoid; llmprof does not sample the CPU".into()),
        Some(level) if level <= 2 => Ok(format!("perf_event_paranoid is {level}")),
        Some(level) => {
            let message = format!("perf_event_paranoid is {level}: nsys cannot sample the CPU, which llmprof does not ask it to");
            Err(found("perf_events_restricted", Severity::Info, message, "sudo sysctl kernel.perf_event_paranoid=2"))
        }
    }
}

/// Whether the model runner is there; `without_cuda` says how bad it is that it was not built for GPUs, if at all.
pub fn runner(features: &Result<Features, String>, path: &Path, without_cuda: Option<Severity>) -> Checked {
    let shown = path.display();
    let build = "build it on a host with the CUDA toolkit: cargo install --path . --locked --features cuda; then name it in \
                 tools.model_runner or have it beside llmprof";
    match features {
        Ok(it) if it.cuda => Ok(format!("{shown}, version {}, built for CUDA", it.version)),
        Ok(it) => match without_cuda {
            None => Ok(format!("{shown}, version {}, built for the CPU", it.version)),
            Some(severity) => {
                let message = "the model runner was not built with the feature cuda: it cannot use the GPU";
                Err(found("runner_without_cuda", severity, message, build).with("runner", shown))
            }
        },
        Err(why) => {
            let message = "the model runner does not tell what it was built for";
            Err(found("runner_unusable", Severity::Critical, message, build).with("runner", shown).with("reason", why))
        }
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests;

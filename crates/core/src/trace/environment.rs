//! Execution environment of a run: the host, its devices and the tools.
//!
//! Unknown values are absent, never guessed.

use serde::{Deserialize, Serialize};

use crate::domain::{device::Device, named_values::named_values};

/// `env.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Environment {
    pub hostname: Option<String>,
    pub os: Option<String>,
    pub kernel: Option<String>,
    pub cpu: Option<String>,
    /// Logical CPUs that the process may use.
    pub cpus: Option<u32>,
    pub memory_bytes: Option<u64>,
    /// Version of the GPU driver; absent without a GPU.
    pub driver: Option<String>,
    /// Highest CUDA version that the driver supports.
    pub cuda: Option<String>,
    /// Version of the CUDA runtime that the program used, if a capture states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(example = "12.4"))]
    pub cuda_runtime: Option<String>,
    pub gpus: Vec<Gpu>,
    /// The device of the run, by its index on this host: inside the run its only GPU is `cuda:0`.
    pub device: Option<Device>,
    /// Version of each installed tool; absent for a missing tool.
    pub nsys: Option<String>,
    pub ncu: Option<String>,
    /// Profiler that recorded an imported capture, if it is neither nsys nor ncu.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(example = "PyTorch profiler (schema 1, CUPTI 130001)"))]
    pub profiler: Option<String>,
    /// Start of an imported capture, UTC, as the capture states it; absent if it does not, and for
    /// other runs, whose steps have times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(format = "date-time", example = "2026-11-20T19:56:06Z"))]
    pub captured_at: Option<String>,
    pub llmprof: String,
    /// Commit that llmprof was built from.
    pub git_commit: Option<String>,
    /// Load of the host during the unprofiled pass; absent if none was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<HostLoad>,
}

impl Environment {
    /// Versions of the CUDA runtime and of the driver, as far as they are known. Next to the
    /// runtime's version, what an unknown driver supports is left out.
    pub fn cuda_versions(&self) -> Option<String> {
        let runtime = self.cuda_runtime.as_ref().map(|it| format!("CUDA {it}"));
        let max_cuda = self.cuda.as_deref().filter(|_| runtime.is_none() || self.driver.is_some());
        let driver = driver_versions(self.driver.as_deref(), max_cuda);
        let known: Vec<String> = runtime.into_iter().chain(driver).collect();
        (!known.is_empty()).then(|| known.join(", "))
    }
}

/// The driver with the highest CUDA version that it supports, which is not the version in use;
/// `None` if both are unknown.
pub fn driver_versions(driver: Option<&str>, max_cuda: Option<&str>) -> Option<String> {
    match (driver, max_cuda) {
        (Some(driver), Some(cuda)) => {
            Some(format!("driver {driver}, which supports CUDA up to {cuda}"))
        }
        (Some(driver), None) => Some(format!("driver {driver}")),
        (None, Some(cuda)) => Some(format!("a driver that supports CUDA up to {cuda}")),
        (None, None) => None,
    }
}

/// `13000` as `13.0`: CUDA's numbering, 1,000 times the major plus 10 times the minor version. 0
/// means a host without a driver or runtime.
pub fn cuda_version(number: i64) -> Option<String> {
    (number > 0).then(|| format!("{}.{}", number / 1000, number % 1000 / 10))
}

named_values! {
    /// Source of the time that tasks waited for a CPU.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    LoadSource {
        Pressure = "/proc/pressure/cpu",
        RunnableTasks = "/proc/loadavg",
    }
}

/// Load of the host during a pass: `baseline/host.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HostLoad {
    /// Share of the pass during which at least one task of the host waited for a CPU, percent.
    pub cpu_wait_pct: Option<f64>,
    /// `/proc/pressure/cpu`, or `/proc/loadavg`, sampled, if the kernel lacks the former.
    pub source: LoadSource,
    /// Load average over one minute, at the start and at the end of the pass.
    pub load_start: Option<f64>,
    pub load_end: Option<f64>,
    /// Share from which the host counts as busy, percent; 0: never.
    pub busy_pct: u32,
}

/// A GPU, identified by its UUID; the index is for display.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Gpu {
    pub index: u32,
    pub uuid: String,
    pub name: String,
    pub memory_bytes: u64,
    pub memory_free_bytes: Option<u64>,
    /// CUDA compute capability.
    #[cfg_attr(feature = "schema", schema(example = "9.0"))]
    pub compute_capability: Option<String>,
    /// True when it is partitioned into instances (MIG); `null` if MIG is not supported.
    pub mig: Option<bool>,
    #[serde(default)]
    pub instances: Vec<GpuInstance>,
    /// Compute processes on the GPU.
    #[serde(default)]
    pub processes: Vec<GpuProcess>,
    pub power_limit_w: Option<f64>,
    pub max_sm_mhz: Option<u32>,
    pub max_memory_mhz: Option<u32>,
    /// Number of SMs, if a capture reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_count: Option<u32>,
    /// Size of the L2 cache and max resident warps of an SM; only from captures, in no file.
    #[serde(skip)]
    pub l2_bytes: Option<u64>,
    #[serde(skip)]
    pub warps_per_sm: Option<u32>,
    /// Bandwidth of its memory by the capture, bytes per second; in no file.
    #[serde(skip)]
    pub bytes_per_s: Option<u64>,
}

/// A MIG instance: a partition of a GPU that acts as a device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GpuInstance {
    pub uuid: String,
    pub name: String,
    pub memory_bytes: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GpuProcess {
    pub pid: u32,
    /// `null` if the process is not visible from this namespace.
    pub name: Option<String>,
    pub memory_bytes: Option<u64>,
}

/// The NVIDIA driver's report of itself and its devices.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Driver {
    pub version: Option<String>,
    /// Highest CUDA version that it supports.
    pub cuda: Option<String>,
    pub gpus: Vec<Gpu>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_the_runtime_is_not_the_highest_of_the_driver() {
        for (runtime, driver, max_cuda, text) in [
            (None, None, None, None),
            (Some("12.4"), None, None, Some("CUDA 12.4")),
            (None, Some("580.95"), None, Some("driver 580.95")),
            (None, None, Some("13.0"), Some("a driver that supports CUDA up to 13.0")),
            (
                None,
                Some("580.95"),
                Some("13.0"),
                Some("driver 580.95, which supports CUDA up to 13.0"),
            ),
            (Some("12.4"), None, Some("13.0"), Some("CUDA 12.4")),
            (
                Some("12.4"),
                Some("580.95"),
                Some("13.0"),
                Some("CUDA 12.4, driver 580.95, which supports CUDA up to 13.0"),
            ),
        ] {
            let owned = |it: Option<&str>| it.map(str::to_owned);
            let environment = Environment {
                cuda_runtime: owned(runtime),
                driver: owned(driver),
                cuda: owned(max_cuda),
                ..Environment::default()
            };
            assert_eq!(environment.cuda_versions().as_deref(), text);
        }
    }

    #[test]
    fn a_number_of_cuda_is_a_version_if_it_is_positive() {
        for (number, version) in
            [(13000, Some("13.0")), (11080, Some("11.8")), (0, None), (-1, None)]
        {
            assert_eq!(cuda_version(number).as_deref(), version, "{number}");
        }
    }
}

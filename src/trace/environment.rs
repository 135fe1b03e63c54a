//! Where a run ran: the host, its devices, and the tools.
//!
//! What could not be found out is absent, never guessed.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::device::Device;

/// `env.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Environment {
    pub hostname: Option<String>,
    pub os: Option<String>,
    pub kernel: Option<String>,
    pub cpu: Option<String>,
    /// Logical CPUs that the process may use.
    pub cpus: Option<u32>,
    pub memory_bytes: Option<u64>,
    /// Driver of the GPU, when there is one.
    pub driver: Option<String>,
    /// CUDA version that the driver offers.
    pub cuda: Option<String>,
    pub gpus: Vec<Gpu>,
    /// The device that the run was on, as this host knows it: the run itself calls its only GPU `cuda:0`.
    pub device: Option<Device>,
    /// Version of each tool that was found; a tool that is missing is absent.
    pub nsys: Option<String>,
    pub ncu: Option<String>,
    pub llmprof: String,
    /// Commit that the program was built from.
    pub git_commit: Option<String>,
}

/// A GPU, by its UUID: the index is a name for people.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Gpu {
    pub index: u32,
    pub uuid: String,
    pub name: String,
    pub memory_bytes: u64,
    pub memory_free_bytes: Option<u64>,
    /// CUDA compute capability.
    #[schema(example = "9.0")]
    pub compute_capability: Option<String>,
    /// Whether it is cut into instances (MIG); `null` where it cannot be.
    pub mig: Option<bool>,
    #[serde(default)]
    pub instances: Vec<GpuInstance>,
    /// Processes that compute on it.
    #[serde(default)]
    pub processes: Vec<GpuProcess>,
    pub power_limit_w: Option<f64>,
    pub max_sm_mhz: Option<u32>,
    pub max_memory_mhz: Option<u32>,
    /// Multiprocessors, where a capture tells them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_count: Option<u32>,
}

/// A part of a GPU that is a device of its own (MIG).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuInstance {
    pub uuid: String,
    pub name: String,
    pub memory_bytes: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuProcess {
    pub pid: u32,
    /// `null` where the process cannot be seen from here.
    pub name: Option<String>,
    pub memory_bytes: Option<u64>,
}

/// What NVIDIA's driver says of itself and its devices.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Driver {
    pub version: Option<String>,
    /// CUDA version that it offers.
    pub cuda: Option<String>,
    pub gpus: Vec<Gpu>,
}

//! Where a run ran: the host, its devices, and the tools.
//!
//! What could not be found out is absent, never guessed.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
    /// Version of each tool that was found; a tool that is missing is absent.
    pub nsys: Option<String>,
    pub ncu: Option<String>,
    pub llmprof: String,
    /// Commit that the program was built from.
    pub git_commit: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Gpu {
    pub index: u32,
    pub uuid: String,
    pub name: String,
    pub memory_bytes: u64,
}

//! GPUs of this host, through NVIDIA's management library (NVML).

pub mod devices;
pub mod gpu_monitor;
pub mod nvml;
pub mod sampler;

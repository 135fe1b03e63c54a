//! What the machine says of itself: system, processor, memory, devices.
//!
//! Reads and never changes anything. What cannot be read is absent.

use std::fs;

use nvml_wrapper::{Nvml, cuda_driver_version_major, cuda_driver_version_minor, error::NvmlError};

use crate::trace::environment::{Environment, Gpu};

/// Describes the host, its tools aside.
pub fn describe() -> Environment {
    let read = |path: &str| fs::read_to_string(path).ok();
    let line = |path: &str| read(path).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    Environment {
        hostname: line("/proc/sys/kernel/hostname"),
        os: read("/etc/os-release").and_then(|text| os_name(&text)),
        kernel: line("/proc/sys/kernel/osrelease"),
        cpu: read("/proc/cpuinfo").and_then(|text| field(&text, "model name")),
        cpus: std::thread::available_parallelism().ok().and_then(|n| u32::try_from(n.get()).ok()),
        memory_bytes: read("/proc/meminfo").and_then(|text| memory(&text)),
        llmprof: env!("CARGO_PKG_VERSION").to_owned(),
        git_commit: option_env!("LLMPROF_GIT_COMMIT").map(str::to_owned),
        ..Environment::default()
    }
}

/// `PRETTY_NAME` of an os-release file.
fn os_name(text: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim_matches(['"', '\'']).to_owned())
}

/// The first `NAME : value` of a file under `/proc`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
}

fn memory(text: &str) -> Option<u64> {
    field(text, "MemTotal")?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Why no GPU can be told.
#[derive(Debug, thiserror::Error)]
pub enum NoGpu {
    /// No driver is installed, or it is not loaded: a machine without a GPU.
    #[error("no NVIDIA driver is loaded")]
    NoDriver,
    /// There is a driver, and it does not work.
    #[error("the NVIDIA driver does not answer")]
    Broken(#[source] NvmlError),
}

/// Adds driver, CUDA version and GPUs, from NVIDIA's management library.
pub fn describe_gpus(environment: &mut Environment) -> Result<(), NoGpu> {
    let nvml = open().map_err(|error| match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound | NvmlError::DriverNotLoaded => NoGpu::NoDriver,
        error => NoGpu::Broken(error),
    })?;
    environment.driver = nvml.sys_driver_version().ok();
    environment.cuda =
        nvml.sys_cuda_driver_version().ok().map(|v| format!("{}.{}", cuda_driver_version_major(v), cuda_driver_version_minor(v)));
    let count = nvml.device_count().map_err(NoGpu::Broken)?;
    environment.gpus = (0..count).map(|index| gpu(&nvml, index)).collect::<Result<_, _>>().map_err(NoGpu::Broken)?;
    Ok(())
}

/// Opens the library by the name that drivers install; the bare name comes with development packages only.
fn open() -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path("libnvidia-ml.so.1".as_ref()).init().or_else(|error| match error {
        NvmlError::LibloadingError(_) => Nvml::init(),
        error => Err(error),
    })
}

fn gpu(nvml: &Nvml, index: u32) -> Result<Gpu, NvmlError> {
    let device = nvml.device_by_index(index)?;
    Ok(Gpu { index, uuid: device.uuid()?, name: device.name()?, memory_bytes: device.memory_info()?.total })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes_are_read_as_the_system_writes_them() {
        assert_eq!(
            os_name("ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n").as_deref(),
            Some("Debian GNU/Linux 12 (bookworm)")
        );
        let cpu = "processor\t: 0\nmodel name\t: Some CPU @ 2.0 GHz\n\nprocessor\t: 1\nmodel name\t: Other\n";
        assert_eq!(field(cpu, "model name").as_deref(), Some("Some CPU @ 2.0 GHz"));
        assert_eq!(memory("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
    }

    #[test]
    fn what_is_not_there_is_absent() {
        assert_eq!((os_name(""), field("", "model name"), memory("MemTotal: many")), (None, None, None));
    }

    #[test]
    fn this_host_is_described() {
        let host = describe();
        assert!(host.kernel.is_some() && host.cpus.is_some_and(|n| n > 0) && host.memory_bytes.is_some_and(|n| n > 1 << 20));
    }
}

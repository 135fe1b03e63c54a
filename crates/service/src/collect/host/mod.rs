//! Description of the host: system, processor, memory. `gpu::nvml` describes its GPUs.
//!
//! Changes nothing. Values that cannot be read are absent.

pub mod checks;
pub mod doctor;
pub mod exhaustion;
pub mod load;
pub mod preflight;

use std::fs;

use llmprof_core::trace::environment::Environment;

/// Describes the host without its tools and GPUs.
pub fn describe() -> Environment {
    let read = |path: &str| fs::read_to_string(path).ok();
    let line =
        |path: &str| read(path).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    Environment {
        hostname: line("/proc/sys/kernel/hostname"),
        os: read("/etc/os-release").and_then(|text| os_name(&text)),
        kernel: line("/proc/sys/kernel/osrelease"),
        cpu: read("/proc/cpuinfo").and_then(|text| field(&text, "model name")),
        cpus: std::thread::available_parallelism().ok().and_then(|n| u32::try_from(n.get()).ok()),
        memory_bytes: read("/proc/meminfo").and_then(|text| memory(&text)),
        llmprof: env!("CARGO_PKG_VERSION").to_owned(),
        git_commit: crate::build::commit(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes_are_read_from_the_systems_files() {
        assert_eq!(
            os_name("ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n").as_deref(),
            Some("Debian GNU/Linux 12 (bookworm)")
        );
        let cpu = "processor\t: 0\nmodel name\t: Some CPU @ 2.0 GHz\n\n\
                   processor\t: 1\nmodel name\t: Other\n";
        assert_eq!(field(cpu, "model name").as_deref(), Some("Some CPU @ 2.0 GHz"));
        assert_eq!(memory("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
    }

    #[test]
    fn missing_values_are_absent() {
        assert_eq!(
            (os_name(""), field("", "model name"), memory("MemTotal: many")),
            (None, None, None)
        );
    }

    #[test]
    fn this_host_is_described() {
        let host = describe();
        assert!(
            host.kernel.is_some()
                && host.cpus.is_some_and(|n| n > 0)
                && host.memory_bytes.is_some_and(|n| n > 1 << 20)
        );
    }
}

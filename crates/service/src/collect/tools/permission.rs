//! Permission to read a GPU's counters: from the driver's setting, or from a probe of one kernel
//! once per boot.
//!
//! By default the driver denies counters to ordinary users, and ncu reports that only after minutes
//! of a pass. The result of the probe is stored in the data folder, unless it is temporary, such as
//! a monitor that uses the counters.

use std::{fs, path::Path, time::Duration};

use llmprof_core::{
    domain::{
        device::ONLY_GPU,
        finding::{
            Finding,
            catalogue::{self, FindingId},
        },
    },
    trace::checkup::CheckResult,
};
use serde::{Deserialize, Serialize};

use crate::collect::{
    Collector, confined,
    process::{
        argv::Argv,
        child::{ProcessLimits, run},
        output::{Logs, last_lines},
    },
};

/// Metric of the probe: every GPU has it, and one pass reads it.
const METRIC: &str = "sm__cycles_elapsed.max";
/// Time limit of the probe: the runner loads CUDA and creates a small model's weights.
const LIMIT: Duration = Duration::from_secs(120);
/// The bits of capabilities.
pub const SYS_ADMIN: u64 = 1 << 21;
pub const PERFMON: u64 = 1 << 38;
const STORED: &str = "counters.json";

/// Facts that decide the permission, in addition to ncu.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PermissionFacts {
    /// The driver's `RmProfilingAdminOnly`; `None` if unknown.
    admin_only: Option<bool>,
    admin: bool,
    boot: String,
}

impl PermissionFacts {
    fn read() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            admin_only: field(&read("/proc/driver/nvidia/params"), "RmProfilingAdminOnly")
                .map(|value| value == "1"),
            admin: has_capability(SYS_ADMIN),
            boot: read("/proc/sys/kernel/random/boot_id").trim().to_owned(),
        }
    }
}

/// True if this process has a capability of the set `any_of`.
pub fn has_capability(any_of: u64) -> bool {
    own_status("CapEff")
        .and_then(|set| u64::from_str_radix(&set, 16).ok())
        .is_some_and(|set| set & any_of != 0)
}

/// True if the effective user of this process is root.
pub fn is_root() -> bool {
    own_status("Uid").is_some_and(|ids| ids.split_whitespace().nth(1) == Some("0"))
}

fn own_status(name: &str) -> Option<String> {
    field(&fs::read_to_string("/proc/self/status").ok()?, name)
}

fn field(text: &str, name: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
}

/// Result of one probe.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PermissionAttempt {
    Permitted,
    Forbidden,
    /// Another tool uses the counters.
    Held,
    Unclear(String),
}

/// Result of a probe, valid until the next boot.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StoredPermission {
    /// All facts that it depends on.
    key: String,
    permitted: bool,
}

impl Collector {
    /// Checks that ncu may read the counters of `gpu`. `None` without ncu, and if the result is
    /// unknown and `probe` is false.
    pub(crate) async fn counter_permission(
        &self,
        gpu: &str,
        probe: bool,
        scratch: &Path,
        limits: &ProcessLimits,
    ) -> Option<CheckResult> {
        let rights = PermissionFacts::read();
        if rights.admin_only == Some(true) && !rights.admin {
            return Some(check_result(&PermissionAttempt::Forbidden));
        }
        let ncu = self.ncu.as_deref()?;
        let key = format!(
            "{} {gpu} {} {:?} {}",
            rights.boot,
            ncu.display(),
            rights.admin_only,
            rights.admin
        );
        let file = self.state.as_ref().map(|folder| folder.join(STORED));
        if let Some(permitted) = file.as_deref().and_then(|file| read_stored(file, &key)) {
            return Some(check_result(if permitted {
                &PermissionAttempt::Permitted
            } else {
                &PermissionAttempt::Forbidden
            }));
        }
        if !probe {
            return None;
        }
        let probed = self.probe_one_kernel(ncu, gpu, scratch, limits).await;
        let permitted = match probed {
            PermissionAttempt::Permitted => Some(true),
            PermissionAttempt::Forbidden => Some(false),
            PermissionAttempt::Held | PermissionAttempt::Unclear(_) => None,
        };
        if let (Some(file), Some(permitted)) = (file, permitted)
            && let Ok(text) = serde_json::to_string(&StoredPermission { key, permitted })
        {
            let _ = fs::write(file, text); // on failure it is probed again
        }
        Some(check_result(&probed))
    }

    async fn probe_one_kernel(
        &self,
        ncu: &Path,
        gpu: &str,
        scratch: &Path,
        limits: &ProcessLimits,
    ) -> PermissionAttempt {
        let out = scratch.join("counters");
        let argv = probe_command(ncu, &self.runner, gpu, &out);
        let logs = Logs::named(scratch, "ncu-counters");
        let ended = run(&argv, &logs, &limits.short(LIMIT)).await;
        let _ = fs::remove_dir_all(&out); // the runner's output is not needed
        let lines: Vec<String> =
            [&logs.stdout, &logs.stderr].into_iter().flat_map(|log| last_lines(log, 200)).collect();
        match ended {
            Ok(reason) => interpret(&lines, || format!("ncu {reason}")),
            Err(error) => PermissionAttempt::Unclear(format!("cannot start ncu: {error}")),
        }
    }
}

/// Profiles one kernel of the smallest model, then ends it.
fn probe_command(ncu: &Path, runner: &Path, gpu: &str, out: &Path) -> Argv {
    let argv = Argv::new(ncu)
        .args([
            "--metrics",
            METRIC,
            "--clock-control",
            "none",
            "--launch-count",
            "1",
            "--kill",
            "yes",
        ])
        .arg(runner)
        .args(["run", "--model", "deepseek-ocr-tiny", "--device", ONLY_GPU])
        .args(["--warmup", "0", "--repeats", "1", "--max-new-tokens", "1", "--out"])
        .arg(out);
    confined(argv, Some(gpu))
}

/// Interprets ncu's output; its exit code is not reliable, since it kills the runner.
fn interpret(lines: &[String], exit: impl FnOnce() -> String) -> PermissionAttempt {
    let contains = |text: &str| lines.iter().any(|line| line.contains(text));
    if contains("ERR_NVGPUCTRPERM") {
        PermissionAttempt::Forbidden
    } else if contains("driver resource was unavailable") {
        PermissionAttempt::Held
    } else if lines.iter().any(|line| line.contains("sm__cycles_elapsed") && !line.contains("n/a"))
    {
        PermissionAttempt::Permitted
    } else {
        let last = lines.iter().rev().find(|line| line.contains("==ERROR==")).or(lines.last());
        PermissionAttempt::Unclear(
            std::iter::once(exit()).chain(last.cloned()).collect::<Vec<_>>().join(": "),
        )
    }
}

fn read_stored(file: &Path, key: &str) -> Option<bool> {
    let stored: StoredPermission = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    (stored.key == key).then_some(stored.permitted)
}

fn check_result(probed: &PermissionAttempt) -> CheckResult {
    let warning =
        |id: FindingId, message: &str, remedy: &str| Err(Finding::new(id, message).advise(remedy));
    match probed {
        PermissionAttempt::Permitted => Ok("ncu may read the GPU's counters".into()),
        PermissionAttempt::Forbidden => warning(
            catalogue::COUNTERS_FORBIDDEN,
            "the driver allows only administrators to read the GPU's counters (ERR_NVGPUCTRPERM): \
             ncu and samples of nsys collect nothing",
            "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee \
             /etc/modprobe.d/llmprof.conf, then sudo update-initramfs -u and reboot; or start the \
             service with CAP_SYS_ADMIN (in a container: --cap-add SYS_ADMIN)",
        ),
        PermissionAttempt::Held => warning(
            catalogue::COUNTERS_HELD,
            "another tool uses the GPU's counters: ncu and samples of nsys collect nothing until \
             it releases them",
            "dcgmi profile --pause (and --resume afterwards), or sudo systemctl stop nvidia-dcgm; \
             stop other profilers",
        ),
        PermissionAttempt::Unclear(why) => {
            let message = "cannot determine if ncu may read the GPU's counters";
            let remedy = "run: ncu --launch-count 1 --kill yes model-runner run \
                          --model deepseek-ocr-tiny --device cuda:0 --out out";
            Err(Finding::new(catalogue::COUNTERS_UNTRIED, message)
                .with("reason", why)
                .advise(remedy))
        }
    }
}

#[cfg(test)]
mod tests {
    use llmprof_core::domain::ids::RunId;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::collect::tests::program;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_output_of_ncu_is_interpreted() {
        let exit = || "ncu exited with code 1".to_owned();
        let forbidden = "==PROF== Connected to process 7\n==ERROR== ERR_NVGPUCTRPERM - The user \
                         does not have permission to access NVIDIA GPU Performance Counters on the \
                         target device 0.";
        assert_eq!(interpret(&lines(forbidden), exit), PermissionAttempt::Forbidden);
        let held = "==ERROR== Profiling failed because a driver resource was unavailable. Ensure \
                    that no other tool (like DCGM) is concurrently collecting profiling data.";
        assert_eq!(interpret(&lines(held), exit), PermissionAttempt::Held);
        assert_eq!(
            interpret(&lines("    sm__cycles_elapsed.max        cycle        2,345"), exit),
            PermissionAttempt::Permitted
        );
        let none = "==WARNING== No kernels were profiled.";
        assert_eq!(
            interpret(&lines(none), exit),
            PermissionAttempt::Unclear(format!("ncu exited with code 1: {none}"))
        );
    }

    #[test]
    fn the_probe_profiles_one_kernel_on_that_gpu_without_clock_control() {
        let (ncu, runner) = (Path::new("ncu"), Path::new("/opt/model-runner"));
        let shell = probe_command(ncu, runner, "GPU-1", Path::new("/tmp/out")).shell();
        let start = "CUDA_VISIBLE_DEVICES=GPU-1 ncu --metrics sm__cycles_elapsed.max \
                     --clock-control none --launch-count 1 --kill yes /opt/model-runner run ";
        assert!(shell.starts_with(start) && shell.contains("--device cuda:0"), "{shell}");
    }

    #[test]
    fn rights_are_read_from_the_kernels_files() {
        assert_eq!(
            field("RmProfilingAdminOnly: 1\nX: 2\n", "RmProfilingAdminOnly").as_deref(),
            Some("1")
        );
        assert_eq!(field("", "RmProfilingAdminOnly"), None);
        assert!(!PermissionFacts::read().boot.is_empty());
    }

    /// Checks with a script as ncu; returns the results and the number of starts of ncu.
    async fn check(script: &str, times: usize) -> (Vec<String>, usize) {
        let dir = tempfile::tempdir().unwrap();
        let ncu = dir.path().join("ncu");
        program(&ncu, &format!("echo x >> '{}'\n{script}", dir.path().join("started").display()));
        let collector = Collector {
            ncu: Some(ncu),
            state: Some(dir.path().to_owned()),
            ..Collector::new("model-runner")
        };
        let limits =
            ProcessLimits::new(RunId::now(), Duration::from_secs(60), CancellationToken::new());
        let mut found = Vec::new();
        for _ in 0..times {
            let checked =
                collector.counter_permission("GPU-1", true, dir.path(), &limits).await.unwrap();
            let outcome = checked.map_or_else(|it| it.id.clone(), |_| "permitted".to_owned());
            found.push(outcome);
        }
        (found, fs::read_to_string(dir.path().join("started")).unwrap_or_default().lines().count())
    }

    #[tokio::test]
    async fn a_decisive_probe_is_made_once_per_boot_and_another_repeated() {
        let permitted = check("echo sm__cycles_elapsed.max cycle 12; exit 9", 2).await;
        assert_eq!(permitted, (vec!["permitted".into(); 2], 1));
        let forbidden = check("echo '==ERROR== ERR_NVGPUCTRPERM - no' >&2; exit 1", 2).await;
        assert_eq!(forbidden, (vec!["counters_forbidden".into(); 2], 1));
        let held = check("echo 'a driver resource was unavailable' >&2; exit 1", 2).await;
        assert_eq!(held, (vec!["counters_held".into(); 2], 2));
    }

    #[tokio::test]
    async fn without_ncu_or_request_nothing_is_probed() {
        let dir = tempfile::tempdir().unwrap();
        let limits =
            ProcessLimits::new(RunId::now(), Duration::from_secs(60), CancellationToken::new());
        let collector = Collector::new("model-runner");
        assert!(collector.counter_permission("GPU-1", true, dir.path(), &limits).await.is_none());
        let collector = Collector { ncu: Some("/nowhere/ncu".into()), ..collector };
        assert!(collector.counter_permission("GPU-1", false, dir.path(), &limits).await.is_none());
    }
}

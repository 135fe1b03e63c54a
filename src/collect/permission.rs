//! Whether ncu may read a GPU's counters: told by the driver's setting where that is enough, else tried on one kernel, once per boot.
//!
//! The driver forbids counters to ordinary users unless told otherwise, and ncu says so only after minutes of a pass. The try is kept in
//! the data folder; what depends on the moment, as a monitor that holds the counters, is not.

use std::{fs, path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    Collector,
    argv::Argv,
    child::{Leash, run},
    confined,
    output::{Logs, last_lines},
};
use crate::{
    run::{Finding, Severity},
    trace::{checkup::Checked, device::ONLY_GPU},
};

/// The metric of the try: every GPU has it, and one pass reads it.
const METRIC: &str = "sm__cycles_elapsed.max";
/// Longest that the try may take: the runner loads CUDA and makes a small model's weights.
const LIMIT: Duration = Duration::from_secs(120);
/// The bit of CAP_SYS_ADMIN.
const SYS_ADMIN: u64 = 1 << 21;
const KEPT: &str = "counters.json";

/// What decides over the permission, besides ncu.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rights {
    /// The driver's `RmProfilingAdminOnly`; `None` where it does not tell.
    admin_only: Option<bool>,
    admin: bool,
    boot: String,
}

impl Rights {
    fn read() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            admin_only: field(&read("/proc/driver/nvidia/params"), "RmProfilingAdminOnly").map(|value| value == "1"),
            admin: field(&read("/proc/self/status"), "CapEff")
                .and_then(|set| u64::from_str_radix(&set, 16).ok())
                .is_some_and(|set| set & SYS_ADMIN != 0),
            boot: read("/proc/sys/kernel/random/boot_id").trim().to_owned(),
        }
    }
}

fn field(text: &str, name: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
}

/// What one try said.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Tried {
    Permitted,
    Forbidden,
    /// Somebody else has the counters now.
    Held,
    Unclear(String),
}

/// A try that holds until the next boot.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    /// Everything that it depends on.
    key: String,
    permitted: bool,
}

impl Collector {
    /// Whether ncu may read the counters of `gpu`. `None` where that is not known and not to be tried, or cannot be: there is no ncu.
    pub(super) async fn counters(&self, gpu: &str, try_it: bool, scratch: &Path, leash: &Leash) -> Option<Checked> {
        let rights = Rights::read();
        if rights.admin_only == Some(true) && !rights.admin {
            return Some(told(&Tried::Forbidden));
        }
        let ncu = self.ncu.as_deref()?;
        let key = format!("{} {gpu} {} {:?} {}", rights.boot, ncu.display(), rights.admin_only, rights.admin);
        let file = self.state.as_ref().map(|folder| folder.join(KEPT));
        if let Some(permitted) = file.as_deref().and_then(|file| kept(file, &key)) {
            return Some(told(if permitted { &Tried::Permitted } else { &Tried::Forbidden }));
        }
        if !try_it {
            return None;
        }
        let tried = self.try_one_kernel(ncu, gpu, scratch, leash).await;
        let permitted = match tried {
            Tried::Permitted => Some(true),
            Tried::Forbidden => Some(false),
            Tried::Held | Tried::Unclear(_) => None,
        };
        if let (Some(file), Some(permitted)) = (file, permitted)
            && let Ok(text) = serde_json::to_string(&Kept { key, permitted })
        {
            let _ = fs::write(file, text); // not kept: tried again
        }
        Some(told(&tried))
    }

    async fn try_one_kernel(&self, ncu: &Path, gpu: &str, scratch: &Path, leash: &Leash) -> Tried {
        let out = scratch.join("counters");
        let argv = probe(ncu, &self.runner, gpu, &out);
        let logs = Logs::named(scratch, "ncu-counters");
        let ended = run(&argv, &logs, &leash.short(LIMIT)).await;
        let _ = fs::remove_dir_all(&out); // what the runner wrote was never wanted
        let lines: Vec<String> = [&logs.stdout, &logs.stderr].into_iter().flat_map(|log| last_lines(log, 200)).collect();
        match ended {
            Ok(ended) => judged(&lines, || format!("ncu {ended}")),
            Err(error) => Tried::Unclear(format!("ncu cannot be started: {error}")),
        }
    }
}

/// One kernel of the smallest model, and its end.
fn probe(ncu: &Path, runner: &Path, gpu: &str, out: &Path) -> Argv {
    let argv = Argv::new(ncu)
        .args(["--metrics", METRIC, "--clock-control", "none", "--launch-count", "1", "--kill", "yes"])
        .arg(runner)
        .args(["run", "--model", "deepseek-ocr-tiny", "--device", ONLY_GPU])
        .args(["--warmup", "0", "--repeats", "1", "--max-new-tokens", "1", "--out"])
        .arg(out);
    confined(argv, Some(gpu))
}

/// What ncu's output means; its exit code means little, since it ends the runner.
fn judged(lines: &[String], ended: impl FnOnce() -> String) -> Tried {
    let says = |text: &str| lines.iter().any(|line| line.contains(text));
    if says("ERR_NVGPUCTRPERM") {
        Tried::Forbidden
    } else if says("driver resource was unavailable") {
        Tried::Held
    } else if lines.iter().any(|line| line.contains("sm__cycles_elapsed") && !line.contains("n/a")) {
        Tried::Permitted
    } else {
        let last = lines.iter().rev().find(|line| line.contains("==ERROR==")).or(lines.last());
        Tried::Unclear(std::iter::once(ended()).chain(last.cloned()).collect::<Vec<_>>().join(": "))
    }
}

fn kept(file: &Path, key: &str) -> Option<bool> {
    let kept: Kept = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    (kept.key == key).then_some(kept.permitted)
}

fn told(tried: &Tried) -> Checked {
    let warning = |id: &str, message: &str, remedy: &str| Err(Finding::new(id, Severity::Warning, message).advise(remedy));
    match tried {
        Tried::Permitted => Ok("ncu may read the GPU's counters".into()),
        Tried::Forbidden => warning(
            "counters_forbidden",
            "the driver lets only administrators read the GPU's counters (ERR_NVGPUCTRPERM): ncu collects nothing",
            "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/llmprof.conf, then \
             sudo update-initramfs -u and reboot; or start the service with CAP_SYS_ADMIN (in a container: --cap-add SYS_ADMIN)",
        ),
        Tried::Held => warning(
            "counters_held",
            "another tool holds the GPU's counters: ncu collects nothing until it lets go",
            "dcgmi profmgr --pause (and --resume afterwards), or sudo systemctl stop nvidia-dcgm; end other profilers",
        ),
        Tried::Unclear(why) => {
            let message = "whether ncu may read the GPU's counters could not be found out";
            let remedy = "try by hand: ncu --launch-count 1 --kill yes model-runner run --model deepseek-ocr-tiny --device cuda:0 --out out";
            Err(Finding::new("counters_untried", Severity::Warning, message).with("reason", why).advise(remedy))
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{collect::tests::program, run::RunId};

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn what_ncu_says_is_understood() {
        let ended = || "ncu exited with code 1".to_owned();
        let forbidden = "==PROF== Connected to process 7\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA \
                         GPU Performance Counters on the target device 0.";
        assert_eq!(judged(&lines(forbidden), ended), Tried::Forbidden);
        let held = "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool (like DCGM) is \
                    concurrently collecting profiling data.";
        assert_eq!(judged(&lines(held), ended), Tried::Held);
        assert_eq!(judged(&lines("    sm__cycles_elapsed.max        cycle        2,345"), ended), Tried::Permitted);
        let none = "==WARNING== No kernels were profiled.";
        assert_eq!(judged(&lines(none), ended), Tried::Unclear(format!("ncu exited with code 1: {none}")));
    }

    #[test]
    fn the_try_profiles_one_kernel_on_that_gpu_and_leaves_clocks_alone() {
        let shell = probe(Path::new("ncu"), Path::new("/opt/model-runner"), "GPU-1", Path::new("/tmp/out")).shell();
        let begin = "CUDA_VISIBLE_DEVICES=GPU-1 ncu --metrics sm__cycles_elapsed.max --clock-control none --launch-count 1 --kill yes \
                     /opt/model-runner run ";
        assert!(shell.starts_with(begin) && shell.contains("--device cuda:0"), "{shell}");
    }

    #[test]
    fn rights_are_read_as_the_kernel_writes_them() {
        assert_eq!(field("RmProfilingAdminOnly: 1\nX: 2\n", "RmProfilingAdminOnly").as_deref(), Some("1"));
        assert_eq!(field("", "RmProfilingAdminOnly"), None);
        assert!(!Rights::read().boot.is_empty());
    }

    /// Checks with a shell script as ncu; returns what was found, and how often ncu was started.
    async fn checked(script: &str, times: usize) -> (Vec<String>, usize) {
        let dir = tempfile::tempdir().unwrap();
        let ncu = dir.path().join("ncu");
        program(&ncu, &format!("echo x >> '{}'\n{script}", dir.path().join("started").display()));
        let collector = Collector { ncu: Some(ncu), state: Some(dir.path().to_owned()), ..Collector::new("model-runner") };
        let leash = Leash::new(RunId::now(), Duration::from_secs(60), CancellationToken::new());
        let mut found = Vec::new();
        for _ in 0..times {
            let checked = collector.counters("GPU-1", true, dir.path(), &leash).await.unwrap();
            found.push(checked.map_or_else(|finding| finding.id, |_| "permitted".to_owned()));
        }
        (found, fs::read_to_string(dir.path().join("started")).unwrap_or_default().lines().count())
    }

    #[tokio::test]
    async fn a_try_that_decides_is_made_once_per_boot_and_another_again() {
        let permitted = checked("echo sm__cycles_elapsed.max cycle 12; exit 9", 2).await;
        assert_eq!(permitted, (vec!["permitted".into(); 2], 1));
        let forbidden = checked("echo '==ERROR== ERR_NVGPUCTRPERM - no' >&2; exit 1", 2).await;
        assert_eq!(forbidden, (vec!["counters_forbidden".into(); 2], 1));
        let held = checked("echo 'a driver resource was unavailable' >&2; exit 1", 2).await;
        assert_eq!(held, (vec!["counters_held".into(); 2], 2));
    }

    #[tokio::test]
    async fn without_ncu_or_leave_nothing_is_tried() {
        let dir = tempfile::tempdir().unwrap();
        let leash = Leash::new(RunId::now(), Duration::from_secs(60), CancellationToken::new());
        let collector = Collector::new("model-runner");
        assert!(collector.counters("GPU-1", true, dir.path(), &leash).await.is_none());
        let collector = Collector { ncu: Some("/nowhere/ncu".into()), ..collector };
        assert!(collector.counters("GPU-1", false, dir.path(), &leash).await.is_none());
    }
}

//! A look at the host as a whole: every check, in the order in which they depend on each other.
//!
//! Changes nothing but a folder of its own, which is gone afterwards. The checks themselves are in `checks` and `counters`; the preflight
//! of a run makes the same ones.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::{Collector, checks, child::Leash, devices, nvml, output::Logs, sweep::is_ours, tools};
use crate::{
    run::{RunId, Severity},
    trace::{
        checkup::{Check, Checkup},
        environment::Driver,
    },
};

/// Longest that all tools together may take to answer.
const LIMIT: Duration = Duration::from_secs(180);

/// How much a look may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Nothing runs on a GPU: somebody may be measured there.
    Quiet,
    /// The counters are tried on one kernel, once per boot.
    Thorough,
}

/// A folder for the tools' output, gone when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn make(id: RunId) -> Self {
        let path = std::env::temp_dir().join(format!("llmprof-doctor-{}", id.0.simple()));
        // Where it cannot be made, each tool says so for itself.
        let _ = fs::create_dir(&path);
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // it is under the folder for temporary files
    }
}

impl Collector {
    /// Looks at the host. `data` is the folder of the runs, which need not be there yet.
    pub async fn checkup(&self, data: &Path, look: Look, stop: CancellationToken) -> Checkup {
        let id = RunId::now();
        let (scratch, leash) = (Scratch::make(id), Leash::new(id, LIMIT, stop));
        let driver = read_driver().await;
        let none = Driver::default();
        let known = driver.as_ref().unwrap_or(&none);

        let mut checks = vec![Check::of("driver", checks::driver(&driver))];
        for gpu in &known.gpus {
            checks.extend([
                Check::of("gpu", checks::gpu(gpu)),
                Check::of("mig", checks::mig(gpu)),
                Check::of("gpu_memory", checks::gpu_memory(gpu)),
                Check::of("gpu_processes", checks::gpu_processes(gpu, is_ours)),
            ]);
        }
        let features = tools::features(&self.runner, &Logs::named(&scratch.0, "features"), &leash).await;
        // The service leaves GPUs alone that its runner cannot use.
        let without_cuda = (!known.gpus.is_empty()).then_some(Severity::Warning);
        checks.push(Check::of("model_runner", checks::runner(&features, &self.runner, without_cuda)));

        let nsys = self.tool_version(self.nsys.as_deref(), &scratch.0, "nsys", &leash).await;
        checks.push(Check::of("nsys", checks::nsys(&nsys)));
        if let (Ok(version), false) = (&nsys, known.gpus.is_empty()) {
            checks.push(Check::of("nsys_driver", checks::nsys_age(version, known)));
        }
        let ncu = self.tool_version(self.ncu.as_deref(), &scratch.0, "ncu", &leash).await;
        checks.push(Check::of("ncu", checks::ncu(&ncu)));
        let cuda = features.is_ok_and(|features| features.cuda);
        if let Some(device) = known.gpus.first().and_then(|gpu| devices::parts(gpu).into_iter().next()?.uuid)
            && let Some(counters) = self.counters(&device, cuda && look == Look::Thorough, &scratch.0, &leash).await
        {
            checks.push(Check::of("counters", counters));
        }
        if !known.gpus.is_empty() {
            checks.push(Check::of("dcgm", checks::monitors(&checks::process_names())));
        }
        let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok();
        checks.extend([
            Check::of("disk", checks::disk(existing(data), self.min_free_bytes)),
            Check::of("temporary_folder", checks::temporary_folder(&std::env::temp_dir())),
            Check::of("perf_event_paranoid", checks::perf_events(level.as_deref())),
        ]);
        Checkup::of(format!("{:.3}", jiff::Timestamp::now()), checks)
    }

    /// The devices that runs are carried out on: those `configured`, else what this host has.
    pub async fn devices(&self, configured: &[String]) -> devices::Chosen {
        let driver = read_driver().await;
        let runner = if devices::asks_runner(configured, &driver) {
            let id = RunId::now();
            let (scratch, leash) = (Scratch::make(id), Leash::new(id, LIMIT, CancellationToken::new()));
            tools::features(&self.runner, &Logs::named(&scratch.0, "features"), &leash).await.map(|features| features.cuda)
        } else {
            Ok(false)
        };
        devices::choose(configured, &driver, &runner, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref())
    }

    /// The version of a tool, or why there is none: `None` when it was not found. Its output goes to `logs/NAME-version.*`.
    pub(super) async fn tool_version(&self, tool: Option<&Path>, logs: &Path, name: &str, leash: &Leash) -> checks::Version {
        let logs = Logs { cap: self.log_cap, ..Logs::named(logs, &format!("{name}-version")) };
        tools::version(tool.ok_or(None)?, &logs, leash).await.map_err(Some)
    }
}

/// Asks the driver where it may block.
pub(super) async fn read_driver() -> Result<Driver, nvml::NoGpu> {
    // The task only fails when it panics: the driver is then as good as none.
    tokio::task::spawn_blocking(nvml::read).await.unwrap_or(Err(nvml::NoGpu::NoDriver))
}

/// The folder, or the nearest one above it that is there.
fn existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{collect::tests::program, trace::checkup::CheckState};

    #[tokio::test]
    async fn every_check_is_told_and_each_complaint_has_its_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let (runner, nsys) = (dir.path().join("model-runner"), dir.path().join("nsys"));
        program(&runner, r#"[ "$1" = features ] && echo '{"cuda": false, "version": "0.1.0"}'"#);
        program(&nsys, "echo NVIDIA Nsight Systems version 2025.3.2.474");
        let collector = Collector { nsys: Some(nsys), ..Collector::new(&runner) };
        let checkup = collector.checkup(&dir.path().join("data/not/yet"), Look::Quiet, CancellationToken::new()).await;
        let of = |id: &str| checkup.checks.iter().find(|check| check.id == id).unwrap_or_else(|| panic!("{id}"));
        assert!(of("model_runner").message.contains("version 0.1.0"));
        assert_eq!(of("nsys").message, "Nsight Systems (nsys) 2025.3.2.474");
        assert_eq!((of("ncu").state, of("temporary_folder").state), (CheckState::Warning, CheckState::Ok));
        assert!(["driver", "disk", "perf_event_paranoid"].iter().all(|id| !of(id).message.is_empty()));
        assert!(checkup.checks.iter().all(|check| check.state == CheckState::Ok || check.remedy.is_some()));
        assert!(!dir.path().join("data").exists(), "a look makes no folders");
    }

    #[tokio::test]
    async fn a_runner_that_is_missing_is_a_failure() {
        let dir = tempfile::tempdir().unwrap();
        let checkup = Collector::new(dir.path().join("none")).checkup(dir.path(), Look::Thorough, CancellationToken::new()).await;
        assert_eq!(checkup.state, CheckState::Failure);
    }
}

//! Check of the whole host: every check, in the order of their dependencies.
//!
//! Changes nothing except a temporary folder. The checks are in `checks` and `tools::permission`;
//! the preflight of a run uses the same ones.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use llmprof_core::{
    domain::{finding::Severity, ids::RunId},
    trace::{
        checkup::{Checkup, HostCheck},
        environment::Driver,
    },
};
use tokio_util::sync::CancellationToken;

use super::checks;
use crate::{
    artifact::temporary,
    collect::{
        Collector,
        gpu::{devices, nvml},
        process::{child::ProcessLimits, orphans::is_ours, output::Logs},
        tools,
    },
    config::environment,
    runtime,
};

/// Time limit of all tools together.
const LIMIT: Duration = Duration::from_secs(180);

/// Depth of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckDepth {
    /// Runs nothing on a GPU, which a pass may be using.
    Quiet,
    /// Probes the counters with one kernel, once per boot.
    Thorough,
}

/// Temporary folder for the tools' output, removed on drop, and its lock.
struct Scratch {
    path: PathBuf,
    _in_use: Option<File>,
}

impl Scratch {
    fn create(id: RunId) -> Self {
        let name = format!("{}doctor.{}", temporary::PREFIX, id.0.simple());
        let path = environment::temp_dir().join(name);
        // On failure each tool reports the missing folder.
        let _in_use = temporary::create_folder(&path).ok();
        Self { path, _in_use }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path); // it is in the folder for temporary files
    }
}

impl Collector {
    /// Checks the host. `data` is the folder of the runs, which may not exist yet.
    pub async fn checkup(
        &self,
        data: &Path,
        depth: CheckDepth,
        stop: CancellationToken,
    ) -> Checkup {
        let id = RunId::now();
        let (scratch, limits) = (Scratch::create(id), ProcessLimits::new(id, LIMIT, stop));
        let driver = read_driver().await;
        let none = Driver::default();
        let known = driver.as_ref().unwrap_or(&none);

        let mut checks = vec![HostCheck::of("driver", checks::driver(&driver))];
        for gpu in &known.gpus {
            checks.extend([
                HostCheck::of("gpu", checks::gpu(gpu)),
                HostCheck::of("mig", checks::mig(gpu)),
                HostCheck::of("gpu_memory", checks::gpu_memory(gpu)),
                HostCheck::of("gpu_processes", checks::gpu_processes(gpu, is_ours)),
            ]);
        }
        let features =
            tools::features(&self.runner, &Logs::named(&scratch.path, "features"), &limits).await;
        // The service does not use GPUs that its runner cannot use.
        let without_cuda = (!known.gpus.is_empty()).then_some(Severity::Warning);
        checks.push(HostCheck::of(
            "model_runner",
            checks::runner(&features, &self.runner, without_cuda),
        ));

        let nsys = self.tool_version(self.nsys.as_deref(), &scratch.path, "nsys", &limits).await;
        checks.push(HostCheck::of("nsys", checks::nsys(&nsys)));
        if let (Ok(version), false) = (&nsys, known.gpus.is_empty()) {
            checks.push(HostCheck::of("nsys_driver", checks::nsys_age(version, known)));
        }
        let ncu = self.tool_version(self.ncu.as_deref(), &scratch.path, "ncu", &limits).await;
        checks.push(HostCheck::of("ncu", checks::ncu(&ncu)));
        let cuda = features.is_ok_and(|features| features.cuda);
        if let Some(device) =
            known.gpus.first().and_then(|gpu| devices::parts(gpu).into_iter().next()?.uuid)
            && let Some(counters) = self
                .counter_permission(
                    &device,
                    cuda && depth == CheckDepth::Thorough,
                    &scratch.path,
                    &limits,
                )
                .await
        {
            checks.push(HostCheck::of("counters", counters));
        }
        if !known.gpus.is_empty() {
            checks.push(HostCheck::of("dcgm", checks::monitors(&checks::process_names())));
        }
        let rights = checks::SamplingRights::read();
        checks.extend([
            HostCheck::of("disk", checks::disk(existing(data), self.min_free_bytes)),
            HostCheck::of("temporary_folder", checks::temporary_folder(&environment::temp_dir())),
            HostCheck::of("perf_event_paranoid", checks::perf_events(rights)),
        ]);
        Checkup::of(format!("{:.3}", jiff::Timestamp::now()), checks)
    }

    /// Selects the devices with workers: the `configured` ones, else this host's.
    pub async fn devices(&self, configured: &[String]) -> devices::DeviceSelection {
        let driver = read_driver().await;
        let runner = if devices::needs_runner(configured, &driver) {
            let id = RunId::now();
            let (scratch, limits) =
                (Scratch::create(id), ProcessLimits::new(id, LIMIT, CancellationToken::new()));
            tools::features(&self.runner, &Logs::named(&scratch.path, "features"), &limits)
                .await
                .map(|features| features.cuda)
        } else {
            Ok(false)
        };
        devices::select(configured, &driver, &runner, environment::visible_devices().as_deref())
    }

    /// Returns the version of a tool, or the reason why it is unknown; `None` if it was not found.
    /// The output is in `logs/NAME-version.*`.
    pub(crate) async fn tool_version(
        &self,
        tool: Option<&Path>,
        logs: &Path,
        name: &str,
        limits: &ProcessLimits,
    ) -> checks::ToolVersion {
        let logs = Logs { cap: self.log_cap, ..Logs::named(logs, &format!("{name}-version")) };
        tools::version(tool.ok_or(None)?, &logs, limits).await.map_err(Some)
    }
}

/// Reads the driver on a blocking thread.
pub(crate) async fn read_driver() -> Result<Driver, nvml::NoGpu> {
    // The task only fails when it panics; the driver is then unusable.
    runtime::blocking(nvml::read).await.unwrap_or(Err(nvml::NoGpu::NoDriver))
}

/// The folder, or its nearest existing parent.
fn existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::checkup::CheckState;

    use super::*;
    use crate::collect::tests::program;

    #[tokio::test]
    async fn every_check_is_listed_and_each_problem_has_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let (runner, nsys) = (dir.path().join("model-runner"), dir.path().join("nsys"));
        program(&runner, r#"[ "$1" = features ] && echo '{"cuda": false, "version": "0.1.0"}'"#);
        program(&nsys, "echo NVIDIA Nsight Systems version 2025.3.2.474");
        let collector = Collector { nsys: Some(nsys), ..Collector::new(&runner) };
        let checkup = collector
            .checkup(&dir.path().join("data/not/yet"), CheckDepth::Quiet, CancellationToken::new())
            .await;
        let of = |id: &str| {
            checkup.checks.iter().find(|check| check.id == id).unwrap_or_else(|| panic!("{id}"))
        };
        assert!(of("model_runner").message.contains("version 0.1.0"));
        assert_eq!(of("nsys").message, "Nsight Systems (nsys) 2025.3.2.474");
        assert_eq!(
            (of("ncu").state, of("temporary_folder").state),
            (CheckState::Warning, CheckState::Ok)
        );
        assert!(
            ["driver", "disk", "perf_event_paranoid"].iter().all(|id| !of(id).message.is_empty())
        );
        assert!(
            checkup
                .checks
                .iter()
                .all(|check| check.state == CheckState::Ok || check.remedy.is_some())
        );
        assert!(!dir.path().join("data").exists(), "a check creates no folders");
    }

    #[tokio::test]
    async fn a_missing_runner_is_a_failure() {
        let dir = tempfile::tempdir().unwrap();
        let checkup = Collector::new(dir.path().join("none"))
            .checkup(dir.path(), CheckDepth::Thorough, CancellationToken::new())
            .await;
        assert_eq!(checkup.state, CheckState::Failure);
    }
}

//! The pass under the profiler of PyTorch: a module that Python executes at its start records every
//! process of the command that imports torch.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use llmprof_core::{
    domain::command::CommandPlan,
    layout,
    trace::command::{CommandTimes, Timed},
};

use super::{
    command::{CommandRun, PassPlace},
    pass::PassFolder,
};
use crate::{
    collect::{CollectError, Collector, Pass, ProcessLimits},
    config::environment,
};

/// The module, and its name for Python.
const MODULE: (&str, &str) = ("sitecustomize.py", include_str!("torch_profiler/sitecustomize.py"));
/// Folder of the module in the folder of the pass.
const HOOK: &str = "hook";
const PYTHONPATH: &str = "PYTHONPATH";
/// Variable with the folder of the traces.
const TRACES: &str = "LLMPROF_TORCH_PROFILER";

impl Collector {
    /// Runs the command once, or a server with its client, into `torch_profiler/`: a trace per
    /// process. A server without a client runs for `window`.
    pub async fn torch_profiled_command(
        &self,
        dir: &Path,
        run: &CommandRun,
        window: Duration,
        limits: &ProcessLimits,
    ) -> Result<Pass, CollectError> {
        let folder = PassFolder::create(self, dir, layout::TORCH_PROFILER)?;
        let place = PassPlace::of(&folder)?;
        let hook = folder.path().join(HOOK);
        let module = hook.join(MODULE.0);
        fs::create_dir_all(&hook)
            .and_then(|()| fs::write(&module, MODULE.1))
            .map_err(|source| CollectError::Write { path: module.clone(), source })?;
        let argv = self
            .command_argv(run, &run.plan.program, &run.plan.args, &place)?
            .env(PYTHONPATH, python_path(hook, &run.plan))
            .env(TRACES, folder.path());
        let (pass, times) = match &run.plan.ready {
            None => {
                let pass = folder.run("the command", layout::TORCH_PROFILER, &argv, limits).await?;
                let wall_ns = vec![i64::try_from(pass.wall.as_nanos()).unwrap_or(i64::MAX)];
                let of = Timed::Process;
                (pass, CommandTimes { of, warmup: 0, wall_ns, ready_ns: None })
            }
            Some(ready) => {
                let mut served = self.served(run, ready, &place, (0, 1), Duration::ZERO)?;
                served.duration = window;
                let name = layout::TORCH_PROFILER;
                let pass = served.run_unprofiled(&folder, name, &argv, limits).await?;
                (pass, served.times)
            }
        };
        folder.write_times(&times)?;
        Ok(pass)
    }
}

/// The module's folder before the folders that the command has.
fn python_path(hook: PathBuf, plan: &CommandPlan) -> OsString {
    let passed = || {
        let is_passed = plan.pass_env.iter().any(|name| name == PYTHONPATH);
        environment::variables().find(|(name, _)| is_passed && name == PYTHONPATH)
    };
    let own = plan.env.get(PYTHONPATH).map(OsString::from).or_else(|| Some(passed()?.1));
    let mut path = OsString::from(hook);
    if let Some(own) = own.filter(|it| !it.is_empty()) {
        path.push(":");
        path.push(own);
    }
    path
}

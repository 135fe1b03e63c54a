//! Passes of a command of the host: unprofiled and under nsys, as its plan defines.
//!
//! No shell interprets an argument, and the command gets the variables of its plan, not the
//! service's.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use llmprof_core::{
    domain::{
        command::{ArgumentTemplate, CommandPlan, ReadyCheck},
        finding::{Finding, catalogue},
        profiling::{CaptureRange, NvmlSettings},
    },
    layout,
    trace::command::{CommandTimes, Timed},
};
use tokio::time::Instant;

use super::{
    pass::PassFolder,
    server::{ServedTarget, report_progress},
    session::SessionAccess,
    timeline::{NsysPass, RecordedTarget},
};
use crate::{
    artifact::folder::remove_tree,
    collect::{
        CollectError, Collector, Pass, ProcessLimits,
        gpu::sampler::Samplers,
        host::load::LoadWatch,
        process::{argv::Argv, orphans, ports::free_port},
        tools,
    },
    runtime::work::SlicedWork,
};

/// Value of `CUBLASLT_LOG_MASK` that logs calls which launch kernels, and nothing else.
const TRACE_OF_LAUNCHES: &str = "2";

/// One command of a run.
#[derive(Debug, Clone)]
pub struct CommandRun {
    pub plan: CommandPlan,
    pub warmup: u32,
    pub repeats: u32,
    /// Values of `CUDA_VISIBLE_DEVICES`; none: no GPU is visible.
    pub gpus: Vec<String>,
    /// The session whose server is used, in place of one that is started for each pass.
    pub session: Option<SessionAccess>,
}

/// Values of the placeholders `{out}` and `{port}` of one pass.
pub(super) struct PassPlace {
    pub(super) out: PathBuf,
    pub(super) port: u16,
}

impl Collector {
    /// Runs the unprofiled pass: each repeat is a process of the program, or of a server's client,
    /// into `baseline/`. Its GPUs are sampled during it.
    pub async fn unprofiled_command(
        &self,
        dir: &Path,
        run: &CommandRun,
        nvml: &NvmlSettings,
        limits: &ProcessLimits,
    ) -> Result<Pass, CollectError> {
        let folder = PassFolder::create(self, dir, layout::BASELINE)?;
        let place = PassPlace::of(&folder)?;
        let argv = self.command_argv(run, &run.plan.program, &run.plan.args, &place)?;
        let samplers = Samplers::start(&run.gpus, dir, nvml);
        let load = LoadWatch::start();
        let ran = match (&run.plan.ready, &run.session) {
            (None, _) => repeat(&folder, &place, &argv, run, limits).await,
            (Some(ready), Some(session)) => {
                self.unprofiled_on_session(&folder, (run, ready, session), limits).await
            }
            (Some(ready), None) => {
                let mut served =
                    self.served(run, ready, &place, (run.warmup, run.repeats), Duration::ZERO)?;
                let pass = served.run_unprofiled(&folder, layout::BASELINE, &argv, limits).await;
                pass.map(|pass| (pass, served.times))
            }
        };
        let load = load.stop(self.host_busy_pct).await;
        let not_sampled = samplers.stop().await;
        let (mut pass, times) = ran?;
        folder.write_load(&load)?;
        folder.write_times(&times)?;
        pass.findings.extend(not_sampled);
        Ok(pass)
    }

    /// Runs a pass of nsys: the command and its descendants once under it. A server's client is not
    /// recorded.
    pub async fn traced_command(
        &self,
        dir: &Path,
        run: &CommandRun,
        traced: &NsysPass<'_>,
        limits: &ProcessLimits,
    ) -> Result<Pass, CollectError> {
        let nsys = self.nsys.as_ref().ok_or(CollectError::NotInstalled { tool: "nsys" })?;
        if let (Some(ready), Some(session)) = (&run.plan.ready, &run.session) {
            return self
                .windows_of_session(dir, (run, ready, session), (nsys, traced), limits)
                .await;
        }
        let (folder, settings) =
            (PassFolder::create(self, dir, &traced.folder())?, traced.settings);
        let place = PassPlace::of(&folder)?;
        let target = self
            .command_argv(run, &run.plan.program, &run.plan.args, &place)?
            .env(orphans::TARGET.0, orphans::TARGET.1);
        let on_gpu = !run.gpus.is_empty();
        let (pass, times) = match &run.plan.ready {
            None => {
                let mut wall = None;
                let recorded = RecordedTarget::Program(&mut wall);
                let pass = self.record(&folder, traced, on_gpu, &target, limits, recorded).await?;
                let wall_ns = wall.into_iter().collect();
                (pass, CommandTimes { of: Timed::Process, warmup: 0, wall_ns, ready_ns: None })
            }
            Some(ready) => {
                let turns = (run.warmup.min(settings.warmup), run.repeats.min(settings.repeats));
                let delay = Duration::from_secs(settings.delay_s.into());
                let mut served = self.served(run, ready, &place, turns, delay)?;
                served.duration = Duration::from_secs(settings.duration_s.into());
                let is_whole =
                    settings.records_all() && settings.capture_range == CaptureRange::None;
                if served.is_load && is_whole {
                    served.window = Some(run.plan.window.unwrap_or_default());
                }
                let recorded = RecordedTarget::Server(&mut served);
                let pass = self.record(&folder, traced, on_gpu, &target, limits, recorded).await?;
                (pass, served.times)
            }
        };
        folder.write_times(&times)?;
        Ok(pass)
    }

    /// Logs the GEMMs of cuBLAS and cublasLt in every process of the command, into `gemm_log/`. A
    /// server's client runs once.
    pub async fn command_gemm_log(
        &self,
        dir: &Path,
        run: &CommandRun,
        limits: &ProcessLimits,
    ) -> Result<Pass, CollectError> {
        let name = format!("{}/{}", layout::GEMM_LOG, layout::GEMM_PROCESSES);
        let folder = PassFolder::create(self, dir, &name)?;
        let place = PassPlace::of(&folder)?;
        let file = |name: &str| folder.path().join(name);
        let argv = self
            .command_argv(run, &run.plan.program, &run.plan.args, &place)?
            .env("CUBLAS_LOGINFO_DBG", "1")
            .env("CUBLAS_LOGDEST_DBG", file(layout::CUBLAS_PROCESS_LOG))
            .env("CUBLASLT_LOG_MASK", TRACE_OF_LAUNCHES)
            .env("CUBLASLT_LOG_FILE", file(layout::CUBLASLT_PROCESS_LOG));
        match &run.plan.ready {
            None => folder.run("the command", layout::GEMM_LOG, &argv, limits).await,
            Some(ready) => {
                let mut served = self.served(run, ready, &place, (0, 1), Duration::ZERO)?;
                served.run_unprofiled(&folder, layout::GEMM_LOG, &argv, limits).await
            }
        }
    }

    /// Returns the command that ncu starts, with a new folder for its files in `ncu/`, which may
    /// have finished passes of an earlier attempt.
    pub fn counter_command(&self, dir: &Path, run: &CommandRun) -> Result<Argv, CollectError> {
        let folder = PassFolder::open(self, dir, layout::NCU)?;
        self.command_argv(run, &run.plan.program, &run.plan.args, &PassPlace::of(&folder)?)
    }

    /// Returns the command with its arguments, environment and folder.
    pub(super) fn command_argv(
        &self,
        run: &CommandRun,
        program: &Path,
        args: &[ArgumentTemplate],
        place: &PassPlace,
    ) -> Result<Argv, CollectError> {
        let plan = &run.plan;
        let found = tools::find_program(program)
            .ok_or_else(|| CollectError::NoProgram { program: program.to_owned() })?;
        let mut argv =
            Argv::new(found).args(args.iter().map(|arg| arg.argument(&place.out, place.port)));
        for (name, value) in &plan.env {
            argv = argv.env(name, value);
        }
        argv.pass.clone_from(&plan.pass_env);
        argv.cwd = Some(plan.folder.clone().unwrap_or_else(|| place.out.clone()));
        Ok(argv.env("CUDA_VISIBLE_DEVICES", run.gpus.join(",")))
    }

    pub(super) fn served<'a>(
        &self,
        run: &CommandRun,
        ready: &'a ReadyCheck,
        place: &PassPlace,
        (warmup, repeats): (u32, u32),
        delay: Duration,
    ) -> Result<ServedTarget<'a>, CollectError> {
        let client = match &run.plan.client {
            Some(client) => Some(self.command_argv(run, &client.program, &client.args, place)?),
            None => None,
        };
        let url = ready.url.as_ref().map(|url| url.replace("{port}", &place.port.to_string()));
        let times = CommandTimes { of: Timed::Client, warmup, wall_ns: vec![], ready_ns: None };
        Ok(ServedTarget {
            ready,
            url,
            client,
            window: None,
            gate: None,
            is_load: run.plan.client.as_ref().is_some_and(|client| client.is_load),
            warmup,
            repeats,
            delay,
            duration: Duration::ZERO,
            times,
        })
    }
}

impl PassPlace {
    pub(super) fn of(folder: &PassFolder) -> Result<Self, CollectError> {
        let out = folder.path().join(layout::OUT);
        let port = recreate(&out).and_then(|()| free_port());
        Ok(Self {
            port: port.map_err(|source| CollectError::Write { path: out.clone(), source })?,
            out,
        })
    }
}

/// Recreates `folder`, empty.
fn recreate(folder: &Path) -> io::Result<()> {
    remove_tree(folder, &SlicedWork::default())?;
    fs::create_dir_all(folder)
}

/// Runs the requested repeats, or as many as the time limit allows.
async fn repeat(
    folder: &PassFolder<'_>,
    place: &PassPlace,
    argv: &Argv,
    run: &CommandRun,
    limits: &ProcessLimits,
) -> Result<(Pass, CommandTimes), CollectError> {
    let started = Instant::now();
    let mut times = CommandTimes { of: Timed::Process, warmup: 0, wall_ns: vec![], ready_ns: None };
    let (mut longest, mut findings) = (Duration::ZERO, Vec::new());
    for turn in 0..run.warmup + run.repeats {
        let measured = turn.checked_sub(run.warmup);
        // Half of the time is reserved for the passes after this one.
        let left = limits.deadline.saturating_duration_since(Instant::now());
        if !times.wall_ns.is_empty() && left < longest * 3 {
            findings.push(cut_short(times.wall_ns.len(), run.repeats, longest));
            break;
        }
        if turn > 0 && measured.is_none() && left < longest * 6 {
            continue;
        }
        if let Err(source) = recreate(&place.out) {
            return Err(CollectError::Write { path: place.out.clone(), source });
        }
        let (name, total) = match measured {
            Some(turn) => (format!("{}-{}", layout::BASELINE, turn + 1), run.repeats),
            None => (format!("{}-warmup-{}", layout::BASELINE, turn + 1), run.warmup),
        };
        report_progress(limits, measured.is_some(), measured.unwrap_or(turn), total);
        let pass = folder.run("the command", &name, argv, limits).await?;
        longest = longest.max(pass.wall);
        match measured {
            Some(_) => times.wall_ns.push(i64::try_from(pass.wall.as_nanos()).unwrap_or(i64::MAX)),
            None => times.warmup += 1,
        }
    }
    report_progress(
        limits,
        true,
        u32::try_from(times.wall_ns.len()).unwrap_or(run.repeats),
        run.repeats,
    );
    Ok((Pass { wall: started.elapsed(), findings }, times))
}

fn cut_short(measured: usize, requested: u32, longest: Duration) -> Finding {
    let message = format!(
        "The command was repeated {measured} times, not {requested}: the remaining time of the run \
         is needed for later passes."
    );
    Finding::new(catalogue::REPEATS_CUT_SHORT, message)
        .with("longest repeat, s", format!("{:.1}", longest.as_secs_f64()))
        .advise("request fewer repeats and less warm-up, or raise timeout_s up to limits.run_s")
}

impl PassFolder<'_> {
    /// Writes the times to the folder of the pass.
    pub(super) fn write_times(&self, times: &CommandTimes) -> Result<(), CollectError> {
        let path = self.path().join(layout::TIMES);
        let write = || fs::write(&path, serde_json::to_vec_pretty(times)?);
        write().map_err(|source| CollectError::Write { path: path.clone(), source })
    }
}

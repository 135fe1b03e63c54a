//! The passes of a command of the host: without any profiler, and under nsys. What decides them is all in its plan.
//!
//! No shell reads an argument, and the command sees the variables that its plan names, not the service's.

use std::{
    fs, io,
    net::TcpListener,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    CollectError, Collector, Leash, Pass, Recorded,
    argv::Argv,
    pass::Folder,
    sampler::Sampler,
    server::{Served, progress},
    sweep, tools,
};
use crate::{
    artifact::layout,
    profiling::{NsysSettings, NvmlSettings},
    run::{
        Finding, Severity,
        command::{CommandPlan, Pieces, Ready},
    },
    trace::command::{CommandTimes, Timed},
};

/// Name of the folder in that of a pass which `{out}` stands for.
const OUT: &str = "out";

/// One command of a run.
#[derive(Debug, Clone)]
pub struct CommandRun {
    pub plan: CommandPlan,
    pub warmup: u32,
    pub repeats: u32,
    /// What `CUDA_VISIBLE_DEVICES` is, GPU by GPU; none: it sees no GPU.
    pub gpus: Vec<String>,
}

/// Where one pass of it is.
struct Place {
    out: PathBuf,
    port: u16,
}

impl Collector {
    /// The plain pass: every repeat a process of its own, or of a server's client, into `baseline/`. A GPU is sampled beside it.
    pub async fn plain_command(
        &self,
        dir: &Path,
        run: &CommandRun,
        nvml: &NvmlSettings,
        leash: &Leash,
    ) -> Result<Pass, CollectError> {
        let folder = Folder::fresh(self, dir, layout::BASELINE)?;
        let place = Place::of(&folder)?;
        let argv = self.command_argv(run, &run.plan.program, &run.plan.args, &place)?;
        let known = |gpu: &&String| gpu.starts_with("GPU-") || gpu.starts_with("MIG-");
        let sampled = run.gpus.first().filter(known).filter(|_| nvml.enabled);
        let sampler = sampled.map(|gpu| Sampler::start(gpu, dir.join(layout::NVML), nvml.hz));
        let ran = match &run.plan.ready {
            None => repeat(&folder, &place, &argv, run, leash).await,
            Some(ready) => {
                let mut served = self.served(run, ready, &place, (run.warmup, run.repeats), Duration::ZERO)?;
                let pass = served.plainly(&folder, layout::BASELINE, &argv, leash).await;
                pass.map(|pass| (pass, served.times))
            }
        };
        let not_sampled = match sampler {
            Some(sampler) => sampler.stop().await,
            None => None,
        };
        let (mut pass, times) = ran?;
        folder.keep_times(&times)?;
        pass.findings.extend(not_sampled);
        Ok(pass)
    }

    /// The timeline pass: the command once under nsys, with all that it starts, into `nsys/`. A server's client is no part of it.
    pub async fn traced_command(
        &self,
        dir: &Path,
        run: &CommandRun,
        settings: &NsysSettings,
        leash: &Leash,
    ) -> Result<Pass, CollectError> {
        self.nsys.as_ref().ok_or(CollectError::NotInstalled { tool: "nsys" })?;
        let folder = Folder::fresh(self, dir, layout::NSYS)?;
        let place = Place::of(&folder)?;
        let target = self.command_argv(run, &run.plan.program, &run.plan.args, &place)?.env(sweep::TARGET.0, sweep::TARGET.1);
        let on_gpu = !run.gpus.is_empty();
        let (pass, times) = match &run.plan.ready {
            None => {
                let mut wall = None;
                let pass = self.record(&folder, dir, settings, on_gpu, &target, leash, Recorded::Program(&mut wall)).await?;
                (pass, CommandTimes { of: Timed::Process, warmup: 0, wall_ns: wall.into_iter().collect(), ready_ns: None })
            }
            Some(ready) => {
                let turns = (run.warmup.min(settings.warmup), run.repeats.min(settings.repeats));
                let delay = Duration::from_secs(settings.delay_s.into());
                let mut served = self.served(run, ready, &place, turns, delay)?;
                served.duration = Duration::from_secs(settings.duration_s.into());
                let pass = self.record(&folder, dir, settings, on_gpu, &target, leash, Recorded::Server(&mut served)).await?;
                (pass, served.times)
            }
        };
        folder.keep_times(&times)?;
        Ok(pass)
    }

    /// The command as ncu starts it, with a folder of its own in `ncu/`.
    pub fn counted_command(&self, dir: &Path, run: &CommandRun) -> Result<Argv, CollectError> {
        let folder = Folder::fresh(self, dir, layout::NCU)?;
        self.command_argv(run, &run.plan.program, &run.plan.args, &Place::of(&folder)?)
    }

    /// The command with its arguments, environment and folder in place.
    fn command_argv(&self, run: &CommandRun, program: &Path, args: &[Pieces], place: &Place) -> Result<Argv, CollectError> {
        let plan = &run.plan;
        let found = tools::find_program(program).ok_or_else(|| CollectError::NoProgram { program: program.to_owned() })?;
        let mut argv = Argv::new(found).args(args.iter().map(|arg| arg.argument(&place.out, place.port)));
        for (name, value) in &plan.env {
            argv = argv.env(name, value);
        }
        argv.pass.clone_from(&plan.pass_env);
        argv.cwd = Some(plan.folder.clone().unwrap_or_else(|| place.out.clone()));
        Ok(argv.env("CUDA_VISIBLE_DEVICES", run.gpus.join(",")))
    }

    fn served<'a>(
        &self,
        run: &CommandRun,
        ready: &'a Ready,
        place: &Place,
        (warmup, repeats): (u32, u32),
        delay: Duration,
    ) -> Result<Served<'a>, CollectError> {
        let client = match &run.plan.client {
            Some(client) => Some(self.command_argv(run, &client.program, &client.args, place)?),
            None => None,
        };
        let url = ready.url.as_ref().map(|url| url.replace("{port}", &place.port.to_string()));
        let times = CommandTimes { of: Timed::Client, warmup, wall_ns: vec![], ready_ns: None };
        Ok(Served { ready, url, client, warmup, repeats, delay, duration: Duration::ZERO, times })
    }
}

impl Place {
    fn of(folder: &Folder) -> Result<Self, CollectError> {
        let out = folder.path().join(OUT);
        let port = make(&out).and_then(|()| free_port());
        Ok(Self { port: port.map_err(|source| CollectError::Write { path: out.clone(), source })?, out })
    }
}

/// Makes `folder` anew.
fn make(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::create_dir_all(folder),
    }
}

/// A port of this host that nobody listens on now.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Runs the program as often as was asked for, or as often as the time lasts.
async fn repeat(
    folder: &Folder<'_>,
    place: &Place,
    argv: &Argv,
    run: &CommandRun,
    leash: &Leash,
) -> Result<(Pass, CommandTimes), CollectError> {
    let began = Instant::now();
    let mut times = CommandTimes { of: Timed::Process, warmup: 0, wall_ns: vec![], ready_ns: None };
    let (mut longest, mut findings) = (Duration::ZERO, Vec::new());
    for turn in 0..run.warmup + run.repeats {
        let measured = turn.checked_sub(run.warmup);
        // Half of the time is for the passes after this one.
        let left = leash.deadline.saturating_duration_since(Instant::now());
        if !times.wall_ns.is_empty() && left < longest * 3 {
            findings.push(cut_short(times.wall_ns.len(), run.repeats, longest));
            break;
        }
        if turn > 0 && measured.is_none() && left < longest * 6 {
            continue;
        }
        if let Err(source) = make(&place.out) {
            return Err(CollectError::Write { path: place.out.clone(), source });
        }
        let (name, total) = match measured {
            Some(turn) => (format!("{}-{}", layout::BASELINE, turn + 1), run.repeats),
            None => (format!("{}-warmup-{}", layout::BASELINE, turn + 1), run.warmup),
        };
        progress(leash, measured.is_some(), measured.unwrap_or(turn), total);
        let pass = folder.run("the command", &name, argv, leash).await?;
        longest = longest.max(pass.wall);
        match measured {
            Some(_) => times.wall_ns.push(i64::try_from(pass.wall.as_nanos()).unwrap_or(i64::MAX)),
            None => times.warmup += 1,
        }
    }
    progress(leash, true, u32::try_from(times.wall_ns.len()).unwrap_or(run.repeats), run.repeats);
    Ok((Pass { wall: began.elapsed(), findings }, times))
}

fn cut_short(measured: usize, asked: u32, longest: Duration) -> Finding {
    let message =
        format!("The command was repeated {measured} times, not {asked}: the run's time is needed for what comes after.");
    Finding::new("repeats_cut_short", Severity::Warning, message)
        .with("longest repeat, s", format!("{:.1}", longest.as_secs_f64()))
        .advise("ask for fewer repeats and less warm-up, or raise timeout_s up to limits.run_s")
}

impl Folder<'_> {
    /// Keeps what was timed in the folder of the pass.
    fn keep_times(&self, times: &CommandTimes) -> Result<(), CollectError> {
        let path = self.path().join(layout::TIMES);
        let write = || fs::write(&path, serde_json::to_vec_pretty(times)?);
        write().map_err(|source| CollectError::Write { path: path.clone(), source })
    }
}

//! The steps of a command of the host: it runs plainly, under nsys, and on a GPU under ncu, as a model does.
//!
//! What a runner of ours tells of itself is not known of it, and stays unknown: analysis says so.

use super::{Job, Stop, blocking, deep, pretty, yaml};
use crate::{
    analyze::choose::Choice,
    artifact::layout,
    collect::CommandRun,
    profiling::{Profiling, TraceApi},
    run::{
        Finding, InputFile, Severity, Step, StepState,
        command::{CommandKind, CommandPlan},
        subject::Passes,
    },
    trace::{device::Device, stage::StageRules},
    worker::{offline::rules_of, steps::Ended},
};

impl Job<'_> {
    /// Takes all steps of a command.
    pub(super) async fn commanded(&mut self, plan: &CommandPlan, passes: &Passes, settings: &Profiling) -> Result<(), Stop> {
        self.steps.begin(Step::Preflight);
        let ended = self.prepare_command(plan, settings).await.map_or_else(Ended::failed, |()| Ended::well());
        self.steps.end(&ended);
        if ended.state != StepState::Succeeded {
            return Err(Stop(ended));
        }
        let run = self.command_run(plan, passes);
        self.plain_command(&run, settings).await?;
        let chosen = if settings.nsys.enabled { self.traced_command(&run, settings).await } else { Vec::new() };
        self.list_not_applicable(settings);
        if self.device.is_cpu() {
            return Ok(());
        }
        if settings.ncu.enabled && plan.kind == CommandKind::Program {
            self.command_counters(&run, &chosen, settings).await;
        }
        self.left_out(plan, settings);
        Ok(())
    }

    fn command_run(&self, plan: &CommandPlan, passes: &Passes) -> CommandRun {
        let mut devices: Vec<&Device> =
            std::iter::once(self.device).chain(&self.order.beside).filter(|it| !it.is_cpu()).collect();
        devices.sort_by(|a, b| a.name.cmp(&b.name));
        let gpus = devices.into_iter().map(visible).collect();
        CommandRun { plan: plan.clone(), warmup: passes.warmup, repeats: passes.repeats, gpus }
    }

    /// Looks at the host, and keeps what is about to be started.
    async fn prepare_command(&mut self, plan: &CommandPlan, settings: &Profiling) -> Result<(), String> {
        self.look_at_host(settings, false).await?;
        self.write(layout::INPUTS, &yaml(&Vec::<InputFile>::new())?)?;
        self.write(layout::COMMAND_PLAN, &pretty(plan)?)
    }

    async fn plain_command(&mut self, run: &CommandRun, settings: &Profiling) -> Result<(), Stop> {
        self.steps.begin(Step::Baseline);
        let (leash, lines) = self.leash(Step::Baseline);
        let pass = self.cx.collector.plain_command(self.dir, run, &settings.nvml, &leash).await;
        drop(leash);
        lines.await.ok();
        let ended = self.settle(pass);
        self.steps.end(&ended);
        if ended.state == StepState::Succeeded { Ok(()) } else { Err(Stop(ended)) }
    }

    /// Without its timeline the run is partial. Returns the kernels whose counters are worth reading.
    async fn traced_command(&mut self, run: &CommandRun, settings: &Profiling) -> Vec<Choice> {
        self.steps.begin(Step::Nsys);
        let (mut leash, lines) = self.leash(Step::Nsys);
        if !self.device.is_cpu() && settings.ncu.enabled {
            leash = deep::share_of(&leash, 2);
        }
        let pass = self.cx.collector.traced_command(self.dir, run, &settings.nsys, &leash).await;
        drop(leash);
        lines.await.ok();
        let ended = self.settle(pass);
        let expected = deep::Expected {
            kernels: !run.gpus.is_empty() && run.plan.gpus > 0 && settings.nsys.trace.contains(&TraceApi::Cuda),
            ranges: &[],
        };
        let rules = rules_of(&run.plan.stages, &run.plan.within, &run.plan.without);
        let checked =
            if ended.state == StepState::Succeeded { self.covered(expected, rules, settings).await } else { Ok(Vec::new()) };
        self.end_timeline(ended, checked)
    }

    /// The passes under ncu, one per stage that has ranges.
    async fn command_counters(&mut self, run: &CommandRun, choices: &[Choice], settings: &Profiling) {
        self.steps.begin(Step::Ncu);
        let (leash, lines) = self.leash(Step::Ncu);
        let target = self.cx.collector.counted_command(self.dir, run);
        let ended = match target {
            Err(error) => self.settle(Err(error)),
            Ok(_) if choices.is_empty() && self.cx.collector.ncu.is_some() => Ended::skipped(
                "kernels are chosen by stage, and the timeline has no stage with kernels: see the command's stages",
            ),
            Ok(target) => self.profile_stages(deep::Counted::Command(&target), choices, settings, &leash).await,
        };
        drop(leash);
        lines.await.ok();
        self.steps.end(&ended);
    }

    /// Says what a deep run of a model would have had.
    fn left_out(&mut self, plan: &CommandPlan, settings: &Profiling) {
        let server = (settings.ncu.enabled && plan.kind == CommandKind::Server)
            .then_some("counters: they need a program that ends by itself");
        let products = settings.gemm_log.enabled.then_some("matrix products: their log is taken of our own runner alone");
        let missing: Vec<&str> = [server, products].into_iter().flatten().collect();
        if !missing.is_empty() {
            let message = format!("Not collected of a command: {}.", missing.join("; "));
            self.find(Finding::new("left_out_of_commands", Severity::Info, message));
        }
    }

    /// Reads the timeline back, and says in a finding why it does not count, where it does not.
    pub(super) async fn covered(
        &mut self,
        expected: deep::Expected,
        rules: StageRules,
        settings: &Profiling,
    ) -> Result<Vec<Choice>, String> {
        let (dir, ncu) = (self.dir.to_owned(), settings.ncu.clone());
        let read = blocking(move || deep::read_timeline(&dir, &expected, rules, &ncu)).await;
        let (choices, finding) = read.map_err(|why| self.unreadable(&why))?;
        match finding {
            Some(finding) => {
                let message = finding.message.clone();
                self.find(finding);
                Err(message)
            }
            None => Ok(choices),
        }
    }
}

/// What a process that is to see this GPU alone calls it.
fn visible(device: &Device) -> String {
    let index = || device.name.strip_prefix("cuda:").unwrap_or(&device.name).to_owned();
    device.uuid.clone().unwrap_or_else(index)
}

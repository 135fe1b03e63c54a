//! Where the time of a run went, from a [`Trace`].
//!
//! Everything here is arithmetic on values: no files, no clock, no failure. What the trace does not hold is `None` and a
//! [`Finding`], never guessed.

pub mod activity;
pub mod align;
pub mod alone;
pub mod choose;
pub mod classes;
pub mod cold;
pub mod command;
pub mod cost;
pub mod counters;
pub mod coverage;
pub mod device;
pub mod device_time;
pub mod diff;
pub mod experts;
pub mod foreign;
pub mod gemms;
pub mod gpu;
pub mod graphs;
pub mod invariants;
pub mod kernels;
pub mod launches;
pub mod limits;
pub mod mfu;
pub mod operators;
pub mod outputs;
pub mod overhead;
pub mod power;
pub mod processes;
pub mod regions;
pub mod repeats;
pub mod roofline;
pub mod spans;
pub mod stage_calls;
pub mod stages;
pub mod stats;
pub mod step;
pub mod student;
pub mod subject;
pub mod sums;

mod events;
pub mod findings;
mod interval;
mod scopes;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::{
    model::ModelSpec,
    run::{Dtype, Finding, Severity, SubjectKind},
    trace::{
        Trace,
        event::{End, Start},
        nsys::NsysTrace,
    },
};
use alone::Alone;
use cold::ColdInstance;
use command::CommandTiming;
use cost::{Cost, Workload};
use counters::CounterRecord;
use coverage::StageCoverage;
use device::DevicePeaks;
use device_time::DeviceTimes;
use events::Events;
use experts::ExpertUse;
use gemms::Gemms;
use gpu::StageGpus;
use graphs::WholeGraph;
use invariants::Violations;
use kernels::Kernels;
use launches::Launches;
use limits::Limits;
use mfu::Mfu;
use operators::Operators;
use outputs::OutputCheck;
use overhead::OverheadRecord;
use power::Power;
use processes::Processes;
use regions::Region;
use repeats::OperatorRepeats;
use roofline::Roofline;
use stage_calls::StageCalls;
use stages::Stages;
use step::StepTimeline;
use sums::Sums;

/// All that is known about where the time of a run went.
#[derive(Debug, Clone, Default)]
pub struct Analysis {
    /// What ran, which decides what can be known of it.
    pub subject: SubjectKind,
    /// What the plain pass's runner said it ran.
    pub start: Option<Start>,
    /// What it said when it ended by itself.
    pub end: Option<End>,
    pub stages: Stages,
    pub operators: Operators,
    /// How each operator's time spreads over repeats.
    pub operator_repeats: Vec<OperatorRepeats>,
    pub kernels: Kernels,
    /// What ncu read, by stage, kernel and geometry.
    pub counters: Vec<CounterRecord>,
    /// Where those kernels lie under the device's roofs.
    pub roofline: Roofline,
    pub gemms: Gemms,
    pub cost: Option<Cost>,
    pub mfu: Mfu,
    pub overhead: Vec<OverheadRecord>,
    pub outputs: OutputCheck,
    pub experts: Vec<ExpertUse>,
    /// What the GPUs did in each stage of the traced pass.
    pub stage_gpu: StageGpus,
    /// What the host called in each stage of the traced pass.
    pub stage_calls: BTreeMap<String, StageCalls>,
    /// Time in which each kernel ran alone, by stage and name.
    pub alone: Alone,
    /// CUDA graphs of the traced pass that were traced as a whole, longest first.
    pub graphs: Vec<WholeGraph>,
    /// One decode step, slice by slice.
    pub step: Option<StepTimeline>,
    /// CUDA calls and ranges of the traced pass, summed by name.
    pub sums: Sums,
    /// First instances of stages that count as warm-up.
    pub cold: Vec<ColdInstance>,
    /// Launches of the traced pass whose kernels are recorded, by stage.
    pub coverage: Vec<StageCoverage>,
    /// Processes and devices of the traced pass apart.
    pub processes: Processes,
    /// Ranges of the traced pass with the kernels that were launched in them.
    pub regions: Vec<Region>,
    /// Whether all times are of the traced pass, because there was no plain one.
    pub only_traced: bool,
    /// Wall times of a command; absent where a runner of ours ran.
    pub command: Option<CommandTiming>,
    /// Energy, power and clocks, where a GPU was sampled.
    pub power: Option<Power>,
    /// Figures that cannot be and were left out.
    pub violations: Violations,
    /// What is worth telling a person, worst first.
    pub findings: Vec<Finding>,
}

/// Analyses what the passes of one run left.
pub fn analyze(trace: &Trace, model: Option<&ModelSpec>, peaks: Option<&DevicePeaks>) -> Analysis {
    // Where no runner of ours told its events, the ranges of the capture do.
    let only_traced = trace.baseline.is_empty() && trace.traced.is_empty();
    let outside = if only_traced { "" } else { kernels::SETUP };
    let mut launches = trace.nsys.as_ref().map(|nsys| (nsys, Launches { outside, ..Launches::of(nsys) }));
    // A runner of ours marks its warm-up.
    let unmarked = launches.as_mut().filter(|_| only_traced);
    let cold = unmarked.map(|(nsys, launches)| cold::mark(nsys, launches)).unwrap_or_default();
    let timeline = launches.as_ref().map(|(nsys, launches)| (*nsys, launches));
    let told = timeline.filter(|_| only_traced).map(|(nsys, launches)| foreign::events(nsys, launches)).unwrap_or_default();
    let plain = Events::of(if only_traced { &told } else { &trace.baseline });
    let traced = Events::of(&trace.traced);
    let mut stages = stages::stages(&plain);
    stages.notes.extend(cold.iter().map(stages::cold_note));
    let mut operators = operators::operators(&plain, &stages);
    let cost = model.zip(plain.start).and_then(|(model, start)| static_cost(model, start, &stages));
    let top_k = model.and_then(|model| Some(model.decoder.moe.as_ref()?.top_k));

    let mut violations = Violations::default();
    let counters = counters::counters(&violations.counters(&trace.counters, peaks), timeline);
    let mut walked = timeline.map(|(nsys, launches)| walks(nsys, launches, &counters)).unwrap_or_default();
    let coverage = timeline.map(|(nsys, launches)| coverage::by_stage(nsys, launches)).unwrap_or_default();
    walked.withhold(&coverage);
    timeline.into_iter().for_each(|(_, launches)| walked.withhold_windows(launches));
    let Walks { device, mut kernels, regions, stage_gpu, stage_calls, alone, graphs, step, sums, processes } = walked;
    counters::attach(&mut kernels.records, &counters);
    operators::attach(&mut operators, &device, &traced, &kernels.stages);

    // Samples were taken beside the plain pass: ranges of another one say nothing of them.
    let sampled = if only_traced { Events::default() } else { Events::of(&trace.baseline) };
    let mut power = trace.power.as_ref().map(|log| power::power(log, &sampled, &stages));
    power.iter_mut().for_each(|power| violations.clocks(power));
    let limits = Limits::of(&plain, peaks, power.as_ref());
    let mut mfu = mfu::mfu(&plain, &stages, &operators, cost.as_ref(), &limits);
    let on_cpu = plain.start.is_some_and(|start| start.device == "cpu");
    mfu.operators = mfu::operator_mfu(&operators, &limits, on_cpu, &mut mfu.findings);
    let roofline = roofline::roofline(&counters, &kernels, &limits);

    let command = trace.command.as_ref().map(command::timing);
    let mut analysis = Analysis {
        subject: trace.subject,
        start: plain.start.cloned(),
        end: plain.end.cloned(),
        regions,
        kernels,
        counters,
        roofline,
        gemms: trace.gemms.as_ref().map(gemms::gemms).unwrap_or_default(),
        mfu,
        operator_repeats: repeats::repeats(&plain),
        overhead: overheads(&command, &stages, &traced),
        outputs: outputs::outputs(&plain, &traced),
        experts: experts::experts(&plain, top_k),
        stage_gpu,
        stage_calls,
        alone,
        graphs,
        step: step.or_else(|| step::plain(&plain)),
        sums,
        cold,
        coverage,
        processes,
        only_traced: only_traced && trace.nsys.is_some(),
        command,
        power,
        stages,
        operators,
        cost,
        violations: Violations::default(),
        findings: Vec::new(),
    };
    violations.shares(&mut analysis);
    analysis.violations = violations;
    analysis.findings = findings::findings(&analysis, trace);
    analysis.findings.extend(command::findings(&analysis, trace));
    if analysis.only_traced && analysis.subject != SubjectKind::Command {
        let message = "All times are of a traced pass, which tracing has lengthened: there is no unprofiled one.";
        let finding = Finding::new("only_traced", Severity::Warning, message).with("stages found", analysis.stages.rows.len());
        analysis.findings.push(finding.advise("Time the program without a profiler before quoting its times."));
    }
    analysis.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    analysis
}

/// What tracing cost: the whole of a command, and every stage of which both passes tell.
fn overheads(command: &Option<CommandTiming>, plain: &Stages, traced: &Events) -> Vec<OverheadRecord> {
    let whole = command.as_ref().and_then(CommandTiming::overhead);
    whole.into_iter().chain(overhead::overhead(plain, &stages::stages(traced))).collect()
}

/// What comes of walks over all rows of a timeline.
#[derive(Default)]
struct Walks {
    device: DeviceTimes,
    kernels: Kernels,
    regions: Vec<Region>,
    stage_gpu: StageGpus,
    stage_calls: BTreeMap<String, StageCalls>,
    alone: Alone,
    graphs: Vec<WholeGraph>,
    step: Option<StepTimeline>,
    sums: Sums,
    processes: Processes,
}

impl Walks {
    /// Removes what is measured from the start to the end of a stage where only a bound of an end is known.
    fn withhold_windows(&mut self, launches: &Launches) {
        let bounded =
            |stage: &str| launches.stages.instances.iter().any(|it| it.estimated && launches.stages.labels[it.label] == stage);
        self.stage_gpu.totals.retain(|it| !bounded(&it.stage));
        self.stage_gpu.devices.retain(|it| !bounded(&it.stage));
    }

    /// Removes what would be computed from all kernels of a stage where some of them are missing.
    fn withhold(&mut self, coverage: &[StageCoverage]) {
        let partial: Vec<&str> = coverage.iter().filter(|it| !it.complete()).map(|it| it.stage.as_str()).collect();
        if partial.is_empty() {
            return;
        }
        let is_partial = |stage: &str| partial.contains(&stage);
        self.stage_gpu.totals.retain(|it| !is_partial(&it.stage));
        self.stage_gpu.devices.retain(|it| !is_partial(&it.stage));
        self.device.operators.retain(|(stage, _), _| !is_partial(stage));
        self.step = self.step.take().filter(|_| !is_partial(stages::DECODE));
        // A range may launch into any stage.
        self.regions.clear();
        self.sums.ranges.iter_mut().for_each(|it| it.projected_ns = None);
        self.kernels.withhold(is_partial);
        for it in self.processes.stages.iter_mut().filter(|it| is_partial(&it.stage)) {
            (it.kernel_ms, it.busy_ms) = (None, None);
        }
    }
}

/// Walks a timeline of millions of rows once per table that is made of it, on all cores.
fn walks(nsys: &NsysTrace, launches: &Launches, counters: &[CounterRecord]) -> Walks {
    let mut walks = Walks::default();
    let Walks { device, kernels, regions, stage_gpu, stage_calls, alone, graphs, step, sums, processes } = &mut walks;
    rayon::scope(|scope| {
        scope.spawn(|_| *stage_gpu = gpu::stage_gpu(nsys, launches));
        scope.spawn(|_| *stage_calls = stage_calls::stage_calls(nsys, launches));
        scope.spawn(|_| *alone = alone::alone(nsys, launches));
        scope.spawn(|_| *graphs = graphs::whole_graphs(nsys, launches));
        scope.spawn(|_| *sums = sums::sums(nsys, launches));
        scope.spawn(|_| *regions = regions::regions(nsys, launches, counters));
        scope.spawn(|_| *kernels = kernels::kernels(nsys, launches));
        scope.spawn(|_| *device = device_time::device_times(nsys, launches));
        scope.spawn(|_| *processes = processes::processes(nsys, launches));
        scope.spawn(|_| *step = step::traced(nsys, launches));
    });
    walks
}

/// The cost of what ran; `None` when the runner's number format is unknown, and of a part of a model, whose share is not counted.
fn static_cost(model: &ModelSpec, start: &Start, stages: &Stages) -> Option<Cost> {
    if start.target.is_some() {
        return None;
    }
    let work = Workload {
        images: &start.images,
        prompt_tokens: start.prompt_tokens,
        new_tokens: stages.decode_steps.unwrap_or(0),
        element_bytes: start.dtype.parse::<Dtype>().ok()?.bytes(),
    };
    Some(cost::cost(model, &work))
}

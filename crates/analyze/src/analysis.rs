//! The analysis of a run: what it contains, and the order in which its parts are computed.

use std::collections::BTreeMap;

use llmprof_core::{
    domain::{
        device_peaks::DevicePeaks,
        finding::{Finding, catalogue},
        stated_model::StatedModel,
        subject::SubjectKind,
    },
    trace::{
        Trace,
        event::{End, Start},
        framework::TimelineTool,
    },
};

use crate::{
    collectives::CollectiveTables,
    cost::Cost,
    events::Events,
    external_capture::CaptureEvents,
    findings,
    host_cpu::HostCpuTables,
    invariants::Violations,
    kernels::{
        self, KernelTimes,
        call_sites::{self, CallSite},
        counters::{self, CounterRecord},
        gemms::{self, Gemms},
        nsys_sums::NsysSums,
    },
    ledger::{Ledger, host_copies::HostCopies},
    limited::Limited,
    memory::{self, MemoryRecord},
    model_work::{KnownModel, ModelWork},
    operators::{self, Operators, framework::framework, profiled::ProfiledOperators},
    power::Power,
    refutation::Refutation,
    requests::{self, Requests},
    roofline::{Roofline, limits::RemovedRate, mfu::Mfu},
    sampled::{self, SampledMetrics},
    samples::{self, Samples},
    stages::Stages,
    stages::{
        self,
        cold::ColdInstance,
        command::{self, CommandTiming},
        coverage::StageCoverage,
        experts::{self, ExpertUse},
        launched_elsewhere,
        output_equality::{self, OutputCheck},
        overhead::{self, OverheadRecord},
        profiler_overhead,
        repeats::{self, OperatorRepeats},
        stage_calls::StageCalls,
        step_times::{self, StepDevices, StepTimes},
    },
    step_batches::{self, StepBatch},
    timeline::{
        alone::AloneTimes,
        capture::Capture,
        decode_timeline::{self, StepTimeline},
        device_totals::{self, DeviceTotals},
        engine_steps::EngineStepRecord,
        gpu::{StageGpus, split::WindowSplits, step_idle::WantedSteps},
        graph_replays,
        graphs::WholeGraph,
        processes::Processes,
        regions::{self, Region},
        step_states,
        tables::TimelineTables,
        time_shares::{self, StageShare},
        withheld::{TimelineFigure, Withheld},
    },
};

/// Results of the analysis of one run.
#[derive(Debug, Clone, Default)]
pub struct Analysis {
    /// Kind of the profiled subject; determines which results can exist.
    pub subject: SubjectKind,
    /// The profiler that recorded the timeline.
    pub tool: TimelineTool,
    /// Configuration that the runner reported in the unprofiled pass.
    pub start: Option<Start>,
    /// Final record of the runner in that pass; absent when it was killed.
    pub end: Option<End>,
    pub stages: Stages,
    /// Times of single steps, with their outliers.
    pub step_times: Vec<StepTimes>,
    /// Times by sample; empty for a run with one.
    pub samples: Samples,
    pub operators: Operators,
    /// Variation of each operator's time over repeats.
    pub operator_repeats: Limited<OperatorRepeats>,
    pub kernels: KernelTimes,
    /// ncu counters by stage, kernel and launch configuration.
    pub counters: Vec<CounterRecord>,
    /// Metrics of the GPU sampled without replay.
    pub sampled: SampledMetrics,
    /// Profiled kernels under the device's roofs.
    pub roofline: Roofline,
    pub gemms: Gemms,
    pub cost: Option<Cost>,
    /// The model that the operator of a command or the sender of a capture states.
    pub stated: Option<StatedModel>,
    /// Decode steps of one repeat, stated without a model.
    pub stated_steps: Option<u64>,
    /// Proofs that it is another model; no figure is of the stated one then.
    pub refutations: Vec<Refutation>,
    pub mfu: Mfu,
    /// Rates above the device's peaks, highest share first.
    pub removed_rates: Vec<RemovedRate>,
    pub overhead: Vec<OverheadRecord>,
    /// True if only one of the two passes was cold, so that they are not compared.
    pub has_cold_pass: bool,
    /// Floor, causes and rest of each stage's time.
    pub ledger: Ledger,
    /// Copies between host and device, by stage.
    pub host_copies: BTreeMap<String, HostCopies>,
    pub outputs: OutputCheck,
    pub experts: Vec<ExpertUse>,
    /// GPU activity in each stage of the traced pass.
    pub stage_gpu: StageGpus,
    /// Threads on the cores of the host; `None` if neither switches nor samples were recorded.
    pub host_cpu: Option<HostCpuTables>,
    /// Host calls in each stage of the traced pass.
    pub stage_calls: BTreeMap<String, StageCalls>,
    /// Time in which each kernel ran alone, by stage and name.
    pub alone: AloneTimes,
    /// CUDA graphs of the traced pass traced as a whole, longest first.
    pub graphs: Vec<WholeGraph>,
    /// Timeline of one decode step.
    pub step: Option<StepTimeline>,
    /// CUDA calls and ranges of the traced pass, summed by name.
    pub sums: NsysSums,
    /// First instances of stages that count as warm-up.
    pub cold: Vec<ColdInstance>,
    /// Recorded and launched kernels of the traced pass, by stage.
    pub coverage: Vec<StageCoverage>,
    /// Figures of the traced pass that gaps of its capture make unknown, with the reasons.
    pub withheld: Withheld,
    /// Kernels by the line of code that launched them; empty without stacks.
    pub call_sites: Vec<CallSite>,
    /// Work of the traced pass by process and device.
    pub processes: Processes,
    /// Operators of a command's pass under the profiler of PyTorch. Times of that pass join no
    /// others.
    pub pytorch: Option<ProfiledOperators>,
    /// Steps of a server or of a generating program, by ranges or inferred.
    pub engine_steps: Vec<EngineStepRecord>,
    /// Their times by class, requests and context.
    pub step_batches: Vec<StepBatch>,
    /// Work of the devices, of a capture without stages.
    pub device_totals: Option<DeviceTotals>,
    /// Shares of the stages in all time of a capture without an unprofiled pass.
    pub stage_shares: Vec<StageShare>,
    /// Collective operations of several ranks.
    pub collectives: CollectiveTables,
    /// NVTX ranges of the traced pass with the kernels launched inside.
    pub regions: Limited<Region>,
    /// True when all times are of the traced pass, because there is no unprofiled one.
    pub only_traced: bool,
    /// Wall times of a command; absent for the model runner.
    pub command: Option<CommandTiming>,
    /// Requests of the loads of a server.
    pub requests: Requests,
    /// Device memory by stage and operator, as the runner's allocator counts it.
    pub memory: Vec<MemoryRecord>,
    /// Energy, power and clocks, if a GPU was sampled.
    pub power: Option<Power>,
    /// Figures removed because they violate an invariant.
    pub violations: Violations,
    /// Findings for the reader, worst first.
    pub findings: Vec<Finding>,
}

/// Analyses the data of all passes of one run. A stated model that the capture contradicts is
/// left out, with the proofs.
pub fn analyze(trace: &Trace, model: Option<KnownModel>, peaks: Option<&DevicePeaks>) -> Analysis {
    let analysis = analyze_as(trace, model, peaks, Analysis::default());
    match model {
        Some(KnownModel::Stated(stated)) if !analysis.refutations.is_empty() => {
            let refutations = analysis.refutations;
            let without =
                Analysis { stated: Some(stated.clone()), refutations, ..Analysis::default() };
            analyze_as(trace, None, peaks, without)
        }
        _ => analysis,
    }
}

/// Fills an analysis from the data of all passes.
fn analyze_as(
    trace: &Trace,
    model: Option<KnownModel>,
    peaks: Option<&DevicePeaks>,
    empty: Analysis,
) -> Analysis {
    // Without runner events, events are derived from the ranges of the capture.
    let only_traced = trace.baseline.is_empty() && trace.traced.is_empty();
    let outside = if only_traced { "" } else { kernels::SETUP };
    let mut capture = trace.timeline.as_ref().map(|it| Capture::of(it).with_outside(outside));
    // Sampled metrics include the cold instances that are marked later.
    let sampled = capture.as_ref().filter(|it| it.trace.samples.is_some());
    let recorded = sampled.map(Capture::as_recorded);
    let mut analysis = Analysis {
        subject: trace.subject,
        tool: trace.timeline.as_ref().map(|it| it.tool).unwrap_or_default(),
        only_traced: only_traced && trace.timeline.is_some(),
        stated_steps: trace.stated_steps,
        ..empty
    };
    let mut derived = CaptureEvents::default();
    // Both read all kernels of the capture, each in part on one core.
    let (splits, sampled) = rayon::join(
        || {
            if let Some(capture) = capture.as_mut().filter(|_| only_traced) {
                analysis.cold = step_states::mark(capture);
                derived = CaptureEvents::of(capture, model.and_then(KnownModel::batch));
            }
            analysis.findings = derived.findings.clone();
            let baseline = events(trace, &derived, only_traced);
            let traced = Events::of(&trace.traced);
            analysis.add_events(trace, model, &baseline, &traced);
            if let Some(capture) = &capture {
                analysis.overhead.retain(|it| capture.stages.may_have_whole(&it.stage));
            }
            let own = capture.as_ref().filter(|_| only_traced);
            let steps = own.map(|it| step_times::stage_steps(&baseline, Some(it.trace)));
            let wanted = step_times::wanted(steps.as_deref().unwrap_or_default());
            analysis.add_timeline(trace, capture.as_ref(), (&baseline, &traced), (peaks, &wanted))
        },
        || sampled::sampled_metrics(trace, recorded.as_ref()),
    );
    analysis.sampled = sampled;
    let baseline = events(trace, &derived, only_traced);
    let own = capture.as_ref().filter(|_| only_traced);
    let knows_gaps = !analysis.withheld.has_in_capture(TimelineFigure::LongCalls);
    let devices = own.map(|capture| StepDevices { splits: &splits, capture, knows_gaps });
    analysis.add_step_times(&baseline, devices.as_ref());
    let work = analysis.model_work(trace, model, &baseline);
    analysis.cost = work.as_ref().and_then(ModelWork::cost);
    analysis.step = analysis.step.take().or_else(|| decode_timeline::unprofiled_step(&baseline));
    analysis.add_utilisation(trace, &baseline, (work.as_ref(), peaks));
    if let (Some(KnownModel::Stated(stated)), Some(work)) = (model, &work) {
        analysis.add_refutations(trace, &baseline, stated, (work, peaks));
    }
    analysis.add_ledger(trace, work.as_ref(), &baseline, (&splits, peaks));
    analysis.remove_impossible_shares();
    analysis.add_findings(trace);
    analysis
}

/// The events with the times to use: from the unprofiled pass, or derived only from a capture.
fn events<'a>(trace: &'a Trace, derived: &'a CaptureEvents, only_traced: bool) -> Events<'a> {
    match &trace.timeline {
        Some(capture) if only_traced => derived.by_kind(capture),
        _ => Events::of(&trace.baseline),
    }
}

impl Analysis {
    /// True if the model runner ran on the CPU.
    pub fn is_on_cpu(&self) -> bool {
        self.start.as_ref().is_some_and(Start::is_on_cpu)
    }

    /// Adds the results that need only events, logs and wall times.
    fn add_events(
        &mut self,
        trace: &Trace,
        model: Option<KnownModel>,
        baseline: &Events,
        traced: &Events,
    ) {
        let top_k = model.and_then(|model| Some(model.spec().decoder.moe.as_ref()?.top_k));
        self.start = baseline.start.cloned();
        self.end = baseline.end.cloned();
        self.stages = stages::stages(baseline);
        self.samples = samples::samples(baseline);
        self.stages.add_cold(&self.cold);
        self.operator_repeats = repeats::repeats(baseline);
        self.outputs = output_equality::outputs(baseline, traced);
        self.experts = experts::experts(baseline, top_k);
        self.memory = memory::memory(baseline);
        self.command = trace.command.as_ref().map(command::timing);
        let loads = trace.command.as_ref().map_or(&[][..], |command| &command.loads);
        self.requests = requests::requests(loads);
        // A pass whose profiler recorded nothing does not measure the cost of tracing.
        if trace.timeline.is_some() {
            let command = self.command.as_ref().and_then(CommandTiming::overhead);
            let stages = overhead::of_passes(baseline, traced);
            self.has_cold_pass = stages.is_err();
            self.overhead = command.into_iter().chain(stages.unwrap_or_default()).collect();
        }
    }

    /// Adds the results that need the capture and the counters.
    fn add_timeline(
        &mut self,
        trace: &Trace,
        capture: Option<&Capture>,
        (baseline, traced): (&Events, &Events),
        (peaks, wanted): (Option<&DevicePeaks>, &WantedSteps),
    ) -> WindowSplits {
        self.pytorch = trace.pytorch.as_ref().and_then(ProfiledOperators::of);
        let possible = self.violations.counters(&trace.counters, peaks);
        self.counters = counters::counters(&possible, capture);
        let tables = capture.map(|it| TimelineTables::of(it, &self.counters, wanted));
        let tables = tables.unwrap_or_default();
        self.kernels = tables.kernels;
        counters::attach(&mut self.kernels.records, &self.counters);
        self.gemms = trace.gemms.as_ref().map(|log| gemms::gemms(log, capture)).unwrap_or_default();
        if let Some(capture) = capture {
            let has_log = !self.gemms.records.is_empty();
            let records = gemms::operators::records(capture, traced, has_log);
            self.gemms.add_operators(records, traced);
        }
        self.gemms.add_counters(&self.counters);
        let traced = (traced, self.only_traced);
        // After the tables, whose memory is free again.
        let sums = match capture.and_then(|it| Some((it, it.framework.as_ref()?))) {
            Some((capture, index)) => framework(capture, index, &self.stages, &tables.withheld),
            None => operators::operators(baseline, &self.stages),
        };
        self.operators = operators::attach(sums, &tables.device, traced, &self.kernels.stages);
        self.coverage = tables.coverage;
        self.regions = tables.regions;
        self.findings.extend(tables.too_deep.map(regions::finding));
        self.stage_gpu = tables.stage_gpu;
        self.host_cpu = tables.host_cpu;
        if self.only_traced {
            self.stage_shares = time_shares::stage_shares(&tables.walls, &self.kernels.stages);
        }
        self.stage_calls = tables.stage_calls;
        self.alone = tables.alone;
        self.graphs = tables.graphs;
        self.step = tables.step;
        self.sums = tables.sums;
        if self.only_traced && self.stages.rows.is_empty() {
            self.device_totals = capture.map(device_totals::device_totals);
            self.device_totals.iter_mut().for_each(|it| it.withhold(&tables.withheld));
        }
        if let Some(capture) = capture {
            self.call_sites = call_sites::call_sites(capture, &self.kernels.stages);
            self.findings.extend(step_states::finding(capture));
            self.findings.extend(device_totals::before_recording(capture, &self.stages));
            self.findings.extend(profiler_overhead::findings(capture));
            self.findings.extend(graph_replays::findings(capture));
            let elsewhere = &tables.launched_elsewhere;
            self.findings.extend(launched_elsewhere::findings(elsewhere, &self.coverage, capture));
        }
        self.processes = tables.processes;
        self.engine_steps = tables.engine_steps;
        let ranks = trace.timeline.as_ref().map(|it| &it.collectives);
        self.step_batches = ranks
            .map(|ranks| step_batches::step_batches(&self.engine_steps, ranks))
            .unwrap_or_default();
        self.stages.of_engine(&self.step_batches);
        if let (Some(nsys), Some(command)) = (&trace.timeline, &trace.command) {
            requests::join(&mut self.engine_steps, nsys, &command.loads);
        }
        self.collectives = tables.collectives;
        self.withheld = tables.withheld;
        tables.splits
    }

    fn remove_impossible_shares(&mut self) {
        let mut violations = std::mem::take(&mut self.violations);
        violations.shares(self);
        self.violations = violations;
    }

    /// Adds all findings, worst first.
    fn add_findings(&mut self, trace: &Trace) {
        // Rules read the findings so far.
        let by_rules = findings::findings(self, trace);
        let mut found = std::mem::take(&mut self.findings);
        found.extend(by_rules);
        found.extend(command::findings(self, trace));
        found.extend(requests::findings(&self.requests));
        found.extend(requests::window_findings(self, trace));
        if self.only_traced && self.subject != SubjectKind::Command {
            let message = "All times are of a traced pass and include tracing overhead; there \
                           is no unprofiled one.";
            let finding = Finding::new(catalogue::ONLY_TRACED, message)
                .with("stages found", self.stages.rows.len());
            found.push(finding.advise("Time the program without a profiler before quoting times."));
        }
        found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        self.findings = found;
    }
}

mod of_model;
#[cfg(test)]
mod tests;

//! All tables made from the rows of a capture.

use std::collections::BTreeMap;

use super::{
    alone::{self, AloneTimes},
    capture::Capture,
    decode_timeline::{self, StepTimeline},
    device_time::{self, DeviceTimes},
    engine_steps::{self, EngineStepRecord},
    gpu::{self, StageGpus, split::WindowSplits},
    graphs::{self, WholeGraph},
    open_ranges::{Extent, StageInstance, TooDeep},
    processes::{self, Processes},
    regions::{self, Region},
    step_states::LEFT_OUT,
    time_shares::{self, StageWalls},
    unnamed,
};
use crate::{
    collectives::{self, CollectiveTables},
    host_cpu::{Cores, HostCpuTables},
    kernels::{
        self, KernelTimes,
        counters::CounterRecord,
        nsys_sums::{self, NsysSums},
    },
    limited::Limited,
    stages::{
        BETWEEN_STEPS, DECODE, NO_STAGE,
        coverage::{self, StageCoverage},
        launched_elsewhere,
        stage_calls::{self, StageCalls},
    },
};

/// Tables of one capture, without figures that its gaps make unknown.
#[derive(Default)]
pub struct TimelineTables {
    pub device: DeviceTimes,
    pub kernels: KernelTimes,
    pub regions: Limited<Region>,
    /// Reason for the lack of regions.
    pub too_deep: Option<TooDeep>,
    pub stage_gpu: StageGpus,
    pub splits: WindowSplits,
    pub host_cpu: Option<HostCpuTables>,
    pub stage_calls: BTreeMap<String, StageCalls>,
    pub alone: AloneTimes,
    pub graphs: Vec<WholeGraph>,
    pub step: Option<StepTimeline>,
    pub sums: NsysSums,
    pub processes: Processes,
    pub engine_steps: Vec<EngineStepRecord>,
    pub collectives: CollectiveTables,
    pub coverage: Vec<StageCoverage>,
    pub walls: StageWalls,
    /// Kernels that other threads launched during stages without a launch, by stage.
    pub launched_elsewhere: BTreeMap<String, u64>,
}

impl TimelineTables {
    /// Computes the tables of a capture.
    pub fn of(capture: &Capture, counters: &[CounterRecord]) -> Self {
        let mut tables = Self::compute(capture, counters);
        tables.remove_partial_stages();
        tables.remove_estimated_windows(capture);
        tables.remove_stages_launched_elsewhere();
        tables.remove_unequal_clocks(capture);
        tables.remove_untimed_gaps();
        tables
    }

    /// Reads the rows of a capture, millions of them, once per table on all cores.
    fn compute(capture: &Capture, counters: &[CounterRecord]) -> Self {
        let mut tables = Self::default();
        let Self {
            device,
            kernels,
            regions,
            too_deep,
            stage_gpu,
            splits,
            host_cpu,
            stage_calls,
            alone,
            graphs,
            step,
            sums,
            processes,
            engine_steps,
            collectives,
            coverage,
            walls,
            launched_elsewhere,
        } = &mut tables;
        let (whole, between) =
            rayon::join(|| unnamed::whole(capture), || unnamed::between_steps(capture));
        rayon::scope(|scope| {
            let timed = whole.as_ref().unwrap_or(capture);
            let between = between.as_ref();
            scope.spawn(move |_| {
                let cores = Cores::of(capture.trace);
                let of = |capture| gpu::device_tables(capture, cores.as_ref());
                let mut gaps;
                (*stage_gpu, *splits, gaps) = of(timed);
                if let Some((gpus, more, others)) = between.map(of) {
                    stage_gpu.append(gpus);
                    splits.append(more);
                    gaps.append(others);
                }
                *host_cpu = cores.map(|it| HostCpuTables::of(capture.trace, &it, gaps));
            });
            scope.spawn(|_| *coverage = coverage::by_stage(capture));
            scope.spawn(|_| *launched_elsewhere = launched_elsewhere::launched_elsewhere(capture));
            scope.spawn(|_| *walls = time_shares::stage_walls(capture));
            scope.spawn(|_| *stage_calls = stage_calls::stage_calls(capture));
            scope.spawn(|_| *alone = alone::alone(capture));
            scope.spawn(|_| *graphs = graphs::whole_graphs(capture));
            scope.spawn(|_| *sums = nsys_sums::sums(capture));
            scope.spawn(|_| match regions::regions(capture, counters) {
                Ok(found) => *regions = found,
                Err(depth) => *too_deep = Some(depth),
            });
            scope.spawn(|_| *kernels = kernels::kernels(capture));
            scope.spawn(|_| *device = device_time::device_times(capture));
            scope.spawn(|_| *processes = processes::processes(capture));
            scope.spawn(|_| *engine_steps = engine_steps::engine_steps(capture));
            scope.spawn(|_| *collectives = collectives::collectives(capture));
            scope.spawn(|_| *step = decode_timeline::traced_step(capture));
        });
        tables
    }

    /// Removes figures that need all kernels of a stage, for stages that lost some.
    fn remove_partial_stages(&mut self) {
        let partial: Vec<&str> =
            self.coverage.iter().filter(|it| !it.complete()).map(|it| it.stage.as_str()).collect();
        if partial.is_empty() {
            return;
        }
        let is_partial = |stage: &str| partial.contains(&stage);
        // All work without a launching call is of the recording as a whole. The end of a step that
        // lost work is unknown, and so is the time after it, unless the step is left out.
        let is_whole = self.coverage.iter().any(|it| it.stage == NO_STAGE && !it.lost());
        let has_lost_others = partial.iter().any(|it| *it != LEFT_OUT);
        self.stage_gpu.retain(|stage| match stage {
            NO_STAGE => is_whole || !is_partial(stage),
            BETWEEN_STEPS => !has_lost_others,
            _ => !is_partial(stage),
        });
        self.device.operators.retain(|(stage, _), _| !is_partial(stage));
        self.step = self.step.take().filter(|_| !is_partial(DECODE));
        // A range may launch into any stage, but regions have no work of steps that are left out.
        if has_lost_others {
            self.regions = Limited::default();
        }
        let rest = self.sums.ranges.rest.iter_mut().map(|it| &mut it.0);
        self.sums.ranges.rows.iter_mut().chain(rest).for_each(|it| it.projected_ns = None);
        self.kernels.withhold(is_partial);
        for it in self.processes.stages.iter_mut().filter(|it| is_partial(&it.stage)) {
            (it.kernel_ms, it.busy_ms) = (None, None);
        }
        self.collectives.withhold(is_partial);
        for it in self
            .engine_steps
            .iter_mut()
            .filter(|it| it.class.and_then(|it| it.stage()).is_some_and(is_partial))
        {
            (it.device_ms, it.gap_ms) = (None, None);
        }
    }

    /// Removes the reasons of gaps if host and device have no common clock.
    fn remove_unequal_clocks(&mut self, capture: &Capture) {
        if capture.trace.unequal_clocks.is_empty() {
            return;
        }
        let untimed: Vec<&str> = self
            .stage_gpu
            .totals
            .iter()
            .filter(|it| it.window_ms.is_none())
            .map(|it| it.stage.as_str())
            .collect();
        self.splits.stages.retain(|it| !untimed.contains(&it.stage.as_str()));
        self.splits.long_gaps.clear();
    }

    /// Removes what the host did in idle time of stages whose idle time is unknown.
    fn remove_untimed_gaps(&mut self) {
        let totals = &self.stage_gpu.totals;
        let is_timed =
            |stage: &str| totals.iter().any(|it| it.stage == stage && it.idle_host_ms.is_some());
        if let Some(host) = &mut self.host_cpu {
            host.retain_stages(is_timed);
        }
    }

    /// Removes GPU times of stages whose work other threads launched.
    fn remove_stages_launched_elsewhere(&mut self) {
        let elsewhere = &self.launched_elsewhere;
        let is_other = |stage: &str| stage == BETWEEN_STEPS && !elsewhere.is_empty();
        self.stage_gpu.retain(|stage| !elsewhere.contains_key(stage) && !is_other(stage));
    }

    /// Removes figures of stage windows whose end is estimated.
    fn remove_estimated_windows(&mut self, capture: &Capture) {
        let stages = &capture.stages;
        let is_estimated = |stage: &str| {
            let is_it = |it: &StageInstance| stages.labels[it.label] == stage;
            stages.instances.iter().any(|it| it.extent == Extent::EstimatedEnd && is_it(it))
        };
        self.stage_gpu.retain(|stage| !is_estimated(stage));
    }
}

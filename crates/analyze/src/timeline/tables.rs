//! All tables made from the rows of a capture.

use std::collections::BTreeMap;

use super::{
    alone::{self, AloneTimes},
    capture::Capture,
    decode_timeline::{self, StepTimeline},
    device_time::{self, DeviceTimes},
    engine_steps::{self, EngineStepRecord},
    gpu::{self, StageGpus, split::WindowSplits, step_idle::WantedSteps},
    graphs::{self, WholeGraph},
    open_ranges::TooDeep,
    processes::{self, Processes},
    regions::{self, Region},
    time_shares::{self, StageWalls},
    unnamed,
    withheld::{TimelineFigure, Withheld},
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
        DECODE,
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
    /// Figures that the tables lack, with the reasons.
    pub withheld: Withheld,
}

impl TimelineTables {
    /// Computes the tables of a capture, with the idle time of the wanted steps.
    pub fn of(capture: &Capture, counters: &[CounterRecord], wanted: &WantedSteps) -> Self {
        let mut tables = Self::compute(capture, counters, wanted);
        let (coverage, elsewhere) = (&tables.coverage, &tables.launched_elsewhere);
        tables.withheld = Withheld::of(capture, coverage, elsewhere, &tables.stage_gpu.reasons);
        tables.withhold();
        tables
    }

    /// Reads the rows of a capture, millions of them, once per table on all cores.
    fn compute(capture: &Capture, counters: &[CounterRecord], wanted: &WantedSteps) -> Self {
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
            withheld: _,
        } = &mut tables;
        let (whole, between) =
            rayon::join(|| unnamed::whole(capture), || unnamed::between_steps(capture));
        rayon::scope(|scope| {
            let timed = whole.as_ref().unwrap_or(capture);
            let between = between.as_ref();
            scope.spawn(move |_| {
                let cores = Cores::of(capture.trace);
                let of = |capture, wanted: &WantedSteps| {
                    gpu::device_tables(capture, cores.as_ref(), wanted)
                };
                let mut gaps;
                (*stage_gpu, *splits, gaps) = of(timed, wanted);
                if let Some((gpus, more, others)) =
                    between.map(|it| of(it, &WantedSteps::default()))
                {
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

    /// Removes the figures that are withheld.
    fn withhold(&mut self) {
        let Self {
            withheld,
            device,
            kernels,
            regions,
            stage_gpu,
            splits,
            host_cpu,
            step,
            sums,
            processes,
            engine_steps,
            collectives,
            // No reason withholds a figure of these.
            too_deep: _,
            stage_calls: _,
            alone: _,
            graphs: _,
            coverage: _,
            walls: _,
            launched_elsewhere: _,
        } = self;
        let withheld: &Withheld = withheld;
        stage_gpu.withhold(withheld);
        splits.stages.retain(|it| !withheld.has(&it.stage, TimelineFigure::Division));
        if withheld.has_in_capture(TimelineFigure::LongCalls) {
            splits.long_gaps.clear();
        }
        host_cpu.iter_mut().for_each(|it| it.withhold(withheld));
        kernels.withhold(withheld);
        processes.withhold(withheld);
        device.withhold(withheld);
        collectives.withhold(withheld);
        sums.withhold(withheld);
        engine_steps.iter_mut().for_each(|it| it.withhold(withheld));
        if withheld.has_in_capture(TimelineFigure::Regions) {
            *regions = Limited::default();
        }
        if withheld.has(DECODE, TimelineFigure::DecodeTimeline) {
            *step = None;
        }
    }
}

//! Work that runs in the windows of a stage while none of the stage's own work runs: of another
//! process, of another stage, or of no stage.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::trace::timeline::{ON_HOST, Timeline, pid_of, tid_of};

use super::{
    super::{
        activity::{Activity, DeviceWork, activities},
        capture::Capture,
        interval::{Interval, IntervalSet},
        open_ranges::EXCLUDED,
    },
    cells::GpuCells,
    split::WindowSplits,
};
use crate::stages::in_sentence;

/// Work of one launcher in the windows of a stage, without the time in which the stage's own ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherWork {
    /// The process, stage or thread, as the end of "only ... ran".
    pub launcher: String,
    /// The work with the most time.
    pub largest: String,
    /// Work that runs at once counts as often as it occurs.
    pub ns: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Launcher {
    /// A process without an instance of the stage.
    Process(i64, WorkStage),
    /// Another stage.
    Stage(usize),
    /// A thread; `None` if the launching call is not recorded.
    Thread(Option<i64>, WorkStage),
}

/// Stage of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WorkStage {
    Of(usize),
    None,
    /// Work of steps or of excluded ranges, whose stage is not one of these stages.
    Excluded,
}

impl Launcher {
    fn of(capture: &Capture, work: &Activity, processes: &BTreeSet<i64>) -> Self {
        let instance = capture.stages.instances.get(work.join.instance as usize);
        let stage = match instance {
            Some(it) => WorkStage::Of(it.label),
            None if work.join.instance == EXCLUDED => WorkStage::Excluded,
            None => WorkStage::None,
        };
        let process = capture.trace.collectives.owner(work.process);
        if !processes.contains(&process) {
            return Self::Process(process, stage);
        }
        let call = || capture.trace.cuda_calls.get(work.join.call as usize).global_tid;
        match stage {
            WorkStage::Of(label) => Self::Stage(label),
            stage => Self::Thread(work.join.has_call().then(call), stage),
        }
    }

    fn words(self, trace: &Timeline, labels: &[String]) -> String {
        match self {
            Self::Process(process, stage) => {
                let pid = pid_of(process);
                let name = match trace.processes.get(&process).filter(|it| !it.is_empty()) {
                    Some(name) => format!("{name}, pid {pid}"),
                    None => format!("pid {pid}"),
                };
                let stage = match stage {
                    WorkStage::Of(it) => format!(", of {}", in_sentence(&labels[it])),
                    WorkStage::None => ", of no stage".into(),
                    WorkStage::Excluded => String::new(),
                };
                format!("work of another process ({name}){stage}")
            }
            Self::Stage(stage) => format!("work of {}", in_sentence(&labels[stage])),
            Self::Thread(Some(thread), WorkStage::Excluded) => {
                format!("work launched by thread {}", tid_of(thread))
            }
            Self::Thread(Some(thread), _) => {
                format!("work of no stage, launched by thread {}", tid_of(thread))
            }
            Self::Thread(None, _) => "work without a recorded launch".into(),
        }
    }
}

/// The windows of a stage on one GPU in which none of its own work runs.
struct FreeTime {
    label: usize,
    free: IntervalSet,
}

/// Names the work of the other time of each stage.
pub fn add(capture: &Capture, cells: &GpuCells, splits: &mut WindowSplits) {
    let labels = &capture.stages.labels;
    let has_other = |label: &usize| {
        splits.stages.iter().any(|it| it.stage == labels[*label] && it.other_ns > 0)
    };
    let wanted: BTreeSet<usize> = (0..labels.len()).filter(has_other).collect();
    if wanted.is_empty() {
        return;
    }
    let label_of =
        |it: &Activity| capture.stages.instances.get(it.join.instance as usize).map(|it| it.label);
    let on_gpus = || activities(capture).filter(|it| it.device != ON_HOST);
    let mut own: BTreeMap<(usize, u32), Vec<Interval>> = BTreeMap::new();
    for it in on_gpus() {
        if let Some(label) = label_of(&it).filter(|label| wanted.contains(label)) {
            own.entry((label, it.device)).or_default().push((it.start_ns, it.end_ns));
        }
    }
    let mut free: BTreeMap<u32, Vec<FreeTime>> = BTreeMap::new();
    for label in &wanted {
        for (device, cell) in cells.of_stage(*label) {
            let own = IntervalSet::new(own.remove(&(*label, device)).unwrap_or_default());
            let parts = cell.window.intervals().iter().flat_map(|it| own.outside(*it));
            let it = FreeTime { label: *label, free: IntervalSet::new(parts) };
            free.entry(device).or_default().push(it);
        }
    }
    let mut processes: BTreeMap<usize, BTreeSet<i64>> = BTreeMap::new();
    for it in &capture.stages.instances {
        processes.entry(it.label).or_default().insert(capture.trace.collectives.owner(it.place));
    }
    let mut times: BTreeMap<(usize, Launcher), BTreeMap<DeviceWork, i64>> = BTreeMap::new();
    for it in on_gpus() {
        for FreeTime { label, free } in free.get(&it.device).into_iter().flatten() {
            let ns = free.overlap_ns(it.start_ns, it.end_ns);
            if ns > 0 {
                let launcher = Launcher::of(capture, &it, &processes[label]);
                let of_work = times.entry((*label, launcher)).or_default();
                *of_work.entry(it.work).or_default() += ns;
            }
        }
    }
    for ((label, launcher), of_work) in times {
        let split = splits.stages.iter_mut().find(|it| it.stage == labels[label]);
        let largest = of_work.iter().max_by_key(|it| it.1).map(|it| it.0.name(capture.trace));
        if let Some((split, largest)) = split.zip(largest) {
            let launcher = launcher.words(capture.trace, labels);
            split.other.push(OtherWork { launcher, largest, ns: of_work.values().sum() });
        }
    }
}

//! The unknowns of each stage: kernels by name, grid and block, graphs traced as a whole, and
//! copies, over all captures of one device.

use std::collections::BTreeSet;

use foldhash::{HashMap, HashSet, HashSetExt as _};

use super::{
    operators::{self, OperatorTimes},
    rows::{self, DELAY_NS, NO_STAGE, SampledWork, Work},
};
use crate::{
    analyze::timeline::launches::LaunchIndex,
    trace::{gpu_metrics::DeviceSamples, names::base_name, nsys::NsysTrace},
};

/// Max unknowns of a stage; the shortest kernels beyond share one.
const MAX_UNKNOWNS: usize = 512;

/// Name, grid and block; without grid and block for a graph.
pub type KernelKey = (String, Option<[u32; 3]>, Option<[u32; 3]>);

/// A capture with samples of one device, and the stages that they span.
pub struct DeviceCapture<'a> {
    pub trace: &'a NsysTrace,
    pub launches: &'a LaunchIndex,
    pub device: u32,
    pub samples: &'a DeviceSamples,
    pub period_ns: i64,
    /// Labels of spanned stages.
    pub spanned: Vec<&'a str>,
}

/// One kernel of a stage.
#[derive(Debug, Clone, PartialEq)]
pub struct StageKernel {
    pub key: KernelKey,
    pub calls: u64,
    pub ns: i64,
    /// Runs at the same time as others of the stage.
    pub is_concurrent: bool,
}

/// The unknowns of one stage: its kernels, longest first, then one for all kernels beyond the
/// maximum and one for each kind of copies.
#[derive(Debug, Clone, Default)]
pub struct StageUnknowns {
    pub stage: String,
    pub kernels: Vec<StageKernel>,
    /// Number of unknowns, and of those that are kernels of their own.
    pub count: usize,
    pub own: usize,
    /// Neighbours of each unknown in the order of launches.
    pub adjacent: Vec<BTreeSet<usize>>,
}

impl StageUnknowns {
    /// Kernel time of the stage.
    fn ns(&self) -> i64 {
        self.kernels.iter().map(|it| it.ns).sum()
    }
}

/// Keys of kernels in order of first use.
#[derive(Default)]
struct Keys {
    keys: Vec<KernelKey>,
    index: HashMap<KernelKey, u32>,
}

impl Keys {
    fn of(&mut self, key: KernelKey) -> u32 {
        let next = self.keys.len() as u32;
        *self.index.entry(key).or_insert_with_key(|key| {
            self.keys.push(key.clone());
            next
        })
    }
}

/// Unknowns and work of all captures of one device.
pub struct DeviceUnknowns<'a> {
    /// By stage number less one.
    pub stages: Vec<StageUnknowns>,
    pub work: Vec<SampledWork<'a>>,
    pub operators: OperatorTimes,
}

/// Numbers the unknowns of all stages that the captures span.
pub fn unknowns<'a>(captures: &[DeviceCapture<'a>]) -> DeviceUnknowns<'a> {
    let mut names: Vec<&str> = Vec::new();
    for stage in captures.iter().flat_map(|it| &it.spanned) {
        if !names.contains(stage) {
            names.push(stage);
        }
    }
    let mut keys = Keys::default();
    let keyed: Vec<[Vec<Work>; 2]> =
        captures.iter().map(|it| [kernels(it, &names, &mut keys), copies(it, &names)]).collect();
    let mut stages: Vec<StageUnknowns> = Vec::new();
    let mut locals: Vec<Vec<Option<u32>>> = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let (stage, local) = stage(name, at as u16 + 1, &keys, &keyed);
        stages.push(stage);
        locals.push(local);
    }
    let mut operators = OperatorTimes::new();
    let mut work = Vec::new();
    let shortest = captures.iter().map(|it| it.period_ns).min().unwrap_or(1);
    let every = rows::every(stages.iter().map(StageUnknowns::ns), shortest);
    for (capture, [mut kernels, mut copies]) in captures.iter().zip(keyed) {
        localise(&mut kernels, &stages, &locals);
        operators::add(&mut operators, capture, &kernels);
        copies.iter_mut().for_each(|it| it.unknown += first_copy(it, &stages));
        kernels.retain(|it| it.end_ns > it.start_ns);
        kernels.sort_by_key(|it| it.start_ns);
        copies.sort_by_key(|it| it.start_ns);
        mark_neighbours(&kernels, &mut stages);
        let (samples, period_ns) = (capture.samples, capture.period_ns);
        let spans = rows::spans(&kernels, &copies, samples, period_ns, &every);
        let (delay_ns, every) = (DELAY_NS, every.clone());
        work.push(SampledWork { kernels, copies, samples, period_ns, delay_ns, spans, every });
    }
    DeviceUnknowns { stages, work, operators }
}

/// Number of a stage; [`NO_STAGE`] unless the samples of the capture span it.
fn stage_number(capture: &DeviceCapture, names: &[&str], instance: u32) -> u16 {
    let stage = capture.launches.stage(instance);
    let spanned = capture.spanned.contains(&stage);
    let at = names.iter().position(|name| *name == stage).filter(|_| spanned);
    at.map_or(NO_STAGE, |at| at as u16 + 1)
}

/// Kernels and graphs of a capture in the order of the trace, with empty work in the place of
/// kernels of other devices. The unknown of each is its key.
fn kernels(capture: &DeviceCapture, names: &[&str], keys: &mut Keys) -> Vec<Work> {
    let DeviceCapture { trace, launches, .. } = capture;
    let name = |at: u32| trace.strings.get(at as usize).map_or("", String::as_str);
    let of_kind: Vec<u32> = trace
        .kernels
        .kinds()
        .iter()
        .map(|it| keys.of((base_name(name(it.name)).to_owned(), Some(it.grid), Some(it.block))))
        .collect();
    let numbers: Vec<u16> = (0..launches.stages.instances.len())
        .map(|instance| stage_number(capture, names, instance as u32))
        .collect();
    let number = |instance: u32| numbers.get(instance as usize).copied().unwrap_or(NO_STAGE);
    let mut all: Vec<Work> = Vec::with_capacity(trace.kernels.len() + trace.graphs.len());
    for ((kind, kernel), (_, instance)) in trace.kernels.with_kinds().zip(launches.kernels.iter()) {
        let (mut start_ns, end_ns) = (kernel.start_ns, kernel.end_ns);
        let mut stage = number(instance);
        if kernel.device != capture.device {
            (start_ns, stage) = (end_ns, NO_STAGE);
        }
        all.push(Work { start_ns, end_ns, stage, unknown: of_kind[kind as usize] });
    }
    for (graph, (_, instance)) in trace.graphs.iter().zip(launches.graphs.iter()) {
        if graph.device == capture.device {
            let name = graph.graph.map_or("CUDA graph".into(), |id| format!("CUDA graph {id}"));
            let (start_ns, end_ns) = (graph.start_ns, graph.end_ns);
            let unknown = keys.of((name, None, None));
            all.push(Work { start_ns, end_ns, stage: number(instance), unknown });
        }
    }
    all
}

/// Copies and fills of a capture. The unknown of each is the number of its kind.
fn copies(capture: &DeviceCapture, names: &[&str]) -> Vec<Work> {
    let copies = capture.trace.copies.iter().zip(capture.launches.copies.iter());
    copies
        .filter(|(copy, _)| copy.device == capture.device)
        .map(|(copy, (_, instance))| {
            let stage = stage_number(capture, names, instance);
            let (start_ns, end_ns) = (copy.start_ns, copy.end_ns);
            Work { start_ns, end_ns, stage, unknown: copy.kind as u32 }
        })
        .collect()
}

/// Number of kinds of copies.
const COPY_KINDS: usize = 5;

/// The unknowns of one stage, and by key its unknown.
fn stage(
    name: &str,
    number: u16,
    keys: &Keys,
    keyed: &[[Vec<Work>; 2]],
) -> (StageUnknowns, Vec<Option<u32>>) {
    let mut tallies = vec![(0u64, 0i64); keys.keys.len()];
    for work in keyed.iter().flat_map(|[kernels, _]| kernels) {
        if work.stage == number {
            let tally = &mut tallies[work.unknown as usize];
            *tally = (tally.0 + 1, tally.1.saturating_add(work.end_ns - work.start_ns));
        }
    }
    let called = (0..).zip(tallies).filter(|(_, (calls, _))| *calls > 0);
    let mut order: Vec<(u32, (u64, i64))> = called.collect();
    order.sort_by_key(|(key, (_, ns))| (std::cmp::Reverse(*ns), &keys.keys[*key as usize]));
    let own = order.len().min(MAX_UNKNOWNS);
    let kernel = |&(key, (calls, ns)): &(u32, (u64, i64))| StageKernel {
        key: keys.keys[key as usize].clone(),
        calls,
        ns,
        is_concurrent: false,
    };
    let stage = StageUnknowns {
        stage: name.to_owned(),
        kernels: order.iter().map(kernel).collect(),
        count: own + 1 + COPY_KINDS,
        own,
        adjacent: vec![BTreeSet::new(); own + 1 + COPY_KINDS],
    };
    let mut local = vec![None; keys.keys.len()];
    for (at, (key, _)) in order.iter().enumerate() {
        local[*key as usize] = Some(at.min(own) as u32);
    }
    (stage, local)
}

/// Replaces the keys of kernels by their unknowns.
fn localise(kernels: &mut [Work], stages: &[StageUnknowns], locals: &[Vec<Option<u32>>]) {
    for work in kernels {
        let local =
            (work.stage as usize).checked_sub(1).and_then(|at| locals[at][work.unknown as usize]);
        work.unknown = local.unwrap_or(stages.len() as u32);
    }
}

/// The first unknown of copies in the stage of a copy.
fn first_copy(work: &Work, stages: &[StageUnknowns]) -> u32 {
    (work.stage as usize).checked_sub(1).map_or(0, |at| stages[at].own as u32 + 1)
}

/// Records which kernels of a stage follow one another, and which run at once.
fn mark_neighbours(kernels: &[Work], stages: &mut [StageUnknowns]) {
    let mut last: Option<Work> = None;
    let mut longest: Option<Work> = None;
    // Stage and unknowns of the pairs that are recorded.
    let mut known: HashSet<(u16, u32, u32)> = HashSet::new();
    for work in kernels {
        let Some(stage) = (work.stage as usize).checked_sub(1).map(|at| &mut stages[at]) else {
            (last, longest) = (None, None);
            continue;
        };
        if let Some(before) = last.filter(|before| before.stage == work.stage)
            && before.unknown != work.unknown
            && (before.unknown.max(work.unknown) as usize) < stage.own
            && known.insert((work.stage, before.unknown, work.unknown))
        {
            stage.adjacent[before.unknown as usize].insert(work.unknown as usize);
            stage.adjacent[work.unknown as usize].insert(before.unknown as usize);
        }
        if let Some(other) =
            longest.filter(|it| it.stage == work.stage && it.end_ns > work.start_ns)
        {
            for unknown in [other.unknown, work.unknown] {
                if (unknown as usize) < stage.own {
                    stage.kernels[unknown as usize].is_concurrent = true;
                }
            }
        }
        if longest.is_none_or(|it| it.end_ns <= work.end_ns) {
            longest = Some(*work);
        }
        last = Some(*work);
    }
}

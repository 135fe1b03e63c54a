//! The unknowns of each stage: kernels by name, grid and block, graphs traced as a whole, and
//! copies, over all captures of one device.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::{HashMap, HashMapExt as _, HashSet, HashSetExt as _};
use llmprof_core::trace::{gpu_metrics::DeviceSamples, names::base_name};

use super::{
    operators::{OpenOperators, OperatorTimes},
    parts::{PartKey, Parts, tallies},
    rows::{self, DELAY_NS, NO_STAGE, SampledWork, Work},
};
use crate::{
    kernels::{
        counters::Like,
        durations::{Length, Tally},
    },
    timeline::{
        capture::{Capture, Join},
        interval::Interval,
    },
};

/// Max unknowns of a stage; the shortest kernels beyond share one.
const MAX_UNKNOWNS: usize = 512;

/// Name, grid and block; without grid and block for a graph.
pub type KernelKey = (String, Option<[u32; 3]>, Option<[u32; 3]>);

/// A capture with samples of one device, and the stages that they span.
pub struct DeviceCapture<'a> {
    pub timeline: &'a Capture<'a>,
    pub device: u32,
    pub samples: &'a DeviceSamples,
    pub period_ns: i64,
    /// Labels of spanned stages, and their device time.
    pub spanned: Vec<(&'a str, &'a [Interval])>,
}

/// One kernel of a stage: its launches of similar duration.
#[derive(Debug, Clone, PartialEq)]
pub struct StageKernel {
    pub key: KernelKey,
    pub like: Like,
    pub calls: u64,
    pub ns: i64,
    /// Runs at the same time as others of the stage.
    pub is_concurrent: bool,
}

/// The unknowns of one stage: the parts of its kernels, longest kernel first, then one for all
/// kernels beyond the maximum and one for each kind of copies.
#[derive(Debug, Clone, Default)]
pub struct StageUnknowns {
    pub stage: String,
    /// Longest first.
    pub kernels: Vec<StageKernel>,
    /// Number of kernels with unknowns of their own.
    pub own: usize,
    /// Launches by unknown of those kernels.
    pub parts: Vec<Tally>,
    /// Index of the kernel of each unknown except copies; `own` for the one of the rest.
    pub kernel_of: Vec<u32>,
    /// Number of unknowns.
    pub count: usize,
    /// Neighbours of each kernel in the order of launches.
    pub adjacent: Vec<BTreeSet<usize>>,
    /// Time in which kernels run.
    pub busy_ns: i64,
    /// Time of two periods for each instance: samples at its ends may have work of other stages.
    pub edges_ns: i64,
}

impl StageUnknowns {
    /// Kernel time of the stage.
    fn ns(&self) -> i64 {
        self.kernels.iter().map(|it| it.ns).sum()
    }

    /// True if kernels of the stage run at once.
    pub fn is_concurrent(&self) -> bool {
        self.kernels.iter().any(|it| it.is_concurrent)
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

/// Work of a capture, and by kernel the number of its nest of operators.
struct Keyed {
    kernels: Vec<Work>,
    nests: Vec<u32>,
    copies: Vec<Work>,
}

impl Keyed {
    /// Kernels of one stage with their nests.
    fn of_stage(&self, number: u16) -> impl Iterator<Item = (&Work, u32)> + Clone {
        let kernels = self.kernels.iter().zip(self.nests.iter().copied());
        kernels.filter(move |(it, _)| it.stage == number)
    }
}

/// Numbers the unknowns of all stages that the captures span.
pub fn unknowns<'a>(captures: &[DeviceCapture<'a>]) -> DeviceUnknowns<'a> {
    let mut names: Vec<&str> = Vec::new();
    for (stage, _) in captures.iter().flat_map(|it| &it.spanned) {
        if !names.contains(stage) {
            names.push(stage);
        }
    }
    let mut keys = Keys::default();
    let mut open = OpenOperators::default();
    let mut keyed: Vec<Keyed> = Vec::new();
    for capture in captures {
        let (kernels, copies) = (kernels(capture, &names, &mut keys), copies(capture, &names));
        keyed.push(Keyed { nests: open.of_works(capture), kernels, copies });
    }
    let mut stages: Vec<StageUnknowns> = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let mut stage = stage(name, at as u16 + 1, &keys, &mut keyed);
        for capture in captures {
            let windows = capture.spanned.iter().filter(|(stage, _)| stage == name);
            let instances: usize = windows.map(|(_, windows)| windows.len()).sum();
            stage.edges_ns += 2 * capture.period_ns * instances as i64;
        }
        stages.push(stage);
    }
    let mut operators = OperatorTimes::new();
    let mut work = Vec::new();
    let shortest = captures.iter().map(|it| it.period_ns).min().unwrap_or(1);
    let every = rows::every(stages.iter().map(StageUnknowns::ns), shortest);
    for (capture, Keyed { mut kernels, nests, mut copies }) in captures.iter().zip(keyed) {
        open.add(&mut operators, &kernels, &nests);
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
    let stage = capture.timeline.stage(instance);
    let spanned = capture.spanned.iter().any(|(name, _)| *name == stage);
    let at = names.iter().position(|name| *name == stage).filter(|_| spanned);
    at.map_or(NO_STAGE, |at| at as u16 + 1)
}

/// Kernels and graphs of a capture in the order of the trace, with empty work in the place of
/// kernels of other devices. The unknown of each is its key.
fn kernels(capture: &DeviceCapture, names: &[&str], keys: &mut Keys) -> Vec<Work> {
    let timeline = capture.timeline;
    let trace = timeline.trace;
    let name = |at: u32| trace.text(at);
    let of_kind: Vec<u32> = trace
        .kernels
        .kinds()
        .iter()
        .map(|it| keys.of((base_name(name(it.name)).to_owned(), Some(it.grid), Some(it.block))))
        .collect();
    let numbers: Vec<u16> = (0..timeline.stages.instances.len())
        .map(|instance| stage_number(capture, names, instance as u32))
        .collect();
    let number = |instance: u32| numbers.get(instance as usize).copied().unwrap_or(NO_STAGE);
    let mut all: Vec<Work> = Vec::with_capacity(trace.kernels.len() + trace.graphs.len());
    for ((kind, kernel), Join { instance, .. }) in timeline.kernels_by_kind() {
        let (mut start_ns, end_ns) = (kernel.start_ns, kernel.end_ns);
        let mut stage = number(instance);
        if kernel.device != capture.device {
            (start_ns, stage) = (end_ns, NO_STAGE);
        }
        all.push(Work { start_ns, end_ns, stage, unknown: of_kind[kind as usize] });
    }
    for (graph, Join { instance, .. }) in timeline.graphs() {
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
    let copies = capture.timeline.copies();
    copies
        .filter(|(copy, _)| copy.device == capture.device)
        .map(|(copy, Join { instance, .. })| {
            let stage = stage_number(capture, names, instance);
            let (start_ns, end_ns) = (copy.start_ns, copy.end_ns);
            Work { start_ns, end_ns, stage, unknown: copy.kind as u32 }
        })
        .collect()
}

/// Number of kinds of copies.
const COPY_KINDS: usize = 5;

/// The unknowns of one stage, which its kernels have instead of their keys then.
fn stage(name: &str, number: u16, keys: &Keys, keyed: &mut [Keyed]) -> StageUnknowns {
    let works = keyed.iter().flat_map(|it| it.of_stage(number));
    let parts = Parts::of(works.clone().map(|(work, _)| work), keys.keys.len());
    let mut of_kernel: BTreeMap<(u32, Length), Vec<(PartKey, Tally)>> = BTreeMap::new();
    for (part, tally) in tallies(&parts, works) {
        of_kernel.entry((part.0, part.2)).or_default().push((part, tally));
    }
    let all = |parts: &[(PartKey, Tally)]| {
        parts.iter().fold(Tally::default(), |sum, (_, tally)| sum.with(*tally))
    };
    let called = of_kernel.iter().map(|(key, parts)| (*key, all(parts)));
    let mut order: Vec<((u32, Length), Tally)> = called.collect();
    order.sort_by_key(|((key, length), it)| {
        (std::cmp::Reverse(it.ns), &keys.keys[*key as usize], *length)
    });
    let kernel = |&((key, length), Tally { calls, ns }): &((u32, Length), Tally)| StageKernel {
        key: keys.keys[key as usize].clone(),
        like: Like { of: parts.durations(key), length },
        calls,
        ns,
        is_concurrent: false,
    };
    let own = order.len().min(MAX_UNKNOWNS);
    let mut stage = StageUnknowns {
        stage: name.to_owned(),
        kernels: order.iter().map(kernel).collect(),
        own,
        adjacent: vec![BTreeSet::new(); own],
        ..StageUnknowns::default()
    };
    // Unknowns for parts in addition to one for each kernel.
    let mut more = MAX_UNKNOWNS - own;
    let mut local: HashMap<PartKey, u32> = HashMap::new();
    for (at, (key, tally)) in order[..own].iter().enumerate() {
        let mut parts = of_kernel.remove(key).unwrap_or_default();
        parts.sort_unstable_by_key(|(part, _)| *part);
        let further = parts.len().saturating_sub(1);
        let is_divided = further <= more;
        more -= if is_divided { further } else { 0 };
        let first = stage.parts.len() as u32;
        for ((part, _), of_part) in parts.iter().zip(first..) {
            local.insert(*part, if is_divided { of_part } else { first });
        }
        let tallies = parts.into_iter().map(|(_, tally)| tally);
        stage.parts.extend(tallies.take(if is_divided { usize::MAX } else { 0 }));
        stage.parts.extend((!is_divided).then_some(*tally));
        stage.kernel_of.resize(stage.parts.len(), at as u32);
    }
    stage.kernel_of.push(own as u32);
    stage.count = stage.kernel_of.len() + COPY_KINDS;
    let rest = stage.parts.len() as u32;
    for Keyed { kernels, nests, .. } in keyed {
        for (work, nest) in kernels.iter_mut().zip(nests).filter(|(it, _)| it.stage == number) {
            work.unknown = local.get(&parts.part(work, *nest)).copied().unwrap_or(rest);
        }
    }
    stage
}

/// The first unknown of copies in the stage of a copy.
fn first_copy(work: &Work, stages: &[StageUnknowns]) -> u32 {
    (work.stage as usize).checked_sub(1).map_or(0, |at| stages[at].kernel_of.len() as u32)
}

/// Records which kernels of a stage follow one another, which run at once, and the time in which
/// any runs.
fn mark_neighbours(kernels: &[Work], stages: &mut [StageUnknowns]) {
    let mut last: Option<(u16, u32)> = None;
    let mut longest: Option<Work> = None;
    let mut busy_to = vec![i64::MIN; stages.len()];
    // Stage and kernels of the pairs that are recorded.
    let mut known: HashSet<(u16, u32, u32)> = HashSet::new();
    for work in kernels {
        let Some(at) = (work.stage as usize).checked_sub(1) else {
            (last, longest) = (None, None);
            continue;
        };
        let (stage, busy_to) = (&mut stages[at], &mut busy_to[at]);
        stage.busy_ns += (work.end_ns - work.start_ns.max(*busy_to)).max(0);
        *busy_to = work.end_ns.max(*busy_to);
        let kernel = stage.kernel_of[work.unknown as usize];
        if let Some((_, before)) = last.filter(|(before, _)| *before == work.stage)
            && before != kernel
            && (before.max(kernel) as usize) < stage.own
            && known.insert((work.stage, before, kernel))
        {
            stage.adjacent[before as usize].insert(kernel as usize);
            stage.adjacent[kernel as usize].insert(before as usize);
        }
        if let Some(other) =
            longest.filter(|it| it.stage == work.stage && it.end_ns > work.start_ns)
        {
            for kernel in [stage.kernel_of[other.unknown as usize], kernel] {
                if (kernel as usize) < stage.own {
                    stage.kernels[kernel as usize].is_concurrent = true;
                }
            }
        }
        if longest.is_none_or(|it| it.end_ns <= work.end_ns) {
            longest = Some(*work);
        }
        last = Some((work.stage, kernel));
    }
}

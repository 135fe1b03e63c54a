//! The timeline of one decode step: what ran on each stream, for which operator, and what the host called meanwhile.
//!
//! The step is the one whose range is of median length among those measured, so that neither a first step nor a stray one stands for all.
//! Of the traced pass where it has work of a GPU: a step's own kernels, copies and whole-traced graphs are those that were launched while
//! its range was open. Otherwise of the plain pass, with the operators as the host ran them.

mod device;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use self::device::Own;
use super::{
    activity::used_devices,
    device_time::{captured, is_operator},
    events::Events,
    interval::{Interval, covered_ns, union},
    invariants::CLOCK_TOLERANCE_NS,
    launches::Launches,
    scopes::{NONE, Nest, nests},
    stages::DECODE,
};
use crate::trace::{
    event::StageRange,
    kernel::Kernel,
    nsys::{GraphNode, NsysTrace, process_of},
    range::Range,
};

/// Name of the range that is one step.
pub const STEP: &str = "decode_step";
/// Slices that are kept of a step: more than any figure shows.
const MAX_SLICES: usize = 8192;

/// One decode step. Times are microseconds from the begin of what is shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StepTimeline {
    /// `traced` where kernels are shown, else `plain`.
    #[schema(example = "traced")]
    pub pass: String,
    /// Which of the measured steps it is, the first being 1.
    pub step: u64,
    /// Measured steps that there are.
    pub steps: u64,
    /// What is shown: from the step's begin to the end of the last thing that it launched. It begins with the first of those where the GPU
    /// was still at an earlier step when this one was launched.
    pub window_us: f64,
    /// How long before that the host had begun this step.
    pub lead_us: f64,
    /// Time in which something of this step ran, on any stream, summed over GPUs; on the host in the plain pass. An upper bound where
    /// `whole_graphs` is above zero.
    pub busy_us: f64,
    /// Time in which nothing at all ran, summed over GPUs; `null` in the plain pass.
    pub idle_us: Option<f64>,
    /// GPUs that the step's process uses; 0 in the plain pass.
    #[serde(default)]
    pub devices: u64,
    /// Kernels of this step that are recorded.
    pub kernels: u64,
    /// Launches of CUDA graphs of this step that were traced as a whole: the kernels inside are not recorded.
    #[serde(default)]
    pub whole_graphs: u64,
    /// In order of track and begin.
    pub slices: Vec<StepSlice>,
    /// Slices that were left out for their number.
    pub omitted: u64,
}

/// Something that lasted a while on a track.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StepSlice {
    /// `calls` (CUDA calls of the host), `operators N` (by nesting, outermost first; as kernels ran), `stream N`.
    #[schema(example = "stream 7")]
    pub track: String,
    #[schema(example = "attend_one_128_bf16")]
    pub name: String,
    /// What a kernel does; the operator's kind in the plain pass.
    #[schema(example = "attention")]
    pub class: Option<String>,
    /// The operator that launched a kernel.
    #[schema(example = "decoder.layers.3.self_attn.attend")]
    pub operator: Option<String>,
    /// Whether it belongs to this step: a neighbour's kernels are shown where they kept the GPU.
    pub own: bool,
    pub start_us: f64,
    pub duration_us: f64,
}

/// Where in the capture a step is.
struct Place {
    range: Interval,
    instance: u32,
    thread: i64,
    /// Open on every thread of its process.
    everywhere: bool,
}

/// The median step of the traced pass; `None` where none has a kernel or a whole-traced graph.
pub fn traced(trace: &NsysTrace, launches: &Launches) -> Option<StepTimeline> {
    let (place, step, steps) = median(trace, launches)?;
    let launched = |call: u32, instance: u32| {
        let Some(call) = (instance == place.instance && call != NONE).then(|| trace.cuda_calls.get(call as usize)) else {
            return false;
        };
        let thread = if place.everywhere { process_of(call.global_tid) } else { call.global_tid };
        thread == place.thread && (place.range.0..place.range.1).contains(&call.start_ns)
    };
    let own = |at: &[(u32, u32)]| -> Vec<usize> {
        at.iter().enumerate().filter(|(_, (call, instance))| launched(*call, *instance)).map(|(at, _)| at).collect()
    };
    let own = Own { kernels: own(&launches.kernels), copies: own(&launches.copies), graphs: own(&launches.graphs) };
    let spans = spans(trace, launches, &own)?;
    let mine = union(spans.iter().map(|(_, span)| *span));
    let (begin, end) = (mine.first()?.0, mine.last()?.1);
    let kernels = trace.kernels.iter().map(|it| (it.start_ns, it.end_ns));
    let ran = |at: i64| move |(start, end): (i64, i64)| start <= at && end > at;
    let busy_then = |at: i64| {
        kernels.clone().take_while(|it| it.0 <= at).any(ran(at))
            || trace.graphs.iter().map(|it| (it.start_ns, it.end_ns)).any(ran(at))
    };
    let from = if begin > place.range.0 && busy_then(place.range.0) { begin } else { place.range.0.min(begin) };
    let window = (from, end.max(if from == place.range.0 { place.range.1 } else { end }));

    let mut shown = Shown { from, slices: Vec::new() };
    calls(trace, &place, window, &mut shown);
    let owners = Owners::of(trace, launches, &place, &own.kernels);
    owners.tracks(trace, &own.kernels, &mut shown);
    let everything = device::on_device(trace, &owners, &own, window, &mut shown);
    let process = process_of(place.thread);
    let used: BTreeSet<u32> = used_devices(trace).range((process, 0)..=(process, u32::MAX)).map(|(_, device)| *device).collect();
    let covered =
        |of: &[(u32, Interval)], device: u32| covered_ns(of.iter().filter(|(on, _)| *on == device).map(|(_, span)| *span));
    let idle: i64 = used.iter().map(|device| window.1 - window.0 - covered(&everything, *device)).sum();
    let omitted = shown.slices.len().saturating_sub(MAX_SLICES);
    shown.slices.truncate(MAX_SLICES);
    Some(StepTimeline {
        pass: "traced".into(),
        step,
        steps,
        window_us: us(window.1 - window.0),
        lead_us: us(from - place.range.0.min(from)),
        busy_us: us(used.iter().map(|device| covered(&spans, *device)).sum()),
        idle_us: Some(us(idle)),
        devices: used.len() as u64,
        kernels: own.kernels.len() as u64,
        whole_graphs: own.graphs.len() as u64,
        slices: shown.slices,
        omitted: omitted as u64,
    })
}

/// When and where the work of a step ran; `None` without a kernel or graph, and where some of it starts before its launch, because
/// host and device cannot be shown on one clock then.
fn spans(trace: &NsysTrace, launches: &Launches, own: &Own) -> Option<Vec<(u32, Interval)>> {
    if own.kernels.is_empty() && own.graphs.is_empty() {
        return None;
    }
    let kernels = own.kernels.iter().map(|at| (launches.kernels[*at].0, trace.kernels.get(*at)));
    let mut spans: Vec<(u32, u32, Interval)> = kernels.map(|(call, it)| (call, it.device, (it.start_ns, it.end_ns))).collect();
    let copies = own.copies.iter().map(|at| (launches.copies[*at].0, &trace.copies[*at]));
    spans.extend(copies.map(|(call, it)| (call, it.device, (it.start_ns, it.end_ns))));
    let graphs = own.graphs.iter().map(|at| (launches.graphs[*at].0, &trace.graphs[*at]));
    spans.extend(graphs.map(|(call, it)| (call, it.device, (it.start_ns, it.end_ns))));
    let called = |call: u32| trace.cuda_calls.get(call as usize).start_ns;
    let early = |(call, _, span): &(u32, u32, Interval)| called(*call).saturating_sub(span.0) > CLOCK_TOLERANCE_NS;
    (!spans.iter().any(early)).then(|| spans.into_iter().map(|(_, device, span)| (device, span)).collect())
}

/// The median step of the plain pass, by its operators on the host; `None` where none was timed by itself.
pub fn plain(events: &Events) -> Option<StepTimeline> {
    let mut steps: Vec<(i64, usize, &StageRange)> =
        events.measured(STEP).enumerate().map(|(at, it)| (it.end_ns - it.start_ns, at, it)).collect();
    let count = steps.len();
    steps.sort_by_key(|(length, at, _)| (*length, *at));
    let (_, at, step) = *steps.get(count.saturating_sub(1) / 2)?;
    let inside = |start: i64, end: i64| step.start_ns <= start && end <= step.end_ns && start < end;
    let mut calls: Vec<_> =
        events.calls.iter().filter(|it| !it.warmup && !it.captured && inside(it.start_ns, it.end_ns)).collect();
    calls.sort_by_key(|it| (it.start_ns, std::cmp::Reverse(it.end_ns)));
    let mut tracks: BTreeMap<usize, Vec<StepSlice>> = BTreeMap::new();
    let mut open: Vec<i64> = Vec::new();
    for it in &calls {
        open.retain(|end| *end > it.start_ns);
        let class = (it.op != "module").then(|| it.op.clone());
        let track = format!("operators {}", open.len() + 1);
        tracks.entry(open.len()).or_default().push(StepSlice {
            track,
            name: it.path.clone(),
            class,
            operator: None,
            own: true,
            start_us: us(it.start_ns - step.start_ns),
            duration_us: us(it.end_ns - it.start_ns),
        });
        open.push(it.end_ns);
    }
    let busy = covered_ns(calls.iter().filter(|it| it.op != "module").map(|it| (it.start_ns, it.end_ns)));
    let mut slices: Vec<StepSlice> = tracks.into_values().flatten().collect();
    let omitted = slices.len().saturating_sub(MAX_SLICES);
    slices.truncate(MAX_SLICES);
    (!slices.is_empty()).then(|| StepTimeline {
        pass: "plain".into(),
        step: at as u64 + 1,
        steps: count as u64,
        window_us: us(step.end_ns - step.start_ns),
        lead_us: 0.0,
        busy_us: us(busy),
        idle_us: None,
        devices: 0,
        kernels: 0,
        whole_graphs: 0,
        slices,
        omitted: omitted as u64,
    })
}

fn us(ns: i64) -> f64 {
    ns as f64 / 1e3
}

/// The measured step of median length, which one it is, and how many there are.
fn median(trace: &NsysTrace, launches: &Launches) -> Option<(Place, u64, u64)> {
    let place = |it: &Range| {
        let end = it.end_ns.filter(|end| *end > it.start_ns)?;
        let instance = launches.stages.on(it.global_tid)?.at(it.start_ns, &mut 0);
        let thread = if it.push_pop { it.global_tid } else { process_of(it.global_tid) };
        let here = launches.stage(instance) == DECODE;
        here.then_some(Place { range: (it.start_ns, end), instance, thread, everywhere: !it.push_pop })
    };
    let mut steps: Vec<Place> = trace.ranges.iter().filter(|it| it.name == STEP).filter_map(place).collect();
    steps.sort_by_key(|it| it.range.0);
    let mut order: Vec<usize> = (0..steps.len()).collect();
    order.sort_by_key(|at| (steps[*at].range.1 - steps[*at].range.0, *at));
    let at = *order.get(steps.len().saturating_sub(1) / 2)?;
    let count = steps.len() as u64;
    Some((steps.swap_remove(at), at as u64 + 1, count))
}

/// Slices with times from the begin of what is shown.
struct Shown {
    from: i64,
    slices: Vec<StepSlice>,
}

impl Shown {
    fn push(&mut self, track: &str, name: &str, (start, end): Interval, own: bool) -> &mut StepSlice {
        self.slices.push(StepSlice {
            track: track.into(),
            name: name.into(),
            class: None,
            operator: None,
            own,
            start_us: us(start - self.from),
            duration_us: us(end - start),
        });
        self.slices.last_mut().expect("one was pushed")
    }
}

/// What the host called from the step's thread.
fn calls(trace: &NsysTrace, place: &Place, (from, to): Interval, shown: &mut Shown) {
    let name = |index: u32| trace.strings.get(index as usize).map_or("", String::as_str);
    let calls = trace.cuda_calls.iter().take_while(|it| it.start_ns < to);
    for call in calls.filter(|it| it.end_ns > from && !place.everywhere && it.global_tid == place.thread) {
        let own = (place.range.0..place.range.1).contains(&call.start_ns);
        shown.push("calls", name(call.name), (call.start_ns.max(from), call.end_ns.min(to)), own);
    }
}

/// Which operator launched each kernel, its enclosing ones included.
struct Owners<'a> {
    nests: BTreeMap<i64, Nest>,
    captured: std::collections::HashMap<u64, GraphNode>,
    launches: &'a Launches,
}

impl<'a> Owners<'a> {
    /// Nests the ranges of operators around the step and, where kernels are of a graph, around its capture.
    fn of(trace: &NsysTrace, launches: &'a Launches, place: &Place, kernels: &[usize]) -> Self {
        let captured = captured(&trace.graph_nodes);
        let made = kernels.iter().filter_map(|at| Some(captured.get(&trace.kernels.get(*at).graph_node?)?.at_ns));
        let around =
            made.fold(None, |around: Option<Interval>, at| Some(around.map_or((at, at), |it| (it.0.min(at), it.1.max(at)))));
        let operator = is_operator(trace);
        let meets = |it: &Range, (from, to): Interval| it.start_ns <= to && it.end_ns.is_none_or(|end| end >= from);
        let near = |it: &Range| meets(it, place.range) || around.is_some_and(|around| meets(it, around));
        Self { nests: nests(trace, |it| near(it) && operator(it)), captured, launches }
    }

    /// Ranges that enclose the launch of a kernel, outermost first, as entries of a thread's nest.
    fn chain(&self, trace: &NsysTrace, at: usize, kernel: &Kernel) -> (i64, Vec<u32>) {
        let made = kernel.graph_node.and_then(|node| self.captured.get(&node)).map(|node| (node.global_tid, node.at_ns));
        let call = self.launches.kernels[at].0;
        let called = || (call != NONE).then(|| trace.cuda_calls.get(call as usize)).map(|call| (call.global_tid, call.start_ns));
        let Some((thread, t)) = made.or_else(called) else { return (0, vec![]) };
        let Some(nest) = self.nests.get(&thread) else { return (thread, vec![]) };
        let parent = |entry: &u32| nest.entries.get(*entry as usize).map(|it| it.1).filter(|up| *up != NONE);
        let innermost = Some(nest.segments.at(t, &mut 0)).filter(|entry| *entry != NONE);
        let mut chain: Vec<u32> = std::iter::successors(innermost, parent).collect();
        chain.reverse();
        (thread, chain)
    }

    fn name<'t>(&self, trace: &'t NsysTrace, thread: i64, entry: u32) -> &'t str {
        let range = self.nests.get(&thread).and_then(|nest| nest.entries.get(entry as usize));
        range.and_then(|(range, _)| trace.ranges.get(*range as usize)).map_or("", |it| it.name.as_str())
    }

    /// A track per depth of nesting: kernels that follow each other for one operator make a slice.
    fn tracks(&self, trace: &NsysTrace, kernels: &[usize], shown: &mut Shown) {
        let mut depths: Vec<Vec<(i64, u32, Interval)>> = Vec::new();
        let mut before = (0, vec![]);
        for at in kernels {
            let kernel = trace.kernels.get(*at);
            let (thread, chain) = self.chain(trace, *at, &kernel);
            for (depth, entry) in chain.iter().enumerate() {
                if depths.len() == depth {
                    depths.push(vec![]);
                }
                let goes_on = before.0 == thread && before.1.get(depth) == Some(entry);
                match depths[depth].last_mut() {
                    Some((_, _, span)) if goes_on => span.1 = span.1.max(kernel.end_ns),
                    _ => depths[depth].push((thread, *entry, (kernel.start_ns, kernel.end_ns))),
                }
            }
            before = (thread, chain);
        }
        for (depth, slices) in depths.iter().enumerate() {
            let track = format!("operators {}", depth + 1);
            for (thread, entry, span) in slices {
                shown.push(&track, self.name(trace, *thread, *entry), *span, true);
            }
        }
    }
}

#[cfg(test)]
mod tests;

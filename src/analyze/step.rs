//! The timeline of one decode step: what ran on each stream, for which operator, and what the host called meanwhile.
//!
//! The step is the one whose range is of median length among those measured, so that neither a first step nor a stray one stands for all.
//! Of the traced pass where it has kernels: a step's own kernels are those that were launched while its range was open. Otherwise of the
//! plain pass, with the operators as the host ran them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    classes::Classes,
    device_time::{captured, is_operator},
    events::Events,
    interval::{Interval, covered_ns, union},
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
const MOST: usize = 8192;

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
    /// Time in which something of this step ran, on any stream; on the host in the plain pass.
    pub busy_us: f64,
    /// Time in which nothing at all ran on the GPU; `null` in the plain pass.
    pub idle_us: Option<f64>,
    /// Kernels of this step.
    pub kernels: u64,
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

/// The median step of the traced pass; `None` where none has a kernel.
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
    let (kernels, copies) = (own(&launches.kernels), own(&launches.copies));
    let spans = kernels.iter().map(|at| trace.kernels.get(*at)).map(|it| (it.start_ns, it.end_ns)).collect::<Vec<_>>();
    let copied = copies.iter().map(|at| (trace.copies[*at].start_ns, trace.copies[*at].end_ns));
    let first = spans.first()?.0;
    let mine = union(spans.iter().copied().chain(copied));
    let (begin, end) = (mine.first()?.0, mine.last()?.1);
    let busy_then = |at: i64| trace.kernels.iter().take_while(|it| it.start_ns <= at).any(|it| it.end_ns > at);
    let from = if begin > place.range.0 && busy_then(place.range.0) { begin.min(first) } else { place.range.0.min(begin) };
    let window = (from, end.max(if from == place.range.0 { place.range.1 } else { end }));

    let mut shown = Shown { from, slices: Vec::new() };
    calls(trace, &place, window, &mut shown);
    let owners = Owners::of(trace, launches, &place, &kernels);
    owners.tracks(trace, &kernels, &mut shown);
    let everything = on_device(trace, &owners, (&kernels, &copies), window, &mut shown);
    let idle = window.1 - window.0 - covered_ns(everything);
    let omitted = shown.slices.len().saturating_sub(MOST);
    shown.slices.truncate(MOST);
    Some(StepTimeline {
        pass: "traced".into(),
        step,
        steps,
        window_us: us(window.1 - window.0),
        lead_us: us(from - place.range.0.min(from)),
        busy_us: us(mine.iter().map(|(start, end)| end - start).sum()),
        idle_us: Some(us(idle)),
        kernels: kernels.len() as u64,
        slices: shown.slices,
        omitted: omitted as u64,
    })
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
    let omitted = slices.len().saturating_sub(MOST);
    slices.truncate(MOST);
    (!slices.is_empty()).then(|| StepTimeline {
        pass: "plain".into(),
        step: at as u64 + 1,
        steps: count as u64,
        window_us: us(step.end_ns - step.start_ns),
        lead_us: 0.0,
        busy_us: us(busy),
        idle_us: None,
        kernels: 0,
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

/// Every kernel and copy that ran in the window, by stream; gives when.
fn on_device(
    trace: &NsysTrace,
    owners: &Owners,
    (kernels, copies): (&[usize], &[usize]),
    (from, to): Interval,
    shown: &mut Shown,
) -> Vec<Interval> {
    let name = |index: u32| trace.strings.get(index as usize).map_or("", String::as_str);
    let mut classes = Classes::default();
    let mut ran = Vec::new();
    let mut streams: BTreeMap<(u32, u32), Vec<usize>> = BTreeMap::new();
    let within = |start: i64, end: i64| start < to && end > from;
    for (at, kernel) in trace.kernels.iter().enumerate().take_while(|(_, it)| it.start_ns < to) {
        if within(kernel.start_ns, kernel.end_ns) {
            streams.entry((kernel.device, kernel.stream)).or_default().push(at);
        }
    }
    let devices = streams.keys().map(|(device, _)| *device).collect::<std::collections::BTreeSet<_>>().len();
    for ((device, stream), of_stream) in streams {
        let track = if devices > 1 { format!("device {device}, stream {stream}") } else { format!("stream {stream}") };
        for at in of_stream {
            let kernel = trace.kernels.get(at);
            let span = (kernel.start_ns.max(from), kernel.end_ns.min(to));
            let own = kernels.binary_search(&at).is_ok();
            let slice = shown.push(&track, name(kernel.name), span, own);
            slice.class = Some(classes.of(kernel.full_name, &trace.strings).class.to_owned());
            if own {
                let (thread, chain) = owners.chain(trace, at, &kernel);
                slice.operator = chain.last().map(|entry| owners.name(trace, thread, *entry).to_owned());
            }
            ran.push(span);
        }
    }
    for (at, copy) in trace.copies.iter().enumerate().take_while(|(_, it)| it.start_ns < to) {
        if within(copy.start_ns, copy.end_ns) {
            let span = (copy.start_ns.max(from), copy.end_ns.min(to));
            let slice = shown.push("copies", copy.kind.as_str(), span, copies.binary_search(&at).is_ok());
            slice.class = Some("copy".into());
            ran.push(span);
        }
    }
    ran
}

#[cfg(test)]
mod tests {
    use super::{super::kernels::tests::capture, *};
    use crate::trace::event::{Event, OPERATOR_DOMAIN, OperatorCall};

    /// One line per slice: `track name operator start duration`, neighbours' marked.
    fn told(trace: &NsysTrace) -> String {
        let Some(step) = traced(trace, &Launches::of(trace)) else { return "none".into() };
        let head = format!(
            "step {} of {}: window {} lead {} busy {} idle {} kernels {}",
            step.step,
            step.steps,
            step.window_us * 1e3,
            step.lead_us * 1e3,
            step.busy_us * 1e3,
            step.idle_us.unwrap() * 1e3,
            step.kernels
        );
        let slice = |it: &StepSlice| {
            let operator = it.operator.as_deref().unwrap_or("-");
            let other = if it.own { "" } else { " (another step's)" };
            format!("{} {:?} {operator} {} {}{other}", it.track, it.name, it.start_us * 1e3, it.duration_us * 1e3)
        };
        std::iter::once(head).chain(step.slices.iter().map(slice)).collect::<Vec<_>>().join("\n")
    }

    fn with_operators(sketch: &str) -> NsysTrace {
        let mut trace = capture(sketch);
        let stage = |name: &str| matches!(name, "prefill" | "decode_all" | "warmup" | "decode_step");
        trace.ranges.iter_mut().filter(|it| !stage(&it.name)).for_each(|it| it.domain = OPERATOR_DOMAIN.into());
        trace
    }

    #[test]
    fn the_step_of_median_length_is_told_with_its_operators_by_nesting() {
        let trace = with_operators(
            "range 1 decode_all 0..300\nrange 1 decode_step 0..100\nrange 1 decode_step 100..150\nrange 1 decode_step 150..290
             range 1 layer 5..80\nrange 1 layer.q 10..20\nrange 1 layer.k 20..30
             call 1 1 12..14\ncall 1 2 22..24\ncall 1 3 40..41\ncall 1 4 110..111\ncall 1 5 160..161
             kernel 1 a 15..25 7\nkernel 2 b 30..40 7\nkernel 3 c 60..70 8\nkernel 4 d 112..120 7\nkernel 5 e 170..180 7",
        );
        insta::assert_snapshot!(told(&trace), @r#"
        step 1 of 3: window 100 lead 0 busy 30 idle 70 kernels 3
        calls "a" - 12 2
        calls "a" - 22 2
        calls "a" - 40 1
        operators 1 "layer" - 15 55
        operators 2 "layer.q" - 15 10
        operators 2 "layer.k" - 30 10
        stream 7 "a" layer.q 15 10
        stream 7 "b" layer.k 30 10
        stream 8 "c" layer 60 10
        "#);
    }

    #[test]
    fn a_step_launched_while_the_gpu_was_at_the_one_before_begins_with_its_first_kernel() {
        let trace = with_operators(
            "range 1 decode_all 0..100\nrange 1 decode_step 10..40
             call 1 1 5..6\ncall 1 2 12..14\nkernel 1 a 8..45 7\nkernel 2 b 48..60 7\nkernel 1 a 55..70 9",
        );
        insta::assert_snapshot!(told(&trace), @r#"
        step 1 of 1: window 12 lead 38 busy 12 idle 0 kernels 1
        stream 7 "b" - 0 12
        stream 9 "a" - 7 5 (another step's)
        "#);
    }

    #[test]
    fn steps_of_a_warm_up_and_steps_without_kernels_are_none() {
        assert_eq!(
            told(&capture(
                "range 1 warmup 0..50\nrange 1 decode_all 1..40\nrange 1 decode_step 2..30\ncall 1 1 3..4\nkernel 1 a 5..9 7"
            )),
            "none"
        );
        assert_eq!(told(&capture("range 1 decode_all 1..40\nrange 1 decode_step 2..30\ncall 1 1 3..4")), "none");
        assert_eq!(told(&capture("range 1 decode_all 1..40\ncall 1 1 3..4\nkernel 1 a 5..9 7")), "none");
    }

    #[test]
    fn without_kernels_the_plain_step_is_its_operators_on_the_host() {
        let step = |start_ns, end_ns| {
            let (name, repeat) = (STEP.to_owned(), 0);
            Event::Range(StageRange { name, start_ns, end_ns, device_ns: None, warmup: false, repeat, step: None })
        };
        let op = |path: &str, op: &str, start_ns, end_ns| {
            Event::Op(OperatorCall {
                path: path.into(),
                op: op.into(),
                start_ns,
                end_ns,
                captured: false,
                warmup: false,
                repeat: 0,
                stage: DECODE.into(),
                shapes: vec![],
                dtype: String::new(),
                flops: 0,
                bytes: 0,
            })
        };
        let events = [
            op("l.q", "linear", 1000, 3000),
            op("l", "module", 500, 5000),
            step(0, 6000),
            op("x", "norm", 7000, 8000),
            step(6000, 9000),
        ];
        let told = plain(&Events::of(&events)).unwrap();
        assert_eq!((told.step, told.steps, told.window_us, told.busy_us), (2, 2, 3.0, 1.0));
        let first = plain(&Events::of(&events[..3])).unwrap();
        let slices: Vec<_> =
            first.slices.iter().map(|it| (&*it.track, &*it.name, it.class.as_deref(), it.start_us, it.duration_us)).collect();
        assert_eq!(slices, [("operators 1", "l", None, 0.5, 4.5), ("operators 2", "l.q", Some("linear"), 1.0, 2.0)]);
        assert_eq!(plain(&Events::of(&[])), None);
    }
}

//! What the devices ran in the window of a step, track by track.

use std::collections::BTreeMap;

use super::{Owners, Shown};
use crate::{
    analyze::{classes::Classes, interval::Interval},
    trace::nsys::NsysTrace,
};

/// Kernels, copies and whole-traced graphs of the step, by their places in the capture, in order.
pub struct Own {
    pub kernels: Vec<usize>,
    pub copies: Vec<usize>,
    pub graphs: Vec<usize>,
}

/// Work of one stream in the window.
#[derive(Default)]
struct Stream {
    kernels: Vec<usize>,
    graphs: Vec<usize>,
}

/// Shows everything that ran in the window, by stream; returns when, and on which device.
pub fn on_device(trace: &NsysTrace, owners: &Owners, own: &Own, (from, to): Interval, shown: &mut Shown) -> Vec<(u32, Interval)> {
    let name = |index: u32| trace.strings.get(index as usize).map_or("", String::as_str);
    let mut classes = Classes::default();
    let mut ran = Vec::new();
    let mut streams: BTreeMap<(u32, u32), Stream> = BTreeMap::new();
    let within = |start: i64, end: i64| start < to && end > from;
    let clip = |start: i64, end: i64| (start.max(from), end.min(to));
    for (at, it) in trace.kernels.iter().enumerate().take_while(|(_, it)| it.start_ns < to) {
        if within(it.start_ns, it.end_ns) {
            streams.entry((it.device, it.stream)).or_default().kernels.push(at);
        }
    }
    for (at, it) in trace.graphs.iter().enumerate().take_while(|(_, it)| it.start_ns < to) {
        if within(it.start_ns, it.end_ns) {
            streams.entry((it.device, it.stream)).or_default().graphs.push(at);
        }
    }
    let devices = streams.keys().map(|(device, _)| *device).collect::<std::collections::BTreeSet<_>>().len();
    for ((device, stream), of_stream) in streams {
        let track = if devices > 1 { format!("device {device}, stream {stream}") } else { format!("stream {stream}") };
        for at in of_stream.kernels {
            let kernel = trace.kernels.get(at);
            let span = clip(kernel.start_ns, kernel.end_ns);
            let mine = own.kernels.binary_search(&at).is_ok();
            let slice = shown.push(&track, name(kernel.name), span, mine);
            slice.class = Some(classes.of(kernel.full_name, &trace.strings).class.to_owned());
            if mine {
                let (thread, chain) = owners.chain(trace, at, &kernel);
                slice.operator = chain.last().map(|entry| owners.name(trace, thread, *entry).to_owned());
            }
            ran.push((device, span));
        }
        for at in of_stream.graphs {
            let it = &trace.graphs[at];
            let span = clip(it.start_ns, it.end_ns);
            let named = it.graph.map_or_else(|| "CUDA graph".to_owned(), |graph| format!("CUDA graph {graph}"));
            let slice = shown.push(&track, &format!("{named}, traced as a whole"), span, own.graphs.binary_search(&at).is_ok());
            slice.class = Some("graph".into());
            ran.push((device, span));
        }
    }
    for (at, copy) in trace.copies.iter().enumerate().take_while(|(_, it)| it.start_ns < to) {
        if within(copy.start_ns, copy.end_ns) {
            let span = clip(copy.start_ns, copy.end_ns);
            let slice = shown.push("copies", copy.kind.as_str(), span, own.copies.binary_search(&at).is_ok());
            slice.class = Some("copy".into());
            ran.push((copy.device, span));
        }
    }
    ran
}

//! Device work in the window of a step, by track.

use std::collections::{BTreeMap, BTreeSet};

use super::{SliceList, owners::KernelOwners};
use crate::{kernels::kernel_classes::ClassCache, timeline::interval::Interval};

/// Indices of the step's kernels, copies and whole-traced graphs, in order.
pub(super) struct StepWork {
    pub kernels: Vec<usize>,
    pub copies: Vec<usize>,
    pub graphs: Vec<usize>,
}

/// Work of one stream in the window.
#[derive(Default)]
struct StreamWork {
    kernels: Vec<usize>,
    graphs: Vec<usize>,
}

/// Adds a slice for all device work in the window, by stream; returns its devices and intervals.
pub(super) fn add_device_work(
    owners: &KernelOwners,
    own: &StepWork,
    (from, to): Interval,
    slices: &mut SliceList,
) -> Vec<(u32, Interval)> {
    let trace = owners.capture.trace;
    let name = |index: u32| trace.text(index);
    let mut classes = ClassCache::default();
    let mut ran = Vec::new();
    let mut streams: BTreeMap<(u32, u32), StreamWork> = BTreeMap::new();
    let overlaps = |start: i64, end: i64| start < to && end > from;
    let clip = |start: i64, end: i64| (start.max(from), end.min(to));
    for (at, it) in trace.kernels.iter().enumerate().take_while(|(_, it)| it.start_ns < to) {
        if overlaps(it.start_ns, it.end_ns) {
            streams.entry((it.device, it.stream)).or_default().kernels.push(at);
        }
    }
    for (at, it) in trace.graphs.iter().enumerate().take_while(|(_, it)| it.start_ns < to) {
        if overlaps(it.start_ns, it.end_ns) {
            streams.entry((it.device, it.stream)).or_default().graphs.push(at);
        }
    }
    let devices = streams.keys().map(|(device, _)| *device).collect::<BTreeSet<_>>().len();
    for ((device, stream), of_stream) in streams {
        let track = if devices > 1 {
            format!("device {device}, stream {stream}")
        } else {
            format!("stream {stream}")
        };
        for at in of_stream.kernels {
            let kernel = trace.kernels.get(at);
            let span = clip(kernel.start_ns, kernel.end_ns);
            let mine = own.kernels.binary_search(&at).is_ok();
            let slice = slices.push(&track, name(kernel.name), span, mine);
            slice.class = Some(classes.of(kernel.full_name, &trace.strings).class.to_owned());
            if mine {
                slice.operator = owners.innermost(at).map(str::to_owned);
            }
            ran.push((device, span));
        }
        for at in of_stream.graphs {
            let it = &trace.graphs[at];
            let span = clip(it.start_ns, it.end_ns);
            let name = it
                .graph
                .map_or_else(|| "CUDA graph".to_owned(), |graph| format!("CUDA graph {graph}"));
            let slice = slices.push(
                &track,
                &format!("{name}, traced as a whole"),
                span,
                own.graphs.binary_search(&at).is_ok(),
            );
            slice.class = Some("graph".into());
            ran.push((device, span));
        }
    }
    for (at, copy) in trace.copies.iter().enumerate().take_while(|(_, it)| it.start_ns < to) {
        if overlaps(copy.start_ns, copy.end_ns) {
            let span = clip(copy.start_ns, copy.end_ns);
            let slice = slices.push(
                "copies",
                copy.kind.as_str(),
                span,
                own.copies.binary_search(&at).is_ok(),
            );
            slice.class = Some("copy".into());
            ran.push((copy.device, span));
        }
    }
    ran
}

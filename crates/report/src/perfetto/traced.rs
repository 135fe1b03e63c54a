//! The traced pass: ranges and CUDA calls by thread, kernels and graphs by stream, and the flows
//! from a launching call to its work.

use std::io::{self, Write};

use foldhash::HashMap;
use llmprof_core::trace::{
    kernel::{LaunchKind, known_sides},
    timeline::{ApiCall, GraphLaunch, ON_HOST, Timeline, process_of, tid_of},
};

use super::{
    GPU, Lanes, Rows, TRACED,
    cores::cores,
    operators::operators,
    packets::{Arg, Packets, SliceTemplate, Track},
    sampled::metrics,
    size, span,
    window::Window,
};
use crate::kernel_names::KernelNames;

/// Writes the traced pass, or the part of it in its window.
pub fn traced(
    packets: &mut Packets<impl Write>,
    nsys: &Timeline,
    names: &KernelNames,
) -> io::Result<()> {
    let window = Window::of(nsys);
    let name = format!("traced pass ({})", nsys.tool.as_str());
    let process = packets.process(TRACED, &window.name(&name))?;
    ranges(packets, process, nsys, &window)?;
    operators(packets, process, nsys, &window)?;
    let flows = Flows::of(nsys, &window);
    calls(packets, process, nsys, &window, &flows)?;
    let mut devices = HashMap::default();
    let names = names.of_kinds(nsys);
    kernels(packets, (nsys, &names), &window, &flows, &mut devices)?;
    graphs(packets, &nsys.graphs, &window, &flows, &mut devices)?;
    for samples in nsys.samples.iter().flat_map(|samples| &samples.devices) {
        let device = gpu(packets, &mut devices, samples.device)?;
        metrics(packets, device, samples, &window)?;
    }
    cores(packets, nsys, &window)
}

/// Ranges by thread; start/end ranges may cross.
pub fn ranges(
    packets: &mut Packets<impl Write>,
    process: Track,
    nsys: &Timeline,
    window: &Window,
) -> io::Result<()> {
    let (mut threads, mut crossing) = (Rows::default(), Lanes::default());
    for range in &nsys.ranges {
        let Some(end) = range.end_ns.filter(|end| window.overlaps(range.start_ns, *end)) else {
            continue;
        };
        let Some(times) = span(window.origin, (range.start_ns, end)) else { continue };
        let domain = if range.domain.is_empty() { "default" } else { &range.domain };
        let template = packets.template("range", &range.name, &[("domain", Arg::Text(domain))])?;
        let row = if range.push_pop {
            threads.of(range.global_tid, || {
                packets.row(process, &format!("ranges of thread {}", tid_of(range.global_tid)))
            })?
        } else {
            crossing.free(times, |_| packets.row(process, "ranges that cross threads"))?
        };
        packets.slice(row, &template, times)?;
    }
    Ok(())
}

/// Flows from launching calls to their kernels and graphs, if both are in the file.
struct Flows(HashMap<(i64, i64), u64>);

impl Flows {
    fn of(nsys: &Timeline, window: &Window) -> Self {
        let kernels = window.inside(nsys.kernels.iter(), |it| it.start_ns);
        let kernels = kernels.map(|it| it.launch_id());
        let graphs = window.inside(nsys.graphs.iter(), |it| it.start_ns);
        let graphs = graphs.map(GraphLaunch::launch_id);
        let mut flows: HashMap<(i64, i64), u64> =
            kernels.chain(graphs).filter(|(_, id)| *id > 0).map(|key| (key, 0)).collect();
        let mut last = 0;
        for call in window.inside(nsys.cuda_calls.iter(), |it| it.start_ns) {
            if let Some(flow) = flows.get_mut(&call.launch_id()).filter(|flow| **flow == 0) {
                last += 1;
                *flow = last;
            }
        }
        flows.retain(|_, flow| *flow > 0);
        Self(flows)
    }

    /// The flow of a call, or of work by its call.
    fn get(&self, global_id: i64, correlation_id: i64) -> Option<u64> {
        self.0.get(&(process_of(global_id), correlation_id)).copied()
    }
}

/// CUDA calls by thread. A call inside another one has a row of its own.
fn calls(
    packets: &mut Packets<impl Write>,
    process: Track,
    nsys: &Timeline,
    window: &Window,
    flows: &Flows,
) -> io::Result<()> {
    let mut threads: HashMap<i64, Lanes> = HashMap::default();
    let mut sites: Vec<Option<SliceTemplate>> = vec![None; nsys.cuda_calls.sites().len()];
    for (site, call) in window.inside(nsys.cuda_calls.with_sites(), |(_, it)| it.start_ns) {
        let ApiCall { global_tid, correlation_id, .. } = call;
        let Some(times) = span(window.origin, (call.start_ns, call.end_ns)) else { continue };
        let row = threads.entry(global_tid).or_default().free(times, |lane| {
            let thread = tid_of(global_tid);
            match lane {
                0 => packets.row(process, &format!("calls of thread {thread}")),
                _ => packets.row(process, &format!("calls of thread {thread}, inside {lane}")),
            }
        })?;
        let mut template = match &sites[site as usize] {
            Some(known) => known.clone(),
            None => {
                let name = nsys.text(call.name);
                let template = packets.template("call", name, &[])?;
                sites[site as usize].insert(template).clone()
            }
        };
        if let Ok(id @ 1..) = u64::try_from(correlation_id) {
            packets.annotate(&mut template, "correlation", &Arg::Number(id))?;
        }
        let flow = flows.get(global_tid, correlation_id);
        packets.slice_of_flow(row, &template, times, flow)?;
    }
    Ok(())
}

/// The row of a GPU.
fn gpu(
    packets: &mut Packets<impl Write>,
    devices: &mut HashMap<u32, Track>,
    device: u32,
) -> io::Result<Track> {
    if let Some(known) = devices.get(&device) {
        return Ok(*known);
    }
    let name = match device {
        ON_HOST => "Unknown GPU in the traced pass".to_owned(),
        device => format!("GPU {device} in the traced pass"),
    };
    let process = packets.process(GPU.saturating_add(device), &name)?;
    Ok(*devices.entry(device).or_insert(process))
}

/// Graphs that were traced as a whole, by device and stream.
fn graphs(
    packets: &mut Packets<impl Write>,
    graphs: &[GraphLaunch],
    window: &Window,
    flows: &Flows,
    devices: &mut HashMap<u32, Track>,
) -> io::Result<()> {
    let mut streams: HashMap<(u32, u32), Lanes> = HashMap::default();
    for it in window.inside(graphs.iter(), |it| it.start_ns) {
        let Some(times) = span(window.origin, (it.start_ns, it.end_ns)) else { continue };
        let device = gpu(packets, devices, it.device)?;
        let row =
            streams.entry((it.device, it.stream)).or_default().free(times, |lane| match lane {
                0 => packets.row(
                    device,
                    &format!("CUDA graphs of stream {}, traced as a whole", it.stream),
                ),
                _ => packets.row(
                    device,
                    &format!(
                        "CUDA graphs of stream {}, traced as a whole, next to it {lane}",
                        it.stream
                    ),
                ),
            })?;
        let name =
            it.graph.map_or_else(|| "CUDA graph".to_owned(), |graph| format!("CUDA graph {graph}"));
        let template = packets.template(
            "graph",
            &name,
            &[("correlation", Arg::Number(it.correlation_id.cast_unsigned()))],
        )?;
        let flow = flows.get(it.global_pid, it.correlation_id);
        packets.slice_of_flow(row, &template, times, flow)?;
    }
    Ok(())
}

/// Kernels by device and stream, with a name for each kind.
fn kernels(
    packets: &mut Packets<impl Write>,
    (nsys, names): (&Timeline, &[String]),
    window: &Window,
    flows: &Flows,
    devices: &mut HashMap<u32, Track>,
) -> io::Result<()> {
    let kernels = &nsys.kernels;
    let mut streams: HashMap<(u32, u32), Lanes> = HashMap::default();
    let mut kinds: Vec<Option<SliceTemplate>> = vec![None; kernels.kinds().len()];
    let mut template = SliceTemplate::default();
    for (kind, it) in window.inside(kernels.with_kinds(), |(_, it)| it.start_ns) {
        let Some(times) = span(window.origin, (it.start_ns, it.end_ns)) else { continue };
        let device = gpu(packets, devices, it.device)?;
        let lanes = streams.entry((it.device, it.stream)).or_default();
        let row = lanes.free(times, |lane| match lane {
            0 => packets.row(device, &format!("stream {}", it.stream)),
            _ => packets.row(device, &format!("stream {}, concurrent {lane}", it.stream)),
        })?;
        let kind = kind as usize;
        match &kinds[kind] {
            Some(known) => template.clone_from(known),
            None => {
                template = launch(packets, &names[kind], &kernels.kinds()[kind], nsys)?;
                kinds[kind] = Some(template.clone());
            }
        }
        packets.annotate(
            &mut template,
            "correlation",
            &Arg::Number(it.correlation_id.cast_unsigned()),
        )?;
        if let Some(node) = it.graph_node {
            packets.annotate(&mut template, "graph node", &Arg::Number(node))?;
        }
        let flow = flows.get(it.global_pid, it.correlation_id);
        packets.slice_of_flow(row, &template, times, flow)?;
    }
    Ok(())
}

/// Shared properties of the launches of one kind.
fn launch(
    packets: &mut Packets<impl Write>,
    name: &str,
    kind: &LaunchKind,
    nsys: &Timeline,
) -> io::Result<SliceTemplate> {
    let launch = known_sides(kind.grid).zip(known_sides(kind.block));
    let launch = launch.map(|(grid, block)| (size(grid), size(block)));
    let mut about = vec![("full name", Arg::Text(nsys.text(kind.full_name)))];
    // A capture that does not state the grid has no registers, too.
    if let Some((grid, block)) = &launch {
        about.extend([
            ("grid", Arg::Text(grid)),
            ("block", Arg::Text(block)),
            ("registers", Arg::Number(kind.registers.into())),
        ]);
    }
    packets.template("kernel", name, &about)
}

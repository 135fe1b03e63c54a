//! The timeline of a run for Perfetto's UI: stages, operators, kernels by stream, copying calls,
//! power and clocks; the gap ledger.
//!
//! Events are streamed. The format requires that slices of one row do not cross and that outer ones
//! come first, so slices that may cross (ranges across threads, concurrent kernels of one stream)
//! get separate rows. The unprofiled and the traced pass have separate clocks that start at zero:
//! they are shown as separate processes and are not aligned.

mod ledger;
mod operators;
mod packets;

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
    io::{self, Write},
};

use foldhash::HashMap;

use self::packets::{Arg, Packets, SliceTemplate, Track};
use crate::{
    analyze::ledger::Ledger,
    trace::{
        Trace,
        event::Event,
        kernel::{KernelTrace, LaunchKind, UNNUMBERED_NODE},
        nsys::{GraphLaunch, NsysTrace},
        power::{PowerLog, PowerSample},
    },
};

/// Process ids in the trace, one per source of events; GPUs follow the last one.
const UNPROFILED: u32 = 1;
const TRACED: u32 = 2;
const LEDGER: u32 = 3;
const GPU: u32 = 10;

/// Writes the timeline with the ledgers of the stages, and returns the writer.
pub fn write<W: Write>(trace: &Trace, ledger: &Ledger, out: W) -> io::Result<W> {
    let mut packets = Packets::start(out)?;
    if !trace.baseline.is_empty() || trace.power.is_some() {
        let origin = unprofiled_origin(trace);
        let process = packets.process(UNPROFILED, "unprofiled pass")?;
        unprofiled(&mut packets, process, &trace.baseline, origin)?;
        if let Some(log) = &trace.power {
            power(&mut packets, process, log, origin)?;
        }
    }
    if let Some(nsys) = &trace.nsys {
        traced(&mut packets, nsys)?;
    }
    if !ledger.stages.is_empty() {
        let process = packets.process(LEDGER, "gap ledger, one repeat")?;
        ledger::ledger(&mut packets, process, ledger)?;
    }
    packets.end()
}

/// Start of the unprofiled pass on its clock: the first range, or an earlier first sample.
fn unprofiled_origin(trace: &Trace) -> i64 {
    let ranges = trace.baseline.iter().filter_map(|event| match event {
        Event::Range(it) if it.start_ns <= it.end_ns => Some(it.start_ns),
        Event::Op(it) if it.start_ns <= it.end_ns => Some(it.start_ns),
        _ => None,
    });
    let samples = trace.power.iter().flat_map(|log| &log.samples).map(|sample| sample.t_ns);
    ranges.chain(samples).min().unwrap_or(0)
}

/// Nanoseconds since `origin`; `None` for an invalid interval, which ends before its start.
fn span(origin: i64, (from, to): (i64, i64)) -> Option<(u64, u64)> {
    let since = |at: i64| u64::try_from(at.saturating_sub(origin)).ok();
    since(from).zip(since(to)).filter(|(from, to)| from <= to)
}

fn unprofiled(
    packets: &mut Packets<impl Write>,
    process: Track,
    passed: &[Event],
    origin: i64,
) -> io::Result<()> {
    let (stages, operators) =
        (packets.row(process, "stages")?, packets.row(process, "operators (host)")?);
    // Ranges are recorded at their end, so enclosed events come first.
    let time = |event: &&Event| match event {
        Event::Range(it) => (it.start_ns, Reverse(it.end_ns)),
        Event::Op(it) => (it.start_ns, Reverse(it.end_ns)),
        _ => (0, Reverse(0)),
    };
    let mut passed: Vec<&Event> = passed.iter().collect();
    passed.sort_by_key(time);
    for event in passed {
        let (row, template, times) = match event {
            Event::Range(it) => {
                let mut template = packets.template(
                    "stage",
                    &it.name,
                    &[("repeat", Arg::Number(it.repeat.into()))],
                )?;
                packets.annotate(&mut template, "warmup", &Arg::Flag(it.warmup))?;
                if let Some(step) = it.step {
                    packets.annotate(&mut template, "step", &Arg::Number(step.into()))?;
                }
                (stages, template, (it.start_ns, it.end_ns))
            }
            // A call inside a replayed graph has no time of its own.
            Event::Op(it) if !it.captured => {
                let shapes = format!("{:?}", it.shapes);
                let about = [
                    ("kind", Arg::Text(&it.op)),
                    ("stage", Arg::Text(&it.stage)),
                    ("shapes", Arg::Text(&shapes)),
                    ("FLOPs", Arg::Number(it.flops)),
                    ("bytes", Arg::Number(it.bytes)),
                ];
                (
                    operators,
                    packets.template("operator", &it.path, &about)?,
                    (it.start_ns, it.end_ns),
                )
            }
            _ => continue,
        };
        if let Some(times) = span(origin, times) {
            packets.slice(row, &template, times)?;
        }
    }
    Ok(())
}

/// Reads one figure of a sample.
type SampleReader = fn(&PowerSample) -> Option<f64>;

fn power(
    packets: &mut Packets<impl Write>,
    process: Track,
    log: &PowerLog,
    origin: i64,
) -> io::Result<()> {
    let figures: [(&str, &str, SampleReader); 7] = [
        ("power", "W", |sample| sample.power_w),
        ("SM clock", "MHz", |sample| sample.sm_mhz.map(f64::from)),
        ("memory clock", "MHz", |sample| sample.memory_mhz.map(f64::from)),
        ("GPU active", "%", |sample| sample.gpu_pct.map(f64::from)),
        ("memory active", "%", |sample| sample.memory_pct.map(f64::from)),
        ("memory used", "bytes", |sample| sample.memory_used_bytes.map(|it| it as f64)),
        ("temperature", "°C", |sample| sample.temperature_c.map(f64::from)),
    ];
    for (name, unit, figure) in figures {
        let known = |sample: &PowerSample| {
            let value = figure(sample).filter(|value| value.is_finite())?;
            Some((span(origin, (sample.t_ns, sample.t_ns))?.0, value))
        };
        let mut known = log.samples.iter().filter_map(known).peekable();
        if known.peek().is_none() {
            continue;
        }
        let row = packets.figures(process, name, unit)?;
        for (at, value) in known {
            packets.figure(row, at, value)?;
        }
    }
    Ok(())
}

fn traced(packets: &mut Packets<impl Write>, nsys: &NsysTrace) -> io::Result<()> {
    let starts =
        nsys.ranges.iter().map(|it| it.start_ns).chain(nsys.kernels.iter().map(|it| it.start_ns));
    let starts = starts.chain(nsys.graphs.iter().map(|it| it.start_ns));
    let starts = starts.chain(nsys.framework.iter().map(|it| it.start_ns));
    let origin = starts.chain(nsys.cuda_calls.iter().map(|it| it.start_ns)).min().unwrap_or(0);
    let process = packets.process(TRACED, &format!("traced pass ({})", nsys.tool.as_str()))?;
    let (mut threads, mut crossing) = (Rows::default(), Lanes::default());
    for range in &nsys.ranges {
        let Some(times) = range.end_ns.and_then(|end| span(origin, (range.start_ns, end))) else {
            continue;
        };
        let domain = if range.domain.is_empty() { "default" } else { &range.domain };
        let template = packets.template("range", &range.name, &[("domain", Arg::Text(domain))])?;
        let row = if range.push_pop {
            threads.of(range.global_tid, || {
                packets.row(process, &format!("ranges of thread {}", range.global_tid & 0xff_ffff))
            })?
        } else {
            crossing.free(times, |_| packets.row(process, "ranges that cross threads"))?
        };
        packets.slice(row, &template, times)?;
    }
    operators::operators(packets, process, nsys, origin)?;
    copies(packets, process, nsys, origin)?;
    let mut devices = HashMap::default();
    kernels(packets, &nsys.kernels, &nsys.strings, origin, &mut devices)?;
    graphs(packets, &nsys.graphs, origin, &mut devices)
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
    let process =
        packets.process(GPU.saturating_add(device), &format!("GPU {device} in the traced pass"))?;
    Ok(*devices.entry(device).or_insert(process))
}

/// Graphs that were traced as a whole, by device and stream.
fn graphs(
    packets: &mut Packets<impl Write>,
    graphs: &[GraphLaunch],
    origin: i64,
    devices: &mut HashMap<u32, Track>,
) -> io::Result<()> {
    let mut streams: HashMap<(u32, u32), Lanes> = HashMap::default();
    for it in graphs {
        let Some(times) = span(origin, (it.start_ns, it.end_ns)) else { continue };
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
        packets.slice(row, &template, times)?;
    }
    Ok(())
}

/// Copying calls, a row per thread.
fn copies(
    packets: &mut Packets<impl Write>,
    process: Track,
    nsys: &NsysTrace,
    origin: i64,
) -> io::Result<()> {
    let copies = |name: u32| nsys.strings.get(name as usize).filter(|name| name.contains("emcpy"));
    let names: Vec<Option<&String>> =
        nsys.cuda_calls.sites().iter().map(|(name, _)| copies(*name)).collect();
    let mut threads = Rows::default();
    for (at, call) in nsys.cuda_calls.iter().enumerate() {
        let Some(name) = names[nsys.cuda_calls.site(at) as usize] else { continue };
        let Some(times) = span(origin, (call.start_ns, call.end_ns)) else { continue };
        let named = || {
            packets.row(
                process,
                &format!("calls that copy memory, thread {}", call.global_tid & 0xff_ffff),
            )
        };
        let row = threads.of(call.global_tid, named)?;
        let template = packets.template("copy", name, &[])?;
        packets.slice(row, &template, times)?;
    }
    Ok(())
}

/// Kernels by device and stream.
fn kernels(
    packets: &mut Packets<impl Write>,
    kernels: &KernelTrace,
    strings: &[String],
    origin: i64,
    devices: &mut HashMap<u32, Track>,
) -> io::Result<()> {
    let mut streams: HashMap<(u32, u32), Lanes> = HashMap::default();
    let mut kinds: Vec<Option<SliceTemplate>> = vec![None; kernels.kinds().len()];
    let mut template = SliceTemplate::default();
    for (at, it) in kernels.iter().enumerate() {
        let Some(times) = span(origin, (it.start_ns, it.end_ns)) else { continue };
        let device = gpu(packets, devices, it.device)?;
        let lanes = streams.entry((it.device, it.stream)).or_default();
        let row = lanes.free(times, |lane| match lane {
            0 => packets.row(device, &format!("stream {}", it.stream)),
            _ => packets.row(device, &format!("stream {}, concurrent {lane}", it.stream)),
        })?;
        let kind = kernels.kind(at) as usize;
        match &kinds[kind] {
            Some(known) => template.clone_from(known),
            None => {
                template = launch(packets, &kernels.kinds()[kind], strings)?;
                kinds[kind] = Some(template.clone());
            }
        }
        packets.annotate(
            &mut template,
            "correlation",
            &Arg::Number(it.correlation_id.cast_unsigned()),
        )?;
        if let Some(node) = it.graph_node.filter(|node| node & UNNUMBERED_NODE == 0) {
            packets.annotate(&mut template, "graph node", &Arg::Number(node))?;
        }
        packets.slice(row, &template, times)?;
    }
    Ok(())
}

/// Shared properties of the launches of one kind.
fn launch(
    packets: &mut Packets<impl Write>,
    kind: &LaunchKind,
    strings: &[String],
) -> io::Result<SliceTemplate> {
    let text = |index: u32| strings.get(index as usize).map_or("", String::as_str);
    let size = |[x, y, z]: [u32; 3]| format!("{x} x {y} x {z}");
    let (grid, block) = (size(kind.grid), size(kind.block));
    let about = [
        ("full name", Arg::Text(text(kind.full_name))),
        ("grid", Arg::Text(&grid)),
        ("block", Arg::Text(&block)),
        ("registers", Arg::Number(kind.registers.into())),
    ];
    packets.template("kernel", text(kind.name), &about)
}

/// One row per thread.
#[derive(Default)]
struct Rows(Vec<(i64, Track)>);

impl Rows {
    fn of(&mut self, thread: i64, row: impl FnOnce() -> io::Result<Track>) -> io::Result<Track> {
        if let Some((_, known)) = self.0.iter().find(|(known, _)| *known == thread) {
            return Ok(*known);
        }
        let row = row()?;
        self.0.push((thread, row));
        Ok(row)
    }
}

/// Rows for overlapping intervals: each takes the first free row.
#[derive(Default)]
struct Lanes {
    rows: Vec<Track>,
    /// End of the last interval of each busy row, the earliest first.
    busy: BinaryHeap<Reverse<(u64, usize)>>,
    free: BTreeSet<usize>,
}

impl Lanes {
    /// The first free row of an interval; intervals are given by start time.
    fn free(
        &mut self,
        (from, to): (u64, u64),
        row: impl FnOnce(usize) -> io::Result<Track>,
    ) -> io::Result<Track> {
        while let Some(Reverse((end, lane))) = self.busy.peek().copied()
            && end <= from
        {
            self.busy.pop();
            self.free.insert(lane);
        }
        let lane = match self.free.pop_first() {
            Some(lane) => lane,
            None => {
                self.rows.push(row(self.rows.len())?);
                self.rows.len() - 1
            }
        };
        self.busy.push(Reverse((to, lane)));
        Ok(self.rows[lane])
    }
}

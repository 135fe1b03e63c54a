//! The timeline of a run as Perfetto's UI opens it: stages, operators, kernels by stream, calls that copy, power and clocks.
//!
//! Written event by event, never held as a whole. Slices of one row lie beside or inside each other, outer ones first, as the format
//! asks: what may cross (ranges that span threads, kernels side by side on one stream) gets a row of its own.
//! The plain and the traced pass have clocks of their own, each from zero: they stand side by side as processes and are not aligned.

mod packets;

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap},
    io::{self, Write},
};

use self::packets::{Arg, Packets, Told, Track};
use crate::trace::{
    Trace,
    event::Event,
    kernel::{Kernels, LaunchKind},
    nsys::{GraphLaunch, NsysTrace},
    power::{PowerLog, PowerSample},
};

/// Processes, as the format knows them: one a source of events. GPUs follow from the last on.
const PLAIN: u32 = 1;
const TRACED: u32 = 2;
const GPU: u32 = 10;

/// Writes the timeline, and returns where it was written to.
pub fn write<W: Write>(trace: &Trace, out: W) -> io::Result<W> {
    let mut packets = Packets::begin(out)?;
    if !trace.baseline.is_empty() || trace.power.is_some() {
        let begin = plain_begin(trace);
        let process = packets.process(PLAIN, "plain pass")?;
        plain(&mut packets, process, &trace.baseline, begin)?;
        if let Some(log) = &trace.power {
            power(&mut packets, process, log, begin)?;
        }
    }
    if let Some(nsys) = &trace.nsys {
        traced(&mut packets, nsys)?;
    }
    packets.end()
}

/// When the plain pass begins on its clock: with its first range, or with the first sample before it.
fn plain_begin(trace: &Trace) -> i64 {
    let ranges = trace.baseline.iter().filter_map(|event| match event {
        Event::Range(it) if it.start_ns <= it.end_ns => Some(it.start_ns),
        Event::Op(it) if it.start_ns <= it.end_ns => Some(it.start_ns),
        _ => None,
    });
    let samples = trace.power.iter().flat_map(|log| &log.samples).map(|sample| sample.t_ns);
    ranges.chain(samples).min().unwrap_or(0)
}

/// Nanoseconds since `begin`; an interval that ends before it begins is an error of its source and is left out.
fn span(begin: i64, (from, to): (i64, i64)) -> Option<(u64, u64)> {
    let since = |at: i64| u64::try_from(at.saturating_sub(begin)).ok();
    since(from).zip(since(to)).filter(|(from, to)| from <= to)
}

fn plain(packets: &mut Packets<impl Write>, process: Track, passed: &[Event], begin: i64) -> io::Result<()> {
    let (stages, operators) = (packets.row(process, "stages")?, packets.row(process, "operators (host)")?);
    // A range is told when it ends: what lies inside it comes before it.
    let time = |event: &&Event| match event {
        Event::Range(it) => (it.start_ns, Reverse(it.end_ns)),
        Event::Op(it) => (it.start_ns, Reverse(it.end_ns)),
        _ => (0, Reverse(0)),
    };
    let mut passed: Vec<&Event> = passed.iter().collect();
    passed.sort_by_key(time);
    for event in passed {
        let (row, told, times) = match event {
            Event::Range(it) => {
                let mut told = packets.told("stage", &it.name, &[("repeat", Arg::Number(it.repeat.into()))])?;
                packets.tell(&mut told, "warmup", &Arg::Flag(it.warmup))?;
                if let Some(step) = it.step {
                    packets.tell(&mut told, "step", &Arg::Number(step.into()))?;
                }
                (stages, told, (it.start_ns, it.end_ns))
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
                (operators, packets.told("operator", &it.path, &about)?, (it.start_ns, it.end_ns))
            }
            _ => continue,
        };
        if let Some(times) = span(begin, times) {
            packets.slice(row, &told, times)?;
        }
    }
    Ok(())
}

/// Reads one figure of a sample.
type Figure = fn(&PowerSample) -> Option<f64>;

fn power(packets: &mut Packets<impl Write>, process: Track, log: &PowerLog, begin: i64) -> io::Result<()> {
    let figures: [(&str, &str, Figure); 4] = [
        ("power", "W", |sample| sample.power_w),
        ("SM clock", "MHz", |sample| sample.sm_mhz.map(f64::from)),
        ("memory clock", "MHz", |sample| sample.memory_mhz.map(f64::from)),
        ("temperature", "°C", |sample| sample.temperature_c.map(f64::from)),
    ];
    for (name, unit, figure) in figures {
        let known = |sample: &PowerSample| {
            let value = figure(sample).filter(|value| value.is_finite())?;
            Some((span(begin, (sample.t_ns, sample.t_ns))?.0, value))
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
    let starts = nsys.ranges.iter().map(|it| it.start_ns).chain(nsys.kernels.iter().map(|it| it.start_ns));
    let starts = starts.chain(nsys.graphs.iter().map(|it| it.start_ns));
    let begin = starts.chain(nsys.cuda_calls.iter().map(|it| it.start_ns)).min().unwrap_or(0);
    let process = packets.process(TRACED, "traced pass (nsys)")?;
    let (mut threads, mut crossing) = (Rows::default(), Lanes::default());
    for range in &nsys.ranges {
        let Some(times) = range.end_ns.and_then(|end| span(begin, (range.start_ns, end))) else { continue };
        let domain = if range.domain.is_empty() { "default" } else { &range.domain };
        let told = packets.told("range", &range.name, &[("domain", Arg::Text(domain))])?;
        let row = if range.push_pop {
            threads
                .of(range.global_tid, || packets.row(process, &format!("ranges of thread {}", range.global_tid & 0xff_ffff)))?
        } else {
            crossing.free(times, |_| packets.row(process, "ranges that cross threads"))?
        };
        packets.slice(row, &told, times)?;
    }
    copies(packets, process, nsys, begin)?;
    let mut devices = HashMap::new();
    kernels(packets, &nsys.kernels, &nsys.strings, begin, &mut devices)?;
    graphs(packets, &nsys.graphs, begin, &mut devices)
}

/// The row of a GPU.
fn gpu(packets: &mut Packets<impl Write>, devices: &mut HashMap<u32, Track>, device: u32) -> io::Result<Track> {
    if let Some(known) = devices.get(&device) {
        return Ok(*known);
    }
    let process = packets.process(GPU.saturating_add(device), &format!("GPU {device} in the traced pass"))?;
    Ok(*devices.entry(device).or_insert(process))
}

/// Graphs that were traced as a whole, by device and stream.
fn graphs(
    packets: &mut Packets<impl Write>,
    graphs: &[GraphLaunch],
    begin: i64,
    devices: &mut HashMap<u32, Track>,
) -> io::Result<()> {
    let mut streams: HashMap<(u32, u32), Lanes> = HashMap::new();
    for it in graphs {
        let Some(times) = span(begin, (it.start_ns, it.end_ns)) else { continue };
        let device = gpu(packets, devices, it.device)?;
        let row = streams.entry((it.device, it.stream)).or_default().free(times, |lane| match lane {
            0 => packets.row(device, &format!("CUDA graphs of stream {}, traced as a whole", it.stream)),
            _ => packets.row(device, &format!("CUDA graphs of stream {}, traced as a whole, next to it {lane}", it.stream)),
        })?;
        let name = it.graph.map_or_else(|| "CUDA graph".to_owned(), |graph| format!("CUDA graph {graph}"));
        let told = packets.told("graph", &name, &[("correlation", Arg::Number(it.correlation_id.cast_unsigned()))])?;
        packets.slice(row, &told, times)?;
    }
    Ok(())
}

/// Calls that copy, a row for each thread: those of two may cross.
fn copies(packets: &mut Packets<impl Write>, process: Track, nsys: &NsysTrace, begin: i64) -> io::Result<()> {
    let copies = |name: u32| nsys.strings.get(name as usize).filter(|name| name.contains("emcpy"));
    let names: Vec<Option<&String>> = nsys.cuda_calls.sites().iter().map(|(name, _)| copies(*name)).collect();
    let mut threads = Rows::default();
    for (at, call) in nsys.cuda_calls.iter().enumerate() {
        let Some(name) = names[nsys.cuda_calls.site(at) as usize] else { continue };
        let Some(times) = span(begin, (call.start_ns, call.end_ns)) else { continue };
        let named = || packets.row(process, &format!("calls that copy memory, thread {}", call.global_tid & 0xff_ffff));
        let row = threads.of(call.global_tid, named)?;
        let told = packets.told("copy", name, &[])?;
        packets.slice(row, &told, times)?;
    }
    Ok(())
}

/// Kernels by device and stream.
fn kernels(
    packets: &mut Packets<impl Write>,
    kernels: &Kernels,
    strings: &[String],
    begin: i64,
    devices: &mut HashMap<u32, Track>,
) -> io::Result<()> {
    let mut streams: HashMap<(u32, u32), Lanes> = HashMap::new();
    let mut kinds: Vec<Option<Told>> = vec![None; kernels.kinds().len()];
    let mut told = Told::default();
    for (at, it) in kernels.iter().enumerate() {
        let Some(times) = span(begin, (it.start_ns, it.end_ns)) else { continue };
        let device = gpu(packets, devices, it.device)?;
        let lanes = streams.entry((it.device, it.stream)).or_default();
        let row = lanes.free(times, |lane| match lane {
            0 => packets.row(device, &format!("stream {}", it.stream)),
            _ => packets.row(device, &format!("stream {}, beside it {lane}", it.stream)),
        })?;
        let kind = kernels.kind(at) as usize;
        match &kinds[kind] {
            Some(known) => told.clone_from(known),
            None => {
                told = launch(packets, &kernels.kinds()[kind], strings)?;
                kinds[kind] = Some(told.clone());
            }
        }
        packets.tell(&mut told, "correlation", &Arg::Number(it.correlation_id.cast_unsigned()))?;
        if let Some(node) = it.graph_node {
            packets.tell(&mut told, "graph node", &Arg::Number(node))?;
        }
        packets.slice(row, &told, times)?;
    }
    Ok(())
}

/// What launches of one kind have in common.
fn launch(packets: &mut Packets<impl Write>, kind: &LaunchKind, strings: &[String]) -> io::Result<Told> {
    let text = |index: u32| strings.get(index as usize).map_or("", String::as_str);
    let size = |[x, y, z]: [u32; 3]| format!("{x} x {y} x {z}");
    let (grid, block) = (size(kind.grid), size(kind.block));
    let about = [
        ("full name", Arg::Text(text(kind.full_name))),
        ("grid", Arg::Text(&grid)),
        ("block", Arg::Text(&block)),
        ("registers", Arg::Number(kind.registers.into())),
    ];
    packets.told("kernel", text(kind.name), &about)
}

/// A row for each thread.
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

/// Rows side by side: what begins before another has ended takes the next free one.
#[derive(Default)]
struct Lanes {
    rows: Vec<Track>,
    /// When the last interval of each row ends that had not ended at the last look, the earliest first.
    busy: BinaryHeap<Reverse<(u64, usize)>>,
    free: BTreeSet<usize>,
}

impl Lanes {
    /// The first free row of an interval; intervals come in the order in which they begin.
    fn free(&mut self, (from, to): (u64, u64), row: impl FnOnce(usize) -> io::Result<Track>) -> io::Result<Track> {
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

//! The timeline of a run for Perfetto's UI: stages, operators, CUDA calls with arrows to their
//! kernels by stream, sampled metrics, cores of the host, power and clocks; the gap ledger.
//!
//! Events are streamed. The format requires that slices of one row do not cross and that outer ones
//! come first, so slices that may cross (ranges across threads, concurrent kernels of one stream)
//! get separate rows. The unprofiled and the traced pass have separate clocks that start at zero:
//! they are shown as separate processes and are not aligned. Only a part of a large capture is
//! written (`window`).

mod cores;
mod ledger;
mod operators;
mod packets;
mod sampled;
mod traced;
mod window;

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
    io::{self, Write},
};

use llmprof_analyze::Analysis;
use llmprof_core::trace::{
    Trace,
    event::Event,
    power::{PowerLog, PowerSample},
};

use self::packets::{Arg, Packets, Track};
use crate::kernel_names::KernelNames;

/// Process ids in the trace, one per source of events; GPUs follow the last one.
const UNPROFILED: u32 = 1;
const TRACED: u32 = 2;
const LEDGER: u32 = 3;
const SAMPLED: u32 = 4;
const CORES: u32 = 99;
const GPU: u32 = 100;

/// Writes the timeline with the ledgers of its analysis, and returns the writer.
pub fn write<W: Write>(trace: &Trace, analysis: &Analysis, out: W) -> io::Result<W> {
    let (ledger, names) = (&analysis.ledger, KernelNames::of_analysis(analysis));
    let mut packets = Packets::start(out)?;
    if !trace.baseline.is_empty() || trace.power.is_some() {
        let origin = unprofiled_origin(trace);
        let process = packets.process(UNPROFILED, "unprofiled pass")?;
        unprofiled(&mut packets, process, &trace.baseline, origin)?;
        for (number, log) in (1..).zip(trace.power.iter().flat_map(PowerLog::each)) {
            power(&mut packets, (process, number), log, origin)?;
        }
    }
    if let Some(nsys) = &trace.timeline {
        traced::traced(&mut packets, nsys, &names)?;
    }
    for (pid, nsys) in (SAMPLED..CORES).zip(&trace.sampled) {
        sampled::sampled(&mut packets, pid, nsys)?;
    }
    if !ledger.stages.is_empty() {
        let process = packets.process(LEDGER, "gap ledger, one repeat")?;
        ledger::ledger(&mut packets, process, ledger, &names)?;
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
    let samples = trace.power.iter().flat_map(PowerLog::each).flat_map(|log| &log.samples);
    let samples = samples.map(|sample| sample.t_ns);
    ranges.chain(samples).min().unwrap_or(0)
}

/// Sides of a grid or block.
fn size([x, y, z]: [u32; 3]) -> String {
    format!("{x} x {y} x {z}")
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
    (process, number): (Track, usize),
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
        let row = match number {
            1 => packets.figures(process, name, unit)?,
            _ => packets.figures(process, &format!("{name}, sampled GPU {number}"), unit)?,
        };
        for (at, value) in known {
            packets.figure(row, at, value)?;
        }
    }
    Ok(())
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

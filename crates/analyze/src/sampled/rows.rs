//! Rows of the equations of sampled metrics: the share of each sample's period that each kernel
//! fills.
//!
//! A sample's value is the mean over the period after its time. Kernels that run at once share the
//! time; a copy has an unknown of its own, next to the kernels that run meanwhile.

use std::{collections::VecDeque, ops::Range};

use llmprof_core::trace::gpu_metrics::{DeviceSamples, GpuMetric};

use crate::timeline::{
    at_once::{ActiveWork, RunningWork},
    interval::{Interval, union},
};

/// Delay between a sample's time and its period, nanoseconds: the residual is smallest there on an
/// H200, at 10 and at 50 kHz.
pub const DELAY_NS: i64 = 250;
/// Max share of a kernel's time that is idle at its start, and at its end.
const MAX_IDLE: f64 = 0.4;
/// Maximum distance between the times of samples and of work under any [`TimeShift`], nanoseconds.
const MAX_SHIFT_NS: i64 = 10_000;
/// Stage number of work whose samples are not used.
pub const NO_STAGE: u16 = 0;
/// Samples of a stage beyond which an even part of them is used: 50 s at 10 kHz. More samples would
/// hardly narrow an interval, because its part by assumptions stays.
pub const ENOUGH_SAMPLES: u64 = 500_000;
/// Consecutive samples that are used or left out together.
const CHUNK: usize = 256;

/// A kernel, a graph or a copy on one device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    pub start_ns: i64,
    pub end_ns: i64,
    /// Number of its stage, from 1; [`NO_STAGE`] for the rest.
    pub stage: u16,
    /// Number of its unknown within the stage.
    pub unknown: u32,
}

impl Work {
    pub const fn ns(&self) -> i64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

/// Assumptions on the time of counters: distances from the times of the trace in nanoseconds, and
/// what kernels that run at once have of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimeShift {
    /// Time after the start of a kernel, and before its end, in which it counts nothing: blocks
    /// start, and the last ones end.
    pub idle_ns: i64,
    /// Added to the times of samples.
    pub lag_ns: i64,
    /// Kernels that run at once have the whole time each, as if they did not slow each other down;
    /// otherwise they share it.
    pub is_additive: bool,
}

/// Work and samples of one device in one capture.
#[derive(Debug)]
pub struct SampledWork<'a> {
    /// Kernels and graphs by start.
    pub kernels: Vec<Work>,
    /// Copies and fills by start.
    pub copies: Vec<Work>,
    pub samples: &'a DeviceSamples,
    pub period_ns: i64,
    /// Delay between a sample's time and its period.
    pub delay_ns: i64,
    /// Samples near the work of stages, in order; no other sample has a row.
    pub spans: Vec<SampleSpan>,
    /// By stage number: one of how many chunks is used.
    pub every: Vec<usize>,
}

/// Consecutive samples, and the first work that their periods may contain.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleSpan {
    samples: Range<usize>,
    kernel: usize,
    copy: usize,
    /// Number of the chunk, those that are left out included.
    chunk: usize,
}

/// The spans of samples near the work of stages: a capture may have few of them, in an hour of
/// other work. `kernels` and `copies` are in order of start; of each stage one of `every` chunks is
/// used.
pub fn spans(
    kernels: &[Work],
    copies: &[Work],
    samples: &DeviceSamples,
    period_ns: i64,
    every: &[usize],
) -> Vec<SampleSpan> {
    let margin = 2 * period_ns + MAX_SHIFT_NS;
    let staged = union([near(kernels, margin), near(copies, margin)].into_iter().flatten());
    let times = samples.times();
    let is_whole = every.iter().all(|every| *every == 1);
    let length = if is_whole { usize::MAX } else { CHUNK };
    let (mut kernel, mut copy, mut chunk) = (0, 0, 0);
    let mut spans = Vec::new();
    for (from, to) in staged {
        let first = times.partition_point(|at| *at < from);
        let end = first + times[first..].partition_point(|at| *at <= to);
        for first in (first..end).step_by(length) {
            let samples = first..end.min(first.saturating_add(length));
            let (from, to) = (times[first] - margin, times[samples.end - 1] + margin);
            // All work before the first that ends later has ended.
            let ended = |work: &[Work]| work.iter().take_while(|it| it.end_ns <= from).count();
            kernel += ended(&kernels[kernel..]);
            copy += ended(&copies[copy..]);
            let is_used = |work: &Work| {
                work.stage != NO_STAGE && is_chunk_used(chunk, every[work.stage as usize])
            };
            let inside = |work: &&Work| work.start_ns < to;
            let has_used = |work: &[Work]| work.iter().take_while(inside).any(is_used);
            if has_used(&kernels[kernel..]) || has_used(&copies[copy..]) {
                spans.push(SampleSpan { samples, kernel, copy, chunk });
            }
            chunk += 1;
        }
    }
    spans
}

/// True for one of `every` chunks.
const fn is_chunk_used(chunk: usize, every: usize) -> bool {
    chunk.is_multiple_of(every)
}

/// By stage number: one of how many chunks is used of a stage with so many nanoseconds of work.
pub fn every(stage_ns: impl IntoIterator<Item = i64>, period_ns: i64) -> Vec<usize> {
    let of_stage = |ns: i64| {
        let samples = (ns / period_ns.max(1)).cast_unsigned();
        samples.div_ceil(ENOUGH_SAMPLES).max(1) as usize
    };
    std::iter::once(1).chain(stage_ns.into_iter().map(of_stage)).collect()
}

/// Times at most `margin` before or after the work of stages.
fn near(work: &[Work], margin: i64) -> Vec<Interval> {
    let mut near: Vec<Interval> = Vec::new();
    for work in work.iter().filter(|it| it.stage != NO_STAGE) {
        let (from, to) = (work.start_ns - margin, work.end_ns + margin);
        match near.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => near.push((from, to)),
        }
    }
    near
}

/// A part of a kernel's time, and the share of it that counts.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Piece {
    work: Work,
    share: f64,
}

/// Non-zero entries of a row: unknown and share of the period.
pub type Entries = Vec<(u32, f64)>;

/// One sample as an equation.
#[derive(Debug, Clone, Default)]
pub struct SampleRow {
    pub stage: u16,
    pub period_ns: f64,
    pub entries: Entries,
    /// By metric, as requested.
    pub values: Vec<f64>,
}

impl SampledWork<'_> {
    /// Calls `take` with the row of each sample whose period has work of exactly one stage, and
    /// all `metrics`.
    pub fn each_row(
        &self,
        shift: TimeShift,
        metrics: &[GpuMetric],
        mut take: impl FnMut(&SampleRow),
    ) {
        let mut row = SampleRow { period_ns: self.period_ns as f64, ..SampleRow::default() };
        for span in &self.spans {
            let mut kernels = Pieces::of(&self.kernels[span.kernel..], shift);
            let mut copies = &self.copies[span.copy..];
            for at in span.samples.clone() {
                let from = self.samples.times()[at] + self.delay_ns + shift.lag_ns;
                let to = from + self.period_ns;
                row.entries.clear();
                let mut stage = None;
                let mut add = |work: &Work, share: f64| {
                    let overlap = work.end_ns.min(to) - work.start_ns.max(from);
                    if overlap > 0 {
                        let is_other = stage.is_some_and(|stage| stage != work.stage);
                        stage = Some(if is_other { NO_STAGE } else { work.stage });
                        let share = share * overlap as f64 / self.period_ns as f64;
                        add(&mut row.entries, work.unknown, share);
                    }
                };
                kernels.inside(from, to).for_each(|it| add(&it.work, it.share));
                copies = &copies[copies.iter().take_while(|it| it.end_ns <= from).count()..];
                copies.iter().take_while(|it| it.start_ns < to).for_each(|it| add(it, 1.0));
                let Some(stage @ 1..) = stage else { continue };
                if !is_chunk_used(span.chunk, self.every[stage as usize]) {
                    continue;
                }
                row.stage = stage;
                row.values.clear();
                let values = metrics.iter().filter_map(|metric| self.samples.value(at, *metric));
                row.values.extend(values.map(f64::from));
                if row.values.len() == metrics.len() {
                    take(&row);
                }
            }
        }
    }
}

#[inline]
fn add(entries: &mut Entries, unknown: u32, share: f64) {
    match entries.iter_mut().find(|it| it.0 == unknown) {
        Some(entry) => entry.1 += share,
        None => entries.push((unknown, share)),
    }
}

/// Kernels, cut if others start or end, so that the kernels of one piece run at once throughout.
/// Only the pieces of one period are kept.
struct Pieces<'a> {
    work: std::slice::Iter<'a, Work>,
    shift: TimeShift,
    running: RunningWork<Work>,
    /// By start.
    pieces: VecDeque<Piece>,
}

impl<'a> Pieces<'a> {
    fn of(work: &'a [Work], shift: TimeShift) -> Self {
        let (running, pieces) = Default::default();
        Self { work: work.iter(), shift, running, pieces }
    }

    /// The pieces that start before `to`, except those at the front that end at `from` or before.
    /// Periods are given in order.
    fn inside(&mut self, from: i64, to: i64) -> impl Iterator<Item = &Piece> {
        while self.pieces.back().is_none_or(|it| it.work.start_ns < to) {
            match self.work.next() {
                Some(work) => self.start(*work),
                None if self.running.is_idle() => break,
                None => self.finish(),
            }
            self.drop_before(from);
        }
        self.drop_before(from);
        self.pieces.iter().take_while(move |it| it.work.start_ns < to)
    }

    fn drop_before(&mut self, from: i64) {
        while self.pieces.front().is_some_and(|it| it.work.end_ns <= from) {
            self.pieces.pop_front();
        }
    }

    fn start(&mut self, mut work: Work) {
        let max_ns = ((work.end_ns - work.start_ns) as f64 * MAX_IDLE) as i64;
        let idle_ns = self.shift.idle_ns.min(max_ns);
        work.start_ns += idle_ns;
        work.end_ns -= idle_ns;
        let (pieces, is_additive) = (&mut self.pieces, self.shift.is_additive);
        self.running.start((work.start_ns, work.end_ns), work, |time, active| {
            add_pieces(pieces, is_additive, time, active);
        });
    }

    /// Adds the pieces of the kernels that still run.
    fn finish(&mut self) {
        let (pieces, is_additive) = (&mut self.pieces, self.shift.is_additive);
        self.running
            .advance(i64::MAX, |time, active| add_pieces(pieces, is_additive, time, active));
    }
}

/// Adds a piece of each kernel that runs in a time.
fn add_pieces(
    pieces: &mut VecDeque<Piece>,
    is_additive: bool,
    (start_ns, end_ns): Interval,
    active: &ActiveWork<Work>,
) {
    let share = if is_additive { 1.0 } else { 1.0 / active.len() as f64 };
    let piece = |(_, it): &(i64, Work)| Piece { work: Work { start_ns, end_ns, ..*it }, share };
    pieces.extend(active.iter().map(piece));
}

#[cfg(test)]
mod tests;

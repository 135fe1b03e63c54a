//! Rows of the equations of sampled metrics: the share of each sample's period that each kernel
//! fills.
//!
//! A sample's value is the mean over the period after its time. Kernels that run at once share the
//! time; a copy has an unknown of its own, next to the kernels that run meanwhile.

use std::{collections::VecDeque, ops::Range};

use crate::{
    analyze::timeline::interval::{Interval, union},
    trace::gpu_metrics::{DeviceSamples, GpuMetric},
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

/// Assumed distance between the times of the trace and those of the counters, nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimeShift {
    /// Time after the start of a kernel, and before its end, in which it counts nothing: blocks
    /// start, and the last ones end.
    pub idle_ns: i64,
    /// Added to the times of samples.
    pub lag_ns: i64,
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
}

/// Consecutive samples, and the first work that their periods may contain.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleSpan {
    samples: Range<usize>,
    kernel: usize,
    copy: usize,
}

/// The spans of samples near the work of stages: a capture may have few of them, in an hour of
/// other work. `kernels` and `copies` are in order of start.
pub fn spans(
    kernels: &[Work],
    copies: &[Work],
    samples: &DeviceSamples,
    period_ns: i64,
) -> Vec<SampleSpan> {
    let margin = 2 * period_ns + MAX_SHIFT_NS;
    let staged = union([near(kernels, margin), near(copies, margin)].into_iter().flatten());
    let times = samples.times();
    let (mut kernel, mut copy) = (0, 0);
    let span = |(from, to): Interval| {
        // All work before the first that ends later has ended.
        let ended = |work: &[Work]| work.iter().take_while(|it| it.end_ns <= from - margin).count();
        kernel += ended(&kernels[kernel..]);
        copy += ended(&copies[copy..]);
        let first = times.partition_point(|at| *at < from);
        let count = times[first..].partition_point(|at| *at <= to);
        SampleSpan { samples: first..first + count, kernel, copy }
    };
    staged.into_iter().map(span).filter(|it| !it.samples.is_empty()).collect()
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

/// A part of a kernel's time, divided by the number of kernels that run then.
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
        let mut row = SampleRow::default();
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

/// Kernels, cut where others start or end, so that those of one piece run at once throughout. Only
/// the pieces of one period are kept.
struct Pieces<'a> {
    work: std::slice::Iter<'a, Work>,
    shift: TimeShift,
    active: Vec<Work>,
    now: i64,
    /// By start.
    pieces: VecDeque<Piece>,
}

impl<'a> Pieces<'a> {
    fn of(work: &'a [Work], shift: TimeShift) -> Self {
        let (active, pieces) = Default::default();
        Self { work: work.iter(), shift, active, now: i64::MIN, pieces }
    }

    /// The pieces that start before `to`, except those at the front that end at `from` or before.
    /// Periods are given in order.
    fn inside(&mut self, from: i64, to: i64) -> impl Iterator<Item = &Piece> {
        while self.pieces.back().is_none_or(|it| it.work.start_ns < to) {
            match self.work.next() {
                Some(work) => self.start(*work),
                None if self.active.is_empty() => break,
                None => self.advance(i64::MAX),
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
        self.advance(work.start_ns);
        self.now = self.now.max(work.start_ns);
        self.active.push(work);
    }

    /// Adds the pieces of the active kernels up to `until`, and removes kernels that ended.
    fn advance(&mut self, until: i64) {
        while let Some(first_end) = self.active.iter().map(|it| it.end_ns).min() {
            let (from, to) = (self.now, first_end.min(until));
            if to > from {
                let share = 1.0 / self.active.len() as f64;
                let piece =
                    |it: &Work| Piece { work: Work { start_ns: from, end_ns: to, ..*it }, share };
                self.pieces.extend(self.active.iter().map(piece));
                self.now = to;
            }
            self.active.retain(|it| it.end_ns > to);
            if first_end > until || self.active.is_empty() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn work(start_ns: i64, end_ns: i64, stage: u16, unknown: u32) -> Work {
        Work { start_ns, end_ns, stage, unknown }
    }

    /// The rows of samples at 0, 100, 200, ...: stage, entries in percent of the period, value.
    fn rows(kernels: Vec<Work>, copies: Vec<Work>, shift: TimeShift) -> Vec<String> {
        let mut samples = DeviceSamples::new(0);
        (0..6).for_each(|at| samples.push(at * 100, GpuMetric::DramRead, at as u16));
        samples.finish();
        let spans = spans(&kernels, &copies, &samples, 100);
        let (samples, period_ns, delay_ns) = (&samples, 100, 0);
        let of = SampledWork { kernels, copies, samples, period_ns, delay_ns, spans };
        let mut rows = Vec::new();
        of.each_row(shift, &[GpuMetric::DramRead], |row| {
            let entries =
                row.entries.iter().map(|(at, share)| format!("{at}:{:.0}", share * 100.0));
            let entries: Vec<String> = entries.collect();
            rows.push(format!("{} {} = {}", row.stage, entries.join(" "), row.values[0]));
        });
        rows
    }

    #[test]
    fn a_row_has_the_share_of_the_period_after_the_sample_that_each_kernel_fills() {
        let kernels = vec![work(120, 170, 1, 0), work(180, 230, 1, 1), work(350, 360, 1, 0)];
        assert_eq!(
            rows(kernels, vec![], TimeShift::default()),
            ["1 0:50 1:20 = 1", "1 1:30 = 2", "1 0:10 = 3"]
        );
    }

    #[test]
    fn samples_of_two_stages_or_of_none_have_no_row() {
        let kernels = vec![work(110, 150, 1, 0), work(160, 190, 2, 0), work(210, 220, 2, 1)];
        let other = [work(310, 320, NO_STAGE, 9), work(420, 430, 1, 0), work(440, 450, 0, 9)];
        let kernels = [kernels, other.to_vec()].concat();
        assert_eq!(rows(kernels, vec![], TimeShift::default()), ["2 1:10 = 2"]);
    }

    #[test]
    fn kernels_that_run_at_once_share_the_time_and_a_copy_does_not() {
        let kernels = vec![work(100, 180, 1, 0), work(120, 140, 1, 1)];
        let copy = vec![work(150, 200, 1, 2)];
        assert_eq!(rows(kernels, copy, TimeShift::default()), ["1 0:70 1:10 2:50 = 1"]);
    }

    #[test]
    fn a_kernel_counts_nothing_at_its_edges_and_all_samples_may_lag() {
        let lag = TimeShift { lag_ns: 20, ..TimeShift::default() };
        assert_eq!(rows(vec![work(130, 150, 1, 0)], vec![], lag), ["1 0:20 = 1"]);
        assert_eq!(rows(vec![work(110, 130, 1, 0)], vec![], lag), ["1 0:10 = 0", "1 0:10 = 1"]);
        let idle = TimeShift { idle_ns: 10, ..TimeShift::default() };
        assert_eq!(rows(vec![work(110, 190, 1, 0)], vec![], idle), ["1 0:60 = 1"]);
        assert_eq!(
            rows(vec![work(110, 120, 1, 0)], vec![], idle),
            ["1 0:2 = 1"],
            "at most 40 % of a short kernel on either side"
        );
    }

    fn all_rows(of: &SampledWork, shift: TimeShift) -> Vec<(u16, Entries, Vec<f64>)> {
        let mut rows = Vec::new();
        of.each_row(shift, &[GpuMetric::DramRead], |row| {
            rows.push((row.stage, row.entries.clone(), row.values.clone()));
        });
        rows
    }

    proptest! {
        #[test]
        fn samples_far_from_the_work_of_stages_have_no_row(
            kernels in prop::collection::vec((0i64..400_000, 1i64..9_000, 0u16..3, 0u32..4), 0..30),
            copies in prop::collection::vec((0i64..400_000, 1i64..9_000, 0u16..3), 0..4),
            (idle_ns, lag_ns) in (0i64..1_500, -1_500i64..1_500),
        ) {
            let mut samples = DeviceSamples::new(0);
            (0..200i64).for_each(|at| samples.push(at * 2_000, GpuMetric::DramRead, 1));
            samples.finish();
            let of = |(start, ns, stage, unknown)| work(start, start + ns, stage, unknown);
            let mut kernels: Vec<Work> = kernels.into_iter().map(of).collect();
            let copies = copies.into_iter().map(|(start, ns, stage)| (start, ns, stage, 9));
            let mut copies: Vec<Work> = copies.map(of).collect();
            kernels.sort_by_key(|it| it.start_ns);
            copies.sort_by_key(|it| it.start_ns);
            let spans = spans(&kernels, &copies, &samples, 2_000);
            let (samples, period_ns, delay_ns) = (&samples, 2_000, DELAY_NS);
            let mut of = SampledWork { kernels, copies, samples, period_ns, delay_ns, spans };
            let shift = TimeShift { idle_ns, lag_ns };
            let near = all_rows(&of, shift);
            of.spans = vec![SampleSpan { samples: 0..200, kernel: 0, copy: 0 }];
            prop_assert_eq!(near, all_rows(&of, shift));
        }
    }
}

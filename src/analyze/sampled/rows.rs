//! Rows of the equations of sampled metrics: the share of each sample's period that each kernel
//! fills.
//!
//! A sample's value is the mean over the period after its time. Kernels that run at once share the
//! time; a copy has an unknown of its own, next to the kernels that run meanwhile.

use crate::trace::gpu_metrics::{DeviceSamples, GpuMetric};

/// Delay between a sample's time and its period, nanoseconds: the residual is smallest there on an
/// H200, at 10 and at 50 kHz.
pub const DELAY_NS: i64 = 250;
/// A kernel shorter than this keeps its bounds, nanoseconds.
const SHORT_NS: i64 = 4_000;
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
    /// Added to the start and to the end of kernels.
    pub start_ns: i64,
    pub end_ns: i64,
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
        let lists = [pieces(&self.kernels, shift), whole(&self.copies)];
        let mut next = [0, 0];
        let mut row = SampleRow::default();
        for (at, time) in self.samples.times().iter().enumerate() {
            let from = time + self.delay_ns + shift.lag_ns;
            let to = from + self.period_ns;
            row.entries.clear();
            let mut stage = None;
            for (list, next) in lists.iter().zip(&mut next) {
                *next += list[*next..].iter().take_while(|it| it.work.end_ns <= from).count();
                for piece in list[*next..].iter().take_while(|it| it.work.start_ns < to) {
                    let overlap = piece.work.end_ns.min(to) - piece.work.start_ns.max(from);
                    if overlap <= 0 {
                        continue;
                    }
                    let is_other = stage.is_some_and(|stage| stage != piece.work.stage);
                    stage = Some(if is_other { NO_STAGE } else { piece.work.stage });
                    let share = piece.share * overlap as f64 / self.period_ns as f64;
                    add(&mut row.entries, piece.work.unknown, share);
                }
            }
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

#[inline]
fn add(entries: &mut Entries, unknown: u32, share: f64) {
    match entries.iter_mut().find(|it| it.0 == unknown) {
        Some(entry) => entry.1 += share,
        None => entries.push((unknown, share)),
    }
}

fn whole(work: &[Work]) -> Vec<Piece> {
    work.iter().map(|work| Piece { work: *work, share: 1.0 }).collect()
}

/// Cuts kernels where others start or end, so that those of one piece run at once throughout.
fn pieces(work: &[Work], shift: TimeShift) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(work.len());
    let (mut active, mut now): (Vec<Work>, i64) = (Vec::new(), i64::MIN);
    for work in work {
        let mut work = *work;
        if work.end_ns - work.start_ns > SHORT_NS {
            work.start_ns += shift.start_ns;
            work.end_ns += shift.end_ns;
        }
        advance(&mut active, &mut now, work.start_ns, &mut pieces);
        now = now.max(work.start_ns);
        active.push(work);
    }
    advance(&mut active, &mut now, i64::MAX, &mut pieces);
    pieces
}

/// Adds the pieces of the active kernels up to `until`, and removes kernels that ended.
fn advance(active: &mut Vec<Work>, now: &mut i64, until: i64, pieces: &mut Vec<Piece>) {
    while let Some(first_end) = active.iter().map(|it| it.end_ns).min() {
        let to = first_end.min(until);
        if to > *now {
            let share = 1.0 / active.len() as f64;
            let piece =
                |it: &Work| Piece { work: Work { start_ns: *now, end_ns: to, ..*it }, share };
            pieces.extend(active.iter().map(piece));
            *now = to;
        }
        active.retain(|it| it.end_ns > to);
        if first_end > until || active.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(start_ns: i64, end_ns: i64, stage: u16, unknown: u32) -> Work {
        Work { start_ns, end_ns, stage, unknown }
    }

    /// The rows of samples at 0, 100, 200, ...: stage, entries in percent of the period, value.
    fn rows(kernels: Vec<Work>, copies: Vec<Work>, shift: TimeShift) -> Vec<String> {
        let mut samples = DeviceSamples::new(0);
        (0..6).for_each(|at| samples.push(at * 100, GpuMetric::DramRead, at as u16));
        samples.finish();
        let of = SampledWork { kernels, copies, samples: &samples, period_ns: 100, delay_ns: 0 };
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
    fn times_are_shifted_for_long_kernels_and_for_all_samples() {
        let lag = TimeShift { lag_ns: 20, ..TimeShift::default() };
        assert_eq!(rows(vec![work(130, 150, 1, 0)], vec![], lag), ["1 0:20 = 1"]);
        assert_eq!(rows(vec![work(110, 130, 1, 0)], vec![], lag), ["1 0:10 = 0", "1 0:10 = 1"]);
        let start = TimeShift { start_ns: 10, ..TimeShift::default() };
        assert_eq!(rows(vec![work(-5000, 50, 1, 0)], vec![], start), ["1 0:50 = 0"]);
        let end = TimeShift { end_ns: -10, ..TimeShift::default() };
        assert_eq!(rows(vec![work(-5000, 50, 1, 0)], vec![], end), ["1 0:40 = 0"]);
        assert_eq!(rows(vec![work(0, 50, 1, 0)], vec![], end), ["1 0:50 = 0"], "a short kernel");
    }
}

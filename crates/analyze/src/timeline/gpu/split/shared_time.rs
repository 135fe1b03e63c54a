//! Time of work that runs at once on one GPU, divided among its pieces.

use foldhash::HashMap;

use super::{Activity, IntervalSet, WorkOf, WorkTime};
use crate::timeline::at_once::{ActiveWork, RunningWork};

/// Work of one stage that runs on one GPU.
#[derive(Default)]
pub struct SharedTime {
    running: RunningWork<WorkOf>,
    /// Position of the last lookup in the window.
    near: usize,
}

pub type WorkTimes = HashMap<WorkOf, WorkTime>;

impl SharedTime {
    pub fn add(
        &mut self,
        work: &Activity,
        of: WorkOf,
        window: &IntervalSet,
        times: &mut WorkTimes,
    ) {
        let near = &mut self.near;
        self.running.start((work.start_ns, work.end_ns), of, |(from, to), active| {
            divide(window.overlap_near(from, to, near), active, times);
        });
    }

    /// Divides the time up to `to`.
    pub fn advance(&mut self, to: i64, window: &IntervalSet, times: &mut WorkTimes) {
        let near = &mut self.near;
        self.running.advance(to, |(from, to), active| {
            divide(window.overlap_near(from, to, near), active, times);
        });
    }
}

/// Divides nanoseconds evenly among the work that runs in them.
fn divide(ns: i64, active: &ActiveWork<WorkOf>, times: &mut WorkTimes) {
    let (each, rest) = (ns / active.len() as i64, ns % active.len() as i64);
    let is_alone = active.len() == 1;
    for (at, (_, of)) in active.iter().enumerate() {
        let time = times.entry(*of).or_default();
        let part = each + i64::from((at as i64) < rest);
        time.ns += part;
        time.alone_ns += if is_alone { part } else { 0 };
    }
}

//! Time of work that runs at once on one GPU, divided among its pieces.

use foldhash::HashMap;

use super::{Activity, IntervalSet, WorkOf, WorkTime};

/// Work of one stage that runs on one GPU.
#[derive(Default)]
pub struct SharedTime {
    active: Vec<(i64, WorkOf)>,
    /// End of the time already divided.
    until: i64,
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
        self.advance(work.start_ns, window, times);
        if self.active.is_empty() {
            self.until = work.start_ns;
        }
        self.active.push((work.end_ns, of));
    }

    /// Divides the time up to `to`.
    pub fn advance(&mut self, to: i64, window: &IntervalSet, times: &mut WorkTimes) {
        while let Some(end) = self.active.iter().map(|it| it.0).min() {
            let next = end.min(to);
            if next > self.until {
                let ns = window.overlap_near(self.until, next, &mut self.near);
                let (each, rest) = (ns / self.active.len() as i64, ns % self.active.len() as i64);
                let is_alone = self.active.len() == 1;
                for (at, (_, of)) in self.active.iter().enumerate() {
                    let time = times.entry(*of).or_default();
                    let part = each + i64::from((at as i64) < rest);
                    time.ns += part;
                    time.alone_ns += if is_alone { part } else { 0 };
                }
                self.until = next;
            }
            if end > to {
                return;
            }
            self.active.retain(|it| it.0 > next);
        }
    }
}

//! Launches of a kernel that take far longer than its others: their time above the median has
//! another cause than the kernel's grid, tiles or traffic.

use llmprof_core::domain::digits;

use super::rows::length_of;
use crate::timeline::gpu::split::LongLaunches;

/// Launches of a group that take far longer than its others, and their time above the median.
#[derive(Debug, Clone, Copy, Default)]
pub struct LongGroup {
    pub ns: i64,
    launches: u64,
    longest_ns: i64,
    median_ns: i64,
}

impl LongGroup {
    /// Adds launches of a kernel that takes `ns`.
    pub fn add(&mut self, long: &LongLaunches, ns: i64) {
        self.ns += ((long.excess_part * ns as f64).round() as i64).clamp(0, ns);
        self.launches += long.count;
        if long.longest_ns > self.longest_ns {
            (self.longest_ns, self.median_ns) = (long.longest_ns, long.median_ns);
        }
    }

    pub fn text(&self) -> String {
        let (longest, others) = (length_of(self.longest_ns), length_of(self.median_ns));
        match self.launches {
            1 => format!("one launch took {longest}, its others {others}"),
            count => {
                let count = digits::count(count);
                format!("{count} launches took up to {longest}, its others {others}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_has_the_longest_launch_and_the_median_of_the_others() {
        let long = |count, longest_ns| LongLaunches {
            count,
            excess_part: 0.5,
            longest_ns,
            median_ns: 1_500,
        };
        let mut group = LongGroup::default();
        group.add(&long(1, 400_000_000), 1_000);
        assert_eq!(group.ns, 500);
        assert_eq!(group.text(), "one launch took 400 ms, its others 1.50 us");
        group.add(&long(2, 2_000_000), 1_000);
        assert_eq!(group.text(), "3 launches took up to 400 ms, its others 1.50 us");
    }
}

//! Lengths of the launches of one kernel with one grid and block in a stage, to find the launches
//! that take far longer than the others: their time has other causes than the kernel's.

/// Min launches to look for far longer ones.
const LEAST_LAUNCHES: u64 = 8;
/// A launch is far longer than the others above this many medians.
const LONG_MEDIANS: f64 = 10.0;
/// A launch is far longer only by at least this time: lengths of short kernels vary by more.
const LEAST_EXCESS_NS: i64 = 100_000;

/// Launches of a kernel that take far longer than its others.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LongLaunches {
    pub count: u64,
    /// Part of the kernel's time in the stage that these take above the median, from 0 to 1.
    pub excess_part: f64,
    pub longest_ns: i64,
    /// The median of all launches, to within a factor of two.
    pub median_ns: i64,
}

/// Launches of similar length.
#[derive(Debug, Clone, Copy, Default)]
struct Similar {
    count: u64,
    ns: i64,
    shortest_ns: i64,
    longest_ns: i64,
}

/// Launches by length: each entry has lengths that differ by less than a factor of two.
#[derive(Debug, Default)]
pub struct LaunchLengths(Vec<(u32, Similar)>);

impl LaunchLengths {
    pub fn add(&mut self, ns: i64) {
        let octave = ns.max(1).ilog2();
        let at = self.0.iter().position(|it| it.0 == octave).unwrap_or_else(|| {
            self.0.push((octave, Similar::default()));
            self.0.len() - 1
        });
        let of = &mut self.0[at].1;
        of.count += 1;
        of.ns = of.ns.saturating_add(ns);
        of.shortest_ns = if of.count == 1 { ns } else { of.shortest_ns.min(ns) };
        of.longest_ns = of.longest_ns.max(ns);
    }

    /// Launches above ten medians, of at least eight; launches of similar length count together.
    /// `None` without one.
    pub fn long(mut self) -> Option<LongLaunches> {
        self.0.sort_unstable_by_key(|it| it.0);
        let launches: u64 = self.0.iter().map(|it| it.1.count).sum();
        if self.0.len() < 2 || launches < LEAST_LAUNCHES {
            return None;
        }
        let mut below = 0;
        let middle = self.0.iter().find(|(_, it)| {
            below += it.count;
            2 * below >= launches
        })?;
        // The mean of similar launches stands for the middle launch.
        let median = middle.1.ns as f64 / middle.1.count as f64;
        let least = (LONG_MEDIANS * median).max(median + LEAST_EXCESS_NS as f64);
        let is_long = |it: &&(u32, Similar)| it.1.shortest_ns as f64 > least;
        let long = self.0.iter().filter(is_long).map(|it| it.1);
        let long = long.reduce(|sum, it| Similar {
            count: sum.count + it.count,
            ns: sum.ns.saturating_add(it.ns),
            shortest_ns: sum.shortest_ns.min(it.shortest_ns),
            longest_ns: sum.longest_ns.max(it.longest_ns),
        })?;
        let all = self.0.iter().fold(0.0, |sum, it| sum + it.1.ns as f64);
        Some(LongLaunches {
            count: long.count,
            excess_part: (long.ns as f64 - long.count as f64 * median) / all,
            longest_ns: long.longest_ns,
            median_ns: median.round() as i64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long(lengths: &[(usize, i64)]) -> Option<LongLaunches> {
        let mut all = LaunchLengths::default();
        for (count, ns) in lengths {
            (0..*count).for_each(|_| all.add(*ns));
        }
        all.long()
    }

    #[test]
    fn a_launch_above_ten_medians_is_long_if_it_has_enough_others() {
        let found = long(&[(639, 1_500), (1, 400_000_000)]).unwrap();
        assert_eq!((found.count, found.longest_ns, found.median_ns), (1, 400_000_000, 1_500));
        let excess = 400_000_000.0 - 1_500.0;
        assert!((found.excess_part - excess / (excess + 640.0 * 1_500.0)).abs() < 1e-12);
        assert!(long(&[(639, 1_500), (1, 120_000)]).is_some(), "just above the limit");
        for (lengths, why) in [
            (&[(640, 1_500)][..], "equal launches"),
            (&[(6, 1_500), (1, 400_000_000)], "too few others"),
            (&[(639, 60_000_000), (1, 400_000_000)], "less than ten medians"),
            (&[(639, 1_500), (1, 60_000)], "a short time"),
            (&[(4, 1_500), (5, 400_000_000)], "most launches are long"),
        ] {
            assert_eq!(long(lengths), None, "{why}");
        }
    }
}

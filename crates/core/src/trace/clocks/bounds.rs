//! Bounds on the offset of a device's clock over time, and the line between them.

/// Max drift: a crystal drifts by parts in a million; wrong conversions of times by more.
const MAX_DRIFT: f64 = 0.1;
/// Time from a launching call to its work on an idle device, nanoseconds: 3 to 8 us in captures of
/// H100s and H200s. Waits return later after their work, by up to 200 us.
const LAUNCH_NS: f64 = 5_000.0;
/// Steps of the search for a drift.
const STEPS: usize = 100;

/// A bound on the offset at a time of the host, nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoundAt {
    pub at_ns: i64,
    pub bound_ns: i64,
}

/// Offset of a device's clock: `offset_ns` at `from_ns` of the host, and its change per nanosecond.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClockLine {
    from_ns: i64,
    offset_ns: f64,
    pub drift: f64,
}

impl ClockLine {
    /// The offset at a time of the host.
    pub fn at(&self, host_ns: i64) -> f64 {
        self.offset_ns + self.drift * (host_ns - self.from_ns) as f64
    }

    /// Times of the host at times of the device.
    pub fn host_times(&self, start_ns: i64, end_ns: i64) -> (i64, i64) {
        let host = |device_ns: i64| {
            let since = (device_ns - self.from_ns) as f64 - self.offset_ns;
            self.from_ns + (since / (1.0 + self.drift)).round() as i64
        };
        (host(start_ns), host(end_ns))
    }
}

/// All bounds of one clock.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClockBounds {
    /// The offset is at least this.
    pub lower: Vec<BoundAt>,
    /// The offset is at most this.
    pub upper: Vec<BoundAt>,
}

impl ClockBounds {
    /// The middle of the time that the bounds cover.
    pub fn middle_ns(&self) -> i64 {
        let (first, last) = self.span_ns();
        i64::midpoint(first, last)
    }

    /// Largest lower and smallest upper bound on the offset in the middle, for a drift; infinite
    /// without bounds.
    fn of_drift(&self, drift: f64) -> (f64, f64) {
        let from = self.middle_ns();
        let at_start = |it: &BoundAt| it.bound_ns as f64 - drift * (it.at_ns - from) as f64;
        let low = self.lower.iter().map(at_start).fold(f64::NEG_INFINITY, f64::max);
        let high = self.upper.iter().map(at_start).fold(f64::INFINITY, f64::min);
        (low, high)
    }

    /// The bounds of an offset that is constant.
    pub fn of_constant(&self) -> (f64, f64) {
        self.of_drift(0.0)
    }

    fn line(&self, drift: f64) -> ClockLine {
        let (low, high) = self.of_drift(drift);
        ClockLine { from_ns: self.middle_ns(), offset_ns: low.max(high - LAUNCH_NS), drift }
    }

    /// The constant between the bounds.
    pub fn constant(&self) -> ClockLine {
        self.line(0.0)
    }

    /// The line along the launches with the least latency, and the distance between its bounds;
    /// `None` if a wait contradicts it.
    pub fn drift(&self) -> Option<(ClockLine, f64)> {
        if self.lower.len() < 2 || self.upper.len() < 2 {
            return None;
        }
        // The upper bound in the middle is a concave function of the drift. At its maximum, the
        // line touches launches on both sides.
        let high = |drift: f64| self.of_drift(drift).1;
        let (mut least, mut most) = (-MAX_DRIFT, MAX_DRIFT);
        for _ in 0..STEPS {
            let third = (most - least) / 3.0;
            if high(least + third) < high(most - third) {
                least += third;
            } else {
                most -= third;
            }
        }
        let drift = f64::midpoint(least, most);
        let (low, high) = self.of_drift(drift);
        let width = high - low;
        (width >= -(super::CLOCK_TOLERANCE_NS as f64)).then(|| (self.line(drift), width))
    }

    /// The bounds before, or from, a time of the host.
    pub fn half(&self, middle_ns: i64, is_first: bool) -> Self {
        let of = |bounds: &[BoundAt]| {
            let in_half = |it: &&BoundAt| (it.at_ns < middle_ns) == is_first;
            bounds.iter().filter(in_half).copied().collect()
        };
        Self { lower: of(&self.lower), upper: of(&self.upper) }
    }

    /// Times of the first and the last bound.
    pub fn span_ns(&self) -> (i64, i64) {
        let times = || self.lower.iter().chain(&self.upper).map(|it| it.at_ns);
        (times().min().unwrap_or(0), times().max().unwrap_or(0))
    }
}

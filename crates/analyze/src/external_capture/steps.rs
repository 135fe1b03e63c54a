//! Decode steps of a capture, by their ranges.

use foldhash::HashMap;
use llmprof_core::trace::range::Range;

use crate::timeline::{
    capture::Capture,
    engine_steps::work_windows,
    interval::Interval,
    open_ranges::place,
    stage_spans::{self, HostRange},
};

/// A decode step.
pub struct CaptureStep {
    /// The stage instance in which it starts.
    pub instance: usize,
    /// Thread or process on which its range is open.
    pub place: i64,
    /// Start and end of its range.
    pub times: Interval,
    /// Tokens that it generated, of all sequences; `None` if unknown.
    pub tokens: Option<u64>,
}

/// The spans of steps, which are sorted by start. A step whose range is a whole stage instance has
/// the span of that. `None` if some work ran on a device without a common clock: the host leaves
/// the range of a step long before the step ends, unless it waits.
pub fn spans(
    capture: &Capture,
    steps: &[CaptureStep],
    stages: &[Interval],
) -> Option<Vec<Interval>> {
    if steps.is_empty() {
        return Some(Vec::new());
    }
    let ranges: Vec<(i64, Interval)> = steps.iter().map(|it| (it.place, it.times)).collect();
    let host = steps.iter().zip(work_windows(capture, &ranges)?).map(|(it, work)| {
        let (place, (start_ns, end_ns)) = (it.place, it.times);
        HostRange { place, start_ns, end_ns, work }
    });
    let span = |(it, span): (&CaptureStep, Interval)| {
        let (stage, instance) = (stages[it.instance], &capture.stages.instances[it.instance]);
        if (instance.start_ns, instance.end_ns) == it.times {
            return stage;
        }
        // The first step queues behind the stage before.
        (span.0.max(stage.0.min(span.1)), span.1)
    };
    Some(steps.iter().zip(stage_spans::spans(host)).map(span).collect())
}

/// Selects ranges that do not repeat a range around them: two NVTX domains may record one part, and
/// ranges of one name may nest.
#[derive(Default)]
pub struct OutermostRanges<'a> {
    /// Domain and end of the last one, by part and thread or process.
    last: HashMap<(&'a str, i64), (&'a str, i64)>,
}

impl<'a> OutermostRanges<'a> {
    /// Returns true when the range counts. Ranges come in the order of their starts, longer first.
    pub fn adds(&mut self, part: &'a str, it: &'a Range, end_ns: i64) -> bool {
        let this = (it.domain.as_str(), end_ns);
        let last = self.last.entry((part, place(it))).or_insert((this.0, i64::MIN));
        let overlaps = it.start_ns < last.1;
        if overlaps && (end_ns <= last.1 || this.0 != last.0) {
            return false;
        }
        *last = this;
        true
    }
}

//! The part of a capture that is in the file, which stays small for any capture.
//!
//! It starts with the first stage that is not a warm-up, so with the first prefill of the first
//! repeat, and ends before any list of events exceeds its maximum. A capture below the maxima is
//! whole.

use llmprof_core::trace::{
    gpu_metrics::GpuMetric,
    range::Range,
    stage::WARMUP,
    timeline::{Timeline, process_of},
};

/// Maximum number of kernels, of graphs, of calls, of operators, of ranges, of times of threads on
/// cores, of samples of threads, and of sampled values of a device.
const MAX_EVENTS: usize = 250_000;

/// A part of a capture, by the starts of its events.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    /// Start of the capture: time zero.
    pub origin: i64,
    /// `None` for a whole capture.
    cut: Option<(i64, i64)>,
}

impl Window {
    pub fn of(nsys: &Timeline) -> Self {
        Self::limited(nsys, MAX_EVENTS)
    }

    fn limited(nsys: &Timeline, max: usize) -> Self {
        let kernels = || nsys.kernels.iter().map(|it| it.start_ns);
        let calls = || nsys.cuda_calls.iter().map(|it| it.start_ns);
        let graphs = || nsys.graphs.iter().map(|it| it.start_ns);
        let ranges = || nsys.ranges.iter().map(|it| it.start_ns);
        let devices = || nsys.samples.iter().flat_map(|samples| &samples.devices);
        let operators = || nsys.framework.iter().map(|it| it.start_ns);
        let host = || nsys.host_cpu.iter();
        let runs = || host().flat_map(|it| it.runs().map(|run| run.start_ns));
        let samples = || host().flat_map(|it| it.samples().map(|sample| sample.at_ns));
        let firsts = [ranges().next(), kernels().next(), graphs().next(), calls().next()];
        let sampled = devices().filter_map(|it| it.times().first().copied());
        let of_host = runs().next().into_iter().chain(samples().min());
        let all = firsts.into_iter().flatten().chain(sampled).chain(operators()).chain(of_host);
        let origin = all.min().unwrap_or(0);
        let instants = max / GpuMetric::COUNT;
        let lists = [
            ranges().len(),
            kernels().len(),
            graphs().len(),
            calls().len(),
            nsys.framework.len(),
            host().map(|it| it.runs().len()).sum(),
            host().map(|it| it.samples().len()).sum(),
        ];
        let longest = lists.into_iter().max();
        let is_whole = longest.is_none_or(|count| count <= max)
            && devices().all(|it| it.times().len() <= instants);
        if is_whole {
            return Self { origin, cut: None };
        }
        let from = first_stage(nsys).unwrap_or(origin);
        let ends = [
            after(ranges(), from, max),
            after(kernels(), from, max),
            after(graphs(), from, max),
            after(calls(), from, max),
            after(in_order(operators()), from, max),
            after(runs(), from, max),
            after(in_order(samples()), from, max),
        ];
        let sampled = devices().map(|it| after(it.times().iter().copied(), from, instants));
        let to = ends.into_iter().chain(sampled).flatten().min().unwrap_or(i64::MAX);
        Self { origin, cut: Some((from, to)) }
    }

    /// The events of a list in order of start that start inside.
    pub fn inside<T>(
        &self,
        events: impl Iterator<Item = T>,
        start: impl Fn(&T) -> i64,
    ) -> impl Iterator<Item = T> {
        let (from, to) = self.cut.unwrap_or((i64::MIN, i64::MAX));
        events
            .map(move |it| (start(&it), it))
            .take_while(move |(start, _)| *start < to)
            .filter(move |(start, _)| *start >= from)
            .map(|(_, it)| it)
    }

    /// True if a part of the interval is inside.
    pub fn overlaps(&self, start_ns: i64, end_ns: i64) -> bool {
        self.cut.is_none_or(|(from, to)| start_ns < to && end_ns >= from)
    }

    /// `name`, with the part of the capture that is in the file.
    pub fn name(&self, name: &str) -> String {
        let seconds = |ns: i64| ns.saturating_sub(self.origin) as f64 / 1e9;
        match self.cut {
            None => name.to_owned(),
            Some((from, i64::MAX)) => format!("{name}, cut: from {:.3} s", seconds(from)),
            Some((from, to)) => {
                format!("{name}, cut: {:.3} to {:.3} s", seconds(from), seconds(to))
            }
        }
    }
}

/// Starts of calls that come by thread.
fn in_order(starts: impl Iterator<Item = i64>) -> impl Iterator<Item = i64> {
    let mut starts: Vec<i64> = starts.collect();
    starts.sort_unstable();
    starts.into_iter()
}

/// Start of the event after `max` events from `from` on.
fn after(starts: impl Iterator<Item = i64>, from: i64, max: usize) -> Option<i64> {
    starts.filter(|start| *start >= from).nth(max)
}

/// Start of the first stage outside the warm-up.
fn first_stage(nsys: &Timeline) -> Option<i64> {
    let mut warm: Vec<&Range> = Vec::new();
    for range in &nsys.ranges {
        if range.name == WARMUP {
            warm.push(range);
        } else if nsys.rules.stage(&range.name, &range.domain).is_some() {
            let process = process_of(range.global_tid);
            let is_warmup = warm.iter().any(|it| {
                process_of(it.global_tid) == process
                    && it.end_ns.is_some_and(|end| range.start_ns < end)
            });
            if !is_warmup {
                return Some(range.start_ns);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::timeline::ApiCall;

    use super::*;

    fn range(name: &str, start_ns: i64, end_ns: i64) -> Range {
        Range::new(("LLM", name), (start_ns, Some(end_ns)), (1, true))
    }

    fn capture() -> Timeline {
        let call = |start_ns| ApiCall {
            name: 0,
            start_ns,
            end_ns: start_ns + 1,
            global_tid: 1,
            correlation_id: start_ns,
        };
        Timeline {
            ranges: vec![
                range(WARMUP, 10, 30),
                range("prefill", 12, 20),
                range("prefill", 40, 50),
                range("decode_all", 50, 90),
            ],
            cuda_calls: (10..100).map(call).collect(),
            ..Timeline::default()
        }
    }

    fn drawn(window: &Window, trace: &Timeline) -> Vec<i64> {
        window.inside(trace.cuda_calls.iter(), |it| it.start_ns).map(|it| it.start_ns).collect()
    }

    #[test]
    fn a_capture_below_the_maximum_is_whole() {
        let trace = capture();
        let window = Window::limited(&trace, 90);
        assert_eq!(window, Window { origin: 10, cut: None });
        assert_eq!(drawn(&window, &trace), (10..100).collect::<Vec<_>>());
        assert_eq!(window.name("traced pass"), "traced pass");
    }

    #[test]
    fn a_larger_capture_is_cut_from_the_first_stage_after_the_warm_up() {
        let trace = capture();
        let window = Window::limited(&trace, 20);
        assert_eq!(drawn(&window, &trace), (40..60).collect::<Vec<_>>());
        assert!(window.overlaps(50, 90) && !window.overlaps(12, 20) && !window.overlaps(60, 61));
        assert_eq!(window.name("traced pass"), "traced pass, cut: 0.000 to 0.000 s");
        let rest = Window::limited(&trace, 80);
        assert_eq!(drawn(&rest, &trace), (40..100).collect::<Vec<_>>());
        assert_eq!(rest.name("traced pass"), "traced pass, cut: from 0.000 s");
    }
}

//! A window: a recording within the load of a server, and the plan of its length.

use serde::{Deserialize, Serialize};

use super::requests::RequestRecord;
pub use crate::domain::command::MinSteps;

/// A recorded window, as its pass stored it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    pub min_steps: MinSteps,
    /// Length that was planned from the load before the window, seconds.
    pub planned_s: f64,
    /// From the start of the recording to the request to stop it, seconds; absent if the recording
    /// did not start.
    pub recorded_s: Option<f64>,
    /// Duration of the commands that start and stop the recording, seconds.
    pub start_s: Option<f64>,
    pub stop_s: Option<f64>,
    /// True if the program or the client ended within the window.
    pub is_cut: bool,
}

/// Times of a window, seconds since the start of its load and of the recording.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowTimes {
    /// Load before the recording: requests are in their middle then.
    pub lead_s: f64,
    pub length_s: f64,
}

/// Minimum length, seconds: the recording starts late by some tenths.
const MIN_LENGTH_S: f64 = 1.0;
/// Factor between the shortest length that has the steps and the planned one.
const MARGIN: f64 = 3.0;

/// Plans a window from the requests of an unprofiled load of the same kind: decode steps take the
/// median time between two tokens of a request, and each request has a prefill. `None` without a
/// complete request.
pub fn plan(requests: &[RequestRecord], min_steps: MinSteps, max_s: f64) -> Option<WindowTimes> {
    let complete = || requests.iter().filter(|it| it.failure.is_none());
    let seconds = |ns: i64| ns.max(0) as f64 / 1e9;
    let first = complete().map(|it| it.intended_ns).min()?;
    let last = complete().map(|it| it.ended_ns).max()?;
    let per_request_s = seconds(last - first) / complete().count() as f64;
    let mut gaps: Vec<i64> =
        complete().flat_map(|it| it.token_ns.windows(2).map(|pair| pair[1] - pair[0])).collect();
    gaps.sort_unstable();
    let step_s = gaps.get(gaps.len() / 2).map_or(per_request_s, |gap| seconds(*gap));
    let needed_s =
        (f64::from(min_steps.decode) * step_s).max(f64::from(min_steps.prefill) * per_request_s);
    let mut ends: Vec<i64> = complete().map(|it| it.ended_ns - it.sent_ns).collect();
    ends.sort_unstable();
    let request_s = ends.get(ends.len() / 2).map_or(0.0, |end| seconds(*end));
    Some(WindowTimes {
        lead_s: request_s.clamp(0.5, max_s),
        length_s: (needed_s * MARGIN).clamp(MIN_LENGTH_S.min(max_s), max_s),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` requests, one after the other, of `tokens` tokens at this distance.
    fn requests(count: i64, tokens: i64, gap_ms: i64) -> Vec<RequestRecord> {
        let ns = |ms: i64| ms * 1_000_000;
        (0..count)
            .map(|at| {
                let start = at * tokens * gap_ms;
                let token_ns: Vec<i64> =
                    (1..=tokens).map(|token| ns(start + token * gap_ms)).collect();
                RequestRecord {
                    intended_ns: ns(start),
                    sent_ns: ns(start),
                    ended_ns: token_ns.last().copied().unwrap_or_default(),
                    token_ns,
                    ..RequestRecord::default()
                }
            })
            .collect()
    }

    #[test]
    fn a_window_is_as_long_as_its_steps_need() {
        let min = MinSteps::default();
        // 20 decode steps of 100 ms take 2 s, three requests of 1 s take 3 s.
        let times = plan(&requests(10, 10, 100), min, 30.0).unwrap();
        assert!((times.length_s - 9.0).abs() < 1e-6, "{times:?}");
        assert!((times.lead_s - 1.0).abs() < 1e-6, "{times:?}");
        let long = plan(&requests(2, 100, 100), MinSteps { prefill: 0, ..min }, 30.0).unwrap();
        assert!((long.length_s - 6.0).abs() < 1e-6, "{long:?}");
    }

    #[test]
    fn a_window_is_neither_empty_nor_endless() {
        let min = MinSteps::default();
        assert_eq!(plan(&requests(50, 4, 1), min, 30.0).unwrap().length_s, 1.0);
        assert_eq!(plan(&requests(2, 10, 20_000), min, 30.0).unwrap().length_s, 30.0);
        assert_eq!(plan(&[], min, 30.0), None);
    }
}

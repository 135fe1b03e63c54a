//! Requests of a load within the steps of a server, by wall-clock times of both.
//!
//! A step has its requests only if the name of its range states as many as fit by their times; if a
//! token arrived during the step or a request waited, that is not certain.

use llmprof_core::trace::{
    requests::{LoadPass, RequestLoad, RequestRecord},
    timeline::Timeline,
};

use crate::timeline::{engine_steps::EngineStepRecord, steps::steps};

/// Adds the requests of the load of the traced pass to the steps of its timeline.
pub fn join(records: &mut [EngineStepRecord], nsys: &Timeline, loads: &[RequestLoad]) {
    let traced = loads.iter().find(|load| load.pass == LoadPass::Traced);
    let Some((load, header)) = traced.and_then(|load| Some((load, load.header.as_ref()?))) else {
        return;
    };
    let (Some(started), Some(first)) =
        (nsys.started_unix_ns, steps(nsys).first().map(|it| it.start_ns))
    else {
        return;
    };
    // Times of steps on the clock of the load, nanoseconds.
    let origin = started.saturating_add(first).saturating_sub(header.started_unix_ns);
    for step in records {
        let start = origin.saturating_add((step.start_ms * 1e6) as i64);
        let end = start.saturating_add((step.host_ms * 1e6) as i64);
        step.prefilling = certain(step.prefill_requests, &load.requests, |request| {
            request.sent_ns <= start
                && request.first_token_ns.is_none_or(|at| at >= end)
                && request.ended_ns >= end
        });
        step.decoding = certain(step.decode_requests, &load.requests, |request| {
            request.first_token_ns.is_some_and(|at| at <= start) && request.ended_ns >= end
        });
    }
}

/// The requests that fit, if they are as many as the step has.
fn certain(
    count: Option<u64>,
    requests: &[RequestRecord],
    fits: impl Fn(&RequestRecord) -> bool,
) -> Option<Vec<u64>> {
    let mut found: Vec<u64> = requests.iter().filter(|it| fits(it)).map(|it| it.request).collect();
    found.sort_unstable();
    (count? == found.len() as u64).then_some(found)
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::requests::LoadHeader;

    use super::*;
    use crate::{
        kernels::tests::capture,
        timeline::{capture::Capture, engine_steps::engine_steps},
    };

    /// A request from `sent` with its first token and its end.
    fn request(request: u64, sent: i64, first: i64, end: i64) -> RequestRecord {
        RequestRecord {
            request,
            sent_ns: sent,
            first_token_ns: Some(first),
            ended_ns: end,
            ..RequestRecord::default()
        }
    }

    /// Requests in prefill and in decode.
    type StepRequests = (Option<Vec<u64>>, Option<Vec<u64>>);

    fn joined(started: Option<i64>) -> Vec<StepRequests> {
        let nsys = capture(
            "range 1 execute_context_1(8)_generation_0(0) 100..200
             range 1 execute_context_0(0)_generation_1(1) 300..400
             range 1 execute_context_1(8)_generation_1(1) 500..600
             range 1 execute_context_0(0)_generation_2(2) 700..800",
        );
        let nsys = Timeline { started_unix_ns: started, ..nsys };
        let header = LoadHeader {
            url: String::new(),
            model: None,
            concurrency: Some(2),
            rate_per_s: None,
            seed: 0,
            started_unix_ns: 5_000,
            started_monotonic_ns: 0,
        };
        // The load started 50 before the recording.
        let requests = vec![
            request(0, 100, 260, 2_000),
            request(1, 500, 660, 2_000),
            request(2, 760, 800, 820),
        ];
        let load =
            RequestLoad { pass: LoadPass::Traced, repeat: 0, header: Some(header), requests };
        let mut steps = engine_steps(&Capture::of(&nsys));
        join(&mut steps, &nsys, &[load]);
        steps.into_iter().map(|it| (it.prefilling, it.decoding)).collect()
    }

    #[test]
    fn steps_have_the_requests_whose_number_is_certain() {
        let none = Some(vec![]);
        assert_eq!(
            joined(Some(5_050)),
            [
                (Some(vec![0]), none.clone()),
                (none.clone(), Some(vec![0])),
                (Some(vec![1]), Some(vec![0])),
                // Request 2 is sent and has its first token while the step runs.
                (none, Some(vec![0, 1])),
            ]
        );
    }

    #[test]
    fn without_a_common_clock_or_with_a_shifted_one_nothing_is_certain() {
        assert!(joined(None).iter().all(|it| *it == (None, None)));
        let shifted = joined(Some(5_000_000));
        assert!(shifted.iter().all(|it| it.1.as_ref().is_none_or(Vec::is_empty)), "{shifted:?}");
    }
}

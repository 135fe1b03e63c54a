//! Tests of the latencies and findings of loads.

use llmprof_core::trace::requests::RequestFailure;

use super::*;

/// A request from `intended` with tokens at the given milliseconds.
fn request(request: u64, intended: i64, sent: i64, tokens: &[i64]) -> RequestRecord {
    let ns = |ms: i64| ms * 1_000_000;
    RequestRecord {
        request,
        intended_ns: ns(intended),
        sent_ns: ns(sent),
        first_token_ns: tokens.first().map(|ms| ns(*ms)),
        ended_ns: ns(tokens.last().copied().unwrap_or(sent) + 1),
        token_ns: tokens.iter().map(|ms| ns(*ms)).collect(),
        status: Some(200),
        requested_tokens: 3,
        ..RequestRecord::default()
    }
}

fn load(pass: LoadPass, requests: Vec<RequestRecord>) -> RequestLoad {
    RequestLoad { pass, repeat: 0, header: None, requests }
}

fn latency(requests: &Requests, metric: LatencyMetric) -> &LatencyRecord {
    requests.latency.iter().find(|it| it.metric == metric).unwrap()
}

#[test]
fn latencies_count_from_the_intended_time() {
    let tables = requests(&[load(
        LoadPass::Unprofiled,
        vec![request(0, 10, 14, &[20, 30, 50]), request(1, 20, 20, &[26, 36, 46])],
    )]);
    assert_eq!(tables.rows[0].first_token_ms, Some(10.0));
    assert_eq!((tables.rows[0].send_delay_ms, tables.rows[0].end_ms), (4.0, 41.0));
    assert_eq!(tables.rows[0].token_ms, Some(15.0));
    assert_eq!(latency(&tables, LatencyMetric::FirstToken).p50_ms, 8.0);
    let gaps = latency(&tables, LatencyMetric::InterToken);
    assert_eq!((gaps.n, gaps.max_ms, gaps.mean_ms), (4, 20.0, 12.5));
}

#[test]
fn the_error_of_a_median_is_of_its_loads_if_there_are_several() {
    let of = |first_tokens: &[i64]| {
        let each = (0..).zip(first_tokens);
        let requests = each.map(|(at, ms)| request(at, 0, 0, &[*ms])).collect();
        load(LoadPass::Unprofiled, requests)
    };
    for (loads, expected) in [
        (&[&[10][..]][..], (10.0, 1, None)),
        (&[&[10, 10, 10, 10, 10, 10]], (10.0, 1, Some(0.0))),
        // Medians 9 and 11: a standard deviation of sqrt(2), over sqrt(2).
        (&[&[9, 9, 9], &[11, 11, 11]], (10.0, 2, Some(1.0))),
    ] {
        let tables = requests(&loads.iter().map(|it| of(it)).collect::<Vec<_>>());
        let it = latency(&tables, LatencyMetric::FirstToken);
        let error = it.std_error_ms.map(|ms| (ms * 1e6).round() / 1e6);
        assert_eq!((it.p50_ms, it.loads, error), expected, "{loads:?}");
    }
}

#[test]
fn the_servers_count_of_tokens_replaces_the_number_of_events() {
    let mut record = request(0, 0, 0, &[10, 30]);
    record.completion_tokens = Some(5);
    let tables = requests(&[load(LoadPass::Traced, vec![record])]);
    assert_eq!((tables.rows[0].output_tokens, tables.rows[0].token_ms), (5, Some(5.0)));
}

#[test]
fn failed_requests_are_counted_and_are_in_no_percentile() {
    let mut broken = request(1, 0, 0, &[5]);
    broken.failure = Some(RequestFailure::EndedEarly);
    broken.message = Some("cut".into());
    let mut stopped = broken.clone();
    stopped.failure = Some(RequestFailure::Stopped);
    let whole = request(0, 0, 0, &[10, 20, 30]);
    let tables = requests(&[load(LoadPass::Unprofiled, vec![whole.clone(), broken, stopped])]);
    assert_eq!(latency(&tables, LatencyMetric::FirstToken).n, 1);
    assert_eq!(latency(&tables, LatencyMetric::SendDelay).n, 3);
    let found = findings(&tables);
    let codes: Vec<&str> = found.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(codes, ["requests_failed"]);
    assert!(found[0].message.starts_with("1 of 3 requests"), "{}", found[0].message);
    assert_eq!(findings(&requests(&[load(LoadPass::Unprofiled, vec![whole])])), []);
}

#[test]
fn short_outputs_and_a_late_client_are_findings() {
    let tables = requests(&[load(LoadPass::Traced, vec![request(0, 0, 5, &[10, 20])])]);
    let codes: Vec<_> = findings(&tables).into_iter().map(|it| it.id.clone()).collect();
    assert_eq!(codes, ["outputs_short", "load_late"]);
}

#[test]
fn a_run_without_loads_has_no_rows() {
    assert_eq!(requests(&[]), Requests::default());
}

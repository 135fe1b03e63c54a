//! Latencies of a load's requests as a comparison has them: medians without a profiler.

use llmprof_analyze::{
    compare::Measured,
    requests::{LatencyMetric, LatencyRecord, LoadRecord},
};
use llmprof_core::trace::requests::LoadPass;

/// The compared latencies: one value of each request. Intervals between outputs are several of a
/// request, and its delay at the client is not the server's.
const COMPARED: [LatencyMetric; 3] =
    [LatencyMetric::FirstToken, LatencyMetric::OutputToken, LatencyMetric::EndToEnd];

/// The name of a row.
pub(super) fn name(metric: LatencyMetric) -> String {
    format!("{}, median over requests", metric.as_str())
}

/// The compared rows.
pub(super) fn rows(latencies: &[LatencyRecord]) -> impl Iterator<Item = (String, Measured)> + '_ {
    let is_compared =
        |it: &&LatencyRecord| it.pass == LoadPass::Unprofiled && COMPARED.contains(&it.metric);
    latencies.iter().filter(is_compared).map(|it| (name(it.metric), Measured::over_requests(it)))
}

/// The loads without a profiler, in words; `None` if a report does not state them.
pub(super) fn load_text(loads: &[LoadRecord]) -> Option<String> {
    let mut stated: Vec<String> = Vec::new();
    for it in loads.iter().filter(|it| it.pass == LoadPass::Unprofiled) {
        let text = match (it.concurrency, it.rate_per_s) {
            (Some(concurrency), _) => format!("{concurrency} requests at the same time"),
            (None, Some(rate)) => format!("{rate} requests arrive per second"),
            (None, None) => return None,
        };
        if !stated.contains(&text) {
            stated.push(text);
        }
    }
    (!stated.is_empty()).then(|| stated.join(", "))
}

#[cfg(test)]
mod tests {
    use llmprof_analyze::compare::{ChangeVerdict, ComparedRun, diff};

    use super::*;

    /// A run with this median time to first token, its error and its number of loads.
    fn run((p50_ms, std_error_ms, loads): (f64, Option<f64>, u64)) -> ComparedRun {
        let latency = |pass, metric, p50_ms| LatencyRecord {
            pass,
            metric,
            n: 400,
            mean_ms: 90.0,
            p50_ms,
            p90_ms: 100.0,
            p99_ms: 200.0,
            max_ms: 700.0,
            loads,
            std_error_ms,
        };
        let all = [
            latency(LoadPass::Traced, LatencyMetric::FirstToken, 99.0),
            latency(LoadPass::Unprofiled, LatencyMetric::InterToken, 1.0),
            latency(LoadPass::Unprofiled, LatencyMetric::FirstToken, p50_ms),
        ];
        let stages = rows(&all).map(|(name, it)| ((String::new(), name), it)).collect();
        ComparedRun { stages, ..ComparedRun::default() }
    }

    #[test]
    fn latencies_of_loads_get_the_verdict_that_their_loads_or_requests_allow() {
        use ChangeVerdict::{Faster, Slower, Unknown, WithinNoise};
        let exact = Some(0.1);
        for (a, b, verdict, reason) in [
            ((20.0, exact, 5), (22.0, exact, 5), Slower, "beyond noise"),
            ((20.0, exact, 5), (20.4, exact, 5), Slower, "beyond noise"),
            ((20.0, exact, 5), (20.1, exact, 5), WithinNoise, "smallest detectable change"),
            ((20.0, exact, 1), (16.0, exact, 1), Faster, "beyond noise"),
            // The requests of one load do not show how loads differ.
            ((20.0, exact, 1), (20.6, exact, 1), Unknown, "runs may differ by 5 %"),
            ((20.0, exact, 5), (20.6, exact, 1), Unknown, "runs may differ by 5 %"),
            ((20.0, None, 0), (20.6, exact, 1), Unknown, "noise unknown in A: too few values"),
        ] {
            let found = diff(vec![], &run(a), &run(b), &[]).stages;
            let it = &found[0];
            let expected = (1, "time_to_first_token, median over requests", verdict);
            assert_eq!((found.len(), it.name.as_str(), it.verdict), expected, "{a:?} {b:?}");
            assert!(it.reason.contains(reason), "{}", it.reason);
        }
    }

    #[test]
    fn loads_are_named_by_their_rate_if_all_state_one() {
        let load = |pass, concurrency, rate_per_s| LoadRecord {
            pass,
            repeat: 0,
            complete: 4,
            failed: 0,
            output_tokens: 16,
            ms: 1.0,
            requests_per_s: None,
            tokens_per_s: None,
            concurrency,
            rate_per_s,
        };
        let (closed, open) = (
            load(LoadPass::Unprofiled, Some(8), None),
            load(LoadPass::Unprofiled, None, Some(2.5)),
        );
        let traced = load(LoadPass::Traced, Some(1), None);
        let eight = "8 requests at the same time";
        for (loads, expected) in [
            (&[closed.clone(), closed.clone(), traced.clone()][..], Some(eight.to_owned())),
            (&[closed, open], Some(format!("{eight}, 2.5 requests arrive per second"))),
            (&[load(LoadPass::Unprofiled, None, None)], None),
            (&[traced], None),
        ] {
            assert_eq!(load_text(loads), expected);
        }
    }
}

//! Latencies of the requests of a load.

use llmprof_analyze::requests::{LatencyMetric, LatencyRecord, LoadRecord};
use llmprof_core::trace::requests::LoadPass;

use super::cited::{Cited, Figure, Row};
use crate::format::count;

/// The 99th percentile of the time between outputs is uneven above this many times the median of
/// the requests' means.
const UNEVEN: f64 = 2.0;

/// A sentence per metric and one on the rates, of the unprofiled load if there is one.
pub fn sentences(latencies: &[LatencyRecord], loads: &[LoadRecord]) -> Vec<Cited> {
    let is_unprofiled = |it: &&LatencyRecord| it.pass == LoadPass::Unprofiled;
    let Some(pass) = latencies.iter().find(is_unprofiled).or(latencies.first()).map(|it| it.pass)
    else {
        return vec![];
    };
    let sentence = |metric: LatencyMetric, what: &'static str| {
        let it = latencies.iter().find(|it| it.pass == pass && it.metric == metric)?;
        let row = Row::of("request_latency").with("pass", it.pass).with("metric", it.metric);
        let p50 = row.figure("p50_ms", it.p50_ms).short();
        if it.n == 1 {
            return Some(Cited::of("{} {} ms, of one request.", [Cited::words(what), p50]));
        }
        Some(Cited::of(
            "{} {} ms: the median of {}; p99 {} ms.",
            [
                Cited::words(what),
                p50,
                row.count("n", it.n).quantity("request"),
                row.figure("p99_ms", it.p99_ms).short(),
            ],
        ))
    };
    let all = [
        sentence(LatencyMetric::FirstToken, "The first token of a request takes"),
        sentence(LatencyMetric::OutputToken, "Each further token takes"),
        inter_token(latencies, pass),
        sentence(LatencyMetric::EndToEnd, "A whole request takes"),
    ];
    let mut all: Vec<Cited> = all.into_iter().flatten().collect();
    all.extend(rates(loads, pass));
    all.extend(failed(loads, pass));
    if pass != LoadPass::Unprofiled && !all.is_empty() {
        all.push(Cited::words(
            "These latencies include the profiler: do not quote them. The load has no unprofiled \
             pass.",
        ));
    }
    all
}

/// The time between two outputs of a request, whose largest values a mean per request hides.
fn inter_token(latencies: &[LatencyRecord], pass: LoadPass) -> Option<Cited> {
    let of =
        |metric: LatencyMetric| latencies.iter().find(|it| it.pass == pass && it.metric == metric);
    let (it, mean) = (of(LatencyMetric::InterToken)?, of(LatencyMetric::OutputToken)?);
    let is_uneven = it.p99_ms > UNEVEN * mean.p50_ms;
    let row = Row::of("request_latency").with("pass", it.pass).with("metric", it.metric);
    is_uneven.then(|| {
        Cited::of(
            "Tokens do not arrive evenly: between two outputs of a request lie {} ms, the median \
             of {}; p99 {} ms.",
            [
                row.figure("p50_ms", it.p50_ms).short(),
                row.count("n", it.n).quantity("interval"),
                row.figure("p99_ms", it.p99_ms).short(),
            ],
        )
    })
}

/// A figure over all loads of a pass.
fn sum(loads: &[LoadRecord], pass: LoadPass, of: fn(&Row, &LoadRecord) -> Figure) -> Figure {
    Figure::sum(loads.iter().filter(|it| it.pass == pass).map(|it| {
        of(&Row::of("aggregates.loads").with("pass", it.pass).with("repeat", it.repeat), it)
    }))
}

/// The requests without a response, which are in no time.
fn failed(loads: &[LoadRecord], pass: LoadPass) -> Option<Cited> {
    let failed = sum(loads, pass, |row, it| row.count("failed", it.failed));
    let complete = sum(loads, pass, |row, it| row.count("complete", it.complete));
    let all = Figure::sum([failed.clone(), complete.clone()]);
    (failed.value() > 0.0).then(|| {
        let parts = [counted(failed), all.quantity("request"), counted(complete)];
        Cited::of("{} of {} failed: the times are of the other {}.", parts)
    })
}

fn counted(figure: Figure) -> Cited {
    figure.shown(|it| count(it as u64))
}

/// The rates over all loads of a pass.
fn rates(loads: &[LoadRecord], pass: LoadPass) -> Option<Cited> {
    let complete = sum(loads, pass, |row, it| row.count("complete", it.complete));
    let tokens = sum(loads, pass, |row, it| row.count("output_tokens", it.output_tokens));
    let seconds = sum(loads, pass, |row, it| row.seconds("ms", it.ms));
    let of_pass = || loads.iter().filter(|it| it.pass == pass);
    let first = of_pass().next()?;
    let is_same =
        |it: &LoadRecord| (it.concurrency, it.rate_per_s) == (first.concurrency, first.rate_per_s);
    let row = Row::of("aggregates.loads").with("pass", first.pass).with("repeat", first.repeat);
    let asked = match (first.concurrency, first.rate_per_s) {
        _ if !of_pass().all(is_same) => Cited::default(),
        (Some(n), _) => {
            let n = row.count("concurrency", n.into()).quantity("request");
            Cited::of(", with {} at the same time", [n])
        }
        (None, Some(rate)) => {
            Cited::of(", of {} that arrive per second", [row.figure("rate_per_s", rate).short()])
        }
        (None, None) => Cited::default(),
    };
    Some(Cited::of(
        "The server completes {} requests and {} output tokens per second{}.",
        [complete.over(&seconds)?.short(), tokens.over(&seconds)?.short(), asked],
    ))
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    fn latency(metric: LatencyMetric, p50_ms: f64, p99_ms: f64) -> LatencyRecord {
        LatencyRecord {
            pass: LoadPass::Unprofiled,
            metric,
            n: 1800,
            mean_ms: p50_ms,
            p50_ms,
            p90_ms: p99_ms,
            p99_ms,
            max_ms: p99_ms,
            loads: 1,
            std_error_ms: None,
        }
    }

    fn load(concurrency: Option<u32>, rate_per_s: Option<f64>) -> LoadRecord {
        LoadRecord {
            pass: LoadPass::Unprofiled,
            repeat: 0,
            complete: 40,
            failed: 0,
            output_tokens: 640,
            ms: 2000.0,
            requests_per_s: Some(20.0),
            tokens_per_s: Some(320.0),
            concurrency,
            rate_per_s,
        }
    }

    fn text(latencies: &[LatencyRecord], loads: &[LoadRecord]) -> Vec<String> {
        sentences(latencies, loads).iter().map(|it| it.to_string()).collect()
    }

    #[test]
    fn a_pause_that_the_mean_of_each_request_hides_is_stated() {
        let mean = latency(LatencyMetric::OutputToken, 7.44, 8.24);
        let uneven = [mean.clone(), latency(LatencyMetric::InterToken, 4.29, 50.8)];
        let found = text(&uneven, &[]);
        let pause = "Tokens do not arrive evenly: between two outputs of a request lie 4.29 ms, \
                     the median of 1,800 intervals; p99 50.8 ms.";
        assert!(found.iter().any(|it| it == pause), "{found:?}");
        let even = [mean, latency(LatencyMetric::InterToken, 7.40, 9.0)];
        assert_eq!(text(&even, &[]).len(), 1);
    }

    #[test]
    fn the_rates_name_the_load_that_was_asked_for() {
        let tokens = [latency(LatencyMetric::OutputToken, 7.44, 8.24)];
        let rates = |loads: &[LoadRecord]| text(&tokens, loads).pop().unwrap();
        let head = "The server completes 20.0 requests and 320 output tokens per second";
        let closed = load(Some(2), None);
        assert_eq!(rates(from_ref(&closed)), format!("{head}, with 2 requests at the same time."));
        let open = load(None, Some(25.0));
        assert_eq!(rates(from_ref(&open)), format!("{head}, of 25.0 that arrive per second."));
        assert_eq!(rates(&[closed, open]), format!("{head}."), "loads that differ");
    }
}

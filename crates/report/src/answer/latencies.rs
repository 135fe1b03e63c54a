//! Latencies of the requests of a load.

use llmprof_analyze::requests::{LatencyMetric, LatencyRecord, LoadRecord};
use llmprof_core::trace::requests::LoadPass;

use super::cited::{Cited, Figure, Row};

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
        Some(Cited::of(
            "{} {} ms: the median of {}; p99 {} ms.",
            [
                Cited::words(what),
                row.figure("p50_ms", it.p50_ms).short(),
                row.count("n", it.n).quantity("request"),
                row.figure("p99_ms", it.p99_ms).short(),
            ],
        ))
    };
    let all = [
        sentence(LatencyMetric::FirstToken, "The first token of a request takes"),
        sentence(LatencyMetric::OutputToken, "Each further token takes"),
        sentence(LatencyMetric::EndToEnd, "A whole request takes"),
    ];
    let mut all: Vec<Cited> = all.into_iter().flatten().collect();
    all.extend(rates(loads, pass));
    if pass != LoadPass::Unprofiled && !all.is_empty() {
        all.push(Cited::words(
            "These latencies include the profiler: do not quote them. The load has no unprofiled \
             pass.",
        ));
    }
    all
}

/// The rates over all loads of a pass.
fn rates(loads: &[LoadRecord], pass: LoadPass) -> Option<Cited> {
    let sum = |of: fn(&Row, &LoadRecord) -> Figure| {
        Figure::sum(loads.iter().filter(|it| it.pass == pass).map(|it| {
            of(&Row::of("aggregates.loads").with("pass", it.pass).with("repeat", it.repeat), it)
        }))
    };
    let complete = sum(|row, it| row.count("complete", it.complete));
    let tokens = sum(|row, it| row.count("output_tokens", it.output_tokens));
    let seconds = sum(|row, it| row.seconds("ms", it.ms));
    Some(Cited::of(
        "The server completes {} requests and {} output tokens per second.",
        [complete.over(&seconds)?.short(), tokens.over(&seconds)?.short()],
    ))
}

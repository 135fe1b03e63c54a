//! Latencies of the requests of a load.

use llmprof_analyze::requests::{LatencyMetric, LatencyRecord, LoadRecord};
use llmprof_core::trace::requests::LoadPass;

use super::cited::{Cited, Figure, Row};
use crate::format::count;

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
    Some(Cited::of(
        "The server completes {} requests and {} output tokens per second.",
        [complete.over(&seconds)?.short(), tokens.over(&seconds)?.short()],
    ))
}

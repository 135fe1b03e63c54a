//! Latencies of the requests of a load.

use llmprof_analyze::requests::{LatencyMetric, LatencyRecord};
use llmprof_core::{domain::units::plural, trace::requests::LoadPass};

use crate::format::{count, figure};

/// A sentence per metric, of the unprofiled load if there is one.
pub fn sentences(latencies: &[LatencyRecord]) -> Vec<String> {
    let is_unprofiled = |it: &&LatencyRecord| it.pass == LoadPass::Unprofiled;
    let Some(pass) = latencies.iter().find(is_unprofiled).or(latencies.first()).map(|it| it.pass)
    else {
        return vec![];
    };
    let sentence = |metric: LatencyMetric, what: &str| {
        let it = latencies.iter().find(|it| it.pass == pass && it.metric == metric)?;
        Some(format!(
            "{what} {} ms: the median of {} {}; p99 {} ms.",
            figure(it.p50_ms),
            count(it.n),
            plural(it.n, "request"),
            figure(it.p99_ms)
        ))
    };
    let all = [
        sentence(LatencyMetric::FirstToken, "The first token of a request takes"),
        sentence(LatencyMetric::OutputToken, "Each further token takes"),
        sentence(LatencyMetric::EndToEnd, "A whole request takes"),
    ];
    let mut all: Vec<String> = all.into_iter().flatten().collect();
    if pass != LoadPass::Unprofiled && !all.is_empty() {
        all.push(
            "These latencies include the profiler: do not quote them. The load has no unprofiled \
             pass."
                .into(),
        );
    }
    all
}

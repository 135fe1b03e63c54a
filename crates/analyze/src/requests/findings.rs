//! Findings on the requests of a load.

use std::collections::BTreeMap;

use llmprof_core::{
    domain::finding::{Finding, catalogue},
    trace::requests::{LoadPass, RequestFailure},
};

use super::{LatencyMetric, RequestRow, Requests};

/// Own delay of the client above which its latencies are doubtful, p99, milliseconds.
const MAX_SEND_DELAY_MS: f64 = 1.0;

/// Findings on failed requests, short outputs and a late client.
pub fn findings(requests: &Requests) -> Vec<Finding> {
    let mut found = Vec::new();
    for pass in LoadPass::ALL {
        let rows: Vec<&RequestRow> = requests.rows.iter().filter(|row| row.pass == *pass).collect();
        found.extend(failed(*pass, &rows));
        found.extend(short(*pass, &rows));
        let delay = requests
            .latency
            .iter()
            .find(|record| record.pass == *pass && record.metric == LatencyMetric::SendDelay);
        if let Some(delay) = delay.filter(|it| it.p99_ms > MAX_SEND_DELAY_MS) {
            let message = format!(
                "The client of the {pass} pass sent requests late: its own delay is part of their \
                 latencies."
            );
            let finding = Finding::new(catalogue::LOAD_LATE, message)
                .with("own delay, p99, ms", format!("{:.2}", delay.p99_ms))
                .with("own delay, max, ms", format!("{:.2}", delay.max_ms));
            found.push(finding.advise("Use a lower rate, or a host with free CPU cores."));
        }
    }
    found
}

fn failed(pass: LoadPass, rows: &[&RequestRow]) -> Option<Finding> {
    let is_failed = |failure: RequestFailure| failure != RequestFailure::Stopped;
    let failed: Vec<_> = rows.iter().filter(|row| row.failure.is_some_and(is_failed)).collect();
    let first = failed.first()?;
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    for row in &failed {
        *reasons.entry(row.failure.map_or("", RequestFailure::as_str)).or_default() += 1;
    }
    let reasons: Vec<String> =
        reasons.into_iter().map(|(name, count)| format!("{name}: {count}")).collect();
    let message = format!(
        "{} of {} requests of the {pass} pass failed; percentiles are of the others.",
        failed.len(),
        rows.len()
    );
    let finding = Finding::new(catalogue::REQUESTS_FAILED, message)
        .with("reasons", reasons.join(", "))
        .with("first", first.message.clone().unwrap_or_default());
    Some(finding.advise(
        "Read the server's output in logs/; the table requests has the reason of each request.",
    ))
}

fn short(pass: LoadPass, rows: &[&RequestRow]) -> Option<Finding> {
    let complete: Vec<_> = rows.iter().filter(|row| row.failure.is_none()).collect();
    let is_short = |row: &&&&RequestRow| row.output_tokens < u64::from(row.requested_tokens);
    let short = complete.iter().filter(is_short).count();
    if short == 0 {
        return None;
    }
    let fewest = complete.iter().map(|row| row.output_tokens).min()?;
    let message = format!(
        "{short} of {} requests of the {pass} pass returned fewer tokens than requested: the load \
         is lighter than planned.",
        complete.len()
    );
    let finding =
        Finding::new(catalogue::OUTPUTS_SHORT, message).with("fewest output tokens", fewest);
    Some(finding.advise(
        "Make the server ignore the end of the sequence, for example with body = \
         '{\"ignore_eos\": true}' in the load.",
    ))
}

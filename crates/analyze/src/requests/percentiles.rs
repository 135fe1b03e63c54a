//! Percentiles of latencies.

use llmprof_core::{
    domain::{named_values::named_values, units::Nanos},
    trace::requests::{LoadHeader, LoadPass, RequestFailure, RequestRecord},
};
use serde::{Deserialize, Serialize};

use super::token_ms;
use crate::stats::ratio;

/// Maximum number of gaps between tokens for percentiles, 80 MB of memory.
const MAX_GAPS: usize = 10_000_000;

named_values! {
    /// A latency of a request.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    LatencyMetric {
        /// From the intended time to the first token.
        FirstToken = "time_to_first_token",
        /// Between two events with output, which may have several tokens.
        InterToken = "inter_token",
        /// Time per output token after the first one, by the server's count of tokens.
        OutputToken = "time_per_output_token",
        /// From the intended time to the end of the response.
        EndToEnd = "end_to_end",
        /// From the intended time to the sending: the client's own delay.
        SendDelay = "send_delay",
    }
}

/// Percentiles of one latency: of complete responses, and of all requests for `send_delay`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LatencyRecord {
    pub pass: LoadPass,
    pub metric: LatencyMetric,
    /// Number of values.
    pub n: u64,
    pub mean_ms: f64,
    /// Percentiles, interpolated between neighbours.
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

/// One load: its requests and their rates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadRecord {
    pub pass: LoadPass,
    pub repeat: u32,
    /// Requests with a complete response.
    pub complete: u64,
    pub failed: u64,
    /// Output tokens of all requests.
    pub output_tokens: u64,
    /// From the first intended time to the last end, milliseconds.
    pub ms: f64,
    /// Complete requests over that time, per second; `null` of a load without a duration.
    pub requests_per_s: Option<f64>,
    /// Output tokens over it, per second.
    pub tokens_per_s: Option<f64>,
    /// Requests at the same time, of a closed loop.
    #[serde(default)]
    pub concurrency: Option<u32>,
    /// Mean arrivals per second, of an open loop.
    #[serde(default)]
    pub rate_per_s: Option<f64>,
}

/// Number and time of the requests of one load.
#[derive(Debug, Clone, Default)]
pub struct LoadTally {
    complete: u64,
    failed: u64,
    output_tokens: u64,
    first_ns: Option<i64>,
    last_ns: i64,
}

impl LoadTally {
    /// Adds one request.
    pub fn add(&mut self, record: &RequestRecord) {
        let first = self.first_ns.get_or_insert(record.intended_ns);
        *first = record.intended_ns.min(*first);
        self.last_ns = self.last_ns.max(record.ended_ns);
        self.output_tokens += record.output_tokens();
        match record.failure {
            Some(_) => self.failed += 1,
            None => self.complete += 1,
        }
    }

    /// Requests with a complete response, and failed ones.
    pub const fn counts(&self) -> (u64, u64) {
        (self.complete, self.failed)
    }

    /// The requests and their rates; `None` of no request.
    pub fn record(
        &self,
        pass: LoadPass,
        repeat: u32,
        header: Option<&LoadHeader>,
    ) -> Option<LoadRecord> {
        let ms = Nanos(self.last_ns.saturating_sub(self.first_ns?)).as_ms();
        let rate = |count: u64| ratio(1e3 * count as f64, ms);
        Some(LoadRecord {
            pass,
            repeat,
            complete: self.complete,
            failed: self.failed,
            output_tokens: self.output_tokens,
            ms,
            requests_per_s: rate(self.complete),
            tokens_per_s: rate(self.output_tokens),
            concurrency: header.and_then(|it| it.concurrency),
            rate_per_s: header.and_then(|it| it.rate_per_s),
        })
    }
}

/// Latencies of the requests of a pass, milliseconds.
#[derive(Debug, Clone, Default)]
pub struct LatencyTally {
    values: [Vec<f64>; LatencyMetric::ALL.len()],
    load: LoadTally,
    first_failure: Option<(RequestFailure, String)>,
}

impl LatencyTally {
    /// Adds one request.
    pub fn add(&mut self, record: &RequestRecord) {
        let since = |ns: i64| Nanos(ns.saturating_sub(record.intended_ns)).as_ms();
        self.load.add(record);
        self.push(LatencyMetric::SendDelay, since(record.sent_ns));
        if let Some(failure) = record.failure {
            self.first_failure
                .get_or_insert_with(|| (failure, record.message.clone().unwrap_or_default()));
            return;
        }
        if let Some(first) = record.first_token_ns {
            self.push(LatencyMetric::FirstToken, since(first));
        }
        if let Some(token_ms) = token_ms(record) {
            self.push(LatencyMetric::OutputToken, token_ms);
        }
        self.push(LatencyMetric::EndToEnd, since(record.ended_ns));
        for pair in record.token_ns.windows(2) {
            if self.values[LatencyMetric::InterToken as usize].len() < MAX_GAPS {
                let gap = Nanos(pair[1].saturating_sub(pair[0])).as_ms();
                self.push(LatencyMetric::InterToken, gap);
            }
        }
    }

    fn push(&mut self, metric: LatencyMetric, ms: f64) {
        self.values[metric as usize].push(ms);
    }

    /// Number and time of the requests.
    pub const fn load(&self) -> &LoadTally {
        &self.load
    }

    /// Reason of the first failure.
    pub fn first_failure(&self) -> Option<&(RequestFailure, String)> {
        self.first_failure.as_ref()
    }

    /// One record for each latency that has values.
    pub fn records(mut self, pass: LoadPass) -> Vec<LatencyRecord> {
        let mut records = Vec::new();
        for metric in LatencyMetric::ALL {
            let values = &mut self.values[*metric as usize];
            values.sort_unstable_by(f64::total_cmp);
            let Some(max_ms) = values.last().copied() else { continue };
            records.push(LatencyRecord {
                pass,
                metric: *metric,
                n: values.len() as u64,
                mean_ms: values.iter().sum::<f64>() / values.len() as f64,
                p50_ms: percentile(values, 0.50),
                p90_ms: percentile(values, 0.90),
                p99_ms: percentile(values, 0.99),
                max_ms,
            });
        }
        records
    }
}

/// The quantile of sorted values at `share * (n - 1)`, linear between neighbours (definition 7 of
/// Hyndman and Fan 1996, numpy's default).
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (low, rest) = (place.floor() as usize, place.fract());
    let next = sorted[(low + 1).min(sorted.len() - 1)];
    sorted[low] + (next - sorted[low]) * rest
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn percentiles_are_those_of_numpy() {
        let values: Vec<f64> = (1..=11).map(f64::from).collect();
        let found = [0.5, 0.9, 0.99].map(|share| percentile(&values, share));
        assert_eq!(found, [6.0, 10.0, 10.9]);
        assert_eq!(percentile(&[4.0], 0.99), 4.0);
        assert_eq!(percentile(&[1.0, 2.0], 0.5), 1.5);
    }
}

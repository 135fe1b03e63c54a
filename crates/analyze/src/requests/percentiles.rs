//! Percentiles of latencies.

use llmprof_core::{
    domain::{named_values::named_values, units::Nanos},
    trace::requests::{LoadHeader, LoadPass, RequestFailure, RequestRecord},
};
use serde::{Deserialize, Serialize};

use super::token_ms;
use crate::stats::{Spread, ratio};

/// Maximum number of gaps between tokens for percentiles, 80 MB of memory.
const MAX_GAPS: usize = 10_000_000;
/// Minimum number of values whose extremes enclose the median with a probability of 95 %.
const MIN_ENCLOSING: usize = 6;
/// Half of the two-sided 95 % interval of the normal distribution, in standard errors.
const Z95: f64 = 1.96;

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
    /// Loads with values; 0 in a report of an earlier version.
    #[serde(default)]
    pub loads: u64,
    /// Standard error of `p50_ms`: by the medians of several loads, or by the values of one load,
    /// of which it needs 6; `null` in a report of an earlier version.
    #[serde(default)]
    pub std_error_ms: Option<f64>,
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
    /// Number of values of ended loads, and the median of each load.
    ended: [usize; LatencyMetric::ALL.len()],
    medians: [Vec<f64>; LatencyMetric::ALL.len()],
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

    /// Ends a load: the next request is of another one.
    pub fn end_load(&mut self) {
        for metric in LatencyMetric::ALL.iter().map(|it| *it as usize) {
            let values = &mut self.values[metric][self.ended[metric]..];
            values.sort_unstable_by(f64::total_cmp);
            if !values.is_empty() {
                self.medians[metric].push(percentile(values, 0.50));
            }
            self.ended[metric] = self.values[metric].len();
        }
    }

    /// One record for each latency that has values.
    pub fn records(mut self, pass: LoadPass) -> Vec<LatencyRecord> {
        self.end_load();
        let mut records = Vec::new();
        for metric in LatencyMetric::ALL {
            let values = &mut self.values[*metric as usize];
            values.sort_unstable_by(f64::total_cmp);
            let Some(max_ms) = values.last().copied() else { continue };
            let medians = &self.medians[*metric as usize];
            records.push(LatencyRecord {
                pass,
                metric: *metric,
                n: values.len() as u64,
                mean_ms: values.iter().sum::<f64>() / values.len() as f64,
                p50_ms: percentile(values, 0.50),
                p90_ms: percentile(values, 0.90),
                p99_ms: percentile(values, 0.99),
                max_ms,
                loads: medians.len() as u64,
                std_error_ms: std_error(values, medians),
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

/// Standard error of a median: by the medians of the loads if there are several; else half of the
/// 95 % interval of the median by order statistics, over its width in standard errors (Woodruff,
/// JASA 47(260), 1952).
fn std_error(sorted: &[f64], medians: &[f64]) -> Option<f64> {
    if medians.len() > 1 {
        let of_loads = Spread::of(medians.iter().copied())?;
        return Some(of_loads.std? / f64::from(of_loads.n).sqrt());
    }
    if sorted.len() < MIN_ENCLOSING {
        return None;
    }
    let half = Z95 / (2.0 * (sorted.len() as f64).sqrt());
    let (low, high) = (percentile(sorted, 0.5 - half), percentile(sorted, 0.5 + half));
    Some((high - low) / (2.0 * Z95))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{percentile, std_error};

    #[test]
    fn a_median_has_an_error_by_its_loads_or_by_the_values_of_one() {
        // Standard deviation 2 of four medians.
        let loads = [9.0, 9.0, 9.0, 13.0];
        assert_eq!(std_error(&[1.0, 99.0], &loads), Some(1.0));
        assert_eq!(std_error(&[1.0; 5], &[1.0]), None, "too few values");
        assert_eq!(std_error(&[3.0; 6], &[3.0]), Some(0.0));
        // Uniform values: 1 / (2 f sqrt(n)) with the density f = 1 / 100, for 100 values 5.
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        let error = std_error(&values, &[50.5]).unwrap();
        assert!((error - 5.0).abs() < 0.1, "{error}");
    }

    proptest! {
        #[test]
        fn the_error_of_a_median_has_the_scale_of_its_values_and_no_place(
            mut values in prop::collection::vec(1.0..100.0_f64, 6..80), scale in 0.1..10.0_f64,
        ) {
            values.sort_unstable_by(f64::total_cmp);
            let error = std_error(&values, &[1.0]).unwrap();
            let moved: Vec<f64> = values.iter().map(|it| scale * it + 7.0).collect();
            prop_assert!(error >= 0.0 && error <= values[values.len() - 1] - values[0]);
            prop_assert!((std_error(&moved, &[1.0]).unwrap() - scale * error).abs() < 1e-9);
        }
    }

    #[test]
    fn percentiles_are_those_of_numpy() {
        let values: Vec<f64> = (1..=11).map(f64::from).collect();
        let found = [0.5, 0.9, 0.99].map(|share| percentile(&values, share));
        assert_eq!(found, [6.0, 10.0, 10.9]);
        assert_eq!(percentile(&[4.0], 0.99), 4.0);
        assert_eq!(percentile(&[1.0, 2.0], 0.5), 1.5);
    }
}

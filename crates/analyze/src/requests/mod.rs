//! Requests of a load: latencies of each, their percentiles, and findings.

mod findings;
mod percentiles;
mod steps;
mod window;

use serde::{Deserialize, Serialize};

pub use self::{
    findings::findings,
    percentiles::{LatencyMetric, LatencyRecord, LatencyTally, LoadRecord, LoadTally},
    steps::join,
    window::window_findings,
};
use llmprof_core::{
    domain::units::Nanos,
    trace::requests::{LoadPass, RequestFailure, RequestLoad, RequestRecord},
};

/// One request of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RequestRow {
    pub pass: LoadPass,
    pub repeat: u32,
    /// From 0, in the order of the intended times.
    pub request: u64,
    /// Intended time since the start of the load, from which latencies count.
    pub start_ms: f64,
    /// From the intended time to the sending: the client's own delay.
    pub send_delay_ms: f64,
    /// Time to first token; `null` without a token.
    pub first_token_ms: Option<f64>,
    /// `(last token - first token) / (output tokens - 1)`; `null` below two tokens.
    pub token_ms: Option<f64>,
    /// To the end of the response, or to the failure.
    pub end_ms: f64,
    /// Tokens as the server counts them; `null` if it does not.
    pub prompt_tokens: Option<u64>,
    /// Those that the server counts, else the events with output.
    pub output_tokens: u64,
    pub requested_tokens: u32,
    /// Reason of the end that the server states.
    #[cfg_attr(feature = "schema", schema(example = "length"))]
    pub finish: Option<String>,
    /// HTTP status; `null` without a response.
    pub status: Option<u16>,
    /// `null` for a complete response.
    pub failure: Option<RequestFailure>,
    /// Reason of the failure.
    pub message: Option<String>,
}

/// Requests and percentiles of all loads of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Requests {
    pub rows: Vec<RequestRow>,
    pub latency: Vec<LatencyRecord>,
    pub loads: Vec<LoadRecord>,
}

impl Requests {
    /// A latency of the load without a profiler.
    pub fn unprofiled(&self, metric: LatencyMetric) -> Option<&LatencyRecord> {
        let is_it = |it: &&LatencyRecord| it.pass == LoadPass::Unprofiled && it.metric == metric;
        self.latency.iter().find(is_it)
    }
}

/// The tables of the loads of a run.
pub fn requests(loads: &[RequestLoad]) -> Requests {
    let mut tables = Requests::default();
    for pass in LoadPass::ALL {
        let mut tally = LatencyTally::default();
        for load in loads.iter().filter(|load| load.pass == *pass) {
            let mut own = LoadTally::default();
            for record in &load.requests {
                tally.add(record);
                own.add(record);
                tables.rows.push(row(*pass, load.repeat, record));
            }
            tally.end_load();
            tables.loads.extend(own.record(*pass, load.repeat, load.header.as_ref()));
        }
        tables.latency.extend(tally.records(*pass));
    }
    tables
}

fn row(pass: LoadPass, repeat: u32, record: &RequestRecord) -> RequestRow {
    let since = |ns: i64| Nanos(ns.saturating_sub(record.intended_ns)).as_ms();
    RequestRow {
        pass,
        repeat,
        request: record.request,
        start_ms: Nanos(record.intended_ns).as_ms(),
        send_delay_ms: since(record.sent_ns),
        first_token_ms: record.first_token_ns.map(since),
        token_ms: token_ms(record),
        end_ms: since(record.ended_ns),
        prompt_tokens: record.prompt_tokens,
        output_tokens: record.output_tokens(),
        requested_tokens: record.requested_tokens,
        finish: record.finish.clone(),
        status: record.status,
        failure: record.failure,
        message: record.message.clone(),
    }
}

/// Time per output token after the first one.
fn token_ms(record: &RequestRecord) -> Option<f64> {
    let (first, last) = (record.token_ns.first()?, record.token_ns.last()?);
    let gaps = record.output_tokens().checked_sub(1).filter(|gaps| *gaps > 0)?;
    Some(Nanos(last.saturating_sub(*first)).as_ms() / gaps as f64)
}

#[cfg(test)]
mod tests;

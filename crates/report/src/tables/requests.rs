//! Requests of the loads of a server, and percentiles of their latencies.

use llmprof_analyze::{
    Analysis,
    requests::{LatencyRecord, LoadRecord, RequestRow},
};
use llmprof_core::trace::requests::RequestFailure;

use super::{
    report_table::ReportTable,
    schema::{TableColumn, count, id, millis, number, summed, text},
};

const SHOWN: [&str; 10] = [
    "pass",
    "repeat",
    "request",
    "start_ms",
    "first_token_ms",
    "token_ms",
    "end_ms",
    "prompt_tokens",
    "output_tokens",
    "failure",
];

/// Columns of [`RequestRow`].
pub fn columns() -> Vec<TableColumn<RequestRow>> {
    vec![
        text("pass", "Pass", |it| it.pass.as_str().into()),
        id("repeat", "Repeat", |it| it.repeat.into()),
        id("request", "Request", |it| it.request.into()),
        millis("start_ms", "Start ms", |it| it.start_ms.into()),
        millis("send_delay_ms", "Own delay ms", |it| it.send_delay_ms.into()),
        millis("first_token_ms", "First token ms", |it| it.first_token_ms.into()),
        millis("token_ms", "Per token ms", |it| it.token_ms.into()),
        millis("end_ms", "End to end ms", |it| it.end_ms.into()),
        summed(count("prompt_tokens", "Prompt tokens", |it| it.prompt_tokens.into())),
        summed(count("output_tokens", "Output tokens", |it| it.output_tokens.into())),
        summed(count("requested_tokens", "Requested", |it| it.requested_tokens.into())),
        text("finish", "Finish", |it| (&it.finish).into()),
        id("status", "Status", |it| it.status.map(u32::from).into()),
        text("failure", "Failure", |it| it.failure.map(RequestFailure::as_str).into()),
        text("message", "Message", |it| (&it.message).into()),
    ]
}

/// Columns of [`LatencyRecord`].
pub fn latency_columns() -> Vec<TableColumn<LatencyRecord>> {
    vec![
        text("pass", "Pass", |it| it.pass.as_str().into()),
        text("metric", "Latency", |it| it.metric.as_str().into()),
        count("n", "Values", |it| it.n.into()),
        millis("mean_ms", "Mean ms", |it| it.mean_ms.into()),
        millis("p50_ms", "p50 ms", |it| it.p50_ms.into()),
        millis("p90_ms", "p90 ms", |it| it.p90_ms.into()),
        millis("p99_ms", "p99 ms", |it| it.p99_ms.into()),
        millis("max_ms", "Max ms", |it| it.max_ms.into()),
        count("loads", "Loads", |it| it.loads.into()),
        millis("std_error_ms", "Error of p50 ms", |it| it.std_error_ms.into()),
    ]
}

/// Columns of [`LoadRecord`].
pub fn load_columns() -> Vec<TableColumn<LoadRecord>> {
    vec![
        text("pass", "Pass", |it| it.pass.as_str().into()),
        id("repeat", "Repeat", |it| it.repeat.into()),
        summed(count("complete", "Complete", |it| it.complete.into())),
        summed(count("failed", "Failed", |it| it.failed.into())),
        summed(count("output_tokens", "Output tokens", |it| it.output_tokens.into())),
        millis("ms", "Ms", |it| it.ms.into()),
        number("requests_per_s", "Requests/s", 2, |it| it.requests_per_s.into()),
        number("tokens_per_s", "Tokens/s", 1, |it| it.tokens_per_s.into()),
        count("concurrency", "At the same time", |it| it.concurrency.map(u64::from).into()),
        number("rate_per_s", "Arrive/s", 2, |it| it.rate_per_s.into()),
    ]
}

/// Requests in the order of passes, repeats and their ends.
pub fn requests(analysis: &Analysis) -> ReportTable {
    let caption = "Requests of the load; latencies count from the intended time of each.";
    ReportTable::of("requests", "Requests", caption, (&columns(), &SHOWN), &analysis.requests.rows)
}

/// Requests and rates of each load.
pub fn request_loads(analysis: &Analysis) -> ReportTable {
    let caption = "Loads, from the first intended time of a request to the last end.";
    let columns = load_columns();
    let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
    let loads = &analysis.requests.loads;
    ReportTable::of("request-loads", "Loads", caption, (&columns, &names), loads)
}

/// Percentiles of the latencies of each pass.
pub fn request_latency(analysis: &Analysis) -> ReportTable {
    let caption = "Latencies of complete responses, as the client measured them. inter_token is \
                   the time between two events with output; time_per_output_token uses the \
                   server's count of tokens. Those of the traced pass include tracing overhead.";
    let columns = latency_columns();
    let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
    let latency = &analysis.requests.latency;
    ReportTable::of("request-latency", "Request Latency", caption, (&columns, &names), latency)
}

//! Requests of a load on a server, as its client measured them: lines of `requests.jsonl`.
//!
//! Times are nanoseconds of the client's monotonic clock since the start of the load; the first
//! line has that start in wall-clock time and on the clock of the host.

use serde::{Deserialize, Serialize};

use crate::domain::named_values::named_values;

/// One line of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LoadLine {
    Load(LoadHeader),
    Request(RequestRecord),
    End(LoadEnd),
}

named_values! {
    /// The pass in which a load ran.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    LoadPass {
        /// The unprofiled pass.
        Unprofiled = "unprofiled",
        /// Under nsys, before its recording.
        BeforeWindow = "before_window",
        /// The pass under nsys; of a window, the load in which it was recorded.
        Traced = "traced",
        /// Under nsys, after its recording.
        AfterWindow = "after_window",
    }
}

/// The load of one repeat of a pass.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestLoad {
    pub pass: LoadPass,
    /// From 0, in the pass.
    pub repeat: u32,
    /// Absent if its line is missing or damaged.
    pub header: Option<LoadHeader>,
    pub requests: Vec<RequestRecord>,
}

/// The load as requested, and its start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadHeader {
    pub url: String,
    /// `null` if the request names no model.
    pub model: Option<String>,
    /// Requests at the same time, of a closed loop.
    pub concurrency: Option<u32>,
    /// Mean arrivals per second, of an open loop.
    pub rate_per_s: Option<f64>,
    pub seed: u64,
    /// Start of the load: nanoseconds since 1970, and of `CLOCK_MONOTONIC` of the host.
    pub started_unix_ns: i64,
    pub started_monotonic_ns: i64,
}

/// One request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// From 0, in the order of the intended times.
    pub request: u64,
    /// Time at which the load intended to send it; latencies count from here.
    pub intended_ns: i64,
    pub sent_ns: i64,
    /// Arrival of the first output token; absent without one.
    pub first_token_ns: Option<i64>,
    /// End of the response, or the failure.
    pub ended_ns: i64,
    /// Arrival of each event with output; an event can have several tokens.
    #[serde(default)]
    pub token_ns: Vec<i64>,
    pub status: Option<u16>,
    pub failure: Option<RequestFailure>,
    /// Reason of the failure, from the server if it gave one.
    pub message: Option<String>,
    /// Reason of the end that the server stated: `stop`, `length`.
    pub finish: Option<String>,
    /// `max_tokens` of the request.
    pub requested_tokens: u32,
    /// Counts that the server stated in `usage`.
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
}

impl RequestRecord {
    /// Output tokens: those that the server counted, else the events with output.
    pub fn output_tokens(&self) -> u64 {
        self.completion_tokens.unwrap_or(self.token_ns.len() as u64)
    }
}

/// End of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadEnd {
    pub ended_ns: i64,
    /// True if a signal ended the load before its last request.
    pub is_stopped: bool,
}

named_values! {
    /// Reason why a request has no complete response.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    RequestFailure {
        /// No connection, or the connection broke before the response.
        Connection = "connection",
        /// A status other than 2xx.
        Status = "status",
        /// A response that is not a stream of events.
        NotAStream = "not_a_stream",
        /// An event that is not JSON of the API.
        Unreadable = "unreadable",
        /// An event or a response above the limits of size.
        TooLarge = "too_large",
        /// The server reported an error within the stream.
        ServerError = "server_error",
        /// The stream ended before its last event.
        EndedEarly = "ended_early",
        /// A complete stream without output.
        NoTokens = "no_tokens",
        /// No end of the response within the time limit.
        Timeout = "timeout",
        /// The load was stopped while the request was under way.
        Stopped = "stopped",
    }
}

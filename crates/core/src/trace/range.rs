//! NVTX ranges as a tool recorded them.

/// A named interval of host time on a thread. Push/pop ranges nest; start/end ranges may cross
/// threads.
#[derive(Debug, Clone, PartialEq)]
pub struct Range {
    /// Empty for the default domain.
    pub domain: String,
    pub name: String,
    /// Nanoseconds since the start of the capture.
    pub start_ns: i64,
    /// `None` when the capture ended before the range did.
    pub end_ns: Option<i64>,
    /// Global thread id of nsys: process and thread.
    pub global_tid: i64,
    pub push_pop: bool,
}

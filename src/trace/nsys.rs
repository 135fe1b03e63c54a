//! What one nsys export holds, as plain values.

use super::{kernel::Kernel, range::Range};

/// One nsys capture. A table that the export lacks is an empty list: `tables` tells which were there.
#[derive(Debug, Clone, Default)]
pub struct NsysTrace {
    /// As the export says: `2022.4.2.1-df9881f` or the like.
    pub tool_version: Option<String>,
    pub schema_version: Option<String>,
    pub tables: Vec<String>,
    /// Names, referred to by index.
    pub strings: Vec<String>,
    pub ranges: Vec<Range>,
    pub kernels: Vec<Kernel>,
    /// CUDA runtime and driver calls.
    pub cuda_calls: Vec<ApiCall>,
    /// Operating system calls that blocked or took long, as nsys traces them.
    pub os_calls: Vec<ApiCall>,
    /// What the tool itself complained of, worst first.
    pub diagnostics: Vec<String>,
}

/// A traced call on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiCall {
    /// Index into [`NsysTrace::strings`].
    pub name: u32,
    pub start_ns: i64,
    pub end_ns: i64,
    pub global_tid: i64,
    /// Joins the call to what it launched; 0 without.
    pub correlation_id: i64,
}

//! Kernels as they ran on a device.

/// One kernel on the device, joined to the call that launched it.
#[derive(Debug, Clone, PartialEq)]
pub struct Kernel {
    /// Short name: the function, without template arguments and parameters.
    pub name: u32,
    /// Full demangled name. Both index [`super::nsys::NsysTrace::strings`].
    pub full_name: u32,
    pub device: u32,
    pub stream: u32,
    pub start_ns: i64,
    pub end_ns: i64,
    pub global_pid: i64,
    pub correlation_id: i64,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub registers: u32,
    pub graph_node: Option<u64>,
}

//! Categories of events.

/// Category of an event.
pub enum Category {
    Kernel,
    Copy,
    Fill,
    Call,
    Operator,
    Range,
    /// The work of a range on a stream.
    DeviceRange,
    Frame,
    /// Own work of the profiler.
    Overhead,
    /// Target of a wait, whose call is another event.
    Wait,
    /// Known, and recorded by other events, too: flows.
    Redundant,
    Unknown,
}

impl Category {
    /// Versions before 1.13 write `Kernel`, `Runtime` and `Operator`.
    pub fn of(text: &str) -> Self {
        match text {
            "kernel" | "Kernel" => Self::Kernel,
            "gpu_memcpy" | "Memcpy" => Self::Copy,
            "gpu_memset" | "Memset" => Self::Fill,
            "cuda_runtime" | "cuda_driver" | "Runtime" => Self::Call,
            "cpu_op" | "Operator" => Self::Operator,
            "user_annotation" => Self::Range,
            "gpu_user_annotation" => Self::DeviceRange,
            "python_function" => Self::Frame,
            "overhead" => Self::Overhead,
            "cuda_sync" => Self::Wait,
            "ac2g"
            | "async_cpu_to_gpu"
            | "async_gpu"
            | "fwdbwd"
            | "forward_backward"
            | "cuda_event"
            | "Trace"
            | "cpu_instant_event"
            | "cuda_profiler_range" => Self::Redundant,
            _ => Self::Unknown,
        }
    }
}

//! Categories of events, and kinds of copies.

use llmprof_core::trace::timeline::CopyKind;

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
    /// The time that the profiler recorded.
    Window,
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
            "Trace" => Self::Window,
            "ac2g"
            | "async_cpu_to_gpu"
            | "async_gpu"
            | "fwdbwd"
            | "forward_backward"
            | "cuda_event"
            | "cpu_instant_event"
            | "cuda_profiler_range" => Self::Redundant,
            _ => Self::Unknown,
        }
    }
}

/// Direction of a copy: `Memcpy HtoD (Pageable -> Device)`.
pub fn direction(name: &str) -> CopyKind {
    [
        ("HtoD", CopyKind::HostToDevice),
        ("DtoH", CopyKind::DeviceToHost),
        ("DtoD", CopyKind::DeviceToDevice),
    ]
    .into_iter()
    .find(|(text, _)| name.contains(text))
    .map_or(CopyKind::Other, |(_, kind)| kind)
}

/// True if the host's side is pageable memory, by the same name; `None` if it shows no kind.
pub fn is_pageable(name: &str) -> Option<bool> {
    let known = ["Pageable", "Pinned", "Managed"].into_iter().find(|kind| name.contains(kind));
    known.map(|kind| kind == "Pageable")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_shows_the_direction_of_a_copy_and_the_memory_of_the_host() {
        for (name, kind, memory) in [
            ("Memcpy HtoD (Pageable -> Device)", CopyKind::HostToDevice, Some(true)),
            ("Memcpy DtoH (Device -> Pinned)", CopyKind::DeviceToHost, Some(false)),
            ("Memcpy DtoD (Device -> Device)", CopyKind::DeviceToDevice, None),
            ("Memcpy", CopyKind::Other, None),
        ] {
            assert_eq!((direction(name), is_pageable(name)), (kind, memory), "{name}");
        }
    }
}

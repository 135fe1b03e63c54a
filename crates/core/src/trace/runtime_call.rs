//! Kinds of calls of the runtime and driver of CUDA and HIP, by their names.
//!
//! One table for every rule about calls: launches and losses, captures of graphs, reasons of gaps.
//! Names: <https://docs.nvidia.com/cuda/cuda-runtime-api/modules.html> and
//! <https://rocm.docs.amd.com/projects/HIP/en/latest/reference/hip_runtime_api_reference.html>.

/// Kind of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// Launches one kernel.
    Kernel,
    /// Launches a graph.
    Graph,
    BeginCapture,
    EndCapture,
    /// Copies or fills memory; an asynchronous one returns before that is done.
    Copy {
        is_async: bool,
    },
    Fill {
        is_async: bool,
    },
    /// Returns when earlier work has finished.
    Synchronise(Awaited),
    /// Asks whether work has finished; a loop of them is a wait.
    Query,
    /// Loads or links code, or allocates memory, as a program does before it is warm.
    Prepare,
    /// Belongs to a known family, and concerns no rule.
    Other,
    /// Belongs to no known family: it may launch or wait.
    Unknown,
}

/// The work that a synchronisation waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    Stream,
    /// All of a device, or of a context.
    Device,
    /// All before an event.
    Event,
}

/// Starts of names without `cuda`, `cu` or `hip`; the first that fits decides.
const CALLS: [(&str, CallKind); 35] = [
    ("LaunchKernel", CallKind::Kernel),
    ("LaunchCooperativeKernel", CallKind::Kernel),
    ("GraphLaunch", CallKind::Graph),
    ("StreamBeginCapture", CallKind::BeginCapture),
    ("StreamEndCapture", CallKind::EndCapture),
    ("Memcpy", CallKind::Copy { is_async: false }),
    ("Memset", CallKind::Fill { is_async: false }),
    ("DeviceSynchronize", CallKind::Synchronise(Awaited::Device)),
    ("StreamSynchronize", CallKind::Synchronise(Awaited::Stream)),
    ("EventSynchronize", CallKind::Synchronise(Awaited::Event)),
    ("CtxSynchronize", CallKind::Synchronise(Awaited::Device)),
    ("ThreadSynchronize", CallKind::Synchronise(Awaited::Device)),
    ("EventQuery", CallKind::Query),
    ("StreamQuery", CallKind::Query),
    // HIP only.
    ("ModuleLaunchKernel", CallKind::Kernel),
    ("ModuleLaunchCooperativeKernel", CallKind::Kernel),
    ("ExtLaunch", CallKind::Kernel),
    ("ExtModuleLaunchKernel", CallKind::Kernel),
    ("HccModuleLaunchKernel", CallKind::Kernel),
    ("LaunchByPtr", CallKind::Kernel),
    ("DrvLaunchKernel", CallKind::Kernel),
    ("DrvMemcpy", CallKind::Copy { is_async: false }),
    // Before CUDA 10.
    ("Launch_", CallKind::Kernel),
    ("LaunchGrid", CallKind::Kernel),
    ("LaunchHostFunc", CallKind::Other),
    ("Module", CallKind::Prepare),
    ("Library", CallKind::Prepare),
    ("Link", CallKind::Prepare),
    ("Malloc", CallKind::Prepare),
    ("ExtMalloc", CallKind::Prepare),
    ("MemAlloc", CallKind::Prepare),
    ("MemCreate", CallKind::Prepare),
    ("MemHostAlloc", CallKind::Prepare),
    ("HostAlloc", CallKind::Prepare),
    ("HostMalloc", CallKind::Prepare),
];
/// Starts of the names of all other calls, without the same. With them all names in the headers of
/// CUDA 13.0 are known, but functions of the device.
const FAMILIES: [&str; 53] = [
    "Array",
    "Bind",
    "Checkpoint",
    "Choose",
    "Configure",
    "Coredump",
    "Create",
    "Ctx",
    "D3D",
    "Destroy",
    "Dev",
    "Driver",
    "Drv",
    "EGL",
    "Event",
    "Ext",
    "Flush",
    "Free",
    "Func",
    "GL",
    "Get",
    "Graph",
    "Green",
    "Host",
    "Import",
    "Init",
    "Ipc",
    "Kernel",
    "Logs",
    "Mem",
    "Mipmapped",
    "Multicast",
    "Occupancy",
    "Param",
    "Peek",
    "Pointer",
    "Pop",
    "Profiler",
    "Push",
    "Register",
    "Runtime",
    "Set",
    "Signal",
    "Stream",
    "Surf",
    "Tensor",
    "Tex",
    "Thread",
    "Unbind",
    "Unregister",
    "User",
    "VDPAU",
    "Wait",
];

/// The name of a call without its version: `cudaHostAlloc` of `cudaHostAlloc_v3020`.
pub fn without_version(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((name, version)) if version.bytes().all(|it| it.is_ascii_digit()) => name,
        _ => name,
    }
}

/// True for a call of HIP, which runs on GPUs of AMD.
pub fn is_hip(name: &str) -> bool {
    name.trim_start_matches('_').starts_with("hip")
}

/// True for a call that makes a stream wait: `cudaStreamWaitEvent`, `hipStreamWaitEvent`.
pub fn holds_stream(name: &str) -> bool {
    name.contains("StreamWaitEvent")
}

/// True for a call that loads code: `cuLibraryLoadData`, `hipModuleLoad`.
pub fn loads_code(name: &str) -> bool {
    name.contains("LibraryLoad") || name.contains("ModuleLoad")
}

impl CallKind {
    /// Classifies a call, with or without a version: `cudaLaunchKernelExC_v11060`, `cuGraphLaunch`,
    /// `hipModuleLaunchKernel`.
    pub fn of(name: &str) -> Self {
        let prefixes = ["cuda", "cu", "hip"];
        // `__hipPushCallConfiguration`
        let name = name.trim_start_matches('_');
        let Some(name) = prefixes.iter().find_map(|it| name.strip_prefix(it)) else {
            return Self::Unknown;
        };
        let is_async = name.contains("Async");
        match CALLS.iter().find(|(start, _)| name.starts_with(start)).map(|it| it.1) {
            Some(Self::Copy { .. }) => Self::Copy { is_async },
            Some(Self::Fill { .. }) => Self::Fill { is_async },
            Some(found) => found,
            // Before CUDA 10.
            None if name == "Launch" => Self::Kernel,
            // A launch or a wait of a new name may be of a known family.
            None if ["Launch", "Synchronize"].iter().any(|it| name.contains(it)) => Self::Unknown,
            None if FAMILIES.iter().any(|it| name.starts_with(it)) => Self::Other,
            None => Self::Unknown,
        }
    }

    /// Returns whether it launches work that a stream under capture records instead of running it.
    pub fn is_launch(self) -> bool {
        matches!(self, Self::Kernel | Self::Graph)
    }

    /// Returns whether it starts or ends a capture.
    pub fn bounds_capture(self) -> bool {
        matches!(self, Self::BeginCapture | Self::EndCapture)
    }

    /// Returns whether the host waits for the device in it, or asks in a loop.
    pub fn waits(self) -> bool {
        matches!(self, Self::Synchronise(_) | Self::Query)
    }

    /// Returns whether it copies or fills memory.
    pub fn writes_memory(self) -> bool {
        matches!(self, Self::Copy { .. } | Self::Fill { .. })
    }

    /// Returns whether it returns only after all earlier device work has finished.
    pub fn finishes_earlier_work(self) -> bool {
        matches!(self, Self::Synchronise(_) | Self::Copy { is_async: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_cuda_and_hip_are_one_table() {
        let kinds = [
            (
                CallKind::Kernel,
                &["cudaLaunchKernel_v7000", "cuLaunchKernelEx", "hipLaunchKernel"][..],
            ),
            (CallKind::Kernel, &["hipExtModuleLaunchKernel", "hipModuleLaunchKernel"]),
            (CallKind::Kernel, &["cudaLaunchCooperativeKernel_v9000", "hipExtLaunchKernel"]),
            (CallKind::Graph, &["cudaGraphLaunch_v10000", "cuGraphLaunch", "hipGraphLaunch"]),
            (CallKind::BeginCapture, &["cudaStreamBeginCapture_v10000", "hipStreamBeginCapture"]),
            (CallKind::EndCapture, &["cuStreamEndCapture", "hipStreamEndCapture"]),
            (
                CallKind::Synchronise(Awaited::Device),
                &["cudaDeviceSynchronize_v3020", "cuCtxSynchronize"],
            ),
            (CallKind::Synchronise(Awaited::Stream), &["hipStreamSynchronize"]),
            (CallKind::Synchronise(Awaited::Event), &["cudaEventSynchronize_v3020"]),
            (CallKind::Query, &["cudaEventQuery_v3020", "hipStreamQuery"]),
            (CallKind::Copy { is_async: true }, &["cudaMemcpyAsync_v3020", "cuMemcpyDtoHAsync_v2"]),
            (CallKind::Copy { is_async: false }, &["cudaMemcpy_v3020", "hipMemcpyWithStream"]),
            (CallKind::Fill { is_async: true }, &["cudaMemsetAsync_v3020", "hipMemsetAsync"]),
            (CallKind::Kernel, &["cudaLaunch_v3020", "cuLaunchGridAsync"]),
            (CallKind::Kernel, &["hipExtLaunchMultiKernelMultiDevice", "hipDrvLaunchKernelEx"]),
            (CallKind::Kernel, &["cuLaunch", "hipHccModuleLaunchKernel", "cudaLaunchKernel_ptsz"]),
            (CallKind::Prepare, &["cudaMalloc_v3020", "hipMalloc", "cuLibraryLoadData"]),
            (CallKind::Other, &["cudaLaunchHostFunc_v10000", "cudaStreamWaitEvent_v3020"]),
            (CallKind::Other, &["cuTensorMapEncodeTiled", "hipGetDevicePropertiesR0600"]),
            (CallKind::Other, &["cudaWaitExternalSemaphoresAsync", "__hipPushCallConfiguration"]),
            (CallKind::Unknown, &["LaunchKernel", "", "cuda", "INVALID", "cudaGraphNodeLaunch"]),
            (CallKind::Unknown, &["cuTileLaunch", "hipStreamBatchSynchronize"]),
        ];
        for (kind, names) in kinds {
            for name in names {
                assert_eq!(CallKind::of(name), kind, "{name}");
            }
        }
    }

    #[test]
    fn a_call_is_of_hip_loads_code_or_holds_a_stream_by_its_name() {
        for (name, expected) in [
            ("hipLaunchKernel", [true, false, false]),
            ("__hipPushCallConfiguration", [true, false, false]),
            ("hipModuleLoad", [true, true, false]),
            ("hipStreamWaitEvent", [true, false, true]),
            ("cudaStreamWaitEvent_v3020", [false, false, true]),
            ("cuLibraryLoadData", [false, true, false]),
            ("cudaLaunchKernel_v7000", [false, false, false]),
            ("ship", [false, false, false]),
        ] {
            assert_eq!([is_hip(name), loads_code(name), holds_stream(name)], expected, "{name}");
        }
    }
}

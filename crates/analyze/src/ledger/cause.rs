//! The causes of the ledger: floor, reasons for the time above it, and what no evidence explains.

use llmprof_core::{domain::named_values::named_values, trace::collectives::CollectiveKind};

use crate::timeline::{activity, gpu::split::GapReason};

named_values! {
    /// A row of the ledger, in the order in which rows are listed and causes are assigned.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    LedgerCause {
        /// The time that the stage needs at least.
        Floor = "floor",
        /// Time above the median of launches that take far longer than others of their kernel,
        /// grid and block.
        LongLaunches = "long_launches",
        /// Copies, fills and casts that no operator needs.
        CopiesAndCasts = "copies_and_casts",
        /// Kernels of collective operations until the last rank has started.
        CollectiveWait = "collective_wait",
        /// Kernels of collective operations from then on.
        CollectiveTransfer = "collective_transfer",
        /// Kernels of collective operations that are not joined across ranks.
        Collectives = "collectives",
        /// More bytes of device memory than necessary.
        MoreBytes = "more_bytes",
        /// Matrix products without tensor cores, or in a dtype with a lower ceiling.
        TensorCores = "tensor_cores",
        /// Parts of GEMM tiles without results.
        Tiles = "tiles",
        /// Too few blocks to fill the GPU: in the last wave, or in the whole grid.
        Waves = "waves",
        /// Instructions other than the operator's products keep the SMs busy.
        Instructions = "instructions",
        /// Traffic of caches and memory beyond the floor in products: weights and other operands.
        OperandTraffic = "operand_traffic",
        /// The same of other kernels: activations between kernels.
        MemoryTraffic = "memory_traffic",
        /// Warps wait, and no unit is at its roof.
        Latency = "latency",
        /// Gaps while the profiler worked for itself, which no change of the program saves.
        ProfilerOverhead = "profiler_overhead",
        /// Gaps in which the first recorded work of a stream, already launched, waited. The capture
        /// does not record the reason, so no change of the program is known to save them.
        UnrecordedWait = "unrecorded_wait",
        /// Gaps before work whose launch the capture does not record, so no change of the program
        /// is known to save them.
        GapUnknown = "gap_unknown",
        /// Gaps of at least a millisecond before work that was already launched: it waited for
        /// something that the capture does not record, so no change of the program is known to save
        /// them.
        GapWait = "gap_wait",
        /// Gaps in which the host was inside one call of at least a millisecond that launched
        /// nothing: it loads, tunes, compiles or allocates.
        GapLongCall = "gap_long_call",
        /// Gaps until the host called the launch.
        GapHost = "gap_host",
        /// Gaps while the launching call ran.
        GapLaunch = "gap_launch",
        /// The same if the call launched a graph.
        GapGraphLaunch = "gap_graph_launch",
        /// Gaps while the host waited in the driver.
        GapSync = "gap_sync",
        /// Gaps while the host copied.
        GapCopy = "gap_copy",
        /// Gaps between two nodes of one launch of a CUDA graph.
        GapInGraph = "gap_in_graph",
        /// Gaps before work that was launched earlier.
        GapQueued = "gap_queued",
        /// Time in which only work ran that the stage did not launch: of another process, of
        /// another stage, or of no stage.
        OtherStages = "other_stages",
        /// Time without evidence of a cause.
        Unexplained = "unexplained",
        /// Unprofiled time minus traced time.
        PassDifference = "pass_difference",
    }
}

impl LedgerCause {
    /// True for a cause of time above the floor.
    pub fn is_cause(self) -> bool {
        !matches!(self, Self::Floor | Self::Unexplained | Self::PassDifference)
    }

    /// Name of a graph that was traced as a whole, among the kernels of members and rows.
    pub const WHOLE_GRAPH: &str = activity::WHOLE_GRAPH;

    /// The remedy for a row whose largest kernel shows more than the cause: sends and receives are
    /// between the stages of a pipeline, whose bubble they are, or an exchange between all ranks.
    pub fn remedy_by(self, largest: Option<&str>) -> Option<&'static str> {
        let is_collective =
            matches!(self, Self::CollectiveWait | Self::CollectiveTransfer | Self::Collectives);
        let kind = largest.filter(|_| is_collective).and_then(CollectiveKind::of_kernel);
        (kind == Some(CollectiveKind::SendReceive)).then_some(
            "Between the stages of a pipeline it is the bubble: keep more batches in flight than \
             it has stages, and divide the layers so that all stages take as long. In an \
             all-to-all, give all ranks as many tokens, and exchange them while other work runs.",
        )
    }

    /// The cause of an idle gap.
    pub const fn of_gap(reason: GapReason) -> Self {
        match reason {
            GapReason::Profiler => Self::ProfilerOverhead,
            GapReason::LongCall => Self::GapLongCall,
            GapReason::Host => Self::GapHost,
            GapReason::Launch => Self::GapLaunch,
            GapReason::GraphLaunch => Self::GapGraphLaunch,
            GapReason::Sync => Self::GapSync,
            GapReason::Copy => Self::GapCopy,
            GapReason::InGraph => Self::GapInGraph,
            GapReason::Queued => Self::GapQueued,
            GapReason::Unrecorded => Self::UnrecordedWait,
            GapReason::Wait => Self::GapWait,
            GapReason::Unknown => Self::GapUnknown,
        }
    }

    /// True for idle time in which the GPU waited for the host.
    pub const fn is_of_host(self) -> bool {
        matches!(
            self,
            Self::GapLongCall
                | Self::GapHost
                | Self::GapLaunch
                | Self::GapGraphLaunch
                | Self::GapSync
                | Self::GapCopy
        )
    }

    /// True for time that the recording adds, or whose reason lies before it.
    pub const fn is_of_recording(self) -> bool {
        matches!(self, Self::ProfilerOverhead | Self::UnrecordedWait)
    }

    /// True if a kernel still runs without this cause: its launch still takes time.
    pub const fn keeps_kernel(self) -> bool {
        matches!(
            self,
            Self::LongLaunches
                | Self::MoreBytes
                | Self::TensorCores
                | Self::Tiles
                | Self::Waves
                | Self::Instructions
                | Self::OperandTraffic
                | Self::Latency
        )
    }

    /// True for idle time of the GPU by the program.
    pub fn is_gap(self) -> bool {
        (Self::GapLongCall..=Self::GapQueued).contains(&self)
    }

    /// True for idle time of the GPU, by the program or not.
    pub fn is_idle(self) -> bool {
        let is_unknown = matches!(self, Self::GapUnknown | Self::GapWait);
        self.is_gap() || self.is_of_recording() || is_unknown
    }

    /// The cause in words, in tables, charts and findings.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Floor => "the floor",
            Self::LongLaunches => "single launches far longer than others of their kernel",
            Self::CopiesAndCasts => "copies, fills and casts",
            Self::CollectiveWait => "waiting for other ranks in collective operations",
            Self::CollectiveTransfer => "transfer of collective operations",
            Self::Collectives => "collective operations",
            Self::MoreBytes => "more bytes than necessary",
            Self::TensorCores => "products without the tensor cores' rate",
            Self::Tiles => "partial tiles",
            Self::Waves => "too few blocks to fill the GPU",
            Self::Instructions => "instructions besides the products",
            Self::OperandTraffic => "reading of weights and other operands",
            Self::MemoryTraffic => "traffic of activations",
            Self::Latency => "latency that the warps do not hide",
            Self::ProfilerOverhead => "the profiler's own work",
            Self::UnrecordedWait => "a wait from before the recording",
            Self::GapUnknown => "gaps whose reason is not recorded",
            Self::GapWait => "waits for something that is not recorded",
            Self::GapLongCall => "long calls of the host",
            Self::GapHost => "gaps in which the host launched nothing",
            Self::GapLaunch => "gaps while launching",
            Self::GapGraphLaunch => "gaps while launching a graph",
            Self::GapSync => "gaps in synchronising calls",
            Self::GapCopy => "gaps in copying calls",
            Self::GapInGraph => "gaps inside a replayed graph",
            Self::GapQueued => "gaps before work already launched",
            Self::OtherStages => "work that the stage did not launch",
            Self::Unexplained => "unexplained",
            Self::PassDifference => "difference of the passes",
        }
    }
}

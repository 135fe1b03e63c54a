//! Collective operations that programs on several GPUs execute together, as recorded.
//!
//! Fields that a capture lacks are absent. The names of operations are data:
//! `conf/collectives.toml`.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use super::{framework::LaunchMap, timeline::process_of};
use crate::domain::named_values::named_values;

named_values! {
    /// A collective operation.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    CollectiveKind {
        AllReduce = "all_reduce",
        AllGather = "all_gather",
        ReduceScatter = "reduce_scatter",
        AllToAll = "all_to_all",
        Broadcast = "broadcast",
        Reduce = "reduce",
        Gather = "gather",
        Scatter = "scatter",
        Barrier = "barrier",
        /// Between two ranks.
        SendReceive = "send_receive",
        /// The name is unknown, or belongs to a kernel for any operation.
        Other = "other",
    }
}

/// Largest size of an operation that is believed, bytes: more than all memory of a cluster.
const MAX_BYTES: u64 = 1 << 50;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OperationsFile {
    prefixes: Vec<String>,
    operation: Vec<Operation>,
    element_bytes: BTreeMap<String, u64>,
    kernel_dtypes: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Operation {
    kind: CollectiveKind,
    kernels: Vec<String>,
    pytorch: Vec<String>,
    factor: Option<BusFactor>,
    all_ranks: bool,
}

/// Bus bandwidth over algorithm bandwidth, of `n` ranks.
#[derive(Debug, Clone, Copy, Deserialize)]
enum BusFactor {
    #[serde(rename = "2(n-1)/n")]
    Twice,
    #[serde(rename = "(n-1)/n")]
    Others,
    #[serde(rename = "1")]
    One,
}

static KNOWN: LazyLock<OperationsFile> = LazyLock::new(|| {
    toml::from_str(include_str!("../../../../conf/collectives.toml"))
        .expect("the embedded operations parse: a test reads all of them")
});

impl CollectiveKind {
    fn operation(self) -> Option<&'static Operation> {
        KNOWN.operation.iter().find(|it| it.kind == self)
    }

    /// The operation of a kernel of NCCL by the base of its name; `None` for other kernels.
    pub fn of_kernel(name: &str) -> Option<Self> {
        let rest = KNOWN.prefixes.iter().find_map(|prefix| name.strip_prefix(prefix.as_str()))?;
        // `Reduce` is a prefix of `ReduceScatter`: the longest name counts.
        let length = |it: &Operation| {
            let names = it.kernels.iter().filter(|name| rest.starts_with(name.as_str()));
            names.map(String::len).max()
        };
        let known = KNOWN.operation.iter().filter_map(|it| Some((length(it)?, it.kind)));
        Some(known.max_by_key(|(length, _)| *length).map_or(Self::Other, |(_, kind)| kind))
    }

    /// The operation by PyTorch's `Collective name`.
    pub fn of_pytorch(name: &str) -> Self {
        let is_named = |it: &&Operation| it.pytorch.iter().any(|known| known == name);
        KNOWN.operation.iter().find(is_named).map_or(Self::Other, |it| it.kind)
    }

    /// True if no rank can end before every rank has started.
    pub fn needs_all_ranks(self) -> bool {
        self.operation().is_some_and(|it| it.all_ranks)
    }

    /// Bus bandwidth over algorithm bandwidth; `None` if no rate is defined.
    pub fn bus_factor(self, ranks: usize) -> Option<f64> {
        let n = ranks as f64;
        let factor = self.operation()?.factor.filter(|_| ranks > 1)?;
        Some(match factor {
            BusFactor::Twice => 2.0 * (n - 1.0) / n,
            BusFactor::Others => (n - 1.0) / n,
            BusFactor::One => 1.0,
        })
    }
}

/// Name and element size of a dtype by PyTorch's name; `None` for an unknown one.
pub fn dtype(name: &str) -> Option<(&'static str, u64)> {
    KNOWN.element_bytes.get_key_value(name).map(|(name, bytes)| (name.as_str(), *bytes))
}

/// The dtype of a kernel of NCCL that reduces, by the base of its name; `None` if the name has
/// none.
pub fn dtype_of_kernel(name: &str) -> Option<&'static str> {
    CollectiveKind::of_kernel(name)?;
    let known = name.split('_').find_map(|part| KNOWN.kernel_dtypes.get(part))?;
    dtype(known).map(|(name, _)| name)
}

/// A group of ranks.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CollectiveGroup {
    pub name: String,
    /// Purpose, as the program states it: `tensor_parallel`.
    pub description: String,
    /// Ranks of the group among all; empty if they are not recorded, or cut.
    pub ranks: Vec<u32>,
    pub size: Option<u32>,
}

/// The parameters of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectiveCall {
    /// Index into [`Collectives::groups`].
    pub group: u32,
    pub kind: CollectiveKind,
    /// Number of the call in its group.
    pub sequence: Option<u64>,
    pub in_elements: Option<u64>,
    pub out_elements: Option<u64>,
    pub dtype: Option<&'static str>,
}

impl CollectiveCall {
    /// Size of the whole array, bytes: of what a rank reads and writes the larger.
    pub fn bytes(&self) -> Option<u64> {
        let elements = self.in_elements.max(self.out_elements)?;
        let (_, bytes) = dtype(self.dtype?)?;
        elements.checked_mul(bytes).filter(|it| (1..=MAX_BYTES).contains(it))
    }
}

/// Place of a process among the program's processes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessRank {
    pub rank: Option<u32>,
    pub world_size: Option<u32>,
    /// `nccl`, `gloo`.
    pub backend: Option<String>,
    /// The file that recorded it: processes of one file share a clock.
    pub file: u32,
    /// The process, if this is a further recording window of it with a number of its own.
    pub window_of: Option<i64>,
}

/// The collective operations of a timeline.
#[derive(Debug, Clone, Default)]
pub struct Collectives {
    pub groups: Vec<CollectiveGroup>,
    pub calls: Vec<CollectiveCall>,
    /// Indices into `calls` by launch.
    pub launches: LaunchMap,
    /// By process id of the timeline; none for processes without a record.
    pub processes: BTreeMap<i64, ProcessRank>,
    /// Operations that ran on the host, by library: `gloo`.
    pub on_host: BTreeMap<String, u64>,
}

impl Collectives {
    /// The recorded call of a launch.
    pub fn call(&self, process: i64, correlation: i64) -> Option<&CollectiveCall> {
        self.calls.get(self.launches.get(process, correlation)? as usize)
    }

    /// The process of a global id, which has one number for all of its recording windows. Launches
    /// and threads keep the number of their window.
    pub fn owner(&self, global_id: i64) -> i64 {
        let process = process_of(global_id);
        self.processes.get(&process).and_then(|it| it.window_of).unwrap_or(process)
    }

    /// The recorded processes, each once.
    pub fn owners(&self) -> impl Iterator<Item = &ProcessRank> {
        self.processes.values().filter(|it| it.window_of.is_none())
    }

    /// The file that recorded a process.
    pub fn file(&self, process: i64) -> u32 {
        self.processes.get(&process).map_or(0, |it| it.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_of_all_versions_of_nccl_name_their_operation() {
        use CollectiveKind::*;
        for (name, kind) in [
            ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", Some(AllReduce)),
            ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", Some(ReduceScatter)),
            ("ncclDevKernel_Reduce_Sum_f32_RING_LL", Some(Reduce)),
            ("ncclDevKernel_AllGather_RING_LL", Some(AllGather)),
            ("ncclDevKernel_Broadcast_RING_LL", Some(Broadcast)),
            ("ncclDevKernel_SendRecv", Some(SendReceive)),
            ("ncclDevKernel_Generic_4", Some(Other)),
            ("ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16", Some(AllReduce)),
            ("ncclSymkDevKernel_AllGather_STMC", Some(AllGather)),
            ("ncclKernel_AllReduce_RING_LL_Sum_float", Some(AllReduce)),
            ("ncclAllReduceRingLLKernel_sum_f32", Some(AllReduce)),
            ("reduce_kernel", None),
            ("myncclKernel", None),
        ] {
            assert_eq!(CollectiveKind::of_kernel(name), kind, "{name}");
        }
    }

    #[test]
    fn kernels_that_reduce_name_their_dtype() {
        for (name, expected) in [
            ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", Some("BFloat16")),
            ("ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16", Some("BFloat16")),
            ("ncclKernel_AllReduce_RING_LL_Sum_float", Some("Float")),
            ("ncclDevKernel_AllReduce_Sum_u32_RING_LL", None),
            ("ncclDevKernel_AllGather_RING_LL", None),
            ("cast_f32", None),
        ] {
            assert_eq!(dtype_of_kernel(name), expected, "{name}");
        }
        let names = KNOWN.kernel_dtypes.values();
        assert!(names.into_iter().all(|name| dtype(name).is_some()));
    }

    #[test]
    fn names_of_pytorch_are_kinds_and_others_are_unknown() {
        use CollectiveKind::*;
        for (name, kind) in [
            ("allreduce", AllReduce),
            ("_allgather_base", AllGather),
            ("_reduce_scatter_base", ReduceScatter),
            ("all_to_allv", AllToAll),
            ("barrier", Barrier),
            ("send", SendReceive),
            ("", Other),
            ("ALLREDUCE", Other),
        ] {
            assert_eq!(CollectiveKind::of_pytorch(name), kind, "{name}");
        }
    }

    #[test]
    fn factors_are_those_of_nccl() {
        use CollectiveKind::*;
        let of = |kind: CollectiveKind, ranks| kind.bus_factor(ranks);
        assert_eq!((of(AllReduce, 8), of(AllReduce, 2)), (Some(1.75), Some(1.0)));
        assert_eq!([AllGather, ReduceScatter, AllToAll].map(|it| of(it, 4)), [Some(0.75); 3]);
        assert_eq!([Broadcast, Reduce].map(|it| of(it, 4)), [Some(1.0); 2]);
        assert_eq!([Barrier, SendReceive, Other].map(|it| of(it, 4)), [None; 3]);
        assert_eq!((of(AllReduce, 1), of(AllReduce, 0)), (None, None));
    }

    #[test]
    fn a_size_needs_elements_and_a_known_dtype_and_is_possible() {
        let call = |in_elements, out_elements, dtype| CollectiveCall {
            group: 0,
            kind: CollectiveKind::AllGather,
            sequence: None,
            in_elements,
            out_elements,
            dtype,
        };
        assert_eq!(call(Some(8), Some(16), Some("BFloat16")).bytes(), Some(32));
        assert_eq!(call(Some(8), None, Some("Float")).bytes(), Some(32));
        assert_eq!(call(None, None, Some("Float")).bytes(), None);
        assert_eq!(call(Some(8), Some(8), None).bytes(), None);
        assert_eq!(call(Some(0), Some(0), Some("Float")).bytes(), None);
        assert_eq!(call(Some(u64::MAX), None, Some("Float")).bytes(), None);
        assert_eq!(call(Some(1 << 50), None, Some("Float")).bytes(), None);
        assert_eq!(dtype("Quantised"), None);
    }

    #[test]
    fn every_kind_but_the_unknown_is_described() {
        for kind in CollectiveKind::ALL {
            assert_eq!(kind.operation().is_some(), *kind != CollectiveKind::Other, "{kind}");
        }
    }
}

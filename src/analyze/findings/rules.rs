//! The rules as data: what each fires on, how much it matters, what to do, and what that saves at most.
//!
//! `specs/findings.md` is this table, written down; a test holds it to the code. Ids are stable: programs know rules by them.

pub use super::rule::Rule;
use super::{kernels, time};
use crate::{
    analyze::{graphs, invariants, power},
    run::Severity,
};

use Severity::{Critical, Info, Warning};

/// Every rule, in the order in which findings of one severity are told.
pub const RULES: &[Rule] = &[
    Rule::new(
        "no_stages",
        Critical,
        ["the plain pass closed no measured stage", "Look at the baseline step's log.", ""],
        super::nothing_measured,
    ),
    Rule::new(
        "runner_unfinished",
        Warning,
        ["the runner's events lack their last line", "Look at the baseline step's log for why it ended.", ""],
        super::runner_unfinished,
    ),
    Rule::new(
        "repeats_differ",
        Warning,
        ["repeats of the plain pass have different outputs", "Look for operators whose order of summation varies.", ""],
        super::outputs_differ,
    ),
    Rule::new(
        "outputs_differ",
        Critical,
        ["the traced pass has other tokens or logits than the plain one", "Do not attribute the capture to the timed run.", ""],
        super::outputs_differ,
    ),
    Rule::new(
        "mfu_impossible",
        Critical,
        ["a use above 101 % of a ceiling", "Check the device's name, the number format and the ceiling's operand sizes.", ""],
        |analysis, _| analysis.mfu.findings.clone(),
    ),
    Rule::new(
        "roofline_impossible",
        Critical,
        [
            "a profiled kernel above 101 % of the datasheet's roof",
            "Do not use this figure: check the device's name and peaks, and that the pages are of this device.",
            "",
        ],
        |analysis, _| analysis.roofline.findings.clone(),
    ),
    Rule::new(
        "ceiling_surpassed",
        Info,
        [
            "an operator above 101 % of the measured matrix product",
            "Its use of that ceiling is not told: the product measured is slower than what the device can do, or the time too short to tell.",
            "",
        ],
        |analysis, _| analysis.mfu.findings.clone(),
    ),
    Rule::new(
        "capture_incomplete",
        Warning,
        [
            "the capture lacks the range of a stage that a runner timed",
            "Take the capture again; update nsys to the driver's version.",
            "",
        ],
        super::capture_incomplete,
    ),
    Rule::new(
        "capture_times_impossible",
        Warning,
        [
            "rows of the capture have no times, end before they start, or lie more than 73 years from its clock's zero",
            "They were left out. Export the report again; if it stays so, take the capture again.",
            "",
        ],
        super::capture_incomplete,
    ),
    Rule::new(
        "kernels_unattributed",
        Warning,
        ["kernels of the capture have no launching call", "Trace the CUDA API as well, from the start of the process.", ""],
        super::coverage,
    ),
    Rule::new(
        "kernels_lost",
        Critical,
        [
            "fewer than 99 % of the launches of a stage have their kernel in the capture",
            "Figures over the kernels of the stage are withheld: export or record again with a newer nsys.",
            "",
        ],
        super::coverage,
    ),
    Rule::new(
        "range_not_found",
        Critical,
        [
            "a rule of the run names a range that the capture lacks",
            "Correct the name where the run's stages and included ranges are set.",
            "",
        ],
        super::range_not_found,
    ),
    Rule::new(
        "range_unclosed",
        Warning,
        [
            "a range of the capture has no end",
            "Close the range in the program, or record until it ends; times of it are not given.",
            "",
        ],
        super::unclosed,
    ),
    Rule::new(
        "figure_impossible",
        Warning,
        [
            "a figure lies outside what it can be: shares, counters, clocks, work that starts before its launch",
            "The figure is left out: look at the cause that the finding names.",
            "",
        ],
        invariants::findings,
    ),
    Rule::new(
        "graphs_traced_whole",
        Info,
        ["CUDA graphs of a stage were traced as a whole", graphs::REMEDY, ""],
        graphs::findings,
    ),
    Rule::new(
        "overhead_high",
        Warning,
        [
            "a traced stage takes over 25 % longer than the plain one",
            "Read proportions from the capture, not times; submit with mode light.",
            "",
        ],
        super::overhead_high,
    ),
    Rule::new("few_repeats", Info, ["fewer than 3 measured repeats", "Submit with 3 repeats or more.", ""], super::few_repeats),
    Rule::new(
        "high_variance",
        Warning,
        [
            "a stage's standard deviation over repeats is above 10 % of its mean",
            "Raise warmup and repeats, and keep other work off the device.",
            "",
        ],
        super::high_variance,
    ),
    Rule::new(
        "warmup_short",
        Warning,
        [
            "the first repeat of a stage takes at least 1.2 times the slowest of two or more others",
            "Raise warmup: what is done once is timed with the rest.",
            "the stage's mean less the mean of the other repeats",
        ],
        time::warmup_short,
    ),
    Rule::new(
        "cold_first_instance",
        Info,
        [
            "where no warm-up is marked, the first instance of a stage takes at least 1.5 times the median of the others, not on the \
             device, and does something for the first time",
            "It counts as warm-up. Warm up before anything is recorded.",
            "",
        ],
        super::cold,
    ),
    Rule::new(
        "stage_dominates",
        Info,
        ["one stage takes at least 1.2 times as long as the other", "Work on the longer stage first.", ""],
        super::dominant_stage,
    ),
    Rule::new(
        "operator_dominates",
        Info,
        [
            "one operator takes at least 20 % of a stage, and 1.2 times the next",
            "Fuse it, reshape it or change its algorithm.",
            "the operator's own time",
        ],
        super::dominant_operator,
    ),
    Rule::new(
        "time_between_operators",
        Warning,
        [
            "on a CPU, a runner's operators cover less than 90 % of a stage's time",
            "Look for copies and small loops on the host.",
            "the time outside operators",
        ],
        super::uncovered_time,
    ),
    Rule::new(
        "experts_collapsed",
        Warning,
        [
            "layers hit less than half the experts of an even router",
            "Balance the router: decode looks cheaper than with trained weights.",
            "",
        ],
        super::experts_collapsed,
    ),
    Rule::new(
        "expert_imbalance",
        Info,
        [
            "of three layers or more, one hits less than 70 % as many experts as the middle one",
            "Look at that layer's router: fewer weights are read there than elsewhere.",
            "",
        ],
        time::expert_imbalance,
    ),
    Rule::new(
        "cost_disagrees",
        Warning,
        [
            "counted FLOPs differ from the architecture's by more than 0.1 %",
            "An operator is missing from the records or from the cost model.",
            "",
        ],
        super::cost_disagrees,
    ),
    Rule::new(
        "no_datasheet_peak",
        Info,
        ["no peak of the device and number format is known", "Add the device to conf/devices.toml with its source.", ""],
        super::no_peaks,
    ),
    Rule::new(
        "no_measured_peak",
        Info,
        ["the runner measured no ceiling", "Let the run finish: ceilings are measured last.", ""],
        super::no_peaks,
    ),
    Rule::new(
        "no_kernel_data",
        Info,
        ["there are no kernels", "Run on a host with an NVIDIA GPU and nsys.", ""],
        super::no_kernels,
    ),
    Rule::new(
        "decode_launch_bound",
        Warning,
        [
            "the GPU is idle during 30 % or more of the traced decode, and of the unprofiled one where it was timed",
            "Replay decode as a CUDA graph, or fuse operators: the device waits for launches.",
            "decode's time in which the GPU is idle",
        ],
        time::decode_launch_bound,
    ),
    Rule::new(
        "decode_eager",
        Warning,
        [
            "each decode step of the traced pass launches 50 kernels or more, and no graph is replayed",
            "Replay decode as a CUDA graph: one launch a step.",
            "decode's time in which the GPU is idle",
        ],
        time::decode_eager,
    ),
    Rule::new(
        "decode_far_from_bandwidth",
        Warning,
        [
            "decode takes at least twice what reading its weights and cached keys and values once per step takes",
            "Look at gaps between kernels, then at kernels that stay below the device's bandwidth.",
            "decode's time less that floor",
        ],
        time::decode_far_from_bandwidth,
    ),
    Rule::new(
        "prefill_far_from_compute",
        Warning,
        [
            "prefill takes at least twice what its FLOPs, or its weights, need at the device's ceilings",
            "Look at the longest kernels: whether products are large enough, and what runs between them.",
            "prefill's time less that floor",
        ],
        time::prefill_far_from_compute,
    ),
    Rule::new(
        "vision_dominates_prefill",
        Info,
        [
            "vision takes at least 50 % of prefill",
            "Send smaller pages or fewer crops, or keep the vectors of pages that come again.",
            "vision's time",
        ],
        time::vision_dominates_prefill,
    ),
    Rule::new(
        "load_dominates",
        Info,
        ["loading takes at least 10 passes and 5 seconds", "Keep the process alive between requests: loading is paid once.", ""],
        time::load_dominates,
    ),
    Rule::new(
        "low_occupancy",
        Warning,
        [
            "a profiled kernel of at least 5 % of its stage keeps less than 25 % of warps resident, and SM and memory below 60 %",
            "Use smaller tiles or fewer registers, or give it more blocks.",
            "the kernel's own time on the critical path",
        ],
        kernels::low_occupancy,
    ),
    Rule::new(
        "low_l2_hit",
        Warning,
        [
            "a profiled kernel of at least 5 % of its stage hits L2 for less than half of its accesses, with device memory at 50 % or more",
            "Order its blocks so that neighbours read the same data, and look at strides that are not coalesced.",
            "the kernel's own time on the critical path",
        ],
        kernels::low_l2_hit,
    ),
    Rule::new(
        "tensor_cores_idle",
        Warning,
        [
            "a matrix kernel of prefill of at least 5 % uses tensor cores less than 10 % of the time",
            "Use a number format and sizes that tensor cores take (bf16 or f16, multiples of 8).",
            "the kernel's own time on the critical path",
        ],
        kernels::tensor_cores_idle,
    ),
    Rule::new(
        "latency_bound",
        Info,
        [
            "one reason stalls at least half of the warps of a profiled kernel of at least 5 %, with SM and device memory below 60 %",
            "Give it more independent work per thread, or fuse it with its neighbours.",
            "the kernel's own time on the critical path",
        ],
        kernels::latency_bound,
    ),
    Rule::new(
        "at_memory_roof",
        Info,
        [
            "a profiled kernel of at least 5 % of its stage uses device memory at 80 % or more of what it sustains, and SM less",
            "Fewer bytes are the only gain: a smaller number format, fusion with its neighbours, reuse over a batch.",
            "the kernel's own time on the critical path",
        ],
        kernels::at_memory_roof,
    ),
    Rule::new(
        "at_compute_roof",
        Info,
        [
            "a profiled kernel of at least 5 % of its stage uses the multiprocessors at 80 % or more of what they sustain, and memory no more",
            "Fewer operations or a smaller number format are the only gain.",
            "the kernel's own time on the critical path",
        ],
        kernels::at_compute_roof,
    ),
    Rule::new(
        "tensor_work_uncounted",
        Info,
        [
            "profiled kernels of at least 5 % of a stage used tensor cores whose operations were not counted",
            "Ask ncu for sm__ops_path_tensor_src_* too, as mode deep does, where the device has them.",
            "",
        ],
        kernels::tensor_work_uncounted,
    ),
    Rule::new(
        "cast_share",
        Warning,
        [
            "kernels named as conversions take at least 5 % of a stage's kernel time",
            "Keep one number format through the chain.",
            "their own time on the critical path",
        ],
        kernels::cast_share,
    ),
    Rule::new(
        "kv_cache_copies",
        Warning,
        [
            "kernels that join tensors take at least 5 % of decode's kernel time, and no graph is replayed",
            "Write keys and values in place into a cache of fixed size.",
            "their own time on the critical path",
        ],
        kernels::kv_cache_copies,
    ),
    Rule::new(
        "tiny_kernels",
        Info,
        [
            "of 100 launches or more in a stage, 80 % are shorter than 5 microseconds",
            "Fuse them: each costs a launch.",
            "their own time on the critical path",
        ],
        kernels::tiny_kernels,
    ),
    Rule::new(
        "name_collisions",
        Info,
        [
            "kernels with different full names share a short name that takes 10 % of a stage",
            "Read its row as a sum; the full names are in the capture.",
            "",
        ],
        kernels::name_collisions,
    ),
    Rule::new(
        "host_sync_in_decode",
        Warning,
        [
            "the host synchronises twice or more per decode step",
            "Keep sampled tokens on the device, and wait once per step or less.",
            "the time in those calls in which the GPU is idle",
        ],
        kernels::host_sync_in_decode,
    ),
    Rule::new(
        "memcpy_share",
        Warning,
        [
            "calls that copy memory take at least 5 % of a stage's host time",
            "Keep data on the device; copy from pinned memory, beside the work.",
            "the time in those calls in which the GPU is idle",
        ],
        kernels::memcpy_share,
    ),
    Rule::new(
        "gemm_small",
        Info,
        [
            "products with fewer than 16 rows are at least 10 % of a stage's products by operations",
            "Batch requests: weights are read for few rows.",
            "",
        ],
        kernels::gemm_small,
    ),
    Rule::new(
        "gemm_tiles_unfilled",
        Info,
        [
            "a product of 16 rows or more and at least 10 % of a stage's products fills less than 75 % of the 128 x 128 tiles that cover it",
            "Pad or batch to sizes that fill tiles, or let the library choose smaller ones.",
            "",
        ],
        kernels::gemm_tiles_unfilled,
    ),
    Rule::new(
        "gemm_log_empty",
        Warning,
        ["the GEMM log holds no product", "Look at the files below gemm_log/: the runner may use another library.", ""],
        |analysis, _| analysis.gemms.findings.clone(),
    ),
    Rule::new(
        "gemm_stages_unknown",
        Warning,
        ["the log of prefill is no beginning of the log of both stages", "Take the logs again with the same settings.", ""],
        |analysis, _| analysis.gemms.findings.clone(),
    ),
    Rule::new(
        "gemm_calls_incomplete",
        Info,
        ["the GEMM log holds calls that cannot be read", "Look at the log below gemm_log/.", ""],
        |analysis, _| analysis.gemms.findings.clone(),
    ),
    Rule::new("gemm_log_cut", Warning, ["a GEMM log is longer than what is read", "Ask for fewer tokens.", ""], |analysis, _| {
        analysis.gemms.findings.clone()
    }),
    Rule::new(
        "gpu_throttled",
        Warning,
        [
            "the clocks were held back during part of a stage",
            "Do what the reasons ask for: power limit, cooling, power supply.",
            "",
        ],
        |analysis, _| analysis.power.iter().flat_map(power::findings).collect(),
    ),
    Rule::new(
        "power_of_whole_gpu",
        Info,
        ["the run was on an instance of a GPU (MIG)", "Keep the GPU's other instances idle where energy matters.", ""],
        |analysis, _| analysis.power.iter().flat_map(power::findings).collect(),
    ),
];

//! Passes and formulas of the figures of tables.
//!
//! As in specs/formulas.md. A figure without an entry has no formula here: none is made up.

use crate::mcp::{arguments::invalid, service_api::ApiRefusal};

/// The pass that measured a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FigureSource {
    /// The unprofiled pass; of a run without one, the traced pass.
    Timed,
    /// The timeline.
    Traced,
    /// Counters of kernels.
    Counters,
    /// Samples of the GPU's metrics.
    Samples,
    /// Logs of the libraries of matrix products, and the timeline.
    GemmLog,
    /// Arithmetic over several passes, or the pass that the row names.
    Derived,
    /// The request, the host, or a computation on them; no pass measured it.
    Stated,
}

impl FigureSource {
    /// The steps whose files have the figure's data.
    pub fn steps(self, has_baseline: bool) -> &'static [&'static str] {
        match self {
            Self::Timed if has_baseline => &["baseline"],
            Self::Timed | Self::Traced => &["nsys", "torch_profiler"],
            Self::Counters => &["ncu"],
            Self::Samples => &["gpu_metrics"],
            Self::GemmLog => &["gemm_log", "nsys", "torch_profiler"],
            Self::Derived => &["baseline", "nsys", "torch_profiler", "gpu_metrics", "ncu"],
            Self::Stated => &[],
        }
    }
}

/// The pass of a column of a table.
pub fn source(table: &str, column: &str) -> FigureSource {
    let is_of_device = column.starts_with("device.");
    match table {
        _ if column.starts_with("counters.") => FigureSource::Counters,
        "aggregates" | "stages" | "stage_notes" | "step_times" | "operator_repeats" | "samples"
        | "sample_spread" | "power.stages" | "memory" | "experts" | "model.images"
        | "roofline.roofs" => FigureSource::Timed,
        "costs.modules" | "environment.gpus" | "inputs" | "steps" => FigureSource::Stated,
        "operators" | "operators_by_path" if !is_of_device => FigureSource::Timed,
        "counters" if column.starts_with("timeline_") || column == "unlike_ms" => {
            FigureSource::Traced
        }
        "counters" => FigureSource::Counters,
        "gemms" => FigureSource::GemmLog,
        "roofline.points" | "mfu" | "operator_mfu" | "ledger" | "ledger_members"
        | "ledger_stages" | "overhead" | "findings" | "requests" | "request_latency"
        | "request_loads" => FigureSource::Derived,
        "step_batches" if matches!(column, "floor_ms" | "times_floor") => FigureSource::Derived,
        "gpu_sample_coverage" => FigureSource::Samples,
        _ if table.starts_with("sampled") => FigureSource::Samples,
        _ => FigureSource::Traced,
    }
}

/// The formula of a column of a table, and of a ledger by its cause.
pub fn formula(table: &str, column: &str, cause: Option<&str>) -> Option<&'static str> {
    let is_ledger = table == "ledger" || table == "ledger_members";
    match (table, column) {
        _ if is_ledger && matches!(column, "ns" | "step_ns") => of_cause(cause?),
        _ if is_ledger && column == "max_saving_ns" => Some(
            "the cause's time, at most the time in which the kernel ran alone; a kernel that stays \
             saves at most its time above its launches, and all gaps at most the idle time that \
             the unprofiled pass can have; if ranks wait for one another, on the rank with the \
             most",
        ),
        _ if is_ledger && column == "share_pct" => {
            Some("100 x time of the cause / measured time of the stage")
        }
        ("ledger_stages", "floor_ns") => Some(
            "sum over operators of max(FLOPs / ceiling of the dtype, necessary bytes / bandwidth), \
             each at most the time of its kernels",
        ),
        ("ledger_stages", "times_floor") => Some("measured_ns / floor_ns"),
        ("step_batches", "floor_ms") => Some(
            "sum over operators of max(FLOPs / ceiling of the dtype, necessary bytes / bandwidth), \
             for one decode step of the row's requests and mean context",
        ),
        ("step_batches", "times_floor") => Some("p50_ms / floor_ms"),
        ("ledger_stages", "measured_ns") => Some(
            "mean over the unprofiled repeats = floor + causes + unexplained + difference of the \
             passes",
        ),
        ("mfu" | "operator_mfu", "datasheet_pct" | "measured_pct" | "clocked_pct") => {
            Some("required FLOPs / (time x peak FLOP/s)")
        }
        (
            "mfu" | "operator_mfu",
            "datasheet_bandwidth_pct" | "measured_bandwidth_pct" | "clocked_bandwidth_pct",
        ) => Some("operand bytes / (time x peak bytes/s)"),
        ("roofline.points", "flops_per_byte") => Some("FLOPs / bytes of device memory"),
        ("roofline.points", "datasheet_pct" | "measured_pct") => {
            Some("FLOP/s / min(peak FLOP/s, FLOPs per byte x peak bytes/s)")
        }
        ("roofline.points", "bound") => Some(
            "latency if SM and memory are both below 60 % of their sustained rate, else the busier \
             of compute and memory",
        ),
        ("gemms", "flops_per_call") => Some("2 x batch x m x n x k; 8 of complex operands"),
        ("gemms", "flops_per_s") => {
            Some("FLOPs of a call x launches / time of the kernels, reductions of split k included")
        }
        ("gemms", "tile_fill_pct") => {
            Some("100 x m n k / the same sides rounded up to whole tiles")
        }
        ("kernels" | "kernels_full", "total_ms") => {
            Some("sum over launches of end - start on the device")
        }
        ("kernels" | "kernels_full", "mean_ms") => Some("total_ms / calls"),
        ("aggregates", _) => of_aggregate(column),
        _ => None,
    }
}

/// The formula of a figure of the aggregates.
fn of_aggregate(path: &str) -> Option<&'static str> {
    Some(match path {
        "first_token_ms" => "mean over repeats of the time of prefill",
        "per_token_ms" => "time of decode / decode steps; the mean is all time / all steps",
        "wall_ms" => "mean over repeats, from the start of the first stage to the end of the last",
        "tokens_per_s" => "mean over repeats of all generated tokens / wall time",
        "medians.ttft_ms" => "median over repeats of the time of prefill",
        "medians.tpot_ms" => "median over repeats of the time of decode / decode steps",
        "medians.wall_ms" => {
            "median over repeats, from the start of the first stage to the end of the last"
        }
        "medians.tokens_per_s" => "median over repeats of all generated tokens / wall time",
        _ => return None,
    })
}

/// The formula of a cause's time.
fn of_cause(cause: &str) -> Option<&'static str> {
    Some(match cause {
        "floor" => "sum over operators of max(FLOPs / ceiling, necessary bytes / bandwidth)",
        "collective_wait" => "time of the kernel's launches until the last rank started",
        "collective_transfer" => "time of the kernel's launches after the last rank started",
        "copies_and_casts" | "collectives" => "all time of these kernels and copies",
        "more_bytes" => {
            "(bytes moved - necessary bytes) / bandwidth of the operator, above its floor"
        }
        "tensor_cores" => "counted operations at the ceilings of the dtypes used, above the floor",
        "tiles" => "time x (1 - tile fill)",
        "waves" => {
            "time x (1 - waves / ceil(waves)), waves = blocks / (SMs x blocks per SM); without \
             counters 1 block per SM, only for grids with fewer blocks than SMs"
        }
        "instructions" => {
            "use of the SMs' busiest unit x min(time, duration of the replay), above floor, bytes \
             and tensor cores"
        }
        "operand_traffic" | "memory_traffic" => {
            "use of the memory system's busiest unit x min(time, duration of the replay), above \
             floor, bytes and tensor cores"
        }
        "latency" => "time x (1 - use of the busiest unit)",
        "profiler_overhead" => "idle time of the GPU in which the profiler recorded its own work",
        "unrecorded_wait" => {
            "idle time of the GPU in which the first recorded work of a stream, already launched, \
             waited for a reason that the capture does not record"
        }
        "gap_wait" => {
            "idle time of the GPU of at least 1 ms before work launched earlier, which waited for \
             something that the capture does not record"
        }
        "long_launches" => {
            "time above the median of launches that take more than ten times the median of their \
             kernel, grid and block, and at least 0.1 ms longer; needs at least eight launches"
        }
        "gap_unknown" => "idle time of the GPU before work whose launch is not recorded",
        "gap_long_call" => {
            "idle time of the GPU in which the host was inside one call of at least 1 ms that \
             launched nothing"
        }
        "gap_host" | "gap_launch" | "gap_graph_launch" | "gap_sync" | "gap_copy" => {
            "idle time of the GPU, by the call of the host at that time"
        }
        "gap_in_graph" | "gap_queued" => "idle time of the GPU before work launched earlier",
        "other_stages" => "time in which only work ran that the stage did not launch",
        "unexplained" => "time of the stage - floor - all causes - difference of the passes",
        "pass_difference" => "unprofiled time - traced time of the stage",
        _ => return None,
    })
}

/// Figures of the aggregates, as paths in the report.
const AGGREGATES: [&str; 9] = [
    "first_token_ms",
    "per_token_ms",
    "wall_ms",
    "tokens_per_s",
    "decode_tokens_per_s",
    "medians.ttft_ms",
    "medians.tpot_ms",
    "medians.wall_ms",
    "medians.tokens_per_s",
];

/// The path of a figure among the aggregates. The source of a headline figure depends on the run.
pub fn aggregate_path(figure: &str) -> Result<&'static str, ApiRefusal> {
    if let Some(path) = AGGREGATES.into_iter().find(|it| *it == figure) {
        return Ok(path);
    }
    Err(invalid(match figure {
        "ttft" => "ttft is a median: medians.ttft_ms of aggregates, or of a load p50_ms of \
             request_latency; its mean is first_token_ms of aggregates"
            .to_owned(),
        "tpot" => "tpot is a median: medians.tpot_ms of aggregates, of a load p50_ms of \
             request_latency, or of an engine period_ms or p50_ms of step_batches; its mean is \
             per_token_ms of aggregates"
            .to_owned(),
        "wall" => "wall is a median: medians.wall_ms of aggregates, or of a command \
             aggregates.command.plain_p50_ms of the report; its mean is wall_ms of aggregates"
            .to_owned(),
        _ => {
            let known = AGGREGATES.join(", ");
            format!("table aggregates has no column {figure:.60?}; it has {known}")
        }
    }))
}

#[cfg(test)]
mod tests {
    use llmprof_analyze::ledger::LedgerCause;

    use super::*;

    #[test]
    fn every_cause_of_the_ledger_has_a_formula() {
        for cause in LedgerCause::ALL {
            assert!(formula("ledger", "ns", Some(cause.as_str())).is_some(), "{}", cause.as_str());
        }
    }

    #[test]
    fn a_median_among_the_aggregates_is_never_answered_by_the_mean() {
        for figure in ["ttft", "tpot", "wall"] {
            let refusal = aggregate_path(figure).unwrap_err().message;
            let path = format!("medians.{figure}_ms");
            assert!(refusal.contains(&format!("{path} of aggregates")), "{refusal}");
            assert_eq!(aggregate_path(&path), Ok(path.as_str()));
        }
        for path in AGGREGATES.into_iter().filter(|it| *it != "decode_tokens_per_s") {
            let formula = formula("aggregates", path, None).unwrap();
            assert_eq!(formula.contains("median"), path.starts_with("medians."), "{path}");
        }
        assert!(aggregate_path("medians").is_err() && aggregate_path("stage_ms").is_err());
    }

    #[test]
    fn a_column_has_the_pass_that_measured_it() {
        assert_eq!(source("kernels", "total_ms"), FigureSource::Traced);
        assert_eq!(source("kernels", "counters.sm_pct"), FigureSource::Counters);
        assert_eq!(source("operators", "inclusive_ms"), FigureSource::Timed);
        assert_eq!(source("operators", "device.inclusive_ms"), FigureSource::Traced);
        for (table, column, expected) in [
            ("step_times", "p50_ms", FigureSource::Timed),
            ("samples", "wall_ms.mean", FigureSource::Timed),
            ("transfers", "bytes", FigureSource::Traced),
            ("engine_steps", "ms", FigureSource::Traced),
            ("step_batches", "p50_ms", FigureSource::Traced),
            ("step_batches", "times_floor", FigureSource::Derived),
            ("costs.modules", "prefill_flops", FigureSource::Stated),
            ("steps", "duration_ms", FigureSource::Stated),
            ("counters", "profiled", FigureSource::Counters),
            ("counters", "timeline_total_ms", FigureSource::Traced),
            ("gpu_sample_coverage", "samples", FigureSource::Samples),
            ("sampled_stages", "sm_pct", FigureSource::Samples),
            ("request_latency", "p99_ms", FigureSource::Derived),
        ] {
            assert_eq!(source(table, column), expected, "{table}.{column}");
        }
        assert!(FigureSource::Stated.steps(true).is_empty());
        assert_eq!(FigureSource::Timed.steps(false), FigureSource::Traced.steps(true));
        assert_eq!(formula("kernels", "grid", None), None);
    }
}

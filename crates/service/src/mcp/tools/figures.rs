//! Passes and formulas of the figures of tables.
//!
//! As in specs/formulas.md. A figure without an entry has no formula here: none is made up.

use llmprof_core::domain::headline::FigureName;

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
    if table == "ledger" || table == "ledger_members" {
        return of_ledger(column, cause);
    }
    match (table, column) {
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
        ("step_times", "p50_ms") => Some(
            "median of the steps' times; of an even number, the shorter of the two in the middle; \
             of the slowest process, if the processes differ",
        ),
        ("step_batches", "p50_ms") => Some(
            "median of the steps' times; of an even number, the shorter of the two in the middle",
        ),
        ("step_batches", "period_ms") => Some(
            "median of the times from the end of a step's work to the end of the next step's; of \
             an even number, the shorter of the two in the middle",
        ),
        ("request_latency", "p50_ms") => Some("median over the requests of the pass's loads"),
        ("request_latency", "std_error_ms") => Some(
            "standard deviation of the loads' medians / sqrt(loads); of one load, the 95 % \
             interval of the median by order statistics / (2 x 1.96)",
        ),
        ("request_loads", "tokens_per_s") => {
            Some("1000 x output_tokens / ms; of several loads, the sums over them")
        }
        ("aggregates", _) => aggregate_path(column)?.formula,
        _ => None,
    }
}

/// The formula of a column of a ledger or of its members.
fn of_ledger(column: &str, cause: Option<&str>) -> Option<&'static str> {
    match column {
        "ns" | "step_ns" => of_cause(cause?),
        "max_saving_ns" => Some(
            "the cause's time, at most the time in which the kernel ran alone; a kernel that stays \
             saves at most its time above its launches, and all gaps at most the idle time that \
             the unprofiled pass can have; if ranks wait for one another, on the rank with the \
             most",
        ),
        "gap_parts" => {
            Some("parts of gaps that the cause or member with most of the gap's time counts")
        }
        "share_pct" => Some("100 x time of the cause / measured time of the stage"),
        _ => None,
    }
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
            "idle time of the GPU in which the host was inside calls of at least 1 ms that \
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

/// A figure of the aggregates.
#[derive(Debug, PartialEq, Eq)]
pub struct AggregatePath {
    /// Path in the report.
    path: &'static str,
    /// The headline figure that it can stand for.
    pub headline: Option<FigureName>,
    formula: Option<&'static str>,
}

impl AggregatePath {
    /// Path of the record that has the number of repeats.
    pub fn record(&self) -> &'static str {
        if self.path == "command.plain_p50_ms" { "command.plain_ms" } else { self.path }
    }

    /// The end of a path to the single value of this record.
    fn statistic(&self) -> &'static str {
        match (self.path.starts_with("medians."), self.path.contains("p50")) {
            (true, _) => ".p50",
            (false, true) => "",
            (false, false) => ".mean",
        }
    }
}

const fn path(path: &'static str, headline: FigureName, formula: &'static str) -> AggregatePath {
    AggregatePath { path, headline: Some(headline), formula: Some(formula) }
}

static AGGREGATES: [AggregatePath; 11] = [
    path("first_token_ms", FigureName::Ttft, "mean over repeats of the time of prefill"),
    path(
        "per_token_ms",
        FigureName::Tpot,
        "time of decode / decode steps; the mean is all time / all steps",
    ),
    path(
        "wall_ms",
        FigureName::Wall,
        "mean over repeats, from the start of the first stage to the end of the last",
    ),
    path(
        "tokens_per_s",
        FigureName::TokensPerS,
        "mean over repeats of all generated tokens / wall time",
    ),
    AggregatePath { path: "decode_tokens_per_s", headline: None, formula: None },
    path("medians.ttft_ms", FigureName::Ttft, "median over repeats of the time of prefill"),
    path(
        "medians.tpot_ms",
        FigureName::Tpot,
        "median over repeats of the time of decode / decode steps",
    ),
    path(
        "medians.wall_ms",
        FigureName::Wall,
        "median over repeats, from the start of the first stage to the end of the last",
    ),
    path(
        "medians.tokens_per_s",
        FigureName::TokensPerS,
        "median over repeats of all generated tokens / wall time",
    ),
    path(
        "command.plain_ms",
        FigureName::Wall,
        "mean over the unprofiled repeats of the wall time of the whole command",
    ),
    path(
        "command.plain_p50_ms",
        FigureName::Wall,
        "median over the unprofiled repeats of the wall time of the whole command",
    ),
];

/// A figure that an agent requests of the aggregates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AggregateFigure {
    /// A headline figure, whose source depends on the run.
    Headline(FigureName),
    Path(&'static AggregatePath),
}

/// The figure of a path, which may end with its statistic: `medians.ttft_ms.p50`.
fn aggregate_path(figure: &str) -> Option<&'static AggregatePath> {
    let is_it = |it: &&AggregatePath| {
        let rest = figure.strip_prefix(it.path);
        rest.is_some_and(|rest| rest.is_empty() || rest == it.statistic())
    };
    AGGREGATES.iter().find(is_it)
}

/// The figure of this name among the aggregates.
pub fn aggregate_figure(figure: &str) -> Result<AggregateFigure, ApiRefusal> {
    let records = match figure.parse() {
        Ok(
            name
            @ (FigureName::Ttft | FigureName::Tpot | FigureName::Wall | FigureName::TokensPerS),
        ) => return Ok(AggregateFigure::Headline(name)),
        Ok(FigureName::GpuBusy) => "table stage_gpu and ms.mean of table stages",
        Ok(FigureName::Mfu) => "datasheet_pct of table mfu",
        Ok(FigureName::Energy) => "energy_j of table power.stages",
        Err(_) => {
            let unknown = || {
                let known: Vec<&str> = AGGREGATES.iter().map(|it| it.path).collect();
                invalid(format!(
                    "table aggregates has no column {figure:.60?}; it has ttft, tpot, wall, {}",
                    known.join(", ")
                ))
            };
            return aggregate_path(figure).map(AggregateFigure::Path).ok_or_else(unknown);
        }
    };
    Err(invalid(format!("{figure} is computed over the stages; request {records}")))
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
        for it in AGGREGATES.iter().filter(|it| it.headline.is_some()) {
            let is_median = it.path.starts_with("medians.") || it.path.contains("p50");
            let formula = formula("aggregates", it.path, None).unwrap();
            assert_eq!(formula.contains("median"), is_median, "{}", it.path);
        }
        let formula_of = |column| formula("aggregates", column, None);
        assert_eq!(formula_of("medians.ttft_ms.p50"), formula_of("medians.ttft_ms"));
        assert_eq!(formula_of("tokens_per_s.mean"), formula_of("tokens_per_s"));
        for absent in ["medians", "stage_ms", "first_token_ms.p50", "medians.ttft_ms.mean"] {
            assert!(aggregate_figure(absent).is_err(), "{absent}");
        }
    }

    #[test]
    fn every_headline_figure_is_found_by_its_name_or_its_table_is_named() {
        for name in FigureName::ALL {
            match aggregate_figure(name.as_str()) {
                Ok(found) => assert_eq!(found, AggregateFigure::Headline(*name)),
                Err(refusal) => assert!(refusal.message.contains("table "), "{refusal}"),
            }
        }
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

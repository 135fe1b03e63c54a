//! Source of a headline figure: the record of the report that stands for its run.

use llmprof_analyze::{
    requests::LoadRecord,
    stages::repeat_medians::{RepeatMedian, RepeatMedians},
    stats::{self, Spread},
};
use llmprof_core::{
    domain::headline::FigureName,
    trace::{engine_steps::StepClass, requests::LoadPass},
};
use serde_json::{Map, Value, json};

use super::{times, times::StatedTime, waits};
use crate::profile::{Aggregates, LLMProfileReport};

/// A headline figure with its place in the report.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadlineSource {
    pub value: f64,
    /// Table of the run, or `aggregates`.
    pub table: &'static str,
    /// Column of the table, or path in the aggregates.
    pub column: &'static str,
    /// Columns that identify the row, and its number of values.
    pub row: Map<String, Value>,
}

/// Paths of a median and a mean in the aggregates.
struct Paths {
    median: &'static str,
    mean: &'static str,
}

const TTFT: Paths = Paths { median: "medians.ttft_ms.p50", mean: "first_token_ms.mean" };
const TPOT: Paths = Paths { median: "medians.tpot_ms.p50", mean: "per_token_ms.mean" };
const WALL: Paths = Paths { median: "medians.wall_ms.p50", mean: "wall_ms.mean" };
const RATE: Paths = Paths { median: "medians.tokens_per_s.p50", mean: "tokens_per_s.mean" };

impl HeadlineSource {
    /// Source of a time or of the token rate; `None` if no record stands for the run. Other
    /// figures are computed from several records.
    pub fn of(report: &LLMProfileReport, name: FigureName) -> Option<Self> {
        let aggregates = &report.aggregates;
        match name {
            FigureName::Ttft => Some(of_time(times(report).first_token()?, &TTFT)),
            FigureName::Tpot => Some(of_time(times(report).per_token()?, &TPOT)),
            FigureName::Wall => of_command(aggregates)
                .or_else(|| over_repeats(aggregates, |it| it.wall_ms, aggregates.wall_ms, &WALL)),
            FigureName::TokensPerS => of_loads(&aggregates.loads).or_else(|| {
                let mean = aggregates.tokens_per_s;
                over_repeats(aggregates, |it| it.tokens_per_s, mean, &RATE)
                    .filter(|_| !waits(report).any())
            }),
            FigureName::GpuBusy | FigureName::Mfu | FigureName::Energy => None,
        }
    }

    /// True for the mean that a report of an earlier version has in place of the median.
    pub fn is_mean(&self) -> bool {
        self.column.ends_with(".mean")
    }

    fn new(value: f64, (table, column): (&'static str, &'static str), row: Value) -> Self {
        let row = if let Value::Object(row) = row { row } else { Map::new() };
        Self { value, table, column, row }
    }

    fn of_aggregates(value: f64, column: &'static str, n: Option<u32>) -> Self {
        Self::new(value, ("aggregates", column), json!({ "ms.n": n }))
    }
}

/// Reason why a time or rate of a report does not stand for its run, which has no
/// [`HeadlineSource`]; `None` if the report has no such time or rate.
pub fn why_unstated(report: &LLMProfileReport, name: FigureName) -> Option<String> {
    let has_steps = |class| times(report).has_steps(class);
    let aggregates = &report.aggregates;
    let medians = aggregates.medians.unwrap_or_default();
    let (median, mean, paths) = match name {
        FigureName::Ttft if has_steps(StepClass::Prefill) => {
            let why = "a prefill step of an engine is not the time to first token: its requests \
                       wait before it; table step_batches has the steps by number of requests";
            return Some(why.to_owned());
        }
        FigureName::Tpot if has_steps(StepClass::Decode) => {
            let why = "no single figure stands for the engine's decode steps; table step_batches \
                       has them by number of requests";
            return Some(why.to_owned());
        }
        FigureName::Ttft => (medians.ttft_ms, aggregates.first_token_ms, &TTFT),
        FigureName::Tpot => (medians.tpot_ms, aggregates.per_token_ms, &TPOT),
        FigureName::TokensPerS => (medians.tokens_per_s, aggregates.tokens_per_s, &RATE),
        _ => return None,
    };
    let path = match (median, mean) {
        (Some(_), _) => paths.median,
        (None, Some(_)) => paths.mean,
        (None, None) => return None,
    };
    let why = match median.is_none() && aggregates.medians.is_some() {
        true => "it is a mean, and the run has no median over its repeats",
        false => "it contains a wait from before the recording (unrecorded_wait of table ledger)",
    };
    Some(format!("{path} of aggregates does not stand for the run: {why}"))
}

fn of_time(time: StatedTime, paths: &Paths) -> HeadlineSource {
    let (place, row) = match &time {
        StatedTime::Requests(it) => {
            let row = json!({ "pass": it.pass, "metric": it.metric, "n": it.n });
            (("request_latency", "p50_ms"), row)
        }
        StatedTime::Batch(it) => {
            let column = if it.period_ms.is_some() { "period_ms" } else { "p50_ms" };
            let row = json!({
                "class": it.class, "requests": it.requests, "process": it.process,
                "context_mean": it.context_mean, "steps": it.steps
            });
            (("step_batches", column), row)
        }
        StatedTime::Steps(it) => {
            let row = json!({ "stage": it.stage, "ms.n": it.ms.n });
            (("step_times", "p50_ms"), row)
        }
        StatedTime::Repeats(it) => (("aggregates", paths.median), json!({ "ms.n": it.n })),
        StatedTime::Mean(it) => (("aggregates", paths.mean), json!({ "ms.n": it.n })),
    };
    HeadlineSource::new(time.ms(), place, row)
}

/// The wall time of a command; its mean in a report of an earlier version.
fn of_command(aggregates: &Aggregates) -> Option<HeadlineSource> {
    let command = aggregates.command.as_ref()?;
    let n = command.plain_ms.map(|it| it.n);
    let (value, _) = command.wall_ms()?;
    let column = match command.plain_p50_ms {
        Some(_) => "command.plain_p50_ms",
        None => "command.plain_ms.mean",
    };
    Some(HeadlineSource::of_aggregates(value, column, n))
}

/// Output tokens per second of the loads without a profiler.
fn of_loads(loads: &[LoadRecord]) -> Option<HeadlineSource> {
    let loads = || loads.iter().filter(|it| it.pass == LoadPass::Unprofiled);
    let tokens: u64 = loads().map(|it| it.output_tokens).sum();
    let rate = stats::ratio(1e3 * tokens as f64, loads().map(|it| it.ms).sum())?;
    let row = json!({ "pass": LoadPass::Unprofiled, "loads": loads().count() });
    Some(HeadlineSource::new(rate, ("request_loads", "tokens_per_s"), row))
}

/// The median over repeats; the mean of a report of an earlier version, which lacks medians.
fn over_repeats(
    aggregates: &Aggregates,
    median: impl Fn(&RepeatMedians) -> Option<RepeatMedian>,
    mean: Option<Spread>,
    paths: &Paths,
) -> Option<HeadlineSource> {
    let (value, column, n) = match &aggregates.medians {
        Some(medians) => median(medians).map(|it| (it.p50, paths.median, it.n))?,
        None => mean.map(|it| (it.mean, paths.mean, it.n))?,
    };
    Some(HeadlineSource::of_aggregates(value, column, Some(n)))
}

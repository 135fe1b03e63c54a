//! Every table of a run as data: lines of `tables.jsonl`, and the CSV files.
//!
//! Rows are read from the analysis one at a time; no table is held as a whole.

use llmprof_analyze::{
    Analysis,
    limited::{Limited, MAX_ROWS},
};
use llmprof_core::{domain::finding::Finding, layout};
use serde_json::Value;

use super::{
    collectives, costs, counters,
    csv::{CsvTable, cell},
    engine_steps, gemms, gpu, host_cpu, kernels, ledger, memory, operators, power, regions,
    requests, roofline, run_facts, sampled, samples,
    schema::{ColumnKind, TableCell, TableColumn},
    stages, step, step_times, traced, utilisation,
};
use crate::{RunFacts, format::count};

/// Version of a line of `tables.jsonl`; it grows when a field changes its meaning or is removed.
pub const TABLES_VERSION: u32 = 2;

/// The CSV files of a run, each with the table that it contains.
/// An optional table and its file are absent together.
pub const CSV_FILES: [(&str, &str); 15] = [
    (layout::KERNELS_CSV, "kernels"),
    (layout::KERNELS_FULL_CSV, "kernels_full"),
    (layout::COUNTERS_CSV, "counters"),
    (layout::SAMPLED_METRICS_CSV, "sampled_metrics"),
    (layout::ROOFLINE_CSV, "roofline.points"),
    (layout::MFU_CSV, "operator_mfu"),
    (layout::REGIONS_CSV, "regions"),
    (layout::GEMMS_CSV, "gemms"),
    (layout::POWER_CSV, "power.stages"),
    (layout::REQUESTS_CSV, "requests"),
    (layout::REQUEST_LATENCY_CSV, "request_latency"),
    (layout::COLLECTIVES_CSV, "collectives"),
    (layout::RANKS_CSV, "ranks"),
    (layout::LEDGER_CSV, "ledger"),
    (layout::LEDGER_MEMBERS_CSV, "ledger_members"),
];

/// A table of one run: its schema, and access to its rows.
pub struct RunTable<'a> {
    /// Path of the list in `report.json`.
    pub name: &'static str,
    columns: Vec<(&'static str, ColumnKind)>,
    /// Records: the first `max` have a row each.
    records: usize,
    /// Number of records that are summed already.
    summed: u64,
    max: usize,
    row: Box<dyn Fn(usize) -> Vec<TableCell<'a>> + 'a>,
    /// The row that sums the records from an index on.
    rest: Box<dyn Fn(usize) -> Vec<TableCell<'a>> + 'a>,
}

/// Records of a table, with the sum and the number of those that are summed already.
pub(super) struct TableRecords<'a, R> {
    rows: &'a [R],
    rest: Option<(&'a R, u64)>,
}

impl<'a, R> From<&'a Vec<R>> for TableRecords<'a, R> {
    fn from(rows: &'a Vec<R>) -> Self {
        Self { rows, rest: None }
    }
}

impl<'a, R> From<&'a [R]> for TableRecords<'a, R> {
    fn from(rows: &'a [R]) -> Self {
        Self { rows, rest: None }
    }
}

impl<'a, R> From<&'a Limited<R>> for TableRecords<'a, R> {
    fn from(Limited { rows, rest }: &'a Limited<R>) -> Self {
        Self { rows, rest: rest.as_ref().map(|(sum, count)| (sum, *count)) }
    }
}

/// A longer table than [`MAX_ROWS`] has its first rows, which are in its own order, and one row
/// more that sums the rest.
impl<'a> RunTable<'a> {
    pub(super) fn new<R: 'a>(
        name: &'static str,
        columns: Vec<TableColumn<R>>,
        records: impl Into<TableRecords<'a, R>>,
    ) -> Self {
        let TableRecords { rows: records, rest: summed } = records.into();
        let heads = columns.iter().map(|column| (column.name, column.kind)).collect();
        let of_rest = columns.clone();
        let row = move |at: usize| columns.iter().map(|it| it.cell(&records[at])).collect();
        let rest = move |from: usize| match summed {
            Some((sum, count)) => rest(&of_rest, std::slice::from_ref(sum), count),
            None => rest(&of_rest, &records[from..], (records.len() - from) as u64),
        };
        let (row, rest) = (Box::new(row), Box::new(rest));
        let summed = summed.map_or(0, |it| it.1);
        Self { name, columns: heads, records: records.len(), summed, max: MAX_ROWS, row, rest }
    }

    /// Rows before the one that sums the rest.
    fn kept(&self) -> usize {
        if self.summed > 0 { self.records } else { self.records.min(self.max) }
    }

    /// Records that the last row sums.
    fn left_out(&self) -> u64 {
        self.summed + (self.records - self.kept()) as u64
    }

    fn rows(&self) -> impl Iterator<Item = Vec<TableCell<'a>>> + '_ {
        let rest = (self.left_out() > 0).then(|| (self.rest)(self.kept()));
        (0..self.kept()).map(|at| (self.row)(at)).chain(rest)
    }

    /// The table as CSV.
    pub fn csv(&self) -> String {
        let mut text = CsvTable::new(self.columns.iter().map(|(name, _)| name));
        self.rows().for_each(|row| text.row(row.iter().map(|it| cell(it).into_owned())));
        text.finish()
    }

    /// The table as one line of JSON with its end; readers find it by its first field, the name.
    pub fn line(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| *name).collect();
        let kinds: Vec<ColumnKind> = self.columns.iter().map(|(_, kind)| *kind).collect();
        let (total, left_out) = match self.left_out() {
            0 => (self.kept(), String::new()),
            more => (self.kept() + 1, format!(r#""left_out":{more},"#)),
        };
        let mut line = format!(
            concat!(
                r#"{{"name":{},"schema_version":{},"columns":{},"kinds":{},"#,
                r#""total":{},{}"rows":["#
            ),
            Value::from(self.name),
            TABLES_VERSION,
            compact(&names),
            compact(&kinds),
            total,
            left_out,
        );
        for (at, row) in self.rows().enumerate() {
            if at > 0 {
                line.push(',');
            }
            line += &compact(&row);
        }
        line + "]}\n"
    }
}

/// The row that sums records: how many they are in its first text, and the sums of the columns
/// whose sum has a meaning.
fn rest<'a, R>(columns: &[TableColumn<R>], records: &'a [R], number: u64) -> Vec<TableCell<'a>> {
    let mut row: Vec<TableCell> = columns.iter().map(|it| it.sum(records)).collect();
    if let Some(first) = columns.iter().position(|it| it.kind == ColumnKind::Text) {
        row[first] = TableCell::nested(&format!("({} more rows)", count(number)));
    }
    row
}

fn compact(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("plain values always serialise")
}

/// Every table of a run, in the order of `report.json`. `findings` are the report's.
pub fn run_tables<'a>(
    facts: &RunFacts<'a>,
    analysis: &'a Analysis,
    findings: &'a [Finding],
) -> Vec<RunTable<'a>> {
    let mut tables = vec![
        RunTable::new("model.images", run_facts::images(), images(analysis)),
        RunTable::new("environment.gpus", run_facts::gpus(), &facts.environment.gpus),
        RunTable::new("stages", stages::columns(), &analysis.stages.rows),
        RunTable::new("stage_notes", stages::note_columns(), &analysis.stages.notes),
        RunTable::new("operators", operators::columns(), &analysis.listed_operators().rolled),
        RunTable::new(
            "operators_by_path",
            operators::columns(),
            &analysis.listed_operators().by_path,
        ),
        RunTable::new("operator_repeats", operators::repeat_columns(), &analysis.operator_repeats),
    ];
    if !analysis.samples.rows.is_empty() {
        let samples = &analysis.samples;
        tables.push(RunTable::new("samples", samples::columns(), &samples.rows));
        tables.push(RunTable::new("sample_spread", samples::spread_columns(), &samples.spreads));
    }
    tables.extend(traced_tables(analysis));
    if !analysis.step_times.is_empty() {
        tables.push(RunTable::new("step_times", step_times::columns(), &analysis.step_times));
    }
    if let Some(totals) = &analysis.device_totals {
        let columns = step_times::transfer_columns();
        tables.push(RunTable::new("transfers", columns, &totals.transfers));
    }
    if !analysis.engine_steps.is_empty() {
        let columns = engine_steps::columns();
        tables.push(RunTable::new("engine_steps", columns, &analysis.engine_steps));
        let columns = engine_steps::batch_columns();
        tables.push(RunTable::new("step_batches", columns, &analysis.step_batches));
    }
    if !analysis.stage_shares.is_empty() {
        let shares = &analysis.stage_shares;
        tables.push(RunTable::new("stage_shares", stages::share_columns(), shares));
    }
    if !analysis.requests.rows.is_empty() {
        let it = &analysis.requests;
        tables.push(RunTable::new("requests", requests::columns(), &it.rows));
        let columns = requests::latency_columns();
        tables.push(RunTable::new("request_latency", columns, &it.latency));
        tables.push(RunTable::new("request_loads", requests::load_columns(), &it.loads));
    }
    if !analysis.collectives.groups.is_empty() {
        tables.extend(collective_tables(analysis));
    }
    tables.extend(device_tables(analysis));
    if !analysis.sampled.coverage.is_empty() {
        tables.extend(sampled_tables(analysis));
    }
    tables.extend(launching_tables(analysis));
    let cost = analysis.cost.as_ref().map(|it| it.modules.as_slice());
    let power = analysis.power.as_ref().map(|it| it.stages.as_slice());
    tables.extend([
        RunTable::new("costs.modules", costs::columns(), cost.unwrap_or_default()),
        RunTable::new("experts", run_facts::experts(), &analysis.experts),
        RunTable::new("ledger", ledger::columns(), &analysis.ledger.rows),
        RunTable::new("ledger_members", ledger::member_columns(), &analysis.ledger.members),
        RunTable::new("ledger_stages", ledger::stage_columns(), &analysis.ledger.stages),
        RunTable::new("overhead", stages::overhead_columns(), &analysis.overhead),
        RunTable::new("power.stages", power::columns(), power.unwrap_or_default()),
        RunTable::new("memory", memory::columns(), &analysis.memory),
        RunTable::new("findings", run_facts::findings(), findings),
        RunTable::new("inputs", run_facts::inputs(), facts.inputs),
        RunTable::new("steps", run_facts::steps(), facts.steps),
    ]);
    tables
}

fn images(analysis: &Analysis) -> &[llmprof_core::trace::event::ImageViews] {
    analysis.start.as_ref().map(|it| it.images.as_slice()).unwrap_or_default()
}

/// Tables of the traced pass.
fn traced_tables(analysis: &Analysis) -> [RunTable<'_>; 14] {
    let slices = analysis.step.as_ref().map(|it| it.slices.as_slice());
    [
        RunTable::new("kernels", kernels::columns(), &analysis.kernels.records),
        RunTable::new("kernels_full", kernels::full_columns(), &analysis.kernels.full),
        RunTable::new("stage_kernels", kernels::stage_columns(), &analysis.kernels.stages),
        RunTable::new("stage_gpu", gpu::columns(), &analysis.stage_gpu.totals),
        RunTable::new("stage_gpu_devices", gpu::columns(), &analysis.stage_gpu.devices),
        RunTable::new("whole_graphs", gpu::graph_columns(), &analysis.graphs),
        RunTable::new("decode_step.slices", step::columns(), slices.unwrap_or_default()),
        RunTable::new("processes", gpu::process_columns(), &analysis.processes.stages),
        RunTable::new(
            "process_kernels",
            gpu::process_kernel_columns(),
            &analysis.processes.kernels,
        ),
        RunTable::new("process_ranges", gpu::process_range_columns(), &analysis.processes.ranges),
        RunTable::new("kernel_classes", traced::class_columns(), &analysis.kernels.classes),
        RunTable::new("api_calls", traced::call_columns(), &analysis.sums.calls),
        RunTable::new("ranges", traced::range_columns(), &analysis.sums.ranges),
        RunTable::new("regions", regions::columns(), &analysis.regions),
    ]
}

/// Tables of lines of code and threads that launch work, of captures that have them.
fn launching_tables(analysis: &Analysis) -> Vec<RunTable<'_>> {
    let sites = &analysis.call_sites;
    let table = || RunTable::new("call_sites", traced::call_site_columns(), sites);
    let sites = (!sites.is_empty()).then(table);
    sites.into_iter().chain(analysis.host_cpu.iter().flat_map(host_cpu::run_tables)).collect()
}

/// Tables of sampled metrics, of runs that have samples.
fn sampled_tables(analysis: &Analysis) -> [RunTable<'_>; 4] {
    let it = &analysis.sampled;
    [
        RunTable::new("sampled_metrics", sampled::columns(), &it.kernels),
        RunTable::new("sampled_stages", sampled::stage_columns(), &it.stages),
        RunTable::new("sampled_operators", sampled::operator_columns(), &it.operators),
        RunTable::new("gpu_sample_coverage", sampled::coverage_columns(), &it.coverage),
    ]
}

/// Tables of collective operations, of captures that have them.
fn collective_tables(analysis: &Analysis) -> [RunTable<'_>; 3] {
    let it = &analysis.collectives;
    [
        RunTable::new("collectives", collectives::columns(), &it.records),
        RunTable::new("ranks", collectives::rank_columns(), &it.ranks),
        RunTable::new("collective_steps", collectives::step_columns(), &it.steps),
    ]
}

/// Tables of counters, rooflines, logs of matrix products and utilisation.
fn device_tables(analysis: &Analysis) -> [RunTable<'_>; 6] {
    [
        RunTable::new("counters", counters::columns(), &analysis.counters),
        RunTable::new("roofline.roofs", roofline::roof_columns(), &analysis.roofline.roofs),
        RunTable::new("roofline.points", roofline::columns(), &analysis.roofline.points),
        RunTable::new("gemms", gemms::columns(), &analysis.gemms.records),
        RunTable::new("mfu", utilisation::columns(), &analysis.mfu.rows),
        RunTable::new("operator_mfu", utilisation::operator_columns(), &analysis.mfu.operators),
    ]
}

#[cfg(test)]
mod tests;

//! Figures of a report that a sweep keeps of each point, and the results of a sweep as CSV and as
//! text.

use std::collections::BTreeSet;

use llmprof_analyze::{
    ledger::FloorOf,
    roofline::mfu::OperatorMfu,
    stages::{DECODE, PREFILL},
    stats::ratio,
    sweep::{SweepResults, SweepRow},
};
use llmprof_core::domain::sweep::{SweepFigures, SweepOperator, SweepRidge, SweepStage};
use serde_json::{Value, json};

use super::{
    answer::is_on_cpu,
    headline,
    profile::LLMProfileReport,
    tables::csv::{CsvTable, stored_cell},
};

/// The figures of a run.
pub fn figures(report: &LLMProfileReport) -> SweepFigures {
    let floor = |stage: &str| {
        let rows = report.ledger_stages.iter();
        let row = rows.into_iter().find(|it| it.stage == stage)?;
        let of_model = row.floor_of == Some(FloorOf::Model);
        row.floor_ns.filter(|ns| of_model && *ns > 0).map(|ns| ns as f64 / 1e6)
    };
    let stages = report.stages.iter().map(|row| SweepStage {
        stage: row.stage.clone(),
        ms: row.ms.mean,
        floor_ms: floor(&row.stage),
    });
    SweepFigures {
        headline: headline::point(report).headline,
        stages: stages.collect(),
        operators: operators(report),
        ridge: ridge(report),
    }
}

/// The operators with FLOPs by the model's architecture, with their measured times.
fn operators(report: &LLMProfileReport) -> Vec<SweepOperator> {
    let Some(costs) = &report.costs else { return Vec::new() };
    let mut operators = Vec::new();
    for module in &costs.modules {
        let of_stage = [
            (PREFILL, module.prefill_flops, module.prefill.bytes),
            (DECODE, module.decode_flops, module.decode.bytes),
        ];
        for (stage, flops, bytes) in of_stage.into_iter().filter(|(_, flops, _)| *flops > 0) {
            let is_it = |it: &&OperatorMfu| {
                it.path == module.path && it.op == module.op && it.stage == stage
            };
            operators.push(SweepOperator {
                path: module.path.clone(),
                stage: stage.to_owned(),
                flops: flops as f64,
                bytes: bytes as f64,
                ms: report.operator_mfu.iter().find(is_it).map(|it| it.exclusive_ms),
            });
        }
    }
    operators
}

/// The ridge point by the datasheet, else as measured. Caches of a CPU hold weights: it has none.
fn ridge(report: &LLMProfileReport) -> Option<SweepRidge> {
    let on_cpu = is_on_cpu(&report.model, &report.environment);
    let ceilings = report.ceilings.as_ref().filter(|_| !on_cpu)?;
    let of = |source: &str, flops: Option<f64>, bytes: Option<f64>| {
        let flops_per_byte = ratio(flops?, bytes?)?;
        Some(SweepRidge { flops_per_byte, source: source.into() })
    };
    let datasheet = (ceilings.datasheet_flops_per_s, ceilings.datasheet_bytes_per_s);
    let measured = (ceilings.measured_flops_per_s, ceilings.measured_bytes_per_s);
    of("datasheet", datasheet.0, datasheet.1).or_else(|| of("measured", measured.0, measured.1))
}

/// A table of the results: a row per point, with axes, figures, stages, and the reason of a gap.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepTable {
    pub columns: Vec<String>,
    pub rows: Vec<Vec<Value>>,
}

impl SweepTable {
    pub fn of(results: &SweepResults) -> Self {
        let names = |of: fn(&SweepRow) -> Vec<&String>| -> BTreeSet<&String> {
            results.rows.iter().flat_map(of).collect()
        };
        let (axes, stages) =
            (names(|it| it.axes.keys().collect()), names(|it| it.stages.keys().collect()));
        let mut columns = vec!["position".to_owned()];
        columns.extend(axes.iter().map(|it| (*it).clone()));
        columns.extend(figures_of(None).iter().map(|(name, _)| (*name).to_owned()));
        columns.extend(stages.iter().map(|it| format!("{it}_ms")));
        columns.extend(["run_id", "gap"].map(str::to_owned));
        let row = |row: &SweepRow| {
            let mut cells = vec![json!(row.position)];
            cells.extend(axes.iter().map(|axis| json!(row.axes.get(*axis))));
            cells.extend(figures_of(Some(row)).into_iter().map(|(_, value)| value));
            cells.extend(stages.iter().map(|stage| json!(row.stages.get(*stage))));
            cells.extend([json!(row.run_id), json!(row.gap)]);
            cells
        };
        Self { columns, rows: results.rows.iter().map(row).collect() }
    }

    /// For spreadsheets.
    pub fn csv(&self) -> String {
        let mut csv = CsvTable::new(&self.columns);
        self.rows.iter().for_each(|row| csv.row(row.iter().map(stored_cell)));
        csv.finish()
    }

    /// For a terminal: columns of equal width, without those that have no value.
    pub fn text(&self) -> String {
        let used: Vec<usize> = (0..self.columns.len())
            .filter(|at| self.rows.iter().any(|row| !row[*at].is_null()))
            .collect();
        let mut lines: Vec<Vec<String>> =
            vec![used.iter().map(|at| self.columns[*at].clone()).collect()];
        for row in &self.rows {
            lines.push(used.iter().map(|at| shown(&row[*at])).collect());
        }
        let width = |at: usize| lines.iter().map(|it| it[at].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..used.len()).map(width).collect();
        let line = |cells: &Vec<String>| {
            let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        lines.iter().map(line).collect()
    }
}

fn shown(cell: &Value) -> String {
    match cell.as_f64().filter(|_| cell.is_f64()) {
        Some(figure) => format!("{figure:.4}"),
        None => stored_cell(cell),
    }
}

/// Names of the figures with their values.
fn figures_of(row: Option<&SweepRow>) -> [(&'static str, Value); 9] {
    let figure = |of: fn(&SweepRow) -> Option<f64>| json!(row.and_then(of));
    [
        ("ttft_ms", figure(|it| it.ttft_ms)),
        ("tpot_ms", figure(|it| it.tpot_ms)),
        ("wall_ms", figure(|it| it.wall_ms)),
        ("tokens_per_s", figure(|it| it.tokens_per_s)),
        ("energy_j", figure(|it| it.energy_j)),
        ("mfu_pct", figure(|it| it.mfu_pct)),
        ("floor_ms", figure(|it| it.floor_ms)),
        ("times_floor", figure(|it| it.times_floor)),
        ("on_front", json!(row.is_some_and(|it| it.on_front))),
    ]
}

#[cfg(test)]
mod tests {
    use llmprof_analyze::sweep::{SweepPoint, results};
    use llmprof_core::domain::command::ParamValue;

    use super::*;

    fn table() -> SweepTable {
        let point = |position: u32, dtype: &str, figures: Option<SweepFigures>| SweepPoint {
            position,
            axes: [("dtype".to_owned(), ParamValue::Text(dtype.into()))].into(),
            run: None,
            gap: figures.is_none().then(|| "a, \"b\"\nc".to_owned()),
            figures,
        };
        let stage = SweepStage { stage: "prefill".into(), ms: 1.5, floor_ms: None };
        let measured = SweepFigures { stages: vec![stage], ..SweepFigures::default() };
        SweepTable::of(&results(&[point(0, "f32", Some(measured)), point(1, "bf16", None)]))
    }

    #[test]
    fn csv_has_a_line_per_point_and_gaps_with_their_reason() {
        let csv = table().csv();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 3, "{csv}");
        assert!(lines[0].starts_with("position,dtype,ttft_ms,") && lines[0].ends_with(",gap"));
        assert!(lines[1].contains(",1.5,") && lines[2].contains("\"a, \"\"b\"\""), "{csv}");
    }

    #[test]
    fn text_leaves_out_columns_without_values() {
        let text = table().text();
        assert!(!text.contains("ttft_ms") && text.contains("prefill_ms"), "{text}");
        assert_eq!(text.lines().count(), 3, "{text}");
    }
}

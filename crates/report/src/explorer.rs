//! Charts of a run's page that can be zoomed and searched: one decode step, and the operators of
//! each stage.

use llmprof_analyze::{operators::OperatorRecord, timeline::decode_timeline::StepTimeline};
use serde::{Deserialize, Serialize};

use super::charts::figures::{
    modules,
    step::{self, LegendEntry},
};

/// Largest magnification: slices that are too narrow at it are merged.
const ZOOM: f64 = 16.0;

/// One chart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExplorerChart {
    pub id: String,
    pub title: String,
    /// An SVG of full width.
    pub drawing: String,
    pub keys: Vec<LegendEntry>,
}

/// The parts of a report that the charts need.
#[derive(Deserialize)]
struct StoredCharts {
    #[serde(default)]
    operators: Vec<OperatorRecord>,
    #[serde(default)]
    decode_step: Option<StepTimeline>,
}

/// The charts of a stored `report.json`; those without data are left out.
pub fn stored_charts(report: &[u8]) -> Result<Vec<ExplorerChart>, serde_json::Error> {
    let StoredCharts { operators, decode_step } = serde_json::from_slice(report)?;
    let mut charts = Vec::new();
    let mut add = |id: &str, title: String, (drawing, keys): (String, Vec<LegendEntry>)| {
        if !drawing.is_empty() {
            charts.push(ExplorerChart { id: id.to_owned(), title, drawing, keys });
        }
    };
    if let Some(step) = &decode_step {
        add("explore-step", "One decode step".into(), step::chart("explore-step-svg", step, ZOOM));
    }
    let mut stages: Vec<&str> = operators.iter().map(|it| it.stage.as_str()).collect();
    stages.sort_unstable();
    stages.dedup();
    // Stages in the order of their execution.
    stages.sort_by_key(|stage| *stage != llmprof_analyze::stages::PREFILL);
    for (at, stage) in stages.into_iter().filter(|stage| !stage.is_empty()).enumerate() {
        let id = format!("explore-operators-{at}");
        let drawn = modules::modules(&format!("{id}-svg"), stage, &operators, ZOOM);
        add(&id, format!("Operators of {stage}"), drawn);
    }
    Ok(charts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_without_steps_and_operators_has_no_charts() {
        assert_eq!(stored_charts(b"{}").unwrap(), []);
        assert!(stored_charts(b"[").is_err());
    }
}

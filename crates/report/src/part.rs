//! Alignment of a part with the whole model, as a table of the part's report.
//!
//! Each alignment has a report of its own, written by [`super::align`].

use llmprof_analyze::{
    align::{Alignment, latency::Latency},
    stats::Spread,
};
use llmprof_core::domain::alignment::decisive;

use super::{
    align::stem,
    format::{decimals, known},
    tables::ReportTable,
};

/// One stage of a part that was aligned with the whole model.
#[derive(Debug, Clone)]
pub struct PartStage {
    /// `prefill` or `decode`.
    pub stage: &'static str,
    pub mock: Alignment,
    pub extracted: Option<Alignment>,
    /// Unprofiled times of the stage, milliseconds.
    pub mock_ms: Option<Spread>,
    pub extracted_ms: Option<Spread>,
    /// Equality of the outputs of the part alone and of the part inside its layer; `None` if one of
    /// them is unknown.
    pub same_outputs: Option<bool>,
}

/// The table of a run's report.
pub fn table(stages: &[PartStage]) -> ReportTable {
    let caption = "The part alone (mock) and extracted from its layer, unprofiled and traced, \
                   against the same part inside the whole model. Device times are per layer and \
                   forward of the traced passes; the reports contain the evidence of the verdicts.";
    let columns = [
        "Stage",
        "Mock",
        "Extracted",
        "#Mock, unprofiled ms",
        "#Extracted, unprofiled ms",
        "#Mock, device µs",
        "#Whole model, device µs",
        "#Ratio",
        "Same outputs",
        "Decided by",
        "Report",
    ];
    let mut table =
        ReportTable::new("alignment", "Alignment with the whole model", caption, &columns);
    let ms = |it: Option<Spread>| known(it, |it| decimals(it.mean, 3));
    for it in stages {
        let latency = |field: fn(&Latency) -> f64, places| {
            known(it.mock.latency.as_ref(), |latency| decimals(field(latency), places))
        };
        let checks = it.mock.summary();
        let decisive = decisive(it.mock.verdict, &checks);
        let decisive: Vec<&str> = decisive.iter().map(|check| check.id.as_str()).collect();
        table.row([
            it.stage.to_owned(),
            it.mock.verdict.to_string(),
            known(it.extracted.as_ref(), |it| it.verdict.to_string()),
            ms(it.mock_ms),
            ms(it.extracted_ms),
            latency(|it| it.mock_us, 1),
            latency(|it| it.e2e_us, 1),
            latency(|it| it.ratio, 3),
            known(it.same_outputs, |same| if same { "yes" } else { "no" }.to_owned()),
            if decisive.is_empty() { "every check".to_owned() } else { decisive.join(", ") },
            format!("{}.html", stem(it.stage)),
        ]);
    }
    table
}

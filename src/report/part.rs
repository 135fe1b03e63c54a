//! What a run says of a part that ran beside the whole model: plain times, and the verdicts of its alignments.
//!
//! The alignments themselves have reports of their own, told in [`super::align`].

use super::{
    align::stem,
    format::{UNKNOWN, decimals},
    table::Table,
};
use crate::analyze::{align::Alignment, stats::Spread};

/// One stage of a part that was held to the whole model.
#[derive(Debug, Clone)]
pub struct PartStage {
    /// `prefill` or `decode`.
    pub stage: &'static str,
    pub mock: Alignment,
    pub extracted: Option<Alignment>,
    /// Plain times of the stage, milliseconds.
    pub mock_ms: Option<Spread>,
    pub extracted_ms: Option<Spread>,
    /// Whether the part alone and the part taken out of its layer computed the same; `None` where one of them does not tell.
    pub same_outputs: Option<bool>,
}

/// The table of a run's report.
pub fn table(stages: &[PartStage]) -> Table {
    let caption = "The part alone (mock) and taken out of its layer (extracted), plainly and traced, held to the same part inside the \
                   whole model. Device times are per layer and forward, of the traced passes; the verdicts' evidence is in the files named.";
    let columns = [
        "Stage",
        "Mock",
        "Extracted",
        "#Mock, plain ms",
        "#Extracted, plain ms",
        "#Mock, device µs",
        "#Whole model, device µs",
        "#Ratio",
        "Same outputs",
        "Because of",
        "Report",
    ];
    let mut table = Table::new("alignment", "Alignment with the whole model", caption, &columns);
    let ms = |it: &Option<Spread>| it.map_or(UNKNOWN.to_owned(), |it| decimals(it.mean, 3));
    for it in stages {
        let latency = |of: fn(&crate::analyze::align::latency::Latency) -> f64, digits| {
            it.mock.latency.as_ref().map_or(UNKNOWN.to_owned(), |found| decimals(of(found), digits))
        };
        let open: Vec<String> = it.mock.decisive().map(|check| check.id.clone()).collect();
        table.row([
            it.stage.to_owned(),
            it.mock.verdict.to_string(),
            it.extracted.as_ref().map_or(UNKNOWN.to_owned(), |it| it.verdict.to_string()),
            ms(&it.mock_ms),
            ms(&it.extracted_ms),
            latency(|found| found.mock_us, 1),
            latency(|found| found.e2e_us, 1),
            latency(|found| found.ratio, 3),
            it.same_outputs.map_or(UNKNOWN, |same| if same { "yes" } else { "no" }).to_owned(),
            if open.is_empty() { "every check".to_owned() } else { open.join(", ") },
            format!("{}.html", stem(it.stage)),
        ]);
    }
    table
}

//! The point of an analysed run in its series.

use llmprof_core::domain::{headline::SeriesPoint, ids::RunId};

use super::Analyzed;
use crate::{headline, profile};

impl Analyzed {
    /// The run's point in its series.
    pub fn series_point(&self, id: RunId) -> SeriesPoint {
        let facts = self.facts(id, &self.saved.steps);
        headline::point(&profile::profile(&facts, &self.trace, &self.analysis))
    }
}

//! Places of the tables that a report names and cuts.

use llmprof_core::{domain::ids::RunId, layout::TABLES};
use serde::Serialize;

use super::RunFacts;

/// Place of the tables of one report: its folder, and a service for a run.
#[derive(Debug, Clone, Serialize)]
pub struct TablePlace {
    /// The run's other files are written next to the report.
    in_folder: bool,
    /// Place of each table that a sentence names.
    tables_at: String,
    /// `None` for a capture without a run.
    #[serde(skip)]
    run: Option<RunId>,
}

impl TablePlace {
    pub fn of(facts: &RunFacts, in_folder: bool) -> Self {
        let run = Some(facts.id).filter(|id| !id.0.is_nil());
        let tables_at = match (run, in_folder) {
            (Some(run), _) => format!(
                "Each table that a sentence names is a line of {TABLES} in the folder of the run, \
                 and /runs/{run}/tables/NAME at a service."
            ),
            (None, true) => format!(
                "Each table that a sentence names is a line of {TABLES} in the folder of this \
                 report."
            ),
            (None, false) => format!(
                "Each table that a sentence names is a line of {TABLES}, which `--out DIR` writes."
            ),
        };
        Self { in_folder, tables_at, run }
    }

    /// The end of a note that the table has more rows.
    pub fn all_in(&self, name: &str) -> String {
        match (self.run, self.in_folder) {
            (Some(run), _) => {
                format!("all are in the table {name} ({TABLES}, or /runs/{run}/tables/{name})")
            }
            (None, true) => format!("all are in the table {name} ({TABLES})"),
            (None, false) => {
                format!("all are in the table {name} ({TABLES}, which `--out DIR` writes)")
            }
        }
    }
}

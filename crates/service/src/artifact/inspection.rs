//! Requests to inspect an upload, which a child process executes.

use super::{import_staging::CapturesInspection, inputs::staging::InputsInspection};

/// A request to unpack and inspect the files of an upload.
#[derive(Debug)]
pub enum Inspection {
    Captures(CapturesInspection),
    Inputs(InputsInspection),
}

impl From<CapturesInspection> for Inspection {
    fn from(inspection: CapturesInspection) -> Self {
        Self::Captures(inspection)
    }
}

impl From<InputsInspection> for Inspection {
    fn from(inspection: InputsInspection) -> Self {
        Self::Inputs(inspection)
    }
}

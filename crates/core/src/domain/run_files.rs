//! Records of a run's files: artifacts and inputs.

use serde::{Deserialize, Serialize};

use super::state::Step;

/// One artifact of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ArtifactRecord {
    /// Relative to the run's folder.
    #[cfg_attr(feature = "schema", schema(example = "report.md"))]
    pub path: String,
    pub bytes: u64,
    /// Lower-case hexadecimal.
    #[cfg_attr(
        feature = "schema",
        schema(example = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")
    )]
    pub sha256: String,
    #[cfg_attr(feature = "schema", schema(example = "text/markdown; charset=utf-8"))]
    pub media_type: String,
    /// The step that wrote it; `null` for files about the whole run.
    pub step: Option<Step>,
}

/// A file whose content is not the one that was sealed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DamagedFile {
    /// Relative to the run's folder.
    #[cfg_attr(feature = "schema", schema(example = "report.md"))]
    pub path: String,
    #[cfg_attr(feature = "schema", schema(example = "is not what was sealed"))]
    pub fault: String,
    /// RFC 3339, UTC.
    pub found_at: String,
}

/// One input of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct InputFile {
    /// Relative to the inputs folder.
    #[cfg_attr(feature = "schema", schema(example = "page.png"))]
    pub path: String,
    pub bytes: u64,
    #[cfg_attr(
        feature = "schema",
        schema(example = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")
    )]
    pub sha256: String,
    pub width: u32,
    pub height: u32,
}

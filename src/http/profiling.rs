//! `GET /profiling`: what each mode means here.

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use crate::{profiling::Profiling, run::Mode};

/// One mode and every setting of its passes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProfilingPreset {
    pub mode: Mode,
    pub profiling: Profiling,
}

/// The modes, deepest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProfilingList {
    pub presets: Vec<ProfilingPreset>,
}

/// List the modes with every setting that they stand for
///
/// A run has the settings of its mode, with those of its request's `profiling` over them.
#[utoipa::path(get, path = "/profiling", tag = "models", operation_id = "list_profiling",
    responses((status = 200, description = "The presets", body = ProfilingList)))]
pub async fn profiling(State(app): State<App>) -> Json<ProfilingList> {
    let presets = app.presets.iter().map(|(mode, profiling)| ProfilingPreset { mode: *mode, profiling: profiling.clone() });
    Json(ProfilingList { presets: presets.collect() })
}

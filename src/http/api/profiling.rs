//! `GET /profiling`: the settings of each mode.

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    domain::{mode::Mode, profiling::Profiling},
    http::{error::responses::GuardedErrors, state::App},
};

/// One mode with every setting of its passes.
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

impl ProfilingList {
    fn example() -> Self {
        let profiling = Profiling::bundled(Mode::Deep).ok();
        let preset = |profiling| ProfilingPreset { mode: Mode::Deep, profiling };
        Self { presets: profiling.map(preset).into_iter().collect() }
    }
}

/// List the modes with all their settings
///
/// A run has the settings of its mode, overridden by those of its request's `profiling`.
#[utoipa::path(get, path = "/profiling", tag = "models", operation_id = "list_profiling",
    responses(
        (status = 200, description = "The presets", body = ProfilingList,
            example = json!(ProfilingList::example())),
        GuardedErrors))]
pub async fn profiling(State(app): State<App>) -> Json<ProfilingList> {
    let presets = app
        .presets
        .iter()
        .map(|(mode, profiling)| ProfilingPreset { mode: *mode, profiling: profiling.clone() });
    Json(ProfilingList { presets: presets.collect() })
}

//! `GET /profiling`: the settings of each mode.

use axum::{Json, extract::State};
use llmprof_core::domain::{
    mode::Mode,
    profiling::{Preset, Profiling},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::{error::responses::GuardedErrors, state::App};

/// One mode with every setting of its passes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProfilingPreset {
    pub mode: Mode,
    /// One line on the mode; empty if its file has none.
    pub description: String,
    pub profiling: Profiling,
}

/// The modes: the bundled ones, deepest first, then the service's own by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProfilingList {
    pub presets: Vec<ProfilingPreset>,
}

impl ProfilingList {
    fn example() -> Self {
        let bundled = Preset::bundled(&Mode::DEEP).ok();
        let preset = |it| ProfilingPreset::new(&Mode::DEEP, &it);
        Self { presets: bundled.map(preset).into_iter().collect() }
    }
}

impl ProfilingPreset {
    fn new(mode: &Mode, preset: &Preset) -> Self {
        let Preset { description, profiling } = preset.clone();
        Self { mode: mode.clone(), description, profiling }
    }
}

/// List the modes with all their settings
///
/// A run has the settings of its mode, overridden by its request's `profiling`.
#[utoipa::path(get, path = "/profiling", tag = "models", operation_id = "list_profiling",
    responses(
        (status = 200, description = "The presets", body = ProfilingList,
            example = json!(ProfilingList::example())),
        GuardedErrors))]
pub async fn profiling(State(app): State<App>) -> Json<ProfilingList> {
    let presets = app.presets.iter().map(|(mode, preset)| ProfilingPreset::new(mode, preset));
    Json(ProfilingList { presets: presets.collect() })
}

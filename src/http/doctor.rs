//! `GET /doctor`: what the host has, lacks, and how to get it.

use axum::{Json, extract::State};
use tokio::sync::oneshot;

use super::{
    App,
    error::{ApiError, ErrorCode},
};
use crate::trace::checkup::Checkup;

/// Look at the host: driver, GPUs, tools, permissions, space
///
/// Nothing is tried on a GPU, since a run may be measured there; `llmprof doctor` on the host also tries the counters.
#[utoipa::path(get, path = "/doctor", tag = "service", operation_id = "doctor",
    responses((status = 200, description = "Every check, whatever came of it", body = Checkup)))]
pub async fn doctor(State(app): State<App>) -> Result<Json<Checkup>, ApiError> {
    let unavailable = || ApiError::new(ErrorCode::Unavailable, "the service is stopping and looks at nothing any more");
    let (answer, answered) = oneshot::channel();
    app.doctor.send(answer).await.map_err(|_| unavailable())?;
    answered.await.map(Json).map_err(|_| unavailable())
}

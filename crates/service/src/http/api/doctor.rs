//! `GET /doctor`: checks of the host.

use axum::{Json, extract::State};
use llmprof_core::{
    domain::finding::{Finding, catalogue},
    trace::checkup::{Checkup, HostCheck},
};
use tokio::sync::oneshot;

use crate::http::{
    error::{
        ApiError, ErrorCode,
        responses::{GuardedErrors, Unavailable},
    },
    state::App,
};

fn example() -> Checkup {
    let missing = Finding::new(
        catalogue::NCU_MISSING,
        "Nsight Compute (ncu) is not installed: no kernel counters can be collected",
    )
    .advise("install ncu (NVIDIA's package nsight-compute)");
    let checks = vec![
        HostCheck::of(
            "driver",
            Ok("driver 580.159, which supports CUDA up to 13.0, GPUs: 1".into()),
        ),
        HostCheck::of("ncu", Err(missing)),
    ];
    Checkup::of("2026-11-20T09:00:00.000Z".into(), checks)
}

/// Check the host: driver, GPUs, tools, permissions, disk space
///
/// Nothing is executed on a GPU, where a run may be measured; `llmprof doctor` on the host also
/// tries the counters.
#[utoipa::path(get, path = "/doctor", tag = "service", operation_id = "doctor",
    responses(
        (status = 200, description = "Every check with its result", body = Checkup,
            example = json!(example())),
        GuardedErrors, Unavailable))]
pub async fn doctor(State(app): State<App>) -> Result<Json<Checkup>, ApiError> {
    let stopping =
        || ApiError::new(ErrorCode::Unavailable, "cannot check the host: the service is stopping");
    let (answer, answered) = oneshot::channel();
    app.doctor.send(answer).await.map_err(|_| stopping())?;
    answered.await.map(Json).map_err(|_| stopping())
}

//! `GET /devices`: the devices that execute runs, each with its current run.

use axum::{Json, extract::State};
use llmprof_core::domain::{device::Device, ids::RunId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::runs::example;
use crate::http::{
    error::{ApiError, responses::GuardedErrors},
    state::App,
};

/// The devices with a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceList {
    pub devices: Vec<DeviceView>,
}

/// One device. A run requests it by `name` or `uuid`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceView {
    /// `cpu`, `cuda:INDEX` in the order of nvidia-smi, or the UUID of an instance (MIG).
    #[schema(example = "cuda:0")]
    pub name: String,
    /// `null` for the CPU.
    #[schema(example = "GPU-6c35a1a0-0c3b-4f6e-9f41-2f1f6f2b1a77")]
    pub uuid: Option<String>,
    /// The driver's name.
    #[schema(example = "NVIDIA H200")]
    pub product: Option<String>,
    pub memory_bytes: Option<u64>,
    /// The run that it executes; `null` while it is idle.
    pub run_id: Option<RunId>,
}

impl DeviceList {
    fn example() -> Self {
        let device = DeviceView {
            name: "cuda:0".into(),
            uuid: Some("GPU-6c35a1a0-0c3b-4f6e-9f41-2f1f6f2b1a77".into()),
            product: Some("NVIDIA H200".into()),
            memory_bytes: Some(150_754_820_096),
            run_id: Some(example::id()),
        };
        Self { devices: vec![device] }
    }
}

/// List the devices that execute runs, each with its current run
#[utoipa::path(get, path = "/devices", tag = "service", operation_id = "list_devices",
    responses(
        (status = 200,
            description = "The devices; none while the service is paused, or where a cluster \
                           executes runs",
            body = DeviceList, example = json!(DeviceList::example())),
        GuardedErrors))]
pub async fn devices(State(app): State<App>) -> Result<Json<DeviceList>, ApiError> {
    let running = app.store.running().await?;
    let view = |device: &Device| DeviceView {
        name: device.name.clone(),
        uuid: device.uuid.clone(),
        product: device.product.clone(),
        memory_bytes: device.memory_bytes,
        run_id: running
            .iter()
            .find(|(_, worker, all)| device.has_worker(worker) || all.contains(&device.name))
            .map(|(id, ..)| *id),
    };
    Ok(Json(DeviceList { devices: app.devices.iter().map(view).collect() }))
}

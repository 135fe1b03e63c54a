//! `GET /devices`: where runs are carried out, and what each device is busy with.

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{App, error::ApiError};
use crate::run::RunId;

/// The devices that have a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceList {
    pub devices: Vec<DeviceView>,
}

/// One device. A run asks for it by `name` or `uuid`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceView {
    /// `cpu`, `cuda:INDEX` in the order of nvidia-smi, or the UUID of an instance (MIG).
    #[schema(example = "cuda:0")]
    pub name: String,
    /// `null` for the CPU.
    #[schema(example = "GPU-6c35a1a0-0c3b-4f6e-9f41-2f1f6f2b1a77")]
    pub uuid: Option<String>,
    /// As the driver calls it.
    #[schema(example = "NVIDIA H200")]
    pub product: Option<String>,
    pub memory_bytes: Option<u64>,
    /// The run that it is busy with; `null` while it is idle.
    pub run_id: Option<RunId>,
}

/// List the devices that runs are carried out on, and what each is busy with
#[utoipa::path(get, path = "/devices", tag = "service", operation_id = "list_devices",
    responses((status = 200, description = "The devices; none while the service is paused, or where a cluster carries runs out", body = DeviceList)))]
pub async fn devices(State(app): State<App>) -> Result<Json<DeviceList>, ApiError> {
    let running = app.store.running().await?;
    let view = |device: &crate::trace::device::Device| DeviceView {
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

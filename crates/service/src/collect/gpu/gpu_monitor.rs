//! Periodic readings of GPUs for the metrics of the service, independent of the sampler of a pass.

use std::{thread, time::Duration};

use llmprof_core::trace::power::GpuReading;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::nvml;

/// Time between two readings.
const PERIOD: Duration = Duration::from_secs(5);
/// Time between two checks of the stop token.
const TICK: Duration = Duration::from_millis(500);

/// Watches the devices `uuids` until `stop`, one thread per device. A device that cannot be watched
/// is logged once and has no reading.
pub fn watch_gpus(
    uuids: Vec<String>,
    stop: &CancellationToken,
) -> watch::Receiver<Vec<GpuReading>> {
    let (sender, receiver) = watch::channel(Vec::new());
    for uuid in uuids {
        let (sender, stop) = (sender.clone(), stop.clone());
        let work = move || {
            let watched = nvml::watch(
                &uuid,
                i64::try_from(PERIOD.as_nanos()).unwrap_or(i64::MAX),
                |device, read| {
                    while !stop.is_cancelled() {
                        let reading = GpuReading {
                            uuid: device.uuid.clone(),
                            name: device.name.clone(),
                            sample: read(),
                        };
                        sender.send_modify(|all| {
                            all.retain(|known: &GpuReading| known.uuid != reading.uuid);
                            all.push(reading);
                            all.sort_by(|a, b| a.uuid.cmp(&b.uuid));
                        });
                        for _ in 0..PERIOD.as_millis() / TICK.as_millis() {
                            if !stop.is_cancelled() {
                                thread::sleep(TICK);
                            }
                        }
                    }
                },
            );
            if let Err(error) = watched {
                let error = llmprof_core::chain(&error);
                tracing::warn!(uuid, %error, "a GPU is not in the metrics");
            }
        };
        if let Err(error) = thread::Builder::new().name("watch-gpu".into()).spawn(work) {
            tracing::warn!(%error, "a GPU is not in the metrics");
        }
    }
    receiver
}

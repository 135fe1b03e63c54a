//! Looks at GPUs every few seconds, for those who watch the service; apart from the sampler that measures a pass.

use std::{thread, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::nvml;
use crate::trace::power::GpuReading;

/// Time between two looks.
const PERIOD: Duration = Duration::from_secs(5);
/// How often it is looked whether to stop.
const TICK: Duration = Duration::from_millis(500);

/// Watches the devices `uuids`, each from a thread of its own, until `stop`. One that cannot be watched is told once and has no reading.
pub fn watch_gpus(uuids: Vec<String>, stop: &CancellationToken) -> watch::Receiver<Vec<GpuReading>> {
    let (sender, receiver) = watch::channel(Vec::new());
    for uuid in uuids {
        let (sender, stop) = (sender.clone(), stop.clone());
        let work = move || {
            let watched = nvml::watch(&uuid, i64::try_from(PERIOD.as_nanos()).unwrap_or(i64::MAX), |device, look| {
                while !stop.is_cancelled() {
                    let reading = GpuReading { uuid: device.uuid.clone(), name: device.name.clone(), sample: look() };
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
            });
            if let Err(error) = watched {
                tracing::warn!(uuid, error = %crate::chain(&error), "a GPU is not in the metrics");
            }
        };
        if let Err(error) = thread::Builder::new().name("watch-gpu".into()).spawn(work) {
            tracing::warn!(%error, "a GPU is not in the metrics");
        }
    }
    receiver
}

//! `GET /metrics`: the service in figures, for Prometheus.
//!
//! Latencies are counted since the service started; everything else is asked of the store when it is asked for.

use std::{
    fmt,
    path::Path,
    sync::{Mutex, atomic::AtomicU64},
    time::Duration,
};

use axum::{
    extract::State,
    http::{Method, StatusCode, header},
    response::IntoResponse,
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet, text},
    metrics::{MetricType, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

use super::{App, error::ApiError};
use crate::{
    run::RunState,
    store::Figures,
    trace::power::{GpuReading, PowerSample},
};

const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Bounds of the latencies' buckets, in seconds.
const BOUNDS: [f64; 9] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0, 10.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    method: &'static str,
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfState {
    state: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfGpu {
    uuid: String,
    name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfStep {
    step: String,
    state: String,
}

/// What is counted while the service runs.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    latencies: Family<Answered, Histogram>,
}

impl Metrics {
    pub fn new() -> Self {
        let latencies = Family::new_with_constructor((|| Histogram::new(BOUNDS)) as fn() -> Histogram);
        let mut registry = Registry::with_prefix("llmprof");
        let help = "Time from a request's head to its answer's head";
        registry.register_with_unit("http_request_duration", help, Unit::Seconds, latencies.clone());
        Self { registry: Mutex::new(registry), latencies }
    }

    /// Counts an answer. Words that a client makes up are not kept: they would never end.
    pub fn answered(&self, method: &Method, route: Option<&str>, status: StatusCode, took: Duration) {
        let method = match *method {
            Method::GET => "GET",
            Method::POST => "POST",
            Method::DELETE => "DELETE",
            _ => "other",
        };
        let labels = Answered { method, route: route.unwrap_or("other").into(), status: status.as_u16() };
        self.latencies.get_or_create(&labels).observe(took.as_secs_f64());
    }

    fn write(&self, figures: &Figures, free_bytes: Option<u64>, gpus: &[GpuReading]) -> Result<String, fmt::Error> {
        let mut text = String::new();
        if let Ok(registry) = self.registry.lock() {
            text::encode_registry(&mut text, &registry)?;
        }
        text::encode_registry(&mut text, &kept(figures, free_bytes, gpus))?;
        text::encode_eof(&mut text)?;
        Ok(text)
    }
}

/// What the store knows, as gauges: it grows less when runs are deleted.
fn kept(figures: &Figures, free_bytes: Option<u64>, gpus: &[GpuReading]) -> Registry {
    let mut registry = Registry::with_prefix("llmprof");
    let runs = Family::<OfState, Gauge>::default();
    for state in RunState::ALL {
        let count = figures.runs.iter().find(|(name, _)| name == state.as_str()).map_or(0, |(_, count)| *count);
        runs.get_or_create(&OfState { state: state.as_str().into() }).set(count);
    }
    registry.register("runs", "Runs that are kept, by state; those queued are the queue", runs);
    let (steps, seconds) = (Family::<OfStep, Gauge>::default(), Family::<OfStep, Gauge<f64, AtomicU64>>::default());
    for (step, state, count, took) in &figures.steps {
        let labels = OfStep { step: step.clone(), state: state.clone() };
        steps.get_or_create(&labels).set(*count);
        seconds.get_or_create(&labels).set(*took);
    }
    registry.register("steps", "Ended steps of the runs that are kept", steps);
    registry.register_with_unit("steps_duration", "Time that these steps took in all", Unit::Seconds, seconds);
    registry.register_collector(Box::new(Durations(figures.durations.clone())));
    let artifacts = Gauge::<i64>::default();
    artifacts.set(figures.artifact_bytes);
    registry.register_with_unit("artifacts", "Size of all artifacts that are kept", Unit::Bytes, artifacts);
    if let Some(free) = free_bytes {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(free).unwrap_or(i64::MAX));
        registry.register_with_unit("disk_free", "Space that is free on the disk of the runs", Unit::Bytes, gauge);
    }
    tell_gpus(&mut registry, gpus);
    registry
}

/// What each GPU told at the last look; what it does not tell has no line.
fn tell_gpus(registry: &mut Registry, gpus: &[GpuReading]) {
    type Told = fn(&PowerSample) -> Option<f64>;
    let told: [(&str, &str, Unit, Told); 7] = [
        ("gpu_power", "Power that the GPU draws", Unit::Other("watts".into()), |it| it.power_w),
        ("gpu_temperature", "Temperature of the GPU", Unit::Celsius, |it| it.temperature_c.map(f64::from)),
        ("gpu_busy", "Share of time in which a kernel ran", Unit::Other("ratio".into()), |it| {
            it.gpu_pct.map(|pct| f64::from(pct) / 100.0)
        }),
        ("gpu_memory_used", "Memory of the GPU that is taken", Unit::Bytes, |it| it.memory_used_bytes.map(|it| it as f64)),
        ("gpu_sm_clock", "Clock of the multiprocessors", Unit::Other("hertz".into()), |it| {
            it.sm_mhz.map(|mhz| f64::from(mhz) * 1e6)
        }),
        ("gpu_memory_clock", "Clock of the memory", Unit::Other("hertz".into()), |it| {
            it.memory_mhz.map(|mhz| f64::from(mhz) * 1e6)
        }),
        ("gpu_energy", "Energy since the driver was loaded", Unit::Joules, |it| it.energy_mj.map(|mj| mj as f64 / 1e3)),
    ];
    for (name, help, unit, of) in told {
        let family = Family::<OfGpu, Gauge<f64, AtomicU64>>::default();
        let values: Vec<_> = gpus.iter().filter_map(|gpu| Some((gpu, of(&gpu.sample)?))).collect();
        if values.is_empty() {
            continue;
        }
        for (gpu, value) in values {
            family.get_or_create(&OfGpu { uuid: gpu.uuid.clone(), name: gpu.name.clone() }).set(value);
        }
        registry.register_with_unit(name, help, unit, family);
    }
}

/// Upper bounds of the buckets that the database counts steps in, in seconds.
const STEP_BOUNDS: [f64; 10] = [0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, f64::INFINITY];

/// How long steps took, as the database counted them.
#[derive(Debug)]
struct Durations(Vec<(String, String, i64, i64, f64)>);

impl Collector for Durations {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let help = "Time that ended steps took, of every run that there ever was";
        let mut metric = encoder.encode_descriptor("step_duration", help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for of_one in self.0.chunk_by(|a, b| (&a.0, &a.1) == (&b.0, &b.1)) {
            let Some((step, state, ..)) = of_one.first() else { continue };
            let mut buckets = STEP_BOUNDS.map(|bound| (bound, 0));
            for (_, _, bucket, steps, _) in of_one {
                if let Some((_, count)) = usize::try_from(*bucket).ok().and_then(|at| buckets.get_mut(at)) {
                    *count += steps.unsigned_abs();
                }
            }
            let labels = OfStep { step: step.clone(), state: state.clone() };
            let (sum, count) = (of_one.iter().map(|it| it.4).sum(), buckets.iter().map(|(_, count)| count).sum());
            metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// Bytes that are free for the service on the disk of `folder`.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = nix::sys::statvfs::statvfs(folder).ok()?;
    Some(disk.blocks_available() * disk.fragment_size())
}

/// The service in figures, as Prometheus reads them
#[utoipa::path(get, path = "/metrics", tag = "service", operation_id = "metrics",
    responses((status = 200, description = "OpenMetrics", body = String, content_type = "application/openmetrics-text")))]
pub async fn metrics(State(app): State<App>) -> Result<impl IntoResponse, ApiError> {
    let figures = app.store.figures().await?;
    let gpus = app.gpus.borrow().clone();
    let text = app.access.metrics.write(&figures, free_bytes(&app.runs), &gpus).map_err(|error| ApiError::internal(&error))?;
    Ok(([(header::CONTENT_TYPE, KIND)], text))
}

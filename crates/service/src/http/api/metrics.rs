//! `GET /metrics`: metrics of the service, for Prometheus.
//!
//! Latencies are counted from the start of the service; the other metrics are read from the store
//! at each request.

use std::{
    fmt,
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::{Duration, Instant},
};

use axum::{
    Extension,
    extract::{MatchedPath, Request, State},
    http::{Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use llmprof_core::{
    domain::state::RunState,
    trace::power::{GpuReading, PowerSample},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet, text},
    metrics::{MetricType, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

use crate::{
    artifact::free_space::free_bytes,
    http::{
        error::{ApiError, responses::GuardedErrors},
        state::App,
        traffic::Traffic,
    },
    store::{ScrubFigures, StoreFigures},
};

const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Bounds of the latencies' buckets, in seconds.
const BOUNDS: [f64; 9] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0, 10.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GpuLabels {
    uuid: String,
    name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabels {
    step: String,
    state: String,
}

/// Metrics that are counted while the service runs.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    latencies: Family<RequestLabels, Histogram>,
}

impl Default for Metrics {
    fn default() -> Self {
        let latencies =
            Family::new_with_constructor((|| Histogram::new(BOUNDS)) as fn() -> Histogram);
        let mut registry = Registry::with_prefix("llmprof");
        let help = "Time from the head of a request to the head of its response";
        registry.register_with_unit(
            "http_request_duration",
            help,
            Unit::Seconds,
            latencies.clone(),
        );
        Self { registry: Mutex::new(registry), latencies }
    }
}

impl Metrics {
    /// Counts a response. Methods and paths that a client makes up are counted as `other`, which
    /// bounds the number of series.
    fn observe(
        &self,
        method: &Method,
        route: Option<&str>,
        status: StatusCode,
        duration: Duration,
    ) {
        let method = match *method {
            Method::GET => "GET",
            Method::POST => "POST",
            Method::DELETE => "DELETE",
            _ => "other",
        };
        let labels = RequestLabels {
            method,
            route: route.unwrap_or("other").into(),
            status: status.as_u16(),
        };
        self.latencies.get_or_create(&labels).observe(duration.as_secs_f64());
    }

    fn write(
        &self,
        traffic: &Traffic,
        figures: &StoreFigures,
        free_bytes: Option<u64>,
        gpus: &[GpuReading],
    ) -> Result<String, fmt::Error> {
        let mut text = String::new();
        if let Ok(registry) = self.registry.lock() {
            text::encode_registry(&mut text, &registry)?;
        }
        let mut counted = Registry::with_prefix("llmprof");
        traffic.register(&mut counted);
        text::encode_registry(&mut text, &counted)?;
        text::encode_registry(&mut text, &stored_metrics(figures, free_bytes, gpus))?;
        text::encode_eof(&mut text)?;
        Ok(text)
    }
}

/// Middleware that measures requests.
pub(crate) async fn measure(
    State(metrics): State<Arc<Metrics>>,
    request: Request,
    next: Next,
) -> Response {
    let (start, method) = (Instant::now(), request.method().clone());
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let response = next.run(request).await;
    metrics.observe(&method, route.as_deref(), response.status(), start.elapsed());
    response
}

/// Metrics of the store as gauges, which decrease when runs are deleted.
fn stored_metrics(
    figures: &StoreFigures,
    free_bytes: Option<u64>,
    gpus: &[GpuReading],
) -> Registry {
    let mut registry = Registry::with_prefix("llmprof");
    let runs = Family::<StateLabels, Gauge>::default();
    for state in RunState::ALL {
        let count = figures
            .runs
            .iter()
            .find(|(name, _)| name == state.as_str())
            .map_or(0, |(_, count)| *count);
        runs.get_or_create(&StateLabels { state: state.as_str().into() }).set(count);
    }
    registry.register("runs", "Stored runs by state", runs);
    let (steps, seconds) = (
        Family::<StepLabels, Gauge>::default(),
        Family::<StepLabels, Gauge<f64, AtomicU64>>::default(),
    );
    for (step, state, count, duration) in &figures.steps {
        let labels = StepLabels { step: step.clone(), state: state.clone() };
        steps.get_or_create(&labels).set(*count);
        seconds.get_or_create(&labels).set(*duration);
    }
    registry.register("steps", "Ended steps of stored runs", steps);
    registry.register_with_unit(
        "steps_duration",
        "Total duration of these steps",
        Unit::Seconds,
        seconds,
    );
    registry.register_collector(Box::new(Durations(figures.durations.clone())));
    let artifacts = Gauge::<i64>::default();
    artifacts.set(figures.artifact_bytes);
    registry.register_with_unit(
        "artifacts",
        "Size of all stored artifacts",
        Unit::Bytes,
        artifacts,
    );
    register_scrub(&mut registry, &figures.scrub);
    if let Some(free) = free_bytes {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(free).unwrap_or(i64::MAX));
        registry.register_with_unit(
            "disk_free",
            "Free space on the disk of the runs",
            Unit::Bytes,
            gauge,
        );
    }
    register_gpus(&mut registry, gpus);
    registry
}

/// Registers the state of sealed files.
fn register_scrub(registry: &mut Registry, scrub: &ScrubFigures) {
    let damaged = Gauge::<i64>::default();
    damaged.set(scrub.damaged_files);
    registry.register("damaged_files", "Sealed files that are known to be damaged", damaged);
    let age = Gauge::<f64, AtomicU64>::default();
    age.set(scrub.age_ms as f64 / 1e3);
    registry.register_with_unit(
        "scrub_age",
        "Time since the oldest comparison of a run's files with their hashes",
        Unit::Seconds,
        age,
    );
}

/// Registers the last reading of each GPU; a missing value has no line.
fn register_gpus(registry: &mut Registry, gpus: &[GpuReading]) {
    type GaugeValue = fn(&PowerSample) -> Option<f64>;
    let (ratio, hertz) = (Unit::Other("ratio".into()), Unit::Other("hertz".into()));
    let gauges: [(&str, &str, Unit, GaugeValue); 7] = [
        ("gpu_power", "Power draw of the GPU", Unit::Other("watts".into()), |it| it.power_w),
        ("gpu_temperature", "Temperature of the GPU", Unit::Celsius, |it| {
            it.temperature_c.map(f64::from)
        }),
        ("gpu_busy", "Fraction of time in which a kernel ran", ratio, |it| {
            it.gpu_pct.map(|pct| f64::from(pct) / 100.0)
        }),
        ("gpu_memory_used", "Used memory of the GPU", Unit::Bytes, |it| {
            it.memory_used_bytes.map(|it| it as f64)
        }),
        ("gpu_sm_clock", "Clock of the multiprocessors", hertz.clone(), |it| {
            it.sm_mhz.map(|mhz| f64::from(mhz) * 1e6)
        }),
        ("gpu_memory_clock", "Clock of the memory", hertz, |it| {
            it.memory_mhz.map(|mhz| f64::from(mhz) * 1e6)
        }),
        ("gpu_energy", "Energy since the driver was loaded", Unit::Joules, |it| {
            it.energy_mj.map(|mj| mj as f64 / 1e3)
        }),
    ];
    for (name, help, unit, of) in gauges {
        let family = Family::<GpuLabels, Gauge<f64, AtomicU64>>::default();
        let values: Vec<_> = gpus.iter().filter_map(|gpu| Some((gpu, of(&gpu.sample)?))).collect();
        if values.is_empty() {
            continue;
        }
        for (gpu, value) in values {
            family
                .get_or_create(&GpuLabels { uuid: gpu.uuid.clone(), name: gpu.name.clone() })
                .set(value);
        }
        registry.register_with_unit(name, help, unit, family);
    }
}

/// Upper bounds of the database's buckets of step durations, in seconds.
const STEP_BOUNDS: [f64; 10] =
    [0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, f64::INFINITY];

/// Durations of steps, counted by the database.
#[derive(Debug)]
struct Durations(Vec<(String, String, i64, i64, f64)>);

impl Collector for Durations {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let help = "Duration of ended steps of all runs, including deleted ones";
        let mut metric = encoder.encode_descriptor(
            "step_duration",
            help,
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for series in self.0.chunk_by(|a, b| (&a.0, &a.1) == (&b.0, &b.1)) {
            let Some((step, state, ..)) = series.first() else { continue };
            let mut buckets = STEP_BOUNDS.map(|bound| (bound, 0));
            for (_, _, bucket, steps, _) in series {
                if let Some((_, count)) =
                    usize::try_from(*bucket).ok().and_then(|at| buckets.get_mut(at))
                {
                    *count += steps.unsigned_abs();
                }
            }
            let labels = StepLabels { step: step.clone(), state: state.clone() };
            let (sum, count) =
                (series.iter().map(|it| it.4).sum(), buckets.iter().map(|(_, count)| count).sum());
            metric
                .encode_family(&labels)?
                .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// Show metrics in the OpenMetrics format, for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "service", operation_id = "metrics",
    responses(
        (status = 200, description = "OpenMetrics", body = String,
            content_type = "application/openmetrics-text", example = json!(
                "# TYPE llmprof_runs gauge\nllmprof_runs{state=\"queued\"} 3\n# EOF\n")),
        GuardedErrors))]
pub async fn metrics(
    State(app): State<App>,
    Extension(metrics): Extension<Arc<Metrics>>,
) -> Result<impl IntoResponse, ApiError> {
    let figures = app.store.figures().await?;
    let gpus = app.gpus.borrow().clone();
    let text = metrics
        .write(&app.access.traffic, &figures, free_bytes(&app.runs).ok(), &gpus)
        .map_err(|error| ApiError::internal(&error))?;
    Ok(([(header::CONTENT_TYPE, MEDIA_TYPE)], text))
}

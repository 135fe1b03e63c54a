//! The only place that knows HTTP: routes, errors, headers, the contract.
//!
//! A handler asks the store and answers; it starts nothing and keeps nothing.

mod access;
mod alignments;
mod artifacts;
mod audit;
mod captures;
mod contract;
mod cost;
mod devices;
mod diff;
mod doctor;
mod error;
mod events;
mod examples;
mod forms;
mod health;
mod hosts;
mod listen;
mod metrics;
mod models;
mod page;
mod profiling;
mod queue;
mod rates;
mod removal;
mod report;
mod request;
mod retention;
mod runs;
mod stream;
mod submissions;
mod submit;
mod submit_model;
mod tables;
mod targets;
mod upload;

use std::{path::PathBuf, sync::Arc};

pub use access::Access;
use axum::{
    Router,
    http::{HeaderName, HeaderValue, Method, header},
    middleware,
};
pub use captures::Intake;
pub use contract::{contract, contract_yaml};
pub use listen::{Certificate, TlsError, serve};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tower::util::option_layer;
use tower_http::{catch_panic::CatchPanicLayer, cors::CorsLayer, set_header::SetResponseHeaderLayer};
use utoipa_axum::{router::OpenApiRouter, routes};
use utoipa_swagger_ui::{Config, SwaggerUi};

use crate::{
    config::{self, Models, RefusedModel},
    profiling::Presets,
    run::command::Commands,
    store::Store,
    trace::{checkup::Checkup, device::Device, power::GpuReading},
};

/// What an answer of data may do in a browser: nothing.
const DATA_POLICY: &str = "default-src 'none'; frame-ancestors 'none'";
/// Swagger UI is scripts, styles and pictures of ours.
const DOCS_POLICY: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'";

/// What the handlers share.
#[derive(Debug, Clone)]
pub struct App {
    pub store: Store,
    /// Who may ask for what.
    pub access: Arc<Access>,
    /// Folder of the runs' folders.
    pub runs: PathBuf,
    /// Folder of the alignments' folders.
    pub alignments: PathBuf,
    /// Folder that manifests are read from.
    pub inputs: PathBuf,
    pub models: Arc<Models>,
    /// Models of the folder that cannot be used.
    pub refused_models: Arc<Vec<RefusedModel>>,
    /// Commands that runs may name as their target.
    pub targets: Arc<Commands>,
    /// What each mode means.
    pub presets: Arc<Presets>,
    /// Devices that have a worker.
    pub devices: Arc<[Device]>,
    /// What a run may ask for as its device where a cluster carries runs out; empty: what [`Self::devices`] serve.
    pub accepts: Arc<[String]>,
    /// Where a look at the host is asked for.
    pub doctor: mpsc::Sender<oneshot::Sender<Checkup>>,
    /// Where captures arrive that were taken elsewhere.
    pub intake: Arc<Intake>,
    /// What the GPUs told last, for the metrics.
    pub gpus: watch::Receiver<Vec<GpuReading>>,
    /// The settings.
    pub config: Arc<config::Config>,
    /// To be told when a run or an alignment was queued.
    pub queued: Arc<Notify>,
    /// To be told when a running run is to be cancelled.
    pub cancelled: Arc<Notify>,
    /// Ends streams when the service stops.
    pub closing: CancellationToken,
}

/// The routes with their part of the contract.
fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(submit::submit, runs::list))
        .routes(routes!(runs::show, runs::delete))
        .routes(routes!(runs::cancel))
        .routes(routes!(captures::submit))
        .routes(routes!(queue::queue))
        .routes(routes!(retention::retention))
        .routes(routes!(retention::pin, retention::unpin))
        .routes(routes!(events::events))
        .routes(routes!(artifacts::list))
        .routes(routes!(artifacts::download))
        .routes(routes!(artifacts::bundle))
        .routes(routes!(report::report))
        .routes(routes!(tables::list))
        .routes(routes!(tables::table))
        .routes(routes!(diff::diff))
        .routes(routes!(alignments::submit, alignments::list))
        .routes(routes!(alignments::show, alignments::delete))
        .routes(routes!(alignments::report))
        .routes(routes!(alignments::events))
        .routes(routes!(alignments::artifacts))
        .routes(routes!(alignments::download))
        .routes(routes!(models::models))
        .routes(routes!(targets::targets))
        .routes(routes!(profiling::profiling))
        .routes(routes!(cost::cost))
        .routes(routes!(devices::devices))
        .routes(routes!(doctor::doctor))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::version))
        .routes(routes!(metrics::metrics))
        .routes(routes!(audit::audit))
        .routes(routes!(contract::openapi_json))
        .routes(routes!(contract::openapi_yaml))
}

/// The service as one router.
pub fn router(app: App) -> Router {
    let (router, _) = routes().split_for_parts();
    let origins = app.access.origins();
    let always = |name: HeaderName, value| SetResponseHeaderLayer::if_not_present(name, HeaderValue::from_static(value));
    let docs = Router::from(SwaggerUi::new("/docs").config(Config::from("/openapi.json")));
    router
        .with_state(app.clone())
        .merge(docs.layer(always(header::CONTENT_SECURITY_POLICY, DOCS_POLICY)))
        .merge(page::router(app.clone()))
        .fallback(error::no_route)
        .method_not_allowed_fallback(error::no_method)
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(middleware::from_fn_with_state(app, access::guard))
        .layer(option_layer((!origins.is_empty()).then(|| cors(origins))))
        .layer(middleware::from_fn(request::identify))
        .layer(always(header::CONTENT_SECURITY_POLICY, DATA_POLICY))
        .layer(always(header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .layer(always(header::X_FRAME_OPTIONS, "DENY"))
        .layer(always(header::REFERRER_POLICY, "no-referrer"))
}

/// Lets the pages of `origins` use the API. Tokens are sent by scripts, so no page acts with what a browser keeps.
fn cors(origins: Vec<HeaderValue>) -> CorsLayer {
    CorsLayer::new().allow_origin(origins).allow_methods([Method::GET, Method::POST, Method::DELETE]).allow_headers([
        header::AUTHORIZATION,
        header::CONTENT_TYPE,
        HeaderName::from_static("idempotency-key"),
    ])
}

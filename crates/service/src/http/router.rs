//! The routes with their middleware, and the contract of all of them.

use std::sync::{Arc, LazyLock};

use axum::{
    Extension, Router,
    extract::{MatchedPath, Request},
    http::{HeaderName, HeaderValue, Method, header},
    middleware,
};
use llmprof_core::domain::yaml;
use serde_json::Value;
use tower::util::option_layer;
use tower_http::{
    catch_panic::CatchPanicLayer, cors::CorsLayer, set_header::SetResponseHeaderLayer,
};
use utoipa_axum::{router::OpenApiRouter, routes};
use utoipa_swagger_ui::{Config, SwaggerUi};

use crate::http::{
    api::{
        alignments::{self, files},
        artifacts, audit, baselines, captures, cost, deliveries, devices, diff, doctor, events,
        gates, health, inputs,
        metrics::{self, Metrics},
        models,
        openapi::{self, ContractText},
        profiling, queue, report, retention,
        runs::{cancel, delete, list, show, submit},
        series, sessions, sweeps, tables, targets,
    },
    auth::guard::{self, AccessRule, Guard},
    compression,
    contract::complete,
    error::{self, ApiError, ErrorCode},
    mcp, request_id,
    state::App,
    ui,
};

/// Content policy of data: no scripts, no requests, no frames.
const DATA_POLICY: &str = "default-src 'none'; frame-ancestors 'none'";
/// Content policy of Swagger UI: the service's own scripts, styles and images.
const DOCS_POLICY: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; \
                           img-src 'self' data:; frame-ancestors 'none'";

/// The routes of the API with their declarations.
fn api_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(submit::submit, list::list))
        .routes(routes!(show::show, delete::delete))
        .routes(routes!(cancel::cancel))
        .routes(routes!(sessions::start, sessions::list))
        .routes(routes!(sessions::show, sessions::end))
        .routes(routes!(sweeps::submit::start, sweeps::list))
        .routes(routes!(sweeps::show, sweeps::delete))
        .routes(routes!(sweeps::pause))
        .routes(routes!(sweeps::resume))
        .routes(routes!(sweeps::cancel))
        .routes(routes!(sweeps::results))
        .routes(routes!(captures::submit))
        .routes(routes!(inputs::upload::upload, inputs::list))
        .routes(routes!(inputs::show, inputs::delete))
        .routes(routes!(inputs::thumbnail))
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
        .routes(routes!(series::list))
        .routes(routes!(series::show))
        .routes(routes!(baselines::list, baselines::set))
        .routes(routes!(gates::submit, gates::list::list))
        .routes(routes!(alignments::submit::submit, alignments::list))
        .routes(routes!(alignments::show, alignments::delete))
        .routes(routes!(files::report))
        .routes(routes!(alignments::events))
        .routes(routes!(files::artifacts))
        .routes(routes!(files::download))
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
        .routes(routes!(deliveries::list))
        .routes(routes!(deliveries::replay))
        .routes(routes!(openapi::openapi_json))
        .routes(routes!(openapi::openapi_yaml))
}

/// The contract as JSON.
pub fn contract() -> &'static Value {
    static CONTRACT: LazyLock<Value> = LazyLock::new(|| complete(api_routes().into_openapi()));
    &CONTRACT
}

/// The contract as YAML, as in `contracts/profile.yaml`.
pub fn contract_yaml() -> String {
    yaml::yaml(contract())
}

fn contract_text() -> ContractText {
    static JSON: LazyLock<String> = LazyLock::new(|| contract().to_string());
    static YAML: LazyLock<String> = LazyLock::new(contract_yaml);
    ContractText { json: || &JSON, yaml: || &YAML }
}

/// The access rule of a path of a page or of the API.
fn access_rule(method: &Method, path: &str) -> AccessRule {
    ui::access_rule(path).unwrap_or_else(|| guard::api_rule(method, path))
}

/// The service as one router.
pub fn router(app: App) -> Router {
    let (api, _) = api_routes().split_for_parts();
    let origins = app.access.origins();
    let metrics = Arc::new(Metrics::default());
    let guard = Guard {
        access: Arc::clone(&app.access),
        store: app.store.clone(),
        hosts: app.config.server.hosts.clone(),
        rule: access_rule,
        session: ui::session,
        last_event: events::refused,
    };
    let default_header = |name: HeaderName, value| {
        SetResponseHeaderLayer::if_not_present(name, HeaderValue::from_static(value))
    };
    let docs = Router::from(SwaggerUi::new("/docs").config(Config::from("/openapi.json")));
    let api = api.with_state(app.clone());
    let calls = called(api.clone(), guard.clone(), Arc::clone(&metrics));
    api.merge(mcp::router(calls, app.closing.clone()))
        .merge(
            docs.layer(default_header(header::CONTENT_SECURITY_POLICY, DOCS_POLICY))
                .layer(default_header(header::CACHE_CONTROL, "no-cache")),
        )
        .merge(ui::router(app))
        .fallback(error::no_route)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(Extension(Arc::clone(&metrics)))
        .layer(Extension(contract_text()))
        .layer(middleware::from_fn_with_state(guard, guard::guard))
        .layer(middleware::from_fn(ui::render_errors))
        .layer(compression::layer())
        .layer(middleware::map_response(compression::weaken_etag))
        .layer(middleware::map_request(compression::accept_identity))
        .layer(middleware::from_fn_with_state(metrics, metrics::measure))
        .layer(option_layer((!origins.is_empty()).then(|| cors(origins))))
        .layer(middleware::from_fn(request_id::identify))
        .layer(default_header(header::CONTENT_SECURITY_POLICY, DATA_POLICY))
        // Data of a token stays out of caches that others read.
        .layer(default_header(header::CACHE_CONTROL, "no-store"))
        .layer(default_header(header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .layer(default_header(header::X_FRAME_OPTIONS, "DENY"))
        .layer(default_header(header::REFERRER_POLICY, "no-referrer"))
}

/// The API as a tool calls it inside the service: with access control and metrics of each call.
fn called(api: Router, guard: Guard, metrics: Arc<Metrics>) -> Router {
    api.fallback(error::no_route)
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(Extension(Arc::clone(&metrics)))
        .layer(Extension(contract_text()))
        .layer(middleware::from_fn_with_state(guard, guard::guard))
        .layer(middleware::from_fn_with_state(metrics, metrics::measure))
        .layer(middleware::from_fn(request_id::identify))
}

/// Refuses a method that the path does not have, and names the contract's methods.
async fn method_not_allowed(request: Request) -> ApiError {
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str());
    let item = path.and_then(|path| contract()["paths"].get(path.replace("{*", "{")));
    let allowed: Vec<&str> = [Method::GET, Method::HEAD, Method::POST, Method::DELETE]
        .iter()
        .map(Method::as_str)
        .filter(|method| {
            let declared = if *method == "HEAD" { "get" } else { &method.to_lowercase() };
            item.is_some_and(|item| item.get(declared).is_some())
        })
        .collect();
    let mut message =
        format!("method {} is not allowed for {}", request.method(), request.uri().path());
    if !allowed.is_empty() {
        message += &format!(" (allowed: {})", allowed.join(", "));
    }
    ApiError::new(ErrorCode::MethodNotAllowed, message)
}

/// Allows the pages of `origins` to use the API. Their scripts send tokens; the browser's own
/// session is not sent.
fn cors(origins: Vec<HeaderValue>) -> CorsLayer {
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        .allow_headers([
            header::AUTHORIZATION,
            header::CONTENT_TYPE,
            HeaderName::from_static("idempotency-key"),
            HeaderName::from_static("mcp-method"),
            HeaderName::from_static("mcp-name"),
            HeaderName::from_static("mcp-protocol-version"),
        ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contract_requires_a_token_where_the_guard_does() {
        let mut compared = 0;
        for (path, item) in contract()["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let method: Method = method.to_uppercase().parse().unwrap();
                let guarded = matches!(access_rule(&method, path), AccessRule::Role(_));
                assert_eq!(operation["security"].is_array(), guarded, "{method} {path}");
                assert_eq!(operation["responses"]["401"].is_object(), guarded, "{method} {path}");
                compared += 1;
            }
        }
        assert!(compared > 30);
    }
}

//! The pages, at `/` and under `/ui/`: server-rendered, usable without a script.
//!
//! A page shows the same data as the API. All of its text comes from `view`, which escapes values.

mod alignment;
mod alignment_form;
mod alignments;
mod assets;
mod baselines;
mod commands;
mod compare;
mod doctor;
mod forms;
mod home;
mod imports;
mod inputs;
mod lighter;
mod login;
mod page;
mod run;
mod run_inputs;
mod series;
mod sessions;
mod storage;
mod submit_form;
mod submit_inputs;
mod sweeps;
mod table;
mod view;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::Uri,
    response::Redirect,
    routing::{any, get, post},
};

pub use login::{access_rule, session};
pub use page::render_errors;

use crate::http::{
    api::report,
    error::{ApiError, ErrorCode},
    state::App,
};

/// Bytes of a form.
const MAX_FORM: usize = 1 << 16;

/// The routes of the pages. They are not part of the contract.
pub fn router(app: App) -> Router {
    Router::new()
        .route("/", get(home::home))
        .route("/ui", get(async || Redirect::to("/")))
        .route("/ui/", get(async || Redirect::to("/")))
        .route("/ui/runs", post(home::submit).get(async || Redirect::to("/")))
        .route("/runs/{run_id}/{file}", any(report::linked_file))
        .route("/ui/runs/{run_id}", get(run::run))
        .route("/ui/runs/{run_id}/cancel", post(run::cancel).get(run::back))
        .route("/ui/runs/{run_id}/delete", post(run::delete).get(run::back))
        .route("/ui/runs/{run_id}/tables/{table}", get(table::table))
        .route("/ui/runs/{run_id}/pin", post(run::pin).get(run::back))
        .route("/ui/runs/{run_id}/unpin", post(run::unpin).get(run::back))
        .route("/ui/alignments", get(alignments::list).post(alignments::submit))
        .route("/ui/alignments/{alignment_id}", get(alignment::alignment))
        .route("/ui/alignments/{alignment_id}/delete", post(alignment::delete).get(alignment::back))
        .route("/ui/runs/{run_id}/inputs/{image}", get(run_inputs::thumbnail))
        .route("/ui/inputs", get(inputs::list))
        .route("/ui/inputs/{inputs_id}", get(inputs::inputs))
        .route("/ui/inputs/{inputs_id}/delete", post(inputs::delete).get(inputs::back))
        .route("/ui/storage", get(storage::storage))
        .route("/ui/series", get(series::list))
        .route("/ui/series/{series_id}", get(series::show))
        .route("/ui/sessions", get(sessions::list))
        .route("/ui/sessions/{session_id}/end", post(sessions::end).get(sessions::back))
        .route("/ui/commands", get(commands::list))
        .route("/ui/commands/{command}", get(commands::form).post(commands::submit))
        .route("/ui/commands/{command}/session", post(commands::start_session).get(commands::back))
        .route("/ui/sweeps", get(sweeps::list).post(sweeps::start))
        .route("/ui/sweeps/{sweep_id}", get(sweeps::show))
        .route("/ui/sweeps/{sweep_id}/pause", post(sweeps::pause).get(sweeps::back))
        .route("/ui/sweeps/{sweep_id}/resume", post(sweeps::resume).get(sweeps::back))
        .route("/ui/sweeps/{sweep_id}/cancel", post(sweeps::cancel).get(sweeps::back))
        .route("/ui/sweeps/{sweep_id}/delete", post(sweeps::delete).get(sweeps::back))
        .route("/ui/import", get(imports::form).post(imports::submit))
        .route("/ui/baselines", get(baselines::list).post(baselines::set))
        .route(
            "/ui/baselines/accept",
            post(baselines::accept).get(async || Redirect::to("/ui/baselines")),
        )
        .route("/ui/diff", get(compare::compare))
        .route("/ui/doctor", get(doctor::doctor))
        .route(login::LOGIN, get(login::form).post(login::log_in))
        .route(login::LOGOUT, post(login::log_out))
        .route("/ui/assets/{name}", get(assets::asset))
        .route("/ui/{*rest}", get(no_page))
        .layer(DefaultBodyLimit::max(MAX_FORM))
        .with_state(app)
}

async fn no_page(uri: Uri) -> ApiError {
    ApiError::new(ErrorCode::RouteNotFound, format!("no page {}", uri.path()))
}

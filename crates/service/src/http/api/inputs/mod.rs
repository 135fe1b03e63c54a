//! Stored inputs: list, view, thumbnails and deletion.

pub mod by_hash;
pub mod example;
pub mod pending;
pub mod thumbnails;
pub mod upload;

use axum::{Extension, Json, extract::State, http::StatusCode, response::Response};
use llmprof_core::domain::{
    ids::{InputsId, RunId},
    inputs::{ImageFormat, InputSample, InputSet, StoredImage},
    json_numbers::Within,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{
    artifact::inputs::ListedManifest,
    http::{
        auth::access::{Caller, check_owner},
        error::{
            ApiError, ErrorCode,
            responses::{
                GuardedErrors, InputsActive, InputsNotFound, InsufficientStorage, InvalidParameter,
                Unavailable,
            },
        },
        extract::params::{ImagePath, InputsPath, Params, parse_id},
        state::App,
    },
    runtime,
    store::{DeletedInputs, StoredInputs},
};

/// Stored inputs in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InputsSummary {
    pub inputs_id: InputsId,
    #[schema(example = "invoices")]
    pub name: String,
    /// Name of the token that uploaded them; `null` if none was required.
    pub owner: Option<String>,
    pub samples: u32,
    pub images: u32,
    /// Size of the images, each content once.
    pub bytes: u64,
    /// Start of the first prompt.
    pub prompt: String,
    /// RFC 3339, UTC, as all times.
    pub created_at: String,
    /// Last upload or submission.
    pub used_at: String,
    /// A queued or running run that needs them; `null`: they can be deleted.
    pub needed_by: Option<RunId>,
}

/// A manifest that a submission can name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ManifestName {
    /// Relative to the service's inputs folder.
    #[schema(example = "inputs.yaml")]
    pub name: String,
    /// Delivered with llmprof.
    pub bundled: bool,
}

/// A page of stored inputs, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InputsList {
    pub inputs: Vec<InputsSummary>,
    /// Manifests of the service's inputs folder and bundled ones, on the first page only.
    pub manifests: Vec<ManifestName>,
    /// The `cursor` of the next page; `null` on the last.
    pub next_cursor: Option<String>,
}

/// Stored inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InputsView {
    pub inputs_id: InputsId,
    #[schema(example = "invoices")]
    pub name: String,
    /// Name of the token that uploaded them; `null` if none was required.
    pub owner: Option<String>,
    pub samples: Vec<InputSample>,
    pub images: Vec<ImageView>,
    /// Seed of the runs of these inputs that state none; `null`: 0.
    pub seed: Option<u64>,
    /// Size of the images, each content once.
    pub bytes: u64,
    pub created_at: String,
    /// Last upload or submission.
    pub used_at: String,
    /// A queued or running run that needs them; `null`: they can be deleted.
    pub needed_by: Option<RunId>,
}

/// An image of stored inputs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageView {
    /// Name that the client gave.
    #[schema(example = "page.png")]
    pub name: String,
    /// Lower-case hexadecimal.
    #[schema(example = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
    pub sha256: String,
    pub bytes: u64,
    /// Pixels.
    pub width: u32,
    pub height: u32,
    pub format: ImageFormat,
    /// Path of a small JPEG.
    pub thumbnail: String,
}

impl From<StoredInputs> for InputsSummary {
    fn from(stored: StoredInputs) -> Self {
        let StoredInputs { id, owner, name, samples, images, bytes, .. } = stored;
        let StoredInputs { created_at, used_at, prompt, needed_by, .. } = stored;
        Self {
            inputs_id: id,
            name,
            owner,
            samples,
            images,
            bytes,
            prompt,
            created_at,
            used_at,
            needed_by,
        }
    }
}

impl InputsView {
    fn of(stored: StoredInputs, set: InputSet) -> Self {
        let image = |(at, image): (usize, StoredImage)| {
            let StoredImage { name, sha256, bytes, width, height, format } = image;
            let thumbnail = format!("/inputs/{}/images/{at}/thumbnail", stored.id);
            ImageView { name, sha256, bytes, width, height, format, thumbnail }
        };
        Self {
            inputs_id: stored.id,
            images: set.images.into_iter().enumerate().map(image).collect(),
            name: stored.name,
            owner: stored.owner,
            samples: set.samples,
            seed: set.seed,
            bytes: stored.bytes,
            created_at: stored.created_at,
            used_at: stored.used_at,
            needed_by: stored.needed_by,
        }
    }
}

/// Page of a list of inputs.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct InputsListQuery {
    /// `next_cursor` of the previous page.
    #[param(format = "uuid")]
    cursor: Option<String>,
    /// Stored inputs per page.
    #[serde(default, deserialize_with = "Within::<1, 200>::optional_parameter")]
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
}

/// List stored inputs, newest first, and the manifests of the service
#[utoipa::path(get, path = "/inputs", tag = "inputs", operation_id = "list_inputs",
    params(InputsListQuery),
    responses(
        (status = 200, description = "A page of stored inputs", body = InputsList,
            example = json!(example::list())),
        GuardedErrors, InvalidParameter))]
pub async fn list(
    State(app): State<App>,
    Params(query): Params<InputsListQuery>,
) -> Result<Json<InputsList>, ApiError> {
    let limit = query.limit.unwrap_or(50);
    let before = query.cursor.as_deref().map(parse_id).transpose()?;
    Ok(Json(page(&app, before, limit).await?))
}

/// Returns up to `limit` stored inputs, starting after `before`.
pub(crate) async fn page(
    app: &App,
    before: Option<InputsId>,
    limit: u32,
) -> Result<InputsList, ApiError> {
    let mut inputs = app.store.list_inputs(before, limit + 1).await?;
    let more = inputs.len() > limit as usize;
    inputs.truncate(limit as usize);
    let next_cursor = inputs.last().filter(|_| more).map(|last| last.id.to_string());
    let manifests = if before.is_none() { manifests(app).await? } else { Vec::new() };
    let inputs = inputs.into_iter().map(InputsSummary::from).collect();
    Ok(InputsList { inputs, manifests, next_cursor })
}

async fn manifests(app: &App) -> Result<Vec<ManifestName>, ApiError> {
    let folders = app.inputs.clone();
    let listed = runtime::blocking(move || folders.list()).await;
    let listed = listed.map_err(|error| ApiError::internal(&error))?;
    let manifest = |ListedManifest { name, bundled }| ManifestName { name, bundled };
    let listed = listed.map_err(|error| ApiError::internal(&error))?;
    Ok(listed.into_iter().map(manifest).collect())
}

/// Show stored inputs
#[utoipa::path(get, path = "/inputs/{inputs_id}", tag = "inputs", operation_id = "get_inputs",
    params(("inputs_id" = InputsId, Path)),
    responses(
        (status = 200, description = "Samples and images", body = InputsView,
            example = json!(example::view())),
        GuardedErrors, InvalidParameter, InputsNotFound))]
pub async fn show(
    State(app): State<App>,
    InputsPath(id): InputsPath,
) -> Result<Json<InputsView>, ApiError> {
    Ok(Json(find(&app, id).await?))
}

/// Returns stored inputs, or a 404.
pub(crate) async fn find(app: &App, id: InputsId) -> Result<InputsView, ApiError> {
    let (stored, set) = app.store.inputs(id).await?.ok_or_else(|| not_found(id))?;
    Ok(InputsView::of(stored, set))
}

pub(crate) fn not_found(id: InputsId) -> ApiError {
    ApiError::new(ErrorCode::InputsNotFound, format!("no inputs {id}"))
}

/// Get a small version of an image, at most 240 pixels per side
///
/// It is made from the image if it is missing, for example after a restore.
#[utoipa::path(get, path = "/inputs/{inputs_id}/images/{image}/thumbnail", tag = "inputs",
    operation_id = "get_thumbnail",
    params(
        ("inputs_id" = InputsId, Path),
        ("image" = u32, Path, description = "Position in the list of images, from 0")),
    responses(
        (status = 200, description = "The thumbnail",
            content(("image/jpeg", example = json!("(bytes of the image)")))),
        GuardedErrors, InvalidParameter, InputsNotFound, Unavailable))]
pub async fn thumbnail(
    State(app): State<App>,
    ImagePath(id, at): ImagePath,
) -> Result<Response, ApiError> {
    let (_, set) = app.store.inputs(id).await?.ok_or_else(|| not_found(id))?;
    let missing = || {
        let message = format!("no image {at} in the inputs {id}: they have {}", set.images.len());
        ApiError::new(ErrorCode::InputsNotFound, message)
    };
    let image = set.images.get(at as usize).ok_or_else(missing)?;
    let content = app.input_storage.content(&image.sha256);
    thumbnails::respond(&app, &image.name, &image.sha256, content).await
}

/// Delete stored inputs that no queued or running run needs
#[utoipa::path(delete, path = "/inputs/{inputs_id}", tag = "inputs",
    operation_id = "delete_inputs",
    params(("inputs_id" = InputsId, Path)),
    responses(
        (status = 204, description = "The inputs are deleted"),
        GuardedErrors, InvalidParameter, InputsNotFound, InputsActive, InsufficientStorage))]
pub async fn delete(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    InputsPath(id): InputsPath,
) -> Result<StatusCode, ApiError> {
    let (stored, _) = app.store.inputs(id).await?.ok_or_else(|| not_found(id))?;
    check_owner(&caller, "upload", stored.owner)?;
    // A task of its own: the files are removed even if the client leaves now.
    let removed = tokio::spawn(async move { remove(&app, id).await });
    removed.await.map_err(|error| ApiError::internal(&error))??;
    Ok(StatusCode::NO_CONTENT)
}

/// Deletes inputs with their files.
pub(crate) async fn remove(app: &App, id: InputsId) -> Result<(), ApiError> {
    let _lock = app.input_storage.lock().await;
    match app.store.delete_inputs(id).await? {
        DeletedInputs::Deleted(contents) => {
            let storage = app.input_storage.clone();
            let removed = runtime::blocking(move || storage.remove(id, &contents)).await;
            if let Ok(Err(error)) = removed {
                tracing::warn!(%id, %error, "cannot remove the files of inputs yet");
            }
            Ok(())
        }
        DeletedInputs::Needed(run) => {
            let message = format!("the run {run} needs the inputs; delete them when it has ended");
            Err(ApiError::new(ErrorCode::InputsActive, message))
        }
        DeletedInputs::NotFound => Err(not_found(id)),
    }
}

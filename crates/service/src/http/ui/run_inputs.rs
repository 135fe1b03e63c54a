//! Inputs on the page of a run: prompts and thumbnails.
//!
//! Images are from stored inputs, or the copies in the sealed folder of the run.

use axum::{
    extract::{Path, State, rejection::PathRejection},
    response::Response,
};
use llmprof_core::{
    domain::{
        ids::{InputsId, RunId},
        input_manifest::{ManifestSample, ManifestSamples},
        inputs::{InputSet, StoredImage},
        run_files::ArtifactRecord,
    },
    layout,
};
use serde::Serialize;

use crate::{
    artifact::inputs::parse_manifest,
    http::{
        api::{
            inputs::thumbnails,
            runs::{self, RunView},
        },
        error::{ApiError, ErrorCode},
        extract::params::{bad_path, parse_id},
        state::App,
    },
};

/// Maximum number of samples on the page of a run, and of the images of each.
const MAX_SAMPLES: usize = 12;
const MAX_SAMPLE_IMAGES: usize = 12;

/// Inputs of a run.
#[derive(Debug, Serialize)]
pub struct RunInputs {
    /// Name of the stored inputs, or of the manifest.
    name: String,
    /// The stored inputs, if they still exist.
    stored: Option<InputsId>,
    /// The first samples; none before the run has ended, unless its inputs are stored.
    samples: Vec<SampleView>,
    /// Number of further samples.
    more: usize,
}

/// A prompt with its images.
#[derive(Debug, Serialize)]
pub struct SampleView {
    prompt: String,
    images: Vec<ThumbnailView>,
    /// Number of further images.
    more_images: usize,
}

/// An image with the path of its thumbnail.
#[derive(Debug, Serialize)]
pub struct ThumbnailView {
    name: String,
    thumbnail: Option<String>,
    /// `1240 x 1754`
    size: Option<String>,
}

/// Returns the inputs of a run; `None` if its subject has none.
pub async fn of(
    app: &App,
    run: &RunView,
    artifacts: &[ArtifactRecord],
) -> Result<Option<RunInputs>, ApiError> {
    let Some(workload) = run.spec.workload() else { return Ok(None) };
    let manifest = workload.inputs_manifest.clone();
    if let Some(id) = InputsId::of_name(&manifest)
        && let Some((stored, set)) = app.store.inputs(id).await?
    {
        let more = set.samples.len().saturating_sub(MAX_SAMPLES);
        let samples = samples_of(id, &set, (MAX_SAMPLES, MAX_SAMPLE_IMAGES));
        return Ok(Some(RunInputs { name: stored.name, stored: Some(id), samples, more }));
    }
    let mut found = RunInputs { name: manifest, stored: None, samples: Vec::new(), more: 0 };
    if let Some(listed) = artifacts.iter().find(|it| it.path == layout::INPUT_MANIFEST) {
        let text = runs::read_listed(app, run.run_id, listed).await?;
        match parse_manifest(&text) {
            Ok(ManifestSamples { samples, .. }) => {
                found.more = samples.len().saturating_sub(MAX_SAMPLES);
                let shown = samples.into_iter().take(MAX_SAMPLES);
                found.samples = shown.map(|it| copied_sample(run.run_id, it, artifacts)).collect();
            }
            Err(why) => tracing::warn!(run = %run.run_id, why, "cannot read a run's inputs"),
        }
    }
    Ok(Some(found))
}

/// The first samples of stored inputs, each with its first images.
pub fn samples_of(
    id: InputsId,
    set: &InputSet,
    (max_samples, max_images): (usize, usize),
) -> Vec<SampleView> {
    let image = |at: &u32| {
        let StoredImage { name, width, height, .. } = set.images.get(*at as usize)?;
        Some(ThumbnailView {
            name: name.clone(),
            thumbnail: Some(format!("/inputs/{id}/images/{at}/thumbnail")),
            size: Some(format!("{width} × {height}")),
        })
    };
    let samples = set.samples.iter().take(max_samples).map(|sample| SampleView {
        prompt: sample.prompt.clone(),
        more_images: sample.images.len().saturating_sub(max_images),
        images: sample.images.iter().take(max_images).filter_map(image).collect(),
    });
    samples.collect()
}

/// A sample of a run's own copies.
fn copied_sample(run: RunId, sample: ManifestSample, artifacts: &[ArtifactRecord]) -> SampleView {
    let more_images = sample.images.len().saturating_sub(MAX_SAMPLE_IMAGES);
    let images = sample.images.into_iter().take(MAX_SAMPLE_IMAGES).map(|image| {
        let file = image.shown();
        let is_sealed = copy(artifacts, &file).is_some();
        let thumbnail = is_sealed.then(|| format!("/ui/runs/{run}/inputs/{file}"));
        ThumbnailView { name: image.name.unwrap_or(file), thumbnail, size: None }
    });
    SampleView { prompt: sample.prompt, images: images.collect(), more_images }
}

/// The sealed copy of an image.
fn copy<'a>(artifacts: &'a [ArtifactRecord], file: &str) -> Option<&'a ArtifactRecord> {
    let path = format!("{}/{file}", layout::INPUT_COPIES);
    artifacts.iter().find(|it| it.path == path && it.media_type.starts_with("image/"))
}

/// `GET /ui/runs/{run_id}/inputs/{image}`: the thumbnail of a run's copy of an image.
pub async fn thumbnail(
    State(app): State<App>,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path((id, file)) = path.map_err(bad_path)?;
    let id: RunId = parse_id(&id)?;
    let artifacts = app.store.artifacts(id).await?;
    let missing = || {
        let message = format!("no image {file:?} in the run {id}");
        ApiError::new(ErrorCode::ArtifactNotFound, message)
    };
    let image = copy(&artifacts, &file).ok_or_else(missing)?;
    let from = app.runs.join(id.to_string()).join(&image.path);
    thumbnails::respond(&app, &file, &image.sha256, from).await
}

//! Inputs of a submission: stored ones or a manifest by name, or images in the body itself.

use std::path::Path;

use base64::{Engine, prelude::BASE64_STANDARD};
use llmprof_core::domain::inputs::{MAX_PROMPT, MAX_SAMPLE_IMAGES};

use super::{
    checks::input_error,
    submissions::{InlineInputs, InputsName, SubmitModel, SubmittedInputs, defaults},
};
use crate::{
    artifact::{
        import_staging::UploadedFile,
        inputs::staging::{InputsUpload, UploadedSamples},
    },
    http::{
        api::inputs::{
            pending::{self, PendingInputs},
            upload,
        },
        error::{ApiError, ErrorCode},
        extract::bounds::check_length,
        state::App,
    },
    runtime,
};

const MAX_NAME: usize = 200;
/// Bytes of all images in a body, decoded.
const MAX_INLINE: usize = 8 << 20;

/// Inputs of a run.
#[derive(Debug)]
pub(super) struct RunInputs {
    /// Name of the manifest; of pending inputs their name.
    pub manifest: String,
    pub samples: usize,
    pub images: usize,
    /// Inputs to be stored before the run is queued.
    pub pending: Option<PendingInputs>,
}

impl From<PendingInputs> for RunInputs {
    fn from(pending: PendingInputs) -> Self {
        let set = pending.set();
        Self {
            manifest: pending.name.clone(),
            samples: set.samples.len(),
            images: set.images.len(),
            pending: Some(pending),
        }
    }
}

/// Finds and checks the inputs of a submission. `uploaded`: those of a form.
pub(super) async fn resolve(
    app: &App,
    run: &SubmitModel,
    reads_images: bool,
    uploaded: Option<PendingInputs>,
) -> Result<RunInputs, ApiError> {
    let name = match (&run.inputs, &run.inputs_manifest, uploaded) {
        (None, None, Some(uploaded)) => return Ok(uploaded.into()),
        (Some(SubmittedInputs::Inline(inline)), None, None) => {
            return Ok(read_inline(app, inline).await?.into());
        }
        (Some(SubmittedInputs::Name(InputsName(name))), None, None) => {
            check_length("inputs", name, 1..=MAX_NAME)?;
            name.clone()
        }
        (None, Some(name), None) => {
            check_length("inputs_manifest", name, 1..=MAX_NAME)?;
            name.clone()
        }
        (None, None, None) => defaults::inputs_manifest(reads_images),
        _ => {
            let message = "inputs and inputs_manifest contradict each other; send one of them";
            return Err(ApiError::new(ErrorCode::RequestContradictory, message));
        }
    };
    let (folders, manifest) = (app.inputs.clone(), name.clone());
    let read = runtime::blocking(move || folders.read(&manifest)).await;
    let inputs = read
        .map_err(|error| ApiError::internal(&error))?
        .map_err(|error| input_error(&name, &error))?;
    let images = inputs.images().count();
    Ok(RunInputs { manifest: name, samples: inputs.samples.len(), images, pending: None })
}

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::InputsInvalid, message)
}

/// Writes the images of a body to files and checks them.
pub(crate) async fn read_inline(
    app: &App,
    inline: &InlineInputs,
) -> Result<PendingInputs, ApiError> {
    let InlineInputs { prompt, images } = inline;
    if prompt.len() > MAX_PROMPT {
        return Err(invalid(format!("the prompt is longer than {MAX_PROMPT} bytes")));
    }
    if images.len() > MAX_SAMPLE_IMAGES {
        let message = format!("{} images; at most {MAX_SAMPLE_IMAGES} are accepted", images.len());
        return Err(invalid(message));
    }
    let folder = app.intake.create_folder().map_err(|error| ApiError::internal(&error))?;
    let (mut files, mut bytes) = (Vec::with_capacity(images.len()), 0);
    for (at, image) in images.iter().enumerate() {
        let name = format!("image-{}", at + 1);
        let path = match image.strip_prefix("sha256:") {
            Some(hash) => stored_content(app, hash).await?,
            None => {
                let image = decode(image).map_err(|why| invalid(format!("{name}: {why}")))?;
                bytes += image.len();
                if bytes > MAX_INLINE {
                    let message = format!(
                        "the images have more than {MAX_INLINE} bytes; store them with POST /inputs"
                    );
                    return Err(ApiError::new(ErrorCode::BodyTooLarge, message));
                }
                let path = folder.path().join(at.to_string());
                tokio::fs::write(&path, image).await.map_err(|e| ApiError::internal(&e))?;
                path
            }
        };
        files.push(UploadedFile { path, name });
    }
    let upload = InputsUpload {
        samples: UploadedSamples { prompt: Some(prompt.clone()), each_image: false },
        files,
        ..upload::files_of(app, &folder, vec![], false)?
    };
    pending::check(app, folder, upload, String::new()).await
}

/// The file of a content that was stored before.
async fn stored_content(app: &App, hash: &str) -> Result<std::path::PathBuf, ApiError> {
    let is_hash =
        hash.len() == 64 && hash.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'));
    if !is_hash {
        let message =
            format!("invalid image \"sha256:{hash:.80}\"; expected 64 hexadecimal digits");
        return Err(invalid(message));
    }
    let known = app.store.known_contents(&[hash.to_owned()]).await?;
    if known.is_empty() {
        let message = format!("no stored image sha256:{hash}; upload it with POST /inputs");
        return Err(ApiError::new(ErrorCode::InputsNotFound, message));
    }
    Ok(Path::new(&app.input_storage.contents()).join(hash))
}

/// The bytes of a data URL.
fn decode(image: &str) -> Result<Vec<u8>, String> {
    let expected = "expected sha256:HASH or data:image/...;base64,...";
    let (head, text) =
        image.strip_prefix("data:image/").and_then(|rest| rest.split_once(',')).ok_or(expected)?;
    if !head.ends_with(";base64") {
        return Err(expected.into());
    }
    BASE64_STANDARD.decode(text).map_err(|error| format!("invalid base64: {error}"))
}

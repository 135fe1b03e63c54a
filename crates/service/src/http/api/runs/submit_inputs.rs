//! Inputs of a submission: stored ones or a manifest by name, or images in the body itself.

use base64::{Engine, prelude::BASE64_STANDARD};
use llmprof_core::domain::{
    image_limits::MAX_INLINE_BYTES,
    input_manifest::{InputManifest, ManifestImage, ManifestSampleText, check_name},
    inputs::MAX_SAMPLE_IMAGES,
};

use super::{
    checks::input_error,
    submissions::{
        InlineImage, InlineInputs, InlineSample, InputsName, NamedImageData, SubmitModel,
        SubmittedInputs, defaults,
    },
};
use crate::{
    artifact::{import_staging::UploadedFile, inputs::staging::InputsUpload},
    http::{
        api::inputs::{
            pending::{self, PendingInputs},
            upload,
        },
        error::{ApiError, ErrorCode},
        extract::bounds::check_length,
        state::{App, UploadFolder},
    },
    runtime,
};

const MAX_NAME: usize = 200;

/// Inputs of a run.
#[derive(Debug)]
pub(super) struct RunInputs {
    /// Name of the manifest; of pending inputs their name.
    pub manifest: String,
    pub samples: usize,
    pub images: usize,
    /// Seed that they state.
    pub seed: Option<u64>,
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
            seed: set.seed,
            pending: Some(pending),
        }
    }
}

/// Finds and checks the inputs of a submission. `uploaded`: the inputs of a form.
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
        (_, _, uploaded) => {
            let message = match uploaded {
                Some(_) => {
                    "the files of the form and its stored inputs contradict each other; \
                            send one of them"
                }
                None => "inputs and inputs_manifest contradict each other; send one of them",
            };
            return Err(ApiError::new(ErrorCode::RequestContradictory, message));
        }
    };
    let (folders, manifest) = (app.inputs.clone(), name.clone());
    let read = runtime::blocking(move || folders.read(&manifest)).await;
    let inputs = read
        .map_err(|error| ApiError::internal(&error))?
        .map_err(|error| input_error(&name, &error))?;
    let images = inputs.images().count();
    let (samples, seed) = (inputs.samples.len(), inputs.seed);
    Ok(RunInputs { manifest: name, samples, images, seed, pending: None })
}

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::InputsInvalid, message)
}

/// Finds the images of a body, or writes them to files, and checks them.
pub(crate) async fn read_inline(
    app: &App,
    inline: &InlineInputs,
) -> Result<PendingInputs, ApiError> {
    let folder = app.intake.create_folder().map_err(|error| ApiError::internal(&error))?;
    let mut images = InlineImages::default();
    let manifest = InputManifest {
        prompt: inline.prompt.clone(),
        seed: inline.seed,
        images: images.add(&inline.images)?,
        samples: inline
            .samples
            .iter()
            .map(|InlineSample { prompt, images: of_sample }| {
                let (prompt, images) = (prompt.clone(), images.add(of_sample)?);
                Ok(ManifestSampleText { prompt, images })
            })
            .collect::<Result<_, ApiError>>()?,
    };
    let stated = manifest.samples().map_err(|why| invalid(format!("inputs: {why}")))?;
    let upload = InputsUpload {
        files: images.write(&folder).await?,
        stated: Some(stated),
        ..upload::files_of(app, &folder, vec![], false)?
    };
    pending::check(app, folder, upload, String::new()).await
}

/// Images of a body, in order.
#[derive(Default)]
struct InlineImages {
    /// Number of images, of hashes too.
    count: usize,
    files: Vec<InlineFile>,
    /// Decoded bytes of all images.
    bytes: u64,
}

/// Content of an image in a body.
struct InlineFile {
    /// Name of the file in the upload.
    name: String,
    content: Vec<u8>,
}

impl InlineImages {
    /// Reads the images of a sample; returns them as images of a manifest.
    fn add(&mut self, images: &[InlineImage]) -> Result<Vec<ManifestImage>, ApiError> {
        if images.len() > MAX_SAMPLE_IMAGES {
            let message =
                format!("{} images; at most {MAX_SAMPLE_IMAGES} are accepted", images.len());
            return Err(invalid(message));
        }
        images.iter().map(|image| self.add_one(image)).collect()
    }

    fn add_one(&mut self, image: &InlineImage) -> Result<ManifestImage, ApiError> {
        self.count += 1;
        let position = format!("image-{}", self.count);
        match image {
            InlineImage::Text(text) => match text.strip_prefix("sha256:") {
                Some(hash) => Ok(of_hash(hash, position)),
                None => self.add_file(text, position.clone(), position),
            },
            InlineImage::Named(NamedImageData { data, name }) => {
                check_name(name).map_err(invalid)?;
                self.add_file(data, name.clone(), position)
            }
            InlineImage::OfManifest(image) => {
                let path = || image.path.as_ref().map(|it| it.display().to_string());
                let name = image.name.clone().or_else(path).unwrap_or(position);
                let hash = image.sha256.as_ref().ok_or_else(|| {
                    invalid(format!(
                        "image {name}: it has no sha256; send a file with POST /inputs or as a \
                         data URL"
                    ))
                })?;
                Ok(of_hash(hash, name))
            }
        }
    }

    /// Adds the file `file` with the content of a data URL.
    fn add_file(
        &mut self,
        data: &str,
        name: String,
        file: String,
    ) -> Result<ManifestImage, ApiError> {
        let content = decode(data).map_err(|why| invalid(format!("image {name}: {why}")))?;
        self.bytes += content.len() as u64;
        if self.bytes > MAX_INLINE_BYTES {
            let message = format!(
                "the images have more than {MAX_INLINE_BYTES} bytes; store them with POST /inputs"
            );
            return Err(ApiError::new(ErrorCode::BodyTooLarge, message));
        }
        self.files.push(InlineFile { name: file.clone(), content });
        Ok(ManifestImage { name: Some(name), ..ManifestImage::of_path(file) })
    }

    /// Writes the files to `folder`.
    async fn write(self, folder: &UploadFolder) -> Result<Vec<UploadedFile>, ApiError> {
        let mut files = Vec::with_capacity(self.files.len());
        for InlineFile { name, content } in self.files {
            let path = folder.path().join(&name);
            tokio::fs::write(&path, content).await.map_err(|e| ApiError::internal(&e))?;
            files.push(UploadedFile { path, name });
        }
        Ok(files)
    }
}

/// An image whose content the service has.
fn of_hash(hash: &str, name: String) -> ManifestImage {
    ManifestImage { sha256: Some(hash.to_owned()), name: Some(name), ..ManifestImage::default() }
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

//! Images of the form that submits a run: received like uploads over the API.

use axum::{body::Body, http::HeaderMap};

use super::forms::Fields;
use crate::{
    artifact::inputs::staging::{InputsUpload, UploadedSamples},
    http::{
        api::inputs::{
            pending::{self, PendingInputs},
            upload,
        },
        auth::{access::Caller, upload_slots::UploadSlot},
        error::ApiError,
        state::{App, UploadFolder},
    },
};

/// Prompt of images without one and without a manifest.
const DEFAULT_PROMPT: &str = "Convert the document to markdown.";

/// Fields and images of a form.
pub(super) struct ReceivedForm {
    pub fields: Fields,
    /// `None` if no image was chosen.
    pub images: Option<FormImages>,
}

/// Received images with their folder, which is removed on drop.
pub(super) struct FormImages {
    folder: UploadFolder,
    upload: InputsUpload,
    /// The place of an upload, until the images are checked.
    _slot: UploadSlot,
}

/// Receives a form.
pub(super) async fn receive(
    app: &App,
    caller: &Caller,
    headers: &HeaderMap,
    body: Body,
) -> Result<ReceivedForm, ApiError> {
    let slot = app.access.upload_slot(caller)?;
    let folder = app.intake.create_folder().map_err(|error| ApiError::internal(&error))?;
    let receiver = upload::receiver(app, &folder, headers, true)?;
    let received = upload::receive_form(receiver, headers, body).await;
    let received = upload::count_slow(app, received)?;
    let upload = upload::files_of(app, &folder, received.files, false)?;
    let has_files = !upload.files.is_empty() || upload.manifest.is_some();
    let images = has_files.then(|| FormImages { folder, upload, _slot: slot });
    Ok(ReceivedForm { fields: received.fields, images })
}

impl FormImages {
    /// Checks the images.
    pub async fn check(
        self,
        app: &App,
        mut samples: UploadedSamples,
    ) -> Result<PendingInputs, ApiError> {
        if self.upload.manifest.is_none() {
            samples.prompt.get_or_insert_with(|| DEFAULT_PROMPT.into());
        }
        let upload = InputsUpload { samples, ..self.upload };
        pending::check(app, self.folder, upload, String::new()).await
    }
}

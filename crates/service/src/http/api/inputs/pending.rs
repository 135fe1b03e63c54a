//! Inputs that were checked and are not stored yet: their files are in the folder of an upload,
//! which is removed unless they are stored.

use std::io;

use llmprof_core::domain::{hex::hex, ids::InputsId, inputs::InputSet};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use super::{
    by_hash::{self, hashes_in},
    upload::RULES,
};
use crate::{
    artifact::{
        import_staging::{IntakeError, UploadLimits},
        inputs::staging::{self, InputsInspection, InputsUpload, StagedInputs},
    },
    http::{
        error::{ApiError, ErrorCode},
        state::{App, UploadFolder},
    },
    runtime::{self, work::SlicedWork},
    store::{AddedInputs, NewInputs},
};

/// Checked inputs with the folder of their upload.
#[derive(Debug)]
pub struct PendingInputs {
    /// Removed on drop.
    _folder: UploadFolder,
    pub name: String,
    staged: StagedInputs,
}

/// Id of stored inputs; `is_new` is false if the owner had the same content.
#[derive(Debug, Clone, Copy)]
pub struct StoredId {
    pub id: InputsId,
    pub is_new: bool,
}

/// Limits on uploads of inputs.
pub(super) fn limits(app: &App) -> UploadLimits {
    UploadLimits {
        max_bytes: app.config.inputs.upload_bytes,
        least_free: app.config.limits.free_bytes,
    }
}

/// Checks an upload in a child process.
pub(crate) async fn check(
    app: &App,
    folder: UploadFolder,
    upload: InputsUpload,
    name: String,
) -> Result<PendingInputs, ApiError> {
    let hashes = hashes_of(&upload).await.map_err(|error| ApiError::internal(&error))?;
    by_hash::find_contents(app, &folder, &hashes).await?;
    // A prompt alone has no file to be read.
    let has_files = upload.manifest.is_some() || !upload.files.is_empty() || !hashes.is_empty();
    let staged = if has_files { inspect(app, upload).await } else { staging::stage(&upload) };
    let staged = staged.map_err(|error| RULES.refuse(error))?;
    let name = if name.is_empty() { default_name(&staged.set) } else { name };
    Ok(PendingInputs { _folder: folder, name, staged })
}

/// Hashes of images that an upload names.
async fn hashes_of(upload: &InputsUpload) -> io::Result<Vec<String>> {
    match (&upload.stated, &upload.manifest) {
        (Some(stated), _) => Ok(stated.images().filter_map(|it| it.sha256.clone()).collect()),
        (None, Some(manifest)) => Ok(hashes_in(&tokio::fs::read(&manifest.path).await?)),
        (None, None) => Ok(Vec::new()),
    }
}

/// Checks an upload with files in a child process.
pub(super) async fn inspect(app: &App, upload: InputsUpload) -> Result<StagedInputs, IntakeError> {
    let (answer, answered) = oneshot::channel();
    let inspection = InputsInspection { upload, answer };
    let sent = app.intake.inspector.send(inspection.into()).await;
    sent.map_err(|_| IntakeError::Stopped)?;
    answered.await.unwrap_or(Err(IntakeError::Stopped))
}

/// The name of inputs without one: of the first image, else the start of the prompt.
fn default_name(set: &InputSet) -> String {
    let prompt = || set.samples.first().map_or("", |sample| &sample.prompt);
    let name = set.images.first().map_or_else(prompt, |image| &image.name);
    let plain: String = name.chars().filter(|it| !it.is_control()).take(60).collect();
    if plain.is_empty() { "inputs".into() } else { plain }
}

impl PendingInputs {
    pub fn set(&self) -> &InputSet {
        &self.staged.set
    }

    /// Stores the inputs durably, within the quotas.
    pub async fn store(&self, app: &App, owner: Option<String>) -> Result<StoredId, ApiError> {
        let id = InputsId::now();
        let content = self.staged.set.content();
        let sha256 = hex(&Sha256::digest(content));
        let new = NewInputs {
            id,
            name: self.name.clone(),
            owner: owner.clone(),
            sha256,
            set: self.staged.set.clone(),
            max_owner: app.config.inputs.bytes_per_owner,
            max_total: app.config.inputs.total_bytes,
        };
        let _lock = app.input_storage.lock().await;
        let (storage, staged) = (app.input_storage.clone(), self.staged.clone());
        let add = move |work: &SlicedWork| storage.add(id, &staged, work);
        let added = runtime::stoppable(&SlicedWork::new(&app.closing), add).await;
        added.map_err(|error| RULES.refuse(IntakeError::from(error)))?;
        let outcome = app.store.add_inputs(&new).await;
        if !matches!(outcome, Ok(AddedInputs::New)) {
            self.discard(app, id).await;
        }
        let full = |message: String| Err(ApiError::new(ErrorCode::DiskQuota, message));
        match outcome? {
            AddedInputs::New => Ok(StoredId { id, is_new: true }),
            AddedInputs::Same(id) => Ok(StoredId { id, is_new: false }),
            AddedInputs::OwnerFull(bytes) => full(format!(
                "quota of inputs exceeded: {:?} stores {bytes} bytes \
                 (inputs.bytes_per_owner); delete some",
                owner.unwrap_or_default()
            )),
            AddedInputs::Full(bytes) => full(format!(
                "quota of inputs exceeded: all inputs take {bytes} bytes (inputs.total_bytes); \
                 delete some"
            )),
        }
    }

    /// Removes the files of inputs that were not stored, except contents of others.
    async fn discard(&self, app: &App, id: InputsId) {
        let wanted: Vec<String> =
            self.staged.set.images.iter().map(|image| image.sha256.clone()).collect();
        // Without an answer all stay, and the next start removes them.
        let Ok(known) = app.store.known_contents(&wanted).await else { return };
        let unlisted: Vec<String> = wanted.into_iter().filter(|it| !known.contains(it)).collect();
        let storage = app.input_storage.clone();
        let removed = runtime::blocking(move || storage.remove(id, &unlisted)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(%id, %error, "cannot remove the files of refused inputs yet");
        }
    }
}

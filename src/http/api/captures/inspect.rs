//! Inspection of uploaded files before their import is queued.

use std::{fs, io, path::Path};

use tokio::sync::oneshot;

use super::fields::UploadFields;
use crate::{
    artifact::{
        import_staging::{self, Inspection, IntakeError},
        layout,
    },
    domain::import::{CaptureKind, Import, ImportedFile},
    http::{
        error::{ApiError, ErrorCode},
        extract::upload::{ReceivedFile, plain_name},
        state::Intake,
    },
};

const MAX_FILES: usize = 16;

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::CaptureInvalid, message)
}

/// Inspects all files and moves them to their places in a run's folder.
pub(super) async fn inspect(
    intake: &Intake,
    folder: &Path,
    files: Vec<ReceivedFile>,
    fields: &UploadFields,
) -> Result<Import, ApiError> {
    if files.is_empty() {
        return Err(invalid("the form has no file; send it as a part called `file`"));
    }
    if files.len() > MAX_FILES {
        return Err(invalid(format!("{} files; an import has at most {MAX_FILES}", files.len())));
    }
    let (mut found, mut total_bytes, mut pages) = (Vec::new(), 0, 0);
    for file in files {
        let name = [&file.name, &plain_name(&fields.name)]
            .into_iter()
            .find(|name| !name.is_empty())
            .map_or_else(|| "capture".to_owned(), String::clone);
        let (kind, bytes) = settle(intake, &file, &name, total_bytes).await?;
        total_bytes += bytes;
        check_content(intake, &file.path, kind, fields)
            .await?
            .map_err(|reason| invalid(format!("{name}: {reason}")))?;
        let path = match kind {
            CaptureKind::Timeline => layout::NSYS_EXPORT.to_owned(),
            CaptureKind::Report => layout::NSYS_REPORT.to_owned(),
            CaptureKind::Counters => {
                pages += 1;
                layout::imported_page(pages)
            }
        };
        move_file(&file.path, &folder.join(&path)).map_err(|error| ApiError::internal(&error))?;
        found.push(ImportedFile { name, kind, bytes, path });
    }
    if found.iter().filter(|file| file.kind != CaptureKind::Counters).count() > 1 {
        return Err(invalid("more than one timeline; import each separately"));
    }
    Ok(fields.import(found))
}

/// Decompresses a file, and returns its kind and size.
async fn settle(
    intake: &Intake,
    file: &ReceivedFile,
    name: &str,
    total_bytes: u64,
) -> Result<(CaptureKind, u64), ApiError> {
    let (path, limits) = (file.path.clone(), intake.limits);
    let settled =
        tokio::task::spawn_blocking(move || import_staging::settle(&path, total_bytes, limits));
    match settled.await.map_err(|error| ApiError::internal(&error))? {
        Err(IntakeError::Unfit(reason)) => Err(invalid(format!("{name}: {reason}"))),
        settled => Ok(settled?),
    }
}

/// Returns the inspector's verdict on the content of a file.
async fn check_content(
    intake: &Intake,
    path: &Path,
    kind: CaptureKind,
    fields: &UploadFields,
) -> Result<Result<(), String>, ApiError> {
    let stopping = || {
        let message = "cannot inspect the capture: the service is stopping";
        ApiError::new(ErrorCode::Unavailable, message)
    };
    let (answer, answered) = oneshot::channel();
    let rules = fields.import(vec![]);
    let inspection = Inspection { path: path.to_owned(), kind, rules, answer };
    intake.inspector.send(inspection).await.map_err(|_| stopping())?;
    answered.await.map_err(|_| stopping())
}

fn move_file(from: &Path, to: &Path) -> io::Result<()> {
    to.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::rename(from, to)
}

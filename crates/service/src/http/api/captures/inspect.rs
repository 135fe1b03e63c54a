//! Inspection of uploaded files before their import is queued.

use std::{fs, io, path::Path};

use llmprof_core::{
    domain::{
        file_name::plain_name,
        import::{CaptureKind, Import, ImportedFile},
    },
    layout,
};
use tokio::sync::oneshot;

use super::{RULES, fields::UploadFields};
use crate::{
    artifact::import_staging::{CapturesInspection, InspectedFile, IntakeError, UploadedFile},
    http::{
        error::{ApiError, ErrorCode},
        extract::upload::ReceivedFile,
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
    let uploaded: Vec<UploadedFile> = files
        .into_iter()
        .map(|file| UploadedFile { name: name_of(&file, fields), path: file.path })
        .collect();
    let inspected = request(intake, folder, uploaded.clone(), fields).await?;
    let (mut found, mut pages, mut traces) = (Vec::new(), 0, 0);
    for (UploadedFile { path: from, name }, InspectedFile { kind, bytes }) in
        uploaded.into_iter().zip(inspected)
    {
        let path = match kind {
            CaptureKind::Timeline => layout::NSYS_EXPORT.to_owned(),
            CaptureKind::Report => layout::NSYS_REPORT.to_owned(),
            CaptureKind::PytorchTrace => {
                traces += 1;
                layout::imported_trace(traces)
            }
            CaptureKind::Counters => {
                pages += 1;
                layout::imported_page(pages)
            }
            CaptureKind::CounterReport => {
                pages += 1;
                layout::imported_counter_report(pages)
            }
        };
        move_file(&from, &folder.join(&path)).map_err(|error| ApiError::internal(&error))?;
        found.push(ImportedFile { name, kind, bytes, path });
    }
    // The traces of one program's processes are one timeline.
    let timelines = found.iter().filter(|file| !file.kind.has_counters()).count();
    if timelines > traces.max(1) {
        return Err(invalid("more than one timeline; import each separately"));
    }
    Ok(fields.import(found))
}

/// The client's name of a file.
fn name_of(file: &ReceivedFile, fields: &UploadFields) -> String {
    let names = [file.name.clone(), plain_name(fields.name.as_deref().unwrap_or_default())];
    names.into_iter().find(|name| !name.is_empty()).unwrap_or_else(|| "capture".into())
}

/// Returns the kinds and sizes of the unpacked files.
async fn request(
    intake: &Intake,
    folder: &Path,
    files: Vec<UploadedFile>,
    fields: &UploadFields,
) -> Result<Vec<InspectedFile>, ApiError> {
    let (answer, answered) = oneshot::channel();
    let (limits, rules) = (intake.limits, fields.import(vec![]));
    let inspection = CapturesInspection { folder: folder.to_owned(), files, limits, rules, answer };
    let stopped = |error| RULES.refuse(error);
    intake.inspector.send(inspection.into()).await.map_err(|_| stopped(IntakeError::Stopped))?;
    answered.await.unwrap_or(Err(IntakeError::Stopped)).map_err(stopped)
}

fn move_file(from: &Path, to: &Path) -> io::Result<()> {
    to.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::rename(from, to)
}

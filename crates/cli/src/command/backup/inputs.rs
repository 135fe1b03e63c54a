//! Stored inputs in a backup: their contents by hash. Manifests are written again from the
//! database; thumbnails are not kept, since they are made again when they are first requested.

use std::path::Path;

use anyhow::{Context as _, Result};
use llmprof_core::domain::{inputs::StoredImage, run_files::ArtifactRecord};
use llmprof_service::{
    artifact::{
        backup::{self, BackupOutcome},
        inputs::storage::{FOLDER, InputStorage},
        packed::resolved,
    },
    runtime::work::SlicedWork,
    store::Store,
};

use super::CopyCounts;
use crate::command::client::terminal::print_notice;

/// A content as a file of the folder of stored inputs.
fn artifact(image: &StoredImage) -> ArtifactRecord {
    ArtifactRecord {
        path: format!("contents/{}", image.sha256),
        bytes: image.bytes,
        sha256: image.sha256.clone(),
        media_type: image.format.media_type().into(),
        step: None,
    }
}

impl CopyCounts {
    /// Keeps the contents of all stored inputs.
    pub(super) async fn inputs(&mut self, store: &Store, data: &Path, to: &Path) -> Result<()> {
        let folder = resolved(&data.join(FOLDER));
        for id in store.input_files().await?.0 {
            let Some((_, set)) = store.inputs(id).await? else { continue };
            for image in &set.images {
                if !self.wanted.insert(image.sha256.clone()) {
                    continue;
                }
                self.files += 1;
                match backup::keep(to, &folder, &artifact(image), &self.work) {
                    Ok(BackupOutcome::Already) => {}
                    Ok(BackupOutcome::Copied(bytes)) => {
                        (self.new, self.bytes) = (self.new + 1, self.bytes + bytes);
                    }
                    Ok(BackupOutcome::Changed) => {
                        self.faults.push(format!("inputs {id}: {} has changed", image.name));
                    }
                    // They were deleted meanwhile.
                    Err(_) if store.inputs(id).await?.is_none() => break,
                    Err(error) => self.faults.push(format!("inputs {id}: {}: {error}", image.name)),
                }
            }
        }
        Ok(())
    }
}

/// Restores all stored inputs of the database; returns files, bytes and faults.
pub(super) async fn restore(
    store: &Store,
    from: &Path,
    data: &Path,
    work: &SlicedWork,
) -> Result<(u64, u64, u64)> {
    let folder = data.join(FOLDER);
    let storage = InputStorage::open(&folder).context("cannot create the folder of inputs")?;
    let (mut files, mut bytes, mut faults) = (0, 0, 0);
    for id in store.input_files().await?.0 {
        let Some((_, set)) = store.inputs(id).await? else { continue };
        storage.write_manifest(id, &set).with_context(|| format!("cannot restore inputs {id}"))?;
        for image in &set.images {
            if storage.content(&image.sha256).exists() {
                continue;
            }
            match backup::bring_back(from, &folder, &artifact(image), work) {
                Ok(Some((stored, _))) => (files, bytes) = (files + 1, bytes + stored),
                Ok(None) | Err(_) => {
                    faults += 1;
                    print_notice(format_args!("inputs {id}: {} is not in the backup", image.name));
                }
            }
        }
    }
    Ok((files, bytes, faults))
}

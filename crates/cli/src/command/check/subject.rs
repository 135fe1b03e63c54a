//! Subject of a sealed folder with its rows: a run or an alignment.

use std::{fmt, fs, io, path::Path};

use anyhow::{Context as _, Result};
use llmprof_core::{
    domain::{
        ids::{AlignmentId, RunId},
        run_files::ArtifactRecord,
        subject::SubjectKind,
    },
    layout,
};
use llmprof_service::{
    artifact::verify::FileFault,
    store::{Removal, ScrubSubject, Store, StoreError},
};

/// Subject of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderSubject {
    Run(RunId),
    Alignment(AlignmentId),
}

impl FolderSubject {
    /// The files that the database lists of it.
    pub async fn rows(self, store: &Store) -> Result<Vec<ArtifactRecord>, StoreError> {
        match self {
            Self::Run(id) => store.artifacts(id).await,
            Self::Alignment(id) => store.alignment_artifacts(id).await,
        }
    }

    /// True if the database contains it.
    pub async fn is_known(self, store: &Store) -> Result<bool, StoreError> {
        Ok(match self {
            Self::Run(id) => store.owner(id).await?.is_some(),
            Self::Alignment(id) => store.alignment(id).await?.is_some(),
        })
    }

    /// Its record while its folder remains to be removed.
    pub fn removal(self) -> Removal {
        match self {
            Self::Run(id) => Removal::Run(id),
            Self::Alignment(id) => Removal::Alignment(id),
        }
    }

    /// Replaces the files that the database lists of it.
    pub async fn set_rows(self, store: &Store, rows: &[ArtifactRecord]) -> Result<(), StoreError> {
        match self {
            Self::Run(id) => store.set_artifacts(id, rows).await,
            Self::Alignment(id) => store.set_alignment_artifacts(id, rows).await,
        }
    }

    /// Records the faults of its files, as a scrub does; none: forgets earlier ones.
    pub async fn record_damage(
        self,
        store: &Store,
        damage: &[(String, String)],
    ) -> Result<(), StoreError> {
        let subject = match self {
            Self::Run(id) => ScrubSubject::Run(id),
            Self::Alignment(id) => ScrubSubject::Alignment(id),
        };
        store.record_scrub(subject, damage).await.map(drop)
    }

    /// Requeues it because files in `dir` are lost; returns false if it cannot be executed again:
    /// it is pinned, was cancelled, or has a fault in a file that was imported.
    pub async fn requeue(
        self,
        store: &Store,
        dir: &Path,
        faults: &[(String, FileFault)],
    ) -> Result<bool> {
        let id = match self {
            Self::Alignment(id) => return Ok(store.requeue_ended_alignment(id).await?),
            Self::Run(id) => id,
        };
        let is_import =
            store.run(id).await?.is_some_and(|run| run.spec.kind() == SubjectKind::Import);
        let is_imported = |path: &str| {
            let first = path.split('/').next().unwrap_or_default();
            layout::IMPORTED.contains(&first)
        };
        if is_import && faults.iter().any(|(path, _)| is_imported(path)) {
            return Ok(false);
        }
        // The result would count for the first attempt of the new execution.
        for name in [layout::RESULT, layout::GATHERED] {
            match fs::remove_file(dir.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("cannot remove {name} of run {id}"));
                }
                _ => {}
            }
        }
        Ok(store.requeue_ended(id).await?)
    }
}

impl fmt::Display for FolderSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(id) => write!(f, "run {id}"),
            Self::Alignment(id) => write!(f, "alignment {id}"),
        }
    }
}

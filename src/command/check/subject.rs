//! Subject of a sealed folder with its rows: a run or an alignment.

use std::fmt;

use llmprof::{
    domain::{
        ids::{AlignmentId, RunId},
        run_files::ArtifactRecord,
    },
    store::{Removal, Store, StoreError},
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
}

impl fmt::Display for FolderSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(id) => write!(f, "run {id}"),
            Self::Alignment(id) => write!(f, "alignment {id}"),
        }
    }
}

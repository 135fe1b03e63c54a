//! What a sealed folder belongs to, and its rows: a run, carried out or imported, or an alignment.

use std::fmt;

use llmprof::{
    run::{AlignmentId, ArtifactRecord, RunId},
    store::{Store, StoreError},
};

/// What a folder belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    Run(RunId),
    Alignment(AlignmentId),
}

impl Subject {
    /// The files that the database lists of it.
    pub async fn rows(self, store: &Store) -> Result<Vec<ArtifactRecord>, StoreError> {
        match self {
            Self::Run(id) => store.artifacts(id).await,
            Self::Alignment(id) => store.alignment_artifacts(id).await,
        }
    }

    /// Says whether the database knows it.
    pub async fn is_known(self, store: &Store) -> Result<bool, StoreError> {
        Ok(match self {
            Self::Run(id) => store.owner(id).await?.is_some(),
            Self::Alignment(id) => store.alignment(id).await?.is_some(),
        })
    }

    /// Replaces the files that the database lists of it.
    pub async fn set_rows(self, store: &Store, rows: &[ArtifactRecord]) -> Result<(), StoreError> {
        match self {
            Self::Run(id) => store.set_artifacts(id, rows).await,
            Self::Alignment(id) => store.set_alignment_artifacts(id, rows).await,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(id) => write!(f, "run {id}"),
            Self::Alignment(id) => write!(f, "alignment {id}"),
        }
    }
}

//! Identifiers of runs, sessions, sweeps, alignments and stored inputs: UUIDs of version 7, which
//! sort by creation time.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! ids {
    ($(#[$meta:meta])* $name:ident) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        $(#[$meta])*
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// Returns a new id with the current time.
            pub fn now() -> Self {
                Self(Uuid::now_v7())
            }

            /// When the id was given, milliseconds since 1970.
            pub fn given_ms(&self) -> Option<i64> {
                let (seconds, nanos) = self.0.get_timestamp()?.to_unix();
                Some(i64::try_from(seconds).ok()? * 1000 + i64::from(nanos / 1_000_000))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(s: &str) -> Result<Self, Self::Err> {
                s.parse().map(Self)
            }
        }
    };
}

ids! {
    /// Identifies a run.
    #[cfg_attr(
        feature = "schema",
        schema(value_type = Uuid, example = "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10")
    )]
    RunId
}

ids! {
    /// Identifies an alignment.
    #[cfg_attr(
        feature = "schema",
        schema(value_type = Uuid, example = "019aa1c2-0f3b-7a60-8c1d-5b2e9d4f6a71")
    )]
    AlignmentId
}

ids! {
    /// Identifies stored inputs.
    #[cfg_attr(
        feature = "schema",
        schema(value_type = Uuid, example = "019aa2d4-77b0-7e15-b6c3-0d9e51f2a834")
    )]
    InputsId
}

ids! {
    /// Identifies a session.
    #[cfg_attr(
        feature = "schema",
        schema(value_type = Uuid, example = "019aa3b1-5c2e-7f10-8a4d-6e1b3c9d2f45")
    )]
    SessionId
}

ids! {
    /// Identifies a sweep.
    #[cfg_attr(
        feature = "schema",
        schema(value_type = Uuid, example = "019aa4c7-1f0d-7d29-b3a6-8e5f2c417b90")
    )]
    SweepId
}

impl SessionId {
    /// Mark of its processes and temporary files. No run has the same id.
    pub const fn mark(self, folder: FolderId) -> RunMark {
        RunMark { folder, run: RunId(self.0) }
    }
}

impl InputsId {
    /// The id that a submission names in place of a manifest, in its canonical form only.
    pub fn of_name(name: &str) -> Option<Self> {
        name.parse().ok().filter(|id: &Self| id.to_string() == name)
    }
}

/// Identifies a data folder on its host. Copies of a folder have other ids.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FolderId(pub Uuid);

/// Identifies the processes and temporary files of a run. A restored copy of a data folder has runs
/// of the same ids, so the folder is a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunMark {
    pub folder: FolderId,
    pub run: RunId,
}

impl From<RunId> for RunMark {
    /// The mark of a run outside of a data folder.
    fn from(run: RunId) -> Self {
        Self { folder: FolderId::default(), run }
    }
}

impl fmt::Display for RunMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.run.fmt(f)
    }
}

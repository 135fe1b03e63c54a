//! Folders of a service: locked, created and emptied before it starts.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, Result, bail};
use llmprof_core::domain::ids::FolderId;
use llmprof_service::{
    artifact::{
        data_folder::{self, FolderLock},
        durable,
        inputs::{
            InputFolders,
            storage::{self, InputStorage},
        },
        samples,
    },
    config,
};

use super::super::backup::RESTORING;

const SESSIONS: &str = "sessions";
const PACKING: &str = "packing";
/// Folder of uploads.
pub(super) const INCOMING: &str = "incoming";

/// Folders of the service.
pub(super) struct ServiceFolders {
    pub data: PathBuf,
    pub inputs: Arc<InputFolders>,
    pub input_storage: InputStorage,
    pub runs: PathBuf,
    pub alignments: PathBuf,
    /// Folders of sessions that have not ended.
    pub sessions: PathBuf,
    pub lock: Arc<FolderLock>,
    pub identity: FolderId,
    /// Holds the file that is being packed; empty at start.
    pub packing: PathBuf,
    /// Folders that an earlier service left, to be removed.
    pub leftovers: PathBuf,
}

impl ServiceFolders {
    /// Locks the data folder and creates the others; rejects an incomplete restore.
    pub fn prepare(data: PathBuf, server: &config::ServerSettings) -> Result<Self> {
        let lock = Arc::new(FolderLock::take(&data)?);
        let identity = data_folder::identity(&data)
            .with_context(|| format!("cannot identify {}", data.display()))?;
        if data.join(RESTORING).exists() {
            bail!(
                "{} contains an incomplete restore; empty the folder and restore again",
                data.display()
            );
        }
        let stored = create_folder(&data.join(storage::FOLDER))?;
        let input_storage = InputStorage::open(&stored)
            .with_context(|| format!("cannot use the folder {}", stored.display()))?;
        let inputs = Arc::new(input_folders(&data, &server.inputs, stored)?);
        let runs = create_folder(&data.join("runs"))?;
        let alignments = create_folder(&data.join("alignments"))?;
        let leftovers = create_folder(&data.join("leftovers"))?;
        for name in [SESSIONS, PACKING, INCOMING] {
            set_aside(&data.join(name), &leftovers)?;
        }
        let sessions = create_folder(&data.join(SESSIONS))?;
        let packing = create_folder(&data.join(PACKING))?;
        Ok(Self {
            data,
            inputs,
            input_storage,
            runs,
            alignments,
            sessions,
            lock,
            identity,
            packing,
            leftovers,
        })
    }
}

/// The folders of inputs; the samples are always available.
fn input_folders(data: &Path, configured: &Path, stored: PathBuf) -> Result<InputFolders> {
    let samples = data.join("samples");
    samples::unpack(&samples)
        .with_context(|| format!("cannot write the samples to {}", samples.display()))?;
    let manifests = if configured.as_os_str().is_empty() {
        samples.clone()
    } else {
        configured
            .canonicalize()
            .with_context(|| format!("cannot use the inputs folder {}", configured.display()))?
    };
    Ok(InputFolders { manifests, samples, stored })
}

/// Moves the folder at `path`, if there is one, into `leftovers`: its removal may take long.
fn set_aside(path: &Path, leftovers: &Path) -> Result<()> {
    match std::fs::rename(path, leftovers.join(uuid::Uuid::now_v7().to_string())) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot empty the folder {}", path.display()))
        }
        _ => Ok(()),
    }
}

pub(super) fn create_folder(path: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(path)
        .and_then(|()| durable::sync_parent(path))
        .with_context(|| format!("cannot create the folder {}", path.display()))?;
    path.canonicalize().with_context(|| format!("cannot use the folder {}", path.display()))
}

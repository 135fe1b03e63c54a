//! State that the handlers share.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use llmprof_core::{
    domain::{command::Commands, device::Device, profiling::Presets},
    trace::{checkup::Checkup, power::GpuReading},
};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    artifact::{
        data_folder::FolderLock,
        free_space::{self, LowSpace},
        import_staging::UploadLimits,
        inputs::{InputFolders, storage::InputStorage},
        inspection::Inspection,
    },
    config::{Config, Models, RefusedModel},
    http::auth::access::AccessControl,
    measuring::{Measuring, UPLOAD_WAIT},
    runtime::work::SlicedWork,
    store::Store,
};

/// Shared state.
#[derive(Debug, Clone)]
pub struct App {
    pub store: Store,
    pub access: Arc<AccessControl>,
    /// The data folder of this service.
    pub folder: Arc<FolderLock>,
    /// Folder of the runs' folders.
    pub runs: PathBuf,
    /// Folder of the alignments' folders.
    pub alignments: PathBuf,
    /// Folders of input manifests.
    pub inputs: Arc<InputFolders>,
    pub input_storage: InputStorage,
    pub models: Arc<Models>,
    /// Models of the models folder that cannot be used.
    pub refused_models: Arc<Vec<RefusedModel>>,
    /// Commands that runs may name as their target.
    pub targets: Arc<Commands>,
    /// Settings of each mode.
    pub presets: Arc<Presets>,
    /// Devices that have a worker.
    pub devices: Arc<[Device]>,
    /// Devices that the cluster accepts; empty if workers of this host execute runs.
    pub accepts: Arc<[String]>,
    /// Requests for a check of the host.
    pub doctor: mpsc::Sender<oneshot::Sender<Checkup>>,
    pub intake: Arc<Intake>,
    /// Last readings of the GPUs, for the metrics.
    pub gpus: watch::Receiver<Vec<GpuReading>>,
    /// Recovery of the state of an earlier service; `None` once it has ended.
    pub recovery: watch::Receiver<Option<SlicedWork>>,
    /// Passes for which imports, alignments and downloads wait.
    pub measuring: Measuring,
    pub config: Arc<Config>,
    /// Notified when a run or an alignment is queued.
    pub queued: Arc<Notify>,
    /// Notified when the cancellation of a running run is requested.
    pub cancelled: Arc<Notify>,
    /// Ends streams when the service stops.
    pub closing: CancellationToken,
}

impl App {
    /// Returns the reason why no queued run starts, if the disk of the runs lacks space.
    pub(super) fn start_space(&self) -> Result<(), LowSpace> {
        free_space::for_start(&self.runs, self.config.limits.free_bytes)
    }

    /// Longest wait of an upload's check for passes that measure.
    pub(super) fn upload_wait(&self) -> Duration {
        UPLOAD_WAIT.min(Duration::from_secs(self.config.worker.background_wait_s.into()))
    }
}

/// Folder, limits and inspector of uploads.
#[derive(Debug)]
pub struct Intake {
    /// Parent of the folders of uploads, on the disk of the runs.
    folder: PathBuf,
    /// Limits of captures.
    pub limits: UploadLimits,
    pub inspector: mpsc::Sender<Inspection>,
}

impl Intake {
    /// Opens an intake over `folder`, which is emptied of interrupted uploads.
    pub fn open(
        folder: PathBuf,
        limits: UploadLimits,
        inspector: mpsc::Sender<Inspection>,
    ) -> io::Result<Self> {
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::create_dir_all(&folder)?,
        }
        Ok(Self { folder, limits, inspector })
    }

    /// Creates the folder of one upload.
    pub fn create_folder(&self) -> io::Result<UploadFolder> {
        let path = self.folder.join(Uuid::now_v7().to_string());
        fs::create_dir(&path)?;
        Ok(UploadFolder(Some(path)))
    }
}

/// Folder of an upload; removed on drop unless it was kept.
#[derive(Debug)]
pub struct UploadFolder(Option<PathBuf>);

impl UploadFolder {
    pub fn path(&self) -> &Path {
        self.0.as_deref().unwrap_or(Path::new(""))
    }

    /// Renames the folder to `path`.
    pub fn rename(&mut self, path: PathBuf) -> io::Result<()> {
        fs::rename(self.path(), &path)?;
        self.0 = Some(path);
        Ok(())
    }

    /// Keeps the folder on drop.
    pub fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for UploadFolder {
    fn drop(&mut self) {
        if let Some(path) = &self.0
            && let Err(error) = fs::remove_dir_all(path)
        {
            tracing::warn!(%error, path = %path.display(), "cannot remove an upload's folder");
        }
    }
}

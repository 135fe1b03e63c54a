//! The lock and the identity of a data folder: one service, repair or restore at a time uses it,
//! and a copy on the same host has another identity.
//!
//! The folder itself is locked, so no file in it can be removed to admit a second service. Earlier
//! versions lock the file [`LOCK`], which is locked too; it is the only lock on a network file
//! system that cannot lock folders.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use llmprof_core::domain::ids::FolderId;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::manifest;

/// File that earlier versions lock.
const LOCK: &str = "lock";
/// File with the random part of the identity; no backup contains it.
const IDENTITY: &str = "identity";
/// Longest wait for a process that is ending, or for a check that looks whether a service runs.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
pub enum FolderLockError {
    #[error("{} is in use by another llmprof: stop it, or use another folder (--data DIR)",
        path.display())]
    InUse { path: PathBuf },
    #[error("cannot lock {}", path.display())]
    Lock { path: PathBuf, source: io::Error },
    #[error("{} is not the folder that this service locked: it was moved or replaced",
        path.display())]
    Replaced { path: PathBuf },
}

/// A locked data folder; the lock ends with this value or its process.
#[derive(Debug)]
pub struct FolderLock {
    path: PathBuf,
    folder: File,
    _file: File,
}

impl FolderLock {
    /// Locks the folder `path` for this process.
    pub fn take(path: &Path) -> Result<Self, FolderLockError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| FolderLockError::Lock { path, source }
        };
        let in_use = || FolderLockError::InUse { path: path.to_owned() };
        let folder = File::open(path).map_err(failed(path))?;
        match lock(&folder) {
            // Some network file systems lock files that are open for writing only.
            Ok(()) | Err(TryLockError::Error(_)) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use()),
        }
        let name = path.join(LOCK);
        let file = File::create(&name).map_err(failed(&name))?;
        match lock(&file) {
            Ok(()) => Ok(Self { path: path.to_owned(), folder, _file: file }),
            Err(TryLockError::WouldBlock) => Err(in_use()),
            Err(TryLockError::Error(source)) => Err(failed(&name)(source)),
        }
    }

    /// Checks that the path still leads to the locked folder.
    pub fn verify(&self) -> Result<(), FolderLockError> {
        let inode = |meta: fs::Metadata| (meta.dev(), meta.ino());
        match (self.folder.metadata().map(inode), fs::metadata(&self.path).map(inode)) {
            (Ok(open), Ok(named)) if open == named => Ok(()),
            _ => Err(FolderLockError::Replaced { path: self.path.clone() }),
        }
    }
}

/// Returns the identity of the folder `path`: of a random id that it got at its first use, and of
/// its device and inode. A restored folder has another id, a copied one another inode.
pub fn identity(path: &Path) -> io::Result<FolderId> {
    let name = path.join(IDENTITY);
    let random = match fs::read(&name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let new = Uuid::now_v7().to_string().into_bytes();
            manifest::write_whole(&name, &new)?;
            new
        }
        read => read?,
    };
    let folder = fs::metadata(path)?;
    let mut hasher = Sha256::new();
    hasher.update(random);
    hasher.update(folder.dev().to_le_bytes());
    hasher.update(folder.ino().to_le_bytes());
    let mut id = [0; 16];
    id.copy_from_slice(&hasher.finalize()[..16]);
    Ok(FolderId(Uuid::from_bytes(id)))
}

/// Returns true if a process has locked the folder `path`. Holds a shared lock for a moment.
pub fn is_in_use(path: &Path) -> bool {
    let is_locked = |path: &Path| {
        let Ok(file) = File::open(path) else { return false };
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    };
    is_locked(path) || is_locked(&path.join(LOCK))
}

fn lock(file: &File) -> Result<(), TryLockError> {
    let started = Instant::now();
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if started.elapsed() < PATIENCE => thread::sleep(PAUSE),
            locked => return locked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_locked_once_even_without_its_lock_file_and_known_when_moved() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("data"), dir.path().join("moved"));
        fs::create_dir(&path).unwrap();
        assert!(!is_in_use(&path));
        let lock = FolderLock::take(&path).unwrap();
        fs::remove_file(path.join(LOCK)).unwrap();
        assert!(is_in_use(&path));
        assert!(matches!(FolderLock::take(&path), Err(FolderLockError::InUse { .. })));
        lock.verify().unwrap();
        fs::rename(&path, &moved).unwrap();
        assert!(matches!(lock.verify(), Err(FolderLockError::Replaced { .. })));
        fs::create_dir(&path).unwrap();
        assert!(matches!(lock.verify(), Err(FolderLockError::Replaced { .. })));
        drop(lock);
        FolderLock::take(&moved).unwrap();
    }

    #[test]
    fn a_copy_has_another_identity_and_a_moved_folder_keeps_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let (path, copy) = (dir.path().join("data"), dir.path().join("copy"));
        fs::create_dir(&path).unwrap();
        fs::create_dir(&copy).unwrap();
        let own = identity(&path).unwrap();
        fs::copy(path.join(IDENTITY), copy.join(IDENTITY)).unwrap();
        assert!(identity(&path).unwrap() == own && identity(&copy).unwrap() != own);
        let moved = dir.path().join("moved");
        fs::rename(&path, &moved).unwrap();
        assert_eq!(identity(&moved).unwrap(), own);
    }
}

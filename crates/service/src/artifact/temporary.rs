//! Temporary files and folders, and the removal of those that a killed process left.
//!
//! The process that uses one holds a lock on it, which ends with the process. Names start with
//! [`PREFIX`]; nothing else is ever removed.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::Path,
};

use llmprof_analyze::parse::stored::{self, is_locked};
pub use llmprof_analyze::parse::stored::{TEMPORARY as PREFIX, create_temporary as create_file};

use super::folder::remove_tree;
use crate::runtime::work::SlicedWork;

/// Creates the folder `path`, closed to other users. It is in use while the result is open.
pub fn create_folder(path: &Path) -> io::Result<File> {
    for _ in 0..stored::ATTEMPTS {
        // Fails on a link of another user.
        DirBuilder::new().mode(0o700).create(path)?;
        match File::open(path) {
            Ok(folder) if is_locked(&folder, path) => return Ok(folder),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Err(io::Error::other(format!("cannot keep the temporary folder {}", path.display())))
}

/// Removes the entries of this user in `folder` that no process uses; returns their number.
pub fn sweep(folder: &Path, work: &SlicedWork) -> io::Result<usize> {
    let own = nix::unistd::Uid::effective().as_raw();
    let mut removed = 0;
    for entry in fs::read_dir(folder)?.flatten() {
        work.checkpoint()?;
        let path = entry.path();
        let is_temporary = entry.file_name().to_str().is_some_and(|it| it.starts_with(PREFIX));
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        if !is_temporary || meta.uid() != own || !(meta.is_dir() || meta.is_file()) {
            continue;
        }
        let open = OpenOptions::new().read(true).custom_flags(nix::libc::O_NOFOLLOW).open(&path);
        let Ok(left) = open else { continue };
        match left.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => continue,
        }
        if meta.is_dir() { remove_tree(&path, work) } else { fs::remove_file(&path) }?;
        removed += 1;
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_removes_what_no_process_uses() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let used = create_file(dir.path()).unwrap();
        let folder = create_folder(&at("llmprof.used")).unwrap();
        fs::create_dir(at("llmprof.left")).unwrap();
        fs::write(at("llmprof.left/report"), "half").unwrap();
        fs::write(at("llmprof.unpacked.left"), "half").unwrap();
        fs::write(at("llmprof-other"), "foreign").unwrap();
        std::os::unix::fs::symlink("/etc", at("llmprof.link")).unwrap();
        assert_eq!(sweep(dir.path(), &SlicedWork::default()).unwrap(), 2);
        assert!(!at("llmprof.left").exists() && !at("llmprof.unpacked.left").exists());
        assert!(at("llmprof-other").exists() && at("llmprof.link").exists());
        assert!(at("llmprof.used").exists() && used.path().exists());
        drop(folder);
        assert_eq!(sweep(dir.path(), &SlicedWork::default()).unwrap(), 1);
        assert!(!at("llmprof.used").exists() && used.path().exists());
    }
}

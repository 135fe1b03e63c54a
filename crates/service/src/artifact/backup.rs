//! Files of a backup: each content once, named by its hash, packed if the run's file is packed.
//!
//! Existing contents are not copied again. A file counts only after its copy was read back and has
//! its hash.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use llmprof_core::domain::run_files::ArtifactRecord;

use super::{durable, manifest::hash, packed};
use crate::runtime::work::{SlicedWork, is_stopped};

/// Subfolder of the contents.
pub const OBJECTS: &str = "objects";

/// Result of a backup of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackupOutcome {
    /// The backup has its content already.
    Already,
    /// This many bytes were copied.
    Copied(u64),
    /// Its content is not the sealed one.
    Changed,
}

/// Path of the content of `sha256` in `backup`; its packed form is next to it.
fn object(backup: &Path, sha256: &str) -> PathBuf {
    packed::resolved(&backup.join(OBJECTS)).join(sha256.get(..2).unwrap_or("-")).join(sha256)
}

/// Copies the file of `artifact` below `dir` into the backup.
pub fn keep(
    backup: &Path,
    dir: &Path,
    artifact: &ArtifactRecord,
    work: &SlicedWork,
) -> io::Result<BackupOutcome> {
    let to = object(backup, &artifact.sha256);
    if packed::exists(&to) {
        return Ok(BackupOutcome::Already);
    }
    let (from, is_packed) = packed::open_stored(&dir.join(&artifact.path))?;
    let to = if is_packed { packed::packed_path(&to) } else { to };
    let folder = to.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(folder)?;
    let copied = place((from, is_packed), &to, artifact, work)?;
    Ok(copied.map_or(BackupOutcome::Changed, BackupOutcome::Copied))
}

/// Restores the content of `artifact` below `dir`; returns its bytes on disk and whether it is
/// packed. `None`: the content in the backup is not the sealed one.
pub fn bring_back(
    backup: &Path,
    dir: &Path,
    artifact: &ArtifactRecord,
    work: &SlicedWork,
) -> io::Result<Option<(u64, bool)>> {
    let (from, is_packed) = packed::open_stored(&object(backup, &artifact.sha256))?;
    let to = dir.join(&artifact.path);
    let to = if is_packed { packed::packed_path(&to) } else { to };
    fs::create_dir_all(to.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
    Ok(place((from, is_packed), &to, artifact, work)?.map(|bytes| (bytes, is_packed)))
}

/// Copies a file atomically; `None`: its content is not the sealed one.
fn place(
    (from, is_packed): (File, bool),
    to: &Path,
    artifact: &ArtifactRecord,
    work: &SlicedWork,
) -> io::Result<Option<u64>> {
    let half = packed::half_path(to);
    let placed = copy_checked((from, is_packed), (&half, to), artifact, work);
    if !matches!(placed, Ok(Some(_))) {
        fs::remove_file(&half).ok(); // it may not exist
    }
    placed
}

fn copy_checked(
    (from, is_packed): (File, bool),
    (half, to): (&Path, &Path),
    artifact: &ArtifactRecord,
    work: &SlicedWork,
) -> io::Result<Option<u64>> {
    let mut file = File::create(half)?;
    let bytes = work.copy(from, &mut file)?;
    durable::sync_in_slices(&file, half, work)?;
    let copy = File::open(half)?;
    let found = if is_packed { hash(zstd::Decoder::new(copy)?, work) } else { hash(copy, work) };
    match found {
        Ok(found) if found == (artifact.bytes, artifact.sha256.clone()) => {
            fs::rename(half, to)?;
            Ok(Some(bytes))
        }
        Err(error) if is_stopped(&error) => Err(error),
        _ => Ok(None),
    }
}

/// Removes contents that are not in `wanted`; returns their number.
pub fn prune(backup: &Path, wanted: &std::collections::HashSet<String>) -> io::Result<u64> {
    let mut removed = 0;
    for folder in fs::read_dir(backup.join(OBJECTS))? {
        for entry in fs::read_dir(folder?.path())? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !wanted.contains(name.split('.').next().unwrap_or_default()) {
                fs::remove_file(entry.path())?;
                removed += 1;
            }
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::manifest::seal;

    #[test]
    fn a_content_is_copied_once_and_restored_and_a_changed_one_is_neither() {
        let (run, backup, new) = (
            tempfile::tempdir().unwrap(),
            tempfile::tempdir().unwrap(),
            tempfile::tempdir().unwrap(),
        );
        fs::write(run.path().join("a.log"), "same").unwrap();
        fs::write(run.path().join("b.log"), "same").unwrap();
        fs::write(run.path().join("c.log"), "other").unwrap();
        let sealed = seal(run.path(), u64::MAX, &SlicedWork::default()).unwrap().artifacts;
        let keep = |at: usize| {
            keep(backup.path(), run.path(), &sealed[at], &SlicedWork::default()).unwrap()
        };
        fs::write(run.path().join("c.log"), "otter").unwrap();
        assert_eq!(
            [keep(0), keep(1), keep(2)],
            [BackupOutcome::Copied(4), BackupOutcome::Already, BackupOutcome::Changed]
        );
        assert_eq!(
            bring_back(backup.path(), new.path(), &sealed[1], &SlicedWork::default()).unwrap(),
            Some((4, false))
        );
        assert_eq!(fs::read(new.path().join("b.log")).unwrap(), b"same");
        fs::write(object(backup.path(), &sealed[0].sha256), "sane").unwrap();
        assert_eq!(
            bring_back(backup.path(), new.path(), &sealed[0], &SlicedWork::default()).unwrap(),
            None
        );
        assert!(!new.path().join("a.log").exists());
        assert_eq!(prune(backup.path(), &std::collections::HashSet::new()).unwrap(), 1);
        assert_eq!(keep(0), BackupOutcome::Copied(4));
    }
}

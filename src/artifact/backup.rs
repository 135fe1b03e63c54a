//! A backup's files: each content once, named by its hash, packed where the run's file is packed.
//!
//! What is there already is not copied again. A file counts as kept only after its copy was read back and has its hash.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use super::{manifest::hash, packed};
use crate::run::ArtifactRecord;

/// Folder of the contents below the backup's.
pub const OBJECTS: &str = "objects";

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Its content was there already.
    Already,
    /// So many bytes were copied.
    Copied(u64),
    /// Its content is not what was sealed.
    Changed,
}

/// Where the content of `sha256` lies in `backup`, as it was; packed it lies beside that.
fn object(backup: &Path, sha256: &str) -> PathBuf {
    backup.join(OBJECTS).join(sha256.get(..2).unwrap_or("-")).join(sha256)
}

/// Keeps the file that `artifact` names below `dir`.
pub fn keep(backup: &Path, dir: &Path, artifact: &ArtifactRecord) -> io::Result<Kept> {
    let to = object(backup, &artifact.sha256);
    if packed::exists(&to) {
        return Ok(Kept::Already);
    }
    let (from, is_packed) = packed::open_stored(&dir.join(&artifact.path))?;
    let to = if is_packed { packed::packed_path(&to) } else { to };
    let folder = to.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(folder)?;
    let copied = place(from, &to, is_packed, artifact)?;
    Ok(copied.map_or(Kept::Changed, Kept::Copied))
}

/// Brings the content of `artifact` back below `dir`, and says how many bytes it takes there and whether it is packed. `None`: what the
/// backup holds is not what was sealed.
pub fn bring_back(backup: &Path, dir: &Path, artifact: &ArtifactRecord) -> io::Result<Option<(u64, bool)>> {
    let (from, is_packed) = packed::open_stored(&object(backup, &artifact.sha256))?;
    let to = dir.join(&artifact.path);
    let to = if is_packed { packed::packed_path(&to) } else { to };
    fs::create_dir_all(to.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
    Ok(place(from, &to, is_packed, artifact)?.map(|bytes| (bytes, is_packed)))
}

/// Copies a file so that it is whole under its name or not there; `None`: its content is not what was sealed.
fn place(mut from: File, to: &Path, is_packed: bool, artifact: &ArtifactRecord) -> io::Result<Option<u64>> {
    let half = packed::half_path(to);
    let mut file = File::create(&half)?;
    let bytes = io::copy(&mut from, &mut file)?;
    file.sync_all()?;
    let copy = File::open(&half)?;
    let found = if is_packed { hash(zstd::Decoder::new(copy)?) } else { hash(copy) };
    if found.is_ok_and(|found| found == (artifact.bytes, artifact.sha256.clone())) {
        fs::rename(&half, to)?;
        return Ok(Some(bytes));
    }
    fs::remove_file(&half)?;
    Ok(None)
}

/// Removes contents that `wanted` does not name, and says how many.
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
    fn a_content_is_kept_once_and_comes_back_and_a_changed_one_is_neither_kept_nor_brought() {
        let (run, backup, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(run.path().join("a.log"), "same").unwrap();
        fs::write(run.path().join("b.log"), "same").unwrap();
        fs::write(run.path().join("c.log"), "other").unwrap();
        let sealed = seal(run.path()).unwrap();
        let keep = |at: usize| keep(backup.path(), run.path(), &sealed[at]).unwrap();
        fs::write(run.path().join("c.log"), "otter").unwrap();
        assert_eq!([keep(0), keep(1), keep(2)], [Kept::Copied(4), Kept::Already, Kept::Changed]);
        assert_eq!(bring_back(backup.path(), new.path(), &sealed[1]).unwrap(), Some((4, false)));
        assert_eq!(fs::read(new.path().join("b.log")).unwrap(), b"same");
        fs::write(object(backup.path(), &sealed[0].sha256), "sane").unwrap();
        assert_eq!(bring_back(backup.path(), new.path(), &sealed[0]).unwrap(), None);
        assert!(!new.path().join("a.log").exists());
        assert_eq!(prune(backup.path(), &std::collections::HashSet::new()).unwrap(), 1);
        assert_eq!(keep(0), Kept::Copied(4));
    }
}

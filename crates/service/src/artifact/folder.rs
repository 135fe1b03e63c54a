//! The folder of a run or an alignment: set aside, restored, removed.
//!
//! A deletion deletes the row, sets the folder aside and removes it. What an interruption leaves is
//! in the database's list of removals.

use std::{
    fmt::Display,
    fs::{self, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    str::FromStr,
};

use nix::libc;

use super::walk::walk;
use crate::runtime::work::SlicedWork;

/// Suffix of a folder whose run or alignment is being deleted.
const ASIDE: &str = "removed";
/// Bytes of a file that are freed between two checks whether to stop.
const REMOVED_AT_ONCE: u64 = 1 << 30;

/// The folder of this id.
pub fn of(all: &Path, id: impl Display) -> PathBuf {
    all.join(id.to_string())
}

fn aside(all: &Path, id: impl Display) -> PathBuf {
    all.join(format!("{id}.{ASIDE}"))
}

/// Sets a folder aside; a missing one is not an error.
pub fn set_aside(all: &Path, id: impl Display) -> io::Result<()> {
    ignore_missing(fs::rename(of(all, &id), aside(all, &id)))
}

/// Restores a folder that was set aside.
pub fn bring_back(all: &Path, id: impl Display) -> io::Result<()> {
    ignore_missing(fs::rename(aside(all, &id), of(all, &id)))
}

/// Removes a folder whose row is deleted; a missing one is not an error.
pub fn remove(all: &Path, id: impl Display, work: &SlicedWork) -> io::Result<()> {
    set_aside(all, &id)?;
    remove_aside(all, id, work)
}

/// Removes a folder that was set aside.
pub fn remove_aside(all: &Path, id: impl Display, work: &SlicedWork) -> io::Result<()> {
    remove_tree(&aside(all, id), work)
}

/// Removes the folder `dir` with everything in it, large files in slices; of a link only the link.
/// A missing one is not an error. When `work` is stopped, the rest stays.
pub fn remove_tree(dir: &Path, work: &SlicedWork) -> io::Result<()> {
    if !fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir()) {
        return ignore_missing(fs::remove_file(dir));
    }
    loop {
        let mut folders = Vec::new();
        let walked =
            walk(dir, work, |path, entry| remove_entry(dir.join(path), entry, &mut folders, work));
        let unvisited = match walked {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !dir.exists() => return Ok(()),
            walked => walked?,
        };
        let too_long = unvisited.readable()?;
        for path in &too_long {
            ignore_missing(lift(dir, path).map(drop))?;
        }
        // A folder was added before its folders. All are empty, also those above a lifted entry, so
        // the next walk visits only lifted entries.
        folders.iter().rev().try_for_each(|it| ignore_missing(fs::remove_dir(it)))?;
        if too_long.is_empty() {
            return ignore_missing(fs::remove_dir(dir));
        }
    }
}

/// Removes an entry of a folder; adds it to `folders` if it is one.
fn remove_entry(
    path: PathBuf,
    entry: &fs::DirEntry,
    folders: &mut Vec<PathBuf>,
    work: &SlicedWork,
) -> io::Result<()> {
    work.checkpoint()?;
    match entry.metadata() {
        Ok(meta) if meta.is_dir() => folders.push(path),
        Ok(meta) if meta.is_file() => {
            shorten(&path, (meta.blocks() * 512, meta.len()), REMOVED_AT_ONCE, work)?;
            ignore_missing(fs::remove_file(&path))?;
        }
        _ => ignore_missing(fs::remove_file(&path))?,
    }
    Ok(())
}

/// Removes the entry `path` of the folder `dir`, whose path is too long for a walk. A missing one
/// is not an error.
pub(super) fn remove_lifted(dir: &Path, path: &Path, work: &SlicedWork) -> io::Result<()> {
    match lift(dir, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        lifted => remove_tree(&lifted?, work),
    }
}

/// Moves the entry `path` of the folder `dir` to its top, where its path is short.
fn lift(dir: &Path, path: &Path) -> io::Result<PathBuf> {
    let lifted = dir.join(format!("lifted-{}", uuid::Uuid::now_v7().simple()));
    fs::rename(dir.join(path), &lifted)?;
    Ok(lifted)
}

/// Frees the space of a large file from its end, in slices: its removal at once may take seconds.
/// A file with several names or a reader is left as it is: a reader holds a lock, and the space is
/// freed when it closes the file.
fn shorten(
    path: &Path,
    (stored, bytes): (u64, u64),
    at_once: u64,
    work: &SlicedWork,
) -> io::Result<()> {
    if stored <= at_once {
        return Ok(());
    }
    let Ok(file) = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path) else {
        return Ok(()); // read-only; removed as a whole
    };
    let is_unread = file.metadata()?.nlink() == 1 && file.try_lock().is_ok();
    let mut left = if is_unread { bytes } else { 0 };
    // A file with holes is shortened in as many steps as a full one of its space.
    let step = at_once.max(bytes / (stored / at_once).max(1));
    while left > step {
        work.checkpoint()?;
        left -= step;
        file.set_len(left)?;
    }
    Ok(())
}

/// Ids whose folders are set aside.
pub fn all_aside<T: FromStr + Ord>(all: &Path) -> io::Result<Vec<T>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(all)? {
        let name = entry?.file_name();
        let id: Option<T> = name
            .to_str()
            .and_then(|name| name.strip_suffix(ASIDE)?.strip_suffix('.')?.parse().ok());
        found.extend(id);
    }
    found.sort();
    Ok(found)
}

/// `text` with the paths in `dir` relative to it. Tools print the paths of files that they write.
pub fn without_path(text: &str, dir: &Path) -> String {
    let Some(dir) = dir.to_str().filter(|dir| dir.len() > 1) else { return text.to_owned() };
    text.replace(&format!("{dir}/"), "").replace(dir, ".")
}

/// Success if there was nothing.
pub(super) fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use llmprof_core::domain::{ids::RunId, run_files::ArtifactRecord};

    use super::*;
    use crate::artifact::{packed, walk::tests::nest};

    #[test]
    fn a_large_file_is_shortened_unless_a_reader_has_it_open_and_is_missing_while_it_is() {
        const BYTES: u64 = 1 << 20;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.sqlite");
        fs::write(&path, vec![7; 1 << 20]).unwrap();
        let artifact = ArtifactRecord {
            path: "run.sqlite".into(),
            bytes: BYTES,
            sha256: String::new(),
            media_type: String::new(),
            step: None,
        };
        let open = || packed::open_artifact(dir.path(), &artifact);
        let shortened = || {
            shorten(&path, (BYTES, BYTES), BYTES / 16, &SlicedWork::default()).unwrap();
            fs::metadata(&path).unwrap().len()
        };
        let (mut reader, _) = open().unwrap();
        assert_eq!(shortened(), BYTES);
        fs::remove_file(&path).unwrap();
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        assert_eq!(read.len() as u64, BYTES, "the reader has the whole file");

        fs::write(&path, vec![7; 1 << 20]).unwrap();
        let remover = fs::File::open(&path).unwrap();
        remover.try_lock().unwrap();
        assert_eq!(open().unwrap_err().kind(), io::ErrorKind::NotFound);
        drop(remover);
        assert_eq!(shortened(), BYTES / 16);
    }

    #[test]
    fn a_folder_of_any_depth_is_removed() {
        for depth in [0, 1, 92, 93, 94, 450, 1500] {
            let dir = tempfile::tempdir().unwrap();
            let tree = dir.path().join("tree");
            fs::create_dir(&tree).unwrap();
            nest(&tree, depth);
            std::os::unix::fs::symlink("/etc", tree.join("link")).unwrap();
            remove_tree(&tree, &SlicedWork::default()).unwrap();
            assert!(fs::read_dir(dir.path()).unwrap().next().is_none(), "{depth} folders");
            remove_tree(&tree, &SlicedWork::default()).unwrap();
        }
    }

    #[test]
    fn of_a_link_only_the_link_and_a_file_in_place_of_a_folder_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (other, path) = (dir.path().join("other"), dir.path().join("tree"));
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file"), "kept").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        remove_tree(&path, &SlicedWork::default()).unwrap();
        fs::write(&path, "in place of a folder").unwrap();
        remove_tree(&path, &SlicedWork::default()).unwrap();
        assert!(fs::symlink_metadata(&path).is_err());
        assert_eq!(fs::read(other.join("file")).unwrap(), b"kept");
    }

    #[test]
    fn a_folder_is_set_aside_and_restored_or_removed() {
        let runs = tempfile::tempdir().unwrap();
        let (first, second) = (RunId::now(), RunId::now());
        for id in [first, second] {
            fs::create_dir(of(runs.path(), id)).unwrap();
            fs::write(of(runs.path(), id).join("report.md"), "#").unwrap();
            set_aside(runs.path(), id).unwrap();
        }
        assert_eq!(all_aside::<RunId>(runs.path()).unwrap(), [first, second]);
        bring_back(runs.path(), first).unwrap();
        remove_aside(runs.path(), second, &SlicedWork::default()).unwrap();
        assert!(
            of(runs.path(), first).join("report.md").is_file() && !of(runs.path(), second).exists()
        );
        assert_eq!(all_aside::<RunId>(runs.path()).unwrap(), []);
        set_aside(runs.path(), second).unwrap();
    }
}

//! Walks over folders in which a profiled program may write: every walk has the same bound.
//!
//! A program can nest folders until no call accepts their paths. Entries whose path is longer than
//! [`MAX_PATH`] are not visited: a seal drops them, a check reports them, and a removal first moves
//! them to the top of the folder.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::runtime::work::SlicedWork;

/// Maximum length of a visited path inside the folder, bytes. The path of the folder itself comes
/// in addition, and Linux accepts 4095 bytes in total.
pub const MAX_PATH: usize = 1024;
/// Entries that are read between two checks whether to stop.
const ENTRIES: usize = 256;

/// Entries that a walk did not visit.
#[derive(Debug, Default)]
pub struct Unvisited {
    /// Paths inside the folder that are longer than [`MAX_PATH`].
    pub too_long: Vec<PathBuf>,
    /// Folders that cannot be read.
    pub unreadable: Vec<(PathBuf, io::Error)>,
}

impl Unvisited {
    /// Returns the error of the first folder that cannot be read, if there is one.
    pub fn readable(self) -> io::Result<Vec<PathBuf>> {
        match self.unreadable.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(self.too_long),
        }
    }
}

/// Calls `visit` with the path inside `dir` of every entry, a folder before its entries. Links are
/// not followed, not even one that replaces a visited folder. Folders that vanish meanwhile are
/// left out; only `dir` has to exist.
pub fn walk(
    dir: &Path,
    work: &SlicedWork,
    mut visit: impl FnMut(PathBuf, &fs::DirEntry) -> io::Result<()>,
) -> io::Result<Unvisited> {
    let (mut unvisited, mut folders) = (Unvisited::default(), vec![PathBuf::new()]);
    let mut seen = 0_usize;
    while let Some(folder) = folders.pop() {
        let path = dir.join(&folder);
        if !folder.as_os_str().is_empty() && path.is_symlink() {
            continue;
        }
        let entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) if folder.as_os_str().is_empty() => return Err(error),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                unvisited.unreadable.push((folder, error));
                continue;
            }
        };
        for entry in entries {
            if seen.is_multiple_of(ENTRIES) {
                work.checkpoint()?;
            }
            seen += 1;
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if path.as_os_str().len() > MAX_PATH {
                unvisited.too_long.push(path);
                continue;
            }
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                folders.push(path.clone());
            }
            visit(path, &entry)?;
        }
    }
    Ok(unvisited)
}

#[cfg(test)]
pub(super) mod tests {
    use nix::{
        fcntl::{OFlag, open, openat},
        sys::stat::{Mode, mkdirat},
    };

    use super::*;

    /// Nests `depth` folders with names of ten bytes below `dir`, and writes a file in the last
    /// one. No call gets a long path.
    pub fn nest(dir: &Path, depth: usize) {
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut folder = open(dir, flags, Mode::empty()).unwrap();
        for _ in 0..depth {
            mkdirat(&folder, "ten-bytes-", Mode::S_IRWXU).unwrap();
            folder = openat(&folder, "ten-bytes-", flags, Mode::empty()).unwrap();
        }
        let file = OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        openat(&folder, "file", file, Mode::S_IRUSR).unwrap();
    }

    #[test]
    fn a_walk_visits_every_entry_within_the_bound_and_returns_the_first_ones_beyond_it() {
        for (depth, visited, too_long) in [(0, 1, 0), (5, 6, 0), (93, 93, 1), (450, 93, 1)] {
            let dir = tempfile::tempdir().unwrap();
            nest(dir.path(), depth);
            let mut paths = Vec::new();
            let unvisited = walk(dir.path(), &SlicedWork::default(), |path, _| {
                paths.push(path);
                Ok(())
            })
            .unwrap();
            let found = (paths.len(), unvisited.readable().unwrap().len());
            assert_eq!(found, (visited, too_long), "{depth} folders");
            assert!(paths.iter().all(|path| path.as_os_str().len() <= MAX_PATH));
        }
        let missing = walk(Path::new("/nowhere"), &SlicedWork::default(), |_, _| Ok(()));
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn links_are_visited_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join("link")).unwrap();
        let mut paths = Vec::new();
        let visit = |path, _: &fs::DirEntry| {
            paths.push(path);
            Ok(())
        };
        walk(dir.path(), &SlicedWork::default(), visit).unwrap();
        assert_eq!(paths, [PathBuf::from("link")]);
    }

    #[test]
    fn a_link_that_replaces_a_visited_folder_is_not_followed() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(other.path().join("file"), "").unwrap();
        fs::create_dir(dir.path().join("folder")).unwrap();
        let mut paths = Vec::new();
        let unvisited = walk(dir.path(), &SlicedWork::default(), |path, _| {
            if path.as_os_str() == "folder" {
                fs::remove_dir(dir.path().join(&path))?;
                std::os::unix::fs::symlink(other.path(), dir.path().join(&path))?;
            }
            paths.push(path);
            Ok(())
        });
        assert!(unvisited.unwrap().readable().unwrap().is_empty());
        assert_eq!(paths, [PathBuf::from("folder")]);
    }
}

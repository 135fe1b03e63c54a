//! Durability: files and folders that survive a power cut.
//!
//! A file is durable once its content and every folder on the path to it are. Nothing here changes
//! a file.

use std::{
    collections::BTreeSet,
    fs::File,
    io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    thread::{self, Builder},
};

use nix::libc;

use super::walk::walk;
use crate::runtime::{self, work::SlicedWork};

/// Threads that sync the files of a folder. For a light run they take 13 ms, one file after another
/// 20 ms, and `syncfs` 9 ms, but 280 ms while other programs have a gigabyte to be written.
const THREADS: usize = 8;
/// Bytes of a file that are written back between two checks whether to stop.
const WRITTEN_BACK: u64 = 32 << 20;

/// Makes all regular files and folders below `dir`, `dir` itself and its name durable.
pub fn sync_tree(dir: &Path, work: &SlicedWork) -> io::Result<()> {
    let (mut files, mut folders) = (Vec::new(), vec![dir.to_owned()]);
    let unvisited = walk(dir, work, |_, entry| {
        let kind = entry.file_type()?;
        if kind.is_dir() {
            folders.push(entry.path());
        } else if kind.is_file() {
            files.push(entry.path());
        }
        Ok(())
    })?;
    unvisited.readable()?;
    sync_all(&files, work)?;
    sync_all(&folders, work)?;
    sync_parent(dir)
}

/// Makes the files at `paths` below `dir`, the folders that lead to them, and the name of `dir`
/// durable.
pub fn sync_files<'a>(
    dir: &Path,
    paths: impl Iterator<Item = &'a String>,
    work: &SlicedWork,
) -> io::Result<()> {
    let (mut files, mut folders) = (Vec::new(), BTreeSet::from([dir.to_owned()]));
    for path in paths {
        let file = dir.join(path);
        let above = file.ancestors().skip(1).take_while(|folder| *folder != dir);
        folders.extend(above.map(Path::to_owned));
        files.push(file);
    }
    sync_all(&files, work)?;
    sync_all(&folders.into_iter().collect::<Vec<_>>(), work)?;
    sync_parent(dir)
}

/// Makes the entries of a folder durable.
pub fn sync_folder(dir: &Path) -> io::Result<()> {
    sync_file(&File::open(dir)?, dir)
}

/// Makes the content of a file at `path` durable.
pub fn sync_file(file: &File, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    runtime::simulated(|it| it.synced(path));
    Ok(())
}

/// Makes the name of `path` durable.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => sync_folder(Path::new(".")),
        Some(parent) => sync_folder(parent),
        None => Ok(()),
    }
}

/// Makes everything on the disk of `dir` durable: for a command that wrote most of it.
pub fn sync_disk(dir: &Path) -> io::Result<()> {
    nix::unistd::syncfs(File::open(dir)?).map_err(io::Error::from)
}

/// Makes the content of a large file durable, in slices: `fsync` of gigabytes cannot be stopped.
pub fn sync_in_slices(file: &File, path: &Path, work: &SlicedWork) -> io::Result<()> {
    let bytes = file.metadata()?.len();
    let mut at = 0;
    while bytes > WRITTEN_BACK && at < bytes && !runtime::is_simulated() {
        work.checkpoint()?;
        write_back(file, at);
        at += WRITTEN_BACK;
    }
    work.checkpoint()?;
    sync_file(file, path)
}

/// Writes a part of a file to its disk. A failure is found by the `fsync` that follows.
fn write_back(file: &File, at: u64) {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the descriptor is open, and no memory is passed.
    unsafe {
        libc::sync_file_range(file.as_raw_fd(), at.cast_signed(), WRITTEN_BACK.cast_signed(), flags)
    };
}

fn sync_all(paths: &[PathBuf], work: &SlicedWork) -> io::Result<()> {
    if runtime::is_simulated() {
        return paths.iter().try_for_each(|path| sync_folder(path));
    }
    let sync_path = |path: &PathBuf| sync_in_slices(&File::open(path)?, path, work);
    let share = paths.len().div_ceil(THREADS).max(1);
    thread::scope(|scope| {
        let sync = |some: &[PathBuf]| some.iter().try_for_each(sync_path);
        let (mut threads, mut synced) = (Vec::new(), Ok(()));
        for some in paths.chunks(share) {
            match Builder::new().spawn_scoped(scope, move || sync(some)) {
                Ok(thread) => threads.push(thread),
                // Without threads it takes longer.
                Err(_) => synced = synced.and(sync(some)),
            }
        }
        let lost = |_| Err(io::Error::other("a thread that syncs files has panicked"));
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(lost))
            .fold(synced, Result::and)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_tree_with_links_and_pipes_is_synced_and_a_missing_one_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/b/file"), "content").unwrap();
        std::os::unix::fs::symlink("/nowhere", dir.path().join("a/link")).unwrap();
        let pipe = dir.path().join("a/pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        sync_tree(dir.path(), &SlicedWork::default()).unwrap();
        assert_eq!(
            sync_tree(&dir.path().join("none"), &SlicedWork::default()).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}

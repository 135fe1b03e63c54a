//! The manifest of a run's folder: every file with its size and hash, in `manifest.json`.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::Path,
};

use llmprof_core::{
    domain::{finding::Finding, hex::hex, run_files::ArtifactRecord},
    layout,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    durable,
    packed::{open_named, open_own, read_own},
    size_limit,
    walk::walk,
};
use crate::runtime::work::SlicedWork;

/// Bytes that are read and hashed at a time.
const COPY: usize = 1 << 18;

#[derive(Serialize)]
struct RunManifest<'a> {
    format_version: u32,
    artifacts: &'a [ArtifactRecord],
}

/// A folder after its seal.
#[derive(Debug, Clone, PartialEq)]
pub struct SealedFolder {
    /// All files by path, the manifest included.
    pub artifacts: Vec<ArtifactRecord>,
    /// The files that were dropped because the folder was too large.
    pub finding: Option<Finding>,
}

/// A manifest in its file.
#[derive(Deserialize)]
struct Sealed {
    artifacts: Vec<ArtifactRecord>,
}

/// Reads the artifacts of a sealed folder, the manifest included.
pub fn read(dir: &Path) -> io::Result<Vec<ArtifactRecord>> {
    let sealed: Sealed = serde_json::from_slice(&read_own(&dir.join(layout::MANIFEST))?)?;
    let mut artifacts = sealed.artifacts;
    artifacts.push(record(dir, layout::MANIFEST.to_owned(), &SlicedWork::default())?);
    artifacts.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(artifacts)
}

/// Drops the files of the run in `dir` that exceed `max_bytes`, makes the others durable, hashes
/// them, and writes the manifest. Every seal of a folder is this one. A failure, or the stop of
/// `work`, leaves no manifest: the folder is not sealed.
pub fn seal(dir: &Path, max_bytes: u64, work: &SlicedWork) -> io::Result<SealedFolder> {
    let sealed = try_seal(dir, max_bytes, work);
    if sealed.is_err() {
        fs::remove_file(dir.join(layout::MANIFEST)).ok(); // it may be renamed but not durable
    }
    sealed
}

fn try_seal(dir: &Path, max_bytes: u64, work: &SlicedWork) -> io::Result<SealedFolder> {
    size_limit::enforce(dir, max_bytes, work)?;
    durable::sync_tree(dir, work)?;
    let paths: Vec<String> =
        paths(dir)?.into_iter().filter(|path| !layout::is_unsealed(path)).collect();
    for path in &paths {
        work.expect(fs::symlink_metadata(dir.join(path))?.len());
    }
    let mut artifacts = Vec::new();
    for path in paths {
        artifacts.push(record(dir, path, work)?);
    }
    artifacts.sort_by(|a, b| a.path.cmp(&b.path));
    let text = serde_json::to_vec_pretty(&RunManifest {
        format_version: layout::FORMAT_VERSION,
        artifacts: &artifacts,
    })?;
    write_whole(&dir.join(layout::MANIFEST), &text)?;
    artifacts.push(record(dir, layout::MANIFEST.to_owned(), &SlicedWork::default())?);
    artifacts.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(SealedFolder { artifacts, finding: size_limit::finding(dir, max_bytes) })
}

/// The regular files below `dir`, without links, which may lead outside, and without names that are
/// not UTF-8.
pub(super) fn paths(dir: &Path) -> io::Result<Vec<String>> {
    let mut files = Vec::new();
    let unvisited = walk(dir, &SlicedWork::default(), |path, entry| {
        if entry.file_type()?.is_file() {
            files.extend(path.into_os_string().into_string());
        }
        Ok(())
    })?;
    unvisited.readable()?;
    Ok(files)
}

/// Size and hash of the file `path` in `dir`.
pub(super) fn record(dir: &Path, path: String, work: &SlicedWork) -> io::Result<ArtifactRecord> {
    let (bytes, sha256) = hash_own(&dir.join(&path), work)?;
    Ok(ArtifactRecord {
        media_type: layout::media_type(&path).to_owned(),
        step: layout::step_of(&path),
        path,
        bytes,
        sha256,
    })
}

/// Size and hash of a regular file of a run's folder.
pub(super) fn hash_own(path: &Path, work: &SlicedWork) -> io::Result<(u64, String)> {
    hash_open(open_own(path)?, work)
}

/// Size and hash of a regular file.
pub(super) fn hash_file(path: &Path, work: &SlicedWork) -> io::Result<(u64, String)> {
    hash_open(open_named(path)?, work)
}

/// Size and hash of the same bytes: those the file had when it was opened, because a file may grow
/// as fast as it is read.
fn hash_open(file: File, work: &SlicedWork) -> io::Result<(u64, String)> {
    let bytes = file.metadata()?.len();
    hash(file.take(bytes), work)
}

/// Size and SHA-256 of a stream.
pub fn hash(from: impl Read, work: &SlicedWork) -> io::Result<(u64, String)> {
    copy_hashed(from, &mut io::sink(), work)
}

/// Copies `from` to `to`; returns size and SHA-256 of the content.
pub(super) fn copy_hashed(
    from: impl Read,
    to: &mut dyn Write,
    work: &SlicedWork,
) -> io::Result<(u64, String)> {
    let (mut from, mut slice) = (work.reader(from), vec![0; COPY]);
    let (mut hasher, mut bytes) = (Sha256::new(), 0);
    loop {
        let read = from.read(&mut slice)?;
        if read == 0 {
            return Ok((bytes, hex(&hasher.finalize())));
        }
        hasher.update(&slice[..read]);
        to.write_all(&slice[..read])?;
        bytes += read as u64;
    }
}

/// Writes a file atomically.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let written = File::create(&new)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| durable::sync_file(&file, &new)))
        .and_then(|()| fs::rename(&new, path));
    if let Err(error) = written {
        fs::remove_file(&new).ok(); // an incomplete file is a fault of the folder
        return Err(error);
    }
    durable::sync_parent(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seal(dir: &Path) -> io::Result<Vec<ArtifactRecord>> {
        super::seal(dir, u64::MAX, &SlicedWork::default()).map(|sealed| sealed.artifacts)
    }

    #[test]
    fn a_seal_that_fails_leaves_no_manifest_even_of_an_earlier_seal() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("report.md"), "").unwrap();
        seal(dir.path()).unwrap();
        let unwritable = dir.path().join(layout::MANIFEST).with_extension("new");
        fs::create_dir(&unwritable).unwrap();
        assert!(seal(dir.path()).is_err());
        assert_eq!(read(dir.path()).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::remove_dir(unwritable).unwrap();
        assert_eq!(seal(dir.path()).unwrap(), read(dir.path()).unwrap());
    }

    #[test]
    fn every_file_is_sealed_with_its_hash_and_links_are_not() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("logs")).unwrap();
        fs::write(dir.path().join("logs/baseline.stderr.log"), "abc").unwrap();
        fs::write(dir.path().join("report.md"), "").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link")).unwrap();
        // Left by a killed writer; an earlier seal listed it.
        fs::write(dir.path().join("result.new"), "{").unwrap();
        let sealed = seal(dir.path()).unwrap();
        let paths: Vec<_> = sealed.iter().map(|record| record.path.as_str()).collect();
        assert_eq!(paths, ["logs/baseline.stderr.log", "manifest.json", "report.md"]);
        assert_eq!(
            sealed[0].sha256,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            (sealed[0].bytes, sealed[0].media_type.as_str()),
            (3, "text/plain; charset=utf-8")
        );
        assert_eq!(
            sealed[1].sha256,
            hash_file(&dir.path().join("manifest.json"), &SlicedWork::default()).unwrap().1
        );
        assert_eq!(seal(dir.path()).unwrap(), sealed, "a second seal changes nothing");
        assert_eq!(read(dir.path()).unwrap(), sealed, "it reads back as written");
    }
}

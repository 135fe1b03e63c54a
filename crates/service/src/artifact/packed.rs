//! Packed files of old runs: `NAME.zst` in place of `NAME`. [`llmprof_analyze::parse::stored`]
//! reads them.
//!
//! A manifest lists contents, not their form on disk, so packing changes neither manifest nor
//! database. The original is removed only after the packed file was synced, read back, and has the
//! hash of the manifest.

use std::{
    fs::{self, TryLockError},
    io::{self, Read},
    path::{Path, PathBuf},
};

pub use llmprof_analyze::parse::stored::{
    exists, open, open_named, open_own, open_stored, packed_path, read_own, resolved, stored,
};
use llmprof_core::{domain::run_files::ArtifactRecord, layout};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::{
    durable,
    manifest::{copy_hashed, hash},
};
use crate::runtime::work::SlicedWork;

/// Suffix of an incomplete packed file.
pub const HALF: &str = "zst.tmp";
const LEVEL: i32 = 3;
/// Window of the compression, as a power of two: half a megabyte per reader.
const WINDOW: u32 = 19;
/// Minimum size of a file to be packed.
const SMALL: u64 = 4096;
/// Suffixes of raw files of tools; tables and reports are not packed.
const RAW: [&str; 8] = ["nsys-rep", "qdstrm", "sqlite", "ncu-rep", "csv", "log", "txt", "json"];
/// Folders of raw files.
const FOLDERS: [&str; 6] = [
    layout::NSYS,
    layout::GPU_METRICS,
    layout::NCU,
    layout::GEMM_LOG,
    layout::LOGS,
    layout::PYTORCH,
];

/// Result of packing a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackOutcome {
    /// It is packed and has this many bytes.
    Packed(u64),
    /// It would not become smaller.
    Incompressible,
    /// Its content is not the sealed one; it is unchanged.
    Changed,
}

/// Returns true for raw data of a tool of sufficient size.
pub fn is_raw(artifact: &ArtifactRecord) -> bool {
    let (folder, _) = artifact.path.split_once('/').unwrap_or_default();
    let ending = artifact.path.rsplit_once('.').map_or("", |(_, ending)| ending);
    artifact.bytes >= SMALL && FOLDERS.contains(&folder) && RAW.contains(&ending)
}

/// Path of the packed form of `path` while it is written.
pub fn half_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(HALF);
    name.into()
}

/// Checks the stored file of `artifact` below `dir` without reading it: a regular file, which has
/// the recorded size unless it is packed.
pub fn check_stored(dir: &Path, artifact: &ArtifactRecord) -> io::Result<()> {
    let (bytes, is_packed) = stored(&dir.join(&artifact.path))?;
    if is_packed || bytes == artifact.bytes {
        return Ok(());
    }
    let message = format!("{bytes} bytes instead of {}", artifact.bytes);
    Err(io::Error::new(io::ErrorKind::InvalidData, message))
}

/// Opens the checked file of `artifact` below `dir`; with it, whether it is packed.
pub fn open_artifact(dir: &Path, artifact: &ArtifactRecord) -> io::Result<(fs::File, bool)> {
    check_stored(dir, artifact)?;
    open_shared(&dir.join(&artifact.path))
}

/// Opens the content of a file, packed or not, and keeps the file whole while its run is deleted.
pub fn open_content(path: &Path) -> io::Result<Box<dyn Read + Send>> {
    let (file, is_packed) = open_shared(path)?;
    Ok(if is_packed { Box::new(zstd::Decoder::new(file)?) } else { Box::new(file) })
}

/// Opens a stored file with a lock that keeps it whole while its run is deleted; true if it is
/// packed. A file that is being removed is missing.
fn open_shared(path: &Path) -> io::Result<(fs::File, bool)> {
    let opened = open_stored(path)?;
    match opened.0.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::NotFound.into()),
        // A file system may have no locks: its files are removed as a whole.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(opened),
    }
}

/// Reads the content of the checked file of `artifact` below `dir`.
pub fn read_artifact(dir: &Path, artifact: &ArtifactRecord) -> io::Result<Vec<u8>> {
    check_stored(dir, artifact)?;
    read_own(&dir.join(&artifact.path))
}

/// Size and hash of a file's content, packed or not.
pub fn hash_content(path: &Path, work: &SlicedWork) -> io::Result<(u64, String)> {
    hash(open(path)?, work)
}

/// Returns true if the content of a file, packed or not, has the hash of `artifact`. Reads from the
/// disk, if the file is not cached already.
pub fn matches(path: &Path, artifact: &ArtifactRecord, work: &SlicedWork) -> io::Result<bool> {
    let (file, is_packed) = open_shared(path)?;
    // Cached contents would hide a fault of the disk, and are of no further use.
    let forget = || posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    let _ = forget();
    let content: Box<dyn Read> =
        if is_packed { Box::new(zstd::Decoder::new(&file)?) } else { Box::new(&file) };
    // A content that is too long is not read to its end.
    let found = hash(content.take(artifact.bytes.saturating_add(1)), work);
    let _ = forget();
    Ok(found? == (artifact.bytes, artifact.sha256.clone()))
}

/// Packs the file of `artifact` below `dir`; the packed file is written in `packing`, a folder of
/// the same disk. When `work` is stopped, packing ends in a state that readers and the next attempt
/// understand.
pub fn pack(
    dir: &Path,
    artifact: &ArtifactRecord,
    packing: &Path,
    work: &SlicedWork,
) -> io::Result<PackOutcome> {
    let path = dir.join(&artifact.path);
    let whole = packed_path(&path);
    let (mut from, already) = open_stored(&path)?;
    if already {
        return Ok(PackOutcome::Packed(from.metadata()?.len()));
    }
    work.checkpoint()?;
    // Removed on drop, and by the next start after a kill.
    let permissions = from.metadata()?.permissions();
    let half = tempfile::Builder::new().permissions(permissions).tempfile_in(packing)?;
    let mut encoder = zstd::Encoder::new(half.as_file(), LEVEL)?;
    encoder.include_checksum(true)?;
    encoder.window_log(WINDOW)?;
    encoder.set_pledged_src_size(Some(from.metadata()?.len()))?;
    let (_, sha256) = copy_hashed(&mut from, &mut encoder, work)?;
    let file = encoder.finish()?;
    let bytes = file.metadata()?.len();
    let as_sealed = sha256 == artifact.sha256;
    if !as_sealed || bytes >= artifact.bytes - artifact.bytes / 20 {
        return Ok(if as_sealed { PackOutcome::Incompressible } else { PackOutcome::Changed });
    }
    durable::sync_in_slices(file, half.path(), work)?;
    let (_, sha256) = hash(zstd::Decoder::new(half.reopen()?)?, work)?;
    if sha256 != artifact.sha256 {
        return Err(io::Error::other(format!(
            "{} does not unpack to its original content",
            artifact.path
        )));
    }
    work.checkpoint()?;
    half.persist(&whole).map_err(|error| error.error)?;
    durable::sync_parent(&whole)?;
    work.checkpoint()?;
    fs::remove_file(&path)?;
    durable::sync_parent(&path)?;
    Ok(PackOutcome::Packed(bytes))
}

#[cfg(test)]
mod tests {
    use llmprof_analyze::parse::stored::plain;

    use super::*;
    use crate::{artifact::manifest::seal, runtime::work::is_stopped};

    /// A run's folder with one export of a megabyte, sealed.
    fn run() -> (tempfile::TempDir, ArtifactRecord, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("nsys")).unwrap();
        let content: Vec<u8> = (0..1_000_000_u32).map(|at| (at / 1000) as u8).collect();
        fs::write(dir.path().join("nsys/run.sqlite"), &content).unwrap();
        let sealed = seal(dir.path(), u64::MAX, &SlicedWork::default()).unwrap().artifacts;
        let export = sealed.into_iter().find(|it| it.path == "nsys/run.sqlite").unwrap();
        (dir, export, content)
    }

    fn content(dir: &Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        open(&dir.join("nsys/run.sqlite")).unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn after_a_stop_at_any_action_the_content_is_readable_and_the_next_attempt_finishes() {
        let mut stops = 0;
        for stop_at in 0.. {
            let ((dir, export, was), packing) = (run(), tempfile::tempdir().unwrap());
            let mut acts = 0;
            let work = SlicedWork::default().with_gate(move |_| {
                acts += 1;
                acts <= stop_at
            });
            let packed = pack(dir.path(), &export, packing.path(), &work);
            assert_eq!(content(dir.path()), was, "stopped before action {stop_at}");
            let path = dir.path().join(&export.path);
            assert_eq!(
                hash_content(&path, &SlicedWork::default()).unwrap(),
                (export.bytes, export.sha256.clone())
            );
            let again = pack(dir.path(), &export, packing.path(), &SlicedWork::default()).unwrap();
            assert!(
                matches!(again, PackOutcome::Packed(bytes) if bytes < export.bytes / 10),
                "{again:?}"
            );
            assert_eq!(content(dir.path()), was);
            assert!(!path.exists() && packed_path(&path).exists());
            assert!(fs::read_dir(packing.path()).unwrap().next().is_none());
            match packed {
                Ok(_) => break,
                Err(error) => assert!(is_stopped(&error), "{error}"),
            }
            stops += 1;
        }
        assert!(stops >= 7, "stopped before each action, and between chunks: {stops}");
    }

    #[test]
    fn changed_and_incompressible_files_are_not_packed() {
        let ((dir, export, _), packing) = (run(), tempfile::tempdir().unwrap());
        let path = dir.path().join(&export.path);
        fs::write(&path, vec![7; 1_000_000]).unwrap();
        assert_eq!(
            pack(dir.path(), &export, packing.path(), &SlicedWork::default()).unwrap(),
            PackOutcome::Changed
        );
        let mut state = 1_u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .take(100_000)
        .collect();
        fs::write(&path, noise).unwrap();
        let (bytes, sha256) = hash_content(&path, &SlicedWork::default()).unwrap();
        let noise = ArtifactRecord { bytes, sha256, ..export };
        assert_eq!(
            pack(dir.path(), &noise, packing.path(), &SlicedWork::default()).unwrap(),
            PackOutcome::Incompressible
        );
        assert!(path.exists() && !packed_path(&path).exists());
        assert!(fs::read_dir(packing.path()).unwrap().next().is_none());
    }

    #[test]
    fn a_temporary_file_is_removed_with_its_reader() {
        let ((dir, export, was), packing) = (run(), tempfile::tempdir().unwrap());
        let path = dir.path().join(&export.path);
        assert_eq!(plain(&path).unwrap().path(), path);
        pack(dir.path(), &export, packing.path(), &SlicedWork::default()).unwrap();
        let unpacked = plain(&path).unwrap();
        assert_eq!(fs::read(unpacked.path()).unwrap(), was);
        let gone = unpacked.path().to_owned();
        drop(unpacked);
        assert!(!gone.exists());
    }

    #[test]
    fn raw_data_is_packed_and_tables_and_reports_are_not() {
        let of = |path: &str, bytes| {
            is_raw(&ArtifactRecord {
                path: path.into(),
                bytes,
                sha256: String::new(),
                media_type: String::new(),
                step: None,
            })
        };
        assert!(
            of("nsys/run.sqlite", 5000)
                && of("ncu/decode_all/raw.csv", 5000)
                && of("logs/nsys.stderr.log", 5000)
        );
        assert!(
            !of("nsys/run.sqlite", 100) && !of("report.json", 5000) && !of("tables.jsonl", 5000)
        );
        assert!(
            !of("kernels.csv", 5000)
                && !of("nsys/events.jsonl", 5000)
                && !of("manifest.json", 5000)
        );
    }
}

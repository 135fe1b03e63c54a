//! Files of old runs, packed: `NAME.zst` in the place of `NAME`. Whoever reads a run's file reads it here, packed or not.
//!
//! A manifest tells contents, not how they lie on disk, so packing changes neither manifest nor database. The original goes only
//! after the packed file was read back, has the hash of the manifest, and is on disk.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::{
    layout,
    manifest::{hash, hex},
};
use crate::run::ArtifactRecord;

/// Ending of a packed file, after the whole name.
const PACKED: &str = "zst";
/// Ending of a packed file that is not whole yet.
pub const HALF: &str = "zst.tmp";
const LEVEL: i32 = 3;
/// Two to this are the bytes that a reader keeps: half a megabyte each, for many may read at a time.
const WINDOW: u32 = 19;
/// Bytes that are packed between two looks whether to go on: some 10 ms of work.
const CHUNK: usize = 2 << 20;
/// Smaller files are not worth it.
const SMALL: u64 = 4096;
/// Most bytes that are unpacked for a reader that needs a file: several times what a run may hold.
const MOST_UNPACKED: u64 = 64 << 30;
/// Endings of what tools left; tables and reports stay as they are.
const RAW: [&str; 7] = ["nsys-rep", "qdstrm", "sqlite", "ncu-rep", "csv", "log", "txt"];
/// Folders in which those are a tool's.
const FOLDERS: [&str; 4] = [layout::NSYS, layout::NCU, layout::GEMM_LOG, layout::LOGS];

/// What became of a file that was to be packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packed {
    /// It lies packed, in so many bytes.
    Packed(u64),
    /// It would not become smaller.
    Incompressible,
    /// It is not what was sealed, and stays as it is.
    Changed,
    /// Nobody wanted it to go on.
    Stopped,
}

/// What is about to happen to a file: an observer can stop before each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Create,
    Write,
    Sync,
    Verify,
    Rename,
    Remove,
}

/// Says whether a file of a run is a tool's raw data, of a size that is worth packing.
pub fn is_raw(artifact: &ArtifactRecord) -> bool {
    let (folder, _) = artifact.path.split_once('/').unwrap_or_default();
    let ending = artifact.path.rsplit_once('.').map_or("", |(_, ending)| ending);
    artifact.bytes >= SMALL && FOLDERS.contains(&folder) && RAW.contains(&ending)
}

/// Where the packed form of `path` lies.
pub fn packed_path(path: &Path) -> PathBuf {
    with_ending(path, PACKED)
}

/// Where the packed form of `path` is written.
pub fn half_path(path: &Path) -> PathBuf {
    with_ending(path, HALF)
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// Says whether a file is there, packed or not.
pub fn exists(path: &Path) -> bool {
    path.is_file() || packed_path(path).is_file()
}

/// Bytes that a file takes on disk, and whether it is packed.
pub fn stored(path: &Path) -> io::Result<(u64, bool)> {
    match fs::symlink_metadata(path) {
        Ok(meta) => Ok((meta.len(), false)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((fs::symlink_metadata(packed_path(path))?.len(), true)),
        Err(error) => Err(error),
    }
}

/// Opens a file as it lies, and says whether it is packed. Links are not followed.
pub fn open_stored(path: &Path) -> io::Result<(File, bool)> {
    let open = |path: &Path| OpenOptions::new().read(true).custom_flags(nix::libc::O_NOFOLLOW).open(path);
    match open(path) {
        Ok(file) => Ok((file, false)),
        // A file is removed only when its packed form is there.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((open(&packed_path(path))?, true)),
        Err(error) => Err(error),
    }
}

/// Opens a file to be read as it was before it was packed.
pub fn open(path: &Path) -> io::Result<Box<dyn Read + Send>> {
    let (file, packed) = open_stored(path)?;
    Ok(if packed { Box::new(zstd::Decoder::new(file)?) } else { Box::new(file) })
}

/// Content of a file as a file of its own, for readers that need one: itself, or a temporary one that goes with this value.
#[derive(Debug)]
pub enum Plain {
    Itself(PathBuf),
    Unpacked(NamedTempFile),
}

impl Plain {
    pub fn path(&self) -> &Path {
        match self {
            Self::Itself(path) => path,
            Self::Unpacked(file) => file.path(),
        }
    }
}

/// Gives the content of `path` as a plain file. A packed one is unpacked to the folder of temporary files (`TMPDIR`).
pub fn plain(path: &Path) -> io::Result<Plain> {
    if path.exists() || !packed_path(path).is_file() {
        return Ok(Plain::Itself(path.to_owned()));
    }
    let mut file = NamedTempFile::with_prefix("llmprof-")?;
    let unpacked = io::copy(&mut open(path)?.take(MOST_UNPACKED + 1), &mut BufWriter::new(&mut file))?;
    if unpacked > MOST_UNPACKED {
        return Err(io::Error::other(format!("it unpacks to more than {MOST_UNPACKED} bytes")));
    }
    Ok(Plain::Unpacked(file))
}

/// Size and hash of a file's content, packed or not.
pub fn hash_content(path: &Path) -> io::Result<(u64, String)> {
    hash(open(path)?)
}

/// Packs the file that `artifact` names below `dir`. `go_on` is asked before each act and each chunk; when it says no, the files
/// stay as they are at that moment, which is a state that every reader and the next try understand.
pub fn pack(dir: &Path, artifact: &ArtifactRecord, go_on: &mut dyn FnMut(Act) -> bool) -> io::Result<Packed> {
    let path = dir.join(&artifact.path);
    let (half, whole) = (half_path(&path), packed_path(&path));
    let (mut from, already) = open_stored(&path)?;
    if already {
        return Ok(Packed::Packed(from.metadata()?.len()));
    }
    if !go_on(Act::Create) {
        return Ok(Packed::Stopped);
    }
    let file = OpenOptions::new().write(true).create(true).truncate(true).custom_flags(nix::libc::O_NOFOLLOW).open(&half)?;
    let mut encoder = zstd::Encoder::new(file, LEVEL)?;
    encoder.include_checksum(true)?;
    encoder.window_log(WINDOW)?;
    encoder.set_pledged_src_size(Some(from.metadata()?.len()))?;
    let (mut hasher, mut chunk) = (Sha256::new(), vec![0; CHUNK]);
    loop {
        if !go_on(Act::Write) {
            return Ok(Packed::Stopped);
        }
        let read = from.read(&mut chunk)?;
        if read == 0 {
            break;
        }
        hasher.update(&chunk[..read]);
        encoder.write_all(&chunk[..read])?;
    }
    let file = encoder.finish()?;
    let bytes = file.metadata()?.len();
    let as_sealed = hex(&hasher.finalize()) == artifact.sha256;
    if !as_sealed || bytes >= artifact.bytes - artifact.bytes / 20 {
        fs::remove_file(&half)?;
        return Ok(if as_sealed { Packed::Incompressible } else { Packed::Changed });
    }
    if !go_on(Act::Sync) {
        return Ok(Packed::Stopped);
    }
    file.sync_all()?;
    let mut written = zstd::Decoder::new(File::open(&half)?)?;
    let mut hasher = Sha256::new();
    loop {
        if !go_on(Act::Verify) {
            return Ok(Packed::Stopped);
        }
        let read = written.read(&mut chunk)?;
        if read == 0 {
            break;
        }
        hasher.update(&chunk[..read]);
    }
    if hex(&hasher.finalize()) != artifact.sha256 {
        fs::remove_file(&half)?;
        return Err(io::Error::other(format!("{} does not unpack to what it was", artifact.path)));
    }
    if !go_on(Act::Rename) {
        return Ok(Packed::Stopped);
    }
    fs::rename(&half, &whole)?;
    sync_folder(&whole)?;
    if !go_on(Act::Remove) {
        return Ok(Packed::Stopped);
    }
    fs::remove_file(&path)?;
    sync_folder(&path)?;
    Ok(Packed::Packed(bytes))
}

fn sync_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::manifest::seal;

    /// A run's folder with one export of a megabyte, sealed.
    fn run() -> (tempfile::TempDir, ArtifactRecord, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("nsys")).unwrap();
        let content: Vec<u8> = (0..1_000_000_u32).map(|at| (at / 1000) as u8).collect();
        fs::write(dir.path().join("nsys/run.sqlite"), &content).unwrap();
        let sealed = seal(dir.path()).unwrap();
        let export = sealed.into_iter().find(|it| it.path == "nsys/run.sqlite").unwrap();
        (dir, export, content)
    }

    fn content(dir: &Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        open(&dir.join("nsys/run.sqlite")).unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn whoever_stops_it_where_ever_the_content_can_be_read_and_the_next_try_ends_it() {
        let mut stops = 0;
        for stop_at in 0.. {
            let (dir, export, was) = run();
            let mut acts = 0;
            let packed = pack(dir.path(), &export, &mut |_| {
                acts += 1;
                acts <= stop_at
            });
            assert_eq!(content(dir.path()), was, "stopped before act {stop_at}");
            let path = dir.path().join(&export.path);
            assert_eq!(hash_content(&path).unwrap(), (export.bytes, export.sha256.clone()));
            let again = pack(dir.path(), &export, &mut |_| true).unwrap();
            assert!(matches!(again, Packed::Packed(bytes) if bytes < export.bytes / 10), "{again:?}");
            assert_eq!(content(dir.path()), was);
            assert!(!path.exists() && !half_path(&path).exists() && packed_path(&path).exists());
            if packed.unwrap() != Packed::Stopped {
                break;
            }
            stops += 1;
        }
        assert!(stops >= 7, "stopped before each act, and between chunks: {stops}");
    }

    #[test]
    fn what_is_not_what_was_sealed_and_what_does_not_become_smaller_stay_as_they_are() {
        let (dir, export, _) = run();
        let path = dir.path().join(&export.path);
        fs::write(&path, vec![7; 1_000_000]).unwrap();
        assert_eq!(pack(dir.path(), &export, &mut |_| true).unwrap(), Packed::Changed);
        let mut state = 1_u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .take(100_000)
        .collect();
        fs::write(&path, noise).unwrap();
        let (bytes, sha256) = hash_content(&path).unwrap();
        let noise = ArtifactRecord { bytes, sha256, ..export };
        assert_eq!(pack(dir.path(), &noise, &mut |_| true).unwrap(), Packed::Incompressible);
        assert!(path.exists() && !packed_path(&path).exists() && !half_path(&path).exists());
    }

    #[test]
    fn a_reader_that_needs_a_file_gets_one_and_it_goes_with_the_reader() {
        let (dir, export, was) = run();
        let path = dir.path().join(&export.path);
        assert_eq!(plain(&path).unwrap().path(), path);
        pack(dir.path(), &export, &mut |_| true).unwrap();
        let unpacked = plain(&path).unwrap();
        assert_eq!(fs::read(unpacked.path()).unwrap(), was);
        let gone = unpacked.path().to_owned();
        drop(unpacked);
        assert!(!gone.exists());
    }

    #[test]
    fn raw_data_is_packed_and_tables_and_reports_are_not() {
        let of = |path: &str, bytes| {
            is_raw(&ArtifactRecord { path: path.into(), bytes, sha256: String::new(), media_type: String::new(), step: None })
        };
        assert!(of("nsys/run.sqlite", 5000) && of("ncu/decode_all/raw.csv", 5000) && of("logs/nsys.stderr.log", 5000));
        assert!(!of("nsys/run.sqlite", 100) && !of("report.json", 5000) && !of("tables.jsonl", 5000));
        assert!(!of("kernels.csv", 5000) && !of("nsys/events.jsonl", 5000) && !of("manifest.json", 5000));
    }
}

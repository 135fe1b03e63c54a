//! Uploaded files before they become a run: unpacked within limits, and classified by their first
//! bytes.
//!
//! Nothing here is executed, and no uploaded name is a path. [`CapturesInspection`] requests all of
//! it.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read, Write},
    path::{Path, PathBuf},
};

use llmprof_analyze::parse::{
    compressed::{self, GZIP, ZSTD},
    encoding, foreign,
};
use llmprof_core::domain::import::{CaptureKind, Import};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::free_space::free_bytes;

/// Bytes between two checks of the disk.
pub const LOOK: u64 = 32 << 20;
/// Bytes by which a file is classified.
const HEAD: u64 = 4096;
/// Maximum size of a printed page: some ten thousand launches.
const MAX_PAGE: u64 = 64 << 20;
/// First bytes of files that are still packed, with their names.
const OTHERS: [(&[u8], &str); 2] =
    [(GZIP, "packed twice, then with gzip"), (ZSTD, "packed twice, then with zstd")];

/// Reason to refuse a file.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    #[error("it has more than {max} bytes")]
    TooLarge { max: u64 },
    #[error(
        "the disk of the runs has {free} bytes free; {least} must stay free (limits.free_bytes); \
         delete some runs"
    )]
    NoRoom { free: u64, least: u64 },
    /// It is not a capture; one line of explanation.
    #[error("{0}")]
    Unfit(String),
    #[error("cannot store an uploaded file")]
    Keep { source: io::Error },
    #[error("cannot inspect the upload: the service is stopping")]
    Stopped,
}

impl From<io::Error> for IntakeError {
    fn from(source: io::Error) -> Self {
        Self::Keep { source }
    }
}

/// A received file of an upload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UploadedFile {
    pub path: PathBuf,
    /// The client's name of it, which is not a path.
    pub name: String,
}

/// An unpacked file whose content can be read.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InspectedFile {
    pub kind: CaptureKind,
    pub bytes: u64,
}

/// A request to unpack and inspect the files of an upload, in order.
#[derive(Debug)]
pub struct CapturesInspection {
    /// Folder of the upload.
    pub folder: PathBuf,
    pub files: Vec<UploadedFile>,
    pub limits: UploadLimits,
    /// Its rules name ranges that a timeline must have; its files are ignored.
    pub rules: Import,
    pub answer: oneshot::Sender<Result<Vec<InspectedFile>, IntakeError>>,
}

/// Limits on uploads.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct UploadLimits {
    pub max_bytes: u64,
    /// Bytes that stay free on the disk.
    pub least_free: u64,
}

impl UploadLimits {
    /// Checks the total size of an upload.
    pub fn hold(&self, bytes: u64) -> Result<(), IntakeError> {
        if bytes > self.max_bytes {
            Err(IntakeError::TooLarge { max: self.max_bytes })
        } else {
            Ok(())
        }
    }

    /// Checks that the disk of `dir` has space for `more` bytes. An unknown amount passes.
    pub fn have_room(&self, dir: &Path, more: u64) -> Result<(), IntakeError> {
        let Ok(free) = free_bytes(dir) else { return Ok(()) };
        if free < self.least_free.saturating_add(more) {
            return Err(IntakeError::NoRoom { free, least: self.least_free.saturating_add(more) });
        }
        Ok(())
    }
}

/// Unpacks the file at `path` in place if it is packed; returns its kind and size. `others`: bytes
/// of the other files of the upload; `name`: the client's name of this one. Blocks.
pub fn settle(
    (path, name): (&Path, &str),
    others: u64,
    limits: UploadLimits,
) -> Result<(CaptureKind, u64), IntakeError> {
    let packed = head(path)?;
    let packed_with = compressed::program(&packed);
    if let Some(program) = packed_with {
        let plain = path.with_extension("plain");
        unpack((path, program), &plain, others, limits)?;
        fs::rename(&plain, path)?;
    }
    let bytes = fs::metadata(path)?.len();
    limits.hold(others.saturating_add(bytes))?;
    let kind = kind(&head(path)?, name, packed_with).map_err(IntakeError::Unfit)?;
    if kind == CaptureKind::Counters && bytes > MAX_PAGE {
        return Err(IntakeError::Unfit(format!(
            "a text of {bytes} bytes; a page of ncu may have {MAX_PAGE}"
        )));
    }
    File::open(path)?.sync_all()?;
    Ok((kind, bytes))
}

fn head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(path)?.take(HEAD).read_to_end(&mut head)?;
    Ok(head)
}

/// Unpacks with `program`, up to the limit; the length in the header of a packed file is not
/// trusted.
fn unpack(
    (from, program): (&Path, &str),
    to: &Path,
    others: u64,
    limits: UploadLimits,
) -> Result<(), IntakeError> {
    let broken = |error: io::Error| {
        IntakeError::Unfit(format!("packed with {program}, and broken: {error}"))
    };
    let mut packed = compressed::unpacked(program, BufReader::new(File::open(from)?))?;
    let (mut plain, mut buffer) = (File::create(to)?, vec![0; 1 << 17]);
    let (mut bytes, mut looked) = (0_u64, 0);
    loop {
        let read = packed.read(&mut buffer).map_err(broken)?;
        if read == 0 {
            return Ok(());
        }
        bytes += read as u64;
        limits.hold(others.saturating_add(bytes))?;
        if bytes - looked >= LOOK {
            limits.have_room(to, 0)?;
            looked = bytes;
        }
        plain.write_all(&buffer[..read])?;
    }
}

/// The kind of a file that starts with `head`; otherwise a few words on what it is. `packed_with`
/// is the program that unpacks the client's file.
fn kind(head: &[u8], name: &str, packed_with: Option<&str>) -> Result<CaptureKind, String> {
    if head.is_empty() {
        return Err(foreign::EMPTY.into());
    }
    let packed = OTHERS.iter().find(|(magic, _)| head.starts_with(magic));
    let packed = packed.map(|(_, what)| (*what).to_owned());
    if let Some(refused) = foreign::unread(head, name).or(packed) {
        return Err(refused);
    }
    if head.starts_with(foreign::SQLITE) {
        return Ok(CaptureKind::Timeline);
    }
    if head.starts_with(foreign::NSYS_REPORT) {
        return Ok(CaptureKind::Report);
    }
    if head.starts_with(foreign::NCU_REPORT) {
        return Ok(CaptureKind::CounterReport);
    }
    let text = encoding::decoded(head);
    if text.contains('\0') {
        return Err(foreign::unknown(head, name));
    }
    match encoding::utf16(head) {
        _ if !text.trim_start().starts_with(['{', '[']) => Ok(CaptureKind::Counters),
        Some(form) => Err(encoding::utf16_refused(form, name, packed_with)),
        None => Ok(CaptureKind::PytorchTrace),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: UploadLimits = UploadLimits { max_bytes: 1 << 20, least_free: 0 };

    fn settled(bytes: &[u8], limits: UploadLimits) -> Result<(CaptureKind, u64), String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0");
        fs::write(&path, bytes).unwrap();
        settle((&path, "x.bin"), 10, limits).map_err(|error| error.to_string())
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }

    #[test]
    fn files_are_classified_by_their_first_bytes_packed_or_not() {
        for (bytes, kind) in [
            (&b"SQLite format 3\0 and more"[..], CaptureKind::Timeline),
            (b"NVIDIA Tegra Profiler Report 1.\n\x0b", CaptureKind::Report),
            (b"==PROF== Connected\n\"ID\",\"Kernel Name\"\n", CaptureKind::Counters),
            (b"NVR\0\x0a\0\0\0", CaptureKind::CounterReport),
            (b"\n  {\n    \"schemaVersion\": 1", CaptureKind::PytorchTrace),
            (b"[{\"ph\": \"X\"", CaptureKind::PytorchTrace),
            (b"\xef\xbb\xbf{\"traceEvents\"", CaptureKind::PytorchTrace),
            (b"\xff\xfe=\0=\0P\0R\0O\0F\0=\0=\0", CaptureKind::Counters),
        ] {
            assert_eq!(settled(bytes, LIMITS), Ok((kind, bytes.len() as u64)));
            assert_eq!(settled(&gzip(bytes), LIMITS), Ok((kind, bytes.len() as u64)));
            assert_eq!(
                settled(&zstd::encode_all(bytes, 1).unwrap(), LIMITS),
                Ok((kind, bytes.len() as u64))
            );
        }
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let twice = zstd::encode_all(&*zstd::encode_all(&b"x"[..], 1).unwrap(), 1).unwrap();
        for (bytes, what) in [
            (&b""[..], "empty"),
            (b"\x7fELF\x02\x01", "a program"),
            (b"PK\x03\x04", "a zip archive; unpack it: unzip x.bin"),
            (b"BZh91AY&SY\0", "bzip2; decompress it: bzip2 -dc x.bin > x.bin.unpacked"),
            (b"<!DOCTYPE html><title>Log in</title>", "a page of HTML"),
            (b"Time (%),Total Time (ns),Instances\n", "a table of nsys stats"),
            (&[0; 64], "zero bytes only"),
            (b"\x1f\x8b\x08", "packed with gzip, and broken"),
            (&gzip(&gzip(b"x")), "packed twice, then with gzip"),
            (b"\x00\x01", "not a capture but a file of unknown format"),
            (b"\xff\xfe{\0", "UTF-16"),
            (b"PAR1\0", "a Parquet file"),
            (&twice, "twice"),
            (b"\x28\xb5\x2f\xfd and no frame", "broken"),
        ] {
            assert!(settled(bytes, LIMITS).unwrap_err().contains(what), "{what}");
        }
    }

    #[test]
    fn a_bomb_is_unpacked_up_to_the_limit_and_not_on_a_full_disk() {
        let bomb = zstd::encode_all(&vec![0; 64 << 20][..], 3).unwrap();
        assert!(bomb.len() < 16 << 10, "{}", bomb.len());
        assert!(settled(&bomb, LIMITS).unwrap_err().contains("more than 1048576 bytes"));
        let bomb_of_gzip = gzip(&vec![0; 64 << 20]);
        assert!(settled(&bomb_of_gzip, LIMITS).unwrap_err().contains("more than 1048576 bytes"));
        let full = UploadLimits { max_bytes: 1 << 30, least_free: u64::MAX };
        assert!(settled(&bomb, full).unwrap_err().contains("bytes free"));
    }
}

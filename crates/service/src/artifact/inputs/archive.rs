//! Archives of inputs: a tar, possibly compressed with zstd, unpacked within limits.
//!
//! Only regular files are unpacked, each to a numbered file; no name in an archive is used as a
//! path.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read},
    path::{Component, Path},
};

use llmprof_analyze::parse::compressed::{self, ZSTD};
use llmprof_core::domain::{input_manifest::check_name, inputs::MAX_IMAGES};
use tar::{Archive, EntryType};

use crate::artifact::import_staging::{IntakeError, UploadLimits, UploadedFile};

/// Unpacks the archive at `from` into `folder`; returns its files with their names.
pub(super) fn unpack(
    from: &Path,
    folder: &Path,
    limits: UploadLimits,
) -> Result<Vec<UploadedFile>, IntakeError> {
    let mut head = [0; 4];
    let length = File::open(from)?.read(&mut head)?;
    let file = BufReader::new(File::open(from)?);
    let is_zstd = head[..length].starts_with(ZSTD);
    let plain: Box<dyn Read> =
        if is_zstd { compressed::unpacked("zstd", file)? } else { Box::new(file) };
    let bounded = BoundedReader { from: plain, left: limits.max_bytes };
    let broken = |error: io::Error| refused(&error, limits);
    let mut archive = Archive::new(bounded);
    let mut files: Vec<UploadedFile> = Vec::new();
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let bytes = entry.path_bytes().into_owned();
        let Some(name) = entry_name(&bytes)? else { continue };
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous => {}
            EntryType::Directory | EntryType::XGlobalHeader => continue,
            _ => {
                let message = format!("{name}: neither a file nor a folder");
                return Err(IntakeError::Unfit(message));
            }
        }
        if files.iter().any(|file| file.name == name) {
            return Err(IntakeError::Unfit(format!("{name}: twice in the archive")));
        }
        // A manifest in addition to the images.
        if files.len() > MAX_IMAGES {
            let message = format!("the archive has more than {MAX_IMAGES} images");
            return Err(IntakeError::Unfit(message));
        }
        limits.have_room(folder, entry.size())?;
        let path = folder.join(format!("unpacked-{}", files.len()));
        let copied = io::copy(&mut entry, &mut File::create(&path)?).map_err(broken)?;
        if copied != entry.size() {
            return Err(IntakeError::Unfit(format!("{name}: the archive is cut short")));
        }
        files.push(UploadedFile { path, name });
    }
    if files.is_empty() {
        return Err(IntakeError::Unfit("the archive has no files".into()));
    }
    fs::remove_file(from)?;
    Ok(files)
}

/// The name of an entry without `./`; `None` for a hidden file, which archivers of some systems
/// add.
fn entry_name(bytes: &[u8]) -> Result<Option<String>, IntakeError> {
    let invalid = |why: String| IntakeError::Unfit(why);
    let name = std::str::from_utf8(bytes).map_err(|_| {
        invalid(format!("invalid name {:?}; expected UTF-8", String::from_utf8_lossy(bytes)))
    })?;
    let mut parts = Vec::new();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) => parts.push(part.to_string_lossy()),
            Component::CurDir => {}
            _ => {
                let why = format!("invalid name {name:?}; expected a relative path without ..");
                return Err(invalid(why));
            }
        }
    }
    if parts.last().is_none_or(|last| last.starts_with('.')) {
        return Ok(None);
    }
    let name = parts.join("/");
    check_name(&name).map_err(invalid)?;
    Ok(Some(name))
}

/// The reason to refuse an archive that cannot be read.
fn refused(error: &io::Error, limits: UploadLimits) -> IntakeError {
    match error.kind() {
        io::ErrorKind::FileTooLarge => IntakeError::TooLarge { max: limits.max_bytes },
        io::ErrorKind::StorageFull => IntakeError::NoRoom { free: 0, least: limits.least_free },
        _ => {
            let why = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            IntakeError::Unfit(format!("not a tar, or a broken one: {why}"))
        }
    }
}

/// A reader that fails after a number of bytes.
struct BoundedReader<R> {
    from: R,
    left: u64,
}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        match self.left.checked_sub(read as u64) {
            Some(left) => {
                self.left = left;
                Ok(read)
            }
            None => Err(io::ErrorKind::FileTooLarge.into()),
        }
    }
}

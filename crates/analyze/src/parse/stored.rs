//! Files of a run as they are stored: `NAME`, or packed `NAME.zst`. All readers use this module.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use tempfile::NamedTempFile;

/// Suffix of a packed file.
const PACKED: &str = "zst";
/// Maximum size of an unpacked temporary file: several times the quota of a run.
const MAX_UNPACKED: u64 = 64 << 30;
/// Start of the name of every temporary file and folder.
pub const TEMPORARY: &str = "llmprof.";
/// Attempts to create an entry that a concurrent sweep removes before it is locked.
pub const ATTEMPTS: u32 = 10;

/// Path of the packed form of `path`.
pub fn packed_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(PACKED);
    name.into()
}

/// Returns true if a file exists, packed or not.
pub fn exists(path: &Path) -> bool {
    path.is_file() || packed_path(path).is_file()
}

/// Size of a file on disk, and true if it is packed.
pub fn stored(path: &Path) -> io::Result<(u64, bool)> {
    match fs::symlink_metadata(path) {
        Ok(meta) => Ok((meta.len(), false)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok((fs::symlink_metadata(packed_path(path))?.len(), true))
        }
        Err(error) => Err(error),
    }
}

/// Opens a file in its stored form; true if it is packed. Links are not followed.
pub fn open_stored(path: &Path) -> io::Result<(File, bool)> {
    let open =
        |path: &Path| OpenOptions::new().read(true).custom_flags(nix::libc::O_NOFOLLOW).open(path);
    match open(path) {
        Ok(file) => Ok((file, false)),
        // A file is removed only after its packed form exists.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok((open(&packed_path(path))?, true))
        }
        Err(error) => Err(error),
    }
}

/// Opens the content of a file, packed or not.
pub fn open(path: &Path) -> io::Result<Box<dyn Read + Send>> {
    let (file, packed) = open_stored(path)?;
    Ok(if packed { Box::new(zstd::Decoder::new(file)?) } else { Box::new(file) })
}

/// The unpacked file for readers that need a path: the file itself, or a temporary one that is
/// removed with this value.
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

/// Returns `path` as an unpacked file; a packed one is unpacked into `TMPDIR`, from where the next
/// start of a service removes it if this process is killed.
pub fn plain(path: &Path) -> io::Result<Plain> {
    if path.exists() || !packed_path(path).is_file() {
        return Ok(Plain::Itself(path.to_owned()));
    }
    let mut file = create_temporary(&tempfile::env::temp_dir())?;
    let unpacked = io::copy(&mut open(path)?.take(MAX_UNPACKED + 1), &mut file)?;
    if unpacked > MAX_UNPACKED {
        return Err(io::Error::other(format!("it has more than {MAX_UNPACKED} bytes unpacked")));
    }
    Ok(Plain::Unpacked(file))
}

/// Creates a file in `folder`, removed on drop.
pub fn create_temporary(folder: &Path) -> io::Result<NamedTempFile> {
    for _ in 0..ATTEMPTS {
        let file = NamedTempFile::with_prefix_in(format!("{TEMPORARY}unpacked."), folder)?;
        if is_locked(file.as_file(), file.path()) {
            return Ok(file);
        }
    }
    Err(io::Error::other(format!("cannot keep a temporary file in {}", folder.display())))
}

/// Locks an entry; false if it was removed meanwhile. File systems without locks remove nothing.
pub fn is_locked(entry: &File, path: &Path) -> bool {
    let _ = entry.lock();
    let same = |named: fs::Metadata| {
        entry.metadata().is_ok_and(|open| (open.dev(), open.ino()) == (named.dev(), named.ino()))
    };
    fs::symlink_metadata(path).is_ok_and(same)
}

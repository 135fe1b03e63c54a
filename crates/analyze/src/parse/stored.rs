//! Files of a run as they are stored: `NAME`, or packed `NAME.zst`. All readers use this module.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Component, Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{self, OFlag, openat},
    sys::stat::Mode,
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

/// Size of a regular file on disk, and true if it is packed.
pub fn stored(path: &Path) -> io::Result<(u64, bool)> {
    let bytes = |path: &Path| {
        let meta = fs::symlink_metadata(path)?;
        if meta.is_file() { Ok(meta.len()) } else { Err(irregular("not a regular file")) }
    };
    match bytes(path) {
        Ok(bytes) => Ok((bytes, false)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok((bytes(&packed_path(path))?, true))
        }
        Err(error) => Err(error),
    }
}

/// Opens a regular file that an argument names, or the file that a link leads to. A pipe or a
/// device is an error: its reader could wait forever.
pub fn open_named(path: &Path) -> io::Result<File> {
    regular(fcntl::open(path, READ, Mode::empty()))
}

/// Opens a regular file of a folder whose files and folders a program may have written. No part of
/// the path is followed if it is a link, since it may lead out of the folder. If an argument
/// or a setting names the folder, its path is [`resolved`] first.
pub fn open_own(path: &Path) -> io::Result<File> {
    regular(open_without_links(path, READ))
}

/// The path without links of a folder or file that an argument or a setting names. If it does not
/// exist, it keeps its path.
pub fn resolved(named: &Path) -> PathBuf {
    named.canonicalize().unwrap_or_else(|_| named.to_owned())
}

/// Reads a file of such a folder.
pub fn read_own(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_own(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Without `O_NONBLOCK`, a pipe waits for its writer when it is opened.
const READ: OFlag = OFlag::O_RDONLY.union(OFlag::O_NONBLOCK).union(OFlag::O_CLOEXEC);

fn regular(opened: nix::Result<OwnedFd>) -> io::Result<File> {
    let file = File::from(opened.map_err(|error| match error {
        Errno::ELOOP => irregular("a link, and links are not followed; put the file itself there"),
        // A socket.
        Errno::ENXIO => irregular("not a regular file"),
        _ => error.into(),
    })?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(irregular("not a regular file")) }
}

fn open_without_links(path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    {
        let how = fcntl::OpenHow::new().flags(flags);
        let how = how.resolve(fcntl::ResolveFlag::RESOLVE_NO_SYMLINKS);
        match fcntl::openat2(fcntl::AT_FDCWD, path, how) {
            // Linux before 5.6 lacks the call, and an older filter of system calls refuses it.
            Err(Errno::ENOSYS | Errno::EPERM) => {}
            opened => return opened,
        }
    }
    open_part_by_part(path, flags)
}

/// Opens each folder of the path from the one above it.
fn open_part_by_part(path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    let folder = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    // Needs no permission to list the folder.
    #[cfg(target_os = "linux")]
    let folder = folder | OFlag::O_PATH;
    let start = if path.is_absolute() { "/" } else { "." };
    let mut opened = fcntl::open(start, folder, Mode::empty())?;
    let is_named = |it: &Component| !matches!(it, Component::RootDir | Component::CurDir);
    let mut parts = path.components().filter(is_named).peekable();
    while let Some(part) = parts.next() {
        let is_last = parts.peek().is_none();
        let of_part = if is_last { flags | OFlag::O_NOFOLLOW } else { folder };
        opened = match openat(&opened, part.as_os_str(), of_part, Mode::empty()) {
            // The folder is a link or a file.
            Err(Errno::ENOTDIR) if !is_last => return Err(Errno::ELOOP),
            next => next?,
        };
    }
    Ok(opened)
}

fn irregular(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Opens a file in its stored form; true if it is packed. Links are not followed.
pub fn open_stored(path: &Path) -> io::Result<(File, bool)> {
    match open_own(path) {
        Ok(file) => Ok((file, false)),
        // A file is removed only after its packed form exists.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok((open_own(&packed_path(path))?, true))
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
    unpacked(open(path)?)
}

/// Writes the unpacked content of a file to a temporary one.
pub fn unpacked(content: impl Read) -> io::Result<Plain> {
    let mut file = create_temporary(&resolved(&tempfile::env::temp_dir()))?;
    let unpacked = io::copy(&mut content.take(MAX_UNPACKED + 1), &mut file)?;
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

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::symlink, net::UnixListener};

    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_links_of_a_folder_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "text").unwrap();
        fs::create_dir(at("folder")).unwrap();
        mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink("/dev/zero", at("device")).unwrap();
        symlink(at("pipe"), at("link-to-pipe")).unwrap();
        let error = |opened: io::Result<File>| opened.err().map(|it| it.to_string());
        let irregular = Some("not a regular file".to_owned());
        for name in ["folder", "pipe", "socket", "device", "link-to-pipe"] {
            assert_eq!(error(open_named(&at(name))), irregular, "{name}");
        }
        for name in ["folder", "pipe", "socket"] {
            assert_eq!(error(open_own(&at(name))), irregular, "{name}");
            assert_eq!(error(open_stored(&at(name)).map(|it| it.0)), irregular, "{name}");
        }
        for name in ["link", "device", "link-to-pipe"] {
            let refused = error(open_own(&at(name))).unwrap();
            assert!(refused.starts_with("a link"), "{name}: {refused}");
        }
        assert_eq!((error(open_named(&at("link"))), error(open_named(&at("file")))), (None, None));
        assert_eq!(read_own(&at("file")).unwrap(), b"text");
        assert_eq!(read_own(&at("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn no_part_of_the_path_of_a_run_s_file_is_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (run, other) = (resolved(dir.path()).join("run"), resolved(dir.path()).join("other"));
        for folder in [&run, &other] {
            fs::create_dir_all(folder.join("nsys/window")).unwrap();
            for file in ["file", "nsys/file", "nsys/window/file"] {
                fs::write(folder.join(file), folder.as_os_str().as_encoded_bytes()).unwrap();
            }
        }
        let open_each = |path: &Path| -> [Option<String>; 2] {
            let read = |opened: io::Result<File>| {
                let mut text = String::new();
                opened.ok()?.read_to_string(&mut text).ok()?;
                Some(text)
            };
            [read(open_own(path)), read(regular(open_part_by_part(path, READ)))]
        };
        let own = Some(run.display().to_string());
        for file in ["file", "nsys/file", "nsys/window/file"] {
            assert_eq!(open_each(&run.join(file)), [own.clone(), own.clone()], "{file}");
        }
        for (planted, file) in [
            ("nsys/window/file", "nsys/window/file"),
            ("nsys/window", "nsys/window/file"),
            ("nsys", "nsys/window/file"),
            ("nsys", "nsys/file"),
        ] {
            let (link, aside) = (run.join(planted), run.join("aside"));
            fs::rename(&link, &aside).unwrap();
            for to in [other.join(planted), aside.clone()] {
                symlink(&to, &link).unwrap();
                assert_eq!(open_each(&run.join(file)), [None, None], "{planted} to {to:?}");
                fs::remove_file(&link).unwrap();
            }
            fs::rename(&aside, &link).unwrap();
        }
        // The folder itself may be named by a link.
        let named = other.join("link");
        symlink(&run, &named).unwrap();
        assert_eq!(open_each(&named.join("nsys/file")), [None, None]);
        assert_eq!(open_each(&resolved(&named).join("nsys/file")), [own.clone(), own]);
        assert!(open_part_by_part(&run.join("none"), READ).is_err_and(|it| it == Errno::ENOENT));
    }
}

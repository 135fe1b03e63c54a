//! Limits of the service's process: open files, and access to the files that it creates.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::Path,
};

use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    stat::{Mode, umask},
};

/// Bits of access by the group and by others.
const SHARED: u32 = 0o077;

/// Largest limit of open files. Children inherit it, and some programs close every possible
/// descriptor one by one.
const MAX_DESCRIPTORS: u64 = 65_536;

/// Raises the limit of open files to the hard limit, at most [`MAX_DESCRIPTORS`]; returns the new
/// limit, if it is known.
pub fn raise_descriptors() -> Option<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    let wanted = hard.min(MAX_DESCRIPTORS);
    if wanted <= soft {
        return Some(soft);
    }
    match setrlimit(Resource::RLIMIT_NOFILE, wanted, hard) {
        Ok(()) => Some(wanted),
        Err(error) => {
            tracing::warn!(%error, "cannot raise the limit of open files from {soft} to {wanted}");
            Some(soft)
        }
    }
}

/// Makes new files of this process and its children accessible to their owner only.
pub fn create_private_files() {
    umask(Mode::from_bits_truncate(SHARED));
}

/// Makes a data folder and its entries accessible to their owner only. Entries of `runs` are then
/// out of reach, so they are not changed.
pub fn tighten(data: &Path) {
    let entries = fs::read_dir(data).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in entries.chain([data.to_owned()]) {
        match make_private(&path) {
            Ok(None) => {}
            Ok(Some(mode)) => tracing::info!(path = %path.display(), "was accessible to others \
                (mode {mode:04o}); now to its owner only"),
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "is accessible to others; \
                change its mode (chmod go-rwx)")
            }
        }
    }
}

/// Removes access by others; returns the previous mode if it had any.
fn make_private(path: &Path) -> io::Result<Option<u32>> {
    let file = fs::symlink_metadata(path)?;
    let mode = file.permissions().mode() & 0o7777;
    if file.is_symlink() || mode & SHARED == 0 {
        return Ok(None);
    }
    fs::set_permissions(path, Permissions::from_mode(mode & !SHARED))?;
    Ok(Some(mode))
}

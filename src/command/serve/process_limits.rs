//! Limits of the service's process.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

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

//! Files that arguments name, read within a limit. A device such as `/dev/zero` has no end. A pipe
//! is read for short texts alone, which a shell passes as `<(command)`: captures, reports, images
//! and uploads need a length, and without a writer the program would wait forever.

use std::{
    fs::{self, File, Metadata},
    os::unix::fs::FileTypeExt as _,
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use llmprof_core::domain::bounded_read::read_bounded;
use llmprof_service::artifact::packed::open_named;

/// Maximum size of a model's config.json, bytes.
pub const MAX_CONFIG: u64 = 16 << 20;

/// Refuses everything except a regular file of at most `max` bytes.
pub fn check(about: &Metadata, max: u64) -> Result<()> {
    ensure!(about.is_file(), "not a regular file");
    let bytes = about.len();
    ensure!(bytes <= max, "{bytes} bytes; at most {max} are accepted");
    Ok(())
}

/// Refuses an existing path to something other than a regular file or a folder.
pub fn check_kind(path: &Path) -> Result<()> {
    let is_special = fs::metadata(path).is_ok_and(|about| !about.is_file() && !about.is_dir());
    ensure!(!is_special, "{}: not a regular file", path.display());
    Ok(())
}

/// Reads a regular file of at most `max` bytes.
pub fn read(path: &Path, max: u64) -> Result<Vec<u8>> {
    let read = || -> Result<Vec<u8>> {
        check(&fs::metadata(path)?, max)?;
        Ok(read_bounded(open_named(path)?, max)?)
    };
    read().with_context(|| format!("cannot read {}", path.display()))
}

/// Reads a regular file or a pipe of UTF-8 with at most `max` bytes.
pub fn read_text(path: &Path, max: u64) -> Result<String> {
    let cannot = || format!("cannot read {}", path.display());
    let is_pipe = fs::metadata(path).is_ok_and(|about| about.file_type().is_fifo());
    let bytes = if is_pipe {
        let pipe = File::open(path).with_context(cannot)?; // waits for the writer
        read_bounded(pipe, max).with_context(cannot)?
    } else {
        read(path, max)?
    };
    String::from_utf8(bytes).with_context(cannot)
}

#[cfg(test)]
mod tests {
    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    #[test]
    fn a_file_is_read_within_the_limit_and_a_pipe_only_as_a_text() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
        fs::write(at("file"), "12345").unwrap();
        let error = |path: &Path, max| format!("{:#}", read(path, max).unwrap_err());
        for path in ["/dev/zero".into(), folder.path().to_owned(), at("pipe")] {
            let refused = error(&path, 10);
            assert_eq!(refused, format!("cannot read {}: not a regular file", path.display()));
        }
        let device = format!("{:#}", read_text(Path::new("/dev/zero"), 10).unwrap_err());
        assert_eq!(device, "cannot read /dev/zero: not a regular file");
        assert!(error(&at("file"), 4).ends_with("5 bytes; at most 4 are accepted"));
        assert!(error(Path::new("/proc/self/status"), 4).ends_with("larger than 4 bytes"));
        assert!(error(&at("absent"), 4).contains("No such file"));
        assert_eq!(read_text(&at("file"), 5).unwrap(), "12345");
        for (max, expected) in [(5, Some("12345")), (4, None)] {
            let writer = at("pipe");
            let writer = std::thread::spawn(move || fs::write(writer, "12345"));
            assert_eq!(read_text(&at("pipe"), max).ok().as_deref(), expected);
            _ = writer.join().unwrap();
        }
    }

    #[test]
    fn a_pipe_or_a_device_is_not_a_capture() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("run.sqlite");
        mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        for path in [pipe.as_path(), Path::new("/dev/zero")] {
            let refused = check_kind(path).unwrap_err().to_string();
            assert_eq!(refused, format!("{}: not a regular file", path.display()));
        }
        for path in [folder.path(), Path::new("/absent")] {
            assert!(check_kind(path).is_ok(), "{}", path.display());
        }
    }
}

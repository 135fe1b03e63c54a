//! All files of a run as one stream: a tar, compressed as it goes, in constant memory.

use std::{
    io::{self, Read, Write},
    path::Path,
};

use tar::{Builder, EntryType, Header};

use super::packed;
use crate::run::{ArtifactRecord, RunId};

/// Fast, and near the best ratio for JSON and SQLite.
const LEVEL: i32 = 3;

/// Writes the files that `artifacts` name under `dir` to `out`, below a folder named by the run.
///
/// The same run always gives the same bytes: owner and times are left out. Packed files come
/// as they were. A file that no longer has its recorded size is an error, for a tar cannot be mended once its header is written.
pub fn write(dir: &Path, id: RunId, artifacts: &[ArtifactRecord], out: impl Write) -> io::Result<()> {
    let mut encoder = zstd::Encoder::new(out, LEVEL)?;
    encoder.include_checksum(true)?;
    let mut tar = Builder::new(encoder);
    for artifact in artifacts {
        let file = packed::open(&dir.join(&artifact.path))?;
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_size(artifact.bytes);
        tar.append_data(
            &mut header,
            format!("{id}/{}", artifact.path),
            Exactly { from: file, left: artifact.bytes, name: &artifact.path },
        )?;
    }
    tar.into_inner()?.finish()?.flush()
}

/// Reads a file that has to have so many bytes, no more and no fewer.
struct Exactly<'a, R> {
    from: R,
    left: u64,
    name: &'a str,
}

impl<R: Read> Read for Exactly<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        match self.left.checked_sub(read as u64) {
            Some(left) if read > 0 || left == 0 || buffer.is_empty() => self.left = left,
            _ => return Err(io::Error::other(format!("{} changed since the run ended", self.name))),
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::manifest::seal;

    #[test]
    fn a_bundle_unpacks_to_the_files_and_is_the_same_each_time() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("logs")).unwrap();
        std::fs::write(dir.path().join("logs/a.log"), "hello").unwrap();
        let (artifacts, id) = (seal(dir.path()).unwrap(), RunId::now());
        let bundle = || {
            let mut bytes = Vec::new();
            write(dir.path(), id, &artifacts, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(bundle(), bundle());
        let out = tempfile::tempdir().unwrap();
        tar::Archive::new(zstd::Decoder::new(bundle().as_slice()).unwrap()).unpack(out.path()).unwrap();
        assert_eq!(std::fs::read(out.path().join(format!("{id}/logs/a.log"))).unwrap(), b"hello");
        assert_eq!(
            std::fs::read(out.path().join(format!("{id}/manifest.json"))).unwrap(),
            std::fs::read(dir.path().join("manifest.json")).unwrap()
        );
    }

    #[test]
    fn a_file_that_changed_breaks_the_bundle_off() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.log"), "hello").unwrap();
        let artifacts = seal(dir.path()).unwrap();
        std::fs::write(dir.path().join("a.log"), "hell").unwrap();
        assert!(write(dir.path(), RunId::now(), &artifacts, io::sink()).is_err());
    }
}

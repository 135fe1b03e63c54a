//! All files of a run as one stream: a tar, compressed block by block as its reader consumes it.
//!
//! Every block is a frame of its own, so a slow reader holds one block and no compressor.

use std::{
    io::{self, Cursor, Read, Write},
    path::PathBuf,
    sync::{Mutex, PoisonError},
    vec,
};

use llmprof_core::domain::{ids::RunId, run_files::ArtifactRecord};
use tar::{Builder, EntryType, Header};
use zstd::bulk::Compressor;

use super::packed;

/// Fast, and near the best ratio for JSON and SQLite.
const LEVEL: i32 = 3;
/// Bytes of the tar in a block.
const BLOCK: usize = 256 << 10;
/// Compressors kept for reuse.
const KEPT: usize = 4;
/// Size of a tar record, to whose multiples contents are padded.
const RECORD: u64 = 512;

/// The bundle of a run, block by block.
///
/// The same run always gives the same bytes: owner and times are left out, and packed files are
/// unpacked. A file that does not have its recorded size is an error, because its header is already
/// written.
pub struct Bundle {
    dir: PathBuf,
    id: RunId,
    artifacts: vec::IntoIter<ArtifactRecord>,
    /// Headers and padding, and the file behind them.
    text: Cursor<Vec<u8>>,
    file: Option<ExactReader>,
    ended: bool,
}

impl Bundle {
    /// The bundle of the files of `artifacts` below `dir`, in a folder named by the run.
    pub fn new(dir: PathBuf, id: RunId, artifacts: Vec<ArtifactRecord>) -> Self {
        Self {
            dir,
            id,
            artifacts: artifacts.into_iter(),
            text: Cursor::default(),
            file: None,
            ended: false,
        }
    }

    /// The next block; `None` at the end. Blocks, in time and memory of one block.
    pub fn next_block(&mut self) -> io::Result<Option<Vec<u8>>> {
        static COMPRESSORS: Mutex<Vec<Compressor<'static>>> = Mutex::new(Vec::new());
        let mut block = Vec::with_capacity(BLOCK);
        self.by_ref().take(BLOCK as u64).read_to_end(&mut block)?;
        if block.is_empty() {
            return Ok(None);
        }
        let pool = || COMPRESSORS.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = pool().pop();
        let mut compressor = match kept {
            Some(compressor) => compressor,
            None => {
                let mut new = Compressor::new(LEVEL)?;
                new.include_checksum(true)?;
                new
            }
        };
        let mut compressed = compressor.compress(&block)?;
        compressed.shrink_to_fit();
        let mut pool = pool();
        if pool.len() < KEPT {
            pool.push(compressor);
        }
        Ok(Some(compressed))
    }

    /// Opens the next file and writes its header; returns false if there is none.
    fn next_file(&mut self) -> io::Result<bool> {
        let Some(artifact) = self.artifacts.next() else { return Ok(false) };
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_size(artifact.bytes);
        let mut head = Builder::new(Vec::new());
        head.append_data(&mut header, format!("{}/{}", self.id, artifact.path), io::empty())?;
        // The end of the tar, two empty records, follows the last file only.
        let mut text = head.into_inner()?;
        text.truncate(text.len() - 2 * RECORD as usize);
        self.text = Cursor::new(text);
        self.file = Some(ExactReader {
            from: packed::open_content(&self.dir.join(&artifact.path))?,
            left: artifact.bytes,
            bytes: artifact.bytes,
            name: artifact.path,
        });
        Ok(true)
    }
}

/// The tar, uncompressed.
impl Read for Bundle {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.text.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            if let Some(file) = &mut self.file {
                let read = file.read(buffer)?;
                if read > 0 {
                    return Ok(read);
                }
                let padding = (RECORD - file.bytes % RECORD) % RECORD;
                (self.text, self.file) = (Cursor::new(vec![0; padding as usize]), None);
            } else if self.ended {
                return Ok(0);
            } else if !self.next_file()? {
                (self.text, self.ended) = (Cursor::new(vec![0; 2 * RECORD as usize]), true);
            }
        }
    }
}

/// Writes a complete bundle to `out`.
pub fn write(mut bundle: Bundle, mut out: impl Write) -> io::Result<()> {
    while let Some(block) = bundle.next_block()? {
        out.write_all(&block)?;
    }
    out.flush()
}

/// Reads a file that must have exactly the recorded size.
struct ExactReader {
    from: Box<dyn Read + Send>,
    left: u64,
    bytes: u64,
    name: String,
}

impl Read for ExactReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        match self.left.checked_sub(read as u64) {
            Some(left) if read > 0 || left == 0 || buffer.is_empty() => self.left = left,
            _ => {
                return Err(io::Error::other(format!("{} changed since the run ended", self.name)));
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{artifact::manifest::seal, runtime::work::SlicedWork};

    #[test]
    fn a_bundle_unpacks_to_the_files_and_is_the_same_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let long = "a-long-name/".repeat(12);
        std::fs::create_dir_all(dir.path().join(&long)).unwrap();
        let large = "many lines of a log\n".repeat(50_000);
        for (path, text) in [
            ("a.log", "hello"),
            ("empty.log", ""),
            (&format!("{long}b.log"), &large),
            ("c.log", &large[..512]),
        ] {
            std::fs::write(dir.path().join(path), text).unwrap();
        }
        let (artifacts, id) =
            (seal(dir.path(), u64::MAX, &SlicedWork::default()).unwrap().artifacts, RunId::now());
        let bundle = || {
            let mut bytes = Vec::new();
            write(Bundle::new(dir.path().to_owned(), id, artifacts.clone()), &mut bytes).unwrap();
            bytes
        };
        assert_eq!(bundle(), bundle());
        let out = tempfile::tempdir().unwrap();
        tar::Archive::new(zstd::Decoder::new(bundle().as_slice()).unwrap())
            .unpack(out.path())
            .unwrap();
        for artifact in &artifacts {
            let unpacked =
                std::fs::read(out.path().join(format!("{id}/{}", artifact.path))).unwrap();
            assert!(
                unpacked == std::fs::read(dir.path().join(&artifact.path)).unwrap(),
                "{}",
                artifact.path
            );
        }
        assert_eq!(artifacts.len(), 5);
    }

    #[test]
    fn a_changed_file_ends_the_bundle_with_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.log"), "hello").unwrap();
        let artifacts = seal(dir.path(), u64::MAX, &SlicedWork::default()).unwrap().artifacts;
        for changed in ["hell", "hello again"] {
            std::fs::write(dir.path().join("a.log"), changed).unwrap();
            let bundle = Bundle::new(dir.path().to_owned(), RunId::now(), artifacts.clone());
            assert!(write(bundle, io::sink()).is_err(), "{changed}");
        }
        let log = dir.path().join("a.log");
        std::fs::remove_file(&log).unwrap();
        nix::unistd::mkfifo(&log, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let bundle = Bundle::new(dir.path().to_owned(), RunId::now(), artifacts);
        let error = write(bundle, io::sink()).unwrap_err();
        assert_eq!(error.to_string(), "not a regular file", "no writer of a pipe is waited for");
    }
}

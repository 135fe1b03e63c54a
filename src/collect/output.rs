//! The output of a child, kept in a file of bounded size.
//!
//! A pipe that is always drained, not the file itself: a limit on file sizes would also hit the child's other files, and watching
//! a log grow lets a fast child fill the disk between two looks. Past the cap the beginning and the end are kept, with a note
//! between them: the end is where a failing child says why. A child never waits for a listener, and never for a full disk.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    time::Instant,
};

use super::lines::Lines;

/// Most that one output of a child takes on disk, unless told otherwise.
pub const DEFAULT_CAP: u64 = 16 << 20;
/// Bytes kept from the end of an output that is longer than its cap.
const TAIL: usize = 64 << 10;

/// Where a child's output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logs {
    pub stdout: PathBuf,
    pub stderr: PathBuf,
    /// Most bytes that either file takes, a note of a line aside.
    pub cap: u64,
}

impl Logs {
    /// Names the two files of one child: `NAME.stdout.log` and `NAME.stderr.log`.
    pub fn named(folder: &Path, name: &str) -> Self {
        let file = |stream| folder.join(format!("{name}.{stream}.log"));
        Self { stdout: file("stdout"), stderr: file("stderr"), cap: DEFAULT_CAP }
    }

    /// The last lines that the child wrote, errors first, or its normal output when it wrote no errors.
    pub fn last_words(&self, n: usize) -> Vec<String> {
        [&self.stderr, &self.stdout].into_iter().map(|log| last_lines(log, n)).find(|lines| !lines.is_empty()).unwrap_or_default()
    }
}

/// The last `n` lines of a file that hold anything, read from its end only. A file that is not there has none.
pub fn last_lines(path: &Path, n: usize) -> Vec<String> {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL as u64)))?;
        let mut end = Vec::new();
        file.take(TAIL as u64).read_to_end(&mut end)?;
        Ok(end)
    };
    let end = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&end);
    let lines: Vec<_> = text.split(['\n', '\r']).map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(n)..].iter().map(|line| line.chars().take(2_000).collect()).collect()
}

/// Copies `from` to a file until it ends, `cap` bytes at most, and tells `lines` what passes.
pub async fn keep(mut from: impl AsyncRead + Unpin, to: File, cap: u64, mut lines: Lines) -> io::Result<()> {
    let mut file = tokio::fs::File::from_std(to);
    let mut room = usize::try_from(cap).unwrap_or(usize::MAX).saturating_sub(TAIL);
    let mut tail = VecDeque::new();
    let mut dropped = 0u64;
    let mut failed = None;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let n = from.read(&mut buffer).await?;
        if n == 0 {
            break;
        }
        let bytes = &buffer[..n];
        lines.push(bytes, Instant::now());
        let (head, rest) = bytes.split_at(n.min(room));
        room -= head.len();
        if failed.is_none() && !head.is_empty() {
            // Written through, so that whoever reads the log sees a child that hangs.
            failed = async { file.write_all(head).await.and(file.flush().await) }.await.err();
        }
        tail.extend(rest);
        let over = tail.len().saturating_sub(TAIL);
        tail.drain(..over);
        dropped += over as u64;
    }
    lines.finish(Instant::now());
    if let Some(error) = failed {
        return Err(error);
    }
    if dropped > 0 {
        file.write_all(format!("\n[llmprof: {dropped} bytes of output left out here]\n").as_bytes()).await?;
    }
    file.write_all(tail.make_contiguous()).await?;
    file.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn kept(output: &[u8], cap: u64) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        keep(output, File::create(&path).unwrap(), cap, Lines::new(None)).await.unwrap();
        (dir, path)
    }

    #[tokio::test]
    async fn output_within_the_cap_is_kept_as_it_is() {
        let output = b"one\n\xff two".repeat(20_000);
        let (_dir, path) = kept(&output, 1 << 20).await;
        assert_eq!(std::fs::read(path).unwrap(), output);
    }

    #[tokio::test]
    async fn output_past_the_cap_keeps_both_ends_and_says_what_is_missing() {
        let output: Vec<u8> = (0..500_000).flat_map(|i| format!("{i}\n").into_bytes()).collect();
        let cap = 200_000;
        let (_dir, path) = kept(&output, cap).await;
        let log = std::fs::read_to_string(&path).unwrap();
        let missing = output.len() as u64 - cap;
        let note = format!("\n[llmprof: {missing} bytes of output left out here]\n");
        assert_eq!(log.len() as u64, cap + note.len() as u64);
        assert!(log.starts_with("0\n1\n2\n") && log.contains(&note));
        assert_eq!(last_lines(&path, 2), ["499998", "499999"]);
    }

    #[test]
    fn the_last_lines_of_a_huge_log_are_read_from_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let file = File::create(&path).unwrap();
        file.set_len(1 << 40).unwrap(); // sparse: reading it whole would not end
        std::os::unix::fs::FileExt::write_at(&file, b"\nlast \xff\n\n", (1 << 40) - 9).unwrap();
        assert_eq!(last_lines(&path, 1), ["last \u{fffd}"]);
        assert_eq!(last_lines(&dir.path().join("none"), 3), [""; 0]);
    }
}

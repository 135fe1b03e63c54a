//! Output of a child in a log file of limited size.
//!
//! Children write to a pipe that is always drained: a limit on file sizes would also apply to the
//! child's other files, and polling the size of a log is too slow for a fast child. Beyond the
//! limit the start and the end are kept, since the end contains the reason of a failure. A child
//! never blocks on a listener or a full disk.

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

use crate::{
    artifact::{
        folder::without_path,
        manifest::write_whole,
        packed::{open_own, read_own},
    },
    collect::process::line_stream::Lines,
};

/// Default maximum size of a log file, bytes.
pub const DEFAULT_CAP: u64 = 16 << 20;
/// Bytes kept from the end of an output above its limit.
const TAIL: usize = 64 << 10;
/// Maximum size of an answer, bytes.
const MAX_ANSWER: u64 = 64;

/// Log files of a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logs {
    pub stdout: PathBuf,
    pub stderr: PathBuf,
    /// Maximum size of each file, plus a note of one line.
    pub cap: u64,
}

impl Logs {
    /// Returns the files `NAME.stdout.log` and `NAME.stderr.log`.
    pub fn named(folder: &Path, name: &str) -> Self {
        let file = |stream| folder.join(format!("{name}.{stream}.log"));
        Self { stdout: file("stdout"), stderr: file("stderr"), cap: DEFAULT_CAP }
    }

    /// Returns the last lines of standard error, or of standard output if it is empty.
    pub fn last_output(&self, n: usize) -> Vec<String> {
        [&self.stderr, &self.stdout]
            .into_iter()
            .map(|log| last_lines(log, n))
            .find(|lines| !lines.is_empty())
            .unwrap_or_default()
    }
}

/// Returns the last `n` lines that are not empty, read from the end of the file; none without a
/// file.
pub fn last_lines(path: &Path, n: usize) -> Vec<String> {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = open_own(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL as u64)))?;
        let mut end = Vec::new();
        file.take(TAIL as u64).read_to_end(&mut end)?;
        Ok(end)
    };
    let end = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&end);
    let lines: Vec<_> =
        text.split(['\n', '\r']).map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(n)..]
        .iter()
        .map(|line| line.chars().take(2_000).collect())
        .collect()
}

/// Levels of a log below an error.
const LOWER_LEVELS: [&str; 6] = ["TRACE", "DEBUG", "INFO", "NOTICE", "WARN", "WARNING"];
/// Ends of the words of a line that reports an error, in lower case: also `RuntimeError`.
const ERROR_WORDS: [&str; 5] = ["error", "exception", "fatal", "panic", "panicked"];

/// True if a line of a log reports an error, by its level or its words.
pub fn is_error_line(line: &str) -> bool {
    let words = || line.split(|letter: char| !letter.is_ascii_alphanumeric());
    let is_error = |word: &str| {
        let word = word.to_ascii_lowercase();
        ERROR_WORDS.iter().any(|end| word.ends_with(end))
    };
    !words().any(|word| LOWER_LEVELS.contains(&word)) && words().any(is_error)
}

/// Returns the text of a short file by which a process answers; `None` if there is none yet.
pub fn read_answer(path: &Path) -> Option<String> {
    let mut text = String::new();
    open_own(path).ok()?.take(MAX_ANSWER).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

/// Makes the paths below `dir` in a log relative to it. A log that is not UTF-8 is kept as it is.
pub fn make_portable(log: &Path, dir: &Path) {
    let text = read_own(log).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let Some(text) = text else { return };
    let portable = without_path(&text, dir);
    // A full disk leaves the log as it is.
    if portable != text
        && let Err(error) = write_whole(log, portable.as_bytes())
    {
        tracing::warn!(path = %log.display(), %error, "cannot shorten the paths of a log");
    }
}

/// Copies `from` to a file, at most `cap` bytes, and passes its lines to `lines`.
pub async fn copy_output(
    mut from: impl AsyncRead + Unpin,
    to: File,
    cap: u64,
    mut lines: Lines,
) -> io::Result<()> {
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
            // Flushed, so that the log of a hanging child is current.
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
        file.write_all(
            format!("\n[llmprof: {dropped} bytes of output left out here]\n").as_bytes(),
        )
        .await?;
    }
    file.write_all(tail.make_contiguous()).await?;
    file.flush().await
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    #[test]
    fn output_that_a_program_replaced_by_a_link_or_a_pipe_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), format!("0 {}\n", dir.path().display())).unwrap();
        symlink(at("file"), at("link")).unwrap();
        mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
        for name in ["link", "pipe", "none"] {
            assert_eq!(last_lines(&at(name), 3), [""; 0], "{name}");
            assert_eq!(read_answer(&at(name)), None, "{name}");
            make_portable(&at(name), dir.path());
        }
        assert!(at("link").is_symlink());
        assert!(read_answer(&at("file")).unwrap().starts_with("0 /"));
        make_portable(&at("file"), dir.path());
        assert_eq!(read_answer(&at("file")).unwrap(), "0 .");
    }

    #[test]
    fn a_line_reports_an_error_by_its_level_or_words() {
        for line in [
            "2026-11-30T01:37:57Z ERROR llmprof_runner::run: no memory",
            "error: cannot open the model",
            "torch.OutOfMemoryError: CUDA out of memory",
            "thread 'main' panicked at src/main.rs:3:5:",
            "[FATAL] lost the device",
        ] {
            assert!(is_error_line(line), "{line}");
        }
        for line in [
            "",
            "2026-11-30T01:37:57Z  INFO llmprof_runner::run: loaded error_rate=0",
            "WARNING 11-30 01:37:57 model.py:7] an error was ignored",
            "step 12 of 100, errors: 0",
            "Loading weights: 40 %",
        ] {
            assert!(!is_error_line(line), "{line}");
        }
    }

    async fn copied(output: &[u8], cap: u64) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        copy_output(output, File::create(&path).unwrap(), cap, Lines::new(None)).await.unwrap();
        (dir, path)
    }

    #[tokio::test]
    async fn output_below_the_limit_is_kept_unchanged() {
        let output = b"one\n\xff two".repeat(20_000);
        let (_dir, path) = copied(&output, 1 << 20).await;
        assert_eq!(std::fs::read(path).unwrap(), output);
    }

    #[tokio::test]
    async fn output_above_the_limit_keeps_both_ends_and_counts_the_rest() {
        let output: Vec<u8> = (0..500_000).flat_map(|i| format!("{i}\n").into_bytes()).collect();
        let cap = 200_000;
        let (_dir, path) = copied(&output, cap).await;
        let log = std::fs::read_to_string(&path).unwrap();
        let missing = output.len() as u64 - cap;
        let note = format!("\n[llmprof: {missing} bytes of output left out here]\n");
        assert_eq!(log.len() as u64, cap + note.len() as u64);
        assert!(log.starts_with("0\n1\n2\n") && log.contains(&note));
        assert_eq!(last_lines(&path, 2), ["499998", "499999"]);
    }

    #[test]
    fn a_log_names_the_files_of_its_run_without_their_folder() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let printed = format!("wrote {0}/nsys/a to {0}\n", dir.path().display());
        std::fs::write(&log, printed).unwrap();
        make_portable(&log, dir.path());
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "wrote nsys/a to .\n");
    }

    #[test]
    fn the_last_lines_of_a_huge_log_are_read_from_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let file = File::create(&path).unwrap();
        file.set_len(1 << 40).unwrap(); // sparse: reading all of it would not end
        std::os::unix::fs::FileExt::write_at(&file, b"\nlast \xff\n\n", (1 << 40) - 9).unwrap();
        assert_eq!(last_lines(&path, 1), ["last \u{fffd}"]);
        assert_eq!(last_lines(&dir.path().join("none"), 3), [""; 0]);
    }
}

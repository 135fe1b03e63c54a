//! Stream of a child's log lines and progress for live views.
//!
//! Never blocks the child: long lines are cut and output is rate-limited. The log file is complete.

use std::time::Duration;

use llmprof_core::domain::runner::Progress;
use tokio::{sync::mpsc::UnboundedSender, time::Instant};

/// Maximum length of a line, bytes.
const MAX_LINE: usize = 4096;
/// Maximum number of log lines per second and stream; the rest is counted.
const LINES_PER_SECOND: u32 = 50;
/// Minimum time between two progress lines of a phase.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);

/// A line of a child's output.
#[derive(Debug, Clone, PartialEq)]
pub enum ChildLine {
    /// Progress of the runner.
    Progress(Progress),
    /// Any other line, without the line break.
    Log(String),
}

/// Splits one stream of bytes into lines and sends them to a listener.
pub struct Lines {
    to: Option<UnboundedSender<ChildLine>>,
    line: Vec<u8>,
    second: Instant,
    passed: u32,
    left_out: u64,
    progress: Option<(Instant, Progress)>,
}

impl Lines {
    /// Creates a stream with the listener `to`.
    pub fn new(to: Option<UnboundedSender<ChildLine>>) -> Self {
        Self {
            to,
            line: Vec::new(),
            second: Instant::now(),
            passed: 0,
            left_out: 0,
            progress: None,
        }
    }

    /// Adds the next bytes, read at `now`. A carriage return also ends a line: progress bars of
    /// tools use it.
    pub fn push(&mut self, bytes: &[u8], now: Instant) {
        if self.to.is_none() {
            return;
        }
        for part in bytes.split_inclusive(|&b| b == b'\n' || b == b'\r') {
            let (text, ended) = match part.split_last() {
                Some((b'\n' | b'\r', text)) => (text, true),
                _ => (part, false),
            };
            let room = MAX_LINE - self.line.len();
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            if ended {
                self.end_line(now);
            }
        }
    }

    /// Sends the rest at the end of the stream.
    pub fn finish(mut self, now: Instant) {
        self.end_line(now);
        self.send_dropped_count();
    }

    fn end_line(&mut self, now: Instant) {
        let line = String::from_utf8_lossy(&self.line).trim_end().to_owned();
        self.line.clear();
        if line.is_empty() {
            return;
        }
        match serde_json::from_str::<Progress>(&line) {
            Ok(progress) => self.progress(progress, now),
            Err(_) => self.log(line, now),
        }
    }

    fn progress(&mut self, progress: Progress, now: Instant) {
        let is_redundant = self.progress.as_ref().is_some_and(|(at, last)| {
            last.phase == progress.phase
                && progress.done < progress.total
                && now.duration_since(*at) < PROGRESS_PERIOD
        });
        if !is_redundant {
            self.progress = Some((now, progress.clone()));
            self.send(ChildLine::Progress(progress));
        }
    }

    fn log(&mut self, line: String, now: Instant) {
        if now.duration_since(self.second) >= Duration::from_secs(1) {
            self.second = now;
            self.passed = 0;
            self.send_dropped_count();
        }
        if self.passed < LINES_PER_SECOND {
            self.passed += 1;
            self.send(ChildLine::Log(line));
        } else {
            self.left_out += 1;
        }
    }

    fn send_dropped_count(&mut self) {
        if self.left_out > 0 {
            let note = format!(
                "({} lines left out here; the log file has them)",
                std::mem::take(&mut self.left_out)
            );
            self.send(ChildLine::Log(note));
        }
    }

    fn send(&mut self, line: ChildLine) {
        if self.to.as_ref().is_some_and(|to| to.send(line).is_err()) {
            self.to = None; // the listener is closed
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    /// Lines that a listener receives when the chunks arrive at these milliseconds.
    fn received(chunks: &[(u64, &str)]) -> Vec<ChildLine> {
        let (to, mut from) = mpsc::unbounded_channel();
        let start = Instant::now();
        let mut lines = Lines::new(Some(to));
        for (ms, chunk) in chunks {
            lines.push(chunk.as_bytes(), start + Duration::from_millis(*ms));
        }
        lines.finish(start + Duration::from_secs(60));
        std::iter::from_fn(|| from.try_recv().ok()).collect()
    }

    fn log(line: &str) -> ChildLine {
        ChildLine::Log(line.into())
    }

    #[test]
    fn lines_are_complete_however_the_bytes_arrive() {
        assert_eq!(
            received(&[(0, "on"), (1, "e\ntw"), (2, "o\r\n\n10%\r20%\rend")]),
            ["one", "two", "10%", "20%", "end"].map(log)
        );
    }

    #[test]
    fn output_is_rate_limited_and_dropped_lines_are_counted() {
        let received = received(&[(0, &"x\n".repeat(1000)), (1500, "later\n")]);
        assert_eq!(received.len(), LINES_PER_SECOND as usize + 2);
        assert_eq!(
            received[50..],
            [log("(950 lines left out here; the log file has them)"), log("later")]
        );
    }

    #[test]
    fn progress_is_rate_limited_except_at_both_ends_of_a_phase() {
        let line =
            |phase: &str, done| format!("{{\"phase\":\"{phase}\",\"done\":{done},\"total\":9}}\n");
        let chunks = [
            (0, line("load", 9)),
            (1, line("measure", 1)),
            (2, line("measure", 2)),
            (150, line("measure", 3)),
            (151, line("measure", 9)),
        ];
        let chunks: Vec<_> = chunks.iter().map(|(ms, line)| (*ms, line.as_str())).collect();
        let done: Vec<_> = received(&chunks)
            .into_iter()
            .map(|line| match line {
                ChildLine::Progress(p) => (p.phase, p.done),
                ChildLine::Log(line) => panic!("{line}"),
            })
            .collect();
        assert_eq!(
            done,
            [("load", 9), ("measure", 1), ("measure", 3), ("measure", 9)]
                .map(|(p, d)| (p.to_owned(), d))
        );
    }

    #[test]
    fn an_endless_line_is_cut() {
        assert_eq!(
            received(&[(0, &"y".repeat(100_000)), (1, "\nshort\n")]),
            [log(&"y".repeat(MAX_LINE)), log("short")]
        );
    }
}

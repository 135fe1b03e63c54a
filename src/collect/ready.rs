//! Waits until a server is ready: until it answers on this host, or has said so; and until its profiler records.
//!
//! Asks nobody but the address that the operator wrote down, which is of this host, and follows no redirection.

use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::Path,
    time::{Duration, SystemTime},
};

use tokio::time::sleep;

use super::output::Logs;

/// Time between looks.
const LOOK: Duration = Duration::from_millis(100);
/// From the moment when nsys opens its raw file until it records: a fifth of a second on an idle host.
const OPENED: Duration = Duration::from_secs(1);
/// Longest that one answer may take.
const ANSWER: Duration = Duration::from_secs(5);

/// Waits until `url` is answered with a status of 2xx.
pub async fn answers(url: &str) {
    let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).timeout(ANSWER).build();
    loop {
        if let Ok(client) = &client
            && client.get(url).send().await.is_ok_and(|answer| answer.status().is_success())
        {
            return;
        }
        sleep(LOOK).await;
    }
}

/// Waits until a line of either output holds `text`.
pub async fn says(logs: &Logs, text: &str) {
    let mut looks = [Look::new(&logs.stdout), Look::new(&logs.stderr)];
    while !looks.iter_mut().any(|look| look.holds(text.as_bytes())) {
        sleep(LOOK).await;
    }
}

/// Waits until nsys records, and says since when: its raw file appears among the run's temporary files shortly before.
pub async fn records(scratch: &Path) -> SystemTime {
    loop {
        let mut files = fs::read_dir(scratch).into_iter().flatten().flatten();
        if let Some(raw) = files.find(|file| file.path().extension().is_some_and(|extension| extension == "qdstrm")) {
            // Not every file system knows when a file was made.
            let opened = raw.metadata().and_then(|about| about.created()).unwrap_or_else(|_| SystemTime::now());
            sleep(OPENED.saturating_sub(opened.elapsed().unwrap_or_default())).await;
            return opened;
        }
        sleep(LOOK).await;
    }
}

/// How far an output was looked through.
struct Look<'a> {
    path: &'a Path,
    from: u64,
    /// The end of what was read, in which a text may begin.
    rest: Vec<u8>,
}

impl<'a> Look<'a> {
    fn new(path: &'a Path) -> Self {
        Self { path, from: 0, rest: Vec::new() }
    }

    fn holds(&mut self, text: &[u8]) -> bool {
        let mut new = Vec::new();
        let read = File::open(self.path).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.from))?;
            file.read_to_end(&mut new)
        });
        self.from += read.unwrap_or(0) as u64;
        self.rest.append(&mut new);
        let found = self.rest.windows(text.len().max(1)).any(|window| window == text);
        self.rest.drain(..self.rest.len().saturating_sub(text.len()));
        found
    }
}

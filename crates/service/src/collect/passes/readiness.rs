//! Readiness of a server: a response on this host, a line of its output, or the start of its
//! recording.
//!
//! Queries only the configured address, which is of this host, and follows no redirects.

use std::{
    fs,
    io::{Read, Seek, SeekFrom},
    path::Path,
    time::{Duration, SystemTime},
};

use tokio::time::sleep;

use crate::{artifact::packed::open_own, collect::process::output::Logs};

/// Time between two checks.
const PERIOD: Duration = Duration::from_millis(100);
/// Time between the creation of nsys' raw file and the start of the recording; a fifth of a second
/// on an idle host.
const RECORDING_DELAY: Duration = Duration::from_secs(1);
/// Time limit of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits until `url` responds with a 2xx status.
pub async fn wait_for_url(url: &str) {
    let client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(REQUEST_TIMEOUT)
        .build();
    loop {
        if let Ok(client) = &client
            && client.get(url).send().await.is_ok_and(|answer| answer.status().is_success())
        {
            return;
        }
        sleep(PERIOD).await;
    }
}

/// Waits until a line of either output contains `text`.
pub async fn wait_for_line(logs: &Logs, text: &str) {
    let mut scans = [OutputScan::new(&logs.stdout), OutputScan::new(&logs.stderr)];
    while !scans.iter_mut().any(|scan| scan.contains(text.as_bytes())) {
        sleep(PERIOD).await;
    }
}

/// Waits until nsys records and returns the start time: its raw file appears in the run's folder
/// for temporary files shortly before.
pub async fn wait_for_recording(scratch: &Path) -> SystemTime {
    loop {
        let mut files = fs::read_dir(scratch).into_iter().flatten().flatten();
        if let Some(raw) = files
            .find(|file| file.path().extension().is_some_and(|extension| extension == "qdstrm"))
        {
            // Not every file system stores the creation time.
            let opened = raw
                .metadata()
                .and_then(|about| about.created())
                .unwrap_or_else(|_| SystemTime::now());
            sleep(RECORDING_DELAY.saturating_sub(opened.elapsed().unwrap_or_default())).await;
            return opened;
        }
        sleep(PERIOD).await;
    }
}

/// Incremental search of an output.
struct OutputScan<'a> {
    path: &'a Path,
    from: u64,
    /// End of the bytes read so far, which may contain the start of the text.
    rest: Vec<u8>,
}

impl<'a> OutputScan<'a> {
    fn new(path: &'a Path) -> Self {
        Self { path, from: 0, rest: Vec::new() }
    }

    fn contains(&mut self, text: &[u8]) -> bool {
        let mut new = Vec::new();
        let read = open_own(self.path).and_then(|mut file| {
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

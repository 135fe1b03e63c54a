//! A window by the gate of a server: its own profiler is started and stopped over HTTP, and the
//! traces that it writes become the run's.
//!
//! Queries only the configured addresses, which are of this host, and follows no redirects.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use flate2::read::MultiGzDecoder;
use llmprof_core::{
    domain::command::{GateSettings, ReadyCheck},
    layout,
};
use tokio::time::{Instant, sleep};

use super::{
    command::{CommandRun, PassPlace},
    pass::{CollectError, Pass, PassFolder},
};
use crate::{
    artifact::{
        folder::remove_tree,
        packed::{open_own, resolved},
    },
    collect::{Collector, ProcessLimits},
    runtime::{self, work::SlicedWork},
};

/// Time limit of the request that starts the profiler.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Time between two looks at the traces; their sizes are equal in both when they are complete.
const PERIOD: Duration = Duration::from_millis(500);
/// Maximum number of traces, one per process.
const MAX_TRACES: usize = 64;
/// Maximum size of all traces, unpacked, bytes.
const MAX_BYTES: u64 = 16 << 30;
/// Difference between the clock of files and the time of day.
const CLOCK_STEP: Duration = Duration::from_millis(50);

impl Collector {
    /// Runs the command's server with its load, and records a window by its gate: traces in
    /// `pytorch/`, requests in `nsys/`, the folder of the traced pass.
    pub async fn gated_command(
        &self,
        dir: &Path,
        run: &CommandRun,
        (ready, gate): (&ReadyCheck, &GateSettings),
        limits: &ProcessLimits,
    ) -> Result<Pass, CollectError> {
        let traces = dir.join(layout::PYTORCH);
        remove_tree(&traces, &SlicedWork::default())
            .map_err(|source| CollectError::Write { path: traces, source })?;
        let folder = PassFolder::create(self, dir, layout::NSYS)?;
        let place = PassPlace::of(&folder)?;
        let argv = self.command_argv(run, &run.plan.program, &run.plan.args, &place)?;
        let mut served = self.served(run, ready, &place, (0, 1), Duration::ZERO)?;
        served.window = Some(run.plan.window.unwrap_or_default());
        served.gate = Some(gate.at(&place.out.display().to_string(), place.port));
        let pass = served.run_unprofiled(&folder, &folder.log(), &argv, limits).await?;
        folder.write_times(&served.times)?;
        Ok(pass)
    }
}

/// Sends the request that starts the profiler; the error is a text.
pub async fn start(gate: &GateSettings) -> Result<(), String> {
    let body = gate.body.clone().map(serde_json::Value::Object);
    post(&gate.start, body, START_LIMIT).await
}

/// Sends the request that stops it.
pub async fn stop(gate: &GateSettings) -> Result<(), String> {
    post(&gate.stop, None, Duration::from_secs(gate.within_s.into())).await
}

async fn post(url: &str, body: Option<serde_json::Value>, limit: Duration) -> Result<(), String> {
    let client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(limit)
        .build();
    let client = client.map_err(|error| error.to_string())?;
    let request = match body {
        Some(body) => client.post(url).json(&body),
        None => client.post(url),
    };
    let response = request.send().await.map_err(|error| llmprof_core::chain(&error))?;
    if response.status().is_success() {
        return Ok(());
    }
    Err(format!("{url} responded with {}", response.status()))
}

/// Waits for the traces that were written since `since`, and copies them into the run's folder;
/// returns their number.
pub async fn collect(
    gate: &GateSettings,
    dir: &Path,
    since: SystemTime,
) -> Result<usize, CollectError> {
    let until = Instant::now() + Duration::from_secs(gate.within_s.into());
    let mut before = Vec::new();
    let complete = loop {
        let found = written(&gate.collect, since);
        if !found.is_empty() && found == before {
            break found;
        }
        if Instant::now() >= until {
            break found;
        }
        before = found;
        sleep(PERIOD).await;
    };
    if complete.is_empty() {
        let file = gate.collect.clone();
        return Err(CollectError::NoTrace { file, within_s: gate.within_s });
    }
    let dir = dir.to_owned();
    let copy = move |work: &SlicedWork| {
        let mut left = MAX_BYTES;
        for (number, (path, _)) in complete.iter().enumerate() {
            let target = dir.join(layout::imported_trace(number + 1));
            left -= unpack(path, &target, (&dir, left), work)?;
        }
        Ok(complete.len())
    };
    let failed = |source| CollectError::Write { path: gate.collect.clone().into(), source };
    runtime::stoppable(&SlicedWork::default(), copy).await.map_err(failed)
}

/// Files of a pattern that were changed since `since`, with their sizes.
fn written(pattern: &str, since: SystemTime) -> Vec<(PathBuf, u64)> {
    let since = since.checked_sub(CLOCK_STEP).unwrap_or(since);
    let paths = glob::glob(pattern).into_iter().flatten().flatten();
    let files = paths.filter_map(|path| {
        // The server may have written a link or a pipe, which is not copied.
        let about = fs::symlink_metadata(&path).ok()?;
        let is_new = about.modified().is_ok_and(|at| at >= since);
        (about.is_file() && is_new && about.len() > 0).then_some((path, about.len()))
    });
    files.take(MAX_TRACES).collect()
}

/// Copies a trace, which may be compressed, into the folder of the run, and returns its size.
fn unpack(
    from: &Path,
    to: &Path,
    (run, max_bytes): (&Path, u64),
    work: &SlicedWork,
) -> io::Result<u64> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    // The server writes all that is below the run's folder; the operator names other folders.
    let folder =
        from.parent().map(|it| if it.starts_with(run) { it.to_owned() } else { resolved(it) });
    let own = folder.unwrap_or_default().join(from.file_name().unwrap_or_default());
    let (mut file, mut to) = (open_own(&own)?, File::create(to)?);
    let is_packed = from.extension().is_some_and(|it| it == "gz");
    let mut from: Box<dyn Read> =
        if is_packed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(&mut file) };
    let size = work.copy(from.by_ref().take(max_bytes + 1), &mut to)?;
    to.flush()?;
    if size > max_bytes {
        return Err(io::Error::other(format!("the traces exceed {MAX_BYTES} bytes")));
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn gate(folder: &Path) -> GateSettings {
        GateSettings {
            start: String::new(),
            stop: String::new(),
            body: None,
            collect: format!("{}/*.json*", folder.display()),
            within_s: 1,
        }
    }

    #[tokio::test]
    async fn traces_of_the_window_are_unpacked_and_older_ones_are_not_copied() {
        let (server, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let old = server.path().join("old.json");
        fs::write(&old, "old").unwrap();
        let hour = Duration::from_secs(3600);
        File::options()
            .write(true)
            .open(&old)
            .unwrap()
            .set_modified(SystemTime::now() - hour)
            .unwrap();
        let since = SystemTime::now();
        let packed = File::create(server.path().join("rank-0.json.gz")).unwrap();
        let mut packed = GzEncoder::new(packed, Compression::fast());
        packed.write_all(b"{}").unwrap();
        packed.finish().unwrap();
        fs::write(server.path().join("rank-1.json"), "[]").unwrap();
        // Neither is a trace: a link may lead to any file, and a pipe has no end.
        std::os::unix::fs::symlink(&old, server.path().join("link.json")).unwrap();
        nix::unistd::mkfifo(&server.path().join("pipe.json"), nix::sys::stat::Mode::S_IRWXU)
            .unwrap();
        assert_eq!(collect(&gate(server.path()), run.path(), since).await.unwrap(), 2);
        let read = |number| fs::read_to_string(run.path().join(layout::imported_trace(number)));
        assert_eq!((read(1).unwrap().as_str(), read(2).unwrap().as_str()), ("{}", "[]"));
    }

    #[tokio::test]
    async fn a_server_that_writes_no_trace_is_an_error_with_the_pattern() {
        let (server, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let error = collect(&gate(server.path()), run.path(), SystemTime::now()).await.unwrap_err();
        assert!(error.to_string().starts_with("no new trace matches "), "{error}");
    }
}

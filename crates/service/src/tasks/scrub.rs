//! Compares the files of ended runs and alignments with their hashes, every `retention.scrub_days`,
//! so that a fault of the disk is known while a backup still has the file.
//!
//! It changes no file, reads at a limited rate, and waits while a pass runs, as packing does.

use std::time::Duration;

use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::retention::Keeper;
use crate::{
    artifact::{
        folder,
        verify::{self, FileFault},
    },
    runtime::{self, work::SlicedWork},
    store::{ScrubSubject, StoreError},
};

const DAY_MS: i64 = 86_400_000;
/// Time between two searches for a subject that is due.
const SEARCH: Duration = Duration::from_secs(60);

/// Starts the task that scrubs; it ends with `stop`.
pub fn start(keeper: Keeper, stop: CancellationToken) {
    if keeper.settings.scrub_days == 0 {
        return;
    }
    tokio::spawn(runtime::task(async move {
        while !stop.is_cancelled() {
            if let Err(error) = round(&keeper, &stop).await {
                tracing::error!(error = %llmprof_core::chain(&error), "cannot scrub");
            }
            let _ = timeout(SEARCH, stop.cancelled()).await; // in time, or stopped
        }
    }));
}

/// Scrubs every run and alignment that is due.
async fn round(keeper: &Keeper, stop: &CancellationToken) -> Result<(), StoreError> {
    let started = runtime::now().as_millisecond();
    let before = started - i64::from(keeper.settings.scrub_days) * DAY_MS;
    let (mut folders, mut damaged) = (0_u64, 0);
    while let Some(subject) = keeper.store.next_scrub(before).await? {
        let Some(faults) = scrub(keeper, subject, stop).await? else { return Ok(()) };
        (folders, damaged) = (folders + 1, damaged + faults);
    }
    if folders > 0 {
        let faults = match keeper.store.faults(&SlicedWork::new(stop)).await {
            Err(_) if stop.is_cancelled() => return Ok(()),
            faults => faults?,
        };
        for fault in faults {
            tracing::error!(fault, "the database is damaged: restore a backup");
        }
        tracing::info!(folders, damaged, "compared sealed files with their hashes");
    }
    Ok(())
}

/// Scrubs one folder and returns the number of damaged files; `None` when the service stops.
async fn scrub(
    keeper: &Keeper,
    subject: ScrubSubject,
    stop: &CancellationToken,
) -> Result<Option<usize>, StoreError> {
    let (dir, artifacts) = match subject {
        ScrubSubject::Run(id) => (folder::of(&keeper.runs, id), keeper.store.artifacts(id).await?),
        ScrubSubject::Alignment(id) => {
            (folder::of(&keeper.alignments, id), keeper.store.alignment_artifacts(id).await?)
        }
    };
    let (mut wait, handle, stops) = (keeper.quiet_wait(), Handle::current(), stop.clone());
    let mut pace = Pace::of(keeper.settings.scrub_bytes_per_s);
    let paced = move |bytes| {
        let pause = pace.pause_before(bytes);
        handle.block_on(async {
            let _ = timeout(pause, stops.cancelled()).await; // in time, or stopped
            wait.wait(&stops).await
        })
    };
    let work = SlicedWork::new(stop).with_gate(paced);
    let found = runtime::stoppable(&work, move |work| verify::scrub(&dir, &artifacts, work)).await;
    let Ok(faults) = found else { return Ok(None) };
    let words = |(path, fault): &(String, FileFault)| (path.clone(), fault.to_string());
    let faults: Vec<(String, String)> = faults.iter().map(words).collect();
    if !keeper.store.record_scrub(subject, &faults).await? {
        return Ok(Some(0)); // deleted or requeued meanwhile
    }
    for (path, fault) in &faults {
        tracing::error!(?subject, path, fault, "a sealed file is damaged: restore a backup");
    }
    Ok(Some(faults.len()))
}

/// A limit on bytes per second.
struct Pace {
    bytes_per_s: u64,
    started: Instant,
    bytes: u64,
}

impl Pace {
    /// A limit; 0: none.
    fn of(bytes_per_s: u64) -> Self {
        Self { bytes_per_s, started: Instant::now(), bytes: 0 }
    }

    /// The pause before further `bytes`.
    fn pause_before(&mut self, bytes: u64) -> Duration {
        if self.bytes_per_s == 0 {
            return Duration::ZERO;
        }
        let due = Duration::from_secs_f64(self.bytes as f64 / self.bytes_per_s as f64);
        self.bytes += bytes;
        due.saturating_sub(self.started.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_held_over_many_chunks() {
        let mut pace = Pace::of(1 << 20);
        assert_eq!(pace.pause_before(1 << 19), Duration::ZERO);
        let pauses = [pace.pause_before(1 << 19), pace.pause_before(1 << 19)];
        assert!(pauses[0] > Duration::from_millis(300) && pauses[1] > Duration::from_millis(800));
        assert_eq!(Pace::of(0).pause_before(u64::MAX), Duration::ZERO);
    }
}

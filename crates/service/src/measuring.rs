//! Runs that measure on this host, and the waits of background work for them.
//!
//! The workers count the runs that they follow: if runs measure on other hosts, nothing waits. A
//! wait is bounded, so that background work proceeds on a host that always measures.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// State of waiting background work.
pub const WAITING: &str = "waiting: a pass is measuring";
/// Longest wait of an upload's check: a client waits for the answer.
pub const UPLOAD_WAIT: Duration = Duration::from_secs(20);
/// Pause of a download before each block while a pass measures: a block takes about 2 ms.
const BLOCK_PAUSE: Duration = Duration::from_millis(100);

/// Number of runs that measure. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Measuring(Arc<MeasuringRuns>);

#[derive(Debug, Default)]
struct MeasuringRuns {
    runs: AtomicUsize,
    changed: Notify,
}

impl Measuring {
    /// Counts a run until the guard is dropped.
    pub fn start(&self) -> MeasuringRun {
        self.0.runs.fetch_add(1, Ordering::SeqCst);
        self.0.changed.notify_waiters();
        MeasuringRun(self.clone())
    }

    /// Returns true while a run measures.
    pub fn is_active(&self) -> bool {
        self.0.runs.load(Ordering::SeqCst) > 0
    }

    /// Waits until a run measures, or until none does.
    async fn becomes(&self, active: bool) {
        loop {
            // Listening first: a change during the check still wakes.
            let mut changed = pin!(self.0.changed.notified());
            changed.as_mut().enable();
            if self.is_active() == active {
                return;
            }
            changed.await;
        }
    }

    /// Slows down a download: pauses before a block while a pass measures.
    pub async fn pause_block(&self) {
        if self.is_active() {
            let _ = timeout(BLOCK_PAUSE, self.becomes(false)).await;
        }
    }
}

/// A run that measures.
#[derive(Debug)]
pub struct MeasuringRun(Measuring);

impl Drop for MeasuringRun {
    fn drop(&mut self) {
        self.0.0.runs.fetch_sub(1, Ordering::SeqCst);
        self.0.0.changed.notify_waiters();
    }
}

/// The waits of one piece of background work, bounded in total.
#[derive(Debug, Clone)]
pub struct QuietWait {
    measuring: Measuring,
    left: Duration,
}

impl QuietWait {
    /// Waits for `measuring`, at most `limit` in total.
    pub fn new(measuring: &Measuring, limit: Duration) -> Self {
        Self { measuring: measuring.clone(), left: limit }
    }

    /// Waits until no pass measures or the limit is used up; returns false if `stop` fired.
    pub async fn wait(&mut self, stop: &CancellationToken) -> bool {
        if !self.measuring.is_active() {
            return !stop.is_cancelled();
        }
        if self.is_used_up() {
            return !stop.is_cancelled();
        }
        let started = Instant::now();
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.measuring.becomes(false) => {}
            () = sleep(self.left) => {}
        }
        self.left = self.left.saturating_sub(started.elapsed());
        !stop.is_cancelled()
    }

    /// Returns true once the work has waited for the limit: it runs next to a pass.
    pub fn is_used_up(&self) -> bool {
        self.left.is_zero()
    }

    /// Waits until a pass measures.
    pub async fn disturbs(&self) {
        self.measuring.becomes(true).await;
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::pin, task::Poll};

    use super::*;

    /// True if the future ends without waiting.
    async fn is_ready(future: impl Future) -> bool {
        let mut future = pin!(future);
        poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await
    }

    #[tokio::test]
    async fn background_work_waits_for_all_passes() {
        let (measuring, stop) = (Measuring::default(), CancellationToken::new());
        let mut wait = QuietWait::new(&measuring, Duration::from_secs(600));
        assert!(is_ready(wait.wait(&stop)).await && !is_ready(wait.disturbs()).await);
        let passes = [measuring.start(), measuring.start()];
        for pass in passes {
            assert!(!is_ready(wait.wait(&stop)).await && is_ready(wait.disturbs()).await);
            drop(pass);
        }
        assert!(wait.wait(&stop).await && !measuring.is_active());
    }

    #[tokio::test]
    async fn a_wait_is_bounded_and_ends_with_a_stop() {
        let (measuring, stop) = (Measuring::default(), CancellationToken::new());
        let _pass = measuring.start();
        let mut wait = QuietWait::new(&measuring, Duration::from_millis(2));
        assert!(wait.wait(&stop).await && measuring.is_active());
        assert!(is_ready(wait.wait(&stop)).await, "the limit is of all waits together");
        assert!(wait.is_used_up());
        stop.cancel();
        let mut stopped = QuietWait::new(&measuring, Duration::from_secs(600));
        assert!(!stopped.wait(&stop).await);
    }
}

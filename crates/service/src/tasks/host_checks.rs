//! Checks the host on request; requests at about the same time share one check.
//!
//! A check starts tools, which disturbs measurements a little, so clients cannot trigger one after
//! another.

use std::{path::PathBuf, sync::Arc, time::Duration};

use llmprof_core::trace::checkup::Checkup;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::collect::{CheckDepth, Collector};

/// Time for which a result is reused.
const VALID_FOR: Duration = Duration::from_secs(10);
/// Requests that share one check.
const MAX_SHARED: usize = 64;

/// Starts the task that checks the host; it ends with the last sender, and soon after `stop`.
pub fn start(
    collector: Arc<Collector>,
    data: PathBuf,
    stop: CancellationToken,
) -> mpsc::Sender<oneshot::Sender<Checkup>> {
    let (sender, mut requests) = mpsc::channel::<oneshot::Sender<Checkup>>(MAX_SHARED);
    tokio::spawn(async move {
        let mut last: Option<(Instant, Checkup)> = None;
        let mut waiting = Vec::new();
        while !stop.is_cancelled() && requests.recv_many(&mut waiting, MAX_SHARED).await > 0 {
            let checkup = match last.take().filter(|(at, _)| at.elapsed() < VALID_FOR) {
                Some(fresh) => fresh,
                None => (
                    Instant::now(),
                    collector.checkup(&data, CheckDepth::Quiet, stop.clone()).await,
                ),
            };
            for response in waiting.drain(..) {
                let _ = response.send(checkup.1.clone()); // the client may be gone
            }
            last = Some(checkup);
        }
    });
    sender
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn concurrent_requests_share_one_check_and_none_is_served_after_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let (collector, stop) =
            (Arc::new(Collector::new(dir.path().join("none"))), CancellationToken::new());
        let checks = start(collector, dir.path().to_owned(), stop.clone());
        let request = async || {
            let (sender, checkup) = oneshot::channel();
            checks.send(sender).await.ok()?;
            checkup.await.ok()
        };
        let (first, second) = tokio::join!(request(), request());
        assert_eq!(first.unwrap().checked_at, second.unwrap().checked_at);
        stop.cancel();
        request().await;
        assert!(request().await.is_none());
    }
}

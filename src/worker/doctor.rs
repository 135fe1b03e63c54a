//! Answers requests for a look at the host: those that wait together, or come soon after one another, share one look.
//!
//! A look starts tools and costs the host a little, and runs are measured on it: nobody outside can make it look without end.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    collect::{Collector, Look},
    trace::checkup::Checkup,
};

/// How long a look stays good.
const GOOD_FOR: Duration = Duration::from_secs(10);
/// Requests that one look answers at most.
const TOGETHER: usize = 64;

/// Starts the task that looks; it ends with the last sender, and soon after `stop`.
pub fn start(collector: Arc<Collector>, data: PathBuf, stop: CancellationToken) -> mpsc::Sender<oneshot::Sender<Checkup>> {
    let (sender, mut asked) = mpsc::channel::<oneshot::Sender<Checkup>>(TOGETHER);
    tokio::spawn(async move {
        let mut last: Option<(Instant, Checkup)> = None;
        let mut waiting = Vec::new();
        while !stop.is_cancelled() && asked.recv_many(&mut waiting, TOGETHER).await > 0 {
            let checkup = match last.take().filter(|(looked, _)| looked.elapsed() < GOOD_FOR) {
                Some(fresh) => fresh,
                None => (Instant::now(), collector.checkup(&data, Look::Quiet, stop.clone()).await),
            };
            for answer in waiting.drain(..) {
                let _ = answer.send(checkup.1.clone()); // nobody waits any more
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
    async fn requests_that_come_together_share_one_look_and_none_is_answered_after_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let (collector, stop) = (Arc::new(Collector::new(dir.path().join("none"))), CancellationToken::new());
        let doctor = start(collector, dir.path().to_owned(), stop.clone());
        let ask = async || {
            let (answer, answered) = oneshot::channel();
            doctor.send(answer).await.ok()?;
            answered.await.ok()
        };
        let (first, second) = tokio::join!(ask(), ask());
        assert_eq!(first.unwrap().checked_at, second.unwrap().checked_at);
        stop.cancel();
        ask().await;
        assert!(ask().await.is_none());
    }
}

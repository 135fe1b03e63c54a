//! After a worker is gone: its processes are ended, its runs wait again.

use super::Context;
use crate::{collect::child, store::StoreError};

/// Queues again the runs whose lease is over (`all`: every running one), after ending the processes they left.
pub async fn recover(cx: &Context, all: bool) -> Result<(), StoreError> {
    let abandoned = cx.store.abandoned(all).await?;
    if abandoned.is_empty() {
        return Ok(());
    }
    for id in abandoned {
        child::sweep(id).await;
    }
    for id in cx.store.recover(all).await? {
        tracing::warn!(run = %id, "the run's worker is gone: the run waits again, or is given up");
    }
    Ok(())
}

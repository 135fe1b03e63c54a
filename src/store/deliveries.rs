//! Deliveries of messages about ended runs: created by the database in the commit that ends a run,
//! and kept until they arrive.

use sqlx::Connection;

use super::{Store, StoreError, WRITE, column, during, id_of, now_ms};
use crate::domain::ids::RunId;

/// A message that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub id: i64,
    pub run: RunId,
    /// Hash of the address.
    pub target: String,
    /// Failed attempts.
    pub attempts: u32,
}

impl Store {
    /// Sets the targets of messages; pending messages for other targets are dropped.
    pub async fn set_webhooks(&self, targets: &[String]) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("set webhooks"))?;
        sqlx::query("delete from webhooks")
            .execute(&mut *tx)
            .await
            .map_err(during("clear webhooks"))?;
        for target in targets {
            sqlx::query("insert or ignore into webhooks (target) values (?)")
                .bind(target)
                .execute(&mut *tx)
                .await
                .map_err(during("set webhooks"))?;
        }
        sqlx::query("delete from deliveries where target not in (select target from webhooks)")
            .execute(&mut *tx)
            .await
            .map_err(during("drop messages"))?;
        tx.commit().await.map_err(during("set webhooks"))
    }

    /// Due messages, the longest due first. A message due more than `farthest_ms` ahead, because
    /// the clock was set back, is due now.
    pub async fn due_deliveries(
        &self,
        limit: u32,
        farthest_ms: i64,
    ) -> Result<Vec<Delivery>, StoreError> {
        let now = now_ms();
        let rows = sqlx::query(
            "select id, run_id, target, attempts from deliveries
             where gave_up = 0 and (next_at <= ? or next_at > ?) order by next_at limit ?",
        )
        .bind(now)
        .bind(now.saturating_add(farthest_ms))
        .bind(limit)
        .fetch_all(&self.readers)
        .await
        .map_err(during("list messages"))?;
        rows.iter()
            .map(|row| {
                Ok(Delivery {
                    id: column(row, "id")?,
                    run: id_of(column(row, "run_id")?)?,
                    target: column(row, "target")?,
                    attempts: column(row, "attempts")?,
                })
            })
            .collect()
    }

    /// Deletes a message that has arrived.
    pub async fn delivered(&self, id: i64) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let deleted =
            sqlx::query("delete from deliveries where id = ?").bind(id).execute(&mut *writer).await;
        deleted.map_err(during("delete a message"))?;
        Ok(())
    }

    /// Records a failed attempt and the delay of the next one; `None`: there is none.
    pub async fn not_delivered(
        &self,
        id: i64,
        error: &str,
        retry_in_ms: Option<i64>,
    ) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        sqlx::query(
            "update deliveries set attempts = attempts + 1, error = ?, gave_up = ?,
                     next_at = ? where id = ?",
        )
        .bind(error)
        .bind(retry_in_ms.is_none())
        .bind(now_ms().saturating_add(retry_in_ms.unwrap_or(0)))
        .bind(id)
        .execute(&mut *writer)
        .await
        .map_err(during("record a failed message"))?;
        Ok(())
    }
}

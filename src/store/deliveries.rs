//! Messages about ended runs that have to be delivered: made by the database in the commit that ends a run, kept until they arrive.

use sqlx::Connection;

use super::{Store, StoreError, column, during, id_of, now_ms};
use crate::run::RunId;

/// A message whose time has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub id: i64,
    pub run: RunId,
    /// Hash of the address.
    pub target: String,
    /// Times that it was tried.
    pub attempts: u32,
}

impl Store {
    /// Says to whom messages go from now on; those that wait for anybody else are dropped.
    pub async fn set_webhooks(&self, targets: &[String]) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with("begin immediate").await.map_err(during("set webhooks"))?;
        sqlx::query("delete from webhooks").execute(&mut *tx).await.map_err(during("clear webhooks"))?;
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

    /// Messages whose time has come, the longest due first. One that is due far ahead, because the clock was set back, is due now.
    pub async fn due_deliveries(&self, limit: u32, farthest_ms: i64) -> Result<Vec<Delivery>, StoreError> {
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

    /// Forgets a message that has arrived.
    pub async fn delivered(&self, id: i64) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let gone = sqlx::query("delete from deliveries where id = ?").bind(id).execute(&mut *writer).await;
        gone.map_err(during("forget a message"))?;
        Ok(())
    }

    /// Notes that a message did not arrive, and after how many milliseconds it is sent again; `None`: never.
    pub async fn not_delivered(&self, id: i64, error: &str, again_in_ms: Option<i64>) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        sqlx::query("update deliveries set attempts = attempts + 1, error = ?, gave_up = ?, next_at = ? where id = ?")
            .bind(error)
            .bind(again_in_ms.is_none())
            .bind(now_ms().saturating_add(again_in_ms.unwrap_or(0)))
            .bind(id)
            .execute(&mut *writer)
            .await
            .map_err(during("note a failed message"))?;
        Ok(())
    }
}

//! Changes of series to the worse that were announced to webhooks, so that each is announced once.

use llmprof_core::domain::{headline::FigureName, ids::RunId, webhook_event::EventMessage};
use sqlx::{Connection, sqlite::SqliteRow};

use super::{
    Store, StoreError, StoredChange, WRITE, column, deliveries::queue_message, during, id_of, key,
    word,
};

impl Store {
    /// Changes to the worse that were announced, by figure and run.
    pub async fn announced_changes(
        &self,
        series: &str,
    ) -> Result<Vec<(FigureName, RunId)>, StoreError> {
        let rows = sqlx::query("select figure, run_id from announced_changes where series = ?")
            .bind(series)
            .fetch_all(&mut *self.reader().await?)
            .await
            .map_err(during("list announced changes"))?;
        let change = |row: &SqliteRow| {
            let run = id_of(column(row, "run_id")?)?;
            Ok((word(run, "a figure", column(row, "figure")?)?, run))
        };
        rows.iter().map(change).collect()
    }

    /// Records changes as announced, and queues the message about them.
    pub async fn announce_changes(
        &self,
        series: &str,
        changes: &[StoredChange],
        message: &EventMessage,
    ) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("announce changes"))?;
        for it in changes {
            sqlx::query(
                "insert or ignore into announced_changes (series, figure, run_id)
                 select ?1, ?2, run_id from points where run_id = ?3 and series = ?1",
            )
            .bind(series)
            .bind(it.figure.as_str())
            .bind(key(&it.run))
            .execute(&mut *tx)
            .await
            .map_err(during("announce a change"))?;
        }
        queue_message(&mut tx, message).await?;
        tx.commit().await.map_err(during("announce changes"))
    }
}

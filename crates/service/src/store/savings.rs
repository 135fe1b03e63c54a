//! Promised savings of runs, with the times of their stages: stored with the point of a run, and
//! added to the points of runs that ended before.

use llmprof_core::domain::{ids::RunId, savings::Savings};
use sqlx::SqliteConnection;

use super::{Store, StoreError, column, during, id_of, json, key};

/// Stores the savings of a run's point.
pub(super) async fn set_savings(
    tx: &mut SqliteConnection,
    id: RunId,
    savings: &Savings,
) -> Result<(), StoreError> {
    let text = serde_json::to_string(savings)
        .map_err(|_| StoreError::Corrupt { id, what: "promised savings" })?;
    sqlx::query("update points set savings = ? where run_id = ?")
        .bind(text)
        .bind(key(&id))
        .execute(tx)
        .await
        .map_err(during("store promised savings"))?;
    Ok(())
}

impl Store {
    /// The savings of these runs, in the order of their submission. Runs without a point, or whose
    /// report was not read yet, are left out.
    pub async fn savings(&self, ids: &[RunId]) -> Result<Vec<(RunId, Savings)>, StoreError> {
        let ids = serde_json::Value::from_iter(ids.iter().map(|id| id.0.simple().to_string()));
        let rows = sqlx::query(
            "select run_id, savings from points where savings is not null
             and run_id in (select unhex(value) from json_each(?)) order by run_id",
        )
        .bind(ids.to_string())
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("look up promised savings"))?;
        let savings = |row| {
            let id = id_of(column(row, "run_id")?)?;
            Ok((id, json(id, "promised savings", column(row, "savings")?)?))
        };
        rows.iter().map(savings).collect()
    }

    /// Points whose savings are unknown, newest first.
    pub async fn runs_without_savings(&self, limit: u32) -> Result<Vec<RunId>, StoreError> {
        let ids: Vec<Vec<u8>> = sqlx::query_scalar(
            "select run_id from points where series is not null and savings is null
             order by run_id desc limit ?",
        )
        .bind(limit)
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("list runs without promised savings"))?;
        ids.iter().map(|id| id_of(id)).collect()
    }

    /// Adds the savings of an ended run; empty ones if its report cannot be read.
    pub async fn add_missing_savings(
        &self,
        id: RunId,
        savings: &Savings,
    ) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        set_savings(&mut writer, id, savings).await
    }
}

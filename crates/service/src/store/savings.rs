//! Promised savings of runs, with the times of their stages, and the figures that are means: stored
//! with the point of a run, and added to the points of runs that ended before.

use llmprof_core::domain::{headline::SeriesPoint, ids::RunId, savings::Savings};
use sqlx::{Connection, SqliteConnection};

use super::{Store, StoreError, WRITE, column, during, id_of, json, key};

/// Stores the savings and means of a run's point; without a point, that its report cannot be read.
pub(super) async fn set_read(
    tx: &mut SqliteConnection,
    id: RunId,
    point: Option<&SeriesPoint>,
) -> Result<(), StoreError> {
    let corrupt = |_| StoreError::Corrupt { id, what: "promised savings" };
    let savings = point.map(|it| it.savings.clone()).unwrap_or_default();
    let means = serde_json::to_string(&point.map(|it| &it.means)).map_err(corrupt)?;
    sqlx::query("update points set savings = coalesce(savings, ?), means = ? where run_id = ?")
        .bind(serde_json::to_string(&savings).map_err(corrupt)?)
        .bind(means)
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

    /// Points whose report was not read for their savings and means, newest first.
    pub async fn runs_with_unread_report(&self, limit: u32) -> Result<Vec<RunId>, StoreError> {
        let ids: Vec<Vec<u8>> = sqlx::query_scalar(
            "select run_id from points
             where series is not null and (savings is null or means is null)
             order by run_id desc limit ?",
        )
        .bind(limit)
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("list runs with an unread report"))?;
        ids.iter().map(|id| id_of(id)).collect()
    }

    /// Adds the savings and means of an ended run, whose series becomes stale: change points are of
    /// one statistic. `None` if its report cannot be read.
    pub async fn add_read(&self, id: RunId, point: Option<&SeriesPoint>) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("store promised savings"))?;
        set_read(&mut tx, id, point).await?;
        sqlx::query(
            "update series set stale = 1
             where id = (select series from points where run_id = ?)",
        )
        .bind(key(&id))
        .execute(&mut *tx)
        .await
        .map_err(during("mark a series as stale"))?;
        tx.commit().await.map_err(during("store promised savings"))
    }
}

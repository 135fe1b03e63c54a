//! Recovery of runs whose worker is gone.

use sqlx::Connection;

use super::{Store, StoreError, WRITE, claim::MAX_ATTEMPTS, during, id_of, now_ms, steady_ms};
use crate::domain::ids::RunId;

impl Store {
    /// Requeues the runs whose worker is gone but whose jobs continue elsewhere: the next worker
    /// finds the job. Imports have none.
    ///
    /// `all`: every running run, at start.
    pub async fn requeue_running(&self, all: bool) -> Result<Vec<RunId>, StoreError> {
        let mut writer = self.writer.lock().await;
        let ids: Vec<Vec<u8>> = sqlx::query_scalar(
            "update runs set state = 'queued', worker = null, lease_until = null,
             attempts = attempts - 1
             where state = 'running' and kind <> 'import' and (? or lease_until < ?) returning id",
        )
        .bind(all)
        .bind(steady_ms())
        .fetch_all(&mut *writer)
        .await
        .map_err(during("requeue runs"))?;
        ids.iter().map(|id| id_of(id)).collect()
    }

    /// Lists the runs whose lease has expired.
    ///
    /// `all`: every running run; at start, when only this process has the database.
    pub async fn abandoned(&self, all: bool) -> Result<Vec<RunId>, StoreError> {
        let ids: Vec<Vec<u8>> = sqlx::query_scalar(
            "select id from runs where state = 'running' and (? or lease_until < ?)",
        )
        .bind(all)
        .bind(steady_ms())
        .fetch_all(&self.readers)
        .await
        .map_err(during("list abandoned runs"))?;
        ids.iter().map(|id| id_of(id)).collect()
    }

    /// Requeues those runs, or fails them after their last attempt. Returns their ids.
    ///
    /// Where an import was among them, the attempt is charged to imports alone: they read foreign
    /// files, and are the most probable reason for the end of the service.
    pub async fn recover(&self, all: bool) -> Result<Vec<RunId>, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("recover runs"))?;
        let spared: bool = sqlx::query_scalar(
            "select ? and exists (select 1 from runs where state = 'running' and kind = 'import')",
        )
        .bind(all)
        .fetch_one(&mut *tx)
        .await
        .map_err(during("look for running imports"))?;
        if spared {
            sqlx::query(
                "update runs set attempts = attempts - 1
                 where state = 'running' and kind <> 'import' and attempts > 0",
            )
            .execute(&mut *tx)
            .await
            .map_err(during("spare runs"))?;
        }
        let ids: Vec<Vec<u8>> = sqlx::query_scalar(
            "update runs set worker = null, lease_until = null,
                    state = case when cancel_requested then 'cancelled'
                         when attempts < ?1 then 'queued' else 'failed' end,
                    ended_at = case when cancel_requested or attempts >= ?1
                         then max(?2, coalesce(started_at, queued_at)) end,
                    message = case when cancel_requested then 'cancelled'
                                   when attempts >= ?1
                                        then 'given up: the service ended during each of '
                                        || attempts || ' attempts' end
             where state = 'running' and (?3 or lease_until < ?4) returning id",
        )
        .bind(MAX_ATTEMPTS)
        .bind(now_ms())
        .bind(all)
        .bind(steady_ms())
        .fetch_all(&mut *tx)
        .await
        .map_err(during("recover runs"))?;
        tx.commit().await.map_err(during("recover runs"))?;
        ids.iter().map(|id| id_of(id)).collect()
    }
}

//! Requeued runs: released by their worker, or recovered after it is gone.

use llmprof_core::domain::{
    ids::RunId,
    outcome::Outcome,
    state::{RunState, Step, StepRecord},
};
use sqlx::Connection;

use super::{
    ClaimedRun, Store, StoreError, WRITE,
    claim::MAX_ATTEMPTS,
    during, id_of, key, now_ms,
    run_parts::{replace_artifacts, replace_steps},
    series, steady_ms,
};

/// An attempt that ended before its outcome was committed, as read from the run's folder.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedAttempt {
    pub attempt: u32,
    pub outcome: Outcome,
    pub steps: Vec<StepRecord>,
    /// Milliseconds since 1970; `None`: unknown.
    pub ended_ms: Option<i64>,
}

impl Store {
    /// Requeues a run without charging the attempt, because the service stops.
    pub async fn release(&self, run: &ClaimedRun) -> Result<bool, StoreError> {
        self.requeue_with(run, None).await
    }

    /// The same because of the host, with the reason as the run's message until the next attempt. A
    /// run that a client requested to cancel is cancelled: it would wait for the host first.
    pub async fn requeue(&self, run: &ClaimedRun, why: &str) -> Result<bool, StoreError> {
        self.requeue_with(run, Some(why)).await
    }

    async fn requeue_with(&self, run: &ClaimedRun, why: Option<&str>) -> Result<bool, StoreError> {
        let mut writer = self.writer.lock().await;
        let changed = sqlx::query(
            "update runs set worker = null, lease_until = null, started_at = null,
                    attempts = attempts - 1,
                    state = case when ?2 and cancel_requested then 'cancelled' else 'queued' end,
                    ended_at = case when ?2 and cancel_requested then max(?3, queued_at) end,
                    message = case when ?2 and cancel_requested then 'cancelled' else ?1 end
             where id = ?4 and state = 'running' and worker = ?5 and attempts = ?6",
        )
        .bind(why)
        .bind(why.is_some())
        .bind(now_ms())
        .bind(key(&run.id))
        .bind(&run.worker)
        .bind(run.attempt)
        .execute(&mut *writer)
        .await
        .map_err(during("release a run"))?;
        Ok(changed.rows_affected() > 0)
    }

    /// The reason why a run waits for resources of the host, among the next of the queue.
    pub async fn exhaustion(&self) -> Result<Option<String>, StoreError> {
        sqlx::query_scalar(
            "select message from (select message from runs indexed by runs_waiting
                                  where state = 'queued' order by rank, id limit 100)
             where message is not null limit 1",
        )
        .fetch_optional(&mut *self.reader().await?)
        .await
        .map_err(during("look for a requeued run"))
    }

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

    /// Lists the runs whose lease has expired, with their attempts.
    ///
    /// `all`: every running run; at start, when only this process has the database.
    pub async fn abandoned(
        &self,
        all: bool,
        only_imports: bool,
    ) -> Result<Vec<(RunId, u32)>, StoreError> {
        let runs: Vec<(Vec<u8>, u32)> = sqlx::query_as(
            "select id, attempts from runs where state = 'running' and (? or lease_until < ?)
               and (not ? or kind = 'import')",
        )
        .bind(all)
        .bind(steady_ms())
        .bind(only_imports)
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("list abandoned runs"))?;
        runs.iter().map(|(id, attempt)| Ok((id_of(id)?, *attempt))).collect()
    }

    /// Lists failed and cancelled runs without any artifact; on a cluster without those that were
    /// cancelled in the queue, as their jobs may still write.
    pub async fn ended_without_artifacts(
        &self,
        on_cluster: bool,
    ) -> Result<Vec<RunId>, StoreError> {
        let ids: Vec<Vec<u8>> = sqlx::query_scalar(
            "select id from runs
             where (state = 'failed' or (state = 'cancelled' and (started_at is not null or not ?)))
               and not exists (select 1 from artifacts where run_id = id)",
        )
        .bind(on_cluster)
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("list ended runs"))?;
        ids.iter().map(|id| id_of(id)).collect()
    }

    /// Ends an abandoned run with the outcome of its attempt. Returns false if that attempt is not
    /// running any more, or if it is to be cancelled and has no report.
    pub async fn adopt(&self, id: RunId, ended: &EndedAttempt) -> Result<bool, StoreError> {
        let outcome = &ended.outcome;
        let findings = serde_json::to_string(&outcome.findings)
            .map_err(|_| StoreError::Corrupt { id, what: "findings" })?;
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("adopt a result"))?;
        let changed = sqlx::query(
            "update runs set state = ?1, failed_step = ?2, message = ?3, findings = ?4,
             ended_at = max(?5, coalesce(started_at, queued_at)), worker = null,
             lease_until = null
             where id = ?6 and state = 'running' and attempts = ?7
               and (not cancel_requested or ?8)",
        )
        .bind(outcome.state.as_str())
        .bind(outcome.failed_step.map(Step::as_str))
        .bind(&outcome.message)
        .bind(findings)
        .bind(ended.ended_ms.unwrap_or_else(now_ms))
        .bind(key(&id))
        .bind(ended.attempt)
        .bind(matches!(outcome.state, RunState::Succeeded | RunState::Partial))
        .execute(&mut *tx)
        .await
        .map_err(during("adopt a result"))?;
        if changed.rows_affected() == 0 {
            return Ok(false);
        }
        replace_steps(&mut tx, id, &ended.steps).await?;
        replace_artifacts(&mut tx, id, &outcome.artifacts).await?;
        series::add_point(&mut tx, id, outcome.series.as_deref()).await?;
        tx.commit().await.map_err(during("adopt a result"))?;
        Ok(true)
    }

    /// Requeues `abandoned` runs, or fails them after their last attempt. Returns their ids.
    ///
    /// A lease may expire after [`Store::abandoned`]: only runs in its list are requeued, whose
    /// processes have been ended and whose results would have been adopted.
    ///
    /// If an import was among them, the attempt is charged only to imports: they read foreign
    /// files, and are the most probable reason for the end of the service.
    pub async fn recover(
        &self,
        abandoned: &[(RunId, u32)],
        all: bool,
    ) -> Result<Vec<RunId>, StoreError> {
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
        let mut recovered = Vec::new();
        for (id, attempt) in abandoned {
            let changed = sqlx::query(
                "update runs set worker = null, lease_until = null,
                        state = case when cancel_requested then 'cancelled'
                             when attempts < ?1 then 'queued' else 'failed' end,
                        ended_at = case when cancel_requested or attempts >= ?1
                             then max(?2, coalesce(started_at, queued_at)) end,
                        message = case when cancel_requested then 'cancelled'
                                       when attempts >= ?1
                                            then 'given up: the service ended during each of '
                                            || attempts || ' attempts' end
                 where id = ?5 and state = 'running'
                   and (?3 or (lease_until < ?4 and attempts = ?6))",
            )
            .bind(MAX_ATTEMPTS)
            .bind(now_ms())
            .bind(all)
            .bind(steady_ms())
            .bind(key(id))
            .bind(attempt)
            .execute(&mut *tx)
            .await
            .map_err(during("recover runs"))?;
            if changed.rows_affected() > 0 {
                recovered.push(*id);
            }
        }
        tx.commit().await.map_err(during("recover runs"))?;
        Ok(recovered)
    }
}

//! Progress of sweeps: points are queued a few at a time, get their figures, or become gaps.
//!
//! Each change is one transaction, so that after a kill the next service continues from it.

use llmprof_core::domain::{
    ids::{RunId, SweepId},
    state::RunState,
    sweep::{SweepFigures, SweepState},
};
use sqlx::{Connection, SqliteConnection};

use super::{
    Owner, Store, StoreError, SweepChange, WRITE, column, during, id_of, key, now_ms,
    queueing::{ReuseRule, RunningSweep, fill},
    word,
};
use crate::store::CANCELLED_IN_QUEUE;

/// A point whose run has ended or was deleted, and which has no figures yet.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedPoint {
    pub sweep: SweepId,
    pub position: u32,
    pub run: RunId,
    /// `None`: it was deleted.
    pub state: Option<RunState>,
    /// Why it failed.
    pub message: Option<String>,
}

impl Store {
    /// Points whose run has ended and whose figures are to be read.
    pub async fn ended_points(&self, limit: u32) -> Result<Vec<EndedPoint>, StoreError> {
        let rows = sqlx::query(
            "select sweep_points.sweep as sweep, position, run_id, state, message
             from sweep_points indexed by sweep_points_open
             left join runs on runs.id = run_id
             where run_id is not null and gap is null and figures is null
               and (state is null or state not in ('queued', 'running'))
             order by sweep_points.sweep, position limit ?",
        )
        .bind(limit)
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("look for ended points of sweeps"))?;
        let point = |row| {
            let run = id_of(column(row, "run_id")?)?;
            let state: Option<&str> = column(row, "state")?;
            Ok(EndedPoint {
                sweep: SweepId(id_of(column(row, "sweep")?)?.0),
                position: column(row, "position")?,
                run,
                state: state.map(|it| word(run, "a state", it)).transpose()?,
                message: column(row, "message")?,
            })
        };
        rows.iter().map(point).collect()
    }

    /// Stores the figures of an ended point, or the reason of its gap. A point that changed since
    /// stays as it is.
    pub async fn settle_point(
        &self,
        point: &EndedPoint,
        figures: Result<&SweepFigures, &str>,
    ) -> Result<(), StoreError> {
        let text = figures.ok().map(serde_json::to_string).transpose();
        let text = text.map_err(|_| StoreError::Corrupt { id: point.run, what: "figures" })?;
        let mut writer = self.writer.lock().await;
        sqlx::query(
            "update sweep_points set figures = ?4, gap = ?5
             where sweep = ?1 and position = ?2 and run_id = ?3
               and gap is null and figures is null",
        )
        .bind(key(point.sweep))
        .bind(point.position)
        .bind(point.run.0.as_bytes().to_vec())
        .bind(text)
        .bind(figures.err())
        .execute(&mut *writer)
        .await
        .map_err(during("settle a point of a sweep"))?;
        Ok(())
    }

    /// Running sweeps, oldest first.
    pub async fn running_sweeps(&self) -> Result<Vec<SweepId>, StoreError> {
        let ids: Vec<Vec<u8>> =
            sqlx::query_scalar("select id from sweeps where state = 'running' order by id")
                .fetch_all(&mut *self.reader().await?)
                .await
                .map_err(during("look for running sweeps"))?;
        ids.iter().map(|id| Ok(SweepId(id_of(id)?.0))).collect()
    }

    /// Queues points of a running sweep within its limit, closes those that are too late, and ends
    /// the sweep after its last point. Returns the number of queued runs.
    pub async fn advance_sweep(
        &self,
        id: SweepId,
        rule: &ReuseRule,
        owner: impl Fn(&str) -> Owner,
    ) -> Result<u32, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("advance a sweep"))?;
        let Some(sweep) = running(&mut tx, id).await? else { return Ok(0) };
        let mut queued = 0;
        if now_ms() >= sweep.deadline_at {
            let minutes = sweep.max_minutes;
            let reason = format!("not started within {minutes} minutes (limits.max_minutes)");
            close(&mut tx, id, &reason).await?;
        } else {
            let owner = sweep.owner.as_deref().map(owner);
            queued = fill(&mut tx, &sweep, rule, owner.as_ref()).await?;
        }
        sqlx::query(
            "update sweeps set state = 'done', ended_at = ?2 where id = ?1 and state = 'running'
             and not exists (select 1 from sweep_points
                             where sweep = ?1 and gap is null and figures is null)",
        )
        .bind(key(id))
        .bind(now_ms())
        .execute(&mut *tx)
        .await
        .map_err(during("end a sweep"))?;
        tx.commit().await.map_err(during("advance a sweep"))?;
        Ok(queued)
    }

    /// Starts no further point. Queued runs of the sweep are cancelled, and their points wait.
    pub async fn pause_sweep(&self, id: SweepId) -> Result<SweepChange, StoreError> {
        self.change_sweep(id, SweepState::Paused).await
    }

    /// Continues a paused sweep; its time limit does not count the pause.
    pub async fn resume_sweep(&self, id: SweepId) -> Result<SweepChange, StoreError> {
        self.change_sweep(id, SweepState::Running).await
    }

    /// Ends a sweep: its queued runs are cancelled, its running ones are requested to stop.
    pub async fn cancel_sweep(&self, id: SweepId) -> Result<SweepChange, StoreError> {
        self.change_sweep(id, SweepState::Cancelled).await
    }

    async fn change_sweep(&self, id: SweepId, to: SweepState) -> Result<SweepChange, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("change a sweep"))?;
        let state: Option<String> = sqlx::query_scalar("select state from sweeps where id = ?")
            .bind(key(id))
            .fetch_optional(&mut *tx)
            .await
            .map_err(during("look up a sweep"))?;
        let Some(state) = state else { return Ok(SweepChange::NotFound) };
        let state: SweepState = word(RunId(id.0), "a state", &state)?;
        if state == to {
            return Ok(SweepChange::Unchanged);
        }
        if state.is_final() {
            return Ok(SweepChange::Ended(state));
        }
        match to {
            SweepState::Paused => pause(&mut tx, id, None).await?,
            SweepState::Running => {
                execute(
                    &mut tx,
                    "update sweeps set state = 'running', message = null, paused_at = null,
                     deadline_at = deadline_at + max(0, ?2 - coalesce(paused_at, ?2))
                     where id = ?1",
                    id,
                    now_ms(),
                )
                .await?;
            }
            SweepState::Cancelled | SweepState::Done => {
                close(&mut tx, id, "the sweep was cancelled").await?;
                let end = "update sweeps set state = 'cancelled', ended_at = ?2 where id = ?1";
                execute(&mut tx, end, id, now_ms()).await?;
                let stop = "update runs set cancel_requested = 1
                            where sweep = ?1 and state = 'running' and ?2 > 0";
                execute(&mut tx, stop, id, now_ms()).await?;
            }
        }
        tx.commit().await.map_err(during("change a sweep"))?;
        Ok(SweepChange::Changed)
    }
}

async fn execute(
    tx: &mut SqliteConnection,
    text: &'static str,
    id: SweepId,
    now: i64,
) -> Result<(), StoreError> {
    let done = sqlx::query(text).bind(key(id)).bind(now).execute(tx).await;
    done.map(drop).map_err(during("change a sweep"))
}

async fn running(
    tx: &mut SqliteConnection,
    id: SweepId,
) -> Result<Option<RunningSweep>, StoreError> {
    let row = sqlx::query("select * from sweeps where id = ? and state = 'running'")
        .bind(key(id))
        .fetch_optional(tx)
        .await
        .map_err(during("look up a sweep"))?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(RunningSweep {
        id,
        owner: column(&row, "owner")?,
        max_queued: column(&row, "max_queued")?,
        reuse: column(&row, "reuse")?,
        deadline_at: column(&row, "deadline_at")?,
        max_minutes: column(&row, "max_minutes")?,
    }))
}

/// Pauses a sweep: its queued runs are cancelled, and their points wait.
pub(super) async fn pause(
    tx: &mut SqliteConnection,
    id: SweepId,
    message: Option<&str>,
) -> Result<(), StoreError> {
    let back = "update sweep_points set run_id = null where sweep = ?1 and not reused and ?2 > 0
                and run_id in (select id from runs where sweep = ?1 and state = 'queued')";
    execute(tx, back, id, now_ms()).await?;
    cancel_queued(tx, id, "cancelled: its sweep was paused").await?;
    sqlx::query("update sweeps set state = 'paused', paused_at = ?2, message = ?3 where id = ?1")
        .bind(key(id))
        .bind(now_ms())
        .bind(message)
        .execute(tx)
        .await
        .map_err(during("pause a sweep"))?;
    Ok(())
}

/// Makes gaps of the points that have not started, and cancels their runs.
async fn close(tx: &mut SqliteConnection, id: SweepId, reason: &str) -> Result<(), StoreError> {
    sqlx::query(
        "update sweep_points set gap = ?2
         where sweep = ?1 and gap is null and figures is null
           and (run_id is null
                or run_id in (select id from runs where sweep = ?1 and state = 'queued'))",
    )
    .bind(key(id))
    .bind(reason)
    .execute(&mut *tx)
    .await
    .map_err(during("close points of a sweep"))?;
    cancel_queued(tx, id, &format!("cancelled: {reason}")).await
}

async fn cancel_queued(
    tx: &mut SqliteConnection,
    id: SweepId,
    message: &str,
) -> Result<(), StoreError> {
    sqlx::query(sqlx::AssertSqlSafe(format!(
        "update runs set {CANCELLED_IN_QUEUE}, ended_at = max(?2, queued_at), message = ?3
         where sweep = ?1 and state = 'queued'"
    )))
    .bind(key(id))
    .bind(now_ms())
    .bind(message)
    .execute(tx)
    .await
    .map_err(during("cancel runs of a sweep"))?;
    Ok(())
}

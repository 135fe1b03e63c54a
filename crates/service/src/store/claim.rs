//! Claims: a worker holds a run by a lease that it renews, and releases or finishes it.
//!
//! Every change names worker and attempt, so a worker that lost its lease changes nothing.

use std::{collections::BTreeMap, time::Duration};

use llmprof_core::domain::{
    ids::{RunId, SessionId},
    outcome::Outcome,
    state::{RunState, Scheduled, Step, StepRecord},
    subject::RunSpec,
};
use sqlx::Connection;
use tokio::time::Instant;

use super::{
    Store, StoreError, WRITE, during, id_of, json, key, millis, now_ms,
    run_parts::{replace_artifacts, replace_steps},
    series, steady_ms, word,
};

/// Attempts of a run.
pub const MAX_ATTEMPTS: u32 = 3;

/// A run that a worker holds until its lease expires.
#[derive(Debug, Clone)]
pub struct ClaimedRun {
    pub id: RunId,
    pub spec: RunSpec,
    pub attempt: u32,
    pub worker: String,
    /// Time of the claim, by the monotonic clock.
    claimed_at: Instant,
}

/// Result of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    Kept,
    /// Kept; a client requested to cancel the run.
    CancelRequested,
    /// Another worker holds the run, or it was deleted: stop, and change nothing.
    Lost,
}

/// Query of a claim.
struct ClaimQuery<'a> {
    wanted: ClaimWanted<'a>,
    /// Its devices as a column, if there are several.
    devices: Option<String>,
}

enum ClaimWanted<'a> {
    /// This run.
    Run(RunId),
    /// The first run that requests any device, or one of these names.
    Any(&'a [&'a str]),
    /// The first import, which needs no device and does not count for its owner's limit.
    Import,
    /// The first run of this session.
    Session(SessionId),
}

impl Store {
    /// Claims the first queued run that requests any device or one of these `names`. Skips owners
    /// at their limit of running runs.
    pub async fn claim(
        &self,
        worker: &str,
        names: &[&str],
        lease: Duration,
    ) -> Result<Option<ClaimedRun>, StoreError> {
        self.claim_wanted(
            &ClaimQuery { wanted: ClaimWanted::Any(names), devices: None },
            worker,
            lease,
        )
        .await
    }

    /// The first queued run that requests a device by one of these texts, and at most as many
    /// devices as serve the text: its id and number of devices. Skips owners at their limit of
    /// running runs.
    pub async fn first_for(
        &self,
        limits: &BTreeMap<String, usize>,
    ) -> Result<Option<(RunId, u32)>, StoreError> {
        let row: Option<(Vec<u8>, u32)> = sqlx::query_as(
            "select id, gpus from runs as next indexed by runs_waiting
             where state = 'queued' and session is null
               and gpus <= (select value from json_each(?1) where key = device)
               and (?2 = 0 or owner is null
                    or (select count(*) from runs where owner = next.owner
                         and state = 'running' and kind <> 'import') < ?2)
             order by rank, id limit 1",
        )
        .bind(serde_json::to_string(limits).unwrap_or_default())
        .bind(self.running_per_owner)
        .fetch_optional(&mut *self.reader().await?)
        .await
        .map_err(during("look for a run"))?;
        row.map(|(id, gpus)| Ok((id_of(&id)?, gpus))).transpose()
    }

    /// Claims the run that [`Store::first_for`] found, with these `devices`, if it is still queued.
    pub async fn claim_first(
        &self,
        id: RunId,
        worker: &str,
        devices: &[&str],
        lease: Duration,
    ) -> Result<Option<ClaimedRun>, StoreError> {
        let several = (devices.len() > 1).then(|| serde_json::Value::from(devices).to_string());
        self.claim_wanted(
            &ClaimQuery { wanted: ClaimWanted::Run(id), devices: several },
            worker,
            lease,
        )
        .await
    }

    /// Claims the first queued import, which needs no device.
    pub async fn claim_import(
        &self,
        worker: &str,
        lease: Duration,
    ) -> Result<Option<ClaimedRun>, StoreError> {
        self.claim_wanted(&ClaimQuery { wanted: ClaimWanted::Import, devices: None }, worker, lease)
            .await
    }

    /// Claims the first queued run of a session, with the session's `devices`.
    pub async fn claim_of_session(
        &self,
        session: SessionId,
        worker: &str,
        devices: &[&str],
        lease: Duration,
    ) -> Result<Option<ClaimedRun>, StoreError> {
        let several = (devices.len() > 1).then(|| serde_json::Value::from(devices).to_string());
        let query = ClaimQuery { wanted: ClaimWanted::Session(session), devices: several };
        self.claim_wanted(&query, worker, lease).await
    }

    async fn claim_wanted(
        &self,
        query: &ClaimQuery<'_>,
        worker: &str,
        lease: Duration,
    ) -> Result<Option<ClaimedRun>, StoreError> {
        let (id, names, import, session) = match query.wanted {
            ClaimWanted::Run(id) => (Some(id), &[][..], false, None),
            ClaimWanted::Any(names) => (None, names, false, None),
            ClaimWanted::Import => (None, &[][..], true, None),
            ClaimWanted::Session(session) => (None, &[][..], false, Some(session)),
        };
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("claim a run"))?;
        let row: Option<(Vec<u8>, String, u32)> = sqlx::query_as(
            "update runs set state = 'running', worker = ?1, lease_until = ?2,
             attempts = attempts + 1,
                    started_at = max(?3, queued_at), ended_at = null, message = null,
                         failed_step = null, scheduled = null, findings = '[]',
                    devices = ?8
             where id = (select id from runs as next indexed by runs_waiting
                         where state = 'queued'
                           and case when ?7 is not null then id = ?7
                                    when ?9 is not null then session = ?9
                                    when session is not null then false
                                    when ?6 then kind = 'import'
                                    else device = 'auto' or device 
                                         in (select value from json_each(?4)) end
                           and (?5 = 0 or owner is null
                                or (select count(*) from runs where owner = next.owner
                                     and state = 'running' and kind <> 'import') < ?5)
                         order by rank, id limit 1)
             returning id, spec, attempts",
        )
        .bind(worker)
        .bind(until(lease))
        .bind(now_ms())
        .bind(serde_json::Value::from(names).to_string())
        .bind(if import { 0 } else { self.running_per_owner })
        .bind(import)
        .bind(id.as_ref().map(key))
        .bind(&query.devices)
        .bind(session.map(|it| it.0.as_bytes().to_vec()))
        .fetch_optional(&mut *tx)
        .await
        .map_err(during("claim a run"))?;
        let Some((id, spec, attempt)) = row else { return Ok(None) };
        let id = id_of(&id)?;
        sqlx::query(
            "insert or ignore into earlier_steps (run_id, step, started_at)
             select run_id, step, started_at from steps
             where run_id = ? and ended_at is not null",
        )
        .bind(key(&id))
        .execute(&mut *tx)
        .await
        .map_err(during("remember earlier steps"))?;
        sqlx::query("delete from steps where run_id = ?")
            .bind(key(&id))
            .execute(&mut *tx)
            .await
            .map_err(during("clear steps"))?;
        tx.commit().await.map_err(during("claim a run"))?;
        Ok(Some(ClaimedRun {
            id,
            spec: json(id, "a spec", &spec)?,
            attempt,
            worker: worker.to_owned(),
            claimed_at: Instant::now(),
        }))
    }

    /// Extends the lease of a held run; returns whether it must stop.
    pub async fn renew(&self, run: &ClaimedRun, lease: Duration) -> Result<Renewal, StoreError> {
        let mut writer = self.writer.lock().await;
        let requested: Vec<bool> = sqlx::query_scalar(
            "update runs set lease_until = ? where id = ? and state = 'running' and worker = ?
             and attempts = ?
             returning cancel_requested",
        )
        .bind(until(lease))
        .bind(key(&run.id))
        .bind(&run.worker)
        .bind(run.attempt)
        .fetch_all(&mut *writer)
        .await
        .map_err(during("renew a lease"))?;
        Ok(match requested.first() {
            None => Renewal::Lost,
            Some(false) => Renewal::Kept,
            Some(true) => Renewal::CancelRequested,
        })
    }

    /// Replaces the steps of a held run.
    pub async fn save_steps(
        &self,
        run: &ClaimedRun,
        steps: &[StepRecord],
    ) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("save steps"))?;
        let ours: Option<i64> = sqlx::query_scalar(
            "select 1 from runs where id = ? and state = 'running' and worker = ? and attempts = ?",
        )
        .bind(key(&run.id))
        .bind(&run.worker)
        .bind(run.attempt)
        .fetch_optional(&mut *tx)
        .await
        .map_err(during("save steps"))?;
        if ours.is_none() {
            return Ok(());
        }
        replace_steps(&mut tx, run.id, steps).await?;
        tx.commit().await.map_err(during("save steps"))
    }

    /// Saves the scheduler's state of a held run.
    pub async fn save_scheduled(
        &self,
        run: &ClaimedRun,
        scheduled: &Scheduled,
    ) -> Result<(), StoreError> {
        let text = serde_json::to_string(scheduled)
            .map_err(|_| StoreError::Corrupt { id: run.id, what: "a scheduler's word" })?;
        let mut writer = self.writer.lock().await;
        sqlx::query(
            "update runs set scheduled = ? where id = ? and state = 'running'
                     and worker = ? and attempts = ?",
        )
        .bind(text)
        .bind(key(&run.id))
        .bind(&run.worker)
        .bind(run.attempt)
        .execute(&mut *writer)
        .await
        .map_err(during("save a scheduler state"))?;
        Ok(())
    }

    /// Requeues a held run whose job was lost, or fails it after its last attempt.
    ///
    /// Returns its new state, or `None` if it was not held any more and did not change.
    pub async fn retry(&self, run: &ClaimedRun, why: &str) -> Result<Option<RunState>, StoreError> {
        let mut writer = self.writer.lock().await;
        let state: Vec<String> = sqlx::query_scalar(
            "update runs set worker = null, lease_until = null,
                    state = case when cancel_requested then 'cancelled'
                         when attempts < ?1 then 'queued' else 'failed' end,
                    ended_at = case when cancel_requested
                         or attempts >= ?1 then started_at + ?2 end,
                    message = case when cancel_requested then 'cancelled'
                                   when attempts >= ?1 then 'given up after ' || attempts
                                        || ' attempts: ' || ?3 end
             where id = ?4 and state = 'running' and worker = ?5 and attempts = ?6 returning state",
        )
        .bind(MAX_ATTEMPTS)
        .bind(millis(run.claimed_at.elapsed()))
        .bind(why)
        .bind(key(&run.id))
        .bind(&run.worker)
        .bind(run.attempt)
        .fetch_all(&mut *writer)
        .await
        .map_err(during("requeue a run"))?;
        state.first().map(|state| word(run.id, "a state", state)).transpose()
    }

    /// Ends a held run, with its artifacts, in one commit. Returns false if it was not held any
    /// more and did not change.
    pub async fn finish(&self, run: &ClaimedRun, outcome: &Outcome) -> Result<bool, StoreError> {
        let findings = serde_json::to_string(&outcome.findings)
            .map_err(|_| StoreError::Corrupt { id: run.id, what: "findings" })?;
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("finish a run"))?;
        let changed = sqlx::query(
            "update runs set state = ?, ended_at = started_at + ?, failed_step = ?, message = ?,
             findings = ?, worker = null, lease_until = null
             where id = ? and state = 'running' and worker = ? and attempts = ?",
        )
        .bind(outcome.state.as_str())
        .bind(millis(run.claimed_at.elapsed()))
        .bind(outcome.failed_step.map(Step::as_str))
        .bind(&outcome.message)
        .bind(findings)
        .bind(key(&run.id))
        .bind(&run.worker)
        .bind(run.attempt)
        .execute(&mut *tx)
        .await
        .map_err(during("finish a run"))?;
        if changed.rows_affected() == 0 {
            return Ok(false);
        }
        replace_artifacts(&mut tx, run.id, &outcome.artifacts).await?;
        series::add_point(&mut tx, run.id, outcome.series.as_deref()).await?;
        tx.commit().await.map_err(during("finish a run"))?;
        Ok(true)
    }
}

fn until(lease: Duration) -> i64 {
    steady_ms() + millis(lease)
}

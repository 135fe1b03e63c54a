//! Claims: a worker holds a run by a lease that it renews, and gives it back or finishes it.
//!
//! Every change names worker and attempt, so one that lost its lease can change nothing.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use sqlx::{Connection, SqliteConnection};

use super::{Store, StoreError, during, id_of, json, key, millis, now_ms, steady_ms, word};
use crate::run::{ArtifactRecord, Finding, RunId, RunSpec, RunState, Scheduled, Step, StepRecord};

/// Times a run is started before it is given up.
pub const MAX_ATTEMPTS: u32 = 3;

/// A run that is ours until its lease ends.
#[derive(Debug, Clone)]
pub struct Claimed {
    pub id: RunId,
    pub spec: RunSpec,
    pub attempt: u32,
    pub worker: String,
    /// When it was claimed, by a clock that nobody sets.
    began: Instant,
}

/// What a renewal found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    Kept,
    /// Kept, and somebody asked for the run to be cancelled.
    CancelRequested,
    /// Another worker has it, or it was deleted: stop, and change nothing.
    Lost,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub state: RunState,
    pub failed_step: Option<Step>,
    pub message: Option<String>,
    pub findings: Vec<Finding>,
    pub artifacts: Vec<ArtifactRecord>,
}

/// Which run is to be taken.
struct Taken<'a> {
    what: Wanted<'a>,
    /// Its devices as they are kept, where they are several.
    several: Option<String>,
}

enum Wanted<'a> {
    /// This one and no other.
    Run(RunId),
    /// The first that asks for any device, or for one of these names.
    Any(&'a [&'a str]),
    /// The first that needs no device. It does not count towards its owner's share.
    Import,
}

impl Store {
    /// Takes the first waiting run that asks for any device or for one of these `names`, if there is one; not of an owner who has
    /// as many as may run at a time.
    pub async fn claim(&self, worker: &str, names: &[&str], lease: Duration) -> Result<Option<Claimed>, StoreError> {
        self.take(&Taken { what: Wanted::Any(names), several: None }, worker, lease).await
    }

    /// The first waiting run that asks for a device by one of these texts, and no more devices at once than the text has: its id, and how
    /// many it wants. Not of an owner who has as many as may run at a time.
    pub async fn first_for(&self, most: &BTreeMap<String, usize>) -> Result<Option<(RunId, u32)>, StoreError> {
        let row: Option<(Vec<u8>, u32)> = sqlx::query_as(
            "select id, gpus from runs as next indexed by runs_waiting
             where state = 'queued' and gpus <= (select value from json_each(?1) where key = device)
               and (?2 = 0 or owner is null
                    or (select count(*) from runs where owner = next.owner and state = 'running' and kind <> 'import') < ?2)
             order by rank, id limit 1",
        )
        .bind(serde_json::to_string(most).unwrap_or_default())
        .bind(self.running_per_owner)
        .fetch_optional(&self.readers)
        .await
        .map_err(during("look for a run"))?;
        row.map(|(id, gpus)| Ok((id_of(&id)?, gpus))).transpose()
    }

    /// Takes the run that [`Store::first_for`] found, with these `devices`, unless it no longer waits.
    pub async fn claim_first(
        &self,
        id: RunId,
        worker: &str,
        devices: &[&str],
        lease: Duration,
    ) -> Result<Option<Claimed>, StoreError> {
        let several = (devices.len() > 1).then(|| serde_json::Value::from(devices).to_string());
        self.take(&Taken { what: Wanted::Run(id), several }, worker, lease).await
    }

    /// Takes the first import that waits, if there is one. It needs no device.
    pub async fn claim_import(&self, worker: &str, lease: Duration) -> Result<Option<Claimed>, StoreError> {
        self.take(&Taken { what: Wanted::Import, several: None }, worker, lease).await
    }

    async fn take(&self, taken: &Taken<'_>, worker: &str, lease: Duration) -> Result<Option<Claimed>, StoreError> {
        let (id, names, import) = match taken.what {
            Wanted::Run(id) => (Some(id), &[][..], false),
            Wanted::Any(names) => (None, names, false),
            Wanted::Import => (None, &[][..], true),
        };
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with("begin immediate").await.map_err(during("claim a run"))?;
        let row: Option<(Vec<u8>, String, u32)> = sqlx::query_as(
            "update runs set state = 'running', worker = ?1, lease_until = ?2, attempts = attempts + 1,
                    started_at = max(?3, queued_at), ended_at = null, message = null, failed_step = null, scheduled = null, findings = '[]',
                    devices = ?8
             where id = (select id from runs as next indexed by runs_waiting
                         where state = 'queued'
                           and case when ?7 is not null then id = ?7
                                    when ?6 then kind = 'import'
                                    else device = 'auto' or device in (select value from json_each(?4)) end
                           and (?5 = 0 or owner is null
                                or (select count(*) from runs where owner = next.owner and state = 'running' and kind <> 'import') < ?5)
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
        .bind(&taken.several)
        .fetch_optional(&mut *tx)
        .await
        .map_err(during("claim a run"))?;
        let Some((id, spec, attempt)) = row else { return Ok(None) };
        let id = id_of(&id)?;
        sqlx::query("delete from steps where run_id = ?")
            .bind(key(&id))
            .execute(&mut *tx)
            .await
            .map_err(during("clear steps"))?;
        tx.commit().await.map_err(during("claim a run"))?;
        Ok(Some(Claimed { id, spec: json(id, "a spec", &spec)?, attempt, worker: worker.to_owned(), began: Instant::now() }))
    }

    /// Extends the lease of a run that is ours, and says whether somebody wants it to stop.
    pub async fn renew(&self, run: &Claimed, lease: Duration) -> Result<Renewal, StoreError> {
        let mut writer = self.writer.lock().await;
        let requested: Option<bool> = sqlx::query_scalar(
            "update runs set lease_until = ? where id = ? and state = 'running' and worker = ? and attempts = ?
             returning cancel_requested",
        )
        .bind(until(lease))
        .bind(key(&run.id))
        .bind(&run.worker)
        .bind(run.attempt)
        .fetch_optional(&mut *writer)
        .await
        .map_err(during("renew a lease"))?;
        Ok(match requested {
            None => Renewal::Lost,
            Some(false) => Renewal::Kept,
            Some(true) => Renewal::CancelRequested,
        })
    }

    /// Keeps the steps of a run that is ours, in the place of those before.
    pub async fn save_steps(&self, run: &Claimed, steps: &[StepRecord]) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with("begin immediate").await.map_err(during("keep steps"))?;
        let ours: Option<i64> =
            sqlx::query_scalar("select 1 from runs where id = ? and state = 'running' and worker = ? and attempts = ?")
                .bind(key(&run.id))
                .bind(&run.worker)
                .bind(run.attempt)
                .fetch_optional(&mut *tx)
                .await
                .map_err(during("keep steps"))?;
        if ours.is_none() {
            return Ok(());
        }
        sqlx::query("delete from steps where run_id = ? and position >= ?")
            .bind(key(&run.id))
            .bind(u32::try_from(steps.len()).unwrap_or(u32::MAX))
            .execute(&mut *tx)
            .await
            .map_err(during("clear steps"))?;
        for (position, step) in (0_u32..).zip(steps) {
            sqlx::query(
                "insert into steps (run_id, position, step, state, started_at, ended_at, exit_code, message)
                 values (?, ?, ?, ?, ?, ?, ?, ?)
                 on conflict (run_id, position) do update set step = excluded.step, state = excluded.state,
                        started_at = excluded.started_at, ended_at = excluded.ended_at, exit_code = excluded.exit_code,
                        message = excluded.message",
            )
            .bind(key(&run.id))
            .bind(position)
            .bind(step.step.as_str())
            .bind(step.state.as_str())
            .bind(&step.started_at)
            .bind(&step.ended_at)
            .bind(step.exit_code)
            .bind(&step.message)
            .execute(&mut *tx)
            .await
            .map_err(during("keep a step"))?;
        }
        tx.commit().await.map_err(during("keep steps"))
    }

    /// Keeps where a run that is ours stands with the cluster's scheduler.
    pub async fn save_scheduled(&self, run: &Claimed, scheduled: &Scheduled) -> Result<(), StoreError> {
        let text =
            serde_json::to_string(scheduled).map_err(|_| StoreError::Corrupt { id: run.id, what: "a scheduler's word" })?;
        let mut writer = self.writer.lock().await;
        sqlx::query("update runs set scheduled = ? where id = ? and state = 'running' and worker = ? and attempts = ?")
            .bind(text)
            .bind(key(&run.id))
            .bind(&run.worker)
            .bind(run.attempt)
            .execute(&mut *writer)
            .await
            .map_err(during("keep where a run stands"))?;
        Ok(())
    }

    /// Queues a run that is ours again because its job was lost, or gives it up when that happened too often.
    ///
    /// The state it is in now, or `None`: it was no longer ours, and nothing changed.
    pub async fn retry(&self, run: &Claimed, why: &str) -> Result<Option<RunState>, StoreError> {
        let mut writer = self.writer.lock().await;
        let state: Option<String> = sqlx::query_scalar(
            "update runs set worker = null, lease_until = null,
                    state = case when cancel_requested then 'cancelled' when attempts < ?1 then 'queued' else 'failed' end,
                    ended_at = case when cancel_requested or attempts >= ?1 then started_at + ?2 end,
                    message = case when cancel_requested then 'cancelled'
                                   when attempts >= ?1 then 'given up after ' || attempts || ' attempts: ' || ?3 end
             where id = ?4 and state = 'running' and worker = ?5 and attempts = ?6 returning state",
        )
        .bind(MAX_ATTEMPTS)
        .bind(millis(run.began.elapsed()))
        .bind(why)
        .bind(key(&run.id))
        .bind(&run.worker)
        .bind(run.attempt)
        .fetch_optional(&mut *writer)
        .await
        .map_err(during("queue a run again"))?;
        state.map(|state| word(run.id, "a state", &state)).transpose()
    }

    /// Gives back the runs whose worker is gone but whose jobs go on elsewhere: who claims one finds its job again. Imports have none.
    ///
    /// `all`: every running run, right at start.
    pub async fn give_back(&self, all: bool) -> Result<Vec<RunId>, StoreError> {
        let mut writer = self.writer.lock().await;
        let ids: Vec<Vec<u8>> = sqlx::query_scalar(
            "update runs set state = 'queued', worker = null, lease_until = null, attempts = attempts - 1
             where state = 'running' and kind <> 'import' and (? or lease_until < ?) returning id",
        )
        .bind(all)
        .bind(steady_ms())
        .fetch_all(&mut *writer)
        .await
        .map_err(during("give runs back"))?;
        ids.iter().map(|id| id_of(id)).collect()
    }

    /// Ends a run that is ours, with its artifacts, in one commit. `false`: it was no longer ours, and nothing changed.
    pub async fn finish(&self, run: &Claimed, outcome: &Outcome) -> Result<bool, StoreError> {
        let findings =
            serde_json::to_string(&outcome.findings).map_err(|_| StoreError::Corrupt { id: run.id, what: "findings" })?;
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with("begin immediate").await.map_err(during("finish a run"))?;
        let changed = sqlx::query(
            "update runs set state = ?, ended_at = started_at + ?, failed_step = ?, message = ?, findings = ?, worker = null, lease_until = null
             where id = ? and state = 'running' and worker = ? and attempts = ?",
        )
        .bind(outcome.state.as_str())
        .bind(millis(run.began.elapsed()))
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
        tx.commit().await.map_err(during("finish a run"))?;
        Ok(true)
    }

    /// Gives a run back to the queue as if it had not been started: the service stops, and the run is not to blame.
    pub async fn release(&self, run: &Claimed) -> Result<bool, StoreError> {
        let mut writer = self.writer.lock().await;
        let changed = sqlx::query(
            "update runs set state = 'queued', worker = null, lease_until = null, started_at = null, attempts = attempts - 1
             where id = ? and state = 'running' and worker = ? and attempts = ?",
        )
        .bind(key(&run.id))
        .bind(&run.worker)
        .bind(run.attempt)
        .execute(&mut *writer)
        .await
        .map_err(during("give a run back"))?;
        Ok(changed.rows_affected() > 0)
    }

    /// Lists the runs whose worker is gone: their lease is over.
    ///
    /// `all`: every running run, whatever its lease says; right at start, when this process alone has the database.
    pub async fn abandoned(&self, all: bool) -> Result<Vec<RunId>, StoreError> {
        let ids: Vec<Vec<u8>> = sqlx::query_scalar("select id from runs where state = 'running' and (? or lease_until < ?)")
            .bind(all)
            .bind(steady_ms())
            .fetch_all(&self.readers)
            .await
            .map_err(during("look for abandoned runs"))?;
        ids.iter().map(|id| id_of(id)).collect()
    }

    /// Queues those runs again, and gives up the ones that were started too often. Returns the ids of both.
    pub async fn recover(&self, all: bool) -> Result<Vec<RunId>, StoreError> {
        let mut writer = self.writer.lock().await;
        let ids: Vec<Vec<u8>> = sqlx::query_scalar(
            "update runs set worker = null, lease_until = null,
                    state = case when cancel_requested then 'cancelled' when attempts < ?1 then 'queued' else 'failed' end,
                    ended_at = case when cancel_requested or attempts >= ?1 then max(?2, coalesce(started_at, queued_at)) end,
                    message = case when cancel_requested then 'cancelled'
                                   when attempts >= ?1 then 'given up: the service ended during each of ' || attempts || ' attempts' end
             where state = 'running' and (?3 or lease_until < ?4) returning id",
        )
        .bind(MAX_ATTEMPTS)
        .bind(now_ms())
        .bind(all)
        .bind(steady_ms())
        .fetch_all(&mut *writer)
        .await
        .map_err(during("recover runs"))?;
        ids.iter().map(|id| id_of(id)).collect()
    }
}

pub(super) async fn replace_artifacts(
    tx: &mut SqliteConnection,
    id: RunId,
    artifacts: &[ArtifactRecord],
) -> Result<(), StoreError> {
    sqlx::query("delete from artifacts where run_id = ?")
        .bind(key(&id))
        .execute(&mut *tx)
        .await
        .map_err(during("clear artifacts"))?;
    for artifact in artifacts {
        sqlx::query("insert into artifacts (run_id, path, bytes, sha256, media_type, step) values (?, ?, ?, ?, ?, ?)")
            .bind(key(&id))
            .bind(&artifact.path)
            .bind(i64::try_from(artifact.bytes).unwrap_or(i64::MAX))
            .bind(&artifact.sha256)
            .bind(&artifact.media_type)
            .bind(artifact.step.map(Step::as_str))
            .execute(&mut *tx)
            .await
            .map_err(during("insert an artifact"))?;
    }
    Ok(())
}

fn until(lease: Duration) -> i64 {
    steady_ms() + millis(lease)
}

//! Sessions of workers: claimed, renewed, ended, and lost with their worker.
//!
//! Every change names the worker, so one that lost its lease changes nothing.

use std::{collections::BTreeMap, time::Duration};

use llmprof_core::domain::{
    ids::{RunId, SessionId},
    session::SessionState,
};
use sqlx::Connection;

use super::{ACTIVE, ClaimedSession, EndedSession, SessionRenewal, end, fail_runs, key};
use crate::store::{
    Store, StoreError, WRITE, during, id_of, json, millis, now_ms, steady_ms, word,
};

impl Store {
    /// The first session waiting for a device text in `limits` that enough devices serve, if it is
    /// not behind the run `next` in the queue: its id and number of devices.
    pub async fn first_session_for(
        &self,
        limits: &BTreeMap<String, usize>,
        next: Option<RunId>,
    ) -> Result<Option<(SessionId, u32)>, StoreError> {
        let row: Option<(Vec<u8>, u32)> = sqlx::query_as(
            "select id, gpus from sessions
             where state = 'starting' and worker is null
               and gpus <= (select value from json_each(?1) where key = device)
               and rank <= coalesce((select rank from runs where id = ?2), rank)
             order by rank, id limit 1",
        )
        .bind(serde_json::to_string(limits).unwrap_or_default())
        .bind(next.map(|id| id.0.as_bytes().to_vec()))
        .fetch_optional(&mut *self.reader().await?)
        .await
        .map_err(during("look for a session"))?;
        row.map(|(id, gpus)| Ok((SessionId(id_of(&id)?.0), gpus))).transpose()
    }

    /// Claims a session waiting for a device. Its lifetime starts.
    pub async fn claim_session(
        &self,
        id: SessionId,
        worker: &str,
        devices: &[&str],
        lease: Duration,
    ) -> Result<Option<ClaimedSession>, StoreError> {
        let mut writer = self.writer.lock().await;
        let specs: Vec<String> = sqlx::query_scalar(
            "update sessions set worker = ?2, lease_until = ?3, devices = ?4, started_at = ?5,
             expires_at = ?5 + 1000 * (spec ->> '$.lifetime_s')
             where id = ?1 and state = 'starting' and worker is null returning spec",
        )
        .bind(key(id))
        .bind(worker)
        .bind(steady_ms() + millis(lease))
        .bind(serde_json::Value::from(devices).to_string())
        .bind(now_ms())
        .fetch_all(&mut *writer)
        .await
        .map_err(during("lease a session"))?;
        let Some(spec) = specs.first() else { return Ok(None) };
        let spec = json(RunId(id.0), "a spec", spec)?;
        Ok(Some(ClaimedSession { id, spec, worker: worker.to_owned() }))
    }

    /// Extends the lease of a held session; returns whether it must end.
    pub async fn renew_session(
        &self,
        session: &ClaimedSession,
        lease: Duration,
    ) -> Result<SessionRenewal, StoreError> {
        let mut writer = self.writer.lock().await;
        let requested: Vec<bool> = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
            "update sessions set lease_until = ? where id = ? and worker = ? and {ACTIVE}
             returning end_requested"
        )))
        .bind(steady_ms() + millis(lease))
        .bind(key(session.id))
        .bind(&session.worker)
        .fetch_all(&mut *writer)
        .await
        .map_err(during("renew the lease of a session"))?;
        Ok(match requested.first() {
            None => SessionRenewal::Lost,
            Some(false) => SessionRenewal::Kept,
            Some(true) => SessionRenewal::EndRequested,
        })
    }

    /// Sets the state of a held session that has not ended.
    pub async fn set_session_state(
        &self,
        session: &ClaimedSession,
        state: SessionState,
    ) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        sqlx::query(sqlx::AssertSqlSafe(format!(
            "update sessions set state = ?3,
             ready_at = case when ?3 = 'ready' then coalesce(ready_at, ?4) else ready_at end
             where id = ?1 and worker = ?2 and {ACTIVE}"
        )))
        .bind(key(session.id))
        .bind(&session.worker)
        .bind(state.as_str())
        .bind(now_ms())
        .execute(&mut *writer)
        .await
        .map_err(during("set the state of a session"))?;
        Ok(())
    }

    /// Ends a held session; its queued runs fail with a finding, and are returned. `None`: it was
    /// not held any more.
    pub async fn end_session(
        &self,
        session: &ClaimedSession,
        ended: &EndedSession,
    ) -> Result<Option<Vec<RunId>>, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("end a session"))?;
        let held: Option<i64> = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
            "select 1 from sessions where id = ? and worker = ? and {ACTIVE}"
        )))
        .bind(key(session.id))
        .bind(&session.worker)
        .fetch_optional(&mut *tx)
        .await
        .map_err(during("end a session"))?;
        if held.is_none() {
            return Ok(None);
        }
        let failed = end(&mut tx, session.id, ended).await?;
        tx.commit().await.map_err(during("end a session"))?;
        Ok(Some(failed))
    }

    /// Lists held sessions whose lease has expired. `all`: every held one, at start.
    pub async fn abandoned_sessions(&self, all: bool) -> Result<Vec<SessionId>, StoreError> {
        let ids: Vec<Vec<u8>> = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
            "select id from sessions where {ACTIVE} and worker is not null
             and (? or lease_until < ?)"
        )))
        .bind(all)
        .bind(steady_ms())
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("list abandoned sessions"))?;
        ids.iter().map(|id| Ok(SessionId(id_of(id)?.0))).collect()
    }

    /// Ends sessions whose processes were stopped because their worker is gone; returns the runs
    /// that failed with them.
    pub async fn lose_sessions(&self, ids: &[SessionId]) -> Result<Vec<RunId>, StoreError> {
        let message = "the service ended without stopping it; its processes were stopped since";
        self.end_all(ids, SessionState::Lost, message).await
    }

    /// Ends sessions that waited for a device longer than their lifetime; returns their number.
    pub async fn expire_waiting_sessions(&self) -> Result<usize, StoreError> {
        let ids: Vec<Vec<u8>> = sqlx::query_scalar(
            "select id from sessions where state = 'starting' and worker is null
             and expires_at < ?",
        )
        .bind(now_ms())
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("list waiting sessions"))?;
        let ids: Result<Vec<SessionId>, _> =
            ids.iter().map(|id| id_of(id).map(|it| SessionId(it.0))).collect();
        let ids = ids?;
        let message = "no device became free within its lifetime, or the disk had no space for \
                       it; retry, or choose another device";
        self.end_all(&ids, SessionState::Failed, message).await?;
        Ok(ids.len())
    }

    /// Fails runs that were requeued after the end of their session, as no worker claims them;
    /// returns them.
    pub async fn fail_runs_of_ended_sessions(&self) -> Result<Vec<RunId>, StoreError> {
        let sessions: Vec<(Vec<u8>, Option<String>, Option<String>)> =
            sqlx::query_as(sqlx::AssertSqlSafe(format!(
                "select distinct session, (select state from sessions where id = runs.session),
                 (select message from sessions where id = runs.session)
                 from runs where state = 'queued' and session is not null
                 and not exists (select 1 from sessions where id = runs.session and {ACTIVE})"
            )))
            .fetch_all(&mut *self.reader().await?)
            .await
            .map_err(during("list runs of ended sessions"))?;
        if sessions.is_empty() {
            return Ok(Vec::new());
        }
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("fail runs of sessions"))?;
        let mut failed = Vec::new();
        for (id, state, message) in sessions {
            let id = id_of(&id)?;
            let state = state.map_or(Ok(SessionState::Ended), |it| word(id, "a state", &it))?;
            let message = message.unwrap_or_default();
            failed.extend(fail_runs(&mut tx, SessionId(id.0), state, &message).await?);
        }
        tx.commit().await.map_err(during("fail runs of sessions"))?;
        Ok(failed)
    }

    async fn end_all(
        &self,
        ids: &[SessionId],
        state: SessionState,
        message: &str,
    ) -> Result<Vec<RunId>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("end sessions"))?;
        let mut failed = Vec::new();
        for id in ids {
            let ended = EndedSession { state, message: message.into(), log: None };
            failed.extend(end(&mut tx, *id, &ended).await?);
        }
        tx.commit().await.map_err(during("end sessions"))?;
        Ok(failed)
    }
}

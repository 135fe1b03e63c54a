//! Sessions: their states, quota and leases, and the end of the runs queued for an ended one.
//!
//! A worker changes only the session that it holds, as with runs.

mod held;
#[cfg(test)]
mod tests;

use llmprof_core::domain::{
    finding::{Finding, catalogue},
    ids::{RunId, SessionId},
    session::{SessionSpec, SessionState},
};
use sqlx::{Connection, SqliteConnection, sqlite::SqliteRow};

use super::{Store, StoreError, WRITE, column, during, id_of, json, now_ms, rfc3339, word};

/// Ended sessions that are kept.
const KEPT: u32 = 1000;
/// Sessions that have not ended.
const ACTIVE: &str = "state in ('starting', 'ready', 'busy', 'ending')";

/// A session in the database.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredSession {
    pub id: SessionId,
    /// Name of the token that started it; `None` if tokens are not required.
    pub owner: Option<String>,
    pub state: SessionState,
    pub spec: SessionSpec,
    /// RFC 3339, UTC, as all times.
    pub created_at: String,
    pub started_at: Option<String>,
    pub ready_at: Option<String>,
    pub ended_at: Option<String>,
    /// End of its lifetime; before its server starts, of its wait for a device.
    pub expires_at: String,
    /// Names of the devices that it holds or held.
    pub devices: Vec<String>,
    /// Why it ended.
    pub message: Option<String>,
    /// Last lines of the server's output, once it has ended.
    pub log: Option<String>,
    /// Runs that were submitted for it and not deleted since.
    pub runs: u64,
    pub running: Option<RunId>,
}

/// A session to be started.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// A new one when absent.
    pub id: Option<SessionId>,
    pub spec: SessionSpec,
    pub owner: Option<String>,
    /// Active sessions that the owner may have; 0: no limit.
    pub per_owner: u32,
}

/// Result of a request to start a session.
#[derive(Debug, Clone)]
pub enum StartedSession {
    New(Box<StoredSession>),
    /// The owner has this many.
    TooMany(u64),
}

/// Result of a request to end a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEndRequest {
    /// It waited for a device and will not start.
    Ended,
    /// Its worker ends it, after the run that is recording.
    Requested,
    AlreadyEnded,
    NotFound,
}

/// A session that a worker holds until its lease expires.
#[derive(Debug, Clone)]
pub struct ClaimedSession {
    pub id: SessionId,
    pub spec: SessionSpec,
    pub worker: String,
}

/// Result of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionRenewal {
    Kept,
    EndRequested,
    /// The session was taken for lost: stop its server.
    Lost,
}

/// End of a session.
#[derive(Debug, Clone)]
pub struct EndedSession {
    pub state: SessionState,
    pub message: String,
    pub log: Option<String>,
}

impl Store {
    /// Stores a session, unless its owner has too many. Oldest ended sessions are forgotten.
    pub async fn start_session(&self, new: &NewSession) -> Result<StartedSession, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("start a session"))?;
        let active: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
            "select count(*) from sessions where {ACTIVE} and owner is ?"
        )))
        .bind(&new.owner)
        .fetch_one(&mut *tx)
        .await
        .map_err(during("count sessions"))?;
        if new.per_owner > 0 && active >= i64::from(new.per_owner) {
            return Ok(StartedSession::TooMany(active.unsigned_abs()));
        }
        let (id, now) = (new.id.unwrap_or_else(SessionId::now), now_ms());
        let spec = serde_json::to_string(&new.spec)
            .map_err(|_| StoreError::Corrupt { id: RunId(id.0), what: "a spec" })?;
        sqlx::query(
            "insert into sessions (id, owner, state, spec, device, gpus, rank, created_at,
             expires_at) values (?1, ?2, 'starting', ?3, ?4, ?5, ?6, ?6, ?6 + ?7)",
        )
        .bind(key(id))
        .bind(&new.owner)
        .bind(spec)
        .bind(&new.spec.device)
        .bind(new.spec.gpus())
        .bind(now)
        .bind(i64::from(new.spec.lifetime_s) * 1000)
        .execute(&mut *tx)
        .await
        .map_err(during("start a session"))?;
        sqlx::query(sqlx::AssertSqlSafe(format!(
            "delete from sessions where not {ACTIVE} and id not in
             (select id from sessions where not {ACTIVE} order by id desc limit {KEPT})"
        )))
        .execute(&mut *tx)
        .await
        .map_err(during("forget sessions"))?;
        let stored = session(&mut tx, id).await?;
        tx.commit().await.map_err(during("start a session"))?;
        let stored = stored.ok_or(StoreError::Corrupt { id: RunId(id.0), what: "no row" })?;
        Ok(StartedSession::New(Box::new(stored)))
    }

    pub async fn session(&self, id: SessionId) -> Result<Option<StoredSession>, StoreError> {
        session(&mut *self.reader().await?, id).await
    }

    /// The newest sessions, active ones first.
    pub async fn sessions(&self, limit: u32) -> Result<Vec<StoredSession>, StoreError> {
        let query = format!("{SELECT} order by {ACTIVE} desc, id desc limit ?");
        let rows = sqlx::query(sqlx::AssertSqlSafe(query))
            .bind(limit)
            .fetch_all(&mut *self.reader().await?)
            .await
            .map_err(during("list sessions"))?;
        rows.iter().map(from_row).collect()
    }

    /// Ends a session waiting for a device, or requests its worker to end it.
    pub async fn request_session_end(
        &self,
        id: SessionId,
    ) -> Result<SessionEndRequest, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("end a session"))?;
        let row: Option<(String, bool)> =
            sqlx::query_as("select state, worker is null from sessions where id = ?")
                .bind(key(id))
                .fetch_optional(&mut *tx)
                .await
                .map_err(during("look up a session"))?;
        let Some((state, is_unclaimed)) = row else { return Ok(SessionEndRequest::NotFound) };
        let state: SessionState = word(RunId(id.0), "a state", &state)?;
        if state.is_final() {
            return Ok(SessionEndRequest::AlreadyEnded);
        }
        let request = if is_unclaimed {
            let message = "ended while it waited for a device".into();
            let ended = EndedSession { state: SessionState::Ended, message, log: None };
            end(&mut tx, id, &ended).await?;
            SessionEndRequest::Ended
        } else {
            sqlx::query("update sessions set end_requested = 1 where id = ?")
                .bind(key(id))
                .execute(&mut *tx)
                .await
                .map_err(during("end a session"))?;
            SessionEndRequest::Requested
        };
        tx.commit().await.map_err(during("end a session"))?;
        Ok(request)
    }
}

fn key(id: SessionId) -> Vec<u8> {
    id.0.as_bytes().to_vec()
}

/// True if a run may be queued for the session.
pub(super) async fn accepts_runs(
    tx: &mut SqliteConnection,
    id: SessionId,
) -> Result<bool, StoreError> {
    let row: Option<(String, bool)> =
        sqlx::query_as("select state, end_requested from sessions where id = ?")
            .bind(key(id))
            .fetch_optional(tx)
            .await
            .map_err(during("look up a session"))?;
    let Some((state, is_ending)) = row else { return Ok(false) };
    let state: SessionState = word(RunId(id.0), "a state", &state)?;
    Ok(state.accepts_runs() && !is_ending)
}

/// Ends a session and fails the runs that are queued for it; returns these.
async fn end(
    tx: &mut SqliteConnection,
    id: SessionId,
    ended: &EndedSession,
) -> Result<Vec<RunId>, StoreError> {
    let changed = sqlx::query(sqlx::AssertSqlSafe(format!(
        "update sessions set state = ?2, message = ?3, log = ?4, ended_at = max(?5, created_at),
         worker = null, lease_until = null where id = ?1 and {ACTIVE}"
    )))
    .bind(key(id))
    .bind(ended.state.as_str())
    .bind(&ended.message)
    .bind(&ended.log)
    .bind(now_ms())
    .execute(&mut *tx)
    .await
    .map_err(during("end a session"))?;
    if changed.rows_affected() == 0 {
        return Ok(Vec::new());
    }
    fail_runs(tx, id, ended.state, &ended.message).await
}

/// Fails the runs that are queued for an ended session; returns these.
async fn fail_runs(
    tx: &mut SqliteConnection,
    id: SessionId,
    state: SessionState,
    why: &str,
) -> Result<Vec<RunId>, StoreError> {
    let message = format!("the session {id} is {state}: {why}");
    let finding = Finding::new(catalogue::SESSION_ENDED, &message)
        .with("session", id)
        .advise("start a session again (POST /sessions) and submit the run for it");
    let findings = serde_json::to_string(&[finding])
        .map_err(|_| StoreError::Corrupt { id: RunId(id.0), what: "findings" })?;
    let failed: Vec<Vec<u8>> = sqlx::query_scalar(
        "update runs set state = 'failed', ended_at = max(?2, queued_at), message = ?3,
         findings = ?4 where session = ?1 and state = 'queued' returning id",
    )
    .bind(key(id))
    .bind(now_ms())
    .bind(message)
    .bind(findings)
    .fetch_all(tx)
    .await
    .map_err(during("fail the runs of a session"))?;
    failed.iter().map(|id| id_of(id)).collect()
}

const SELECT: &str = "select sessions.*,
    (select count(*) from runs where runs.session = sessions.id) as runs,
    (select id from runs where runs.session = sessions.id and state = 'running') as running
    from sessions";

async fn session(
    connection: &mut SqliteConnection,
    id: SessionId,
) -> Result<Option<StoredSession>, StoreError> {
    let row = sqlx::query(sqlx::AssertSqlSafe(format!("{SELECT} where id = ?")))
        .bind(key(id))
        .fetch_optional(connection)
        .await
        .map_err(during("look up a session"))?;
    row.map(|row| from_row(&row)).transpose()
}

fn from_row(row: &SqliteRow) -> Result<StoredSession, StoreError> {
    let id = id_of(column(row, "id")?)?;
    let state: SessionState = word(id, "a state", column(row, "state")?)?;
    let is_ending = column::<bool>(row, "end_requested")? && !state.is_final();
    let running: Option<Vec<u8>> = column(row, "running")?;
    let devices: Option<&str> = column(row, "devices")?;
    let time = |name| Ok::<_, StoreError>(column::<Option<i64>>(row, name)?.map(rfc3339));
    Ok(StoredSession {
        id: SessionId(id.0),
        owner: column(row, "owner")?,
        state: if is_ending { SessionState::Ending } else { state },
        spec: json(id, "a spec", column(row, "spec")?)?,
        created_at: rfc3339(column(row, "created_at")?),
        started_at: time("started_at")?,
        ready_at: time("ready_at")?,
        ended_at: time("ended_at")?,
        expires_at: rfc3339(column(row, "expires_at")?),
        devices: devices.map(|it| json(id, "its devices", it)).transpose()?.unwrap_or_default(),
        message: column(row, "message")?,
        log: column(row, "log")?,
        runs: column::<i64>(row, "runs")?.unsigned_abs(),
        running: running.map(|run| id_of(&run)).transpose()?,
    })
}

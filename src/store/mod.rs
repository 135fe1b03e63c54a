//! Our database: runs, their steps, labels and artifacts, and alignments, in one SQLite file. The only module that knows SQL of ours.
//!
//! One connection writes, a few read (WAL). Submissions that arrive together share one durable commit. It never touches a run's
//! folder, and never holds a transaction across a job.

mod alignments;
pub mod audit;
mod claim;
mod deliveries;
mod queue;
mod read;
mod retention;
mod submit;
#[cfg(test)]
mod tests;
mod tokens;
mod upkeep;

use std::{
    path::Path,
    str::FromStr,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

pub use alignments::{AlignmentFilter, AlignmentOutcome, StoredAlignment, SubmittedAlignment};
pub use claim::{Claimed, Outcome, Renewal};
pub use deliveries::Delivery;
pub use queue::{Figures, History, Waiting};
pub use read::Filter;
pub use retention::{Due, KeptRun, Plan};
use sqlx::{
    ConnectOptions, Connection, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow, SqliteSynchronous},
};
pub use submit::{Idempotency, NewRun, Owner, Quota, Submitted};
pub use tokens::{Role, Token};
use tokio::sync::{Mutex, mpsc};
pub use upkeep::{LostAlignment, LostRun};
use uuid::Uuid;

use crate::run::{Finding, RunId, RunSpec, RunState, Scheduled, Step, StepRecord};

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot open the database {path}")]
    Open { path: String, source: sqlx::Error },
    #[error("cannot migrate the database {path}")]
    Migrate { path: String, source: sqlx::migrate::MigrateError },
    #[error("cannot {act}")]
    Query { act: &'static str, source: sqlx::Error },
    #[error("{id} holds {what} that this version cannot read")]
    Corrupt { id: RunId, what: &'static str },
    #[error("token {name} has a role that this version does not know")]
    UnknownRole { name: String },
    #[error("the database writer has stopped")]
    Stopped,
}

/// Names the act that failed: `.map_err(during("claim a run"))`.
fn during(act: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
    move |source| StoreError::Query { act, source }
}

/// A run as the database knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub id: RunId,
    pub spec: RunSpec,
    /// Name of the token that submitted it; `None` where none was asked for.
    pub owner: Option<String>,
    pub state: RunState,
    pub attempts: u32,
    /// 1 is next; only while queued, and only where one run is asked for.
    pub queue_position: Option<u64>,
    /// RFC 3339, UTC, as the two below.
    pub queued_at: String,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    pub cancel_requested: bool,
    /// It stays as it is, and is never removed but by hand.
    pub pinned: bool,
    /// Why it failed.
    pub message: Option<String>,
    pub failed_step: Option<Step>,
    /// Where it stands with the cluster's scheduler, while one carries it out.
    pub scheduled: Option<Scheduled>,
    /// Empty in lists.
    pub steps: Vec<StepRecord>,
    pub findings: Vec<Finding>,
}

/// What became of a request to cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancel {
    /// It was queued, and will not start.
    Cancelled,
    /// It runs, and will end soon.
    Requested,
    AlreadyRequested,
    AlreadyEnded(RunState),
    NotFound,
}

/// What became of a request to delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delete {
    Deleted,
    /// It is queued or running: cancel it first.
    Active,
    NotFound,
}

/// The database. Clones share it.
#[derive(Debug, Clone)]
pub struct Store {
    readers: SqlitePool,
    writer: Arc<Mutex<SqliteConnection>>,
    submissions: mpsc::Sender<submit::Submission>,
    /// Runs of one owner that are carried out at a time; 0: any number.
    running_per_owner: u32,
}

impl Store {
    /// Opens the database at `path`, makes it if absent, and brings its tables up to date.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        let name = || path.display().to_string();
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(10))
            .disable_statement_logging();
        let mut writer =
            SqliteConnection::connect_with(&options).await.map_err(|source| StoreError::Open { path: name(), source })?;
        sqlx::migrate!().run(&mut writer).await.map_err(|source| StoreError::Migrate { path: name(), source })?;
        let readers = SqlitePoolOptions::new()
            .max_connections(4)
            .connect_with(options.read_only(true))
            .await
            .map_err(|source| StoreError::Open { path: name(), source })?;
        let writer = Arc::new(Mutex::new(writer));
        Ok(Self { readers, submissions: submit::start(Arc::clone(&writer)), writer, running_per_owner: 0 })
    }

    /// The same store, which claims at most so many runs of one owner at a time; 0: any number.
    pub fn with_running_per_owner(self, running_per_owner: u32) -> Self {
        Self { running_per_owner, ..self }
    }

    /// Says whether the database answers.
    pub async fn ready(&self) -> Result<(), StoreError> {
        sqlx::query("select 1").execute(&self.readers).await.map_err(during("ask the database"))?;
        Ok(())
    }

    /// Cancels a queued run, or asks the worker of a running one to stop.
    pub async fn cancel(&self, id: RunId) -> Result<Cancel, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with("begin immediate").await.map_err(during("cancel a run"))?;
        let row: Option<(String, bool)> = sqlx::query_as("select state, cancel_requested from runs where id = ?")
            .bind(key(&id))
            .fetch_optional(&mut *tx)
            .await
            .map_err(during("look a run up"))?;
        let Some((state, requested)) = row else { return Ok(Cancel::NotFound) };
        let answer = match (word::<RunState>(id, "a state", &state)?, requested) {
            (RunState::Queued, _) => Cancel::Cancelled,
            (RunState::Running, false) => Cancel::Requested,
            (RunState::Running, true) => Cancel::AlreadyRequested,
            (ended, _) => Cancel::AlreadyEnded(ended),
        };
        let change = match answer {
            Cancel::Cancelled => {
                "update runs set state = 'cancelled', cancel_requested = 1, ended_at = max(?2, queued_at), message = 'cancelled while queued' where id = ?1"
            }
            Cancel::Requested => "update runs set cancel_requested = 1 where id = ?1 and ?2 > 0",
            _ => return Ok(answer),
        };
        sqlx::query(change).bind(key(&id)).bind(now_ms()).execute(&mut *tx).await.map_err(during("cancel a run"))?;
        tx.commit().await.map_err(during("cancel a run"))?;
        Ok(answer)
    }

    /// Forgets a run that has ended. Its folder is the caller's to remove, afterwards.
    pub async fn delete(&self, id: RunId) -> Result<Delete, StoreError> {
        let mut writer = self.writer.lock().await;
        let deleted = sqlx::query("delete from runs where id = ? and state not in ('queued', 'running')")
            .bind(key(&id))
            .execute(&mut *writer)
            .await
            .map_err(during("delete a run"))?
            .rows_affected();
        if deleted > 0 {
            return Ok(Delete::Deleted);
        }
        let known = sqlx::query("select 1 from runs where id = ?").bind(key(&id)).fetch_optional(&mut *writer).await;
        Ok(if known.map_err(during("look a run up"))?.is_some() { Delete::Active } else { Delete::NotFound })
    }
}

/// A run's id as the database keeps it.
fn key(id: &RunId) -> &[u8] {
    id.0.as_bytes()
}

/// An id from the database.
fn id_of(bytes: &[u8]) -> Result<RunId, StoreError> {
    let id = Uuid::from_slice(bytes).map_err(|_| StoreError::Corrupt { id: RunId(Uuid::nil()), what: "an id" })?;
    Ok(RunId(id))
}

/// A word from the database.
fn word<T: FromStr>(id: RunId, what: &'static str, text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|_| StoreError::Corrupt { id, what })
}

/// A JSON column from the database.
fn json<T: serde::de::DeserializeOwned>(id: RunId, what: &'static str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|_| StoreError::Corrupt { id, what })
}

/// A column of a row; the column is in the query, so its absence is our mistake and told as the query's failure.
fn column<'r, T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>>(
    row: &'r SqliteRow,
    name: &'static str,
) -> Result<T, StoreError> {
    use sqlx::Row;
    row.try_get(name).map_err(during("read a row"))
}

fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// A clock that nobody sets, in milliseconds: that of the wall when the process began, and the time that passed since.
///
/// Leases go by it: all of them are of one service, for a new one takes up every run that is marked as running.
fn steady_ms() -> i64 {
    static BEGAN: LazyLock<(i64, Instant)> = LazyLock::new(|| (now_ms(), Instant::now()));
    BEGAN.0 + millis(BEGAN.1.elapsed())
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 2)
}

/// Milliseconds since 1970 as RFC 3339, UTC.
fn rfc3339(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |t| format!("{t:.3}"))
}

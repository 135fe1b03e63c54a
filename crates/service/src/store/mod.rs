//! The service's database: runs with steps, labels and artifacts, and alignments, in one SQLite
//! file. The only module with SQL of that database.
//!
//! One connection writes, a few read (WAL). Concurrent submissions share one durable commit. It
//! never touches a run's folder, and never holds a transaction across a job.

mod alignments;
mod announcements;
pub mod audit;
mod baselines;
mod claim;
mod damage;
mod deliveries;
mod gates;
mod health;
mod inputs;
mod maintenance;
mod migrations;
mod queue;
mod read;
mod reader;
mod recovery;
mod removals;
mod retention;
mod run_parts;
mod savings;
mod series;
mod sessions;
mod submit;
mod sweeps;
#[cfg(test)]
mod tests;
mod tokens;
mod writer;

use std::{path::Path, str::FromStr, sync::Arc, time::Duration};

use sqlx::{
    ConnectOptions, Connection, SqliteConnection, SqlitePool,
    migrate::MigrateError,
    sqlite::{
        SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow, SqliteSynchronous,
    },
};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::runtime::{self, DatabaseCall};
pub use crate::store::maintenance::{LostAlignment, LostRun};
pub use alignments::{AlignmentFilter, AlignmentOutcome, StoredAlignment, SubmittedAlignment};
pub use baselines::StoredBaseline;
pub use claim::{ClaimedRun, MAX_ATTEMPTS, Renewal};
pub use damage::{ScrubFigures, ScrubSubject};
pub use deliveries::{Delivery, DeliveryState, StoredDelivery};
pub use gates::{GateFilter, NewGate, StoredGate};
pub use inputs::{AddedInputs, DeletedInputs, NewInputs, StoredInputs};
use llmprof_core::domain::{
    finding::Finding,
    ids::{RunId, SweepId},
    run_files::DamagedFile,
    state::{RunState, Scheduled, Step, StepRecord},
    subject::RunSpec,
};
pub use queue::{History, RunKind, StoreFigures, Waiting};
pub use read::Filter;
use reader::Reader;
pub use recovery::EndedAttempt;
pub use removals::Removal;
pub use retention::{KeptRun, Plan, PlannedAction};
pub use series::{StoredChange, StoredPoint, StoredSeries};
pub use sessions::{
    ClaimedSession, EndedSession, NewSession, SessionEndRequest, SessionRenewal, StartedSession,
    StoredSession,
};
pub use submit::{IdempotencyKey, NewRun, Owner, Quota, Submitted};
pub use sweeps::{
    EndedPoint, NewSweep, NewSweepPoint, ReuseRule, StartedSweep, StoredSweep, StoredSweepPoint,
    SweepChange, SweepDeletion,
};
pub use tokens::{Role, Token};
pub use writer::WriterStall;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot open the database {path}")]
    Open { path: String, source: sqlx::Error },
    #[error("cannot migrate the database {path}")]
    Migrate { path: String, source: MigrateError },
    #[error(
        "{path} has migration {version} of a newer version of llmprof; use that version, or \
         restore a backup (`llmprof restore`)"
    )]
    NewerDatabase { path: String, version: i64 },
    #[error("cannot {act}")]
    Query { act: &'static str, source: sqlx::Error },
    #[error("{id} has {what} that this version cannot read")]
    Corrupt { id: RunId, what: &'static str },
    #[error("token {name} has a role that is unknown to this version")]
    UnknownRole { name: String },
    #[error("{path} is not the file that this service opened: it was deleted or replaced")]
    Replaced { path: String },
    #[error("the database writer has stopped")]
    Stopped,
    #[error("the writer of the database is blocked: {0}")]
    Blocked(WriterStall),
}

/// Connections that read.
const READERS: u32 = 4;

/// Time for which a connection waits for a lock that another one holds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts a transaction that holds the write lock from its start.
const WRITE: &str = concat!("begin", " immediate");

/// Columns of a run that is cancelled in the queue. It has no start: on a cluster, the job of an
/// earlier attempt may still write.
const CANCELLED_IN_QUEUE: &str = "state = 'cancelled', cancel_requested = 1, started_at = null";

/// Names the action that failed: `.map_err(during("claim a run"))`.
fn during(act: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
    move |source| StoreError::Query { act, source }
}

/// A run in the database.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredRun {
    pub id: RunId,
    pub spec: RunSpec,
    /// Name of the token that submitted it; `None` if tokens are not required.
    pub owner: Option<String>,
    /// The sweep that made it.
    pub sweep: Option<SweepId>,
    pub state: RunState,
    pub attempts: u32,
    /// 1 is next. Only of a queued run, and only in queries of one run.
    pub queue_position: Option<u64>,
    /// RFC 3339, UTC, as the next two.
    pub queued_at: String,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    pub cancel_requested: bool,
    /// Not packed, and removed by request only.
    pub pinned: bool,
    /// Reason of a failure.
    pub message: Option<String>,
    pub failed_step: Option<Step>,
    /// State in the cluster's scheduler, while a scheduler executes it.
    pub scheduled: Option<Scheduled>,
    /// Empty in lists.
    pub steps: Vec<StepRecord>,
    pub findings: Vec<Finding>,
    /// Empty in lists, as the steps.
    pub damage: Vec<DamagedFile>,
}

/// Result of a request to cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelOutcome {
    /// It was queued and will not start.
    Cancelled,
    /// It is running and will end soon.
    Requested,
    AlreadyRequested,
    AlreadyEnded(RunState),
    NotFound,
}

/// Result of a request to delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteOutcome {
    Deleted,
    /// It is queued or running; cancel it first.
    Active,
    NotFound,
}

/// The database. Clones share it.
#[derive(Debug, Clone)]
pub struct Store {
    /// `None`: the writer reads, too.
    readers: Option<SqlitePool>,
    writer: writer::Writer,
    submissions: mpsc::Sender<submit::PendingSubmission>,
    file: Arc<health::DatabaseFile>,
    /// Running runs of one owner; 0: no limit.
    running_per_owner: u32,
}

impl Store {
    /// Opens the database at `path`, creates it if absent, and migrates its tables.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        let options = connect_options(path);
        let readers = SqlitePoolOptions::new().max_connections(READERS);
        Self::open_with(path, options, Some(readers)).await
    }

    /// Opens the database of a simulation: over this VFS of SQLite, with one connection, so that
    /// its calls have an order.
    pub async fn open_simulated(path: &Path, vfs: &'static str) -> Result<Self, StoreError> {
        Self::open_with(path, connect_options(path).vfs(vfs), None).await
    }

    async fn open_with(
        path: &Path,
        options: SqliteConnectOptions,
        readers: Option<SqlitePoolOptions>,
    ) -> Result<Self, StoreError> {
        let name = || path.display().to_string();
        let _call = DatabaseCall::start();
        let mut writer =
            connect(&options).await.map_err(|source| StoreError::Open { path: name(), source })?;
        migrations::migrate(&mut writer).await.map_err(|source| match source {
            MigrateError::VersionMissing(version) => {
                StoreError::NewerDatabase { path: name(), version }
            }
            source => StoreError::Migrate { path: name(), source },
        })?;
        let writer = writer::Writer::new(writer, options.clone());
        let options = options.read_only(true);
        let readers = match readers {
            Some(readers) => Some(readers.connect_with(options.clone()).await),
            None => None,
        };
        let readers =
            readers.transpose().map_err(|source| StoreError::Open { path: name(), source })?;
        let file = health::DatabaseFile::at(path, options)
            .map_err(|source| StoreError::Open { path: name(), source: source.into() })?;
        Ok(Self {
            readers,
            submissions: submit::start(writer.clone()),
            writer,
            file: Arc::new(file),
            running_per_owner: 0,
        })
    }

    /// The same store with a limit on running runs of one owner; 0: no limit.
    pub fn with_running_per_owner(self, running_per_owner: u32) -> Self {
        Self { running_per_owner, ..self }
    }

    /// Waits for a connection that reads.
    async fn reader(&self) -> Result<Reader<'_>, StoreError> {
        Ok(match &self.readers {
            Some(pool) => Reader::OfPool(pool.acquire().await.map_err(during("get a connection"))?),
            None => Reader::Writer(self.writer.lock().await),
        })
    }

    /// Cancels a queued run, or requests the worker of a running one to stop.
    pub async fn cancel(&self, id: RunId) -> Result<CancelOutcome, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("cancel a run"))?;
        let row: Option<(String, bool)> =
            sqlx::query_as("select state, cancel_requested from runs where id = ?")
                .bind(key(&id))
                .fetch_optional(&mut *tx)
                .await
                .map_err(during("look up a run"))?;
        let Some((state, requested)) = row else { return Ok(CancelOutcome::NotFound) };
        let answer = match (word::<RunState>(id, "a state", &state)?, requested) {
            (RunState::Queued, _) => CancelOutcome::Cancelled,
            (RunState::Running, false) => CancelOutcome::Requested,
            (RunState::Running, true) => CancelOutcome::AlreadyRequested,
            (ended, _) => CancelOutcome::AlreadyEnded(ended),
        };
        let change = match answer {
            CancelOutcome::Cancelled => format!(
                "update runs set {CANCELLED_IN_QUEUE}, ended_at = max(?2, queued_at),
                 message = 'cancelled while queued' where id = ?1"
            ),
            CancelOutcome::Requested => {
                "update runs set cancel_requested = 1 where id = ?1 and ?2 > 0".to_owned()
            }
            _ => return Ok(answer),
        };
        sqlx::query(sqlx::AssertSqlSafe(change))
            .bind(key(&id))
            .bind(now_ms())
            .execute(&mut *tx)
            .await
            .map_err(during("cancel a run"))?;
        tx.commit().await.map_err(during("cancel a run"))?;
        Ok(answer)
    }
}

/// Opens the connection that writes. SQLite does not wait for its busy timeout if another process
/// changes the journal of a new database to WAL at the same time: this does.
async fn connect(options: &SqliteConnectOptions) -> Result<SqliteConnection, sqlx::Error> {
    const PAUSE: Duration = Duration::from_millis(20);
    let end = tokio::time::Instant::now() + BUSY_TIMEOUT;
    loop {
        match SqliteConnection::connect_with(options).await {
            Err(error) if is_busy(&error) && tokio::time::Instant::now() < end => {}
            opened => return opened,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// True for SQLITE_BUSY, which the low byte of an extended code states, too.
fn is_busy(error: &sqlx::Error) -> bool {
    const SQLITE_BUSY: i32 = 5;
    let code = error.as_database_error().and_then(|error| error.code()?.parse::<i32>().ok());
    code.is_some_and(|code| code & 0xff == SQLITE_BUSY)
}

fn connect_options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(BUSY_TIMEOUT)
        .disable_statement_logging()
}

/// A run's id as a column.
fn key(id: &RunId) -> &[u8] {
    id.0.as_bytes()
}

/// An id from a column.
fn id_of(bytes: &[u8]) -> Result<RunId, StoreError> {
    let id = Uuid::from_slice(bytes)
        .map_err(|_| StoreError::Corrupt { id: RunId(Uuid::nil()), what: "an id" })?;
    Ok(RunId(id))
}

/// A word from a column.
fn word<T: FromStr>(id: RunId, what: &'static str, text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|_| StoreError::Corrupt { id, what })
}

/// A value from a JSON column.
fn json<T: serde::de::DeserializeOwned>(
    id: RunId,
    what: &'static str,
    text: &str,
) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|_| StoreError::Corrupt { id, what })
}

/// A column of a row. The query selects it, so its absence is a failure of the query.
fn column<'r, T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>>(
    row: &'r SqliteRow,
    name: &'static str,
) -> Result<T, StoreError> {
    use sqlx::Row;
    row.try_get(name).map_err(during("read a row"))
}

fn now_ms() -> i64 {
    runtime::now().as_millisecond()
}

/// A monotonic clock in milliseconds: the time of day when the process started, plus the time
/// elapsed since.
///
/// Leases use it: all are of one process, for a new service recovers every running run.
fn steady_ms() -> i64 {
    runtime::steady().as_millisecond()
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 2)
}

/// Milliseconds since 1970 as RFC 3339, UTC.
fn rfc3339(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |t| format!("{t:.3}"))
}

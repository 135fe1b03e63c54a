//! Sweeps: grids of points, each a run. They are stored whole, before any of their runs is queued.
//!
//! A point gets its run in the transaction that queues the run, so that a kill at any moment leaves
//! each point with one run or none.

mod points;
mod progress;
mod queueing;
#[cfg(test)]
mod tests;

use llmprof_core::domain::{
    ids::{RunId, SweepId},
    subject::RunSpec,
    sweep::{PointAxes, SweepCounts, SweepState},
};
use sqlx::{Connection, SqliteConnection, sqlite::SqliteRow};

use super::{
    Owner, Store, StoreError, Submitted, WRITE, column, during, id_of, json, now_ms, rfc3339,
    submit, word,
};
pub use points::StoredSweepPoint;
pub use progress::EndedPoint;
pub use queueing::ReuseRule;

/// Ended sweeps that are kept.
const KEPT: u32 = 1000;
/// Sweeps that have not ended.
const ACTIVE: &str = "state in ('running', 'paused')";
/// Milliseconds of a minute.
const MINUTE: i64 = 60_000;

/// A sweep to be started.
#[derive(Debug, Clone)]
pub struct NewSweep {
    pub name: Option<String>,
    pub owner: Option<Owner>,
    /// The request as JSON, with every default filled in.
    pub request: String,
    pub max_queued: u32,
    pub max_minutes: u32,
    pub reuse: bool,
    /// Active sweeps that the owner may have; 0: no limit.
    pub per_owner: u32,
    pub points: Vec<NewSweepPoint>,
}

/// A point of a sweep to be started.
#[derive(Debug, Clone)]
pub struct NewSweepPoint {
    pub axes: PointAxes,
    /// Its run, or the reason for which it was refused.
    pub spec: Result<RunSpec, String>,
}

/// Result of a request to start a sweep.
#[derive(Debug, Clone)]
pub enum StartedSweep {
    New(Box<StoredSweep>),
    /// The owner has this many.
    TooMany(u64),
    /// A quota of the owner is used up.
    Refused(Submitted),
}

/// A sweep in the database.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredSweep {
    pub id: SweepId,
    pub name: Option<String>,
    /// Name of the token that started it; `None` if tokens are not required.
    pub owner: Option<String>,
    pub state: SweepState,
    pub request: serde_json::Value,
    pub max_queued: u32,
    pub max_minutes: u32,
    pub reuse: bool,
    /// RFC 3339, UTC, as all times.
    pub created_at: String,
    pub deadline_at: String,
    pub ended_at: Option<String>,
    pub message: Option<String>,
    pub counts: SweepCounts,
}

/// Result of a request to change the state of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SweepChange {
    Changed,
    /// It was in this state already.
    Unchanged,
    /// It has ended.
    Ended(SweepState),
    NotFound,
}

/// Result of a request to delete a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SweepDeletion {
    Deleted,
    /// It has not ended, or a run of it is still being stopped.
    Active,
    NotFound,
}

impl Store {
    /// Stores a sweep with all of its points, unless its owner has too many or no quota is left.
    pub async fn start_sweep(&self, new: &NewSweep) -> Result<StartedSweep, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("start a sweep"))?;
        let owner = new.owner.as_ref().map(|it| it.name.as_str());
        let query = format!("select count(*) from sweeps where {ACTIVE} and owner is ?");
        let active: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(query))
            .bind(owner)
            .fetch_one(&mut *tx)
            .await
            .map_err(during("count sweeps"))?;
        if new.per_owner > 0 && active >= i64::from(new.per_owner) {
            return Ok(StartedSweep::TooMany(active.unsigned_abs()));
        }
        if let Some(refused) = submit::used_up(&mut tx, new.owner.as_ref()).await? {
            return Ok(StartedSweep::Refused(refused));
        }
        let id = SweepId::now();
        insert(&mut tx, id, new, owner).await?;
        for (position, point) in new.points.iter().enumerate() {
            points::insert(&mut tx, id, position, point).await?;
        }
        forget_oldest(&mut tx).await?;
        let stored = sweep(&mut tx, id).await?;
        tx.commit().await.map_err(during("start a sweep"))?;
        let stored = stored.ok_or(StoreError::Corrupt { id: RunId(id.0), what: "no row" })?;
        Ok(StartedSweep::New(Box::new(stored)))
    }

    pub async fn sweep(&self, id: SweepId) -> Result<Option<StoredSweep>, StoreError> {
        sweep(&mut *self.reader().await?, id).await
    }

    /// The newest sweeps, active ones first.
    pub async fn sweeps(&self, limit: u32) -> Result<Vec<StoredSweep>, StoreError> {
        let query = format!("{SELECT} order by {ACTIVE} desc, id desc limit ?");
        let rows = sqlx::query(sqlx::AssertSqlSafe(query))
            .bind(limit)
            .fetch_all(&mut *self.reader().await?)
            .await
            .map_err(during("list sweeps"))?;
        rows.iter().map(from_row).collect()
    }

    /// Deletes an ended sweep. Its runs stay.
    pub async fn delete_sweep(&self, id: SweepId) -> Result<SweepDeletion, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("delete a sweep"))?;
        let Some(stored) = sweep(&mut tx, id).await? else { return Ok(SweepDeletion::NotFound) };
        if !stored.state.is_final() || stored.counts.queued + stored.counts.running > 0 {
            return Ok(SweepDeletion::Active);
        }
        for act in
            ["update runs set sweep = null where sweep = ?", "delete from sweeps where id = ?"]
        {
            sqlx::query(act)
                .bind(key(id))
                .execute(&mut *tx)
                .await
                .map_err(during("delete a sweep"))?;
        }
        tx.commit().await.map_err(during("delete a sweep"))?;
        Ok(SweepDeletion::Deleted)
    }
}

fn key(id: SweepId) -> Vec<u8> {
    id.0.as_bytes().to_vec()
}

async fn insert(
    tx: &mut SqliteConnection,
    id: SweepId,
    new: &NewSweep,
    owner: Option<&str>,
) -> Result<(), StoreError> {
    sqlx::query(
        "insert into sweeps (id, owner, name, state, request, max_queued, reuse, max_minutes,
         created_at, deadline_at) values (?1, ?2, ?3, 'running', ?4, ?5, ?6, ?7, ?8, ?8 + ?9)",
    )
    .bind(key(id))
    .bind(owner)
    .bind(&new.name)
    .bind(&new.request)
    .bind(new.max_queued)
    .bind(new.reuse)
    .bind(new.max_minutes)
    .bind(now_ms())
    .bind(i64::from(new.max_minutes) * MINUTE)
    .execute(tx)
    .await
    .map_err(during("start a sweep"))?;
    Ok(())
}

async fn forget_oldest(tx: &mut SqliteConnection) -> Result<(), StoreError> {
    let query = format!(
        "delete from sweeps where not {ACTIVE} and id not in
         (select id from sweeps where not {ACTIVE} order by id desc limit {KEPT})"
    );
    let forgotten = sqlx::query(sqlx::AssertSqlSafe(query)).execute(tx).await;
    forgotten.map(drop).map_err(during("forget sweeps"))
}

const SELECT: &str = "select sweeps.*, counts.* from sweeps left join (
        select sweep_points.sweep as of, count(*) as points,
            coalesce(sum(run_id is null and gap is null), 0) as waiting,
            coalesce(sum(gap is null and figures is null and runs.state = 'queued'), 0) as queued,
            coalesce(sum(figures is not null), 0) as measured,
            coalesce(sum(figures is not null and reused), 0) as reused,
            coalesce(sum(gap is not null), 0) as gaps
        from sweep_points left join runs on runs.id = run_id
        group by sweep_points.sweep
    ) as counts on of = sweeps.id";

async fn sweep(
    connection: &mut SqliteConnection,
    id: SweepId,
) -> Result<Option<StoredSweep>, StoreError> {
    let query = SELECT.replace("group by", "where sweep_points.sweep = ?1 group by")
        + " where sweeps.id = ?1";
    let row = sqlx::query(sqlx::AssertSqlSafe(query))
        .bind(key(id))
        .fetch_optional(connection)
        .await
        .map_err(during("look up a sweep"))?;
    row.map(|row| from_row(&row)).transpose()
}

fn from_row(row: &SqliteRow) -> Result<StoredSweep, StoreError> {
    let id = id_of(column(row, "id")?)?;
    let count = |name| Ok::<_, StoreError>(column::<Option<i64>>(row, name)?.unwrap_or(0));
    let count = |name| count(name).map(i64::unsigned_abs);
    let mut counts = SweepCounts {
        points: count("points")?,
        waiting: count("waiting")?,
        queued: count("queued")?,
        running: 0,
        measured: count("measured")?,
        reused: count("reused")?,
        gaps: count("gaps")?,
    };
    // Also those whose run has ended and whose figures are being read.
    let others = counts.waiting + counts.queued + counts.measured + counts.gaps;
    counts.running = counts.points.saturating_sub(others);
    Ok(StoredSweep {
        id: SweepId(id.0),
        name: column(row, "name")?,
        owner: column(row, "owner")?,
        state: word(id, "a state", column(row, "state")?)?,
        request: json(id, "a request", column(row, "request")?)?,
        max_queued: column(row, "max_queued")?,
        max_minutes: column(row, "max_minutes")?,
        reuse: column(row, "reuse")?,
        created_at: rfc3339(column(row, "created_at")?),
        deadline_at: rfc3339(column(row, "deadline_at")?),
        ended_at: column::<Option<i64>>(row, "ended_at")?.map(rfc3339),
        message: column(row, "message")?,
        counts,
    })
}

//! Points of sweeps: rows, and their states by the states of their runs.

use llmprof_core::domain::{
    ids::{RunId, SweepId},
    state::RunState,
    sweep::{PointAxes, SweepFigures, SweepPointState},
};
use sqlx::{SqliteConnection, sqlite::SqliteRow};

use super::{NewSweepPoint, Store, StoreError, column, during, id_of, json, key, word};

/// A point of a sweep in the database.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredSweepPoint {
    pub position: u32,
    pub axes: PointAxes,
    pub state: SweepPointState,
    pub run: Option<RunId>,
    /// True if its run was made before.
    pub is_reused: bool,
    /// Reason of a gap.
    pub gap: Option<String>,
    pub figures: Option<SweepFigures>,
}

impl Store {
    /// The points of a sweep in order.
    pub async fn sweep_points(&self, id: SweepId) -> Result<Vec<StoredSweepPoint>, StoreError> {
        let rows = sqlx::query(
            "select position, axes, run_id, reused, gap, figures, runs.state as run_state
             from sweep_points left join runs on runs.id = run_id
             where sweep_points.sweep = ? order by position",
        )
        .bind(key(id))
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("list points of a sweep"))?;
        rows.iter().map(|row| from_row(RunId(id.0), row)).collect()
    }
}

fn from_row(id: RunId, row: &SqliteRow) -> Result<StoredSweepPoint, StoreError> {
    let gap: Option<String> = column(row, "gap")?;
    let figures: Option<&str> = column(row, "figures")?;
    let run: Option<Vec<u8>> = column(row, "run_id")?;
    let run_state: Option<&str> = column(row, "run_state")?;
    let run_state = run_state.map(|it| word::<RunState>(id, "a state", it)).transpose()?;
    let state = match (&gap, figures, &run, run_state) {
        (Some(_), ..) => SweepPointState::Gap,
        (None, Some(_), ..) => SweepPointState::Measured,
        (None, None, None, _) => SweepPointState::Waiting,
        (.., Some(RunState::Queued)) => SweepPointState::Queued,
        _ => SweepPointState::Running,
    };
    Ok(StoredSweepPoint {
        position: column(row, "position")?,
        axes: json(id, "a point", column(row, "axes")?)?,
        state,
        run: run.map(|it| id_of(&it)).transpose()?,
        is_reused: column(row, "reused")?,
        gap,
        figures: figures.map(|it| json(id, "figures", it)).transpose()?,
    })
}

/// Stores a point: one to be measured, or a gap.
pub(super) async fn insert(
    tx: &mut SqliteConnection,
    sweep: SweepId,
    position: usize,
    point: &NewSweepPoint,
) -> Result<(), StoreError> {
    let corrupt = |_| StoreError::Corrupt { id: RunId(sweep.0), what: "a point" };
    let axes = serde_json::to_string(&point.axes).map_err(corrupt)?;
    let spec = point.spec.as_ref().ok().map(serde_json::to_string).transpose().map_err(corrupt)?;
    sqlx::query(
        "insert into sweep_points (sweep, position, axes, spec, gap) values (?, ?, ?, ?, ?)",
    )
    .bind(key(sweep))
    .bind(i64::try_from(position).unwrap_or(i64::MAX))
    .bind(axes)
    .bind(spec)
    .bind(point.spec.as_ref().err())
    .execute(tx)
    .await
    .map_err(during("insert a point of a sweep"))?;
    Ok(())
}

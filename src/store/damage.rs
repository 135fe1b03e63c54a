//! Damaged files of runs, and the runs whose files are due to be compared with their hashes.

use sqlx::{Connection, SqliteConnection};

use super::{Store, StoreError, WRITE, column, during, id_of, key, now_ms, rfc3339};
use crate::domain::{ids::RunId, run_files::DamagedFile};

/// Figures of all scrubs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrubFigures {
    /// Files that are known to be damaged.
    pub damaged_files: i64,
    /// Age of the oldest comparison, milliseconds; 0 without an ended run.
    pub age_ms: i64,
}

impl Store {
    /// The ended run whose files were not compared for the longest time, if that is before
    /// `before_ms` (milliseconds since 1970).
    pub async fn next_scrub(&self, before_ms: i64) -> Result<Option<RunId>, StoreError> {
        let id: Option<Vec<u8>> = sqlx::query_scalar(
            "select id from runs indexed by runs_scrubbed
             where state not in ('queued', 'running')
               and coalesce(scrubbed_at, ended_at, queued_at) < ?
             order by coalesce(scrubbed_at, ended_at, queued_at), id limit 1",
        )
        .bind(before_ms)
        .fetch_optional(&self.readers)
        .await
        .map_err(during("look for a run to scrub"))?;
        id.map(|id| id_of(&id)).transpose()
    }

    /// Records that all files of an ended run were compared, with the faults that were found, by
    /// path. A fault that was known keeps its time. Returns false if the run is gone or queued.
    pub async fn record_scrub(
        &self,
        id: RunId,
        faults: &[(String, String)],
    ) -> Result<bool, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("record a scrub"))?;
        let changed = sqlx::query(
            "update runs set scrubbed_at = ? where id = ? and state not in ('queued', 'running')",
        )
        .bind(now_ms())
        .bind(key(&id))
        .execute(&mut *tx)
        .await
        .map_err(during("record a scrub"))?;
        if changed.rows_affected() == 0 {
            return Ok(false);
        }
        replace_damage(&mut tx, id, faults).await?;
        tx.commit().await.map_err(during("record a scrub"))?;
        Ok(true)
    }

    pub(super) async fn scrub_figures(&self) -> Result<ScrubFigures, StoreError> {
        let damaged_files = sqlx::query_scalar("select count(*) from damage")
            .fetch_one(&self.readers)
            .await
            .map_err(during("count damaged files"))?;
        let oldest: Option<i64> = sqlx::query_scalar(
            "select coalesce(scrubbed_at, ended_at, queued_at) from runs indexed by runs_scrubbed
             where state not in ('queued', 'running')
             order by coalesce(scrubbed_at, ended_at, queued_at), id limit 1",
        )
        .fetch_optional(&self.readers)
        .await
        .map_err(during("look for a run to scrub"))?;
        let age_ms = oldest.map_or(0, |at| (now_ms() - at).max(0));
        Ok(ScrubFigures { damaged_files, age_ms })
    }
}

/// The damaged files of a run, by path.
pub(super) async fn damage(
    connection: &mut SqliteConnection,
    id: RunId,
) -> Result<Vec<DamagedFile>, StoreError> {
    let rows =
        sqlx::query("select path, fault, found_at from damage where run_id = ? order by path")
            .bind(key(&id))
            .fetch_all(connection)
            .await
            .map_err(during("list damaged files"))?;
    rows.iter()
        .map(|row| {
            let (path, fault) = (column(row, "path")?, column(row, "fault")?);
            Ok(DamagedFile { path, fault, found_at: rfc3339(column(row, "found_at")?) })
        })
        .collect()
}

/// Replaces the faults of a run; an empty list forgets them.
pub(super) async fn replace_damage(
    tx: &mut SqliteConnection,
    id: RunId,
    faults: &[(String, String)],
) -> Result<(), StoreError> {
    let paths = serde_json::Value::from_iter(faults.iter().map(|(path, _)| path.as_str()));
    sqlx::query(
        "delete from damage where run_id = ? and path not in (select value from json_each(?))",
    )
    .bind(key(&id))
    .bind(paths.to_string())
    .execute(&mut *tx)
    .await
    .map_err(during("forget damaged files"))?;
    for (path, fault) in faults {
        sqlx::query(
            "insert into damage (run_id, path, fault, found_at) values (?, ?, ?, ?)
             on conflict (run_id, path) do update set fault = excluded.fault",
        )
        .bind(key(&id))
        .bind(path)
        .bind(fault)
        .bind(now_ms())
        .execute(&mut *tx)
        .await
        .map_err(during("record a damaged file"))?;
    }
    Ok(())
}

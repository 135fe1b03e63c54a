//! Baselines: names of runs to compare with, by hand or by rule, with their history.

use llmprof_core::domain::ids::RunId;
use sqlx::sqlite::SqliteRow;

use super::{Store, StoreError, column, during, id_of, key, now_ms, rfc3339};

/// A setting of a baseline. The last one of a name counts.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredBaseline {
    pub name: String,
    /// Set by hand; the run may have been deleted since.
    pub run: Option<RunId>,
    /// Set by rule: the newest succeeded run with this label.
    pub label: Option<String>,
    /// RFC 3339, UTC.
    pub set_at: String,
    pub set_by: Option<String>,
}

impl Store {
    /// Sets a baseline; neither run nor label removes it.
    pub async fn set_baseline(
        &self,
        name: &str,
        (run, label): (Option<RunId>, Option<&str>),
        by: Option<&str>,
    ) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        sqlx::query(
            "insert into baselines (name, run_id, label, set_at, set_by) values (?, ?, ?, ?, ?)",
        )
        .bind(name)
        .bind(run.as_ref().map(key))
        .bind(label)
        .bind(now_ms())
        .bind(by)
        .execute(&mut *writer)
        .await
        .map_err(during("set a baseline"))?;
        Ok(())
    }

    /// Settings of baselines, of one name or of all, newest first.
    pub async fn baselines(
        &self,
        name: Option<&str>,
        limit: u32,
    ) -> Result<Vec<StoredBaseline>, StoreError> {
        let rows = sqlx::query(
            "select name, run_id, label, set_at, set_by from baselines
             where ?1 is null or name = ?1 order by id desc limit ?2",
        )
        .bind(name)
        .bind(limit)
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("list baselines"))?;
        let baseline = |row: &SqliteRow| {
            let run: Option<Vec<u8>> = column(row, "run_id")?;
            Ok(StoredBaseline {
                name: column(row, "name")?,
                run: run.map(|run| id_of(&run)).transpose()?,
                label: column(row, "label")?,
                set_at: rfc3339(column(row, "set_at")?),
                set_by: column(row, "set_by")?,
            })
        };
        rows.iter().map(baseline).collect()
    }

    /// The newest succeeded run of a series that has this label, other than `without`.
    pub async fn newest_labelled(
        &self,
        series: &str,
        label: &str,
        without: &[RunId],
    ) -> Result<Option<RunId>, StoreError> {
        let ids = serde_json::Value::from_iter(without.iter().map(|id| id.0.simple().to_string()));
        let id: Option<Vec<u8>> = sqlx::query_scalar(
            "select run_id from points join runs on runs.id = run_id
             where series = ?1 and state = 'succeeded'
               and run_id in (select run_id from labels where label = ?2)
               and run_id not in (select unhex(value) from json_each(?3))
             order by run_id desc limit 1",
        )
        .bind(series)
        .bind(label)
        .bind(ids.to_string())
        .fetch_optional(&mut *self.reader().await?)
        .await
        .map_err(during("look for a baseline"))?;
        id.map(|id| id_of(&id)).transpose()
    }
}

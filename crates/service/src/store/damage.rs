//! Damaged files of runs and alignments, and those whose files are due to be compared with their
//! hashes.

use llmprof_core::domain::{
    ids::{AlignmentId, RunId},
    run_files::DamagedFile,
};
use sqlx::{Connection, SqliteConnection};

use super::{Store, StoreError, WRITE, alignments, column, during, id_of, key, now_ms, rfc3339};

/// Figures of all scrubs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrubFigures {
    /// Files that are known to be damaged.
    pub damaged_files: i64,
    /// Age of the oldest comparison, milliseconds; 0 if nothing has ended.
    pub age_ms: i64,
}

/// Subject whose sealed files are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScrubSubject {
    Run(RunId),
    Alignment(AlignmentId),
}

impl ScrubSubject {
    fn key(&self) -> &[u8] {
        match self {
            Self::Run(id) => key(id),
            Self::Alignment(id) => alignments::key(id),
        }
    }

    const fn statements(self) -> &'static ScrubStatements {
        match self {
            Self::Run(_) => &OF_RUNS,
            Self::Alignment(_) => &OF_ALIGNMENTS,
        }
    }
}

/// Statements about the damage of one kind of subject.
struct ScrubStatements {
    oldest: &'static str,
    record: &'static str,
    forget: &'static str,
    insert: &'static str,
}

const OF_RUNS: ScrubStatements = ScrubStatements {
    oldest:
        "select id, coalesce(scrubbed_at, ended_at, queued_at) from runs indexed by runs_scrubbed
             where state not in ('queued', 'running')
             order by coalesce(scrubbed_at, ended_at, queued_at), id limit 1",
    record: "update runs set scrubbed_at = ? where id = ? and state not in ('queued', 'running')",
    forget: "delete from damage where run_id = ? and path not in (select value from json_each(?))",
    insert: "insert into damage (run_id, path, fault, found_at) values (?, ?, ?, ?)
             on conflict (run_id, path) do update set fault = excluded.fault",
};

const OF_ALIGNMENTS: ScrubStatements = ScrubStatements {
    oldest: "select id, coalesce(scrubbed_at, ended_at) from alignments
             indexed by alignments_scrubbed where ended_at is not null
             order by coalesce(scrubbed_at, ended_at), id limit 1",
    record: "update alignments set scrubbed_at = ? where id = ? and ended_at is not null",
    forget: "delete from alignment_damage
             where alignment_id = ? and path not in (select value from json_each(?))",
    insert: "insert into alignment_damage (alignment_id, path, fault, found_at) values (?, ?, ?, ?)
             on conflict (alignment_id, path) do update set fault = excluded.fault",
};

impl Store {
    /// The ended run or alignment whose files were not compared for the longest time, if that is
    /// before `before_ms` (milliseconds since 1970).
    pub async fn next_scrub(&self, before_ms: i64) -> Result<Option<ScrubSubject>, StoreError> {
        let oldest = self.oldest_scrub().await?;
        Ok(oldest.filter(|(_, at)| *at < before_ms).map(|(subject, _)| subject))
    }

    /// The subject that was not compared for the longest time, and the time of that.
    async fn oldest_scrub(&self) -> Result<Option<(ScrubSubject, i64)>, StoreError> {
        let run = self.oldest_of(&OF_RUNS).await?;
        let run = run.map(|(id, at)| Ok((ScrubSubject::Run(id_of(&id)?), at))).transpose()?;
        let alignment = self.oldest_of(&OF_ALIGNMENTS).await?;
        let alignment = alignment
            .map(|(id, at)| Ok((ScrubSubject::Alignment(AlignmentId(id_of(&id)?.0)), at)))
            .transpose()?;
        Ok(run.into_iter().chain(alignment).min_by_key(|(_, at)| *at))
    }

    async fn oldest_of(
        &self,
        statements: &'static ScrubStatements,
    ) -> Result<Option<(Vec<u8>, i64)>, StoreError> {
        sqlx::query_as(statements.oldest)
            .fetch_optional(&mut *self.reader().await?)
            .await
            .map_err(during("look for files to scrub"))
    }

    /// Records that all files of an ended subject were compared, with the faults that were found,
    /// by path. A fault that was known keeps its time. Returns false if the subject is gone or
    /// queued.
    pub async fn record_scrub(
        &self,
        subject: ScrubSubject,
        faults: &[(String, String)],
    ) -> Result<bool, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("record a scrub"))?;
        let changed = sqlx::query(subject.statements().record)
            .bind(now_ms())
            .bind(subject.key())
            .execute(&mut *tx)
            .await
            .map_err(during("record a scrub"))?;
        if changed.rows_affected() == 0 {
            return Ok(false);
        }
        replace_damage(&mut tx, subject, faults).await?;
        tx.commit().await.map_err(during("record a scrub"))?;
        Ok(true)
    }

    pub(super) async fn scrub_figures(&self) -> Result<ScrubFigures, StoreError> {
        let counted = "select (select count(*) from damage)
                            + (select count(*) from alignment_damage)";
        let damaged_files = sqlx::query_scalar(counted)
            .fetch_one(&mut *self.reader().await?)
            .await
            .map_err(during("count damaged files"))?;
        let oldest = self.oldest_scrub().await?;
        let age_ms = oldest.map_or(0, |(_, at)| (now_ms() - at).max(0));
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

/// Replaces the faults of a subject; an empty list forgets them.
pub(super) async fn replace_damage(
    tx: &mut SqliteConnection,
    subject: ScrubSubject,
    faults: &[(String, String)],
) -> Result<(), StoreError> {
    let paths = serde_json::Value::from_iter(faults.iter().map(|(path, _)| path.as_str()));
    sqlx::query(subject.statements().forget)
        .bind(subject.key())
        .bind(paths.to_string())
        .execute(&mut *tx)
        .await
        .map_err(during("forget damaged files"))?;
    for (path, fault) in faults {
        sqlx::query(subject.statements().insert)
            .bind(subject.key())
            .bind(path)
            .bind(fault)
            .bind(now_ms())
            .execute(&mut *tx)
            .await
            .map_err(during("record a damaged file"))?;
    }
    Ok(())
}

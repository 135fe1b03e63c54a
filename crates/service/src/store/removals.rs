//! Deletion of runs and alignments: the row first, in one commit with a record of the folder that
//! remains to be removed.

use llmprof_core::domain::ids::{AlignmentId, RunId};
use sqlx::Connection;

use super::{DeleteOutcome, Store, StoreError, WRITE, column, during, id_of, key};

/// A folder whose row was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    Run(RunId),
    Alignment(AlignmentId),
}

impl Removal {
    fn kind(&self) -> &'static str {
        match self {
            Self::Run(_) => "run",
            Self::Alignment(_) => "alignment",
        }
    }

    fn key(&self) -> &[u8] {
        match self {
            Self::Run(id) => key(id),
            Self::Alignment(id) => id.0.as_bytes(),
        }
    }
}

impl Store {
    /// Deletes an ended run. The caller then removes its folder and calls [`Store::removed`].
    pub async fn delete(&self, id: RunId) -> Result<DeleteOutcome, StoreError> {
        let deleted = "delete from runs where id = ? and state not in ('queued', 'running')";
        let known = "select 1 from runs where id = ?";
        self.delete_row(Removal::Run(id), deleted, known).await
    }

    /// As [`Store::delete`], unless the run is pinned; [`DeleteOutcome::Active`] then.
    pub async fn delete_unpinned(&self, id: RunId) -> Result<DeleteOutcome, StoreError> {
        let deleted = "delete from runs where id = ? and not pinned
                       and state not in ('queued', 'running')";
        let known = "select 1 from runs where id = ?";
        self.delete_row(Removal::Run(id), deleted, known).await
    }

    /// Deletes an alignment that is queued or has ended. The caller then removes its folder and
    /// calls [`Store::removed`].
    pub async fn delete_alignment(&self, id: AlignmentId) -> Result<DeleteOutcome, StoreError> {
        let deleted = "delete from alignments where id = ? and state <> 'running'";
        let known = "select 1 from alignments where id = ?";
        self.delete_row(Removal::Alignment(id), deleted, known).await
    }

    async fn delete_row(
        &self,
        row: Removal,
        delete: &'static str,
        known: &'static str,
    ) -> Result<DeleteOutcome, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("delete"))?;
        let deleted = sqlx::query(delete).bind(row.key()).execute(&mut *tx).await;
        if deleted.map_err(during("delete a row"))?.rows_affected() == 0 {
            let found = sqlx::query(known).bind(row.key()).fetch_optional(&mut *tx).await;
            let found = found.map_err(during("look up a row"))?;
            return Ok(found.map_or(DeleteOutcome::NotFound, |_| DeleteOutcome::Active));
        }
        sqlx::query("insert or ignore into removals (id, kind) values (?, ?)")
            .bind(row.key())
            .bind(row.kind())
            .execute(&mut *tx)
            .await
            .map_err(during("record a removal"))?;
        tx.commit().await.map_err(during("delete"))?;
        Ok(DeleteOutcome::Deleted)
    }

    /// Records that the folder is gone.
    pub async fn removed(&self, removal: Removal) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let done = sqlx::query("delete from removals where id = ? and kind = ?")
            .bind(removal.key())
            .bind(removal.kind())
            .execute(&mut *writer)
            .await;
        done.map_err(during("record a removed folder")).map(|_| ())
    }

    /// Folders that are still to be removed.
    pub async fn removals(&self) -> Result<Vec<Removal>, StoreError> {
        let rows = sqlx::query("select id, kind from removals")
            .fetch_all(&mut *self.reader().await?)
            .await
            .map_err(during("list removals"))?;
        rows.iter()
            .map(|row| {
                let id = id_of(column(row, "id")?)?;
                let kind: &str = column(row, "kind")?;
                Ok(match kind {
                    "run" => Removal::Run(id),
                    _ => Removal::Alignment(AlignmentId(id.0)),
                })
            })
            .collect()
    }
}

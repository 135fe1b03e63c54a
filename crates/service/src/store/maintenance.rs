//! Maintenance of the database: integrity checks, copies while it is in use, and recovery of lost
//! rows.

use std::path::Path;

use llmprof_core::domain::{
    alignment::{AlignmentSpec, AlignmentState},
    finding::Finding,
    ids::{AlignmentId, RunId},
    mode::Mode,
    run_files::ArtifactRecord,
    state::RunState,
    subject::RunSpec,
};
use sqlx::{Connection, SqliteConnection};

use super::{
    AlignmentOutcome, Store, StoreError, WRITE, alignments, column,
    damage::{ScrubSubject, replace_damage},
    during, id_of, key,
    run_parts::replace_artifacts,
    submit::insert_labels,
    word,
};
use crate::runtime::work::SlicedWork;

/// A run whose row was lost, as read from its folder.
#[derive(Debug, Clone)]
pub struct LostRun {
    pub id: RunId,
    pub spec: RunSpec,
    pub state: RunState,
    /// Milliseconds since 1970.
    pub queued_ms: i64,
    pub ended_ms: i64,
    pub message: String,
    pub artifacts: Vec<ArtifactRecord>,
}

/// An alignment whose row was lost, as read from its folder.
#[derive(Debug, Clone)]
pub struct LostAlignment {
    pub id: AlignmentId,
    pub spec: AlignmentSpec,
    /// Milliseconds since 1970.
    pub queued_ms: i64,
    pub ended_ms: i64,
    pub outcome: AlignmentOutcome,
}

/// Instructions of a statement between two checks whether to stop it: some milliseconds.
const INSTRUCTIONS: i32 = 10_000;

async fn find_faults(reader: &mut SqliteConnection) -> Result<Vec<String>, StoreError> {
    let lines: Vec<String> =
        sqlx::query_scalar("select integrity_check from pragma_integrity_check")
            .fetch_all(&mut *reader)
            .await
            .map_err(during("check the database"))?;
    let mut faults: Vec<String> = lines.into_iter().filter(|line| line != "ok").collect();
    let strays: Vec<String> =
        sqlx::query_scalar("select distinct \"table\" from pragma_foreign_key_check")
            .fetch_all(&mut *reader)
            .await
            .map_err(during("check references"))?;
    faults.extend(strays.into_iter().map(|table| format!("rows of {table} refer to missing rows")));
    Ok(faults)
}

impl Store {
    /// Faults of the database, a line each; empty if there are none. Reads all of it; an error soon
    /// after `work` is stopped.
    pub async fn faults(&self, work: &SlicedWork) -> Result<Vec<String>, StoreError> {
        let (mut reader, work) = (self.reader().await?, work.clone());
        let handle = reader.lock_handle().await;
        handle
            .map_err(during("check the database"))?
            .set_progress_handler(INSTRUCTIONS, move || work.checkpoint().is_ok());
        let found = find_faults(&mut reader).await;
        if let Ok(mut handle) = reader.lock_handle().await {
            handle.remove_progress_handler();
        }
        found
    }

    /// Writes a copy of the database to `path`, which must not exist, while it is in use.
    pub async fn copy_to(&self, path: &Path) -> Result<(), StoreError> {
        sqlx::query("vacuum into ?")
            .bind(path.to_string_lossy().into_owned())
            .execute(&mut *self.reader().await?)
            .await
            .map_err(during("copy the database"))?;
        Ok(())
    }

    /// All runs with their states, in order of submission.
    pub async fn states(&self) -> Result<Vec<(RunId, RunState)>, StoreError> {
        let rows = sqlx::query("select id, state from runs order by id")
            .fetch_all(&mut *self.reader().await?)
            .await;
        rows.map_err(during("list all runs"))?
            .iter()
            .map(|row| {
                let id = id_of(column(row, "id")?)?;
                Ok((id, word(id, "a state", column(row, "state")?)?))
            })
            .collect()
    }

    /// All alignments that have ended.
    pub async fn ended_alignments(&self) -> Result<Vec<AlignmentId>, StoreError> {
        let ids: Vec<Vec<u8>> =
            sqlx::query_scalar("select id from alignments where ended_at is not null order by id")
                .fetch_all(&mut *self.reader().await?)
                .await
                .map_err(during("list alignments"))?;
        ids.iter().map(|id| id_of(id).map(|RunId(id)| AlignmentId(id))).collect()
    }

    /// Replaces the artifacts of an ended run by the ones in its manifest.
    pub async fn set_artifacts(
        &self,
        id: RunId,
        artifacts: &[ArtifactRecord],
    ) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("replace artifacts"))?;
        replace_artifacts(&mut tx, id, artifacts).await?;
        tx.commit().await.map_err(during("replace artifacts"))
    }

    /// Records the artifacts of a run that failed or was cancelled, and a finding of its seal.
    /// Changes nothing if the run was requeued or removed meanwhile.
    pub async fn set_evidence(
        &self,
        id: RunId,
        artifacts: &[ArtifactRecord],
        finding: Option<&Finding>,
    ) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("record evidence"))?;
        let findings: Option<String> = sqlx::query_scalar(
            "select findings from runs where id = ? and state in ('failed', 'cancelled')",
        )
        .bind(key(&id))
        .fetch_optional(&mut *tx)
        .await
        .map_err(during("look up a run"))?;
        let Some(findings) = findings else { return Ok(()) };
        if let Some(finding) = finding {
            let mut findings: Vec<Finding> = super::json(id, "findings", &findings)?;
            finding.clone().add_to(&mut findings);
            let findings = serde_json::to_string(&findings)
                .map_err(|_| StoreError::Corrupt { id, what: "findings" })?;
            sqlx::query("update runs set findings = ?2 where id = ?1")
                .bind(key(&id))
                .bind(findings)
                .execute(&mut *tx)
                .await
                .map_err(during("record evidence"))?;
        }
        replace_artifacts(&mut tx, id, artifacts).await?;
        tx.commit().await.map_err(during("record evidence"))
    }

    /// Requeues an ended run whose files are lost, as if it had never started. Returns false if it
    /// is pinned or was cancelled.
    pub async fn requeue_ended(&self, id: RunId) -> Result<bool, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("requeue a run"))?;
        let changed = sqlx::query(
            "update runs set state = 'queued', attempts = 0, started_at = null, ended_at = null,
             failed_step = null, message = null, findings = '[]', packed_at = null,
             scrubbed_at = null,
             scheduled = null, devices = null
             where id = ? and not pinned and state in ('succeeded', 'partial', 'failed')",
        )
        .bind(key(&id))
        .execute(&mut *tx)
        .await
        .map_err(during("requeue a run"))?;
        if changed.rows_affected() == 0 {
            return Ok(false);
        }
        sqlx::query("delete from steps where run_id = ?")
            .bind(key(&id))
            .execute(&mut *tx)
            .await
            .map_err(during("clear steps"))?;
        replace_artifacts(&mut tx, id, &[]).await?;
        tx.commit().await.map_err(during("requeue a run"))?;
        Ok(true)
    }

    /// Requeues an ended alignment whose files are lost, if its runs still exist.
    pub async fn requeue_ended_alignment(&self, id: AlignmentId) -> Result<bool, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("requeue an alignment"))?;
        let changed = sqlx::query(
            "update alignments set state = 'queued', attempts = 0, started_at = null,
             ended_at = null, verdict = null, checks = '[]', message = null,
             scrubbed_at = null
             where id = ? and ended_at is not null
               and (select count(*) from runs where id in (mock, e2e)) = 1 + (mock <> e2e)",
        )
        .bind(alignments::key(&id))
        .execute(&mut *tx)
        .await
        .map_err(during("requeue an alignment"))?;
        if changed.rows_affected() == 0 {
            return Ok(false);
        }
        sqlx::query("delete from alignment_artifacts where alignment_id = ?")
            .bind(alignments::key(&id))
            .execute(&mut *tx)
            .await
            .map_err(during("clear artifacts"))?;
        replace_damage(&mut tx, ScrubSubject::Alignment(id), &[]).await?;
        tx.commit().await.map_err(during("requeue an alignment"))?;
        Ok(true)
    }

    /// Inserts a run that was read from its folder.
    pub async fn insert_lost(&self, run: &LostRun) -> Result<(), StoreError> {
        let spec = serde_json::to_string(&run.spec)
            .map_err(|_| StoreError::Corrupt { id: run.id, what: "a spec" })?;
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("insert a lost run"))?;
        sqlx::query(
            "insert into runs (id, kind, name, mode, device, priority, spec, state, attempts,
             queued_at, ended_at, message, part, gpus, rank)
             values (?1, ?10, ?2, ?11, ?3, ?4, ?5, ?6, 1, ?7, ?8, ?9, ?12, ?13,
                     ?7 - ?4 * 600000)",
        )
        .bind(key(&run.id))
        .bind(run.spec.name())
        .bind(run.spec.device())
        .bind(run.spec.common.priority)
        .bind(spec)
        .bind(run.state.as_str())
        .bind(run.queued_ms)
        .bind(run.ended_ms)
        .bind(&run.message)
        .bind(run.spec.kind().as_str())
        .bind(run.spec.mode().map_or("", Mode::as_str))
        .bind(run.spec.part())
        .bind(run.spec.gpus())
        .execute(&mut *tx)
        .await
        .map_err(during("insert a lost run"))?;
        insert_labels(&mut tx, run.id, &run.spec.common.labels).await?;
        replace_artifacts(&mut tx, run.id, &run.artifacts).await?;
        tx.commit().await.map_err(during("insert a lost run"))
    }

    /// Replaces the artifacts of an ended alignment by the ones in its manifest.
    pub async fn set_alignment_artifacts(
        &self,
        id: AlignmentId,
        artifacts: &[ArtifactRecord],
    ) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("replace artifacts"))?;
        let cleared = sqlx::query("delete from alignment_artifacts where alignment_id = ?")
            .bind(alignments::key(&id));
        cleared.execute(&mut *tx).await.map_err(during("clear artifacts"))?;
        alignments::insert_artifacts(&mut tx, id, artifacts).await?;
        tx.commit().await.map_err(during("replace artifacts"))
    }

    /// Inserts an alignment that was read from its folder.
    pub async fn insert_lost_alignment(&self, it: &LostAlignment) -> Result<(), StoreError> {
        let corrupt = |what| move |_| StoreError::Corrupt { id: RunId(it.id.0), what };
        let (state, verdict, checks, message) = match &it.outcome.found {
            Ok((verdict, checks)) => {
                (AlignmentState::Succeeded, Some(verdict.as_str()), checks.as_slice(), None)
            }
            Err(message) => (AlignmentState::Failed, None, &[][..], Some(message)),
        };
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("insert a lost alignment"))?;
        sqlx::query(
            "insert into alignments (id, mock, e2e, spec, state, attempts, queued_at, ended_at,
             verdict, checks, message)
             values (?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?)",
        )
        .bind(alignments::key(&it.id))
        .bind(key(&it.spec.mock))
        .bind(key(&it.spec.e2e))
        .bind(serde_json::to_string(&it.spec).map_err(corrupt("a spec"))?)
        .bind(state.as_str())
        .bind(it.queued_ms)
        .bind(it.ended_ms)
        .bind(verdict)
        .bind(serde_json::to_string(checks).map_err(corrupt("checks"))?)
        .bind(message)
        .execute(&mut *tx)
        .await
        .map_err(during("insert a lost alignment"))?;
        alignments::insert_artifacts(&mut tx, it.id, &it.outcome.artifacts).await?;
        tx.commit().await.map_err(during("insert a lost alignment"))
    }
}

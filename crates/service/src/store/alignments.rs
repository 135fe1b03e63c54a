//! Alignments: queued durably, claimed one at a time by a task of this service, ended in a commit.
//!
//! Only one service uses a database: an alignment that is running at its start was interrupted.

use llmprof_core::domain::{
    alignment::{AlignmentSpec, AlignmentState, CheckSummary, Verdict},
    ids::{AlignmentId, RunId},
    run_files::ArtifactRecord,
    state::Step,
};
use serde::{Deserialize, Serialize};
use sqlx::{Connection, QueryBuilder, SqliteConnection, sqlite::SqliteRow};

use super::{
    IdempotencyKey, Owner, Store, StoreError, WRITE, claim::MAX_ATTEMPTS, column, during, id_of,
    json, now_ms, rfc3339, submit::over, word,
};
use crate::runtime;

/// An alignment in the database.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredAlignment {
    pub id: AlignmentId,
    /// Name of the token that submitted it; `None` if tokens are not required.
    pub owner: Option<String>,
    pub spec: AlignmentSpec,
    pub state: AlignmentState,
    pub attempts: u32,
    /// RFC 3339, UTC, as the next two.
    pub queued_at: String,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    pub verdict: Option<Verdict>,
    pub checks: Vec<CheckSummary>,
    /// Reason of a failure.
    pub message: Option<String>,
}

/// Result of a submission.
#[derive(Debug, Clone)]
pub enum SubmittedAlignment {
    New(Box<StoredAlignment>),
    /// The key was used before, with the same body.
    Same(Box<StoredAlignment>),
    /// The key was used before, with another body.
    KeyReused,
    /// The owner has this many queued alignments.
    TooManyQueued(u64),
    /// The owner's runs take this many bytes.
    DiskFull(u64),
}

/// Filter of a list of alignments; all given parts must match.
#[derive(Debug, Clone, Copy, Default)]
pub struct AlignmentFilter {
    pub state: Option<AlignmentState>,
    /// A run on either side.
    pub run: Option<RunId>,
}

/// Outcome of an alignment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AlignmentOutcome {
    /// Verdict and checks, or the reason of the failure.
    pub found: Result<(Verdict, Vec<CheckSummary>), String>,
    pub artifacts: Vec<ArtifactRecord>,
}

impl Store {
    /// Queues an alignment. When this returns, it is on disk.
    pub async fn submit_alignment(
        &self,
        spec: AlignmentSpec,
        owner: Option<Owner>,
        idempotency: Option<IdempotencyKey>,
    ) -> Result<SubmittedAlignment, StoreError> {
        let id = AlignmentId::now();
        // The time that a check reads from the id of an alignment that the database lost. Ids have
        // the time of the host, and a simulation has its own.
        let given = id.given_ms().filter(|_| !runtime::is_simulated());
        let now = given.unwrap_or_else(now_ms);
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("start a submission"))?;
        if let Some(IdempotencyKey { key, body_sha256 }) = &idempotency {
            let known =
                "select * from alignments where coalesce(owner, '') = ? and idempotency_key = ?";
            let owner = owner.as_ref().map_or("", |owner| owner.name.as_str());
            let row = sqlx::query(known).bind(owner).bind(key).fetch_optional(&mut *tx).await;
            if let Some(row) = row.map_err(during("look up an idempotency key"))? {
                let sha: Vec<u8> = column(&row, "body_sha256")?;
                let same = sha == body_sha256;
                return Ok(if same {
                    SubmittedAlignment::Same(Box::new(from_row(&row)?))
                } else {
                    SubmittedAlignment::KeyReused
                });
            }
        }
        if let Some(Owner { name, quota }) = &owner {
            let waiting = "select count(*) from alignments where owner = ? and state in ('queued',
                           'running')";
            if let Some(waiting) = over(&mut tx, name, quota.queued_runs, waiting).await? {
                return Ok(SubmittedAlignment::TooManyQueued(waiting));
            }
            if let Some(bytes) = over(&mut tx, name, quota.disk_bytes, super::submit::BYTES).await?
            {
                return Ok(SubmittedAlignment::DiskFull(bytes));
            }
        }
        let stored = StoredAlignment {
            id,
            owner: owner.map(|owner| owner.name),
            spec,
            state: AlignmentState::Queued,
            attempts: 0,
            queued_at: rfc3339(now),
            started_at: None,
            ended_at: None,
            verdict: None,
            checks: Vec::new(),
            message: None,
        };
        let (name, sha) = idempotency.map(|it| (it.key, it.body_sha256.to_vec())).unzip();
        let insert = "insert into alignments (id, owner, mock, e2e, spec, state, queued_at,
                      idempotency_key, body_sha256)
             values (?, ?, ?, ?, ?, 'queued', ?, ?, ?)";
        sqlx::query(insert)
            .bind(key(&id))
            .bind(&stored.owner)
            .bind(super::key(&stored.spec.mock))
            .bind(super::key(&stored.spec.e2e))
            .bind(serde_json::to_string(&stored.spec).map_err(|_| corrupt(id, "a spec"))?)
            .bind(now)
            .bind(name)
            .bind(sha)
            .execute(&mut *tx)
            .await
            .map_err(during("insert an alignment"))?;
        tx.commit().await.map_err(during("commit a submission"))?;
        Ok(SubmittedAlignment::New(Box::new(stored)))
    }

    /// One alignment.
    pub async fn alignment(&self, id: AlignmentId) -> Result<Option<StoredAlignment>, StoreError> {
        let row = sqlx::query("select * from alignments where id = ?")
            .bind(key(&id))
            .fetch_optional(&mut *self.reader().await?)
            .await;
        row.map_err(during("look up an alignment"))?.as_ref().map(from_row).transpose()
    }

    /// Alignments that match, newest first, from those submitted before `before`.
    pub async fn alignments(
        &self,
        filter: AlignmentFilter,
        before: Option<AlignmentId>,
        limit: u32,
    ) -> Result<Vec<StoredAlignment>, StoreError> {
        let mut query = QueryBuilder::new("select * from alignments where true");
        if let Some(state) = filter.state {
            query.push(" and state = ").push_bind(state.as_str());
        }
        if let Some(run) = filter.run {
            let run = super::key(&run).to_vec();
            query
                .push(" and (mock = ")
                .push_bind(run.clone())
                .push(" or e2e = ")
                .push_bind(run)
                .push(")");
        }
        if let Some(before) = before {
            query.push(" and id < ").push_bind(key(&before).to_vec());
        }
        query.push(" order by id desc limit ").push_bind(limit);
        let rows = query
            .build()
            .fetch_all(&mut *self.reader().await?)
            .await
            .map_err(during("list alignments"))?;
        rows.iter().map(from_row).collect()
    }

    /// Claims the oldest queued alignment.
    pub async fn claim_alignment(&self) -> Result<Option<StoredAlignment>, StoreError> {
        let mut writer = self.writer.lock().await;
        let rows = sqlx::query(
            "update alignments set state = 'running', attempts = attempts + 1, started_at = max(?,
             queued_at)
             where id = (select id from alignments where state = 'queued' order by id
             limit 1) returning *",
        )
        .bind(now_ms())
        .fetch_all(&mut *writer)
        .await
        .map_err(during("lease an alignment"))?;
        rows.first().map(from_row).transpose()
    }

    /// Ends a running alignment, with its artifacts, in one commit. Returns false if it is not
    /// running and did not change.
    pub async fn finish_alignment(
        &self,
        id: AlignmentId,
        outcome: &AlignmentOutcome,
    ) -> Result<bool, StoreError> {
        let (state, verdict, checks, message) = match &outcome.found {
            Ok((verdict, checks)) => {
                (AlignmentState::Succeeded, Some(verdict.as_str()), checks.as_slice(), None)
            }
            Err(message) => (AlignmentState::Failed, None, &[][..], Some(message)),
        };
        let checks = serde_json::to_string(checks).map_err(|_| corrupt(id, "checks"))?;
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("finish an alignment"))?;
        let changed = sqlx::query(
            "update alignments set state = ?, verdict = ?, checks = ?, message = ?,
             ended_at = max(?, started_at) where id = ? and state = 'running'",
        )
        .bind(state.as_str())
        .bind(verdict)
        .bind(checks)
        .bind(message)
        .bind(now_ms())
        .bind(key(&id))
        .execute(&mut *tx)
        .await
        .map_err(during("finish an alignment"))?;
        if changed.rows_affected() == 0 {
            return Ok(false);
        }
        insert_artifacts(&mut tx, id, &outcome.artifacts).await?;
        tx.commit().await.map_err(during("finish an alignment"))?;
        Ok(true)
    }

    /// Requeues a running alignment without charging the attempt, because the service stops.
    pub async fn release_alignment(&self, id: AlignmentId) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        sqlx::query(
            "update alignments set state = 'queued', started_at = null, attempts = attempts - 1
             where id = ? and state = 'running'",
        )
        .bind(key(&id))
        .execute(&mut *writer)
        .await
        .map_err(during("release an alignment"))?;
        Ok(())
    }

    /// Requeues alignments that an earlier service left, or fails them after their last attempt;
    /// only at start.
    pub async fn recover_alignments(&self) -> Result<Vec<AlignmentId>, StoreError> {
        let mut writer = self.writer.lock().await;
        let ids: Vec<Vec<u8>> = sqlx::query_scalar(
            "update alignments set state = case when attempts < ?1 then 'queued' else 'failed' end,
                    ended_at = case when attempts >= ?1 then max(?2, coalesce(started_at,
                         queued_at)) end,
                    message = case when attempts >= ?1
                         then 'given up: the service ended during each of ' || attempts
                              || ' attempts' end
             where state = 'running' returning id",
        )
        .bind(MAX_ATTEMPTS)
        .bind(now_ms())
        .fetch_all(&mut *writer)
        .await
        .map_err(during("recover alignments"))?;
        ids.iter().map(|id| id_of(id).map(|id| AlignmentId(id.0))).collect()
    }

    /// The artifacts of an ended alignment, by path.
    pub async fn alignment_artifacts(
        &self,
        id: AlignmentId,
    ) -> Result<Vec<ArtifactRecord>, StoreError> {
        let rows = sqlx::query(
            "select path, bytes, sha256, media_type, step from alignment_artifacts
             where alignment_id = ? order by path",
        )
        .bind(key(&id))
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("list artifacts"))?;
        rows.iter().map(|row| super::read::artifact(RunId(id.0), row)).collect()
    }
}

/// Inserts artifacts of an alignment.
pub(super) async fn insert_artifacts(
    tx: &mut SqliteConnection,
    id: AlignmentId,
    artifacts: &[ArtifactRecord],
) -> Result<(), StoreError> {
    for artifact in artifacts {
        sqlx::query(
            "insert into alignment_artifacts (alignment_id, path, bytes, sha256, media_type,
             step) values (?, ?, ?, ?, ?, ?)",
        )
        .bind(key(&id))
        .bind(&artifact.path)
        .bind(i64::try_from(artifact.bytes).unwrap_or(i64::MAX))
        .bind(&artifact.sha256)
        .bind(&artifact.media_type)
        .bind(artifact.step.map(Step::as_str))
        .execute(&mut *tx)
        .await
        .map_err(during("insert an artifact"))?;
    }
    Ok(())
}

pub(super) fn key(id: &AlignmentId) -> &[u8] {
    id.0.as_bytes()
}

fn corrupt(id: AlignmentId, what: &'static str) -> StoreError {
    StoreError::Corrupt { id: RunId(id.0), what }
}

fn from_row(row: &SqliteRow) -> Result<StoredAlignment, StoreError> {
    let id: RunId = id_of(column(row, "id")?)?;
    let verdict: Option<&str> = column(row, "verdict")?;
    Ok(StoredAlignment {
        id: AlignmentId(id.0),
        owner: column(row, "owner")?,
        spec: json(id, "a spec", column(row, "spec")?)?,
        state: word(id, "a state", column(row, "state")?)?,
        attempts: column(row, "attempts")?,
        queued_at: rfc3339(column(row, "queued_at")?),
        started_at: column::<Option<i64>>(row, "started_at")?.map(rfc3339),
        ended_at: column::<Option<i64>>(row, "ended_at")?.map(rfc3339),
        verdict: verdict.map(|verdict| word(id, "a verdict", verdict)).transpose()?,
        checks: json(id, "checks", column(row, "checks")?)?,
        message: column(row, "message")?,
    })
}

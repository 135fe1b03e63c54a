//! Submissions: each is durable before its response, and concurrent ones share a commit.

use llmprof_core::domain::{
    ids::{InputsId, RunId, SessionId, SweepId},
    mode::Mode,
    state::RunState,
    subject::RunSpec,
};
use sqlx::{Connection, SqliteConnection};
use tokio::sync::{mpsc, oneshot};

use super::{
    Store, StoreError, StoredRun, WRITE, during, id_of, inputs, key, now_ms, read, rfc3339,
    sessions, writer::Writer,
};
use crate::runtime;

/// Maximum of submissions in one commit, and of pending ones.
const BATCH: usize = 256;

/// A run to be queued.
#[derive(Debug, Clone)]
pub struct NewRun {
    /// Id of its existing folder; `None` for a new id.
    pub id: Option<RunId>,
    pub spec: RunSpec,
    pub idempotency: Option<IdempotencyKey>,
    /// `None` if tokens are not required.
    pub owner: Option<Owner>,
}

/// Owner of a run, with the quota.
#[derive(Debug, Clone)]
pub struct Owner {
    pub name: String,
    pub quota: Quota,
}

/// Limits on the runs of one owner; 0: no limit.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quota {
    pub queued_runs: u64,
    pub disk_bytes: u64,
}

impl NewRun {
    /// The owner's name; empty without an owner.
    fn owner(&self) -> &str {
        self.owner.as_ref().map_or("", |owner| &owner.name)
    }
}

/// A client's key, with the hash of the request's body.
#[derive(Debug, Clone)]
pub struct IdempotencyKey {
    pub key: String,
    pub body_sha256: [u8; 32],
}

/// Result of a submission.
#[derive(Debug, Clone)]
pub enum Submitted {
    New(Box<StoredRun>),
    /// The key was used before, with the same body.
    Same(Box<StoredRun>),
    /// The key was used before, with another body.
    KeyReused,
    /// The owner has this many queued runs.
    TooManyQueued(u64),
    /// The owner's runs take this many bytes.
    DiskFull(u64),
    /// The stored inputs that it names were deleted.
    NoInputs(InputsId),
    /// The session that it names accepts no runs any more.
    SessionEnded(SessionId),
}

pub(super) struct PendingSubmission {
    new: NewRun,
    answer: oneshot::Sender<Result<Submitted, StoreError>>,
}

impl Store {
    /// Queues a run. When this returns, the run is on disk.
    pub async fn submit(&self, new: NewRun) -> Result<Submitted, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.submissions
            .send(PendingSubmission { new, answer })
            .await
            .map_err(|_| StoreError::Stopped)?;
        answered.await.map_err(|_| StoreError::Stopped)?
    }
}

/// Starts the task that commits submissions; it ends with the last sender.
pub(super) fn start(writer: Writer) -> mpsc::Sender<PendingSubmission> {
    let (sender, mut receiver) = mpsc::channel::<PendingSubmission>(BATCH);
    tokio::spawn(runtime::task(async move {
        let mut batch = Vec::with_capacity(BATCH);
        while receiver.recv_many(&mut batch, BATCH).await > 0 {
            let (news, answers): (Vec<_>, Vec<_>) =
                batch.drain(..).map(|s| (s.new, s.answer)).unzip();
            let committed = commit(&mut *writer.lock().await, &news).await;
            match committed {
                Ok(results) => answers
                    .into_iter()
                    .zip(results)
                    .for_each(|(answer, result)| drop(answer.send(Ok(result)))),
                // One submission that cannot be stored must not fail the others of its batch.
                Err(_) => {
                    for (answer, new) in answers.into_iter().zip(&news) {
                        let new = std::slice::from_ref(new);
                        let alone = commit(&mut *writer.lock().await, new).await;
                        drop(answer.send(alone.map(|mut results| results.remove(0))));
                    }
                }
            }
        }
    }));
    sender
}

/// Stores `news` in one transaction, in order.
async fn commit(
    writer: &mut SqliteConnection,
    news: &[NewRun],
) -> Result<Vec<Submitted>, StoreError> {
    let mut tx = writer.begin_with(WRITE).await.map_err(during("start a submission"))?;
    let mut results = Vec::with_capacity(news.len());
    for new in news {
        results.push(match earlier(&mut tx, new).await? {
            Some(earlier) => earlier,
            None => match refusal(&mut tx, new).await? {
                Some(refused) => refused,
                None => Submitted::New(Box::new(insert(&mut tx, new, None).await?)),
            },
        });
    }
    let mut queued: Vec<&mut StoredRun> = results
        .iter_mut()
        .filter_map(|it| if let Submitted::New(run) = it { Some(&mut **run) } else { None })
        .collect();
    let places =
        read::places(&mut tx, &queued.iter().map(|run| run.id).collect::<Vec<_>>()).await?;
    for run in &mut queued {
        run.queue_position = places.get(&run.id).copied();
    }
    tx.commit().await.map_err(during("commit a submission"))?;
    Ok(results)
}

/// Bytes of an owner's runs, alignments and queued imports.
pub(super) const BYTES: &str = "select coalesce(sum(bytes), 0) from (
    select bytes from runs join sizes on run_id = id where owner = ?1
    union all select bytes from alignments join alignment_artifacts on alignment_id = id
         where owner = ?1
    union all select json_extract(value, '$.bytes') from runs, json_each(spec, '$.subject.files')
              where owner = ?1 and kind = 'import' and state in ('queued', 'running'))";

/// The reason to refuse a new run, if any: a quota, or inputs that are no longer stored.
pub(super) async fn refusal(
    tx: &mut SqliteConnection,
    new: &NewRun,
) -> Result<Option<Submitted>, StoreError> {
    if let Some(refused) = used_up(tx, new.owner.as_ref()).await? {
        return Ok(Some(refused));
    }
    if let Some(session) = new.spec.session()
        && !sessions::accepts_runs(tx, session).await?
    {
        return Ok(Some(Submitted::SessionEnded(session)));
    }
    match new.spec.stored_inputs() {
        Some(id) if !inputs::touch(tx, id).await? => Ok(Some(Submitted::NoInputs(id))),
        _ => Ok(None),
    }
}

/// The part of the owner's quota that is used up, if any.
pub(super) async fn used_up(
    tx: &mut SqliteConnection,
    owner: Option<&Owner>,
) -> Result<Option<Submitted>, StoreError> {
    let Some(Owner { name, quota }) = owner else { return Ok(None) };
    let queued = "select count(*) from runs where owner = ? and state = 'queued'";
    if let Some(queued) = over(tx, name, quota.queued_runs, queued).await? {
        return Ok(Some(Submitted::TooManyQueued(queued)));
    }
    Ok(over(tx, name, quota.disk_bytes, BYTES).await?.map(Submitted::DiskFull))
}

/// The result of `query` for an owner, if it reaches the `limit`; 0: no limit.
pub(super) async fn over(
    tx: &mut SqliteConnection,
    owner: &str,
    limit: u64,
    query: &'static str,
) -> Result<Option<u64>, StoreError> {
    if limit == 0 {
        return Ok(None);
    }
    let used: i64 = sqlx::query_scalar(query)
        .bind(owner)
        .fetch_one(tx)
        .await
        .map_err(during("measure an owner's runs"))?;
    Ok(Some(used.unsigned_abs()).filter(|used| *used >= limit))
}

/// Finds the run with the same key.
async fn earlier(tx: &mut SqliteConnection, new: &NewRun) -> Result<Option<Submitted>, StoreError> {
    let Some(IdempotencyKey { key, body_sha256 }) = &new.idempotency else { return Ok(None) };
    let row: Option<(Vec<u8>, Vec<u8>)> =
        sqlx::query_as("select run_id, body_sha256 from idempotency where owner = ? and key = ?")
            .bind(new.owner())
            .bind(key)
            .fetch_optional(&mut *tx)
            .await
            .map_err(during("look up an idempotency key"))?;
    let Some((id, sha)) = row else { return Ok(None) };
    if sha != body_sha256 {
        return Ok(Some(Submitted::KeyReused));
    }
    let run = read::run(tx, id_of(&id)?).await?;
    Ok(run.map(|run| Submitted::Same(Box::new(run))))
}

/// Adds labels to a run.
pub(super) async fn insert_labels(
    tx: &mut SqliteConnection,
    id: RunId,
    labels: &[String],
) -> Result<(), StoreError> {
    for label in labels {
        sqlx::query("insert or ignore into labels (label, run_id) values (?, ?)")
            .bind(label)
            .bind(key(&id))
            .execute(&mut *tx)
            .await
            .map_err(during("insert a label"))?;
    }
    Ok(())
}

/// Inserts a run; the caller adds its place in the queue after its batch.
///
/// It ranks as submitted no earlier than any queued run, even if the clock was set back.
pub(super) async fn insert(
    tx: &mut SqliteConnection,
    new: &NewRun,
    sweep: Option<SweepId>,
) -> Result<StoredRun, StoreError> {
    let (id, spec, now) = (new.id.unwrap_or_else(RunId::now), &new.spec, now_ms());
    sqlx::query(
        "insert into runs (id, kind, name, mode, device, priority, gpus, spec, state, queued_at,
         owner, session, sweep, fingerprint, part, rank)
         values (?1, ?9, ?2, ?10, ?3, ?4, ?5, ?6, 'queued', ?7, ?8, ?11, ?12, ?13, ?14,
                 max(?7, coalesce((select max(rank + priority * 600000)
                      from runs indexed by runs_latest where state = 'queued'), ?7))
                 - ?4 * 600000)",
    )
    .bind(key(&id))
    .bind(spec.name())
    .bind(spec.device())
    .bind(spec.common.priority)
    .bind(spec.gpus())
    .bind(serde_json::to_string(spec).map_err(|_| StoreError::Corrupt { id, what: "a spec" })?)
    .bind(now)
    .bind(new.owner.as_ref().map(|owner| &owner.name))
    .bind(spec.kind().as_str())
    .bind(spec.mode().map_or("", Mode::as_str))
    .bind(spec.session().map(|it| it.0.as_bytes().to_vec()))
    .bind(sweep.map(|it| it.0.as_bytes().to_vec()))
    .bind(spec.fingerprint())
    .bind(spec.part())
    .execute(&mut *tx)
    .await
    .map_err(during("insert a run"))?;
    if let Some(stored) = spec.stored_inputs() {
        inputs::use_inputs(tx, id, stored).await?;
    }
    insert_labels(tx, id, &spec.common.labels).await?;
    if let Some(IdempotencyKey { key: name, body_sha256 }) = &new.idempotency {
        sqlx::query(
            "insert into idempotency (owner, key, body_sha256, run_id) values (?, ?, ?, ?)",
        )
        .bind(new.owner())
        .bind(name)
        .bind(body_sha256.as_slice())
        .bind(key(&id))
        .execute(&mut *tx)
        .await
        .map_err(during("insert an idempotency key"))?;
    }
    Ok(StoredRun {
        id,
        spec: spec.clone(),
        owner: new.owner.as_ref().map(|owner| owner.name.clone()),
        sweep,
        state: RunState::Queued,
        attempts: 0,
        queue_position: None,
        queued_at: rfc3339(now),
        started_at: None,
        ended_at: None,
        cancel_requested: false,
        pinned: false,
        message: None,
        failed_step: None,
        scheduled: None,
        steps: Vec::new(),
        findings: Vec::new(),
        damage: Vec::new(),
    })
}

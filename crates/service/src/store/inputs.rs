//! Stored inputs: their rows, quotas and use by runs. The files are in the data folder.

use std::collections::HashSet;

use llmprof_core::domain::{
    ids::{InputsId, RunId},
    inputs::InputSet,
};
use sqlx::{Connection, SqliteConnection, sqlite::SqliteRow};
use uuid::Uuid;

use super::{Store, StoreError, WRITE, column, during, now_ms, rfc3339};

/// Characters of the first prompt in lists.
const PROMPT_START: usize = 120;

/// Inputs to be stored.
#[derive(Debug, Clone)]
pub struct NewInputs {
    pub id: InputsId,
    pub name: String,
    /// `None` if tokens are not required.
    pub owner: Option<String>,
    /// Of [`InputSet::content`].
    pub sha256: String,
    pub set: InputSet,
    /// Maximum bytes of the owner's inputs, and of all; 0: no limit.
    pub max_owner: u64,
    pub max_total: u64,
}

/// Result of storing inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddedInputs {
    New,
    /// The owner has the same content.
    Same(InputsId),
    /// The owner's inputs take this many bytes.
    OwnerFull(u64),
    /// All inputs take this many bytes.
    Full(u64),
}

/// Stored inputs, as far as lists need them.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredInputs {
    pub id: InputsId,
    /// `None` if tokens are not required.
    pub owner: Option<String>,
    pub name: String,
    pub samples: u32,
    pub images: u32,
    pub bytes: u64,
    /// RFC 3339, UTC, as the next one.
    pub created_at: String,
    pub used_at: String,
    /// Start of the first prompt.
    pub prompt: String,
    /// A queued or running run that needs them.
    pub needed_by: Option<RunId>,
}

/// Columns of [`StoredInputs`].
const COLUMNS: &str = "id, owner, name, samples, images, bytes, created_at, used_at, prompt,
    (select run_id from run_inputs join runs on runs.id = run_id
     where inputs_id = inputs.id and state in ('queued', 'running') limit 1) as needed_by";

/// Result of a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeletedInputs {
    /// No inputs name these contents anymore.
    Deleted(Vec<String>),
    /// A queued or running run needs them.
    Needed(RunId),
    NotFound,
}

/// The time `days` ago. A clock that is set ahead while the service runs ages nothing.
fn days_ago(days: u32) -> i64 {
    now_ms().min(super::steady_ms()) - i64::from(days) * 86_400_000
}

fn key(id: &InputsId) -> &[u8] {
    id.0.as_bytes()
}

fn id_of(bytes: &[u8]) -> Result<InputsId, StoreError> {
    Uuid::from_slice(bytes)
        .map(InputsId)
        .map_err(|_| StoreError::Corrupt { id: RunId(Uuid::nil()), what: "an id of inputs" })
}

fn stored(row: &SqliteRow) -> Result<StoredInputs, StoreError> {
    Ok(StoredInputs {
        id: id_of(column(row, "id")?)?,
        owner: Some(column::<String>(row, "owner")?).filter(|owner| !owner.is_empty()),
        name: column(row, "name")?,
        samples: column(row, "samples")?,
        images: column(row, "images")?,
        bytes: column::<i64>(row, "bytes")?.unsigned_abs(),
        created_at: rfc3339(column(row, "created_at")?),
        used_at: rfc3339(column(row, "used_at")?),
        prompt: column(row, "prompt")?,
        needed_by: column::<Option<Vec<u8>>>(row, "needed_by")?
            .map(|id| super::id_of(&id))
            .transpose()?,
    })
}

impl Store {
    /// Stores inputs, within the quotas of their owner and of all. The same content of the same
    /// owner is stored once.
    pub async fn add_inputs(&self, new: &NewInputs) -> Result<AddedInputs, StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("store inputs"))?;
        let owner = new.owner.as_deref().unwrap_or_default();
        let same: Option<Vec<u8>> = sqlx::query_scalar(
            "update inputs set used_at = ? where owner = ? and sha256 = ? returning id",
        )
        .bind(now_ms())
        .bind(owner)
        .bind(&new.sha256)
        .fetch_optional(&mut *tx)
        .await
        .map_err(during("look up inputs"))?;
        let added = match same {
            Some(id) => AddedInputs::Same(id_of(&id)?),
            None => match over_quota(&mut tx, new).await? {
                Some(refused) => return Ok(refused),
                None => {
                    insert(&mut tx, new, owner).await?;
                    AddedInputs::New
                }
            },
        };
        tx.commit().await.map_err(during("commit inputs"))?;
        Ok(added)
    }

    /// Stored inputs, newest first, from those before `before`.
    pub async fn list_inputs(
        &self,
        before: Option<InputsId>,
        limit: u32,
    ) -> Result<Vec<StoredInputs>, StoreError> {
        let before = before.map_or_else(|| vec![0xff; 16], |id| key(&id).to_vec());
        let query = format!("select {COLUMNS} from inputs where id < ? order by id desc limit ?");
        let rows = sqlx::query(sqlx::AssertSqlSafe(query))
            .bind(before)
            .bind(limit)
            .fetch_all(&mut *self.reader().await?)
            .await
            .map_err(during("list inputs"))?;
        rows.iter().map(stored).collect()
    }

    /// Stored inputs with their samples and images.
    pub async fn inputs(
        &self,
        id: InputsId,
    ) -> Result<Option<(StoredInputs, InputSet)>, StoreError> {
        let query = format!("select {COLUMNS}, content from inputs where id = ?");
        let row = sqlx::query(sqlx::AssertSqlSafe(query))
            .bind(key(&id))
            .fetch_optional(&mut *self.reader().await?)
            .await
            .map_err(during("look up inputs"))?;
        let Some(row) = row else { return Ok(None) };
        let set = serde_json::from_str(column(&row, "content")?)
            .map_err(|_| StoreError::Corrupt { id: RunId(id.0), what: "inputs" })?;
        Ok(Some((stored(&row)?, set)))
    }

    /// Deletes inputs that no queued or running run needs. The caller removes the files.
    pub async fn delete_inputs(&self, id: InputsId) -> Result<DeletedInputs, StoreError> {
        self.delete_used_before(id, i64::MAX).await
    }

    /// The same for inputs that nothing used for `days`; others count as needed or missing.
    pub async fn delete_unused_inputs(
        &self,
        id: InputsId,
        days: u32,
    ) -> Result<DeletedInputs, StoreError> {
        self.delete_used_before(id, days_ago(days)).await
    }

    async fn delete_used_before(
        &self,
        id: InputsId,
        before_ms: i64,
    ) -> Result<DeletedInputs, StoreError> {
        let failed = || during("delete inputs");
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(failed())?;
        let needed: Option<Vec<u8>> = sqlx::query_scalar(
            "select run_id from run_inputs join runs on runs.id = run_id
             where inputs_id = ? and state in ('queued', 'running') limit 1",
        )
        .bind(key(&id))
        .fetch_optional(&mut *tx)
        .await
        .map_err(failed())?;
        if let Some(run) = needed {
            return Ok(DeletedInputs::Needed(super::id_of(&run)?));
        }
        let contents: Vec<String> = sqlx::query_scalar(
            "select sha256 from input_contents as mine where inputs_id = ?1 and not exists
             (select 1 from input_contents where sha256 = mine.sha256 and inputs_id <> ?1)",
        )
        .bind(key(&id))
        .fetch_all(&mut *tx)
        .await
        .map_err(failed())?;
        sqlx::query("delete from run_inputs where inputs_id = ?")
            .bind(key(&id))
            .execute(&mut *tx)
            .await
            .map_err(failed())?;
        let deleted = sqlx::query("delete from inputs where id = ? and used_at < ?")
            .bind(key(&id))
            .bind(before_ms)
            .execute(&mut *tx)
            .await
            .map_err(failed())?;
        if deleted.rows_affected() == 0 {
            return Ok(DeletedInputs::NotFound);
        }
        tx.commit().await.map_err(failed())?;
        Ok(DeletedInputs::Deleted(contents))
    }

    /// Inputs that were neither uploaded nor submitted for `days`, and that no queued or running
    /// run needs.
    pub async fn unused_inputs(&self, days: u32) -> Result<Vec<InputsId>, StoreError> {
        let ids: Vec<Vec<u8>> = sqlx::query_scalar(
            "select id from inputs where used_at < ? and not exists
             (select 1 from run_inputs join runs on runs.id = run_id
              where inputs_id = inputs.id and state in ('queued', 'running')) limit 1000",
        )
        .bind(days_ago(days))
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("list unused inputs"))?;
        ids.iter().map(|id| id_of(id)).collect()
    }

    /// All stored inputs, and the contents that they name.
    pub async fn input_files(&self) -> Result<(HashSet<InputsId>, HashSet<String>), StoreError> {
        let ids: Vec<Vec<u8>> = sqlx::query_scalar("select id from inputs")
            .fetch_all(&mut *self.reader().await?)
            .await
            .map_err(during("list inputs"))?;
        let contents: Vec<String> =
            sqlx::query_scalar("select distinct sha256 from input_contents")
                .fetch_all(&mut *self.reader().await?)
                .await
                .map_err(during("list the contents of inputs"))?;
        let ids = ids.iter().map(|id| id_of(id)).collect::<Result<_, _>>()?;
        Ok((ids, contents.into_iter().collect()))
    }

    /// Contents of `wanted` that are stored.
    pub async fn known_contents(&self, wanted: &[String]) -> Result<HashSet<String>, StoreError> {
        let wanted = serde_json::Value::from(wanted.to_vec()).to_string();
        let found: Vec<String> = sqlx::query_scalar(
            "select distinct sha256 from input_contents
             where sha256 in (select value from json_each(?))",
        )
        .bind(wanted)
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("look up contents of inputs"))?;
        Ok(found.into_iter().collect())
    }

    /// Copies of images of `wanted` in the folders of runs: hash, run and path.
    pub async fn run_images(
        &self,
        wanted: &[String],
    ) -> Result<Vec<(String, RunId, String)>, StoreError> {
        let wanted = serde_json::Value::from(wanted.to_vec()).to_string();
        let found: Vec<(String, Vec<u8>, String)> = sqlx::query_as(
            "select sha256, max(run_id), path from artifacts
             where sha256 in (select value from json_each(?))
               and path >= 'inputs/' and path < 'inputs0' and media_type like 'image/%'
             group by sha256",
        )
        .bind(wanted)
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("look up the images of runs"))?;
        let image =
            |(hash, run, path): (String, Vec<u8>, String)| Ok((hash, super::id_of(&run)?, path));
        found.into_iter().map(image).collect()
    }
}

/// The quota that the new inputs exceed, if any.
async fn over_quota(
    tx: &mut SqliteConnection,
    new: &NewInputs,
) -> Result<Option<AddedInputs>, StoreError> {
    let bytes = new.set.bytes();
    let owner = new.owner.as_deref();
    let max_owner = owner.map_or(0, |_| new.max_owner);
    for (max, query, refused) in [
        (
            max_owner,
            "select coalesce(sum(bytes), 0) from inputs where owner = ?",
            AddedInputs::OwnerFull as fn(u64) -> AddedInputs,
        ),
        (
            new.max_total,
            "select coalesce(sum(bytes), 0) from inputs where ? is not null",
            AddedInputs::Full,
        ),
    ] {
        if max == 0 {
            continue;
        }
        let used: i64 = sqlx::query_scalar(query)
            .bind(owner.unwrap_or_default())
            .fetch_one(&mut *tx)
            .await
            .map_err(during("measure inputs"))?;
        if used.unsigned_abs().saturating_add(bytes) > max {
            return Ok(Some(refused(used.unsigned_abs())));
        }
    }
    Ok(None)
}

async fn insert(tx: &mut SqliteConnection, new: &NewInputs, owner: &str) -> Result<(), StoreError> {
    let corrupt = |_| StoreError::Corrupt { id: RunId(new.id.0), what: "inputs" };
    let first = new.set.samples.first().map_or("", |sample| &sample.prompt);
    sqlx::query(
        "insert into inputs (id, owner, sha256, name, samples, images, bytes, created_at, used_at,
         prompt, content) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9, ?10)",
    )
    .bind(key(&new.id))
    .bind(owner)
    .bind(&new.sha256)
    .bind(&new.name)
    .bind(new.set.samples.len() as i64)
    .bind(new.set.images.len() as i64)
    .bind(new.set.bytes().cast_signed())
    .bind(now_ms())
    .bind(first.chars().take(PROMPT_START).collect::<String>())
    .bind(serde_json::to_string(&new.set).map_err(corrupt)?)
    .execute(&mut *tx)
    .await
    .map_err(during("insert inputs"))?;
    for image in &new.set.images {
        sqlx::query("insert or ignore into input_contents (sha256, inputs_id) values (?, ?)")
            .bind(&image.sha256)
            .bind(key(&new.id))
            .execute(&mut *tx)
            .await
            .map_err(during("insert a content of inputs"))?;
    }
    Ok(())
}

/// Records that `run` needs these inputs.
pub(super) async fn use_inputs(
    tx: &mut SqliteConnection,
    run: RunId,
    inputs: InputsId,
) -> Result<(), StoreError> {
    sqlx::query("insert into run_inputs (run_id, inputs_id) values (?, ?)")
        .bind(super::key(&run))
        .bind(key(&inputs))
        .execute(&mut *tx)
        .await
        .map_err(during("record the inputs of a run"))?;
    Ok(())
}

/// Marks inputs as used now; returns false if they are not stored.
pub(super) async fn touch(tx: &mut SqliteConnection, inputs: InputsId) -> Result<bool, StoreError> {
    let updated = sqlx::query("update inputs set used_at = max(used_at, ?) where id = ?")
        .bind(now_ms())
        .bind(key(&inputs))
        .execute(&mut *tx)
        .await
        .map_err(during("look up inputs"))?;
    Ok(updated.rows_affected() > 0)
}

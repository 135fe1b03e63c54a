//! Queries of runs and artifacts.

use std::collections::HashMap;

use llmprof_core::domain::{
    headline::FigureName,
    ids::{RunId, SweepId},
    run_files::ArtifactRecord,
    state::{RunState, StepRecord},
    subject::SubjectKind,
};
use sqlx::{QueryBuilder, Sqlite, SqliteConnection, sqlite::SqliteRow};

use super::{
    Store, StoreError, StoredRun, column, damage::damage, during, id_of, json, key, rfc3339, word,
};

/// Filter of a list of runs; all given parts must match.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    pub state: Option<RunState>,
    /// Name of a configured model, or of the model that the sender of a capture named.
    pub model: Option<String>,
    /// Name in lists.
    pub name: Option<String>,
    /// All of them.
    pub labels: Vec<String>,
    pub kind: Option<SubjectKind>,
    pub mode: Option<String>,
    pub owner: Option<String>,
    /// Product name of the device, or the requested device.
    pub device: Option<String>,
    pub revision: Option<String>,
    /// Id of the series.
    pub series: Option<String>,
    /// Submitted at this time or later, milliseconds since 1970.
    pub since_ms: Option<i64>,
    /// Submitted before this time.
    pub until_ms: Option<i64>,
    /// Best first by this figure, runs with the figure only; newest first without it.
    pub sort: Option<FigureName>,
}

impl Filter {
    fn push_facts(&self, query: &mut QueryBuilder<Sqlite>) {
        let facts = [(" and mode = ", &self.mode), (" and owner = ", &self.owner)];
        for (condition, value) in facts {
            if let Some(value) = value {
                query.push(condition).push_bind(value);
            }
        }
        if let Some(device) = &self.device {
            query.push(" and (device = ").push_bind(device);
            query.push(" or id in (select run_id from points where device = ");
            query.push_bind(device).push("))");
        }
        for (column, value) in [("revision", &self.revision), ("series", &self.series)] {
            if let Some(value) = value {
                query.push(" and id in (select run_id from points where ").push(column);
                query.push(" = ").push_bind(value).push(")");
            }
        }
        for (condition, time) in
            [(" and queued_at >= ", self.since_ms), (" and queued_at < ", self.until_ms)]
        {
            if let Some(time) = time {
                query.push(condition).push_bind(time);
            }
        }
    }

    /// Orders the runs, from those after the run `after`.
    fn push_order(&self, query: &mut QueryBuilder<Sqlite>, after: Option<RunId>) {
        let after = after.map(|after| key(&after).to_vec());
        let Some(figure) = self.sort else {
            if let Some(after) = after {
                query.push(" and id < ").push_bind(after);
            }
            query.push(" order by id desc");
            return;
        };
        let value = format!("(select {figure} from points where run_id = runs.id)");
        let (order, beyond) = if figure.lower_is_better() { ("asc", ">") } else { ("desc", "<") };
        query.push(format!(" and {value} is not null"));
        if let Some(after) = after {
            query.push(format!(" and ({value}, id) {beyond} (select {figure}, run_id from points"));
            query.push(" where run_id = ").push_bind(after).push(")");
        }
        query.push(format!(" order by {value} {order}, id {order}"));
    }
}

impl Store {
    /// One run with steps and findings, and its place in the queue while it is queued.
    pub async fn run(&self, id: RunId) -> Result<Option<StoredRun>, StoreError> {
        let mut reader = self.reader().await?;
        run(&mut reader, id).await
    }

    /// Runs that match, in the order of the filter, from those after the run `before`.
    pub async fn list(
        &self,
        filter: &Filter,
        before: Option<RunId>,
        limit: u32,
    ) -> Result<Vec<StoredRun>, StoreError> {
        let mut query = QueryBuilder::new("select * from runs where true");
        if let Some(state) = filter.state {
            query.push(" and state = ").push_bind(state.as_str());
        }
        if let Some(model) = &filter.model {
            query.push(" and kind <> 'command' and name = ").push_bind(model);
            query.push(
                " and (kind <> 'import' or json_extract(spec, '$.subject.model') is not null)",
            );
        }
        if let Some(name) = &filter.name {
            query.push(" and name = ").push_bind(name);
        }
        if let Some(kind) = filter.kind {
            query.push(" and kind = ").push_bind(kind.as_str());
        }
        for label in &filter.labels {
            query
                .push(" and id in (select run_id from labels where label = ")
                .push_bind(label)
                .push(")");
        }
        filter.push_facts(&mut query);
        filter.push_order(&mut query, before);
        query.push(" limit ").push_bind(limit);
        let rows = query
            .build()
            .fetch_all(&mut *self.reader().await?)
            .await
            .map_err(during("list runs"))?;
        rows.iter().map(from_row).collect()
    }

    /// Running runs, each with its worker's name and, if it has several devices, the names of all.
    pub async fn running(&self) -> Result<Vec<(RunId, String, Vec<String>)>, StoreError> {
        let rows: Vec<(Vec<u8>, String, Option<String>)> = sqlx::query_as(
            "select id, worker, devices from runs where state = 'running'
                            and worker is not null order by id",
        )
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("list running runs"))?;
        let run = |(id, worker, devices): (Vec<u8>, String, Option<String>)| {
            let id = id_of(&id)?;
            Ok((
                id,
                worker,
                devices.map(|it| json(id, "its devices", &it)).transpose()?.unwrap_or_default(),
            ))
        };
        rows.into_iter().map(run).collect()
    }

    /// The artifacts of an ended run, by path.
    pub async fn artifacts(&self, id: RunId) -> Result<Vec<ArtifactRecord>, StoreError> {
        let rows = sqlx::query(
            "select path, bytes, sha256, media_type, step from artifacts
                                where run_id = ? order by path",
        )
        .bind(key(&id))
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("list artifacts"))?;
        rows.iter().map(|row| artifact(id, row)).collect()
    }

    /// One artifact of an ended run.
    pub async fn artifact(
        &self,
        id: RunId,
        path: &str,
    ) -> Result<Option<ArtifactRecord>, StoreError> {
        let row = sqlx::query(
            "select path, bytes, sha256, media_type, step from artifacts
                               where run_id = ? and path = ?",
        )
        .bind(key(&id))
        .bind(path)
        .fetch_optional(&mut *self.reader().await?)
        .await
        .map_err(during("look up an artifact"))?;
        row.map(|row| artifact(id, &row)).transpose()
    }
}

/// One run with all its parts, over any connection.
pub(super) async fn run(
    connection: &mut SqliteConnection,
    id: RunId,
) -> Result<Option<StoredRun>, StoreError> {
    let row = sqlx::query("select * from runs where id = ?")
        .bind(key(&id))
        .fetch_optional(&mut *connection)
        .await;
    let Some(row) = row.map_err(during("look up a run"))? else { return Ok(None) };
    let mut run = from_row(&row)?;
    let steps = sqlx::query("select * from steps where run_id = ? order by position")
        .bind(key(&id))
        .fetch_all(&mut *connection);
    for row in steps.await.map_err(during("list steps"))? {
        run.steps.push(step(id, &row)?.within_run(run.state, run.ended_at.as_deref()));
    }
    if run.state.is_final() {
        run.damage = damage(connection, id).await?;
    }
    if run.state == RunState::Queued {
        run.queue_position = places(connection, &[id]).await?.remove(&id);
    }
    Ok(Some(run))
}

/// Places of queued runs: earlier slots from the stored counts, their own slot by the index.
pub(super) const PLACES: &str = "select id,
                (select coalesce(sum(runs), 0) from waiting where slot < mine.rank >> 8)
              + (select count(*) from runs indexed by runs_waiting
                 where state = 'queued' and rank >= (mine.rank >> 8) << 8 and (rank,
                      id) <= (mine.rank, mine.id))
         from runs as mine where state = 'queued' and id in (select unhex(value)
         from json_each(?))";

/// Places of the queued runs among `ids`.
pub(super) async fn places(
    connection: &mut SqliteConnection,
    ids: &[RunId],
) -> Result<HashMap<RunId, u64>, StoreError> {
    let ids = serde_json::Value::from_iter(ids.iter().map(|id| id.0.simple().to_string()));
    let places: Vec<(Vec<u8>, i64)> = sqlx::query_as(PLACES)
        .bind(ids.to_string())
        .fetch_all(connection)
        .await
        .map_err(during("count queued runs"))?;
    places.into_iter().map(|(id, place)| Ok((id_of(&id)?, place.unsigned_abs()))).collect()
}

pub(super) fn from_row(row: &SqliteRow) -> Result<StoredRun, StoreError> {
    let id = id_of(column(row, "id")?)?;
    let failed_step: Option<&str> = column(row, "failed_step")?;
    Ok(StoredRun {
        id,
        spec: json(id, "a spec", column(row, "spec")?)?,
        owner: column(row, "owner")?,
        sweep: column::<Option<Vec<u8>>>(row, "sweep")?
            .map(|sweep| Ok::<_, StoreError>(SweepId(id_of(&sweep)?.0)))
            .transpose()?,
        state: word(id, "a state", column(row, "state")?)?,
        attempts: column(row, "attempts")?,
        queue_position: None,
        queued_at: rfc3339(column(row, "queued_at")?),
        started_at: column::<Option<i64>>(row, "started_at")?.map(rfc3339),
        ended_at: column::<Option<i64>>(row, "ended_at")?.map(rfc3339),
        cancel_requested: column(row, "cancel_requested")?,
        pinned: column(row, "pinned")?,
        message: column(row, "message")?,
        failed_step: failed_step.map(|step| word(id, "a step", step)).transpose()?,
        scheduled: column::<Option<&str>>(row, "scheduled")?
            .map(|text| json(id, "a scheduler's word", text))
            .transpose()?,
        steps: Vec::new(),
        findings: json(id, "findings", column(row, "findings")?)?,
        damage: Vec::new(),
    })
}

fn step(id: RunId, row: &SqliteRow) -> Result<StepRecord, StoreError> {
    Ok(StepRecord {
        step: word(id, "a step", column(row, "step")?)?,
        state: word(id, "a step's state", column(row, "state")?)?,
        started_at: column(row, "started_at")?,
        ended_at: column(row, "ended_at")?,
        exit_code: column(row, "exit_code")?,
        message: column(row, "message")?,
    })
}

pub(super) fn artifact(id: RunId, row: &SqliteRow) -> Result<ArtifactRecord, StoreError> {
    let step: Option<&str> = column(row, "step")?;
    Ok(ArtifactRecord {
        path: column(row, "path")?,
        bytes: column::<i64>(row, "bytes")?.unsigned_abs(),
        sha256: column(row, "sha256")?,
        media_type: column(row, "media_type")?,
        step: step.map(|step| word(id, "a step", step)).transpose()?,
    })
}

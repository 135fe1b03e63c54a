//! The queue: order of runs, durations of earlier runs, and figures of all stored runs.

use llmprof_core::domain::{ids::RunId, median::median_of, mode::Mode, subject::RunSpec};

use super::{ScrubFigures, Store, StoreError, StoredRun, column, during, json, read};

/// Earlier runs of a median.
const HISTORY: u32 = 21;

/// A queued or running run.
#[derive(Debug, Clone)]
pub struct Waiting {
    pub run: StoredRun,
    /// Name of its worker; `None` while it is queued.
    pub worker: Option<String>,
    /// Names of its devices, if it has several.
    pub devices: Vec<String>,
    /// Start of the worker, milliseconds since 1970.
    pub started_ms: Option<i64>,
}

/// Runs that take similarly long: their name, the path of a part, and the mode.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunKind {
    pub name: String,
    pub part: Option<String>,
    pub mode: Mode,
}

impl RunKind {
    /// `None` for an import.
    pub fn of(spec: &RunSpec) -> Option<Self> {
        Some(Self {
            name: spec.name().to_owned(),
            part: spec.part().map(str::to_owned),
            mode: spec.mode()?.clone(),
        })
    }
}

/// Durations of runs of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    pub kind: RunKind,
    /// Median of up to 21 of the newest finished runs, milliseconds.
    pub median_ms: i64,
}

/// Figures of all stored runs.
#[derive(Debug, Clone, Default)]
pub struct StoreFigures {
    /// State and number of runs.
    pub runs: Vec<(String, i64)>,
    /// Step, state, number, and total seconds.
    pub steps: Vec<(String, String, i64, f64)>,
    /// Step, state, index of the bucket, number and total seconds of every step that ended here.
    pub durations: Vec<(String, String, i64, i64, f64)>,
    /// Bytes of all artifacts.
    pub artifact_bytes: i64,
    pub scrub: ScrubFigures,
}

impl Store {
    /// Running runs, then queued runs in their order. Imports need no device and are not listed.
    pub async fn queue(&self, limit: u32) -> Result<Vec<Waiting>, StoreError> {
        let rows = sqlx::query(
            "select * from (select * from runs where state = 'running'
             and kind <> 'import' order by id)
             union all select * from (select * from runs indexed by runs_waiting
                                      where state = 'queued' and kind <> 'import' order by rank,
                                      id limit ?)",
        )
        .bind(limit)
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("list the queue"))?;
        rows.iter()
            .map(|row| {
                let worker = column(row, "worker")?;
                let (run, devices) =
                    (read::from_row(row)?, column::<Option<&str>>(row, "devices")?);
                let devices = devices
                    .map(|it| json(run.id, "its devices", it))
                    .transpose()?
                    .unwrap_or_default();
                Ok(Waiting { run, worker, devices, started_ms: column(row, "started_at")? })
            })
            .collect()
    }

    /// Durations of earlier runs of each kind; none if no run finished.
    pub async fn history(&self, kinds: &[RunKind]) -> Result<Vec<History>, StoreError> {
        let mut found = Vec::new();
        for kind in kinds {
            let took: Vec<i64> = sqlx::query_scalar(
                "select ended_at - started_at from runs indexed by runs_done
                 where name = ? and kind <> 'import' and state in ('succeeded', 'partial')
                      and mode = ? and part is ?
                 order by id desc limit ?",
            )
            .bind(&kind.name)
            .bind(kind.mode.as_str())
            .bind(&kind.part)
            .bind(HISTORY)
            .fetch_all(&mut *self.reader().await?)
            .await
            .map_err(during("list earlier runs"))?;
            if let Some(median_ms) = median_of(took) {
                found.push(History { kind: kind.clone(), median_ms });
            }
        }
        Ok(found)
    }

    /// Durations of earlier runs of the kind of `spec`, newest first, in milliseconds.
    /// With `same_request`, only of runs whose subject and passes are equal.
    pub async fn durations_of(
        &self,
        spec: &RunSpec,
        same_request: bool,
    ) -> Result<Vec<i64>, StoreError> {
        let subject = serde_json::to_string(&spec.subject).ok().filter(|_| same_request);
        sqlx::query_scalar(
            "select ended_at - started_at from runs indexed by runs_done
             where name = ?1 and kind <> 'import' and state in ('succeeded', 'partial')
                  and mode = ?2 and part is ?5
                  and (?3 is null or spec -> '$.subject' = json(?3))
             order by id desc limit ?4",
        )
        .bind(spec.name())
        .bind(spec.mode().map_or("", Mode::as_str))
        .bind(subject)
        .bind(HISTORY)
        .bind(spec.part())
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("list earlier runs"))
    }

    /// Figures of all stored runs.
    pub async fn figures(&self) -> Result<StoreFigures, StoreError> {
        let runs = sqlx::query_as("select state, count(*) from runs group by state order by state")
            .fetch_all(&mut *self.reader().await?)
            .await
            .map_err(during("count runs"))?;
        let steps = sqlx::query_as(
            "select step, state, count(*),
             coalesce(sum((julianday(ended_at) - julianday(started_at)) * 86400.0), 0.0)
             from steps where ended_at is not null group by step, state order by step, state",
        )
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("measure steps"))?;
        let durations = sqlx::query_as(
            "select step, state, bucket, steps, seconds from step_durations order by 1, 2, 3",
        )
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("measure steps"))?;
        let artifact_bytes = sqlx::query_scalar("select coalesce(sum(bytes), 0) from sizes")
            .fetch_one(&mut *self.reader().await?)
            .await
            .map_err(during("measure artifacts"))?;
        let scrub = self.scrub_figures().await?;
        Ok(StoreFigures { runs, steps, durations, artifact_bytes, scrub })
    }

    /// Owner of a run. Outer `None`: there is no such run.
    pub async fn owner(&self, id: RunId) -> Result<Option<Option<String>>, StoreError> {
        let row = sqlx::query("select owner from runs where id = ?")
            .bind(super::key(&id))
            .fetch_optional(&mut *self.reader().await?)
            .await
            .map_err(during("look up an owner"))?;
        row.map(|row| column(&row, "owner")).transpose()
    }
}

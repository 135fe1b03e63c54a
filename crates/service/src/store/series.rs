//! Series of comparable runs: the point of each ended run, and stored change points.
//!
//! A point is written in the commit that ends its run. Change points are computed by the
//! scheduler, which reads stale series and stores their points.

use llmprof_core::domain::{
    headline::{FigureName, FigureStatistic, Headline, SeriesIdentity, SeriesPoint, series_id},
    ids::RunId,
};
use sqlx::{Connection, QueryBuilder, SqliteConnection, sqlite::SqliteRow};

use super::{
    Store, StoreError, WRITE, column, during, id_of, json, key, rfc3339, savings::set_read,
};

/// Columns of a point and of its run.
const POINT: &str = "select run_id, series, revision, build, driver, points.device, ttft, tpot,
    wall, tokens_per_s, gpu_busy, mfu, energy, means, host, mode, queued_at, state
    from points join runs on runs.id = run_id";

/// A series with its size.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredSeries {
    pub id: String,
    pub identity: SeriesIdentity,
    pub name: String,
    pub device: Option<String>,
    pub runs: u64,
    pub changes: u64,
    /// Its newest run.
    pub last_run: RunId,
}

/// The point of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredPoint {
    pub run: RunId,
    pub series: Option<String>,
    /// Submission of the run, RFC 3339, UTC.
    pub at: String,
    pub revision: Option<String>,
    pub mode: Option<String>,
    pub build: String,
    pub driver: Option<String>,
    pub host: Option<String>,
    pub device: Option<String>,
    pub headline: Headline,
    /// Figures that are means in place of medians; `None` if the report was not read for them.
    pub means: Option<Vec<FigureName>>,
}

impl StoredPoint {
    /// The statistic of a figure; `None` if the figure has none, or was not measured.
    pub fn statistic(&self, figure: FigureName) -> Option<FigureStatistic> {
        self.headline.get(figure).and(figure.statistic(self.means.as_deref()))
    }

    /// The build of the run: its revision, with llmprof, driver and host. Runs without a revision
    /// are of one build from one of the `changes` of their series to the next.
    pub fn build_key(&self, changes: &[StoredChange]) -> String {
        let revision = match &self.revision {
            Some(revision) => format!("r{revision}"),
            None => changes.iter().filter(|it| it.run <= self.run).count().to_string(),
        };
        let Self { build, driver, host, .. } = self;
        serde_json::to_string(&(revision, build, driver, host)).unwrap_or_default()
    }
}

/// A stored change point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StoredChange {
    pub figure: FigureName,
    /// First run after the change.
    pub run: RunId,
    pub before: f64,
    pub after: f64,
    pub p: f64,
}

/// Writes the point of a run within the transaction that ends it.
pub(super) async fn add_point(
    tx: &mut SqliteConnection,
    id: RunId,
    point: Option<&SeriesPoint>,
) -> Result<(), StoreError> {
    let Some(point) = point else { return Ok(()) };
    let identity = serde_json::to_string(&point.identity)
        .map_err(|_| StoreError::Corrupt { id, what: "a series" })?;
    let series = series_id(&point.identity);
    sqlx::query("insert or ignore into series (id, identity, name, device) values (?, ?, ?, ?)")
        .bind(&series)
        .bind(identity)
        .bind(point.identity.get("name").map_or("", String::as_str))
        .bind(&point.device)
        .execute(&mut *tx)
        .await
        .map_err(during("insert a series"))?;
    insert_point(tx, id, Some(series), point).await?;
    set_read(tx, id, Some(point)).await
}

async fn insert_point(
    tx: &mut SqliteConnection,
    id: RunId,
    series: Option<String>,
    point: &SeriesPoint,
) -> Result<(), StoreError> {
    let figures = &point.headline;
    sqlx::query(
        "insert or replace into points (run_id, series, revision, build, driver, host, device,
             ttft, tpot, wall, tokens_per_s, gpu_busy, mfu, energy)
         select ?1, ?2, json_extract(spec, '$.common.revision'), ?3, ?4, ?5, ?6,
             ?7, ?8, ?9, ?10, ?11, ?12, ?13 from runs where id = ?1",
    )
    .bind(key(&id))
    .bind(series)
    .bind(&point.build)
    .bind(&point.driver)
    .bind(&point.host)
    .bind(&point.device)
    .bind(figures.ttft)
    .bind(figures.tpot)
    .bind(figures.wall)
    .bind(figures.tokens_per_s)
    .bind(figures.gpu_busy)
    .bind(figures.mfu)
    .bind(figures.energy)
    .execute(tx)
    .await
    .map_err(during("insert a point"))?;
    Ok(())
}

impl Store {
    /// Series with their newest run first, from those before the series of the newest run `before`.
    pub async fn series_list(
        &self,
        before: Option<RunId>,
        limit: u32,
    ) -> Result<Vec<StoredSeries>, StoreError> {
        let rows = sqlx::query(
            "select id, identity, name, device,
                 (select count(*) from points where series = series.id) as runs,
                 (select count(*) from change_points where series = series.id) as changes,
                 (select max(run_id) from points where series = series.id) as last_run
             from series where last_run is not null and (?1 is null or last_run < ?1)
             order by last_run desc limit ?2",
        )
        .bind(before.as_ref().map(key))
        .bind(limit)
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("list series"))?;
        rows.iter().map(series_of_row).collect()
    }

    /// One series.
    pub async fn series(&self, id: &str) -> Result<Option<StoredSeries>, StoreError> {
        let row = sqlx::query(
            "select id, identity, name, device,
                 (select count(*) from points where series = series.id) as runs,
                 (select count(*) from change_points where series = series.id) as changes,
                 (select max(run_id) from points where series = series.id) as last_run
             from series where id = ? and last_run is not null",
        )
        .bind(id)
        .fetch_optional(&mut *self.reader().await?)
        .await
        .map_err(during("look up a series"))?;
        row.as_ref().map(series_of_row).transpose()
    }

    /// Points of a series, newest first, from those before `before`.
    pub async fn points(
        &self,
        series: &str,
        before: Option<RunId>,
        limit: u32,
    ) -> Result<Vec<StoredPoint>, StoreError> {
        let mut query = QueryBuilder::new(POINT);
        query.push(" where series = ").push_bind(series);
        if let Some(before) = &before {
            query.push(" and run_id < ").push_bind(key(before));
        }
        query.push(" order by run_id desc limit ").push_bind(limit);
        let rows = query.build().fetch_all(&mut *self.reader().await?).await;
        rows.map_err(during("list points"))?.iter().map(point_of_row).collect()
    }

    /// Points of a series after a run, oldest first.
    pub async fn points_after(
        &self,
        series: &str,
        after: RunId,
        limit: u32,
    ) -> Result<Vec<StoredPoint>, StoreError> {
        let mut query = QueryBuilder::new(POINT);
        query.push(" where series = ").push_bind(series);
        query.push(" and run_id > ").push_bind(key(&after));
        query.push(" order by run_id limit ").push_bind(limit);
        let rows = query.build().fetch_all(&mut *self.reader().await?).await;
        rows.map_err(during("list points"))?.iter().map(point_of_row).collect()
    }

    /// The points of these runs; with `previous`, of the previous run in the series of each, under
    /// the id of the given run.
    pub async fn points_of(
        &self,
        ids: &[RunId],
        previous: bool,
    ) -> Result<Vec<(RunId, StoredPoint)>, StoreError> {
        let ids = serde_json::Value::from_iter(ids.iter().map(|id| id.0.simple().to_string()))
            .to_string();
        let own = "select unhex(value) as of, unhex(value) as it from json_each(?)";
        let earlier = "select mine.run_id as of, (select run_id from points as it
                 where it.series = mine.series and it.run_id < mine.run_id
                 order by run_id desc limit 1) as it
             from points as mine where mine.run_id in (select unhex(value) from json_each(?))";
        let pairs = if previous { earlier } else { own };
        let text =
            format!("{} join ({pairs}) on it = run_id", POINT.replace("select", "select of,"));
        let rows = sqlx::query(sqlx::AssertSqlSafe(text))
            .bind(ids)
            .fetch_all(&mut *self.reader().await?)
            .await
            .map_err(during("look up points"))?;
        rows.iter().map(|row| Ok((id_of(column(row, "of")?)?, point_of_row(row)?))).collect()
    }

    /// Change points of a series, by figure and run.
    pub async fn change_points(&self, series: &str) -> Result<Vec<StoredChange>, StoreError> {
        let rows = sqlx::query(
            "select figure, run_id, before, after, p from change_points where series = ?
             order by figure, run_id",
        )
        .bind(series)
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("list change points"))?;
        let change = |row: &SqliteRow| {
            let run = id_of(column(row, "run_id")?)?;
            let (before, after) = (column(row, "before")?, column(row, "after")?);
            let figure = super::word(run, "a figure", column(row, "figure")?)?;
            Ok(StoredChange { figure, run, before, after, p: column(row, "p")? })
        };
        rows.iter().map(change).collect()
    }

    /// A series whose change points are to be computed.
    pub async fn stale_series(&self) -> Result<Option<String>, StoreError> {
        sqlx::query_scalar("select id from series where stale = 1 limit 1")
            .fetch_optional(&mut *self.reader().await?)
            .await
            .map_err(during("look for stale series"))
    }

    /// Replaces the change points of a series from the run `from` on, which were computed while
    /// `last` was its newest run. The series stays stale if it has another one.
    pub async fn store_change_points(
        &self,
        series: &str,
        (from, last): (RunId, RunId),
        changes: &[StoredChange],
    ) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("store change points"))?;
        sqlx::query("delete from change_points where series = ? and run_id >= ?")
            .bind(series)
            .bind(key(&from))
            .execute(&mut *tx)
            .await
            .map_err(during("clear change points"))?;
        for it in changes {
            sqlx::query(
                "insert or replace into change_points (series, figure, run_id, before, after, p)
                 select ?1, ?2, run_id, ?4, ?5, ?6 from points where run_id = ?3 and series = ?1",
            )
            .bind(series)
            .bind(it.figure.as_str())
            .bind(key(&it.run))
            .bind(it.before)
            .bind(it.after)
            .bind(it.p)
            .execute(&mut *tx)
            .await
            .map_err(during("insert a change point"))?;
        }
        sqlx::query(
            "update series set stale = 0 where id = ?1
             and (select max(run_id) from points where series = ?1) = ?2",
        )
        .bind(series)
        .bind(key(&last))
        .execute(&mut *tx)
        .await
        .map_err(during("store change points"))?;
        tx.commit().await.map_err(during("store change points"))
    }

    /// Runs that ended with a report and have no point, newest first.
    pub async fn runs_without_point(&self, limit: u32) -> Result<Vec<RunId>, StoreError> {
        let ids: Vec<Vec<u8>> = sqlx::query_scalar(
            "select id from runs where state in ('succeeded', 'partial')
               and not exists (select 1 from points where run_id = id)
             order by id desc limit ?",
        )
        .bind(limit)
        .fetch_all(&mut *self.reader().await?)
        .await
        .map_err(during("list runs without a point"))?;
        ids.iter().map(|id| id_of(id)).collect()
    }

    /// Adds the point of an ended run; `None` if it has none, so that it is not looked at again.
    pub async fn add_missing_point(
        &self,
        id: RunId,
        point: Option<&SeriesPoint>,
    ) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let mut tx = writer.begin_with(WRITE).await.map_err(during("insert a point"))?;
        match point {
            Some(point) => add_point(&mut tx, id, Some(point)).await?,
            None => insert_point(&mut tx, id, None, &SeriesPoint::default()).await?,
        }
        tx.commit().await.map_err(during("insert a point"))
    }
}

fn series_of_row(row: &SqliteRow) -> Result<StoredSeries, StoreError> {
    let last_run = id_of(column(row, "last_run")?)?;
    Ok(StoredSeries {
        id: column(row, "id")?,
        identity: json(last_run, "a series", column(row, "identity")?)?,
        name: column(row, "name")?,
        device: column(row, "device")?,
        runs: column::<i64>(row, "runs")?.unsigned_abs(),
        changes: column::<i64>(row, "changes")?.unsigned_abs(),
        last_run,
    })
}

fn point_of_row(row: &SqliteRow) -> Result<StoredPoint, StoreError> {
    let mode: String = column(row, "mode")?;
    let run = id_of(column(row, "run_id")?)?;
    let means: Option<String> = column(row, "means")?;
    Ok(StoredPoint {
        run,
        means: json(run, "the means of a point", means.as_deref().unwrap_or("null"))?,
        series: column(row, "series")?,
        at: rfc3339(column(row, "queued_at")?),
        revision: column(row, "revision")?,
        mode: Some(mode).filter(|mode| !mode.is_empty()),
        build: column(row, "build")?,
        driver: column(row, "driver")?,
        host: column(row, "host")?,
        device: column(row, "device")?,
        headline: Headline {
            ttft: column(row, "ttft")?,
            tpot: column(row, "tpot")?,
            wall: column(row, "wall")?,
            tokens_per_s: column(row, "tokens_per_s")?,
            gpu_busy: column(row, "gpu_busy")?,
            mfu: column(row, "mfu")?,
            energy: column(row, "energy")?,
        },
    })
}

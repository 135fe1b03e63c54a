//! Change points of series, computed when a run ends, and points of runs that ended before this
//! version.

use std::{io, path::Path};

use llmprof_analyze::{
    parse::{aliases, stored::read_own},
    series::change_points::{WINDOW, change_points},
};
use llmprof_core::{
    domain::{
        headline::{FigureName, SeriesPoint},
        ids::RunId,
    },
    layout,
};
use llmprof_report::{diff::stored, headline, profile::LLMProfileReport};
use tokio_util::sync::CancellationToken;

use super::{Context, regressions};
use crate::{
    runtime,
    store::{Store, StoreError, StoredChange, StoredPoint},
};

/// Newest runs of a series whose change points are computed again.
pub const RECENT: u32 = 500;
/// Runs whose missing points are added in one go.
const BATCH: u32 = 100;
/// Maximum size of a report that is read for a missing point.
const MAX_REPORT: u64 = 256 << 20;

/// Computes the change points of all stale series. A failure is logged: a series stays stale until
/// its next run ends.
pub(super) async fn refresh(store: &Store) {
    if let Err(error) = refresh_all(store).await {
        tracing::error!(error = %llmprof_core::chain(&error), "cannot compute change points");
    }
}

async fn refresh_all(store: &Store) -> Result<(), StoreError> {
    while let Some(series) = store.stale_series().await? {
        let mut points = store.points(&series, None, RECENT).await?;
        points.reverse();
        let Some(last) = points.last().map(|it| it.run) else { return Ok(()) };
        let computed = runtime::blocking(move || {
            let (from, changes) = recent_changes(&points);
            (from, changes, points)
        });
        let Ok((from, changes, points)) = computed.await else { return Ok(()) };
        // First: a series that is still stale is announced by the next service.
        regressions::announce(store, &series, &points, &changes).await?;
        store.store_change_points(&series, (from.unwrap_or(last), last), &changes).await?;
    }
    Ok(())
}

/// The run from which change points are replaced, and the change points from there on. In a longer
/// series, change points of the first window stay as they are: their past is not among the points.
fn recent_changes(points: &[StoredPoint]) -> (Option<RunId>, Vec<StoredChange>) {
    let settled = if points.len() < RECENT as usize { 0 } else { WINDOW };
    let from = points.get(settled).map(|it| it.run);
    let mut changes = changes(points);
    changes.retain(|it| from.is_some_and(|from| it.run >= from));
    (from, changes)
}

/// The change points of each figure. Runs without the figure are left out, and so are runs with
/// another statistic of it than the newest run.
fn changes(points: &[StoredPoint]) -> Vec<StoredChange> {
    let mut found = Vec::new();
    for figure in FigureName::ALL {
        let has_figure = |it: &&StoredPoint| it.headline.get(*figure).is_some();
        let newest = points.iter().rfind(has_figure).and_then(|it| it.statistic(*figure));
        let is_same = |it: &&StoredPoint| it.statistic(*figure) == newest;
        let same = points.iter().filter(is_same);
        let known: Vec<_> =
            same.filter_map(|it| Some((it.run, it.headline.get(*figure)?))).collect();
        let values: Vec<f64> = known.iter().map(|(_, value)| *value).collect();
        found.extend(change_points(&values).into_iter().map(|it| StoredChange {
            figure: *figure,
            run: known[it.index].0,
            before: it.before,
            after: it.after,
            p: it.p,
        }));
    }
    found
}

/// Adds the points of runs that ended before this version, from their sealed reports, while no
/// pass measures.
pub async fn add_missing(cx: Context, stop: CancellationToken) {
    let mut wait = cx.quiet_wait();
    let added = async {
        loop {
            let ids = cx.store.runs_without_point(BATCH).await?;
            if ids.is_empty() {
                refresh(&cx.store).await;
                add_read(&cx, &stop).await?;
                refresh(&cx.store).await;
                return Ok::<_, StoreError>(());
            }
            for id in ids {
                if !wait.wait(&stop).await {
                    return Ok(());
                }
                let point = read_point(&cx, id).await;
                cx.store.add_missing_point(id, point.as_ref()).await?;
            }
        }
    };
    if let Err(error) = added.await {
        tracing::error!(error = %llmprof_core::chain(&error), "cannot add points of earlier runs");
    }
}

/// Adds the promised savings and the means of points that were stored before this version.
async fn add_read(cx: &Context, stop: &CancellationToken) -> Result<(), StoreError> {
    let mut wait = cx.quiet_wait();
    loop {
        let ids = cx.store.runs_with_unread_report(BATCH).await?;
        if ids.is_empty() {
            return Ok(());
        }
        for id in ids {
            if !wait.wait(stop).await {
                return Ok(());
            }
            let point = read_point(cx, id).await;
            cx.store.add_read(id, point.as_ref()).await?;
        }
    }
}

async fn read_point(cx: &Context, id: RunId) -> Option<SeriesPoint> {
    let path = cx.runs.join(id.to_string()).join(layout::REPORT_JSON);
    runtime::blocking(move || sealed_point(&path)).await.ok().flatten()
}

/// The point of a sealed report; `None` if it cannot be read.
fn sealed_point(path: &Path) -> Option<SeriesPoint> {
    sealed_report(path)
        .map(|report| headline::point(&report))
        .inspect_err(|error| {
            let path = path.display();
            tracing::warn!(%path, %error, "cannot read a run's report for its series");
        })
        .ok()
}

/// A sealed report, also one of an earlier version.
pub(super) fn sealed_report(path: &Path) -> io::Result<LLMProfileReport> {
    if path.metadata()?.len() > MAX_REPORT {
        return Err(io::Error::other("the report is too large"));
    }
    let report = stored(&read_own(path)?, None, aliases::read).map_err(io::Error::other)?;
    Ok(report.report)
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use llmprof_core::domain::{
        headline::{FigureStatistic, Headline},
        mode::Mode,
        outcome::Outcome,
        state::RunState,
        subject::RunSpec,
    };

    use super::*;
    use crate::store::{NewRun, Submitted};

    /// Submits a run and ends it with these figures.
    pub(in crate::scheduler) async fn ended_run(store: &Store, headline: Headline) -> RunId {
        let spec = RunSpec::tiny(Mode::BASIC, 0, &[]);
        let new = NewRun { id: None, spec, idempotency: None, owner: None };
        let submitted = store.submit(new).await.unwrap();
        let Submitted::New(run) = submitted else { panic!("{submitted:?}") };
        let lease = Duration::from_secs(60);
        let claimed = store.claim("cpu:worker", &["cpu"], lease).await.unwrap().unwrap();
        let identity = [("name".to_owned(), "tiny".to_owned())].into();
        let point = SeriesPoint { identity, headline, ..SeriesPoint::default() };
        let outcome = Outcome {
            state: RunState::Succeeded,
            failed_step: None,
            message: None,
            findings: vec![],
            artifacts: vec![],
            series: Some(Box::new(point)),
        };
        assert!(store.finish(&claimed, &outcome).await.unwrap());
        run.id
    }

    /// Points of runs with one time per token each.
    pub(in crate::scheduler) fn points(values: impl Iterator<Item = f64>) -> Vec<StoredPoint> {
        let point = |value| StoredPoint {
            run: RunId::now(),
            series: None,
            at: String::new(),
            revision: None,
            mode: None,
            build: String::new(),
            driver: None,
            host: None,
            device: None,
            headline: Headline { tpot: Some(value), ..Headline::default() },
            means: Some(vec![]),
        };
        values.map(point).collect()
    }

    #[tokio::test]
    async fn the_statistic_of_a_point_is_unknown_if_its_report_was_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("llmprof.db")).await.unwrap();
        let headline = Headline { tpot: Some(5.0), ..Headline::default() };
        let run = ended_run(&store, headline).await;
        refresh(&store).await;
        let of = |means| SeriesPoint { headline, means, ..SeriesPoint::default() };
        for (point, expected) in [
            (Some(of(vec![])), FigureStatistic::Median),
            (Some(of(vec![FigureName::Tpot])), FigureStatistic::Mean),
            (None, FigureStatistic::Unknown),
        ] {
            assert_eq!(store.stale_series().await.unwrap(), None);
            store.add_read(run, point.as_ref()).await.unwrap();
            assert!(store.stale_series().await.unwrap().is_some(), "{expected}");
            refresh(&store).await;
            let found = store.points_of(&[run], false).await.unwrap().remove(0).1;
            assert_eq!(found.statistic(FigureName::Tpot), Some(expected));
            assert_eq!(found.statistic(FigureName::Ttft), None, "not measured");
            assert_eq!(store.runs_with_unread_report(9).await.unwrap(), [], "{expected}");
        }
    }

    #[test]
    fn a_change_of_the_statistic_is_not_a_change_of_the_figure() {
        let means = [Some(vec![FigureName::Tpot]), None];
        for earlier in means {
            let levels = (0..80).map(|run| {
                if run < 20 {
                    5.0
                } else if run < 60 {
                    10.0
                } else {
                    20.0
                }
            });
            let mut all = points(levels);
            for it in &mut all[..20] {
                it.means.clone_from(&earlier);
            }
            let found: Vec<RunId> = changes(&all).iter().map(|it| it.run).collect();
            assert_eq!(found, [all[60].run], "{earlier:?}");
        }
    }

    #[test]
    fn change_points_whose_past_is_not_read_again_stay_as_they_are() {
        let step = |n: usize, at: &[usize]| {
            let at = at.to_vec();
            let level = move |run| 10.0 + at.iter().filter(|it| run >= **it).count() as f64;
            points((0..n).map(level))
        };
        let long = step(RECENT as usize, &[20, 200]);
        let (from, changes) = recent_changes(&long);
        assert_eq!(from, Some(long[WINDOW].run));
        assert_eq!(changes.iter().map(|it| it.run).collect::<Vec<_>>(), [long[200].run]);
        let short = step(100, &[20]);
        let (from, changes) = recent_changes(&short);
        assert_eq!(from, Some(short[0].run));
        assert_eq!(changes.iter().map(|it| it.run).collect::<Vec<_>>(), [short[20].run]);
        assert_eq!(recent_changes(&[]), (None, vec![]));
    }
}

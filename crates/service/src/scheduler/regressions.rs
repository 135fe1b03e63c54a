//! Announcement of changes to the worse, when the change points of a series were computed.
//!
//! Change points move as runs are added, and some vanish: a change close to an announced one is the
//! same change.

use llmprof_analyze::series::change_points::WINDOW;
use llmprof_core::domain::{
    headline::FigureName,
    ids::RunId,
    webhook_event::{EventMessage, WebhookEvent},
};
use llmprof_report::format::decimals;
use serde_json::{Map, json};

use crate::store::{Store, StoreError, StoredChange, StoredPoint};

/// Runs between two change points that are one change.
const NEAR: usize = 10;

/// Announces the changes of a series that are to the worse, recent and not yet announced.
pub(super) async fn announce(
    store: &Store,
    series: &str,
    points: &[StoredPoint],
    changes: &[StoredChange],
) -> Result<(), StoreError> {
    let announced = store.announced_changes(series).await?;
    let new = unannounced(points, changes, &announced);
    let Some(first) = new.first() else { return Ok(()) };
    let Some(of) = store.series(series).await? else { return Ok(()) };
    let found = new.iter().map(|it| {
        json!({
            "figure": it.figure, "run_id": it.run, "before": it.before, "after": it.after,
            "change_pct": change_pct(it), "p": it.p,
        })
    });
    let body = json!({
        "run_id": first.run, "series": series, "name": of.name, "device": of.device,
        "changes": found.collect::<Vec<_>>(), "link": format!("/series/{series}"),
        "message": new.iter().map(|it| sentence(points, it)).collect::<Vec<_>>().join("; "),
    });
    let body = body.as_object().map_or_else(Map::new, Map::clone);
    let message = EventMessage { event: WebhookEvent::RegressionFound, run: first.run, body };
    store.announce_changes(series, &new, &message).await
}

fn change_pct(it: &StoredChange) -> f64 {
    100.0 * (it.after / it.before - 1.0)
}

fn sentence(points: &[StoredPoint], it: &StoredChange) -> String {
    let point = points.iter().find(|point| point.run == it.run);
    let statistic = point.and_then(|point| point.statistic(it.figure));
    let pct = change_pct(it);
    let sign = if pct > 0.0 { "+" } else { "" };
    format!(
        "{} {sign}{} % ({} -> {} {}) since run {}",
        it.figure.title_by(statistic),
        decimals(pct, 1),
        decimals(it.before, 3),
        decimals(it.after, 3),
        it.figure.unit(),
        it.run
    )
}

/// The changes to the worse of the newest window, without those near an announced one. `points` are
/// the newest of the series, oldest first.
fn unannounced(
    points: &[StoredPoint],
    changes: &[StoredChange],
    announced: &[(FigureName, RunId)],
) -> Vec<StoredChange> {
    let place = |run: RunId| points.iter().position(|it| it.run == run);
    let is_near = |figure, at: usize| {
        let same = announced.iter().filter(|it| it.0 == figure).filter_map(|it| place(it.1));
        same.into_iter().any(|known| known.abs_diff(at) <= NEAR)
    };
    let is_worse = |it: &StoredChange| (it.after > it.before) == it.figure.lower_is_better();
    let is_new = |it: &&StoredChange| {
        is_worse(it)
            && place(it.run)
                .is_some_and(|at| at + WINDOW >= points.len() && !is_near(it.figure, at))
    };
    changes.iter().filter(is_new).copied().collect()
}

#[cfg(test)]
mod tests {
    use llmprof_core::domain::headline::Headline;

    use super::*;
    use crate::scheduler::series::tests::{ended_run, points};

    fn change(figure: FigureName, at: &StoredPoint, after: f64) -> StoredChange {
        StoredChange { figure, run: at.run, before: 10.0, after, p: 1e-6 }
    }

    #[test]
    fn a_change_is_announced_if_it_is_worse_recent_and_not_near_an_announced_one() {
        use FigureName::{TokensPerS, Tpot};
        let runs = points((0..100).map(f64::from));
        let [old, slower, faster, less] = [
            change(Tpot, &runs[49], 11.0),
            change(Tpot, &runs[60], 11.0),
            change(Tpot, &runs[80], 9.0),
            change(TokensPerS, &runs[60], 9.0),
        ];
        let all = [old, slower, faster, less];
        assert_eq!(unannounced(&runs, &all, &[]), [slower, less]);
        for (place, left) in [(60, 1), (50, 1), (70, 1), (49, 2), (71, 2)] {
            let announced = [(Tpot, runs[place].run)];
            assert_eq!(unannounced(&runs, &all, &announced).len(), left, "announced at {place}");
        }
        let removed = [(Tpot, RunId::now())];
        assert_eq!(unannounced(&runs, &all, &removed).len(), 2, "its run was deleted");
    }

    #[tokio::test]
    async fn a_series_that_becomes_slower_is_announced_once_to_subscribers() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("llmprof.db")).await.unwrap();
        let events = [WebhookEvent::RegressionFound, WebhookEvent::GateFailed];
        store.set_webhooks(&["target".into()], &events).await.unwrap();
        let mut ids = Vec::new();
        for at in 0..40 {
            let value = if at < 30 { 10.0 } else { 12.0 } + f64::from(at % 3) * 0.01;
            let headline = Headline { tpot: Some(value), ..Headline::default() };
            ids.push(ended_run(&store, headline).await);
            crate::scheduler::series::refresh(&store).await;
        }
        let sent = store.due_deliveries(9, 0).await.unwrap();
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert!(sent[0].message_id.starts_with("regression_found_"), "{}", sent[0].message_id);
        let body: serde_json::Value = serde_json::from_str(&sent[0].body).unwrap();
        assert_eq!((&body["event"], &body["name"]), (&json!("regression_found"), &json!("tiny")));
        let found = &body["changes"][0];
        assert_eq!(found["figure"], "tpot");
        let first: RunId = found["run_id"].as_str().unwrap().parse().unwrap();
        assert!(ids[28..32].contains(&first), "the change is at run 30");
        let text = body["message"].as_str().unwrap();
        let title = "Median time per output token +";
        assert!(text.starts_with(title) && text.contains("ms)"), "{text}");
    }
}

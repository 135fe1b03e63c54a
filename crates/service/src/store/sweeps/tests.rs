//! Sweeps in the store: points are queued a few at a time, once each, and settle.

use std::time::Duration;

use llmprof_core::domain::{
    command::ParamValue,
    headline::SeriesPoint,
    ids::{RunId, SweepId},
    mode::Mode,
    outcome::Outcome,
    state::RunState,
    subject::{RunSpec, Subject},
    sweep::{SweepFigures, SweepPointState, SweepState},
};

use super::{
    EndedPoint, NewSweep, NewSweepPoint, ReuseRule, StartedSweep, StoredSweep, SweepChange,
    SweepDeletion,
};
use crate::store::{NewRun, Owner, Quota, Store};

const LEASE: Duration = Duration::from_secs(60);

fn spec(new_tokens: u32) -> RunSpec {
    let mut spec = RunSpec::tiny(Mode::BASIC, 0, &[]);
    if let Subject::Model(model) = &mut spec.subject {
        model.workload.max_new_tokens = new_tokens;
    }
    spec
}

fn sweep(points: u32, max_minutes: u32) -> NewSweep {
    let point = |position: u32| NewSweepPoint {
        axes: [("new_tokens".to_owned(), ParamValue::Int(position.into()))].into(),
        spec: if position == 1 { Err("too long".into()) } else { Ok(spec(position)) },
    };
    NewSweep {
        name: None,
        owner: None,
        request: "{}".into(),
        max_queued: 2,
        max_minutes,
        reuse: true,
        per_owner: 2,
        points: (0..points).map(point).collect(),
    }
}

async fn open() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("llmprof.db")).await.unwrap();
    (folder, store)
}

async fn start(store: &Store, new: &NewSweep) -> SweepId {
    match store.start_sweep(new).await.unwrap() {
        StartedSweep::New(sweep) => sweep.id,
        other => panic!("{other:?}"),
    }
}

fn rule() -> ReuseRule {
    ReuseRule { build: "b".into(), host: Some("h".into()), devices: None }
}

fn owner(name: &str) -> Owner {
    Owner { name: name.into(), quota: Quota::default() }
}

async fn advance(store: &Store, id: SweepId) -> StoredSweep {
    store.advance_sweep(id, &rule(), owner).await.unwrap();
    store.sweep(id).await.unwrap().unwrap()
}

/// Executes the next run; returns its id.
async fn execute(store: &Store, state: RunState) -> RunId {
    let claimed = store.claim("cpu:worker", &["cpu"], LEASE).await.unwrap().unwrap();
    let point = SeriesPoint {
        build: "b".into(),
        host: Some("h".into()),
        device: Some("d".into()),
        ..SeriesPoint::default()
    };
    let outcome = Outcome {
        state,
        failed_step: None,
        message: None,
        findings: vec![],
        artifacts: vec![],
        series: Some(Box::new(point)),
    };
    assert!(store.finish(&claimed, &outcome).await.unwrap());
    claimed.id
}

async fn settle(store: &Store) -> Vec<EndedPoint> {
    let points = store.ended_points(100).await.unwrap();
    for point in &points {
        store.settle_point(point, Ok(&SweepFigures::default())).await.unwrap();
    }
    points
}

async fn states(store: &Store, id: SweepId) -> Vec<SweepPointState> {
    store.sweep_points(id).await.unwrap().iter().map(|it| it.state).collect()
}

#[tokio::test]
async fn points_are_queued_a_few_at_a_time_and_the_sweep_ends_with_the_last() {
    use SweepPointState::{Gap, Measured, Queued, Waiting};
    let (_folder, store) = open().await;
    let id = start(&store, &sweep(5, 60)).await;
    assert_eq!(states(&store, id).await, [Waiting, Gap, Waiting, Waiting, Waiting]);
    for _ in 0..2 {
        let stored = advance(&store, id).await;
        assert_eq!((stored.counts.queued, stored.counts.waiting, stored.counts.gaps), (2, 2, 1));
    }
    let first = execute(&store, RunState::Succeeded).await;
    assert_eq!(store.run(first).await.unwrap().unwrap().sweep, Some(id));
    assert_eq!(settle(&store).await.len(), 1);
    advance(&store, id).await;
    assert_eq!(states(&store, id).await, [Measured, Gap, Queued, Queued, Waiting]);
    assert_eq!(store.running_sweeps().await.unwrap(), [id]);
    for _ in 0..3 {
        execute(&store, RunState::Succeeded).await;
        settle(&store).await;
        advance(&store, id).await;
    }
    let stored = store.sweep(id).await.unwrap().unwrap();
    assert_eq!((stored.state, stored.counts.measured), (SweepState::Done, 4));
    assert!(stored.ended_at.is_some() && store.running_sweeps().await.unwrap().is_empty());
    assert_eq!(store.pause_sweep(id).await.unwrap(), SweepChange::Ended(SweepState::Done));
}

#[tokio::test]
async fn a_point_that_was_measured_before_takes_that_run_unless_build_or_host_differ() {
    let (_folder, store) = open().await;
    let new = NewRun { id: None, spec: spec(0), idempotency: None, owner: None };
    store.submit(new).await.unwrap();
    let earlier = execute(&store, RunState::Succeeded).await;
    let id = start(&store, &sweep(1, 60)).await;
    for other in [
        ReuseRule { build: "c".into(), ..rule() },
        ReuseRule { host: Some("i".into()), ..rule() },
        ReuseRule { devices: Some(vec![("auto".into(), "e".into())]), ..rule() },
        ReuseRule { devices: Some(vec![("cpu".into(), "d".into())]), ..rule() },
    ] {
        let other_id = start(&store, &sweep(1, 60)).await;
        assert_eq!(store.advance_sweep(other_id, &other, owner).await.unwrap(), 1, "{other:?}");
        store.cancel_sweep(other_id).await.unwrap();
    }
    let same = ReuseRule { devices: Some(vec![("auto".into(), "d".into())]), ..rule() };
    assert_eq!(store.advance_sweep(id, &same, owner).await.unwrap(), 0);
    let point = store.sweep_points(id).await.unwrap().remove(0);
    assert_eq!((point.run, point.is_reused), (Some(earlier), true));
    settle(&store).await;
    let counts = advance(&store, id).await.counts;
    assert_eq!((counts.measured, counts.reused), (1, 1));
    // A failed run measured nothing, and a sweep may want new runs.
    let fresh = NewSweep { reuse: false, ..sweep(1, 60) };
    let id = start(&store, &fresh).await;
    assert_eq!(store.advance_sweep(id, &rule(), owner).await.unwrap(), 1);
}

#[tokio::test]
async fn a_pause_takes_queued_points_back_and_a_cancellation_makes_gaps_of_them() {
    use SweepPointState::{Gap, Queued, Running, Waiting};
    let (_folder, store) = open().await;
    let id = start(&store, &sweep(5, 60)).await;
    advance(&store, id).await;
    let claimed = store.claim("cpu:worker", &["cpu"], LEASE).await.unwrap().unwrap();
    assert_eq!(store.pause_sweep(id).await.unwrap(), SweepChange::Changed);
    assert_eq!(store.pause_sweep(id).await.unwrap(), SweepChange::Unchanged);
    advance(&store, id).await;
    assert_eq!(states(&store, id).await, [Running, Gap, Waiting, Waiting, Waiting]);
    assert_eq!(store.resume_sweep(id).await.unwrap(), SweepChange::Changed);
    advance(&store, id).await;
    assert_eq!(states(&store, id).await, [Running, Gap, Queued, Queued, Waiting]);
    assert_eq!(store.delete_sweep(id).await.unwrap(), SweepDeletion::Active);
    assert_eq!(store.cancel_sweep(id).await.unwrap(), SweepChange::Changed);
    assert_eq!(states(&store, id).await, [Running, Gap, Gap, Gap, Gap]);
    assert!(store.run(claimed.id).await.unwrap().unwrap().cancel_requested);
    assert_eq!(store.delete_sweep(id).await.unwrap(), SweepDeletion::Active);
    let outcome = Outcome {
        state: RunState::Cancelled,
        failed_step: None,
        message: None,
        findings: vec![],
        artifacts: vec![],
        series: None,
    };
    assert!(store.finish(&claimed, &outcome).await.unwrap());
    let ended = store.ended_points(9).await.unwrap();
    store.settle_point(&ended[0], Err("its run was cancelled")).await.unwrap();
    assert_eq!(states(&store, id).await, [Gap; 5]);
    assert_eq!(store.delete_sweep(id).await.unwrap(), SweepDeletion::Deleted);
    assert_eq!(store.run(claimed.id).await.unwrap().unwrap().sweep, None);
    assert_eq!(store.delete_sweep(id).await.unwrap(), SweepDeletion::NotFound);
}

#[tokio::test]
async fn points_that_have_not_started_in_time_are_gaps() {
    let (_folder, store) = open().await;
    let id = start(&store, &sweep(4, 0)).await;
    let stored = advance(&store, id).await;
    assert_eq!((stored.state, stored.counts.gaps), (SweepState::Done, 4));
    let reason = store.sweep_points(id).await.unwrap()[0].gap.clone();
    assert_eq!(reason.as_deref(), Some("not started within 0 minutes (limits.max_minutes)"));
}

#[tokio::test]
async fn quotas_of_the_owner_refuse_further_sweeps_and_delay_points() {
    let (_folder, store) = open().await;
    let quota = Quota { queued_runs: 1, disk_bytes: 0 };
    let limited = |name: &str| Owner { name: name.into(), quota };
    let new = NewSweep { owner: Some(limited("ann")), ..sweep(4, 60) };
    let id = start(&store, &new).await;
    assert_eq!(store.advance_sweep(id, &rule(), limited).await.unwrap(), 1);
    assert_eq!(store.advance_sweep(id, &rule(), limited).await.unwrap(), 0);
    assert!(matches!(store.start_sweep(&new).await.unwrap(), StartedSweep::Refused(_)));
    let free = NewSweep { owner: Some(owner("ann")), ..sweep(4, 60) };
    start(&store, &free).await;
    assert!(matches!(store.start_sweep(&free).await.unwrap(), StartedSweep::TooMany(2)));
    start(&store, &sweep(1, 60)).await;
}

#[tokio::test]
async fn a_point_whose_run_was_deleted_is_found() {
    let (_folder, store) = open().await;
    let id = start(&store, &sweep(1, 60)).await;
    advance(&store, id).await;
    let run = execute(&store, RunState::Succeeded).await;
    store.delete(run).await.unwrap();
    let ended = store.ended_points(9).await.unwrap();
    assert_eq!((ended.len(), ended[0].run, ended[0].state), (1, run, None));
}

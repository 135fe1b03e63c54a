//! Sessions in the store: their order with runs, quota, leases, and the runs of an ended one.

use std::{collections::BTreeMap, time::Duration};

use llmprof_core::domain::{
    command::CommandCall,
    ids::SessionId,
    mode::Mode,
    profiling::Profiling,
    session::{SessionSpec, SessionState},
    state::RunState,
    subject::{CommandSubject, Passes, RunSpec, Subject},
};

use super::{ClaimedSession, EndedSession, NewSession, SessionEndRequest, SessionRenewal};
use crate::store::{NewRun, StartedSession, Store, Submitted};

const LEASE: Duration = Duration::from_secs(60);

fn call(session: Option<SessionId>) -> CommandCall {
    CommandCall { command: "serve".into(), params: BTreeMap::new(), gpus: None, session }
}

fn session(owner: Option<&str>) -> NewSession {
    let spec = SessionSpec {
        call: call(None),
        device: "auto".into(),
        lifetime_s: 100,
        label: None,
        nsys: Profiling::bundled(&Mode::LIGHT).unwrap().nsys,
    };
    NewSession { id: None, spec, owner: owner.map(str::to_owned), per_owner: 2 }
}

async fn open() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("llmprof.db")).await.unwrap();
    (folder, store)
}

async fn start(store: &Store, owner: Option<&str>) -> Option<SessionId> {
    match store.start_session(&session(owner)).await.unwrap() {
        StartedSession::New(session) => Some(session.id),
        StartedSession::TooMany(_) => None,
    }
}

/// Submits a run, on a session or for any device.
async fn submit(store: &Store, session: Option<SessionId>) -> Submitted {
    let mut spec = RunSpec::tiny(Mode::LIGHT, 0, &[]);
    if session.is_some() {
        let passes = Passes {
            mode: Mode::LIGHT,
            repeats: 1,
            warmup: 0,
            device: "auto".into(),
            profiling: None,
        };
        spec.subject = Subject::Command(CommandSubject { call: call(session), passes });
    }
    store.submit(NewRun { id: None, spec, idempotency: None, owner: None }).await.unwrap()
}

fn limits() -> BTreeMap<String, usize> {
    [("auto".to_owned(), 1), ("cpu".to_owned(), 1)].into()
}

async fn claim(store: &Store, id: SessionId) -> ClaimedSession {
    store.claim_session(id, "cpu:w", &["cpu"], LEASE).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_session_is_claimed_in_the_order_of_the_queue_and_its_runs_by_itself_alone() {
    let (_folder, store) = open().await;
    let Submitted::New(before) = submit(&store, None).await else { panic!("refused") };
    let id = start(&store, None).await.unwrap();
    let Submitted::New(of_session) = submit(&store, Some(id)).await else { panic!("refused") };
    let first = store.first_for(&limits()).await.unwrap().map(|it| it.0);
    assert_eq!(first, Some(before.id), "the run of the session is not for other workers");
    let run = store.claim("cpu:w", &["cpu"], LEASE).await.unwrap().unwrap();
    assert_eq!(run.id, before.id);
    assert!(store.claim("cpu:w", &["cpu"], LEASE).await.unwrap().is_none());

    let Submitted::New(after) = submit(&store, None).await else { panic!("refused") };
    let first = store.first_session_for(&limits(), Some(after.id)).await.unwrap();
    assert_eq!(first, Some((id, 1)));
    claim(&store, id).await;
    assert_eq!(store.first_session_for(&limits(), None).await.unwrap(), None, "it is held");
    let run = store.claim_of_session(id, "cpu:w", &["cpu"], LEASE).await.unwrap().unwrap();
    assert_eq!(run.id, of_session.id);
    let shown = store.session(id).await.unwrap().unwrap();
    assert_eq!((shown.runs, shown.running), (1, Some(run.id)));
}

#[tokio::test]
async fn an_owner_has_as_many_sessions_as_the_quota_allows() {
    let (_folder, store) = open().await;
    let ann = [start(&store, Some("ann")).await, start(&store, Some("ann")).await];
    assert!(ann.iter().all(Option::is_some));
    assert_eq!(start(&store, Some("ann")).await, None);
    assert!(start(&store, Some("bob")).await.is_some() && start(&store, None).await.is_some());
    let ended = store.request_session_end(ann[0].unwrap()).await.unwrap();
    assert_eq!(ended, SessionEndRequest::Ended);
    assert!(start(&store, Some("ann")).await.is_some(), "an ended session does not count");
}

#[tokio::test]
async fn the_end_of_a_session_fails_its_queued_runs_and_refuses_further_ones() {
    let (_folder, store) = open().await;
    let id = start(&store, None).await.unwrap();
    let held = claim(&store, id).await;
    assert_eq!(store.renew_session(&held, LEASE).await.unwrap(), SessionRenewal::Kept);
    store.set_session_state(&held, SessionState::Ready).await.unwrap();
    let Submitted::New(run) = submit(&store, Some(id)).await else { panic!("refused") };
    assert_eq!(store.request_session_end(id).await.unwrap(), SessionEndRequest::Requested);
    assert_eq!(store.renew_session(&held, LEASE).await.unwrap(), SessionRenewal::EndRequested);
    assert_eq!(store.session(id).await.unwrap().unwrap().state, SessionState::Ending);
    assert!(matches!(submit(&store, Some(id)).await, Submitted::SessionEnded(it) if it == id));

    let other = ClaimedSession { worker: "cpu:other".into(), ..held.clone() };
    let state = SessionState::Ended;
    let ended = EndedSession { state, message: "on request".into(), log: Some("bye".into()) };
    let end = async |by| store.end_session(by, &ended).await.unwrap();
    assert_eq!(end(&other).await, None, "another worker changes nothing");
    assert_eq!(end(&held).await, Some(vec![run.id]));
    assert_eq!(end(&held).await, None);
    let run = store.run(run.id).await.unwrap().unwrap();
    assert_eq!(run.state, RunState::Failed);
    assert!(run.message.unwrap().ends_with("is ended: on request"));
    assert_eq!(run.findings[0].id, "session_ended");
    assert_eq!(store.renew_session(&held, LEASE).await.unwrap(), SessionRenewal::Lost);
    assert_eq!(store.request_session_end(id).await.unwrap(), SessionEndRequest::AlreadyEnded);
}

#[tokio::test]
async fn a_session_without_its_worker_is_lost_and_one_that_waited_too_long_fails() {
    let (_folder, store) = open().await;
    let (held, mut late) = (start(&store, None).await.unwrap(), session(None));
    claim(&store, held).await;
    late.spec.lifetime_s = 0;
    store.start_session(&late).await.unwrap();
    assert_eq!(store.abandoned_sessions(false).await.unwrap(), []);
    assert_eq!(store.abandoned_sessions(true).await.unwrap(), [held]);
    store.lose_sessions(&[held]).await.unwrap();
    while store.expire_waiting_sessions().await.unwrap() == 0 {}
    let states = store.sessions(9).await.unwrap().into_iter().map(|it| it.state);
    assert_eq!(states.collect::<Vec<_>>(), [SessionState::Failed, SessionState::Lost]);
}

#[tokio::test]
async fn a_run_that_is_requeued_after_the_end_of_its_session_fails() {
    let (_folder, store) = open().await;
    let id = start(&store, None).await.unwrap();
    let held = claim(&store, id).await;
    let Submitted::New(_) = submit(&store, Some(id)).await else { panic!("refused") };
    let run = store.claim_of_session(id, "cpu:w", &["cpu"], LEASE).await.unwrap().unwrap();
    let ended =
        EndedSession { state: SessionState::Ended, message: "on request".into(), log: None };
    assert_eq!(store.end_session(&held, &ended).await.unwrap(), Some(vec![]), "it is running");
    assert_eq!(store.fail_runs_of_ended_sessions().await.unwrap(), []);
    assert!(store.release(&run).await.unwrap());
    assert_eq!(store.fail_runs_of_ended_sessions().await.unwrap(), [run.id]);
    assert_eq!(store.fail_runs_of_ended_sessions().await.unwrap(), []);
    let run = store.run(run.id).await.unwrap().unwrap();
    assert_eq!(run.state, RunState::Failed);
    assert!(run.message.unwrap().ends_with("is ended: on request"));
    assert_eq!(run.findings[0].id, "session_ended");
}

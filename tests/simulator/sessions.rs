//! Clients of sessions: they start them, submit runs for them and end them, and remember what they
//! saw.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llmprof_core::domain::{
    command::{CommandCall, Commands},
    ids::SessionId,
    mode::Mode,
    profiling::Profiling,
    session::{SessionSpec, SessionState},
    subject::{CommandSubject, Common, Passes, RunSpec, Subject},
};
use llmprof_service::store::{NewSession, SessionEndRequest, StartedSession, StoredSession};

use super::{
    client::{self, Clients},
    service::Service,
    world::World,
};

/// Name of the only command.
const COMMAND: &str = "serve";

/// Acknowledged sessions. Clones share them.
#[derive(Clone, Default)]
pub struct Sessions(Arc<Mutex<Vec<SeenSession>>>);

/// A session with the last state that a client saw.
type SeenSession = (SessionId, Option<SessionState>);

/// The commands of the host: a server.
pub fn commands() -> Commands {
    toml::from_str(&format!(
        "[{COMMAND}]\n description = 'A server'\n kind = 'server'\n program = 'server'\n \
         gpus = 0\n ready = {{ log = 'ready' }}\n client = {{ program = 'client' }}"
    ))
    .unwrap()
}

fn call(session: Option<SessionId>) -> CommandCall {
    CommandCall { command: COMMAND.into(), params: [].into(), gpus: None, session }
}

/// A run on a session.
fn run_spec(session: SessionId) -> RunSpec {
    // Not `auto`: it does not wait in the order of other runs.
    let (device, mode) = ("cpu".to_owned(), Mode::LIGHT);
    let passes = Passes { mode, repeats: 1, warmup: 0, device, profiling: None };
    let subject = Subject::Command(CommandSubject { call: call(Some(session)), passes });
    RunSpec { subject, common: Common { timeout_s: 600, ..Common::default() } }
}

impl Sessions {
    fn all(&self) -> MutexGuard<'_, Vec<SeenSession>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pick(&self, world: &World) -> Option<SessionId> {
        let all = self.all();
        (!all.is_empty()).then(|| all[world.below(all.len() as u64) as usize].0)
    }

    /// Starts a session; returns its id if it is acknowledged.
    pub async fn start(&self, world: &World, service: &Service, life_s: u32) -> Option<SessionId> {
        let spec = SessionSpec {
            call: call(None),
            device: (*world.state().random.pick(&["cpu", "auto"])).to_owned(),
            lifetime_s: life_s,
            label: None,
            nsys: Profiling::bundled(&Mode::LIGHT).unwrap().nsys,
        };
        let new = NewSession {
            id: Some(SessionId(client::new_id(world).0)),
            spec,
            owner: None,
            per_owner: 2,
        };
        let cx = service.cx.clone();
        let started = service.request(async move {
            let started = cx.store.start_session(&new).await;
            cx.queued.notify_waiters();
            started
        });
        let Some(Ok(StartedSession::New(session))) = started.await else { return None };
        world.log(format!("session {} is acknowledged for {life_s} s", session.id));
        self.all().push((session.id, None));
        Some(session.id)
    }

    /// Ends a session.
    pub async fn end(&self, world: &World, service: &Service, id: SessionId) {
        let cx = service.cx.clone();
        let answer = service.request(async move {
            let answer = cx.store.request_session_end(id).await.ok();
            if answer == Some(SessionEndRequest::Requested) {
                cx.cancelled.notify_waiters();
            }
            answer
        });
        let answer = answer.await.flatten();
        world.log(format!("session {id} is to end: {answer:?}"));
    }

    /// An ended session never changes.
    pub fn saw(&self, world: &World, session: &StoredSession) {
        let mut all = self.all();
        let Some((_, seen)) = all.iter_mut().find(|(id, _)| *id == session.id) else { return };
        let before = seen.filter(|it| it.is_final()).filter(|before| *before != session.state);
        *seen = Some(session.state);
        drop(all);
        if let Some(before) = before {
            world.broken(format!("session {} was {before} and is {}", session.id, session.state));
        }
    }

    /// Every acknowledged session has ended, and none is lost.
    pub fn check(&self, world: &World, stored: &[StoredSession]) {
        let ids: Vec<SessionId> = self.all().iter().map(|(id, _)| *id).collect();
        for id in ids {
            match stored.iter().find(|it| it.id == id) {
                None => world.broken(format!("session {id} was acknowledged and is lost")),
                Some(session) if !session.state.is_final() => {
                    world.broken(format!("session {id} is {}", session.state));
                }
                Some(session) => self.saw(world, session),
            }
        }
    }
}

/// Asks for something about sessions.
pub async fn act(
    world: World,
    clients: Clients,
    sessions: Sessions,
    current: impl Fn() -> Option<Service>,
) {
    let Some(service) = current() else { return };
    let chosen = sessions.pick(&world);
    match (world.below(10), chosen) {
        (0..=3, _) | (_, None) => {
            let life_s = *world.state().random.pick(&[5, 20, 90, 300]);
            if let Some(id) = sessions.start(&world, &service, life_s).await {
                client::submit_spec(world, clients, run_spec(id), current).await;
            }
        }
        (4..=6, Some(id)) => client::submit_spec(world, clients, run_spec(id), current).await,
        (7..=8, Some(id)) => sessions.end(&world, &service, id).await,
        (_, Some(id)) => {
            let store = service.cx.store.clone();
            let session = service.request(async move { store.session(id).await }).await;
            if let Some(Ok(Some(session))) = session {
                sessions.saw(&world, &session);
            }
        }
    }
}

/// Submits a run on a session.
pub async fn submit(
    world: &World,
    clients: &Clients,
    id: SessionId,
    current: impl Fn() -> Option<Service>,
) {
    client::submit_spec(world.clone(), clients.clone(), run_spec(id), current).await;
}

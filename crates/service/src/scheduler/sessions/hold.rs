//! The lease of a session while its worker serves it, and the reason to end it.

use std::{pin::pin, time::Duration};

use llmprof_core::domain::session::SessionState;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    runtime,
    scheduler::Context,
    store::{ClaimedSession, EndedSession, SessionRenewal},
};

/// Longest time until a requested end is seen; a notification is seen at once.
const CHECK: Duration = Duration::from_secs(5);

/// Reason why a session ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEnd {
    Requested,
    LifetimePassed,
    ServiceStops,
    /// Another worker took it for lost and ended its processes.
    LeaseLost,
    /// In words.
    Failed(String),
}

impl SessionEnd {
    pub fn ended(self, spec_s: u32, log: Option<String>) -> EndedSession {
        let (state, message) = match self {
            Self::Requested => (SessionState::Ended, "ended on request".to_owned()),
            Self::LifetimePassed => {
                (SessionState::Ended, format!("its lifetime of {spec_s} s has passed"))
            }
            Self::ServiceStops => (SessionState::Ended, "the service stopped".to_owned()),
            Self::LeaseLost => (SessionState::Lost, "its worker stalled".to_owned()),
            Self::Failed(why) => (SessionState::Failed, why),
        };
        EndedSession { state, message, log }
    }
}

/// Renews the lease of a session until the value is dropped, and notes the first reason to end it.
pub struct SessionHold {
    reason: watch::Receiver<Option<SessionEnd>>,
    _task: JoinSet<()>,
}

impl SessionHold {
    pub fn start(session: &ClaimedSession, cx: &Context, stop: &CancellationToken) -> Self {
        let (sender, reason) = watch::channel(None);
        let (session, cx, stop) = (session.clone(), cx.clone(), stop.clone());
        let mut task = JoinSet::new();
        task.spawn(runtime::task(async move {
            let note = |end: SessionEnd| {
                sender.send_if_modified(|noted| {
                    let is_first = noted.is_none();
                    noted.get_or_insert(end);
                    is_first
                });
            };
            let lifetime = Duration::from_secs(session.spec.lifetime_s.into());
            let expires = Instant::now() + lifetime;
            loop {
                let mut woken = pin!(cx.cancelled.notified());
                woken.as_mut().enable();
                match cx.store.renew_session(&session, cx.lease()).await {
                    Ok(SessionRenewal::Kept) => {}
                    Ok(SessionRenewal::EndRequested) => note(SessionEnd::Requested),
                    Ok(SessionRenewal::Lost) => return note(SessionEnd::LeaseLost),
                    Err(error) => {
                        let error = llmprof_core::chain(&error);
                        tracing::warn!(error, "cannot renew the lease of a session");
                    }
                }
                let is_noted = sender.borrow().is_some();
                tokio::select! {
                    biased;
                    () = stop.cancelled(), if !is_noted => note(SessionEnd::ServiceStops),
                    () = sleep_until(expires), if !is_noted => note(SessionEnd::LifetimePassed),
                    () = woken => {}
                    () = sleep((cx.lease() / 3).min(CHECK)) => {}
                }
            }
        }));
        Self { reason, _task: task }
    }

    /// The reason to end the session, if there is one.
    pub fn reason(&self) -> Option<SessionEnd> {
        self.reason.borrow().clone()
    }

    /// Waits for the reason to end the session.
    pub async fn ends(&self) -> SessionEnd {
        let mut reason = self.reason.clone();
        let noted = reason.wait_for(Option::is_some).await;
        // Without its task the lease is not renewed.
        noted.ok().and_then(|noted| noted.clone()).unwrap_or(SessionEnd::LeaseLost)
    }
}

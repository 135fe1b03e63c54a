//! Tells configured addresses that a run has ended: signed, tried again until it arrives, also after a restart.
//!
//! The only place that calls out. It follows no redirect, goes through no proxy, and speaks to no address that is not public unless its
//! host is listed; addresses and the secret are in no log, error or answer.

mod address;

use std::{path::PathBuf, time::Duration};

use hmac::{Hmac, KeyInit, Mac};
use reqwest::{Url, redirect};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::{task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    config,
    run::{Mode, RunId, RunState, Step, SubjectKind},
    store::{Delivery, Run, Store, StoreError},
};

/// How often it is looked whether a message is due.
const LOOK: Duration = Duration::from_secs(1);
/// Messages that are on their way at a time.
const TOGETHER: u32 = 16;
/// Times that a message is tried.
const ATTEMPTS: u32 = 8;
const HOUR_MS: i64 = 3_600_000;
const SHORTEST_SECRET: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum WebhooksError {
    #[error("setting webhooks.urls, entry {place}: {why}")]
    Url { place: usize, why: &'static str },
    #[error("setting webhooks.secret_file: messages are signed, so it has to name a file")]
    NoSecret,
    #[error("setting webhooks.secret_file: cannot read {}", path.display())]
    Secret { path: PathBuf, source: std::io::Error },
    #[error("setting webhooks.secret_file: a secret has at least {SHORTEST_SECRET} bytes")]
    ShortSecret,
}

/// Why a message did not arrive.
#[derive(Debug, thiserror::Error)]
enum DeliveryError {
    #[error("its host has no address")]
    NoAddress,
    #[error("its address is not of the public Internet, and its host is not in webhooks.private_hosts")]
    Private,
    #[error("it was answered with {0}")]
    Status(u16),
    #[error("it could not be sent")]
    Send(#[source] reqwest::Error),
    #[error("the run cannot be read")]
    Store(#[from] StoreError),
}

/// Whom to tell, and how.
#[derive(Clone)]
pub struct Webhooks {
    targets: Vec<(String, Url)>,
    secret: Vec<u8>,
    private_hosts: Vec<String>,
    timeout: Duration,
    retry_ms: i64,
}

/// What is told of a run.
#[derive(Debug, Serialize)]
struct Message<'a> {
    event: &'static str,
    run_id: RunId,
    state: RunState,
    /// Name of the model, of the command, or of the capture.
    name: &'a str,
    kind: SubjectKind,
    mode: Option<Mode>,
    labels: &'a [String],
    owner: Option<&'a str>,
    failed_step: Option<Step>,
    message: Option<&'a str>,
    queued_at: &'a str,
    ended_at: Option<&'a str>,
    /// Path of the run on the service.
    link: String,
}

impl Webhooks {
    /// Reads the settings, and the secret of those that name an address.
    pub fn read(settings: &config::Webhooks) -> Result<Self, WebhooksError> {
        let mut targets = Vec::new();
        for (place, text) in settings.urls.iter().enumerate() {
            let wrong = |why| WebhooksError::Url { place: place + 1, why };
            let url = Url::parse(text).map_err(|_| wrong("it is no URL"))?;
            let host = url.host_str().ok_or_else(|| wrong("it names no host"))?;
            if !url.username().is_empty() || url.password().is_some() {
                return Err(wrong("it holds a user or a password: messages are signed instead"));
            }
            match url.scheme() {
                "https" => {}
                "http" if settings.private_hosts.iter().any(|known| known == host) => {}
                "http" => return Err(wrong("plain http is for hosts of webhooks.private_hosts alone")),
                _ => return Err(wrong("it is neither https nor http")),
            }
            targets.push((hex(&Sha256::digest(text.as_bytes())), url));
        }
        let secret = if targets.is_empty() { Vec::new() } else { secret(&settings.secret_file)? };
        Ok(Self {
            targets,
            secret,
            private_hosts: settings.private_hosts.clone(),
            timeout: Duration::from_secs(settings.timeout_s.max(1).into()),
            retry_ms: i64::from(settings.retry_s.max(1)) * 1000,
        })
    }

    /// Sends one message, and says why it did not arrive.
    async fn send(&self, url: &Url, delivery: &Delivery, run: &Run) -> Result<(), DeliveryError> {
        let addresses = address::resolve(url).await.filter(|found| !found.is_empty()).ok_or(DeliveryError::NoAddress)?;
        let host = url.host_str().unwrap_or_default();
        let listed = self.private_hosts.iter().any(|known| known == host);
        if !listed && !addresses.iter().all(|address| address::is_public(address.ip())) {
            return Err(DeliveryError::Private);
        }
        // The addresses that were looked at are those that are spoken to: a name that changes meanwhile leads nowhere else.
        let client = reqwest::Client::builder()
            .resolve_to_addrs(host, &addresses)
            .redirect(redirect::Policy::none())
            .no_proxy()
            .timeout(self.timeout)
            .user_agent(concat!("llmprof/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(DeliveryError::Send)?;
        let body = body(run);
        let sent_at = jiff::Timestamp::now().as_second().to_string();
        let request = client
            .post(url.clone())
            .header("content-type", "application/json")
            .header("x-llmprof-delivery", delivery.id.to_string())
            .header("x-llmprof-timestamp", &sent_at)
            .header("x-llmprof-signature", format!("sha256={}", self.sign(&sent_at, &body)))
            .body(body);
        // The address may hold a token: it is not told.
        let answer = request.send().await.map_err(|error| DeliveryError::Send(error.without_url()))?;
        if answer.status().is_success() { Ok(()) } else { Err(DeliveryError::Status(answer.status().as_u16())) }
    }

    /// HMAC-SHA256 of `TIMESTAMP.BODY`, in hexadecimal (RFC 2104).
    fn sign(&self, sent_at: &str, body: &str) -> String {
        // A key of any length is taken.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.secret) else { return String::new() };
        mac.update(sent_at.as_bytes());
        mac.update(b".");
        mac.update(body.as_bytes());
        hex(&mac.finalize().into_bytes())
    }

    /// Sends one message and keeps what came of it.
    async fn deliver(&self, store: &Store, delivery: &Delivery) -> Result<(), StoreError> {
        let Some((_, url)) = self.targets.iter().find(|(target, _)| *target == delivery.target) else {
            return store.delivered(delivery.id).await;
        };
        let Some(run) = store.run(delivery.run).await? else { return store.delivered(delivery.id).await };
        let host = url.host_str().unwrap_or_default();
        match self.send(url, delivery, &run).await {
            Ok(()) => {
                tracing::debug!(run = %run.id, host, "a webhook was told");
                store.delivered(delivery.id).await
            }
            Err(error) => {
                let error = crate::chain(&error);
                let again = again_in_ms(self.retry_ms, delivery.attempts);
                tracing::warn!(run = %run.id, host, error, attempt = delivery.attempts + 1, gives_up = again.is_none(), "a webhook was not told");
                store.not_delivered(delivery.id, &error, again).await
            }
        }
    }
}

/// Starts the task that sends messages when their time has come; it ends with `stop`.
pub async fn start(store: Store, webhooks: Webhooks, stop: CancellationToken) -> Result<(), StoreError> {
    let targets: Vec<String> = webhooks.targets.iter().map(|(target, _)| target.clone()).collect();
    store.set_webhooks(&targets).await?;
    if targets.is_empty() {
        return Ok(());
    }
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(LOOK) => {}
            }
            if let Err(error) = round(&store, &webhooks).await {
                tracing::error!(error = %crate::chain(&error), "webhooks cannot be told");
            }
        }
    });
    Ok(())
}

/// Sends all messages that are due, some at a time.
async fn round(store: &Store, webhooks: &Webhooks) -> Result<(), StoreError> {
    let mut sent = JoinSet::new();
    for delivery in store.due_deliveries(TOGETHER, HOUR_MS).await? {
        let (store, webhooks) = (store.clone(), webhooks.clone());
        sent.spawn(async move { webhooks.deliver(&store, &delivery).await });
    }
    while let Some(ended) = sent.join_next().await {
        ended.unwrap_or(Ok(()))?;
    }
    Ok(())
}

/// How long a message that was tried `attempts` times before waits for its next try.
fn again_in_ms(first_ms: i64, attempts: u32) -> Option<i64> {
    (attempts + 1 < ATTEMPTS).then(|| first_ms.saturating_mul(4_i64.saturating_pow(attempts)).min(HOUR_MS))
}

fn secret(path: &PathBuf) -> Result<Vec<u8>, WebhooksError> {
    if path.as_os_str().is_empty() {
        return Err(WebhooksError::NoSecret);
    }
    let text = std::fs::read(path).map_err(|source| WebhooksError::Secret { path: path.clone(), source })?;
    let secret = text.trim_ascii().to_vec();
    if secret.len() < SHORTEST_SECRET { Err(WebhooksError::ShortSecret) } else { Ok(secret) }
}

fn body(run: &Run) -> String {
    let message = Message {
        event: "run_ended",
        run_id: run.id,
        state: run.state,
        name: run.spec.name(),
        kind: run.spec.kind(),
        mode: run.spec.mode(),
        labels: &run.spec.common.labels,
        owner: run.owner.as_deref(),
        failed_step: run.failed_step,
        message: run.message.as_deref(),
        queued_at: &run.queued_at,
        ended_at: run.ended_at.as_deref(),
        link: format!("/runs/{}", run.id),
    };
    serde_json::to_string(&message).unwrap_or_default()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;

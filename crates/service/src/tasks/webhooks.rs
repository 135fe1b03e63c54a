//! Notifies configured addresses that a run has ended, or of a regression: signed, repeated until
//! it arrives, also after a restart.
//!
//! The only place that calls out. It follows no redirect, uses no proxy, and calls no address
//! outside the public Internet unless its host is listed. Addresses and the secret appear in no
//! log, error or response.

mod address;
mod signature;
mod slack;

use std::time::Duration;

use llmprof_core::domain::{hex::hex, webhook_event::WebhookEvent};
use reqwest::{Url, redirect};
use sha2::{Digest, Sha256};
use tokio::{task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use self::signature::{SecretError, WebhookSecret};
use crate::{
    config, runtime,
    store::{Delivery, Store, StoreError},
};

/// Period of the check for due deliveries.
const PERIOD: Duration = Duration::from_secs(1);
/// Concurrent deliveries.
const MAX_CONCURRENT: u32 = 16;
/// Attempts of a delivery.
const MAX_ATTEMPTS: u32 = 8;
const HOUR_MS: i64 = 3_600_000;

#[derive(Debug, thiserror::Error)]
pub enum WebhooksError {
    #[error("setting webhooks.{setting}, entry {entry}: {reason}")]
    Url { setting: &'static str, entry: usize, reason: &'static str },
    #[error(transparent)]
    Secret(#[from] SecretError),
}

/// Reason of a failed delivery.
#[derive(Debug, thiserror::Error)]
enum DeliveryError {
    #[error("the host has no address")]
    NoAddress,
    #[error("the address is outside the public Internet; list its host in webhooks.private_hosts")]
    Private,
    #[error("the response has status {0}")]
    Status(u16),
    #[error("cannot send the message")]
    Send(#[source] reqwest::Error),
}

/// Sends messages to the configured addresses.
#[derive(Clone)]
pub struct WebhookSender {
    targets: Vec<WebhookTarget>,
    /// Events that every address is notified of.
    events: Vec<WebhookEvent>,
    /// `None` without addresses that get signed messages.
    secret: Option<WebhookSecret>,
    private_hosts: Vec<String>,
    timeout: Duration,
    retry_ms: i64,
}

/// A configured address.
#[derive(Clone)]
struct WebhookTarget {
    /// Hash of the address: the database has no address.
    hash: String,
    url: Url,
    /// Messages are text in the format of Slack, unsigned.
    is_slack: bool,
}

impl WebhookSender {
    /// Reads the settings and, if there are addresses, the secret.
    pub fn read(settings: &config::WebhookSettings) -> Result<Self, WebhooksError> {
        let mut targets = Vec::new();
        let urls = settings.urls.iter().enumerate().map(|(index, url)| ("urls", index, url));
        let slack = settings.slack_urls.iter().enumerate();
        let slack = slack.map(|(index, url)| ("slack_urls", index, url));
        for (setting, index, text) in urls.chain(slack) {
            let wrong = |reason| WebhooksError::Url { setting, entry: index + 1, reason };
            let url = Url::parse(text).map_err(|_| wrong("not a URL"))?;
            let host = url.host_str().ok_or_else(|| wrong("no host"))?;
            if !url.username().is_empty() || url.password().is_some() {
                return Err(wrong("remove user and password; messages are signed instead"));
            }
            match url.scheme() {
                "https" => {}
                "http" if settings.private_hosts.iter().any(|known| known == host) => {}
                "http" => {
                    return Err(wrong("http needs its host in webhooks.private_hosts; use https"));
                }
                _ => return Err(wrong("neither https nor http")),
            }
            let hash = hex(&Sha256::digest(text.as_bytes()));
            targets.push(WebhookTarget { hash, url, is_slack: setting == "slack_urls" });
        }
        let is_used = targets.iter().any(|target| !target.is_slack);
        let secret = is_used.then(|| WebhookSecret::read(&settings.secret_file)).transpose()?;
        Ok(Self {
            targets,
            events: settings.events.clone(),
            secret,
            private_hosts: settings.private_hosts.clone(),
            timeout: Duration::from_secs(settings.timeout_s.max(1).into()),
            retry_ms: i64::from(settings.retry_s.max(1)) * 1000,
        })
    }

    /// Sends one message; an error is the reason why it did not arrive.
    async fn send(&self, target: &WebhookTarget, delivery: &Delivery) -> Result<(), DeliveryError> {
        let url = &target.url;
        if let Some(answer) = runtime::simulated(|it| it.post(&delivery.message_id, &delivery.body))
        {
            return match answer.await {
                Ok(200..=299) => Ok(()),
                Ok(status) => Err(DeliveryError::Status(status)),
                Err(_) => Err(DeliveryError::NoAddress),
            };
        }
        let addresses = address::resolve(url)
            .await
            .filter(|found| !found.is_empty())
            .ok_or(DeliveryError::NoAddress)?;
        let host = url.host_str().unwrap_or_default();
        let listed = self.private_hosts.iter().any(|known| known == host);
        if !listed && !addresses.iter().all(|address| address::is_public(address.ip())) {
            return Err(DeliveryError::Private);
        }
        // The request uses the checked addresses only, even if the name changes meanwhile.
        let client = reqwest::Client::builder()
            .resolve_to_addrs(host, &addresses)
            .redirect(redirect::Policy::none())
            .no_proxy()
            .timeout(self.timeout)
            .user_agent(concat!("llmprof/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(DeliveryError::Send)?;
        if target.is_slack {
            let request = client.post(url.clone()).json(&slack::message(&delivery.body));
            return accepted(request).await;
        }
        let Delivery { message_id: id, body, .. } = delivery;
        let timestamp = runtime::now().as_second().to_string();
        let signature = self.secret.as_ref().map(|secret| secret.sign(id, &timestamp, body));
        let request = client
            .post(url.clone())
            .header("content-type", "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", signature.unwrap_or_default())
            .body(body.clone());
        accepted(request).await
    }

    /// Sends one message and records the result.
    async fn deliver(&self, store: &Store, delivery: &Delivery) -> Result<(), StoreError> {
        let Some(target) = self.targets.iter().find(|target| target.hash == delivery.target) else {
            let error = "its address is no longer configured";
            return store.not_delivered(delivery.id, error, None).await;
        };
        let host = target.url.host_str().unwrap_or_default();
        match self.send(target, delivery).await {
            Ok(()) => {
                tracing::debug!(run = %delivery.run, host, "webhook delivered");
                store.delivered(delivery.id).await
            }
            Err(error) => {
                let error = llmprof_core::chain(&error);
                let retry = retry_in_ms(self.retry_ms, delivery.attempts);
                let (run, attempt, is_last) =
                    (delivery.run, delivery.attempts + 1, retry.is_none());
                tracing::warn!(%run, host, error, attempt, is_last, "webhook failed");
                store.not_delivered(delivery.id, &error, retry).await
            }
        }
    }
}

/// Sends a request; an error is the reason why it was not accepted.
async fn accepted(request: reqwest::RequestBuilder) -> Result<(), DeliveryError> {
    // The address may contain a token.
    let response =
        request.send().await.map_err(|error| DeliveryError::Send(error.without_url()))?;
    let status = response.status();
    if status.is_success() { Ok(()) } else { Err(DeliveryError::Status(status.as_u16())) }
}

/// Starts the task that sends due messages; it ends with `stop`.
pub async fn start(
    store: Store,
    webhooks: WebhookSender,
    stop: CancellationToken,
) -> Result<(), StoreError> {
    let targets: Vec<String> = webhooks.targets.iter().map(|it| it.hash.clone()).collect();
    store.set_webhooks(&targets, &webhooks.events).await?;
    if targets.is_empty() {
        return Ok(());
    }
    tokio::spawn(runtime::task(async move {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep(PERIOD) => {}
            }
            if let Err(error) = send_due(&store, &webhooks).await {
                tracing::error!(error = %llmprof_core::chain(&error), "cannot send webhooks");
            }
        }
    }));
    Ok(())
}

/// Sends due messages concurrently.
async fn send_due(store: &Store, webhooks: &WebhookSender) -> Result<(), StoreError> {
    let mut sent = JoinSet::new();
    for delivery in store.due_deliveries(MAX_CONCURRENT, HOUR_MS).await? {
        let (store, webhooks) = (store.clone(), webhooks.clone());
        let deliver = async move { webhooks.deliver(&store, &delivery).await };
        sent.spawn(runtime::task(deliver));
    }
    while let Some(ended) = sent.join_next().await {
        ended.unwrap_or(Ok(()))?;
    }
    Ok(())
}

/// Delay after another failed attempt, `attempts` having failed before; `None` after the last.
fn retry_in_ms(first_ms: i64, attempts: u32) -> Option<i64> {
    (attempts + 1 < MAX_ATTEMPTS)
        .then(|| first_ms.saturating_mul(4_i64.saturating_pow(attempts)).min(HOUR_MS))
}

#[cfg(test)]
mod tests;

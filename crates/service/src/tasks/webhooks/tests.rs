//! Messages about ended runs, to a real listener.

use llmprof_core::domain::{ids::RunId, mode::Mode, subject::RunSpec};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;
use crate::store::{CancelOutcome, DeleteOutcome, DeliveryState, NewRun};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A listener that responds to one request with `response`; returns its port and the request.
async fn listener(response: &'static str) -> (u16, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let request = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let (mut text, mut chunk) = (Vec::new(), [0; 4096]);
        while !text.ends_with(b"}") {
            let read = socket.read(&mut chunk).await.unwrap();
            text.extend_from_slice(&chunk[..read]);
        }
        socket.write_all(response.as_bytes()).await.unwrap();
        String::from_utf8(text).unwrap()
    });
    (port, request)
}

const NO_CONTENT: &str = "HTTP/1.1 204 No Content\r\n\r\n";

fn webhooks(
    dir: &std::path::Path,
    url: &str,
    private: &[&str],
) -> Result<WebhookSender, WebhooksError> {
    let secret_file = dir.join("secret");
    std::fs::write(&secret_file, format!("{SECRET}\n")).unwrap();
    let private_hosts = private.iter().map(|host| (*host).to_owned()).collect();
    WebhookSender::read(&config::WebhookSettings {
        urls: vec![url.into()],
        slack_urls: vec![],
        events: vec![WebhookEvent::RunEnded],
        secret_file,
        private_hosts,
        timeout_s: 10,
        retry_s: 10,
    })
}

/// A store with the targets of `webhooks` and one cancelled run.
async fn with_ended_run(dir: &std::path::Path, webhooks: &WebhookSender) -> (Store, RunId) {
    let store = Store::open(&dir.join("llmprof.db")).await.unwrap();
    let targets: Vec<String> = webhooks.targets.iter().map(|it| it.hash.clone()).collect();
    store.set_webhooks(&targets, &webhooks.events).await.unwrap();
    let spec = RunSpec::tiny(Mode::BASIC, 0, &["nightly"]);
    let submitted =
        store.submit(NewRun { id: None, spec, idempotency: None, owner: None }).await.unwrap();
    let crate::store::Submitted::New(run) = submitted else { panic!("{submitted:?}") };
    assert_eq!(store.due_deliveries(9, HOUR_MS).await.unwrap(), [], "it has not ended");
    assert_eq!(store.cancel(run.id).await.unwrap(), CancelOutcome::Cancelled);
    (store, run.id)
}

#[tokio::test]
async fn a_run_that_ends_is_delivered_once_and_signed() {
    let dir = tempfile::tempdir().unwrap();
    let (port, request) = listener(NO_CONTENT).await;
    let webhooks =
        webhooks(dir.path(), &format!("http://127.0.0.1:{port}/hook?key=k"), &["127.0.0.1"])
            .unwrap();
    let (store, id) = with_ended_run(dir.path(), &webhooks).await;
    send_due(&store, &webhooks).await.unwrap();
    let request = request.await.unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /hook?key=k HTTP/1.1\r\n"), "{head}");
    let header = |name: &str| {
        head.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).unwrap().to_owned()
    };
    assert_eq!(header("webhook-id"), format!("run_ended_{id}"));
    let secret = WebhookSecret::read(&dir.path().join("secret")).unwrap();
    let signature = secret.sign(&header("webhook-id"), &header("webhook-timestamp"), body);
    assert_eq!(header("webhook-signature"), signature);
    let sent_at: i64 = header("webhook-timestamp").parse().unwrap();
    assert!(jiff::Timestamp::now().as_second() - sent_at < 60);
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(
        (&body["run_id"], &body["state"]),
        (&serde_json::json!(id), &serde_json::json!("cancelled"))
    );
    assert_eq!(store.due_deliveries(9, HOUR_MS).await.unwrap(), []);
}

#[tokio::test]
async fn slack_gets_one_line_of_text_without_a_secret() {
    let dir = tempfile::tempdir().unwrap();
    let (port, request) = listener(NO_CONTENT).await;
    let webhooks = WebhookSender::read(&config::WebhookSettings {
        urls: vec![],
        slack_urls: vec![format!("http://127.0.0.1:{port}/services/T0/B0/key")],
        events: vec![WebhookEvent::RunEnded],
        secret_file: dir.path().join("no secret"),
        private_hosts: vec!["127.0.0.1".into()],
        timeout_s: 10,
        retry_s: 10,
    })
    .unwrap();
    let (store, id) = with_ended_run(dir.path(), &webhooks).await;
    send_due(&store, &webhooks).await.unwrap();
    let request = request.await.unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /services/T0/B0/key ") && !head.contains("webhook-"), "{head}");
    let text =
        format!("Run tiny in mode basic ended cancelled: cancelled while queued (/runs/{id})");
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(body).unwrap(),
        serde_json::json!({ "text": text })
    );
    assert_eq!(store.due_deliveries(9, HOUR_MS).await.unwrap(), []);
}

#[tokio::test]
async fn a_message_outlives_its_run_and_is_sent_again_on_request_with_the_same_id() {
    let dir = tempfile::tempdir().unwrap();
    let (port, first) = listener(NO_CONTENT).await;
    let url = format!("http://127.0.0.1:{port}/");
    let webhooks = webhooks(dir.path(), &url, &["127.0.0.1"]).unwrap();
    let (store, id) = with_ended_run(dir.path(), &webhooks).await;
    assert_eq!(store.delete(id).await.unwrap(), DeleteOutcome::Deleted);
    send_due(&store, &webhooks).await.unwrap();
    let message = format!("webhook-id: run_ended_{id}");
    assert!(first.await.unwrap().contains(&message));
    let stored = store.deliveries(Some(DeliveryState::Delivered), 9).await.unwrap();
    assert_eq!(stored.len(), 1);
    assert!(stored[0].delivered_at.is_some() && stored[0].next_at.is_none(), "{stored:?}");

    let again = store.replay(stored[0].delivery.id).await.unwrap().unwrap();
    assert_eq!(again.state, DeliveryState::Pending);
    // The listener is closed.
    send_due(&store, &webhooks).await.unwrap();
    let failed = store.deliveries(Some(DeliveryState::Pending), 9).await.unwrap();
    let message = &failed[0].delivery.message_id;
    assert_eq!((failed[0].delivery.attempts, message), (1, &format!("run_ended_{id}")));
    assert_eq!(store.replay(stored[0].delivery.id + 1).await.unwrap(), None);
}

#[tokio::test]
async fn ids_of_deliveries_are_not_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let webhooks = webhooks(dir.path(), "https://example.org/", &[]).unwrap();
    let (store, _) = with_ended_run(dir.path(), &webhooks).await;
    let first = store.deliveries(None, 9).await.unwrap()[0].delivery.id;
    store.set_webhooks(&[], WebhookEvent::ALL).await.unwrap();
    assert_eq!(store.deliveries(None, 9).await.unwrap(), []);
    let (store, _) = with_ended_run(dir.path(), &webhooks).await;
    assert!(store.deliveries(None, 9).await.unwrap()[0].delivery.id > first);
}

#[tokio::test]
async fn a_failed_delivery_is_repeated_after_a_restart_with_growing_delays_and_a_last_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let (port, request) =
        listener("HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n").await;
    let webhooks =
        webhooks(dir.path(), &format!("http://127.0.0.1:{port}/"), &["127.0.0.1"]).unwrap();
    let (store, id) = with_ended_run(dir.path(), &webhooks).await;
    send_due(&store, &webhooks).await.unwrap();
    request.await.unwrap();
    assert_eq!(store.due_deliveries(9, HOUR_MS).await.unwrap(), [], "it is not due");
    drop(store);
    let store = Store::open(&dir.path().join("llmprof.db")).await.unwrap();
    // As if the clock was set back: a delivery farther ahead than any retry is due now.
    let waiting = store.due_deliveries(9, -1).await.unwrap();
    assert_eq!(waiting.iter().map(|it| (it.run, it.attempts)).collect::<Vec<_>>(), [(id, 1)]);
    store.not_delivered(waiting[0].id, "again", None).await.unwrap();
    assert_eq!(store.due_deliveries(9, -1).await.unwrap(), [], "that was the last attempt");
    let waits: Vec<_> = (0..MAX_ATTEMPTS)
        .map(|attempts| retry_in_ms(10_000, attempts).map(|ms| ms / 1000))
        .collect();
    assert_eq!(
        waits,
        [Some(10), Some(40), Some(160), Some(640), Some(2560), Some(3600), Some(3600), None]
    );
}

#[tokio::test]
async fn an_address_that_is_no_longer_configured_gets_no_message() {
    let dir = tempfile::tempdir().unwrap();
    let webhooks = webhooks(dir.path(), "https://example.org/", &[]).unwrap();
    let (store, _) = with_ended_run(dir.path(), &webhooks).await;
    store.set_webhooks(&["another".into()], WebhookEvent::ALL).await.unwrap();
    assert_eq!(store.due_deliveries(9, HOUR_MS).await.unwrap(), []);
}

/// Sends a message to `url`.
async fn send_to(url: &str, private: &[&str]) -> Result<(), DeliveryError> {
    let dir = tempfile::tempdir().unwrap();
    let webhooks = webhooks(dir.path(), url, private).unwrap();
    let (store, id) = with_ended_run(dir.path(), &webhooks).await;
    let due = store.due_deliveries(9, HOUR_MS).await.unwrap();
    assert_eq!(due.iter().map(|it| it.run).collect::<Vec<_>>(), [id]);
    webhooks.send(&webhooks.targets[0], &due[0]).await
}

#[tokio::test]
async fn an_address_that_is_not_public_is_refused_whatever_name_leads_to_it() {
    for url in [
        "https://localhost/",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://169.254.169.254/latest",
        "https://2130706433/",
    ] {
        assert!(matches!(send_to(url, &["other"]).await, Err(DeliveryError::Private)), "{url}");
    }
}

#[tokio::test]
async fn no_redirect_is_followed_and_no_address_is_in_an_error() {
    let (port, request) = listener(
        "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
    )
    .await;
    let error = send_to(&format!("http://127.0.0.1:{port}/"), &["127.0.0.1"]).await.unwrap_err();
    assert!(matches!(error, DeliveryError::Status(302)), "{error:?}");
    request.await.unwrap();
    // The listener is closed.
    let error = send_to(&format!("http://127.0.0.1:{port}/token-of-a-team"), &["127.0.0.1"])
        .await
        .unwrap_err();
    let message = llmprof_core::chain(&error);
    assert!(
        message.starts_with("cannot send the message") && !message.contains("token-of-a-team"),
        "{message}"
    );
}

#[test]
fn settings_that_expose_a_secret_or_sign_nothing_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |url: &str| {
        webhooks(dir.path(), url, &["inside"])
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    assert!(
        refused("http://example.org/").contains("http needs its host in webhooks.private_hosts")
    );
    assert!(refused("https://ann:pass@example.org/").contains("remove user and password"));
    assert!(refused("ftp://example.org/").contains("neither https nor http"));
    assert!(refused("example.org").contains("not a URL"));
    assert_eq!(
        (refused("http://inside/"), refused("https://example.org/")),
        (String::new(), String::new())
    );
    let settings = |secret_file: std::path::PathBuf| config::WebhookSettings {
        urls: vec!["https://example.org/".into()],
        slack_urls: vec![],
        events: vec![WebhookEvent::RunEnded],
        secret_file,
        private_hosts: vec![],
        timeout_s: 1,
        retry_s: 1,
    };
    let read = |file| WebhookSender::read(&settings(file)).err().unwrap();
    assert!(matches!(read("".into()), WebhooksError::Secret(SecretError::NoFile)));
    let missing = read(dir.path().join("missing"));
    assert!(matches!(missing, WebhooksError::Secret(SecretError::Read { .. })));
    std::fs::write(dir.path().join("short"), "whsec_c2hvcnQ=\n").unwrap();
    let short = read(dir.path().join("short")).to_string();
    assert!(short.contains("write whsec_ and the base64 of 24 to 64 random bytes"), "{short}");
    assert!(!short.contains("c2hvcnQ"), "{short}");
}

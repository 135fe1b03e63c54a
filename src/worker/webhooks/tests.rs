//! Messages about ended runs, to a real listener.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;
use crate::{
    run::{Mode, RunSpec},
    store::{Cancel, NewRun},
};

const SECRET: &str = "a secret of more than sixteen bytes";

/// A listener that answers one request with `answer`, and what it was sent.
async fn listener(answer: &'static str) -> (u16, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let (mut text, mut chunk) = (Vec::new(), [0; 4096]);
        while !text.ends_with(b"}") {
            let read = socket.read(&mut chunk).await.unwrap();
            text.extend_from_slice(&chunk[..read]);
        }
        socket.write_all(answer.as_bytes()).await.unwrap();
        String::from_utf8(text).unwrap()
    });
    (port, heard)
}

const FINE: &str = "HTTP/1.1 204 No Content\r\n\r\n";

fn webhooks(dir: &std::path::Path, url: &str, private: &[&str]) -> Result<Webhooks, WebhooksError> {
    let secret_file = dir.join("secret");
    std::fs::write(&secret_file, format!("{SECRET}\n")).unwrap();
    let private_hosts = private.iter().map(|host| (*host).to_owned()).collect();
    Webhooks::read(&config::Webhooks { urls: vec![url.into()], secret_file, private_hosts, timeout_s: 10, retry_s: 10 })
}

/// A store that tells `webhooks`, with one run that was cancelled.
async fn ended(dir: &std::path::Path, webhooks: &Webhooks) -> (Store, RunId) {
    let store = Store::open(&dir.join("llmprof.db")).await.unwrap();
    let targets: Vec<String> = webhooks.targets.iter().map(|(target, _)| target.clone()).collect();
    store.set_webhooks(&targets).await.unwrap();
    let spec = RunSpec::tiny(Mode::Basic, 0, &["nightly"]);
    let submitted = store.submit(NewRun { id: None, spec, idempotency: None, owner: None }).await.unwrap();
    let crate::store::Submitted::New(run) = submitted else { panic!("{submitted:?}") };
    assert_eq!(store.due_deliveries(9, HOUR_MS).await.unwrap(), [], "it has not ended");
    assert_eq!(store.cancel(run.id).await.unwrap(), Cancel::Cancelled);
    (store, run.id)
}

#[tokio::test]
async fn a_run_that_ends_is_told_once_and_the_message_is_signed() {
    let dir = tempfile::tempdir().unwrap();
    let (port, heard) = listener(FINE).await;
    let webhooks = webhooks(dir.path(), &format!("http://127.0.0.1:{port}/hook?key=k"), &["127.0.0.1"]).unwrap();
    let (store, id) = ended(dir.path(), &webhooks).await;
    round(&store, &webhooks).await.unwrap();
    let heard = heard.await.unwrap();
    let (head, body) = heard.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /hook?key=k HTTP/1.1\r\n"), "{head}");
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).unwrap().to_owned();
    let signed = format!("{}.{body}", header("x-llmprof-timestamp"));
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(signed.as_bytes());
    assert_eq!(header("x-llmprof-signature"), format!("sha256={}", hex(&mac.finalize().into_bytes())));
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!((&body["run_id"], &body["state"]), (&serde_json::json!(id), &serde_json::json!("cancelled")));
    assert_eq!(store.due_deliveries(9, HOUR_MS).await.unwrap(), []);
}

#[tokio::test]
async fn what_did_not_arrive_waits_through_a_restart_and_longer_each_time_until_it_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let (port, heard) = listener("HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n").await;
    let webhooks = webhooks(dir.path(), &format!("http://127.0.0.1:{port}/"), &["127.0.0.1"]).unwrap();
    let (store, id) = ended(dir.path(), &webhooks).await;
    round(&store, &webhooks).await.unwrap();
    heard.await.unwrap();
    assert_eq!(store.due_deliveries(9, HOUR_MS).await.unwrap(), [], "its time has not come");
    drop(store);
    let store = Store::open(&dir.path().join("llmprof.db")).await.unwrap();
    // As if the clock had been set back: what is due farther ahead than any retry is due now.
    let waiting = store.due_deliveries(9, -1).await.unwrap();
    assert_eq!(waiting.iter().map(|it| (it.run, it.attempts)).collect::<Vec<_>>(), [(id, 1)]);
    store.not_delivered(waiting[0].id, "again", None).await.unwrap();
    assert_eq!(store.due_deliveries(9, -1).await.unwrap(), [], "it was given up");
    let waits: Vec<_> = (0..ATTEMPTS).map(|attempts| again_in_ms(10_000, attempts).map(|ms| ms / 1000)).collect();
    assert_eq!(waits, [Some(10), Some(40), Some(160), Some(640), Some(2560), Some(3600), Some(3600), None]);
}

#[tokio::test]
async fn whoever_is_no_longer_configured_is_not_told() {
    let dir = tempfile::tempdir().unwrap();
    let webhooks = webhooks(dir.path(), "https://example.org/", &[]).unwrap();
    let (store, _) = ended(dir.path(), &webhooks).await;
    store.set_webhooks(&["another".into()]).await.unwrap();
    assert_eq!(store.due_deliveries(9, HOUR_MS).await.unwrap(), []);
}

/// What comes of a message to `url`.
async fn sent(url: &str, private: &[&str]) -> Result<(), DeliveryError> {
    let dir = tempfile::tempdir().unwrap();
    let webhooks = webhooks(dir.path(), url, private).unwrap();
    let (store, id) = ended(dir.path(), &webhooks).await;
    let run = store.run(id).await.unwrap().unwrap();
    let delivery = store.due_deliveries(1, HOUR_MS).await.unwrap().remove(0);
    webhooks.send(&webhooks.targets[0].1, &delivery, &run).await
}

#[tokio::test]
async fn an_address_that_is_not_public_is_refused_whatever_name_leads_to_it() {
    for url in
        ["https://localhost/", "https://127.0.0.1/", "https://[::1]/", "https://169.254.169.254/latest", "https://2130706433/"]
    {
        assert!(matches!(sent(url, &["other"]).await, Err(DeliveryError::Private)), "{url}");
    }
}

#[tokio::test]
async fn no_redirect_is_followed_and_no_address_is_in_an_error() {
    let (port, heard) = listener("HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n").await;
    let error = sent(&format!("http://127.0.0.1:{port}/"), &["127.0.0.1"]).await.unwrap_err();
    assert!(matches!(error, DeliveryError::Status(302)), "{error:?}");
    heard.await.unwrap();
    // Nobody listens there any more.
    let error = sent(&format!("http://127.0.0.1:{port}/token-of-a-team"), &["127.0.0.1"]).await.unwrap_err();
    let told = crate::chain(&error);
    assert!(told.starts_with("it could not be sent") && !told.contains("token-of-a-team"), "{told}");
}

#[test]
fn settings_that_would_tell_a_secret_or_sign_nothing_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |url: &str| webhooks(dir.path(), url, &["inside"]).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(refused("http://example.org/").contains("plain http is for hosts of webhooks.private_hosts"));
    assert!(refused("https://ann:pass@example.org/").contains("holds a user or a password"));
    assert!(refused("ftp://example.org/").contains("neither https nor http"));
    assert!(refused("example.org").contains("it is no URL"));
    assert_eq!((refused("http://inside/"), refused("https://example.org/")), (String::new(), String::new()));
    let settings = |secret_file: PathBuf| config::Webhooks {
        urls: vec!["https://example.org/".into()],
        secret_file,
        private_hosts: vec![],
        timeout_s: 1,
        retry_s: 1,
    };
    assert!(matches!(Webhooks::read(&settings(PathBuf::new())), Err(WebhooksError::NoSecret)));
    assert!(matches!(Webhooks::read(&settings(dir.path().join("gone"))), Err(WebhooksError::Secret { .. })));
    std::fs::write(dir.path().join("short"), "short\n").unwrap();
    assert!(matches!(Webhooks::read(&settings(dir.path().join("short"))), Err(WebhooksError::ShortSecret)));
}

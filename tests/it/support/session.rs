//! Sessions of a real service: started, awaited and used by runs.

use std::time::Duration;

use serde_json::{Value, json};

use super::service::{self, Service};

/// Time limit of a wait for a state; machines that build are slow.
const PATIENCE: Duration = Duration::from_secs(180);
const FAKE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/llm-server/fake.py");

/// Targets with a server without a model, `fake`, whose mode is a parameter.
pub fn fake_server() -> String {
    format!(
        "[commands.fake]\ndescription = 'A fake LLM'\nkind = 'server'\nprogram = 'python3'\n\
         args = ['{FAKE}', '{{port}}', '{{mode}}']\n\
         ready = {{ url = 'http://127.0.0.1:{{port}}/', within_s = 60 }}\n\
         load = {{ concurrency = 4, requests = '{{requests}}', new_tokens = 4, timeout = 20 }}\n\
         window = {{ max_s = 3 }}\n\
         [commands.fake.params]\n\
         requests = {{ type = 'int', min = 1, max = 99, default = 8, description = 'n' }}\n\
         mode = {{ type = 'enum', values = ['whole', 'dies-late', 'garbage', 'fails'], \
         default = 'whole', description = 'm' }}\n"
    )
}

/// Starts a session with `more` fields; returns its id.
pub async fn start(service: &Service, more: Value) -> String {
    let mut body = json!({ "command": "fake", "mode": "light" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let (status, answer) = service.post("/sessions", &body).await;
    assert_eq!(status, 202, "{answer}");
    answer["session_id"].as_str().unwrap().to_owned()
}

/// Waits until a session has one of these states; panics when it ends in another.
pub async fn wait_for(service: &Service, id: &str, states: &[&str]) -> Value {
    let mut pace = tokio::time::interval(Duration::from_millis(50));
    let reached = async {
        loop {
            pace.tick().await;
            let session = service.json(&format!("/sessions/{id}")).await;
            let state = session["state"].as_str().unwrap();
            if states.contains(&state) {
                return session;
            }
            assert!(!["ended", "failed", "lost"].contains(&state), "{session:#}");
        }
    };
    match tokio::time::timeout(PATIENCE, reached).await {
        Ok(session) => session,
        Err(_) => panic!("never {states:?}: {:#}", service.json(&format!("/sessions/{id}")).await),
    }
}

/// Ends a session and waits for it: a killed service leaves its server to the next one.
pub async fn close(service: &Service, id: &str) {
    assert_eq!(end(service, id).await, 204);
    wait_for(service, id, &["ended", "failed"]).await;
}

/// Submits a run on a session with parameters of its load and `more` fields; returns its id.
pub async fn submit_on(service: &Service, session: &str, params: Value, more: Value) -> String {
    let (status, answer) = try_submit(service, session, params, more).await;
    assert_eq!(status, 202, "{answer}");
    answer["run_id"].as_str().unwrap().to_owned()
}

pub async fn try_submit(
    service: &Service,
    session: &str,
    params: Value,
    more: Value,
) -> (u16, Value) {
    let mut body = json!({
        "target": { "command": "fake", "session": session, "params": params },
        "mode": "light", "repeats": 1, "warmup": 0,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    service.post("/runs", &body).await
}

/// Requests the end of a session; returns the status.
pub async fn end(service: &Service, id: &str) -> u16 {
    let url = format!("{}/sessions/{id}", service.base);
    service::client().delete(url).send().await.unwrap().status().as_u16()
}

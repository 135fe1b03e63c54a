//! Sessions whose server, nsys or load misbehaves: a defined end, and no process left.

use serde_json::{Value, json};

use super::commands::{finding, nsys, service};
use crate::support::{
    service::{processes_of, script},
    session::{close, fake_server, start, submit_on, wait_for},
};

/// An nsys that starts programs and recordings, and cannot stop these.
const NEVER_STOPS: &str = r#"case $1 in
--version) echo 'NVIDIA Nsight Systems version 2025.3.2.1';;
launch) shift
    while :; do case $1 in --trace) shift 2;; --*) shift;; *) break;; esac; done
    LLMPROF_TARGET=1 exec "$@";;
start) exit 0;;
stop) exit 3;;
esac"#;

#[tokio::test]
async fn a_server_that_is_never_ready_or_ends_at_once_fails_its_session_with_the_reason() {
    let data = tempfile::tempdir().unwrap();
    let nsys = script(data.path(), NEVER_STOPS);
    let never = fake_server().replace("within_s = 60", "within_s = 1").replace("/', w", "/x', w");
    let never = never.replace(":{port}/x", ":1/x");
    let ends = fake_server()
        .replace("commands.fake", "commands.ends")
        .replace("program = 'python3'", "program = '/bin/sh'")
        .replace("args = ['", "args = ['-c', 'echo no model 1>&2; exit 4', '");
    let daemon = fake_server()
        .replace("commands.fake", "commands.daemon")
        .replace("program = 'python3'", "program = '/bin/sh'")
        .replace("args = ['", r#"args = ['-c', 'python3 "$@" & exit 0', 'sh', '"#);
    let targets = format!("{never}{ends}{daemon}");
    let service = service(data.path(), &targets, nsys.to_str().unwrap());
    for (command, reason) in [
        ("fake", "the server was not ready within 1 s: no 2xx response at http://127.0.0.1:1/x"),
        ("ends", "the server exited with code 4: no model"),
        ("daemon", "the server exited with code 0"),
    ] {
        let session = start(&service, json!({ "command": command })).await;
        let failed = wait_for(&service, &session, &["failed"]).await;
        let message = failed["message"].as_str().unwrap();
        assert!(message.starts_with(reason), "{failed:#}");
        assert_eq!(message.contains("stay in the foreground"), command == "daemon", "{message}");
        assert_eq!(processes_of(&session), [""; 0]);
        if command == "ends" {
            assert_eq!(failed["log"], "no model");
        }
    }
}

#[tokio::test]
async fn an_nsys_that_lost_its_helper_at_the_start_of_a_session_is_started_again() {
    let data = tempfile::tempdir().unwrap();
    let tries = data.path().join("tries");
    let lost = format!(
        "launch) echo x >>{0}; [ $(wc -l <{0}) -gt 2 ] || \
         {{ echo 'Connection reset by peer' >&2; exit 1; }}; shift",
        tries.display()
    );
    let nsys = script(data.path(), &NEVER_STOPS.replace("launch) shift", &lost));
    let service = service(data.path(), &fake_server(), nsys.to_str().unwrap());
    let session = start(&service, json!({})).await;
    wait_for(&service, &session, &["ready"]).await;
    assert_eq!(std::fs::read_to_string(tries).unwrap().lines().count(), 3);
}

#[tokio::test]
async fn a_session_without_nsys_fails_with_the_remedy() {
    let data = tempfile::tempdir().unwrap();
    let service = service(data.path(), &fake_server(), "none");
    let session = start(&service, json!({})).await;
    let failed = wait_for(&service, &session, &["failed"]).await;
    let message = failed["message"].as_str().unwrap();
    assert!(message.starts_with("nsys is not installed"), "{message}");
    assert!(message.contains("scripts/install-nsight.sh"), "{message}");
}

#[tokio::test]
async fn a_recording_that_nsys_cannot_stop_fails_its_session_and_leaves_no_process() {
    let data = tempfile::tempdir().unwrap();
    let nsys = script(data.path(), NEVER_STOPS);
    let service = service(data.path(), &fake_server(), nsys.to_str().unwrap());
    let session = start(&service, json!({})).await;
    let id = submit_on(&service, &session, json!({}), json!({})).await;
    let run = service.end(&id).await;
    // The unprofiled load is kept.
    assert_eq!(run["state"], "partial", "{run:#}");
    let failed = finding(&run, "window_failed").unwrap();
    assert!(failed["message"].as_str().unwrap().contains("nsys exited with code 3"), "{failed}");
    let failed = wait_for(&service, &session, &["failed"]).await;
    assert!(failed["message"].as_str().unwrap().contains("cannot be stopped"), "{failed:#}");
    assert_eq!(processes_of(&session), [""; 0]);
}

#[tokio::test]
async fn under_the_real_nsys_a_server_that_dies_in_a_window_fails_its_session_and_queued_runs() {
    let Some(nsys) = nsys() else { return };
    let data = tempfile::tempdir().unwrap();
    let service = service(data.path(), &fake_server(), &nsys);
    let session = start(&service, json!({ "params": { "mode": "dies-late" } })).await;
    let first = submit_on(&service, &session, json!({ "requests": 4 }), json!({})).await;
    let next = submit_on(&service, &session, json!({}), json!({})).await;
    let run = service.end(&first).await;
    assert_eq!((&run["state"], &run["failed_step"]), (&json!("partial"), &Value::Null), "{run:#}");
    let steps = run["steps"].as_array().unwrap();
    let step = steps.iter().find(|step| step["step"] == "nsys").unwrap();
    let message = step["message"].as_str().unwrap();
    assert!(message.starts_with("the session's server exited with code 7"), "{message}");
    let failed = wait_for(&service, &session, &["failed"]).await;
    assert!(
        failed["message"].as_str().unwrap().starts_with("the server exited with code 7"),
        "{failed:#}"
    );
    let run = service.end(&next).await;
    assert_eq!((&run["state"], &run["attempts"]), (&json!("failed"), &json!(0)), "{run:#}");
    let ended = finding(&run, "session_ended").unwrap();
    assert!(ended["advice"].as_str().unwrap().contains("POST /sessions"), "{ended}");
    assert_eq!(processes_of(&session), [""; 0]);
}

#[tokio::test]
async fn under_the_real_nsys_a_server_that_streams_garbage_fails_the_run_and_not_the_session() {
    let Some(nsys) = nsys() else { return };
    let data = tempfile::tempdir().unwrap();
    let service = service(data.path(), &fake_server(), &nsys);
    let session = start(&service, json!({ "params": { "mode": "garbage" } })).await;
    let id = submit_on(&service, &session, json!({}), json!({})).await;
    let run = service.end(&id).await;
    assert_eq!((&run["state"], &run["failed_step"]), (&json!("failed"), &json!("baseline")));
    assert!(run["message"].as_str().unwrap().contains("unreadable"), "{run:#}");
    wait_for(&service, &session, &["ready"]).await;
    assert!(!processes_of(&session).is_empty());
    close(&service, &session).await;
}

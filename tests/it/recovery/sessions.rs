//! The service ends while a session is open: killed, or stopped.

use nix::sys::signal::Signal;
use serde_json::json;

use crate::{
    recovery::survive::assert_in_order,
    runs::commands::{finding, nsys, service},
    support::{
        service::processes_of,
        session::{fake_server, start, submit_on, wait_for},
    },
};

#[tokio::test]
async fn under_the_real_nsys_a_killed_service_loses_its_session_and_leaves_no_process() {
    let Some(nsys) = nsys() else { return };
    let data = tempfile::tempdir().unwrap();
    let killed = service(data.path(), &fake_server(), &nsys);
    let session = start(&killed, json!({})).await;
    wait_for(&killed, &session, &["ready"]).await;
    let running = submit_on(&killed, &session, json!({}), json!({})).await;
    let queued = submit_on(&killed, &session, json!({}), json!({})).await;
    let in_window = |event: &serde_json::Value| {
        event["event"] == "progress" && event["step"] == "nsys" && event["phase"] == "measure"
    };
    killed.follow(&running, in_window).await;
    assert!(!processes_of(&session).is_empty());
    killed.stop(Signal::SIGKILL);

    let next = service(data.path(), &fake_server(), &nsys);
    assert_eq!(processes_of(&session), [""; 0]);
    let lost = wait_for(&next, &session, &["lost"]).await;
    assert!(lost["message"].as_str().unwrap().starts_with("the service ended"), "{lost:#}");
    for id in [&running, &queued] {
        let run = next.end(id).await;
        assert_eq!(run["state"], "failed", "{run:#}");
        assert!(finding(&run, "session_ended").is_some(), "{run:#}");
        assert_eq!(processes_of(id), [""; 0]);
    }
    // The device is free again.
    let session = start(&next, json!({})).await;
    wait_for(&next, &session, &["ready"]).await;
    assert!(next.stop(Signal::SIGTERM).success());
    assert_in_order(data.path());
}

#[tokio::test]
async fn under_the_real_nsys_a_stopped_service_ends_its_session() {
    let Some(nsys) = nsys() else { return };
    let data = tempfile::tempdir().unwrap();
    let stopped = service(data.path(), &fake_server(), &nsys);
    let session = start(&stopped, json!({})).await;
    wait_for(&stopped, &session, &["ready"]).await;
    let id = submit_on(&stopped, &session, json!({}), json!({})).await;
    stopped.follow(&id, |event| event["step"]["step"] == "nsys").await;
    assert!(stopped.stop(Signal::SIGTERM).success());
    assert_eq!(processes_of(&session), [""; 0]);
    let next = service(data.path(), &fake_server(), &nsys);
    let ended = wait_for(&next, &session, &["ended"]).await;
    assert_eq!(ended["message"], "the service stopped", "{ended:#}");
    let run = next.end(&id).await;
    assert_eq!(run["state"], "failed", "{run:#}");
    assert!(run["message"].as_str().unwrap().contains("the service stopped"), "{run:#}");
    assert!(next.stop(Signal::SIGTERM).success());
    assert_in_order(data.path());
}

//! A service that cannot stop ends with an error after `worker.stop_s`.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::{
    recovery::survive::assert_in_order,
    support::service::{Service, Setup, command, script},
};

#[tokio::test]
async fn a_service_that_cannot_stop_ends_with_an_error_and_the_next_one_recovers_its_run() {
    let data = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let runner = script(folder.path(), "exec sleep 1000");
    let log = folder.path().join("log");
    let mut command = command(data.path(), &Setup { runner, ..Setup::default() });
    command.env("LLMPROF__WORKER__STOP_S", "1").stderr(fs::File::create(&log).unwrap());
    let stuck = Service::spawn(&mut command, data.path());
    let id = stuck.submit(json!({})).await;
    stuck.follow(&id, |event| event["step"]["step"] == "baseline").await;
    // Another process keeps the database longer than a call waits for it.
    let other = rusqlite::Connection::open(data.path().join("llmprof.db")).unwrap();
    other.execute_batch(concat!("begin", " immediate")).unwrap();
    let ended = stuck.stop(Signal::SIGTERM);
    other.execute_batch("rollback").unwrap();
    drop(other);
    assert_eq!(ended.code(), Some(1), "it ends by itself, with an error");
    let log = fs::read_to_string(&log).unwrap();
    assert!(log.contains("cannot stop within 1 s (worker.stop_s)"), "{log}");

    let next = Service::start(data.path(), &Setup::default());
    assert_eq!(next.end(&id).await["state"], "succeeded");
    assert!(next.stop(Signal::SIGTERM).success());
    assert_in_order(data.path());
}

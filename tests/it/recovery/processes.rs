//! Processes of the service: none outlives its run, and none shows a secret.

use std::{fs, path::Path};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::service::{Service, Setup, command, script};

/// True if the process still runs.
fn runs(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// A service whose runner starts processes without group and mark, writes their ids to `pids`, and
/// ends as `then`.
fn service(data: &Path, then: &str) -> Service {
    let pids = data.join("pids");
    let lines = format!(
        "env -i setsid sleep 1000 & echo $! > {0}
         env -i setsid sh -c 'setsid sleep 1000 & echo $! $$ >> {0}; wait' &
         while [ \"$(wc -w < {0})\" -lt 3 ]; do sleep 0.01; done
         echo up >&2; {then}",
        pids.display()
    );
    Service::start(data, &Setup { runner: script(data, &lines), ..Setup::default() })
}

#[tokio::test]
async fn processes_that_left_their_group_and_cleared_their_environment_end_with_the_run() {
    for then in ["exit 1", "wait"] {
        let data = tempfile::tempdir().unwrap();
        let service = service(data.path(), then);
        let id = service.submit(json!({})).await;
        if then == "wait" {
            let up = |event: &serde_json::Value| event["event"] == "log" && event["line"] == "up";
            service.follow(&id, up).await;
            service.post(&format!("/runs/{id}/cancel"), &json!({})).await;
        }
        let run = service.end(&id).await;
        assert_eq!(run["state"], if then == "wait" { "cancelled" } else { "failed" }, "{run:#}");
        let pids = fs::read_to_string(data.path().join("pids")).unwrap();
        let left: Vec<&str> = pids.split_whitespace().filter(|pid| runs(pid)).collect();
        assert_eq!(left, [""; 0], "after {then}");
        assert!(service.stop(Signal::SIGTERM).success());
    }
}

#[tokio::test]
async fn the_environment_block_of_a_service_has_no_secret() {
    let data = tempfile::tempdir().unwrap();
    let mut command = command(data.path(), &Setup::default());
    command.env("API_TOKEN", "hunter2").env("LLMPROF__RETENTION__KEEP_NEWEST", "17");
    let service = Service::spawn(&mut command, data.path());
    let environ = fs::read(format!("/proc/{}/environ", service.child.id())).unwrap();
    let environ = String::from_utf8_lossy(&environ);
    assert!(environ.contains("PATH="), "{environ}");
    for hidden in ["hunter2", "API_TOKEN", "LLMPROF__"] {
        assert!(!environ.contains(hidden), "{hidden} in {environ}");
    }
    // The service still reads its settings, and no child inherits the file.
    assert_eq!(service.json("/retention").await["keep_newest"], 17);
    let open = fs::read_dir(format!("/proc/{}/fd", service.child.id())).unwrap();
    for file in open.flatten() {
        let target = fs::read_link(file.path()).unwrap_or_default();
        assert!(!target.to_string_lossy().contains("memfd:llmprof"), "{}", target.display());
    }
    let name = fs::read_to_string(format!("/proc/{}/comm", service.child.id())).unwrap();
    assert_eq!(name.trim(), "llmprof");
    assert!(service.stop(Signal::SIGTERM).success());
}

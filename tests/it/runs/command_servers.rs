//! Servers as commands: readiness, clients, recordings, and their end.

use std::fs;

use rusqlite::Connection;
use serde_json::json;

use super::commands::{finding, json, nsys, read, script, service, submit};
use crate::support::service::processes_of;

/// A server in Python that starts a child process, serves its folder, and with `ignores` ignores
/// TERM.
fn server(ignores: bool, ready: &str, more: &str) -> String {
    let signals = if ignores { "signal.signal(signal.SIGTERM, signal.SIG_IGN)" } else { "pass" };
    let lines = format!(
        r#"import http.server, os, signal, subprocess, sys
{signals}
# A child that leaves the group: only its mark identifies its run.
child = subprocess.Popen(["setsid", "sleep", "600"])
print("about to serve", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()"#
    );
    let client = "import sys, urllib.request\nurllib.request.urlopen('http://127.0.0.1:' + sys.argv[1]).read()";
    format!(
        "[commands.server]\ndescription = 'A server'\nkind = 'server'\n\
         program = 'python3'\nargs = ['-c', '''{lines}''', '{{port}}']\n\
         ready = {ready}\n\
         client = {{ program = 'python3', args = ['-c', {client:?}, '{{port}}'] }}\n{more}\n"
    )
}

#[tokio::test]
async fn a_server_is_waited_for_used_and_ended_with_all_that_it_started() {
    let data = tempfile::tempdir().unwrap();
    let ready = [r#"{ url = "http://127.0.0.1:{port}/" }"#, r#"{ log = "about to serve" }"#];
    for (ignores, ready) in [(false, ready[0]), (true, ready[0]), (true, ready[1])] {
        let commands = if ready.contains("log") {
            // The line is printed before the server listens: the client waits.
            server(ignores, ready, "").replace(
                "urllib.request.urlopen",
                "__import__('time').sleep(1), urllib.request.urlopen",
            )
        } else {
            server(ignores, ready, "")
        };
        let folder = tempfile::tempdir_in(data.path()).unwrap();
        let service = service(folder.path(), &commands, "none");
        let id = submit(&service, "server", json!({}), json!({})).await;
        let run = service.end(&id).await;
        assert_eq!(run["state"], "succeeded", "{run:#}");
        let timing = json(&service, &id, "report.json")["aggregates"]["command"].clone();
        assert_eq!(
            (&timing["of"], &timing["plain_ms"]["n"]),
            (&json!("client"), &json!(2)),
            "{timing}"
        );
        assert!(timing["ready_ms"].as_f64().unwrap() > 0.0);
        assert_eq!(processes_of(&id), [""; 0], "nothing of it is left");
    }
}

/// A server whose handler of TERM takes a moment, as one does that writes a trace, and that notes
/// each TERM.
const SLOW_END: &str = r#"import os, signal, subprocess, sys, time
def end(*_):
    with open("terms", "a") as file:
        file.write(sys.argv[1])
    time.sleep(0.5)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
if sys.argv[1] == "1":
    # A process outside the group, which only its mark identifies.
    subprocess.Popen(["setsid", "python3", "-c", sys.argv[2], "2", ""])
else:
    print("ready", flush=True)
while True:
    time.sleep(600)"#;

#[tokio::test]
async fn every_process_of_a_server_gets_term_once() {
    let modes = [("none".to_owned(), "basic", "baseline")];
    let profiled = nsys().map(|nsys| (nsys, "light", "nsys"));
    for (nsys, mode, pass) in modes.into_iter().chain(profiled) {
        let data = tempfile::tempdir().unwrap();
        let commands = format!(
            "[commands.server]\ndescription = 'A server'\nkind = 'server'\nprogram = 'python3'\n\
             args = ['-c', {SLOW_END:?}, '1', {SLOW_END:?}]\nduration_s = 1\n\
             ready = {{ log = 'ready' }}\n"
        );
        let service = service(data.path(), &commands, &nsys);
        let id = submit(&service, "server", json!({}), json!({ "mode": mode, "warmup": 0 })).await;
        service.end(&id).await;
        let mut terms: Vec<u8> = read(&service, &id, &format!("{pass}/out/terms")).into_bytes();
        terms.sort_unstable();
        assert_eq!(String::from_utf8(terms).unwrap(), "12", "{mode}");
    }
}

#[tokio::test]
async fn a_server_that_is_never_ready_or_ends_too_soon_is_a_failure_with_a_name() {
    let data = tempfile::tempdir().unwrap();
    let ready = r#"{ url = "http://127.0.0.1:{port}/absent", within_s = 2 }"#;
    let never = server(true, ready, "");
    let ends = "[commands.ends]\ndescription = 'x'\nkind = 'server'\n\
                program = '/bin/sh'\nargs = ['-c', 'echo no model 1>&2; exit 4']\n\
                duration_s = 1\nready = { log = 'ready' }\n";
    let service = service(data.path(), &format!("{never}\n{ends}"), "none");
    let id = submit(&service, "server", json!({}), json!({})).await;
    let run = service.end(&id).await;
    assert_eq!(
        (&run["state"], &run["failed_step"]),
        (&json!("failed"), &json!("baseline")),
        "{run:#}"
    );
    let reason = run["message"].as_str().unwrap();
    assert!(
        reason.starts_with(
            "the server was not ready within 2 s: no 2xx response at http://127.0.0.1:"
        ),
        "{reason}"
    );
    assert!(
        finding(&run, "server_not_ready").unwrap()["advice"].as_str().unwrap().contains("within_s"),
        "{run:#}"
    );
    assert_eq!(processes_of(&id), [""; 0]);

    let id = submit(&service, "ends", json!({}), json!({})).await;
    let run = service.end(&id).await;
    assert_eq!(run["message"], "the server exited with code 4: no model", "{run:#}");
}

#[tokio::test]
async fn under_the_real_nsys_a_window_of_a_server_is_recorded_and_nothing_of_it_stays() {
    let Some(nsys) = nsys() else { return };
    for (ignores, window) in [(false, "delay_s = 1\nduration_s = 20"), (true, "")] {
        let data = tempfile::tempdir().unwrap();
        let commands = server(ignores, r#"{ url = "http://127.0.0.1:{port}/" }"#, window);
        let service = service(data.path(), &commands, &nsys);
        let id =
            submit(&service, "server", json!({}), json!({ "mode": "light", "warmup": 0 })).await;
        let run = service.end(&id).await;
        assert_eq!(run["state"], "succeeded", "{run:#}");
        let timing = json(&service, &id, "report.json")["aggregates"]["command"].clone();
        assert!(timing["traced_ms"]["mean"].is_number() && timing["of"] == "client", "{timing}");
        let report = fs::metadata(service.run_dir(&id).join("nsys/run.nsys-rep")).unwrap();
        assert!(
            report.len() > 0 && finding(&run, "command_without_stages").is_some(),
            "{:#}",
            run["findings"]
        );
        assert!(finding(&run, "client_outside_recording").is_none(), "{:#}", run["findings"]);
        assert_eq!(processes_of(&id), [""; 0]);
    }
}

#[tokio::test]
async fn under_the_real_nsys_a_partly_recorded_program_ends_without_waiting_for_its_children() {
    let Some(nsys) = nsys() else { return };
    let data = tempfile::tempdir().unwrap();
    let lines = r#"setsid sleep 600 & sleep 5; echo whole > "$1/end.txt""#;
    let service = service(
        data.path(),
        &script("leaves", lines, "'{out}'", "delay_s = 1\nduration_s = 1"),
        &nsys,
    );
    let id = submit(
        &service,
        "leaves",
        json!({}),
        json!({ "mode": "light", "warmup": 0, "repeats": 1 }),
    )
    .await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(read(&service, &id, "nsys/out/end.txt"), "whole\n");
    assert_eq!(processes_of(&id), [""; 0]);
}

#[tokio::test]
async fn under_the_real_nsys_a_client_waits_for_the_recording_and_a_short_recording_is_a_finding() {
    let Some(nsys) = nsys() else { return };
    let data = tempfile::tempdir().unwrap();
    let commands =
        server(false, r#"{ url = "http://127.0.0.1:{port}/" }"#, "delay_s = 6\nduration_s = 1");
    // A client that prints its start time and takes longer than the recording.
    let commands = commands.replace(
        "import sys, urllib.request\\n",
        "import sys, time, urllib.request\\nprint(time.time(), flush=True)\\ntime.sleep(2)\\n",
    );
    let service = service(data.path(), &commands, &nsys);
    let id = submit(
        &service,
        "server",
        json!({}),
        json!({ "mode": "light", "warmup": 0, "repeats": 1 }),
    )
    .await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let found = finding(&run, "client_outside_recording")
        .unwrap_or_else(|| panic!("{:#}", run["findings"]));
    assert!(found["message"].as_str().unwrap().contains("ended before the client"), "{found:#}");
    let export = Connection::open(service.run_dir(&id).join("nsys/run.sqlite")).unwrap();
    let recorded: i64 = export
        .query_row("select utcEpochNs from TARGET_INFO_SESSION_START_TIME", [], |row| row.get(0))
        .unwrap();
    let client: f64 = read(&service, &id, "logs/nsys-client-1.stdout.log").trim().parse().unwrap();
    assert!(
        client > recorded as f64 / 1e9,
        "the client started at {client}, the recording at {recorded}"
    );
}

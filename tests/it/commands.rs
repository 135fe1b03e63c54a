//! Commands as targets: what is refused, what is started and with what it is started, and what a run of one tells.

use std::{fs, path::Path};

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::{
    api::Api,
    gpu::{INSTANCE, WHOLE, fake_nvml},
    service::{self, RUNNER, Service, Setup, processes_of},
};

/// A service whose host allows `commands`, and that has a secret in its environment.
fn service(data: &Path, commands: &str, nsys: &str) -> Service {
    let targets = data.join("targets.toml");
    fs::write(&targets, commands).unwrap();
    let mut command = service::command(data, &Setup { nsys: nsys.into(), ..Setup::default() });
    command.env("LLMPROF__SERVER__TARGETS", targets).env("SECRET_TOKEN", "hunter2").env("ALLOWED", "yes");
    Service::spawn(&mut command, data)
}

async fn submit(service: &Service, command: &str, params: Value, more: Value) -> String {
    let mut body = json!({ "target": { "command": command, "params": params }, "mode": "basic", "repeats": 2, "warmup": 1 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let (status, answer) = service.post("/runs", &body).await;
    assert_eq!(status, 202, "{answer}");
    answer["run_id"].as_str().unwrap().to_owned()
}

fn read(service: &Service, id: &str, path: &str) -> String {
    fs::read_to_string(service.run_dir(id).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn json(service: &Service, id: &str, path: &str) -> Value {
    serde_json::from_str(&read(service, id, path)).unwrap()
}

fn finding<'a>(run: &'a Value, id: &str) -> Option<&'a Value> {
    run["findings"].as_array().unwrap().iter().find(|it| it["id"] == id)
}

/// A shell script as a command: `sh -c SCRIPT command ARGUMENTS...`, which is the operator's to write.
fn script(name: &str, script: &str, args: &str, more: &str) -> String {
    format!(
        "[commands.{name}]\ndescription = 'A script'\nprogram = '/bin/sh'\nargs = ['-c', '''{script}''', 'command', {args}]\n{more}\n"
    )
}

/// A text of any letters, in an argument of its own and inside of another.
const TEXT: &str = "[commands.echo.params.text]\ntype = 'string'\npattern = '.*'\nmax_length = 100\ndescription = 'Any text'";

#[tokio::test]
async fn what_is_allowed_is_listed_without_what_is_the_hosts_own_business() {
    let api = Api::new().await;
    let answer = api.get("/targets").await;
    let list = answer.json();
    let tiny = list["commands"].as_array().unwrap().iter().find(|it| it["command"] == "tiny-generate").unwrap();
    assert_eq!((&tiny["kind"], &tiny["gpus"]), (&json!("program"), &json!(0)));
    assert_eq!((&tiny["params"]["tokens"]["type"], &tiny["params"]["tokens"]["max"]), (&json!("int"), &json!(256)));
    assert!(!answer.text().contains("urllib") && !answer.text().contains("--max-new-tokens"), "{}", answer.text());
}

#[tokio::test]
async fn a_call_that_does_not_fit_is_refused_with_the_reason() {
    let api = Api::new().await;
    let call = |params: Value| json!({ "target": { "command": "tiny-generate", "params": params } });
    let with = |more: Value| {
        let mut body = call(json!({}));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let long = "x".repeat(201);
    let cases = [
        (json!({ "target": { "command": "tiny-generat" } }), 404, "did you mean tiny-generate?"),
        (json!({ "target": { "command": "../bin/sh" } }), 422, "is no name of a command"),
        (json!({ "target": { "command": "tiny-generate", "gpus": 0 } }), 422, "between 1 and 16"),
        (json!({ "target": { "command": "tiny-generate", "gpus": 2 } }), 409, "runs on 0 to 0 GPUs"),
        (call(json!({ "token": 3 })), 409, "has no parameter token; it has model, prompt, tokens"),
        (call(json!({ "tokens": 257 })), 409, "257 is not between 1 and 256"),
        (call(json!({ "tokens": "8" })), 409, "a whole number is wanted"),
        (call(json!({ "tokens": 8.5 })), 409, "a whole number is wanted"),
        (call(json!({ "tokens": [8] })), 422, "target"),
        (call(json!({ "model": "gpt" })), 409, "is none of llama-tiny, deepseek-ocr-tiny"),
        (call(json!({ "prompt": long })), 409, "longer than 200"),
        (call(json!({ "prompt": "x".repeat(4097) })), 422, "longer than 4096"),
        (call(json!({ "prompt": "$(touch /tmp/x)" })), 409, "does not match"),
        (call(json!({ "prompt": "a; rm -rf b" })), 409, "does not match"),
        (call(json!({ "prompt": "../../etc/passwd" })), 409, "does not match"),
        (call(json!({ "prompt": "-rf" })), 409, "begins with '-'"),
        (call(json!({ "prompt": "a\nb" })), 422, "a control character"),
        (call(json!({ "prompt": "a\u{0}b" })), 422, "a control character"),
        (call(json!({ "a b": 1 })), 422, "is no name of a parameter"),
        (with(json!({ "model": "llama-tiny" })), 422, "unknown field `model`"),
        (with(json!({ "inputs_manifest": "inputs.yaml" })), 422, "inputs_manifest"),
        (with(json!({ "align_with": "e2e" })), 422, "align_with"),
        (with(json!({ "dtype": "f32" })), 422, "dtype"),
    ];
    for (body, status, said) in cases {
        let answer = api.post(&body).await;
        assert!(answer.status == status && answer.text().contains(said), "{body}: {} {}", answer.status, answer.text());
    }
    let answer = api.post(&call(json!({ "tokens": 3.0 }))).await;
    assert_eq!(answer.status, 202, "3.0 is a whole number: {}", answer.text());
    let id = answer.json()["run_id"].as_str().unwrap().to_owned();
    let spec = api.get(&format!("/runs/{id}")).await.json()["spec"].clone();
    assert_eq!(spec["subject"]["call"]["command"], "tiny-generate");
    assert_eq!(
        spec["subject"]["call"]["params"],
        json!({ "model": "llama-tiny", "prompt": "Where does the time go?", "tokens": 3.0 })
    );
}

#[tokio::test]
async fn every_repeat_is_a_process_and_no_value_is_read_by_a_shell() {
    let data = tempfile::tempdir().unwrap();
    let lines = r#"printf "%s\n" "$@" > words.txt; env > env.txt; echo "<script>$2" 1>&2; touch ../../ran.$$"#;
    let more = format!("pass_env = ['ALLOWED']\nenv = {{ FIXED = 'one two' }}\n{TEXT}");
    let service = service(data.path(), &script("echo", lines, "'--text={text}', 'x{text}', '{{text}}', '{out}'", &more), "none");
    let hostile = "$(touch /tmp/pwned) `id` ; rm -rf * | {out} {port} \"'\\ ../.. <script>x";
    let id = submit(&service, "echo", json!({ "text": hostile }), json!({})).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let words = read(&service, &id, "baseline/out/words.txt");
    let out = service.run_dir(&id).join("baseline/out");
    assert_eq!(words, format!("--text={hostile}\nx{hostile}\n{{text}}\n{}\n", out.display()));
    let seen = read(&service, &id, "baseline/out/env.txt");
    assert!(
        seen.contains("ALLOWED=yes\n") && seen.contains("FIXED=one two\n") && seen.contains("CUDA_VISIBLE_DEVICES=\n"),
        "{seen}"
    );
    assert!(!seen.contains("hunter2") && !seen.contains("SECRET_TOKEN") && !seen.contains("LLMPROF__"), "{seen}");
    let ran =
        fs::read_dir(service.run_dir(&id)).unwrap().flatten().filter(|it| it.file_name().to_string_lossy().starts_with("ran."));
    assert_eq!(ran.count(), 3, "a warm-up and two repeats");

    let timing = &json(&service, &id, "report.json")["aggregates"]["command"];
    assert_eq!((&timing["of"], &timing["plain_ms"]["n"]), (&json!("process"), &json!(2)), "{timing}");
    assert!(timing["plain_ms"]["mean"].as_f64().unwrap() > 0.0 && timing["traced_ms"].is_null());
    let report = read(&service, &id, "report.html");
    assert!(
        report.contains("Whole process") && !report.contains("<script>x") && report.contains("script&gt;x"),
        "escaped, and there"
    );
    assert!(read(&service, &id, "report.md").contains("ALLOWED, FIXED"), "names of variables");
    assert!(!Path::new("/tmp/pwned").exists());
    assert_eq!(run["spec"]["subject"]["call"]["params"]["text"], hostile);
}

#[tokio::test]
async fn stages_that_a_command_tells_are_those_of_its_plain_pass() {
    let data = tempfile::tempdir().unwrap();
    let line = |name: &str, from: u32, to: u32| {
        format!(r#"{{"kind":"range","name":"{name}","start_ns":{from},"end_ns":{to},"warmup":false,"repeat":0}}"#)
    };
    let lines = "echo loading; echo \"$1\"; echo \"$2\"";
    let args = format!(
        "'''{}''', '''{}'''",
        line("prefill", 0, 2_000_000).replace('{', "{{").replace('}', "}}"),
        line("decode_all", 2_000_000, 12_000_000).replace('{', "{{").replace('}', "}}")
    );
    let service = service(data.path(), &script("tells", lines, &args, ""), "none");
    let id = submit(&service, "tells", json!({}), json!({})).await;
    let run = service.end(&id).await;
    let report = json(&service, &id, "report.json");
    let stages: Vec<_> = report["stages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["stage"].clone(), it["ms"]["mean"].clone(), it["ms"]["n"].clone()))
        .collect();
    assert_eq!(stages, [(json!("prefill"), json!(2.0), json!(2)), (json!("decode_all"), json!(10.0), json!(2))], "{run:#}");
    assert_eq!(report["only_traced"], false);
}

#[tokio::test]
async fn a_command_that_fails_or_is_not_there_fails_its_run_with_the_reason() {
    let data = tempfile::tempdir().unwrap();
    let commands = script("fails", "echo out of memory 1>&2; exit 3", "'x'", "")
        + "[commands.absent]\ndescription = 'x'\nprogram = '/nowhere/program'\n";
    let service = service(data.path(), &commands, "none");
    for (command, said) in [
        ("fails", "the command exited with code 3: out of memory"),
        ("absent", "there is no program /nowhere/program on this host"),
    ] {
        let id = submit(&service, command, json!({}), json!({})).await;
        let run = service.end(&id).await;
        assert_eq!(
            (&run["state"], &run["failed_step"], &run["message"]),
            (&json!("failed"), &json!("baseline"), &json!(said)),
            "{run:#}"
        );
    }
}

#[test]
fn a_file_of_commands_with_a_mistake_stops_the_service_with_one_line() {
    let data = tempfile::tempdir().unwrap();
    let targets = data.path().join("targets.toml");
    fs::write(&targets, "[commands.x]\ndescription = 'x'\nprogram = 'y'\nargs = ['{n}']\n").unwrap();
    let mut command = service::command(data.path(), &Setup::default());
    let output = command.env("LLMPROF__SERVER__TARGETS", &targets).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = format!("llmprof: {}: command x: args: \"{{n}}\": there is no parameter n\n", targets.display());
    assert_eq!((output.status.success(), said), (false, expected));
}

/// The real nsys of this host; `None` where it is not installed and not required.
fn nsys() -> Option<String> {
    let found = llmprof::collect::tools::find_tool("nsys", None).map(|path| path.display().to_string());
    let required = std::env::var_os("LLMPROF_REQUIRE_NSYS").is_some_and(|value| value == "1");
    assert!(found.is_some() || !required, "nsys is required here and not installed: run scripts/install-nsight.sh");
    found
}

#[tokio::test]
async fn under_the_real_nsys_a_program_with_ranges_has_its_stages() {
    let Some(nsys) = nsys() else { return };
    let data = tempfile::tempdir().unwrap();
    let example = include_str!("../../conf/targets.toml").replace("\"model-runner\"", &format!("{RUNNER:?}"));
    let service = service(data.path(), &example, &nsys);
    let id = submit(&service, "tiny-generate", json!({ "tokens": 4 }), json!({ "mode": "light", "warmup": 0 })).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let report = json(&service, &id, "report.json");
    let command = &report["aggregates"]["command"];
    assert_eq!((&command["plain_ms"]["n"], &command["traced_ms"]["n"]), (&json!(2), &json!(1)), "{command}");
    assert_eq!(report["only_traced"], true);
    let stages: Vec<_> = report["stages"].as_array().unwrap().iter().map(|it| it["stage"].clone()).collect();
    assert_eq!(stages, ["prefill", "decode_all"], "{run:#}");
    let overhead = report["overhead"].as_array().unwrap();
    assert!(overhead.iter().any(|it| it["stage"] == "process" && it["overhead_pct"].is_number()), "{overhead:#?}");
    let advice = finding(&run, "no_kernel_data").unwrap()["advice"].as_str().unwrap();
    assert!(advice.starts_with("A command that works on the CPU has none"), "{advice}");
    for told in ["stages_only_traced", "outputs_unknown"] {
        assert!(finding(&run, told).is_some(), "{told}: {:#}", run["findings"]);
    }
    for not in ["only_traced", "no_stages", "runner_unfinished", "capture_incomplete"] {
        assert!(finding(&run, not).is_none(), "{not}: {:#}", run["findings"]);
    }
    assert!(service.run_dir(&id).join("nsys/out/predictions.jsonl").exists(), "what it wrote is an artifact");
    assert_eq!(processes_of(&id), [""; 0]);
}

/// A server in Python: it notes the processes that it starts in its folder, answers `/ready`, and ignores TERM where it is told to.
fn server(ignores: bool, ready: &str, more: &str) -> String {
    let signals = if ignores { "signal.signal(signal.SIGTERM, signal.SIG_IGN)" } else { "pass" };
    let lines = format!(
        r#"import http.server, os, signal, subprocess, sys
{signals}
# A child that leaves the group: only its mark tells whose it is.
child = subprocess.Popen(["setsid", "sleep", "600"])
print("about to serve", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()"#
    );
    let client = "import sys, urllib.request\nurllib.request.urlopen('http://127.0.0.1:' + sys.argv[1]).read()";
    format!(
        "[commands.server]\ndescription = 'A server'\nkind = 'server'\nprogram = 'python3'\nargs = ['-c', '''{lines}''', '{{port}}']\n\
         ready = {ready}\nclient = {{ program = 'python3', args = ['-c', {client:?}, '{{port}}'] }}\n{more}\n"
    )
}

#[tokio::test]
async fn a_server_is_waited_for_used_and_ended_with_all_that_it_started() {
    let data = tempfile::tempdir().unwrap();
    let ready = [r#"{ url = "http://127.0.0.1:{port}/" }"#, r#"{ log = "about to serve" }"#];
    for (ignores, ready) in [(false, ready[0]), (true, ready[0]), (true, ready[1])] {
        let commands = if ready.contains("log") {
            // It says so before it listens: its client tries again.
            server(ignores, ready, "").replace("urllib.request.urlopen", "__import__('time').sleep(1), urllib.request.urlopen")
        } else {
            server(ignores, ready, "")
        };
        let folder = tempfile::tempdir_in(data.path()).unwrap();
        let service = service(folder.path(), &commands, "none");
        let id = submit(&service, "server", json!({}), json!({})).await;
        let run = service.end(&id).await;
        assert_eq!(run["state"], "succeeded", "{run:#}");
        let timing = json(&service, &id, "report.json")["aggregates"]["command"].clone();
        assert_eq!((&timing["of"], &timing["plain_ms"]["n"]), (&json!("client"), &json!(2)), "{timing}");
        assert!(timing["ready_ms"].as_f64().unwrap() > 0.0);
        assert_eq!(processes_of(&id), [""; 0], "nothing of it is left");
    }
}

#[tokio::test]
async fn a_server_that_is_never_ready_or_ends_too_soon_is_a_failure_with_a_name() {
    let data = tempfile::tempdir().unwrap();
    let ready = r#"{ url = "http://127.0.0.1:{port}/absent", within_s = 2 }"#;
    let never = server(true, ready, "");
    let ends = "[commands.ends]\ndescription = 'x'\nkind = 'server'\nprogram = '/bin/sh'\nargs = ['-c', 'echo no model 1>&2; exit 4']\n\
                duration_s = 1\nready = { log = 'ready' }\n";
    let service = service(data.path(), &format!("{never}\n{ends}"), "none");
    let id = submit(&service, "server", json!({}), json!({})).await;
    let run = service.end(&id).await;
    assert_eq!((&run["state"], &run["failed_step"]), (&json!("failed"), &json!("baseline")), "{run:#}");
    let said = run["message"].as_str().unwrap();
    assert!(said.starts_with("the server was not ready within 2 s: no answer of 2xx at http://127.0.0.1:"), "{said}");
    assert!(finding(&run, "server_not_ready").unwrap()["advice"].as_str().unwrap().contains("within_s"), "{run:#}");
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
        let id = submit(&service, "server", json!({}), json!({ "mode": "light", "warmup": 0 })).await;
        let run = service.end(&id).await;
        assert_eq!(run["state"], "succeeded", "{run:#}");
        let timing = json(&service, &id, "report.json")["aggregates"]["command"].clone();
        assert!(timing["traced_ms"]["mean"].is_number() && timing["of"] == "client", "{timing}");
        let report = fs::metadata(service.run_dir(&id).join("nsys/run.nsys-rep")).unwrap();
        assert!(report.len() > 0 && finding(&run, "command_without_stages").is_some(), "{:#}", run["findings"]);
        assert!(finding(&run, "client_outside_recording").is_none(), "{:#}", run["findings"]);
        assert_eq!(processes_of(&id), [""; 0]);
    }
}

#[tokio::test]
async fn under_the_real_nsys_a_program_that_is_recorded_in_part_ends_when_it_ends_and_not_with_what_it_left() {
    let Some(nsys) = nsys() else { return };
    let data = tempfile::tempdir().unwrap();
    let lines = r#"setsid sleep 600 & sleep 5; echo whole > "$1/end.txt""#;
    let service = service(data.path(), &script("leaves", lines, "'{out}'", "delay_s = 1\nduration_s = 1"), &nsys);
    let id = submit(&service, "leaves", json!({}), json!({ "mode": "light", "warmup": 0, "repeats": 1 })).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(read(&service, &id, "nsys/out/end.txt"), "whole\n");
    assert_eq!(processes_of(&id), [""; 0]);
}

#[tokio::test]
async fn under_the_real_nsys_a_client_waits_for_the_recording_and_is_told_when_it_was_too_short() {
    let Some(nsys) = nsys() else { return };
    let data = tempfile::tempdir().unwrap();
    let commands = server(false, r#"{ url = "http://127.0.0.1:{port}/" }"#, "delay_s = 6\nduration_s = 1");
    // A client that says when it began, and takes longer than is recorded.
    let commands = commands.replace(
        "import sys, urllib.request\\n",
        "import sys, time, urllib.request\\nprint(time.time(), flush=True)\\ntime.sleep(2)\\n",
    );
    let service = service(data.path(), &commands, &nsys);
    let id = submit(&service, "server", json!({}), json!({ "mode": "light", "warmup": 0, "repeats": 1 })).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let found = finding(&run, "client_outside_recording").unwrap_or_else(|| panic!("{:#}", run["findings"]));
    assert!(found["message"].as_str().unwrap().contains("ended before the client did"), "{found:#}");
    let export = Connection::open(service.run_dir(&id).join("nsys/run.sqlite")).unwrap();
    let recorded: i64 = export.query_row("select utcEpochNs from TARGET_INFO_SESSION_START_TIME", [], |row| row.get(0)).unwrap();
    let client: f64 = read(&service, &id, "logs/nsys-client-1.stdout.log").trim().parse().unwrap();
    assert!(client > recorded as f64 / 1e9, "the client began at {client}, the recording at {recorded}");
}

#[tokio::test]
async fn a_run_of_two_gpus_gets_both_at_once_and_is_not_passed_by_runs_of_one() {
    let dir = tempfile::tempdir().unwrap();
    fake_nvml(dir.path());
    let held = dir.path().join("held");
    fs::create_dir(&held).unwrap();
    // A GPU that two processes hold at a time fails the second of them.
    let lines = format!(
        r#"cd '{}' && for gpu in $(echo "$CUDA_VISIBLE_DEVICES" | tr , ' '); do mkdir "$gpu" || exit 9; done
echo "$CUDA_VISIBLE_DEVICES" > "$1/visible.txt"; sleep 0.2
for gpu in $(echo "$CUDA_VISIBLE_DEVICES" | tr , ' '); do rmdir "$gpu"; done"#,
        held.display()
    );
    let commands = script("one", &lines, "'{out}'", "gpus_max = 2") + &script("two", &lines, "'{out}'", "gpus = 2");
    let (data, targets) = (dir.path().join("data"), dir.path().join("targets.toml"));
    fs::write(&targets, commands).unwrap();
    let mut command = service::command(&data, &Setup::default());
    command.env("LLMPROF__SERVER__TARGETS", targets).env("LD_LIBRARY_PATH", dir.path());
    command.env("LLMPROF__WORKER__DEVICES", format!(r#"["cuda:0", "{INSTANCE}"]"#));
    let service = Service::spawn(&mut command, &data);

    let (status, answer) = service.post("/runs", &json!({ "target": { "command": "two" }, "device": "cuda:0" })).await;
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("device_not_found")), "one device serves cuda:0");
    let mut ids = Vec::new();
    for turn in 0..20 {
        let more = json!({ "warmup": 0, "repeats": 1, "profiling": { "nvml": { "enabled": false } } });
        let id = match turn % 5 {
            1 => submit(&service, "two", json!({}), more).await,
            3 => {
                let target = json!({ "target": { "command": "one", "gpus": 2 }, "mode": "basic" });
                let mut body = target.as_object().unwrap().clone();
                body.extend(more.as_object().unwrap().clone());
                service.post("/runs", &Value::Object(body)).await.1["run_id"].as_str().unwrap().to_owned()
            }
            _ => submit(&service, "one", json!({}), more).await,
        };
        ids.push(id);
    }
    // While one of two GPUs runs, both devices show it.
    let shown = service.follow(&ids[16], |event| event["event"] == "step" && event["step"]["step"] == "baseline").await;
    assert!(!shown.is_empty());
    let devices = service.json("/devices").await;
    let busy: Vec<_> = devices["devices"].as_array().unwrap().iter().map(|it| it["run_id"].clone()).collect();
    assert!(
        busy == [json!(ids[16]), json!(ids[16])] || service.json(&format!("/runs/{}", ids[16])).await["ended_at"].is_string(),
        "{devices}"
    );
    let mut began = Vec::new();
    for (turn, id) in ids.iter().enumerate() {
        let run = service.end(id).await;
        assert_eq!((&run["state"], &run["attempts"]), (&json!("succeeded"), &json!(1)), "{run:#}");
        began.push(run["started_at"].as_str().unwrap().to_owned());
        let visible = read(&service, id, "baseline/out/visible.txt");
        let both = format!("{INSTANCE},{WHOLE}\n");
        assert_eq!(visible == both, matches!(turn % 5, 1 | 3), "{turn}: {visible}");
    }
    assert!(began.is_sorted(), "in the order of submission: {began:#?}");
}

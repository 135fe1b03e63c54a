//! Commands as targets: refusals, the started process and its arguments, and the run's report.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    api::router::Api,
    support::service::{self, RUNNER, Service, Setup, processes_of},
};

/// A service whose host allows `commands`, and that has a secret in its environment.
pub fn service(data: &Path, commands: &str, nsys: &str) -> Service {
    let targets = data.join("targets.toml");
    fs::write(&targets, commands).unwrap();
    let mut command = service::command(data, &Setup { nsys: nsys.into(), ..Setup::default() });
    command
        .env("LLMPROF__SERVER__TARGETS", targets)
        .env("SECRET_TOKEN", "hunter2")
        .env("ALLOWED", "yes");
    Service::spawn(&mut command, data)
}

pub async fn submit(service: &Service, command: &str, params: Value, more: Value) -> String {
    let mut body = json!({
        "target": { "command": command, "params": params },
        "mode": "basic",
        "repeats": 2,
        "warmup": 1,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let (status, answer) = service.post("/runs", &body).await;
    assert_eq!(status, 202, "{answer}");
    answer["run_id"].as_str().unwrap().to_owned()
}

pub(super) fn read(service: &Service, id: &str, path: &str) -> String {
    fs::read_to_string(service.run_dir(id).join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub(super) fn json(service: &Service, id: &str, path: &str) -> Value {
    serde_json::from_str(&read(service, id, path)).unwrap()
}

pub fn finding<'a>(run: &'a Value, id: &str) -> Option<&'a Value> {
    run["findings"].as_array().unwrap().iter().find(|it| it["id"] == id)
}

/// A shell script as a command: `sh -c SCRIPT command ARGUMENTS...`, which is the operator's to
/// write.
pub fn script(name: &str, script: &str, args: &str, more: &str) -> String {
    format!(
        "[commands.{name}]\ndescription = 'A script'\nprogram = '/bin/sh'\n\
         args = ['-c', '''{script}''', 'command', {args}]\n{more}\n"
    )
}

/// A text of any letters, in an argument of its own and inside of another.
const TEXT: &str = "[commands.echo.params.text]\ntype = 'string'\npattern = '.*'\n\
                    max_length = 100\ndescription = 'Any text'";

#[tokio::test]
async fn what_is_allowed_is_listed_without_what_is_the_hosts_own_business() {
    let api = Api::new().await;
    let answer = api.get("/targets").await;
    let list = answer.json();
    let tiny = list["commands"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["command"] == "tiny-generate")
        .unwrap();
    assert_eq!((&tiny["kind"], &tiny["gpus"]), (&json!("program"), &json!(0)));
    assert_eq!(
        (&tiny["params"]["tokens"]["type"], &tiny["params"]["tokens"]["max"]),
        (&json!("int"), &json!(256))
    );
    assert!(
        !answer.text().contains("urllib") && !answer.text().contains("--max-new-tokens"),
        "{}",
        answer.text()
    );
}

#[tokio::test]
async fn a_call_that_does_not_fit_is_refused_with_the_reason() {
    let api = Api::new().await;
    let call =
        |params: Value| json!({ "target": { "command": "tiny-generate", "params": params } });
    let with = |more: Value| {
        let mut body = call(json!({}));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let long = "x".repeat(201);
    let cases = [
        (json!({ "target": { "command": "tiny-generat" } }), 404, "did you mean tiny-generate?"),
        (json!({ "target": { "command": "../bin/sh" } }), 422, "is not a valid command name"),
        (json!({ "target": { "command": "tiny-generate", "gpus": 0 } }), 422, "between 1 and 16"),
        (
            json!({ "target": { "command": "tiny-generate", "gpus": 2 } }),
            409,
            "2 GPUs; tiny-generate accepts 0 to 0",
        ),
        (call(json!({ "token": 3 })), 409, "has no parameter token; it has model, prompt, tokens"),
        (call(json!({ "tokens": 257 })), 409, "257 is not between 1 and 256"),
        (call(json!({ "tokens": "8" })), 409, "expected a whole number"),
        (call(json!({ "tokens": 8.5 })), 409, "expected a whole number"),
        (call(json!({ "tokens": [8] })), 422, "target"),
        (call(json!({ "model": "gpt" })), 409, "is not one of llama-tiny, deepseek-ocr-tiny"),
        (call(json!({ "prompt": long })), 409, "has 201 characters, at most 200 are allowed"),
        (
            call(json!({ "prompt": "x".repeat(4097) })),
            422,
            "has 4097 characters, at most 4096 are allowed",
        ),
        (call(json!({ "prompt": "$(touch /tmp/x)" })), 409, "does not match"),
        (call(json!({ "prompt": "a; rm -rf b" })), 409, "does not match"),
        (call(json!({ "prompt": "../../etc/passwd" })), 409, "does not match"),
        (call(json!({ "prompt": "-rf" })), 409, "starts with '-'"),
        (call(json!({ "prompt": "a\nb" })), 422, "a control character"),
        (call(json!({ "prompt": "a\u{0}b" })), 422, "a control character"),
        (call(json!({ "a b": 1 })), 422, "is not a valid parameter name"),
        (with(json!({ "model": "llama-tiny" })), 422, "exclude each other"),
        (with(json!({ "inputs_manifest": "inputs.yaml" })), 422, "inputs_manifest"),
        (with(json!({ "align_with": "e2e" })), 422, "align_with"),
        (with(json!({ "dtype": "f32" })), 422, "dtype"),
    ];
    for (body, status, reason) in cases {
        let answer = api.post(&body).await;
        assert!(
            answer.status == status && answer.text().contains(reason),
            "{body}: {} {}",
            answer.status,
            answer.text()
        );
    }
    let answer = api.post(&call(json!({ "tokens": 3.0 }))).await;
    assert_eq!(answer.status, 202, "3.0 is a whole number: {}", answer.text());
    let id = answer.json()["run_id"].as_str().unwrap().to_owned();
    let spec = api.get(&format!("/runs/{id}")).await.json()["spec"].clone();
    assert_eq!(spec["subject"]["call"]["command"], "tiny-generate");
    assert_eq!(
        spec["subject"]["call"]["params"],
        json!({ "model": "llama-tiny", "prompt": "Where does the time go?", "tokens": 3 })
    );
}

#[tokio::test]
async fn every_repeat_is_a_process_and_no_value_is_read_by_a_shell() {
    let data = tempfile::tempdir().unwrap();
    let lines = concat!(
        r#"printf "%s\n" "$@" > words.txt; env > env.txt; "#,
        r#"echo "<script>$2" 1>&2; touch ../../ran.$$"#
    );
    let more = format!("pass_env = ['ALLOWED']\nenv = {{ FIXED = 'one two' }}\n{TEXT}");
    let service = service(
        data.path(),
        &script("echo", lines, "'--text={text}', 'x{text}', '{{text}}', '{out}'", &more),
        "none",
    );
    let hostile = "$(touch /tmp/pwned) `id` ; rm -rf * | {out} {port} \"'\\ ../.. <script>x";
    let id = submit(&service, "echo", json!({ "text": hostile }), json!({})).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let words = read(&service, &id, "baseline/out/words.txt");
    let out = service.run_dir(&id).join("baseline/out");
    assert_eq!(words, format!("--text={hostile}\nx{hostile}\n{{text}}\n{}\n", out.display()));
    let seen = read(&service, &id, "baseline/out/env.txt");
    assert!(
        seen.contains("ALLOWED=yes\n")
            && seen.contains("FIXED=one two\n")
            && seen.contains("CUDA_VISIBLE_DEVICES=\n"),
        "{seen}"
    );
    assert!(
        !seen.contains("hunter2") && !seen.contains("SECRET_TOKEN") && !seen.contains("LLMPROF__"),
        "{seen}"
    );
    let ran = fs::read_dir(service.run_dir(&id))
        .unwrap()
        .flatten()
        .filter(|it| it.file_name().to_string_lossy().starts_with("ran."));
    assert_eq!(ran.count(), 3, "a warm-up and two repeats");

    let timing = &json(&service, &id, "report.json")["aggregates"]["command"];
    assert_eq!(
        (&timing["of"], &timing["plain_ms"]["n"]),
        (&json!("process"), &json!(2)),
        "{timing}"
    );
    assert!(timing["plain_ms"]["mean"].as_f64().unwrap() > 0.0 && timing["traced_ms"].is_null());
    let report = read(&service, &id, "report.html");
    assert!(
        report.contains("Whole process")
            && !report.contains("<script>x")
            && report.contains("script&gt;x"),
        "escaped, and there"
    );
    assert!(read(&service, &id, "report.md").contains("ALLOWED, FIXED"), "names of variables");
    assert!(!Path::new("/tmp/pwned").exists());
    assert_eq!(run["spec"]["subject"]["call"]["params"]["text"], hostile);
}

#[tokio::test]
async fn stages_that_a_command_prints_are_those_of_its_unprofiled_pass() {
    let data = tempfile::tempdir().unwrap();
    let pass = r#""warmup":false,"repeat":0"#;
    let line = |name: &str, from: u32, to: u32| {
        format!(r#"{{"kind":"range","name":"{name}","start_ns":{from},"end_ns":{to},{pass}}}"#)
    };
    let lines = "echo loading; echo \"$1\"; echo \"$2\"";
    let args = format!(
        "'''{}''', '''{}'''",
        line("prefill", 0, 2_000_000).replace('{', "{{").replace('}', "}}"),
        line("decode_all", 2_000_000, 12_000_000).replace('{', "{{").replace('}', "}}")
    );
    let service = service(data.path(), &script("prints", lines, &args, ""), "none");
    let id = submit(&service, "prints", json!({}), json!({})).await;
    let run = service.end(&id).await;
    let report = json(&service, &id, "report.json");
    let stages: Vec<_> = report["stages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["stage"].clone(), it["ms"]["mean"].clone(), it["ms"]["n"].clone()))
        .collect();
    assert_eq!(
        stages,
        [(json!("prefill"), json!(2.0), json!(2)), (json!("decode_all"), json!(10.0), json!(2))],
        "{run:#}"
    );
    assert_eq!(report["only_traced"], false);
    let diff = service.json(&format!("/runs/{id}/diff/{id}")).await;
    assert_eq!(diff["diff"]["comparable"], true, "the device is the processor: {diff}");
}

#[tokio::test]
async fn the_model_that_a_command_computes_is_filled_in_with_its_parameters() {
    let data = tempfile::tempdir().unwrap();
    let range = concat!(
        r#"{{"kind":"range","name":"prefill","start_ns":0,"end_ns":2000000,"#,
        r#""warmup":false,"repeat":0}}"#
    );
    let more = "[commands.x.computes]\nmodel_config = '{model}'\nprompt_tokens = '{tokens}'\n\
                batch = 2\ndtype = 'f16'\n\
                [commands.x.params.model]\ntype = 'enum'\ndescription = 'm'\n\
                values = ['qwen3-0.6b', 'gpt']\n\
                [commands.x.params.tokens]\ntype = 'int'\ndescription = 't'\nmin = 0\n\
                max = 100000";
    let args = format!("'''{range}''', '{{model}}', '{{tokens}}'");
    let service = service(data.path(), &script("x", "echo \"$1\"", &args, more), "none");
    let params = |model: &str, tokens: u32| json!({ "model": model, "tokens": tokens });
    let id = submit(&service, "x", params("qwen3-0.6b", 512), json!({})).await;
    service.end(&id).await;
    let report = json(&service, &id, "report.json");
    let row = &report["mfu"][0];
    assert_eq!((&row["scope"], &row["flops_source"]), (&json!("prefill"), &json!("modelled")));
    assert_eq!(report["costs"]["prompt_tokens"], 2 * 512, "of both sequences");
    let (flops, rate) = (row["flops"].as_f64().unwrap(), row["flops_per_s"].as_f64().unwrap());
    assert!((rate * 2e-3 / flops - 1.0).abs() < 1e-9, "{row}");
    // Two sequences of 512 tokens, 0.44 billion weights in the layers, and attention.
    assert!((0.9e12..1.1e12).contains(&flops), "{flops}");

    for (params, reason) in [
        (params("gpt", 512), "the model that x computes is unusable: model_config: no model"),
        (params("qwen3-0.6b", 0), "is not between 1 and"),
        (params("qwen3-0.6b", 50_000), "50000 positions exceed the model's context of 40960"),
    ] {
        let body = json!({ "target": { "command": "x", "params": params } });
        let (status, answer) = service.post("/runs", &body).await;
        assert!(status == 409 && answer.to_string().contains(reason), "{status} {answer}");
    }
}

#[tokio::test]
async fn a_command_that_fails_or_is_not_there_fails_its_run_with_the_reason() {
    let data = tempfile::tempdir().unwrap();
    let commands = script("fails", "echo out of memory 1>&2; exit 3", "'x'", "")
        + "[commands.absent]\ndescription = 'x'\nprogram = '/nowhere/program'\n";
    let service = service(data.path(), &commands, "none");
    for (command, reason) in [
        ("fails", "the command exited with code 3: out of memory"),
        ("absent", "program /nowhere/program not found on this host"),
    ] {
        let id = submit(&service, command, json!({}), json!({})).await;
        let run = service.end(&id).await;
        assert_eq!(
            (&run["state"], &run["failed_step"], &run["message"]),
            (&json!("failed"), &json!("baseline"), &json!(reason)),
            "{run:#}"
        );
    }
}

/// An nsys that, like the real one, leaves no report of a program that ends within the delay, and
/// exits with its code.
const DELAYED_NSYS: &str = r#"case $1 in
--version) echo 'NVIDIA Nsight Systems version 2025.3.2.1';;
profile) while [ "$1" != --output ]; do shift; done; shift 2; "$@"; code=$?
    echo 'FATAL ERROR: an unrelated line' >&2; exit $code;;
esac"#;

#[tokio::test]
async fn a_program_that_ends_before_its_recording_starts_is_reported_with_the_delay() {
    let data = tempfile::tempdir().unwrap();
    let nsys = service::script(data.path(), DELAYED_NSYS);
    let commands = script("short", "true", "'x'", "");
    let service = service(data.path(), &commands, nsys.to_str().unwrap());
    let more = json!({ "mode": "light", "profiling": { "nsys": { "delay_s": 600 } } });
    let id = submit(&service, "short", json!({}), more).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "partial", "{run:#}");
    let step = run["steps"].as_array().unwrap().iter().find(|it| it["step"] == "nsys").unwrap();
    let message = step["message"].as_str().unwrap();
    let start = "the program ended before recording started (delay 600 s";
    assert!(message.starts_with(start) && !message.contains("unrelated"), "{message}");
    let remedy = "set nsys.delay_s to at least 1 s less than its runtime, or to 0";
    assert!(message.contains(remedy), "{message}");
}

#[test]
fn a_file_of_commands_with_a_mistake_stops_the_service_with_one_line() {
    let data = tempfile::tempdir().unwrap();
    let targets = data.path().join("targets.toml");
    fs::write(&targets, "[commands.x]\ndescription = 'x'\nprogram = 'y'\nargs = ['{n}']\n")
        .unwrap();
    let mut command = service::command(data.path(), &Setup::default());
    let output = command.env("LLMPROF__SERVER__TARGETS", &targets).output().unwrap();
    let reason = String::from_utf8(output.stderr).unwrap();
    let expected = format!(
        "llmprof: {}: command x: args: \"{{n}}\": unknown parameter n\n",
        targets.display()
    );
    assert_eq!((output.status.success(), reason), (false, expected));
}

/// The real nsys of this host; `None` if it is not installed and not required.
pub fn nsys() -> Option<String> {
    let found = llmprof_service::collect::tools::find_tool("nsys", None)
        .map(|path| path.display().to_string());
    let required = std::env::var_os("LLMPROF_REQUIRE_NSYS").is_some_and(|value| value == "1");
    assert!(
        found.is_some() || !required,
        "nsys is required here and not installed: run scripts/install-nsight.sh"
    );
    found
}

#[tokio::test]
async fn under_the_real_nsys_a_program_with_ranges_has_its_stages() {
    let Some(nsys) = nsys() else { return };
    let data = tempfile::tempdir().unwrap();
    let example = include_str!("../../../conf/targets.toml")
        .replace("\"model-runner\"", &format!("{RUNNER:?}"));
    let service = service(data.path(), &example, &nsys);
    let id = submit(
        &service,
        "tiny-generate",
        json!({ "tokens": 4 }),
        json!({ "mode": "light", "warmup": 0 }),
    )
    .await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let report = json(&service, &id, "report.json");
    let command = &report["aggregates"]["command"];
    assert_eq!(
        (&command["plain_ms"]["n"], &command["traced_ms"]["n"]),
        (&json!(2), &json!(1)),
        "{command}"
    );
    assert_eq!(report["only_traced"], true);
    let stages: Vec<_> =
        report["stages"].as_array().unwrap().iter().map(|it| it["stage"].clone()).collect();
    assert_eq!(stages, ["prefill", "decode_all"], "{run:#}");
    let overhead = report["overhead"].as_array().unwrap();
    assert!(
        overhead.iter().any(|it| it["stage"] == "process" && it["overhead_pct"].is_number()),
        "{overhead:#?}"
    );
    let advice = finding(&run, "no_kernel_data").unwrap()["advice"].as_str().unwrap();
    assert!(advice.starts_with("A command on the CPU has none"), "{advice}");
    for id in ["stages_only_traced", "outputs_unknown"] {
        assert!(finding(&run, id).is_some(), "{id}: {:#}", run["findings"]);
    }
    for not in ["only_traced", "no_stages", "runner_unfinished", "capture_incomplete"] {
        assert!(finding(&run, not).is_none(), "{not}: {:#}", run["findings"]);
    }
    assert!(
        service.run_dir(&id).join("nsys/out/predictions.jsonl").exists(),
        "what it wrote is an artifact"
    );
    assert_eq!(processes_of(&id), [""; 0]);
}

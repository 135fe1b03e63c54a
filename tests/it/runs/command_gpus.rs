//! Commands on several GPUs.

use std::fs;

use serde_json::{Value, json};

use super::commands::{read, script, submit};
use crate::{
    runs::gpu::{INSTANCE, WHOLE},
    support::{
        deep::fake_nvml,
        service::{self, Service, Setup},
    },
};

#[tokio::test]
async fn a_run_of_two_gpus_gets_both_at_once_and_is_not_passed_by_runs_of_one() {
    let dir = tempfile::tempdir().unwrap();
    fake_nvml(dir.path());
    let held = dir.path().join("held");
    fs::create_dir(&held).unwrap();
    // A GPU that two processes hold at a time fails the second of them.
    let lines = format!(
        r#"cd '{}' || exit 9
for gpu in $(echo "$CUDA_VISIBLE_DEVICES" | tr , ' '); do mkdir "$gpu" || exit 9; done
echo "$CUDA_VISIBLE_DEVICES" > "$1/visible.txt"; sleep 0.2
for gpu in $(echo "$CUDA_VISIBLE_DEVICES" | tr , ' '); do rmdir "$gpu"; done"#,
        held.display()
    );
    let commands = script("one", &lines, "'{out}'", "gpus_max = 2")
        + &script("two", &lines, "'{out}'", "gpus = 2");
    let (data, targets) = (dir.path().join("data"), dir.path().join("targets.toml"));
    fs::write(&targets, commands).unwrap();
    let mut command = service::command(&data, &Setup::default());
    command.env("LLMPROF__SERVER__TARGETS", targets).env("LD_LIBRARY_PATH", dir.path());
    command.env("LLMPROF__WORKER__DEVICES", format!(r#"["cuda:0", "{INSTANCE}"]"#));
    let service = Service::spawn(&mut command, &data);

    let (status, answer) =
        service.post("/runs", &json!({ "target": { "command": "two" }, "device": "cuda:0" })).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (404, &json!("device_not_found")),
        "one device serves cuda:0"
    );
    let mut ids = Vec::new();
    for turn in 0..20 {
        let more =
            json!({ "warmup": 0, "repeats": 1, "profiling": { "nvml": { "enabled": false } } });
        let id = match turn % 5 {
            1 => submit(&service, "two", json!({}), more).await,
            3 => {
                let target = json!({ "target": { "command": "one", "gpus": 2 }, "mode": "basic" });
                let mut body = target.as_object().unwrap().clone();
                body.extend(more.as_object().unwrap().clone());
                service.post("/runs", &Value::Object(body)).await.1["run_id"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            }
            _ => submit(&service, "one", json!({}), more).await,
        };
        ids.push(id);
    }
    // While one of two GPUs runs, both devices show it.
    let shown = service
        .follow(&ids[16], |event| event["event"] == "step" && event["step"]["step"] == "baseline")
        .await;
    assert!(!shown.is_empty());
    let devices = service.json("/devices").await;
    let busy: Vec<_> =
        devices["devices"].as_array().unwrap().iter().map(|it| it["run_id"].clone()).collect();
    assert!(
        busy == [json!(ids[16]), json!(ids[16])]
            || service.json(&format!("/runs/{}", ids[16])).await["ended_at"].is_string(),
        "{devices}"
    );
    let mut started = Vec::new();
    for (turn, id) in ids.iter().enumerate() {
        let run = service.end(id).await;
        assert_eq!((&run["state"], &run["attempts"]), (&json!("succeeded"), &json!(1)), "{run:#}");
        started.push(run["started_at"].as_str().unwrap().to_owned());
        let visible = read(&service, id, "baseline/out/visible.txt");
        let both = format!("{INSTANCE},{WHOLE}\n");
        assert_eq!(visible == both, matches!(turn % 5, 1 | 3), "{turn}: {visible}");
    }
    assert!(started.is_sorted(), "in the order of submission: {started:#?}");
}

#[tokio::test]
async fn the_gemms_of_each_process_of_a_command_are_logged_in_a_pass_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    fake_nvml(dir.path());
    let line = "[2026-11-23 03:36:06][cublasLt][5][Trace][cublasLtMatmul] \
                Adesc=[type=R_16BF rows=512 cols=2048 ld=512] \
                Bdesc=[type=R_16BF rows=512 cols=ROWS ld=512] \
                Ddesc=[type=R_16BF rows=2048 cols=ROWS ld=2048] \
                computeDesc=[computeType=COMPUTE_32F transa=OP_T] algo=[algoId=66]";
    // As the libraries do, each process writes a file of its own if a log is requested.
    let lines = format!(
        r#"[ -n "$CUBLASLT_LOG_FILE" ] || exit 0
for rows in 3 7; do
(exec sh -c 'echo "$1" > "$(echo "$CUBLASLT_LOG_FILE" | sed "s/%i/$$/")"' sh \
    "$(echo '{line}' | sed "s/ROWS/$rows/g")") || exit 9
done"#
    );
    let data = dir.path().join("data");
    let targets = dir.path().join("targets.toml");
    fs::write(&targets, script("gemms", &lines, "", "")).unwrap();
    let mut command = service::command(&data, &Setup::default());
    command.env("LLMPROF__SERVER__TARGETS", targets).env("LD_LIBRARY_PATH", dir.path());
    command.env("LLMPROF__WORKER__DEVICES", r#"["cuda:0"]"#);
    let service = Service::spawn(&mut command, &data);
    let settings =
        json!({ "profiling": { "nvml": { "enabled": false }, "gemm_log": { "enabled": true } } });
    let id = submit(&service, "gemms", json!({}), settings).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let steps = run["steps"].as_array().unwrap().iter();
    let step = steps.clone().find(|it| it["step"] == "gemm_log").unwrap();
    assert_eq!(step["state"], "succeeded", "{step}");
    let table = service.json(&format!("/runs/{id}/tables/gemms")).await;
    let rows: Vec<_> =
        table["rows"].as_array().unwrap().iter().map(|row| row.to_string()).collect();
    assert_eq!(rows.len(), 2, "{table}");
    assert!(rows.iter().all(|row| row.contains("2048") && row.contains("cublasLtMatmul")));
    let commands = read(&service, &id, "gemm_log/processes/cmd.txt");
    assert!(commands.contains("CUBLASLT_LOG_MASK=2") && commands.contains("cublas_%i.log"));
}

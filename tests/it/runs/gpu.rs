//! A host with two GPUs in NVML: the library is a stand-in, built here, and the runner
//! a script that computes on the CPU.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::{Value, json};

use crate::support::{
    deep::fake_nvml,
    service::{self, LLMPROF, RUNNER, Service, Setup, script},
};

pub const WHOLE: &str = "GPU-aaaaaaaa-0000-0000-0000-000000000001";
pub const INSTANCE: &str = "MIG-cccccccc-0000-0000-0000-000000000003";

/// A runner with the feature cuda that records the visible GPU and computes on the CPU.
fn gpu_runner(folder: &Path) -> PathBuf {
    let lines = format!(
        r#"case $1 in features) echo '{{"cuda": true, "version": "0.1.0"}}'; exit 0;; esac
while [ $# -gt 0 ]; do
case $1 in --out) out=$2; shift;; --request) request=$2; shift;; esac; shift
done
echo "$CUDA_VISIBLE_DEVICES" > "$out/visible.txt"
sed 's/"device": "cuda:0"/"device": "cpu"/' "$request" > "$out/on-cpu.json"
grep -q '"device": "cpu"' "$out/on-cpu.json" || exit 9
exec '{RUNNER}' run --request "$out/on-cpu.json" --out "$out""#
    );
    script(folder, &lines)
}

fn doctor(folder: &Path, runner: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(LLMPROF);
    command
        .arg("doctor")
        .args(arguments)
        .current_dir(folder)
        .env("LD_LIBRARY_PATH", folder)
        .env_remove("LLMPROF__WORKER__DEVICES");
    command
        .env("LLMPROF__TOOLS__MODEL_RUNNER", runner)
        .env("LLMPROF__TOOLS__NSYS", "none")
        .env("LLMPROF__TOOLS__NCU", "none");
    command.output().unwrap()
}

#[test]
fn the_doctor_tells_each_gpu_by_its_uuid_and_what_is_missing_with_its_remedy() {
    let dir = tempfile::tempdir().unwrap();
    fake_nvml(dir.path());
    let output = doctor(dir.path(), &gpu_runner(dir.path()), &["--format", "json"]);
    assert!(output.status.success(), "{output:?}");
    let checkup: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks_of = |id: &str| -> Vec<String> {
        let checks = checkup["checks"].as_array().unwrap().iter().filter(|check| check["id"] == id);
        checks
            .map(|check| {
                format!(
                    "{}: {}",
                    check["state"].as_str().unwrap(),
                    check["message"].as_str().unwrap()
                )
            })
            .collect()
    };
    let words = "ok: driver 580.159.03, which supports CUDA up to 13.0, GPUs: 2";
    assert_eq!(checks_of("driver"), [words]);
    assert_eq!(
        checks_of("gpu")[0],
        format!("ok: cuda:0 is NVIDIA H200, 140.0 GiB of memory, compute capability 9.0, {WHOLE}")
    );
    assert!(
        checks_of("mig")[0].contains("is not in MIG mode")
            && checks_of("mig")[1].contains(INSTANCE),
        "{:?}",
        checks_of("mig")
    );
    assert!(
        checks_of("gpu_processes")[0].starts_with("ok")
            && checks_of("gpu_processes")[1].contains("4000000")
    );
    assert!(checks_of("model_runner")[0].ends_with("built for CUDA"));
    assert!(
        checks_of("nsys")[0].starts_with("warning") && checks_of("ncu")[0].starts_with("warning"),
        "turned off, both are missing"
    );
    assert!(!dir.path().join("data").exists(), "a look makes no data folder");

    let output = doctor(dir.path(), Path::new(RUNNER), &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && text.contains("was not built with the feature cuda"),
        "{text}"
    );
    let output = doctor(dir.path(), &script(dir.path(), "exit 7"), &[]);
    assert_eq!(output.status.code(), Some(1), "without a runner no run can succeed");
}

/// A service on that host, with a worker for each device that it finds.
fn service(dir: &Path, runner: PathBuf) -> Service {
    let setup = Setup { runner, ..Setup::default() };
    let data = dir.join("data");
    Service::spawn(
        service::command(&data, &setup)
            .env("LLMPROF__WORKER__DEVICES", "[]")
            .env("LD_LIBRARY_PATH", dir),
        &data,
    )
}

#[tokio::test]
async fn every_gpu_and_instance_gets_a_worker_and_a_run_is_confined_to_its_gpu_and_sampled_beside()
{
    let dir = tempfile::tempdir().unwrap();
    fake_nvml(dir.path());
    let service = service(dir.path(), gpu_runner(dir.path()));
    let devices = service.json("/devices").await;
    let names: Vec<_> = devices["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["cuda:0", INSTANCE]);
    assert_eq!(devices["devices"][0]["uuid"], WHOLE);
    let (status, answer) =
        service.post("/runs", &json!({ "model": "deepseek-ocr-tiny", "device": "cpu" })).await;
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("device_not_found")));

    // Long enough for some samples on any machine.
    for (asked, uuid, board) in
        [("cuda:0", WHOLE, WHOLE), (INSTANCE, INSTANCE, "GPU-bbbbbbbb-0000-0000-0000-000000000002")]
    {
        let body = json!({
            "device": asked, "dtype": "f32", "repeats": 1, "warmup": 0, "max_new_tokens": 200
        });
        let id = service.submit(body).await;
        let run = service.end(&id).await;
        assert_eq!(run["state"], "succeeded", "{run:#}");
        let folder = service.run_dir(&id);
        assert_eq!(
            std::fs::read_to_string(folder.join("baseline/visible.txt")).unwrap().trim(),
            uuid
        );
        let report = service.json(&format!("/runs/{id}/artifacts/report.json")).await;
        assert_eq!(report["environment"]["device"]["uuid"], uuid);
        let power = &report["power"];
        assert_eq!(
            (&power["device"]["uuid"], &power["device"]["board_uuid"]),
            (&json!(uuid), &json!(board))
        );
        assert_eq!(
            (&power["device"]["power_source"], &power["peak_w"]),
            (&json!("instant"), &json!(650.0))
        );
        let decode = power["stages"]
            .as_array()
            .unwrap()
            .iter()
            .find(|it| it["stage"] == "decode_all")
            .unwrap();
        let watts = decode["mean_w"].as_f64().unwrap_or_else(|| panic!("{decode:#}"));
        assert!((watts - 650.0).abs() < 65.0, "{decode:#}");
        assert!(
            run["findings"].as_array().unwrap().iter().any(|it| it["id"] == "gpu_throttled"),
            "{run:#}"
        );
    }
}

#[tokio::test]
async fn a_runner_without_cuda_leaves_the_gpus_alone() {
    let dir = tempfile::tempdir().unwrap();
    fake_nvml(dir.path());
    let service = service(dir.path(), RUNNER.into());
    assert_eq!(service.json("/devices").await["devices"][0]["name"], "cpu");
    let checkup = service.json("/doctor").await;
    let check = checkup["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|check| check["id"] == "model_runner")
        .unwrap()
        .clone();
    assert_eq!(check["state"], "warning");
}

#[tokio::test]
async fn a_gpu_that_was_configured_and_cannot_be_used_fails_the_run_before_anything_is_started() {
    let dir = tempfile::tempdir().unwrap();
    fake_nvml(dir.path());
    let (setup, data) = (Setup::default(), dir.path().join("data"));
    let mut command = service::command(&data, &setup);
    command.env("LLMPROF__WORKER__DEVICES", r#"["cuda:0"]"#).env("LD_LIBRARY_PATH", dir.path());
    let service = Service::spawn(&mut command, &data);
    let run = service.end(&service.submit(json!({ "device": WHOLE })).await).await;
    assert_eq!((&run["state"], &run["failed_step"]), (&json!("failed"), &json!("preflight")));
    assert!(
        run["message"].as_str().unwrap().contains("not built with the feature cuda"),
        "{run:#}"
    );
    assert!(!service.run_dir(run["run_id"].as_str().unwrap()).join("baseline").exists());
}

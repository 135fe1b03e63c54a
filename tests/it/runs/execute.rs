//! `llmprof execute`: a run from only its folder, with neither service nor database.

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};

use crate::support::service::{self, RUNNER, Service, Setup, script};

fn execute(dir: &Path, parts: &[&str]) -> bool {
    exit_code(dir, parts) == Some(0)
}

fn exit_code(dir: &Path, parts: &[&str]) -> Option<i32> {
    let mut command = Command::new(service::LLMPROF);
    command.arg("execute").args(parts).arg("--run-dir").arg(dir);
    command.output().unwrap().status.code()
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A folder with the job spec of a run that a service has executed; the service is gone.
async fn with_job_spec(data: &Path) -> std::path::PathBuf {
    let service = Service::start(data, &Setup::default());
    let id = service
        .submit(json!({ "repeats": 1, "warmup": 0, "inputs_manifest": "inputs-small.yaml" }))
        .await;
    assert_eq!(service.end(&id).await["state"], "succeeded");
    let spec = read(&service.run_dir(&id).join("spec.json"));
    let config = fs::read_to_string(service.run_dir(&id).join("config.yaml")).unwrap();
    let config: Value = yaml_serde::from_str(&config).unwrap();
    let profiling = &spec["subject"]["passes"]["profiling"];
    let spec = json!({
        "id": id, "attempt": 1, "spec": spec, "inputs": data.join("samples"),
        "subject": { "model": { "model": config["resolved"]["model"], "profiling": profiling } },
        "devices": ["cpu"], "gpus": 1, "grace_s": 1,
        "tools": { "model_runner": service::RUNNER, "nsys": "none", "ncu": "none" },
        "limits": { "log_bytes": 1_000_000, "free_bytes": 1, "run_bytes": 1_000_000_000,
                    "run_s": 600 }
    });
    let dir = data.join("alone");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("job.json"), spec.to_string()).unwrap();
    dir
}

#[tokio::test]
async fn a_run_is_executed_from_its_folder_alone_and_only_once() {
    let data = tempfile::tempdir().unwrap();
    let dir = with_job_spec(data.path()).await;
    assert!(execute(&dir, &[]));
    let result = fs::read(dir.join("result.json")).unwrap();
    assert_eq!(read(&dir.join("result.json"))["outcome"]["state"], "succeeded");
    assert!(dir.join("report.md").is_file() && dir.join("manifest.json").is_file());
    // A scheduler that starts the job again finds its result.
    assert!(execute(&dir, &[]));
    assert!(result == fs::read(dir.join("result.json")).unwrap());
    let journal = fs::read_to_string(dir.join("progress.jsonl")).unwrap();
    assert_eq!(journal.lines().filter(|line| line.contains(r#""event":"attempt""#)).count(), 1);
}

#[tokio::test]
async fn a_lost_jobs_success_counts_for_a_later_attempt_and_its_failure_does_not() {
    let data = tempfile::tempdir().unwrap();
    let dir = with_job_spec(data.path()).await;
    let set_attempt = |attempt: u32| {
        let mut spec = read(&dir.join("job.json"));
        spec["attempt"] = json!(attempt);
        fs::write(dir.join("job.json"), spec.to_string()).unwrap();
    };
    let attempts = || {
        let journal = fs::read_to_string(dir.join("progress.jsonl")).unwrap();
        journal.lines().filter(|line| line.contains(r#""event":"attempt""#)).count()
    };
    assert!(execute(&dir, &[]));
    set_attempt(2);
    assert!(execute(&dir, &[]));
    let mut result = read(&dir.join("result.json"));
    assert_eq!(
        (&result["attempt"], &result["outcome"]["state"], attempts()),
        (&json!(2), &json!("succeeded"), 1)
    );
    result["exit_code"] = json!(1);
    result["outcome"]["state"] = json!("failed");
    fs::write(dir.join("result.json"), result.to_string()).unwrap();
    assert!(!execute(&dir, &[]), "the same attempt is not tried again");
    set_attempt(3);
    assert!(execute(&dir, &[]));
    let result = read(&dir.join("result.json"));
    assert_eq!(
        (&result["attempt"], &result["outcome"]["state"], attempts()),
        (&json!(3), &json!("succeeded"), 2)
    );
}

#[tokio::test]
async fn collecting_and_analysing_can_be_separate_jobs() {
    let data = tempfile::tempdir().unwrap();
    let dir = with_job_spec(data.path()).await;
    assert!(
        execute(&dir, &["--gather"])
            && !dir.join("result.json").exists()
            && !dir.join("report.md").exists()
    );
    assert!(execute(&dir, &["--conclude"]));
    assert_eq!(read(&dir.join("result.json"))["outcome"]["state"], "succeeded");
    assert!(dir.join("report.md").is_file());
}

/// Replaces the runner of the job in `dir` by one that executes `lines` first.
fn with_runner(data: &Path, dir: &Path, lines: &str) {
    let mut spec = read(&dir.join("job.json"));
    let runner = script(data, &format!("{lines}\nexec {RUNNER} \"$@\""));
    spec["tools"]["model_runner"] = json!(runner);
    fs::write(dir.join("job.json"), spec.to_string()).unwrap();
}

#[tokio::test]
async fn a_run_that_a_full_disk_ends_before_it_measured_something_is_left_to_be_requeued() {
    let data = tempfile::tempdir().unwrap();
    let dir = with_job_spec(data.path()).await;
    with_runner(data.path(), &dir, "sleep 600");
    let mut spec = read(&dir.join("job.json"));
    spec["limits"]["free_bytes"] = json!(1_u64 << 60); // more than any disk has
    fs::write(dir.join("job.json"), spec.to_string()).unwrap();
    assert!(!execute(&dir, &[]));
    let result = read(&dir.join("result.json"));
    assert_eq!(result["interrupted"], true, "{result:#}");
    let findings = result["outcome"]["findings"].as_array().unwrap();
    for id in ["disk_full", "host_exhausted"] {
        assert!(findings.iter().any(|it| it["id"] == id), "{id}: {result:#}");
    }
}

#[tokio::test]
async fn a_collecting_job_that_finds_no_space_for_its_state_exits_with_75() {
    let data = tempfile::tempdir().unwrap();
    let dir = with_job_spec(data.path()).await;
    let full = format!("[ -e {0} ] || ln -s /dev/full {0}", dir.join("gathered.new").display());
    with_runner(data.path(), &dir, &full);
    assert_eq!(exit_code(&dir, &["--gather"]), Some(75));
    assert!(!dir.join("gathered.json").exists() && !dir.join("result.json").exists());
}

#[tokio::test]
async fn a_lack_of_space_while_collecting_requeues_the_run_after_the_analysis_job() {
    let data = tempfile::tempdir().unwrap();
    let dir = with_job_spec(data.path()).await;
    with_runner(
        data.path(),
        &dir,
        &format!("ln -s /dev/full {}/baseline/host.json", dir.display()),
    );
    assert!(!execute(&dir, &["--gather"]));
    assert!(!execute(&dir, &["--conclude"]));
    let result = read(&dir.join("result.json"));
    assert_eq!(result["interrupted"], true, "{result:#}");
    let findings = result["outcome"]["findings"].as_array().unwrap();
    assert!(findings.iter().any(|it| it["id"] == "host_exhausted"), "{result:#}");
}

#[tokio::test]
async fn an_analysis_without_collected_steps_leaves_the_run_interrupted() {
    let data = tempfile::tempdir().unwrap();
    let dir = with_job_spec(data.path()).await;
    assert!(!execute(&dir, &["--conclude"]));
    let result = read(&dir.join("result.json"));
    assert_eq!(
        (&result["interrupted"], &result["outcome"]["state"]),
        (&json!(true), &json!("failed"))
    );
}

#[test]
fn a_folder_without_a_job_spec_is_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let refused = Command::new(service::LLMPROF)
        .args(["execute", "--run-dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    assert!(!refused.status.success());
    assert_eq!(
        String::from_utf8(refused.stderr).unwrap(),
        "llmprof: there is no job.json in the folder; give the folder of a submitted run\n"
    );
}

#[test]
fn a_number_survives_writing_and_reading() {
    // Stored numbers are read and written again: by a job that finds its result, by comparisons,
    // by a restored backup.
    for n in 1..20_000_u32 {
        let value = f64::from(n).sqrt() * 137.0;
        let text = serde_json::to_string(&value).unwrap();
        assert_eq!(
            serde_json::from_str::<f64>(&text).unwrap().to_bits(),
            value.to_bits(),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_job_spec_of_a_version_without_the_setting_does_not_sample_all_processes() {
    let data = tempfile::tempdir().unwrap();
    let dir = with_job_spec(data.path()).await;
    let mut spec = read(&dir.join("job.json"));
    spec["tools"]["nsys"] = json!(script(data.path(), service::FAKE_NSYS));
    let nsys = &mut spec["subject"]["model"]["profiling"]["nsys"];
    (nsys["enabled"], nsys["sample"]) = (json!(true), json!("system-wide"));
    fs::write(dir.join("job.json"), spec.to_string()).unwrap();
    execute(&dir, &[]);
    let outcome = &read(&dir.join("result.json"))["outcome"];
    assert_eq!(outcome["state"], "partial", "{outcome:#}");
    let journal = fs::read_to_string(dir.join("progress.jsonl")).unwrap();
    assert!(journal.contains("tools.system_wide_sampling"), "{journal}");
    assert!(!dir.join("nsys/run.nsys-rep").exists());
}

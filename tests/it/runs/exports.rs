//! Runs whose nsys is a script, by the export that it writes.

use std::path::Path;

use serde_json::{Value, json};

use super::lifecycle::step;
use crate::support::{
    captures::{MOCK, capture},
    service::{Service, Setup, script},
};

/// A run in mode light with two traced tokens, after a shell line that writes the export to `$2`.
async fn exported(data: &Path, line: &str) -> (Service, String, Value) {
    let lines = format!(
        r#"case $1 in
--version) echo 'NVIDIA Nsight Systems version 2025.3.2.1';;
profile) while [ "$1" != --output ]; do shift; done; stem=$2; shift 2; "$@" || exit $?
    echo report > "$stem.nsys-rep";;
export) while [ "$1" != --output ]; do shift; done; {line};;
esac"#
    );
    let setup = Setup { nsys: script(data, &lines), ..Setup::default() };
    let service = Service::start(data, &setup);
    let id = service
        .submit(json!({ "mode": "light", "profiling": { "nsys": { "max_new_tokens": 2 } } }))
        .await;
    let run = service.end(&id).await;
    (service, id, run)
}

#[tokio::test]
async fn an_export_that_is_not_a_database_fails_the_nsys_step_only() {
    let data = tempfile::tempdir().unwrap();
    let (service, id, run) = exported(data.path(), r#"echo rubbish > "$2""#).await;
    assert_eq!(run["state"], "partial", "{run:#}");
    assert_eq!(
        (&step(&run, "nsys")["state"], &step(&run, "analyze")["state"]),
        (&json!("failed"), &json!("succeeded"))
    );
    assert!(
        run["findings"].as_array().unwrap().iter().any(|it| it["id"] == "nsys_export_unreadable"),
        "{run:#}"
    );
    let report = service.json(&format!("/runs/{id}/artifacts/report.json")).await;
    assert_eq!(
        (&report["outputs"]["traced_tokens_equal"], &report["overhead"]),
        (&json!(true), &json!([])),
        "overhead is of a capture"
    );
    assert!(service.run_dir(&id).join("nsys/run.rejected.sqlite").is_file());
}

#[tokio::test]
async fn the_overhead_of_a_shorter_traced_decode_is_over_as_many_steps() {
    let (data, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let export = folder.path().join("run.sqlite");
    capture(MOCK, &export, "").unwrap();
    let line = format!(r#"cat "{}" > "$2""#, export.display());
    let (service, id, run) = exported(data.path(), &line).await;
    assert_eq!(step(&run, "nsys")["state"], "succeeded", "{run:#}");
    let report = service.json(&format!("/runs/{id}/artifacts/report.json")).await;
    assert_eq!(
        (&report["outputs"]["traced_tokens_equal"], &report["overhead"][1]["steps"]),
        (&json!(true), &json!(2))
    );
}

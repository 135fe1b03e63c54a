//! Imports for which the host has no space: requeued, and no attempt is counted.

use serde_json::{Value, json};

use crate::support::service::{self, Service, Setup, script};

/// The start of a report of nsys.
const REPORT: &[u8] = b"NVIDIA Tegra Profiler Report 1.\n\x0b\0\0";

#[tokio::test]
async fn an_import_for_which_there_is_no_space_is_requeued_without_counting_the_attempt() {
    let data = tempfile::tempdir().unwrap();
    let export = zstd::decode_all(
        &include_bytes!("../../fixtures/captures/hf-llama-attention-mock.sqlite.zst")[..],
    );
    std::fs::write(data.path().join("export"), export.unwrap()).unwrap();
    for (at, file) in ["manifest.new", "result.new"].into_iter().enumerate() {
        let folder = data.path().join(at.to_string());
        std::fs::create_dir(&folder).unwrap();
        // The first export leaves no space for that file.
        let lines = format!(
            "case $1 in --version) echo 'NVIDIA Nsight Systems version 2025.3.2.1';;
            export) while [ \"$1\" != --output ]; do shift; done
                [ -e {0}/full ] || {{ touch {0}/full; ln -s /dev/full ${{2%/nsys/*}}/{file}; }}
                cat {1}/export > $2;;
            esac",
            folder.display(),
            data.path().display()
        );
        let setup = Setup { nsys: script(&folder, &lines), ..Setup::default() };
        let service = Service::start(&folder.join("data"), &setup);
        let sent = service::client()
            .post(format!("{}/captures?name=run.nsys-rep", service.base))
            .header("content-type", "application/octet-stream")
            .body(REPORT)
            .send();
        let answer: Value = sent.await.unwrap().json().await.unwrap();
        let id = answer["run_id"].as_str().unwrap_or_else(|| panic!("{answer:#}")).to_owned();
        let run = service.end(&id).await;
        let state = (&run["state"], &run["attempts"]);
        assert_eq!(state, (&json!("succeeded"), &json!(1)), "{file}: {run:#}");
        let events = service.follow(&id, |_| false).await;
        assert_eq!(events.iter().filter(|it| it["event"] == "attempt").count(), 2, "{file}");
    }
}

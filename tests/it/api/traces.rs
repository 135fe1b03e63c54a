//! Imports of traces by the profiler of PyTorch over HTTP.

use std::{collections::BTreeSet, io::Read as _};

use serde_json::{Value, json};

use crate::{
    api::{
        imports::{FORM, PACKED, PLAIN, fixture, form, id, send, timeline},
        router::Api,
    },
    support::{
        captures::MOCK,
        service::{Service, Setup},
    },
};

/// Traces of PyTorch as a plain body, and of two ranks as a form; both are reported.
#[tokio::test]
async fn traces_of_pytorch_are_imported_reported_and_aligned() {
    let api = Api::new().await;
    let eager = fixture("torch-kineto-eager.json.gz");
    let plain = id(&send(&api, "?name=eager.pt.trace.json.gz", PLAIN, eager.clone()).await);
    let rank = |rank: u32| {
        let mut text = String::new();
        flate2::read::GzDecoder::new(&*eager).read_to_string(&mut text).unwrap();
        let info = format!("{{\"distributedInfo\": {{\"rank\": {rank}, \"world_size\": 2}},");
        zstd::encode_all(text.trim_start().replacen('{', &info, 1).as_bytes(), 1).unwrap()
    };
    let (first, second) = (rank(0), rank(1));
    let files: [(&str, &[u8]); 2] = [("rank0.json.zst", &first), ("rank1.json.zst", &second)];
    let ranks = id(&send(&api, "", FORM, form(&files, &[("label", "ranks")])).await);
    let mixed: [(&str, &[u8]); 2] = [("rank0.json.zst", &first), ("e2e.sqlite", &timeline(MOCK))];
    let refused = send(&api, "", FORM, form(&mixed, &[])).await;
    assert_eq!(refused.status, 422, "{}", refused.text());
    assert!(refused.text().contains("more than one timeline"), "{}", refused.text());
    let broken =
        send(&api, "?name=a.json", PLAIN, "{\"traceEvents\": [{\"name\": \"a\"b\"}]}").await;
    assert_eq!(broken.status, 422, "{}", broken.text());
    assert!(broken.text().contains("a.json: not JSON at byte 30"), "{}", broken.text());

    let service = Service::start(api.data(), &Setup::default());
    for run in [&plain, &ranks] {
        assert_eq!(service.end(run).await["state"], "succeeded");
    }
    let run = service.json(&format!("/runs/{plain}")).await;
    let file = &run["spec"]["subject"]["files"][0];
    assert_eq!(
        (&file["kind"], &file["path"]),
        (&json!("pytorch_trace"), &json!("pytorch/trace-1.json"))
    );
    let rows = async |run: &str, table: &str| {
        service.json(&format!("/runs/{run}/tables/{table}?limit=200")).await["rows"]
            .as_array()
            .unwrap()
            .clone()
    };
    let launches =
        |rows: &[Value]| rows.iter().map(|row| row["launches"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(launches(&rows(&plain, "stage_kernels").await), 1358);
    let processes = rows(&ranks, "processes").await;
    assert_eq!(launches(&processes), 2 * 1358);
    let names: BTreeSet<&str> =
        processes.iter().map(|row| row["process_name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 2);
    assert!(names.iter().any(|name| name.contains("rank 1")), "{names:?}");
    let mm = rows(&plain, "operators").await;
    let flops: u64 = mm
        .iter()
        .filter(|row| row["path"] == "aten::mm")
        .map(|row| row["flops"].as_u64().unwrap())
        .sum();
    assert_eq!(flops, 346_822_803_456);
    let request = json!({ "mock": plain, "e2e": ranks, "range": "decode_step" });
    let (status, queued) = service.post("/alignments", &request).await;
    assert_eq!(status, 202, "{queued}");
    let at = queued["links"]["self"].as_str().unwrap();
    service.get(&format!("{at}/events")).await.text().await.unwrap();
    let aligned = service.json(at).await;
    assert_eq!((&aligned["state"], &aligned["verdict"]), (&json!("succeeded"), &json!("pass")));
}

/// A window and the capture of its graph are one import, whose replays have operators.
#[tokio::test]
async fn a_window_is_imported_with_the_captures_of_its_graphs() {
    let api = Api::new().await;
    let (window, capture) =
        (fixture("engine-graph-window.json.gz"), fixture("engine-graph-capture-bs8.json.gz"));
    let list = br#"[{"file": "capture.json.gz", "batch_size": 8, "mode": "FULL"}]"#;
    let files: [(&str, &[u8]); 3] = [
        ("capture.json.gz", &capture),
        ("execution_details.json", list),
        ("window.json.gz", &window),
    ];
    let both = id(&send(&api, "", FORM, form(&files, &[("label", "graphs")])).await);
    let service = Service::start(api.data(), &Setup::default());
    assert_eq!(service.end(&both).await["state"], "succeeded");
    let rows = service.json(&format!("/runs/{both}/tables/operators?limit=500")).await;
    let rows = rows["rows"].as_array().unwrap();
    let mm = rows.iter().filter(|row| row["path"] == "aten::mm");
    let captured: u64 = mm.map(|row| row["captured_calls"].as_u64().unwrap()).sum();
    // The first of nine decode steps is longer by the work of the profiler alone.
    assert_eq!(captured, 9 * 64);
    let processes = service.json(&format!("/runs/{both}/tables/processes")).await;
    let rows = processes["rows"].as_array().unwrap();
    let ids: BTreeSet<i64> = rows.iter().map(|row| row["process"].as_i64().unwrap()).collect();
    assert_eq!(ids.len(), 1, "{processes}");
}

#[tokio::test]
async fn a_capture_has_the_date_that_it_states_and_the_date_of_its_import() {
    let api = Api::new().await;
    let dated = id(&send(&api, "?name=mock.sqlite.zst", PACKED, timeline(MOCK)).await);
    // Times without a base are since the start of a host: no date.
    let undated = r#"{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 5,
        "tid": 6, "ts": 5.0, "dur": 5}]}"#;
    let files: [(&str, &[u8]); 2] =
        [("a.json", undated.as_bytes()), ("b.json", undated.as_bytes())];
    let undated = id(&send(&api, "", FORM, form(&files, &[])).await);
    let service = Service::start(api.data(), &Setup::default());
    for (id, captured) in [(&dated, json!("2026-11-20T19:56:39Z")), (&undated, Value::Null)] {
        assert_eq!(service.end(id).await["state"], "succeeded");
        let report = service.json(&format!("/runs/{id}/artifacts/report.json")).await;
        assert_eq!(report["environment"]["captured_at"], captured);
        let text = async |path: &str| service.get(path).await.text().await.unwrap();
        let page = text(&format!("/ui/runs/{id}")).await;
        let html = text(&format!("/runs/{id}/artifacts/report.html")).await;
        let markdown = text(&format!("/runs/{id}/artifacts/report.md")).await;
        let is_dated = captured.is_string();
        assert!(page.contains("<dt>Imported on</dt>") && !page.contains("<dt>Submitted</dt>"));
        assert!(html.contains("<dt>Imported on</dt>") && !html.contains("<dt>Started</dt>"));
        assert!(markdown.contains(" Imported on 20") && !markdown.contains("Started 20"));
        assert_eq!(page.contains("<dt>Captured</dt><dd><time datetime=\"2026-11-20"), is_dated);
        assert_eq!(html.contains("<dt>Captured</dt><dd>2026-11-20T19:56:39Z</dd>"), is_dated);
        assert_eq!(markdown.contains("Captured 2026-11-20T19:56:39Z."), is_dated);
    }
    let findings = service.json(&format!("/runs/{undated}")).await["findings"].to_string();
    assert!(findings.contains("b.json holds the same events as a.json"), "{findings}");
}

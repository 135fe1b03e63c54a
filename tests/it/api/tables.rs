//! The tables of a run over HTTP: JSON and CSV, filtered or complete, of this and earlier versions.

use std::fs;

use axum::http::{Method, header};
use llmprof_core::layout;
use llmprof_report::tables::{CSV_FILES, TABLES_VERSION};
use serde_json::{Value, json};

use crate::{api::router::Api, support::report_input::ReportInput};

const OLD_REPORT: &str = include_str!("../../fixtures/v0_1/report.json");
const OLD_KERNELS: &str = include_str!("../../fixtures/v0_1/kernels.json");
const OLD_TABLES: &str = include_str!("../../fixtures/v0_1/tables.jsonl");

/// An ended run with the tables of a run with kernels.
async fn with_kernels(api: &Api) -> String {
    let run = ReportInput::with_kernels();
    let (report, tables) = (run.file(layout::REPORT_JSON), run.file(layout::TABLES));
    api.ended_with(&[("report.json", &report), ("tables.jsonl", &tables)]).await
}

#[tokio::test]
async fn a_changed_file_is_refused_by_the_page_of_a_run_as_by_the_api() {
    for file in [layout::TABLES, layout::REPORT_JSON] {
        let api = Api::new().await;
        let id = with_kernels(&api).await;
        let (page, stored) = (format!("/ui/runs/{id}"), api.folder(&id).join(file));
        assert_eq!(api.get(&page).await.status, 200);
        let text = fs::read_to_string(&stored).unwrap();
        fs::write(&stored, text + "\n").unwrap();
        for path in [format!("/runs/{id}/artifacts/{file}"), page] {
            let answer = api.get(&path).await;
            assert_eq!(answer.status, 500, "{path}");
            assert!(answer.text().contains("the stored file has "), "{}", answer.text());
        }
    }
}

#[tokio::test]
async fn a_missing_file_of_tables_or_of_a_report_is_named_with_a_remedy() {
    let api = Api::new().await;
    let id = with_kernels(&api).await;
    let paths = ["tables", "tables/stages", &format!("diff/{id}")];
    let paths = paths.map(|path| format!("/runs/{id}/{path}"));
    for path in &paths {
        assert_eq!(api.get(path).await.status, 200, "{path}");
    }
    for file in [layout::TABLES, layout::REPORT_JSON] {
        fs::remove_file(api.folder(&id).join(file)).unwrap();
    }
    for (path, file) in paths.iter().zip([layout::TABLES, layout::TABLES, layout::REPORT_JSON]) {
        let answer = api.get(path).await;
        assert_eq!(answer.error(), (500, "file_damaged".to_owned()), "{path}");
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        let expected = format!("{file}: the stored file is missing; ");
        assert!(message.starts_with(&expected), "{message}");
        assert!(message.ends_with("run `llmprof check`"), "{message}");
    }
}

#[tokio::test]
async fn every_table_is_listed_and_each_has_the_listed_columns_and_rows() {
    let api = Api::new().await;
    let id = with_kernels(&api).await;
    let list = api.get(&format!("/runs/{id}/tables")).await.json();
    assert_eq!(list["run_id"], json!(id));
    let names: Vec<&str> =
        list["tables"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    for name in [
        "stages",
        "operators",
        "kernels",
        "gemms",
        "counters",
        "overhead",
        "findings",
        "costs.modules",
    ] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    for head in list["tables"].as_array().unwrap() {
        let name = head["name"].as_str().unwrap();
        let table = api.get(&format!("/runs/{id}/tables/{name}")).await.json();
        assert_eq!(
            (&table["total"], &table["columns"]),
            (&head["total"], &head["columns"]),
            "{name}"
        );
        assert_eq!(
            table["rows"].as_array().unwrap().len() as u64,
            head["total"].as_u64().unwrap(),
            "{name}"
        );
    }
    let report = ReportInput::with_kernels().file(layout::REPORT_JSON);
    let report: Value = serde_json::from_str(&report).unwrap();
    let kernels = api.get(&format!("/runs/{id}/tables/kernels")).await.json();
    assert_eq!(
        kernels["rows"][0]["launch_ns.total"],
        report["kernels_topk"][0]["launch_ns"]["total"]
    );
}

#[tokio::test]
async fn every_csv_file_of_a_run_has_the_bytes_of_its_table_over_http() {
    let api = Api::new().await;
    let run = ReportInput::with_all_tables();
    let tables = run.file(layout::TABLES);
    let id = api.ended_with(&[("tables.jsonl", &tables)]).await;
    for (file, table) in CSV_FILES {
        let answer = api.get(&format!("/runs/{id}/tables/{table}?format=csv")).await;
        assert_eq!(answer.text(), run.file(file), "{file} and {table}");
    }
}

#[tokio::test]
async fn a_table_comes_as_csv_by_format_or_accept() {
    let api = Api::new().await;
    let id = with_kernels(&api).await;
    let path = format!("/runs/{id}/tables/stage_kernels");
    let by_format = api.get(&format!("{path}?format=csv")).await;
    let by_accept = api.ask(Method::GET, &path, &[("accept", "text/csv")], "").await;
    assert_eq!(
        (by_format.header(header::CONTENT_TYPE), by_format.text()),
        ("text/csv; charset=utf-8", by_accept.text())
    );
    assert_eq!(
        by_format.text().lines().next(),
        Some("stage,launches,kernel_ms,graph_launches,graph_ms,busy_ms")
    );
    assert_eq!(by_format.text().lines().count(), 3);
}

#[tokio::test]
async fn rows_are_filtered_by_stage_sorted_and_limited() {
    let api = Api::new().await;
    let id = with_kernels(&api).await;
    let rows =
        async |query: &str| api.get(&format!("/runs/{id}/tables/kernels?{query}")).await.json();
    let prefill = rows("stage=prefill&sort=total_ms").await;
    let ms: Vec<f64> = prefill["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["total_ms"].as_f64().unwrap())
        .collect();
    assert_eq!((ms, &prefill["total"]), (vec![0.4, 0.9], &json!(2)));
    let longest = rows("sort=-total_ms&limit=1").await;
    assert_eq!((longest["rows"].as_array().unwrap().len(), &longest["total"]), (1, &json!(3)));
    assert_eq!(longest["rows"][0]["total_ms"], json!(0.9));
}

#[tokio::test]
async fn rows_are_filtered_by_any_column_and_by_text() {
    let api = Api::new().await;
    let id = with_kernels(&api).await;
    let rows =
        async |query: &str| api.get(&format!("/runs/{id}/tables/kernels?{query}")).await.json();
    let all = rows("").await["rows"].as_array().unwrap().clone();
    let name = all[0]["kernel_name"].as_str().unwrap();
    let count = |keep: &dyn Fn(&Value) -> bool| json!(all.iter().filter(|row| keep(row)).count());
    let encoded = |text: &str| text.bytes().map(|it| format!("%{it:02X}")).collect::<String>();
    let is_long = |row: &Value| row["total_ms"].as_f64().unwrap() >= 0.5;
    for (query, expected) in [
        (format!("where=kernel_name={}", encoded(name)), count(&|row| row["kernel_name"] == name)),
        (format!("where=kernel_name!={}", encoded(name)), count(&|row| row["kernel_name"] != name)),
        ("where=total_ms=0.5..".to_owned(), count(&is_long)),
        (
            "where=total_ms=0.5..&where=stage=decode".to_owned(),
            count(&|row| is_long(row) && row["stage"] == "decode"),
        ),
        ("q=PREFILL&limit=1".to_owned(), count(&|row| row["stage"] == "prefill")),
        (
            format!("where=kernel_name~{}", encoded(&name.to_uppercase())),
            count(&|row| row["kernel_name"] == name),
        ),
    ] {
        let found = rows(&query).await;
        assert_eq!(found["total"], expected, "{query}");
    }
    let many = vec!["where=stage=decode"; 17].join("&");
    let long = format!("where=stage={}", "x".repeat(300));
    for refused in [many, long, format!("q={}", "x".repeat(201))] {
        let answer = api.get(&format!("/runs/{id}/tables/kernels?{refused}")).await;
        assert_eq!(answer.error(), (400, "invalid_parameter".to_owned()));
    }
}

#[tokio::test]
async fn tables_of_an_earlier_version_are_served_under_current_names() {
    assert!(OLD_TABLES.contains("\"schema_version\":1") && TABLES_VERSION > 1);
    let api = Api::new().await;
    let files =
        [("report.json", OLD_REPORT), ("kernels.json", OLD_KERNELS), ("tables.jsonl", OLD_TABLES)];
    let id = api.ended_with(&files).await;
    let report = api.get(&format!("/runs/{id}/artifacts/report.json")).await;
    assert_eq!(report.text(), OLD_REPORT, "sealed files keep their bytes");

    let list = api.get(&format!("/runs/{id}/tables")).await.json();
    assert_eq!(list["tables"].as_array().unwrap().len(), OLD_TABLES.lines().count());
    let kernels = api.get(&format!("/runs/{id}/tables/kernels?sort=-launch_configs")).await.json();
    let columns: Vec<&str> =
        kernels["columns"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    assert!(columns.contains(&"counters.launch_configs") && !columns.contains(&"geometries"));
    assert_eq!(kernels["rows"][0]["launch_configs"], json!(1));
    let findings = api.get(&format!("/runs/{id}/tables/findings?format=csv")).await;
    assert!(findings.text().lines().next().unwrap().ends_with("max_saving.pct"));
    let page = api.get(&format!("/ui/runs/{id}/tables/kernels?sort=-total_ms")).await;
    assert!(page.text().contains("launch_configs"), "{}", page.text());
    let empty = api.get(&format!("/runs/{id}/tables/whole_graphs?format=csv")).await;
    assert_eq!(empty.text(), "\n", "an empty table of version 1 has no columns");

    let now = with_kernels(&api).await;
    let diff = api.get(&format!("/runs/{id}/diff/{now}?format=json")).await.json();
    assert_eq!(diff["diff"]["comparable"], json!(true), "{}", diff["diff"]["checks"]);
    let kernel = &diff["diff"]["kernels"][0];
    assert!(kernel["a"]["ms"].is_number() && kernel["a"]["ms"] == kernel["b"]["ms"], "{kernel}");
}

#[tokio::test]
async fn a_request_for_a_table_that_fails_has_its_code() {
    let api = Api::new().await;
    let id = with_kernels(&api).await;
    for (path, status, code) in [
        ("tables/kernel", 404, "table_not_found"),
        ("tables/..%2fspec.json", 404, "table_not_found"),
        ("tables/kernels?sort=price", 404, "column_not_found"),
        ("tables/findings?stage=prefill", 404, "column_not_found"),
        ("tables/kernels?where=price=1", 404, "column_not_found"),
        ("tables/kernels?where=total_ms=much", 409, "filter_unfit"),
        ("tables/kernels?where=total_ms", 400, "invalid_parameter"),
        ("tables/kernels?sort=stage&sort=stage", 400, "invalid_parameter"),
        ("tables/kernels?limit=0", 400, "invalid_parameter"),
        ("tables/kernels?limit=1000001", 400, "invalid_parameter"),
        ("tables/kernels?colour=red", 400, "invalid_parameter"),
        ("tables/%ff", 400, "invalid_parameter"),
        ("tables/kernels?format=xml", 400, "invalid_parameter"),
        ("tables/kernels?format=md", 406, "not_acceptable"),
    ] {
        assert_eq!(
            api.get(&format!("/runs/{id}/{path}")).await.error(),
            (status, code.to_owned()),
            "{path}"
        );
    }
    // The first has a report without tables, as in older versions; the second has not ended.
    let bare = api.ended().await;
    let waiting = api.submit(json!({})).await;
    let unknown = "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10";
    for (id, status, code) in [
        (bare.as_str(), 409, "report_unavailable"),
        (&waiting, 409, "run_not_finished"),
        (unknown, 404, "run_not_found"),
        ("7", 400, "invalid_parameter"),
    ] {
        for part in ["tables", "tables/kernels"] {
            assert_eq!(
                api.get(&format!("/runs/{id}/{part}")).await.error(),
                (status, code.to_owned()),
                "{id}/{part}"
            );
        }
    }
}

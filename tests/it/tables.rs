//! The tables of a run over HTTP: stored when it ended, told as JSON or CSV, in part or whole.

use axum::http::{Method, header};
use llmprof::{report::data, run::RunState};
use serde_json::{Value, json};

use crate::api::Api;

const REPORT: &str = include_str!("../golden/gpu-report.json");

/// A run that ended with the tables of a real report.
async fn ended(api: &Api) -> String {
    let id = api.submit(json!({})).await;
    let run = api.start().await;
    let tables = data::lines(&serde_json::from_str(REPORT).unwrap());
    api.end(&run, RunState::Succeeded, &[("report.json", REPORT), ("tables.jsonl", &tables)]).await;
    id
}

#[tokio::test]
async fn every_table_is_listed_and_each_holds_the_rows_that_the_list_tells() {
    let api = Api::new().await;
    let id = ended(&api).await;
    let list = api.get(&format!("/runs/{id}/tables")).await.json();
    assert_eq!(list["run_id"], json!(id));
    let names: Vec<&str> = list["tables"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    for name in ["stages", "operators", "kernels", "gemms", "counters", "overhead", "findings", "costs.modules"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    for head in list["tables"].as_array().unwrap() {
        let name = head["name"].as_str().unwrap();
        let table = api.get(&format!("/runs/{id}/tables/{name}")).await.json();
        assert_eq!((&table["total"], &table["columns"]), (&head["total"], &head["columns"]), "{name}");
        assert_eq!(table["rows"].as_array().unwrap().len() as u64, head["total"].as_u64().unwrap(), "{name}");
    }
    let report: Value = serde_json::from_str(REPORT).unwrap();
    let kernels = api.get(&format!("/runs/{id}/tables/kernels")).await.json();
    assert_eq!(kernels["rows"][0]["launch_ns.total"], report["kernels_topk"][0]["launch_ns"]["total"]);
}

#[tokio::test]
async fn a_table_comes_as_csv_by_format_or_accept() {
    let api = Api::new().await;
    let id = ended(&api).await;
    let path = format!("/runs/{id}/tables/stage_kernels");
    let by_format = api.get(&format!("{path}?format=csv")).await;
    let by_accept = api.ask(Method::GET, &path, &[("accept", "text/csv")], "").await;
    assert_eq!((by_format.header(header::CONTENT_TYPE), by_format.text()), ("text/csv; charset=utf-8", by_accept.text()));
    assert_eq!(by_format.text().lines().next(), Some("stage,launches,kernel_ms,busy_ms,graph_launches,graph_ms"));
    assert_eq!(by_format.text().lines().count(), 3);
}

#[tokio::test]
async fn rows_are_filtered_by_stage_sorted_and_limited() {
    let api = Api::new().await;
    let id = ended(&api).await;
    let rows = async |query: &str| api.get(&format!("/runs/{id}/tables/kernels?{query}")).await.json();
    let prefill = rows("stage=prefill&sort=total_ms").await;
    let ms: Vec<f64> = prefill["rows"].as_array().unwrap().iter().map(|it| it["total_ms"].as_f64().unwrap()).collect();
    assert_eq!((ms, &prefill["total"]), (vec![0.4, 0.9], &json!(2)));
    let longest = rows("sort=-total_ms&limit=1").await;
    assert_eq!((longest["rows"].as_array().unwrap().len(), &longest["total"]), (1, &json!(3)));
    assert_eq!(longest["rows"][0]["total_ms"], json!(0.9));
}

#[tokio::test]
async fn a_table_that_cannot_be_told_has_its_code() {
    let api = Api::new().await;
    let id = ended(&api).await;
    for (path, status, code) in [
        ("tables/kernel", 404, "table_not_found"),
        ("tables/..%2fspec.json", 404, "table_not_found"),
        ("tables/kernels?sort=price", 400, "invalid_parameter"),
        ("tables/findings?stage=prefill", 400, "invalid_parameter"),
        ("tables/kernels?limit=0", 400, "invalid_parameter"),
        ("tables/kernels?limit=1000001", 400, "invalid_parameter"),
        ("tables/kernels?colour=red", 400, "invalid_parameter"),
        ("tables/%ff", 400, "invalid_parameter"),
        ("tables/kernels?format=xml", 400, "invalid_parameter"),
        ("tables/kernels?format=md", 406, "not_acceptable"),
    ] {
        assert_eq!(api.get(&format!("/runs/{id}/{path}")).await.error(), (status, code.to_owned()), "{path}");
    }
    // This one left a report and no tables, as older versions did; the next one has not ended.
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
            assert_eq!(api.get(&format!("/runs/{id}/{part}")).await.error(), (status, code.to_owned()), "{id}/{part}");
        }
    }
}

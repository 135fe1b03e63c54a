//! The page that compares two runs: ids, parts of ids, and the hints of an empty page.

use llmprof_core::domain::state::RunState;
use serde_json::{Value, json};

use crate::{
    api::{diff::slower_pair, router::Api},
    ui::page::{assert_contains, page},
};

/// A run that has ended with this report.
async fn reported(api: &Api, mut report: Value) -> String {
    let id = api.submit(json!({})).await;
    let run = api.start().await;
    report["run_id"] = json!(id);
    api.end(&run, RunState::Succeeded, &[("report.json", &report.to_string())]).await;
    id
}

#[tokio::test]
async fn the_end_of_an_id_as_pages_show_it_is_enough_if_one_run_has_it() {
    let api = Api::new().await;
    let [run, slow] = slower_pair().unwrap();
    let (a, b) = (reported(&api, run).await, reported(&api, slow).await);
    let text = page(&api.get(&format!("/ui/diff?a={}&b={}", &a[24..], &b[24..])).await, 200);
    assert_contains(&text, &[&format!("/ui/runs/{a}"), &format!("/ui/runs/{b}"), "Grey: neither"]);
    // Ids start with the time of submission.
    let start = &a[..2];
    let text = page(&api.get(&format!("/ui/diff?a={start}&b={b}")).await, 400);
    assert_contains(&text, &["role=\"alert\"", &format!("ambiguous id {start}: 2 runs have it")]);
    let text = page(&api.get(&format!("/ui/diff?a=fffffffffffffff&b={b}")).await, 404);
    assert_contains(&text, &["no run fffffffffffffff among the 500 newest runs"]);
}

#[tokio::test]
async fn without_two_ended_runs_the_page_leads_to_the_form_of_a_run() {
    let api = Api::new().await;
    let text = page(&api.get("/ui/diff").await, 200);
    assert_contains(&text, &["there are none so far", "href=\"/#submit\""]);
    api.ended().await;
    assert!(page(&api.get("/ui/diff").await, 200).contains("there is one so far"));
    api.ended().await;
    let text = page(&api.get("/ui/diff").await, 200);
    assert_contains(&text, &["Enter the ids of two runs", "href=\"/\">the list of runs"]);
}

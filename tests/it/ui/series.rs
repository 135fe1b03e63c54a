//! The pages of series: names and facts in words.

use llmprof_core::domain::headline::{Headline, SeriesPoint, series_id};
use serde_json::json;

use crate::{
    api::{router::Api, series::ended},
    ui::page::{assert_contains, page},
};

#[tokio::test]
async fn a_part_is_named_with_its_model_and_no_fact_is_json() {
    let api = Api::new().await;
    let part = "decoder.layers.1{\"dtype\":\"f16\"}";
    let call = "{\"command\":\"go\",\"params\":{\"tokens\":7}}";
    let facts = [("name", "tiny"), ("part", part), ("command", call), ("new_tokens", "8")];
    let point = SeriesPoint {
        identity: facts.map(|(name, fact)| (name.to_owned(), fact.to_owned())).into(),
        headline: Headline { tpot: Some(1.0), ..Headline::default() },
        build: "0.1.0".into(),
        ..SeriesPoint::default()
    };
    let id = series_id(&point.identity);
    ended(&api, json!({}), point).await;
    let list = page(&api.get("/ui/series").await, 200);
    let name = "decoder.layers.1 of tiny</a>";
    assert_contains(&list, &[name, "with dtype f16, go tokens=7, new tokens 8"]);
    let shown = page(&api.get(&format!("/ui/series/{id}")).await, 200);
    let heading = "<h1>decoder.layers.1 of tiny</h1>";
    assert_contains(&shown, &[heading, "<dt>part</dt><dd>decoder.layers.1 with dtype f16</dd>"]);
    for text in [list, shown] {
        assert!(!text.contains("&quot;dtype&quot;"), "{text}");
    }
}

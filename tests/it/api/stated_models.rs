//! Imports whose model is stated.

use axum::http::Method;
use serde_json::json;

use crate::{
    api::{
        imports::{FORM, PACKED, form, id, send, timeline},
        router::Api,
    },
    support::{
        captures::{E2E, MOCK},
        service::{Service, Setup},
    },
};

/// The published configuration of the Llama in the captures.
pub const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
    "num_hidden_layers": 8, "vocab_size": 32000, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16"}"#;

#[tokio::test]
async fn a_statement_of_a_model_that_does_not_fit_is_refused_before_the_file_is_stored() {
    let api = Api::new().await;
    for (query, reason) in [
        ("?prompt_tokens=512", "prompt_tokens: given without model_config"),
        ("?model_config=llama-tiny", "prompt_tokens: missing"),
        ("?model_config=lama-tiny&prompt_tokens=1", "did you mean llama-tiny?"),
        ("?model_config=%7B%7D&prompt_tokens=1", "model_config: the model has model_type"),
        ("?model_config=llama-tiny&prompt_tokens=1&batch=0", "batch: 0 is not between 1 and 65536"),
        ("?model_config=llama-tiny&prompt_tokens=1&dtype=fp4", "expected f32, f16 or bf16"),
        ("?model_config=llama-tiny&prompt_tokens=1&prompt_tokens=2", "given more than once"),
    ] {
        let answer = send(&api, query, PACKED, timeline(MOCK)).await;
        assert!(answer.status.is_client_error(), "{query}: {}", answer.status);
        assert!(answer.text().contains(reason), "{query}: {}", answer.text());
    }
    let text = format!("?prompt_tokens=1&model_config={}", "x".repeat(201));
    let answer = send(&api, &text, PACKED, timeline(MOCK)).await;
    assert!(answer.status.is_client_error(), "{}", answer.text());
    assert!(answer.text().contains("model_config"), "{}", answer.text());
    assert_eq!(api.get("/runs").await.json()["runs"], json!([]));
}

#[tokio::test]
async fn a_field_of_an_import_that_is_given_twice_is_refused_by_name() {
    let api = Api::new().await;
    for (field, first, second) in
        [("name", "a.sqlite", "b.sqlite"), ("dry_run", "true", "false"), ("revision", "a", "b")]
    {
        let query = format!("?{field}={first}&{field}={second}");
        let answer = send(&api, &query, PACKED, timeline(MOCK)).await;
        assert!(answer.status.is_client_error(), "{field}: {}", answer.status);
        let message = answer.text();
        assert!(message.contains(&format!("{field}: given more than once")), "{message}");
    }
    assert_eq!(api.get("/runs").await.json()["runs"], json!([]));
}

#[tokio::test]
async fn an_import_with_a_stated_model_has_floors_and_mfu() {
    let api = Api::new().await;
    let fields =
        [("model_config", LLAMA), ("prompt_tokens", "512"), ("include_ranges", "measured")];
    let import = id(&send(&api, "", FORM, form(&[("e2e.zst", &timeline(E2E))], &fields)).await);
    let spec = api.get(&format!("/runs/{import}")).await.json()["spec"]["subject"].clone();
    assert_eq!(
        (&spec["computes"]["batch"], &spec["computes"]["model"]["decoder"]["kv_heads"]),
        (&json!(1), &json!(8))
    );
    let service = Service::start(api.data(), &Setup::default());
    assert_eq!(service.end(&import).await["state"], "succeeded");
    let report = service.json(&format!("/runs/{import}/artifacts/report.json")).await;
    let mfu = &report["mfu"][0];
    assert_eq!((&mfu["scope"], &mfu["flops_source"]), (&json!("prefill"), &json!("modelled")));
    assert_eq!(report["ledger_stages"][0]["floor_of"], "model");
    let accept = [("accept", "text/markdown")];
    let text = api.ask(Method::GET, &format!("/runs/{import}/report"), &accept, "").await.text();
    assert!(text.contains("config.json, bf16, prompt of 512 tokens, batch 1"), "{text}");
}

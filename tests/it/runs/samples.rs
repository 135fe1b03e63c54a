//! Runs with several samples: each is warmed up and measured, and their spread is reported apart
//! from that over repeats.

use std::fs;

use serde_json::{Value, json};

use crate::{
    api::{
        imports::FORM,
        inputs::{form, png},
    },
    support::{
        deep::{DeepHost, deep},
        service::{self, Service, Setup},
    },
};

/// A page that is larger than a view, so that it has more tokens.
fn large_page() -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    let page = image::RgbImage::from_fn(900, 700, |x, y| image::Rgb([(x % 251) as u8, y as u8, 7]));
    page.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    bytes.into_inner()
}

#[tokio::test]
async fn each_sample_is_measured_and_the_slowest_is_named() {
    let data = tempfile::tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let pages = [png(10), large_page(), png(30)];
    let images: [(&str, &[u8]); 3] =
        [("a.png", &pages[0]), ("b.png", &pages[1]), ("c.png", &pages[2])];
    let texts = [("prompt", "read"), ("each_image", "true")];
    let sent = service::client()
        .post(format!("{}/inputs", service.base))
        .header(FORM.0, FORM.1)
        .body(form(&images, None, &texts))
        .send()
        .await
        .unwrap();
    let stored: Value = sent.json().await.unwrap();
    let part = json!({ "model": "deepseek-ocr-tiny", "inputs": stored["inputs_id"],
        "target": "decoder.layers.1.mlp" });
    let (status, refused) = service.post("/runs", &part).await;
    assert_eq!((status, &refused["error"]["code"]), (409, &json!("inputs_unfit")), "{refused}");

    let id = service
        .submit(json!({ "inputs": stored["inputs_id"], "repeats": 2, "warmup": 1,
            "max_new_tokens": 3 }))
        .await;
    let events = service.follow(&id, |_| false).await;
    let progress: Vec<(u64, u64)> = events
        .iter()
        .filter(|event| event["phase"] == "measure")
        .filter_map(|event| Some((event["sample"].as_u64()?, event["total"].as_u64()?)))
        .collect();
    assert!(progress.iter().all(|(sample, total)| *sample < 3 && *total == 6), "{progress:?}");
    assert!(!progress.is_empty());
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");

    let dir = service.run_dir(&id);
    let predictions = fs::read_to_string(dir.join("predictions.jsonl")).unwrap();
    let of: Vec<(u64, u64)> = predictions
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|line| (line["sample"].as_u64().unwrap(), line["repeat"].as_u64().unwrap()))
        .collect();
    assert_eq!(of, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]);

    let report = service.json(&format!("/runs/{id}/artifacts/report.json")).await;
    let samples = report["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 3);
    assert!(samples.iter().all(|it| it["wall_ms"]["n"] == 2 && it["images"] == 1), "{samples:?}");
    let tokens: Vec<u64> = samples.iter().map(|it| it["prompt_tokens"].as_u64().unwrap()).collect();
    assert!(tokens[1] > tokens[0] && tokens[0] == tokens[2], "{tokens:?}");
    let slowest: Vec<&Value> = samples.iter().map(|it| &it["slowest"]).collect();
    assert_eq!(slowest, [false, true, false], "the large page");
    let wall = report["sample_spread"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&wall["stage"], &wall["over_samples_ms"]["n"], &wall["slowest_sample"]),
        (&json!("wall"), &json!(3), &json!(1))
    );
    assert!(wall["over_repeats_std_ms"].as_f64().unwrap() >= 0.0);
    assert_eq!(report["outputs"]["repeats_agree"], true);
    let table = service.json(&format!("/runs/{id}/tables/samples")).await;
    assert_eq!(table["rows"].as_array().unwrap().len(), 3, "{table}");
    let text = fs::read_to_string(dir.join("report.md")).unwrap();
    assert!(text.contains("## Samples") && text.contains("Sample 1 is the slowest"), "{text}");
    assert!(text.contains("3 samples of") && text.contains("of each of 3 samples"), "{text}");
    let page = fs::read_to_string(dir.join("report.html")).unwrap();
    assert!(page.contains(" of 3 samples"));
    assert!(fs::read_to_string(dir.join("report.html")).unwrap().contains("id=\"samples\""));
}

#[tokio::test]
async fn a_deep_run_names_the_sample_of_its_counters_and_gemms() {
    let host = DeepHost::new();
    let two = "samples:\n- {prompt: read, images: [{path: small.png}]}\n- {prompt: count}";
    host.put("inputs/two.yaml", two);
    let service = host.serve();
    let mut settings = deep();
    settings["model"] = json!("deepseek-ocr-tiny");
    settings["inputs_manifest"] = json!("two.yaml");
    let id = service.submit(settings).await;
    let run = service.end(&id).await;
    assert!(run["state"] == "succeeded" || run["state"] == "partial", "{run:#}");
    let dir = service.run_dir(&id);
    let choice: Value =
        serde_json::from_slice(&fs::read(dir.join("ncu/choice.json")).unwrap()).unwrap();
    assert_eq!(choice["sample"], 0);
    let request: Value =
        serde_json::from_slice(&fs::read(dir.join("ncu/process-1/request.json")).unwrap()).unwrap();
    assert_eq!(request["further_samples"], Value::Null, "one sample runs under ncu");
    let findings = run["findings"].as_array().unwrap();
    let finding = findings.iter().find(|it| it["id"] == "first_sample_only").unwrap();
    let message = "Of sample 0 only, of 2 samples: the counters of ncu, the GEMM log.";
    assert_eq!(finding["message"], message);
    let report = fs::read_to_string(dir.join("report.md")).unwrap();
    let gemms = fs::read_to_string(dir.join("gemms.md")).unwrap();
    assert!(report.contains("The counters of ncu are of sample 0 of 2."), "{report}");
    assert!(gemms.contains("The logged GEMMs are of sample 0 of 2."), "{gemms}");
    assert!(report.contains("A static cost describes one prompt"), "{report}");
}

//! Runs of a part of a model: refusals, a separate part, and a part aligned with the whole model.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    api::router::Api,
    support::{
        captures::{E2E, MOCK, capture},
        service::{Service, Setup, script},
    },
};

const PART: &str = "decoder.layers.3.self_attn";

fn step<'a>(run: &'a Value, name: &str) -> &'a Value {
    run["steps"]
        .as_array()
        .unwrap()
        .iter()
        .find(|step| step["step"] == name)
        .unwrap_or_else(|| panic!("no step {name} in {run:#}"))
}

/// A run's JSON file.
fn file(service: &Service, id: &str, path: &str) -> Value {
    serde_json::from_slice(&fs::read(service.run_dir(id).join(path)).unwrap()).unwrap()
}

/// An nsys that executes its target, and exports the real pair with the part's path as the name of
/// its range.
fn nsys(folder: &Path) -> std::path::PathBuf {
    let rename = format!(
        "update StringIds set value = '{PART}' where value = 'decoder.self_attn'; update \
            NVTX_EVENTS set text = '{PART}' where text = 'decoder.self_attn'"
    );
    // In a separate part, these two find their data in the L2 cache; here they take as long as in
    // the model.
    let cold = "update CUPTI_ACTIVITY_KIND_KERNEL set end = start + cast((end - start) * 1.2 as \
        integer) where shortName in
        (select id from StringIds where value in ('nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT',
            'CatArrayBatchedCopy_vectorized'))";
    let [mock, e2e] = [(MOCK, cold), (E2E, "")].map(|(name, more)| {
        let path = folder.join(format!("{name}.sqlite"));
        capture(name, &path, &format!("{rename}; {more}")).unwrap();
        path.display().to_string()
    });
    let lines = format!(
        r#"case $1 in
--version) echo 'NVIDIA Nsight Systems version 2025.3.2.1';;
profile) while [ "$1" != --output ]; do shift; done
  stem=$2; shift 2; "$@" || exit $?; echo report > "$stem.nsys-rep";;
export) while [ "$1" != --output ]; do shift; done
  case $2 in */mock/*|*/extracted/*) cp '{mock}' "$2";; *) cp '{e2e}' "$2";; esac;;
esac"#
    );
    script(folder, &lines)
}

fn aligned(more: Value) -> Value {
    let mut body = json!({
        "target": PART, "align_with": "e2e", "mode": "light",
        "profiling": { "nsys": { "max_new_tokens": 2, "repeats": 1, "warmup": 0 } },
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn an_aligned_part_has_a_verdict_for_each_stage() {
    let data = tempfile::tempdir().unwrap();
    let service =
        Service::start(data.path(), &Setup { nsys: nsys(data.path()), ..Setup::default() });
    let id = service.submit(aligned(json!({}))).await;
    let run = service.end(&id).await;
    assert_eq!(
        (&run["state"], &step(&run, "align")["state"]),
        (&json!("succeeded"), &json!("succeeded")),
        "{run:#}"
    );
    for stage in ["prefill", "decode"] {
        let found = file(&service, &id, &format!("alignment-{stage}.json"));
        assert_eq!(found["verdict"], "pass", "{stage}: {:#}", found["checks"]);
        let check = |id: &str| {
            found["checks"].as_array().unwrap().iter().find(|it| it["id"] == id).unwrap().clone()
        };
        assert_eq!(check("inputs")["verdict"], "pass", "inputs come from the runs' folders");
        assert_eq!(
            file(&service, &id, &format!("alignment-extracted-{stage}.json"))["verdict"],
            "pass"
        );
    }
    let [mock, extracted] = ["mock", "extracted"]
        .map(|side| file(&service, &id, &format!("{side}/baseline/request.json")));
    assert_eq!(
        (&mock["target"], &mock["extracted"], &extracted["extracted"]),
        (&json!(PART), &json!(false), &json!(true))
    );
    assert_eq!(
        file(&service, &id, "baseline/request.json")["target"],
        Value::Null,
        "the model is in the usual folder"
    );
    let manifest = file(&service, &id, "manifest.json");
    let listed = |path: &str| {
        manifest["artifacts"]
            .as_array()
            .unwrap()
            .iter()
            .any(|it| it["path"] == path && it["step"] == "align")
    };
    for path in [
        "alignment-prefill.html",
        "alignment-decode.md",
        "mock/nsys/run.sqlite",
        "extracted/baseline/events.jsonl",
    ] {
        assert!(listed(path), "{path}");
    }
    let report = fs::read_to_string(service.run_dir(&id).join("report.md")).unwrap();
    assert!(
        report.contains("[alignment-prefill.html](alignment-prefill.html)")
            && report.contains("| prefill | pass | pass |"),
        "{report}"
    );
    let passed = run["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["id"] == "alignment_passed")
        .count();
    assert_eq!(passed, 2, "{:#}", run["findings"]);
}

#[tokio::test]
async fn an_alignment_survives_one_lost_connection_of_nsys() {
    let data = tempfile::tempdir().unwrap();
    let tool = nsys(data.path());
    let good = fs::read_to_string(&tool).unwrap();
    let first = r#"case "$*" in profile*/mock/nsys/*)
  if mkdir "${0%/*}/lost" 2>/dev/null; then echo 'End of file' >&2; exit 1; fi;;
esac"#;
    fs::write(&tool, good.replacen('\n', &format!("\n{first}\n"), 1)).unwrap();
    let service = Service::start(data.path(), &Setup { nsys: tool, ..Setup::default() });
    let id = service.submit(aligned(json!({}))).await;
    let run = service.end(&id).await;
    assert!(data.path().join("lost").is_dir(), "the connection was lost");
    assert_eq!(
        (&run["state"], &step(&run, "align")["state"]),
        (&json!("succeeded"), &json!("succeeded")),
        "{run:#}"
    );
}

#[tokio::test]
async fn a_mock_with_another_prompt_fails_by_its_inputs_only() {
    let data = tempfile::tempdir().unwrap();
    let service =
        Service::start(data.path(), &Setup { nsys: nsys(data.path()), ..Setup::default() });
    let id =
        service.submit(aligned(json!({ "mock": { "prompt_tokens": 16, "dtype": "f16" } }))).await;
    let run = service.end(&id).await;
    let found = file(&service, &id, "alignment-prefill.json");
    let inputs =
        found["checks"].as_array().unwrap().iter().find(|it| it["id"] == "inputs").unwrap();
    assert_eq!(
        (&found["verdict"], &inputs["verdict"]),
        (&json!("fail"), &json!("fail")),
        "{inputs:#}"
    );
    let differs = |what: &str| {
        inputs["rows"]
            .as_array()
            .unwrap()
            .iter()
            .any(|it| it["what"] == what && it["note"] == "differs")
    };
    assert!(differs("prompt positions") && differs("dtype"), "{inputs:#}");
    assert_eq!(file(&service, &id, "alignment-extracted-prefill.json")["verdict"], "pass");
    let finding = run["findings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["id"] == "alignment_failed")
        .unwrap();
    assert!(
        finding["evidence"]["inputs"].is_string() && finding["advice"].is_string(),
        "{finding:#}"
    );
}

#[tokio::test]
async fn without_timelines_an_alignment_is_inconclusive() {
    let data = tempfile::tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let id = service.submit(aligned(json!({}))).await;
    let run = service.end(&id).await;
    assert_eq!(
        (&run["state"], &step(&run, "align")["state"]),
        (&json!("partial"), &json!("skipped")),
        "{run:#}"
    );
    let message = step(&run, "align")["message"].as_str().unwrap();
    assert!(
        message.starts_with("mock: nsys is not installed") && message.contains("install-nsight.sh"),
        "{message}"
    );
    let finding = run["findings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["id"] == "alignment_inconclusive")
        .unwrap();
    assert!(finding["advice"].as_str().unwrap().contains("install-nsight.sh"), "{finding:#}");
    for side in ["mock", "extracted"] {
        assert!(service.run_dir(&id).join(side).join("baseline/events.jsonl").exists(), "{side}");
    }
}

#[tokio::test]
async fn a_part_alone_is_profiled_without_the_cost_of_the_model() {
    let data = tempfile::tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let id = service.submit(json!({ "target": PART })).await;
    let run = service.end(&id).await;
    assert_eq!(
        (&run["state"], &run["spec"]["subject"]["part"]),
        (&json!("succeeded"), &json!(PART)),
        "{run:#}"
    );
    let findings = run["findings"].as_array().unwrap();
    assert!(findings.iter().all(|it| it["id"] != "cost_disagrees"), "{findings:#?}");
    let report = fs::read_to_string(service.run_dir(&id).join("report.md")).unwrap();
    assert!(
        report.contains(PART)
            && !report.contains("than the architecture needs")
            && !report.contains("Keys and values"),
        "{report}"
    );
}

#[tokio::test]
async fn invalid_targets_are_refused_with_the_reason() {
    let api = Api::new().await;
    let with = |target: &str, more: Value| {
        let mut body = json!({ "model": "deepseek-ocr-tiny", "target": target });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let tiny = "decoder.layers.1.mlp";
    let cases = [
        (json!({}), 422, "missing field `model`"),
        (json!({ "target": tiny }), 422, "missing field `model`"),
        (with(tiny, json!({ "model": "nothing" })), 404, "no model nothing"),
        (
            with("decoder.layers.9", json!({})),
            404,
            "is not a part of deepseek-ocr-tiny: it has decoder.layers.0 to 3",
        ),
        (with("vision.sam", json!({ "inputs_manifest": "inputs-text.yaml" })), 409, "reads images"),
        (json!({ "model": "llama-tiny", "align_with": "e2e" }), 409, "requires target"),
        (json!({ "model": "llama-tiny", "mock": {} }), 409, "requires target"),
        (with(tiny, json!({ "mock": {} })), 409, "requires align_with"),
        (
            with(tiny, json!({ "align_with": "e2e", "mode": "basic" })),
            409,
            "profiling.nsys.enabled, which is off in mode basic",
        ),
        (
            with(tiny, json!({ "align_with": "e2e", "mock": { "dtype": "bf16" } })),
            409,
            "bf16 is not supported",
        ),
        (
            with(tiny, json!({ "align_with": "e2e", "mock": { "prompt_tokens": 1048576 } })),
            409,
            "mock.prompt_tokens",
        ),
        (
            with("vision.clip", json!({ "align_with": "e2e", "mock": { "prompt_tokens": 9 } })),
            409,
            "requires a part of a decoder",
        ),
        (json!({ "target": { "command": "x" } }), 404, "no command x"),
        (
            json!({ "model": "llama-tiny", "target": { "command": "x" } }),
            422,
            "`model` and a command as `target` exclude each other",
        ),
        (json!({ "target": { "command": "tiny-generate", "part": 1 } }), 422, "target"),
    ];
    for (body, status, reason) in cases {
        let answer = api.post(&body).await;
        assert!(
            answer.status == status && answer.text().contains(reason),
            "{body}: {} {}",
            answer.status,
            answer.text()
        );
    }
    let id = api.submit(with(tiny, json!({ "align_with": "e2e" }))).await;
    let spec = api.get(&format!("/runs/{id}")).await.json()["spec"].clone();
    let subject = &spec["subject"];
    assert_eq!(
        (&subject["workload"]["model"], &subject["part"]),
        (&json!("deepseek-ocr-tiny"), &json!("decoder.layers.1.mlp"))
    );
    assert_eq!(
        subject["passes"]["profiling"]["nsys"]["repeats"], 5,
        "an interval needs several instances"
    );
}

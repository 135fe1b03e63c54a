//! The static cost equals the runner's counts per operator; the command and the API report it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context, Result, ensure};
use llmprof_analyze::{
    Analysis,
    cost::{self, Cost},
    model_work::KnownModel,
    operators::MODULE,
};
use llmprof_core::{
    domain::{
        model::{ModelSpec, hf},
        runner::EVENTS,
    },
    trace::event::Event,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    api::router::{Api, MODEL},
    support::models::DECODER,
};

/// Runs the model once in its own folder, and analyses its events.
fn ran(arguments: &[&str], files: &[(&str, &str)], spec: &ModelSpec) -> Result<Analysis> {
    let folder = tempfile::tempdir()?;
    for (name, text) in files {
        fs::write(folder.path().join(name), text)?;
    }
    let page = image::RgbImage::from_fn(300, 420, |x, y| {
        image::Rgb([(x % 251) as u8, (y % 241) as u8, 128])
    });
    page.save(folder.path().join("page.png"))?;
    let output = Command::new(env!("CARGO_BIN_EXE_model-runner"))
        .args(["run", "--out", "out", "--warmup", "0", "--repeats", "1", "--max-new-tokens", "3"])
        .args(arguments)
        .current_dir(folder.path())
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(folder.path().join("out").join(EVENTS))?;
    let baseline: Vec<Event> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let trace = llmprof_core::trace::Trace { baseline, ..Default::default() };
    Ok(llmprof_analyze::analyze(&trace, Some(KnownModel::Runner(spec)), None))
}

/// Counted calls, FLOPs and bytes by stage, path and kind.
fn counted(analysis: &Analysis) -> BTreeMap<(String, String, String), (u64, u64, u64)> {
    let leaves = analysis.operators.rolled.iter().filter(|it| it.op != MODULE);
    leaves
        .map(|it| {
            ((it.stage.clone(), it.path.clone(), it.op.clone()), (it.calls, it.flops, it.bytes))
        })
        .collect()
}

/// Modelled calls, FLOPs and bytes of the operators that are called.
fn modelled(cost: &Cost) -> BTreeMap<(String, String, String), (u64, u64, u64)> {
    let stages = cost.modules.iter().flat_map(|it| {
        let key = |stage: &str| (stage.to_owned(), it.path.clone(), it.op.clone());
        [
            (key("prefill"), (it.prefill.calls, it.prefill_flops, it.prefill.bytes)),
            (key("decode_all"), (it.decode.calls, it.decode_flops, it.decode.bytes)),
        ]
    });
    stages.filter(|(_, (calls, _, _))| *calls > 0).collect()
}

/// Requires the same operators with equal FLOPs, and bytes within 0.1 %.
fn agrees(name: &str, analysis: &Analysis) -> Result<()> {
    let cost = analysis.cost.as_ref().context("no cost")?;
    let (counted, modelled) = (counted(analysis), modelled(cost));
    assert_eq!(
        counted.keys().collect::<Vec<_>>(),
        modelled.keys().collect::<Vec<_>>(),
        "{name}: the operators"
    );
    for (key, (calls, flops, bytes)) in &counted {
        let of = modelled[key];
        assert_eq!((of.0, of.1), (*calls, *flops), "{name}: calls and FLOPs of {key:?}");
        let module =
            cost.modules.iter().find(|it| it.path == key.1 && it.op == key.2).context("a row")?;
        // The router decides which experts a prompt hits; the cost assumes an even router and also
        // states the maximum.
        let prefill = &module.prefill;
        match key.2 == "experts" && key.0 == "prefill" {
            true => assert!(
                *bytes <= prefill.bytes - prefill.weight_bytes + prefill.max_weight_bytes,
                "{name}"
            ),
            false => {
                assert!(
                    of.2.abs_diff(*bytes) * 1000 <= *bytes,
                    "{name}: {} bytes modelled, {bytes} counted of {key:?}",
                    of.2
                )
            }
        }
    }
    Ok(())
}

#[test]
fn the_cost_of_every_operator_equals_the_runners_count() -> Result<()> {
    let dense = DECODER.split("[decoder.moe]").next().unwrap_or_default();
    let other =
        dense.replace("kv_heads = 2", "kv_heads = 1\nqkv_bias = true\ntied_embeddings = true");
    let preset = |name: &str| {
        llmprof_service::config::models(None)?.models.remove(name).context("the preset is built in")
    };
    let whole = ["--prompt", "read this"];
    let models: [(&str, &[&str], ModelSpec); 4] = [
        ("small.toml", &[], toml::from_str(DECODER)?),
        ("other.toml", &[], toml::from_str(&other)?),
        ("llama-tiny", &[], preset("llama-tiny")?),
        ("deepseek-ocr-tiny", &["--image", "page.png"], preset("deepseek-ocr-tiny")?),
    ];
    for (name, more, spec) in models {
        let files = [("small.toml", DECODER), ("other.toml", &other)];
        let analysis = ran(&[&["--model", name], &whole[..], more].concat(), &files, &spec)?;
        let start = analysis.start.as_ref().context("no start")?;
        assert_eq!(
            analysis.cost.as_ref().map(|cost| cost.parameters),
            Some(start.parameters),
            "{name}"
        );
        agrees(name, &analysis)?;
        // Without a run, the cost computes the same views and positions.
        let sizes: Vec<(u32, u32)> = if more.is_empty() { vec![] } else { vec![(300, 420)] };
        let needs = cost::needs(&spec, Some("read this"), &sizes, None, 3)?;
        assert_eq!(
            (needs.prompt_tokens, &needs.images),
            (start.prompt_tokens, &start.images),
            "{name}"
        );
        assert_eq!(
            start.images.iter().any(|image| image.crops_wide * image.crops_high > 1),
            spec.vision.is_some()
        );
    }
    Ok(())
}

#[test]
fn the_cost_of_published_configurations_equals_the_runners_count() -> Result<()> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/fixtures");
    for name in ["llama", "llama3", "qwen2", "qwen3", "deepseek-ocr-text"] {
        let config = fixtures.join(name).join("config.json");
        let text = fs::read_to_string(&config)?;
        let spec = hf::parse_config(name, &text)?;
        let prompt = "\u{1}\u{2}\u{3}\u{4}\u{5}";
        let analysis =
            ran(&["--model", config.to_str().context("a path")?, "--prompt", prompt], &[], &spec)?;
        let cost = analysis.cost.as_ref().context("no cost")?;
        let work = |stage: &str| analysis.operators.work[stage].flops;
        assert_eq!(
            (cost.prefill_flops, cost.decode_flops),
            (work("prefill"), work("decode_all")),
            "{name}"
        );
        agrees(name, &analysis)?;
    }
    Ok(())
}

/// Executes `llmprof cost` in a folder with a page and a manifest.
fn run_cost(arguments: &[&str]) -> Result<(TempDir, Output)> {
    let folder = tempfile::tempdir()?;
    image::RgbImage::new(600, 400).save(folder.path().join("page.png"))?;
    fs::write(folder.path().join("one.yaml"), "prompt: read\nimages: [{path: page.png}]")?;
    let llmprof = PathBuf::from(env!("CARGO_BIN_EXE_llmprof"));
    let output =
        Command::new(llmprof).arg("cost").args(arguments).current_dir(folder.path()).output()?;
    Ok((folder, output))
}

#[test]
fn the_command_prints_the_cost_in_three_formats() -> Result<()> {
    let of = |format: &str| -> Result<String> {
        let inputs = [
            "--model",
            "deepseek-ocr",
            "--inputs",
            "one.yaml",
            "--new-tokens",
            "32",
            "--format",
            format,
        ];
        let (_folder, output) = run_cost(&inputs)?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    let json: Value = serde_json::from_str(&of("json")?)?;
    assert_eq!(
        (&json["model"], &json["cost"]["parameters"]),
        (&"deepseek-ocr".into(), &3_336_106_240u64.into())
    );
    // One view of 1024 px is 273 positions; the text with its line break and start token is six
    // more.
    assert_eq!((&json["cost"]["prompt_tokens"], &json["image_tokens"]), (&279.into(), &273.into()));
    let csv = of("csv")?;
    let rows = json["cost"]["modules"].as_array().context("rows")?.len();
    assert!(csv.starts_with("path,op,parameters,") && csv.lines().count() == rows + 1, "{csv}");
    assert!(of("md")?.contains("| decoder.layers.\\*.mlp.experts | experts |"));
    Ok(())
}

#[test]
fn an_invalid_cost_request_is_refused_in_one_line() -> Result<()> {
    for (arguments, why) in [
        (&["--model", "llama-tin", "--prompt-tokens", "8"][..], "did you mean llama-tiny?"),
        (&["--model", "llama-tiny"], "prompt_tokens"),
        (&["--model", "llama-tiny", "--inputs", "one.yaml"], "does not accept images"),
        (&["--model", "llama-tiny", "--inputs", "absent.yaml"], "absent.yaml"),
        (&["--model", "llama-tiny", "--prompt-tokens", "9999999"], "exceed the context"),
        (
            &["--model", "deepseek-ocr", "--inputs", "one.yaml", "--prompt-tokens", "100"],
            "is too small",
        ),
    ] {
        let (_folder, output) = run_cost(arguments)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && stderr.contains(why) && stderr.lines().count() == 1,
            "{arguments:?}: {stderr}"
        );
    }
    Ok(())
}

#[test]
fn a_number_of_tokens_outside_its_range_is_refused_with_the_range() -> Result<()> {
    for (option, value, range) in [
        ("--prompt-tokens", "0", "0 is not between 1 and 16777216"),
        ("--prompt-tokens", "16777217", "16777217 is not between 1 and 16777216"),
        ("--new-tokens", "16777217", "16777217 is not between 0 and 16777216"),
        ("--batch", "0", "0 is not between 1 and 1024"),
    ] {
        let arguments = ["--model", "llama-tiny", option, value];
        let (_folder, output) = run_cost(&arguments)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(option) && stderr.contains(range), "{arguments:?}: {stderr}");
    }
    Ok(())
}

#[test]
fn the_command_prints_the_cost_by_module_despite_unusable_models() -> Result<()> {
    let of = |more: &[&str]| -> Result<Value> {
        let arguments =
            [&["--model", "deepseek-ocr", "--prompt-tokens", "64", "--format", "json"], more]
                .concat();
        Ok(serde_json::from_slice(&run_cost(&arguments)?.1.stdout)?)
    };
    let paths = |cost: &Value| -> Vec<String> {
        cost["by_module"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["path"].as_str().unwrap().to_owned())
            .collect()
    };
    let (one, two) = (of(&["--depth", "1"])?, of(&[])?);
    assert_eq!(paths(&one)[0], "vision");
    for path in ["vision.sam", "vision.clip", "vision.projector"] {
        assert!(paths(&two).iter().any(|it| it == path), "{path}");
    }
    for cost in [&one, &two] {
        let sum = |field: &str| {
            cost["by_module"]
                .as_array()
                .unwrap()
                .iter()
                .map(|row| row[field].as_u64().unwrap())
                .sum::<u64>()
        };
        assert_eq!(
            (sum("parameters"), sum("decode_flops")),
            (3_336_106_240, cost["cost"]["decode_flops"].as_u64().unwrap())
        );
    }
    assert!(two["notes"][0].as_str().unwrap().starts_with("No images were given"));
    // An unusable model in the folder does not affect the others.
    let folder = tempfile::tempdir()?;
    fs::create_dir(folder.path().join("mistral"))?;
    let config = r#"{"model_type": "mistral", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2,
        "vocab_size": 300,
        "num_attention_heads": 4, "max_position_embeddings": 128, "sliding_window": 64}"#;
    fs::write(folder.path().join("mistral/config.json"), config)?;
    let models = folder.path().to_str().context("a path")?;
    assert!(
        run_cost(&["--model", "llama-tiny", "--prompt-tokens", "8", "--models", models])?
            .1
            .status
            .success()
    );
    let (_folder, refused) =
        run_cost(&["--model", "mistral", "--prompt-tokens", "8", "--models", models])?;
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && stderr.contains("a sliding_window of 64 in a context of 128"),
        "{stderr}"
    );
    Ok(())
}

#[tokio::test]
async fn the_service_returns_the_cost_of_its_models() {
    let api = Api::new().await;
    let cost = api.get(&format!("/models/{MODEL}/cost?inputs=inputs.yaml&new_tokens=5")).await;
    let cost = cost.json();
    assert_eq!(
        (&cost["inputs"], &cost["cost"]["decode_steps"]),
        (&"inputs.yaml".into(), &5.into())
    );
    assert!(
        cost["image_tokens"].as_u64() > Some(0) && cost["cost"]["vision_flops"].as_u64() > Some(0)
    );
    // The default inputs are the same as for a run; prompt_tokens replaces inputs.
    assert_eq!(api.get(&format!("/models/{MODEL}/cost")).await.json()["inputs"], "inputs.yaml");
    let bare = api.get("/models/llama-tiny/cost?prompt_tokens=100&dtype=f16").await.json();
    assert_eq!(
        (&bare["inputs"], &bare["dtype"], &bare["cost"]["vision_flops"]),
        (&Value::Null, &"f16".into(), &0.into())
    );

    let csv = api
        .ask(axum::http::Method::GET, "/models/llama-tiny/cost", &[("accept", "text/csv")], "")
        .await;
    assert!(
        csv.text().starts_with("path,op,")
            && csv.header(axum::http::header::CONTENT_TYPE).starts_with("text/csv")
    );
    assert!(
        api.get("/models/llama-tiny/cost?format=md")
            .await
            .text()
            .starts_with("# Static cost of llama-tiny")
    );
    let deep = api.get("/models/llama-tiny/cost?prompt_tokens=100&depth=1").await.json();
    assert_eq!(deep["by_module"][0]["parameters"].as_u64().map(|it| it > 0), Some(true));
}

#[tokio::test]
async fn refused_cost_requests_have_error_codes() {
    let api = Api::new().await;
    for (path, status, code) in [
        ("/models/gpt/cost", 404, "model_not_found"),
        ("/models/llama-tiny/cost?tokens=1", 400, "invalid_parameter"),
        ("/models/llama-tiny/cost?prompt_tokens=-1", 400, "invalid_parameter"),
        ("/models/llama-tiny/cost?prompt_tokens=0", 400, "invalid_parameter"),
        ("/models/llama-tiny/cost?new_tokens=99999999", 400, "invalid_parameter"),
        ("/models/llama-tiny/cost?inputs=inputs.yaml", 409, "inputs_unfit"),
        ("/models/deepseek-ocr-tiny/cost?prompt_tokens=9000", 409, "inputs_unfit"),
        ("/models/llama-tiny/cost?inputs=../secret.yaml", 404, "inputs_not_found"),
        ("/models/llama-tiny/cost?inputs=", 400, "invalid_parameter"),
        ("/models/llama-tiny/cost?depth=0", 400, "invalid_parameter"),
        ("/models/llama-tiny/cost?format=html", 406, "not_acceptable"),
        ("/models/llama-tiny/cost?format=pdf", 400, "invalid_parameter"),
    ] {
        assert_eq!(api.get(path).await.error(), (status, code.to_owned()), "{path}");
    }
}

//! The static cost is what the runner counts, operator by operator; and the command that tells it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context, Result, ensure};
use llmprof::{
    analyze::{
        Analysis,
        cost::{self, Cost},
        operators::MODULE,
    },
    model::{ModelSpec, hf},
    runner::EVENTS,
    trace::event::Event,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    api::{Api, MODEL},
    runner::DECODER,
};

/// Runs the model once in a folder of its own, and analyses what it recorded.
fn ran(arguments: &[&str], files: &[(&str, &str)], spec: &ModelSpec) -> Result<Analysis> {
    let folder = tempfile::tempdir()?;
    for (name, text) in files {
        fs::write(folder.path().join(name), text)?;
    }
    let page = image::RgbImage::from_fn(300, 420, |x, y| image::Rgb([(x % 251) as u8, (y % 241) as u8, 128]));
    page.save(folder.path().join("page.png"))?;
    let output = Command::new(env!("CARGO_BIN_EXE_model-runner"))
        .args(["run", "--out", "out", "--warmup", "0", "--repeats", "1", "--max-new-tokens", "3"])
        .args(arguments)
        .current_dir(folder.path())
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(folder.path().join("out").join(EVENTS))?;
    let baseline: Vec<Event> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let trace = llmprof::trace::Trace { baseline, ..Default::default() };
    Ok(llmprof::analyze::analyze(&trace, Some(spec), None))
}

/// FLOPs and bytes by stage, path and kind, of the operators that ran.
fn counted(analysis: &Analysis) -> BTreeMap<(String, String, String), (u64, u64, u64)> {
    let leaves = analysis.operators.rolled.iter().filter(|it| it.op != MODULE);
    leaves.map(|it| ((it.stage.clone(), it.path.clone(), it.op.clone()), (it.calls, it.flops, it.bytes))).collect()
}

/// The same of the static cost, for operators that are called.
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

/// Fails where an operator is missing on a side, or its FLOPs differ at all, or its bytes by more than a tenth of a percent.
fn agrees(name: &str, analysis: &Analysis) -> Result<()> {
    let cost = analysis.cost.as_ref().context("no cost")?;
    let (counted, modelled) = (counted(analysis), modelled(cost));
    assert_eq!(counted.keys().collect::<Vec<_>>(), modelled.keys().collect::<Vec<_>>(), "{name}: the operators");
    for (key, (calls, flops, bytes)) in &counted {
        let of = modelled[key];
        assert_eq!((of.0, of.1), (*calls, *flops), "{name}: calls and FLOPs of {key:?}");
        let module = cost.modules.iter().find(|it| it.path == key.1 && it.op == key.2).context("a row")?;
        // Which experts a prompt hits is the router's business: the model tells what an even one would, and the most.
        let prefill = &module.prefill;
        match key.2 == "experts" && key.0 == "prefill" {
            true => assert!(*bytes <= prefill.bytes - prefill.weight_bytes + prefill.weight_bytes_at_most, "{name}"),
            false => {
                assert!(of.2.abs_diff(*bytes) * 1000 <= *bytes, "{name}: {} bytes modelled, {bytes} counted of {key:?}", of.2)
            }
        }
    }
    Ok(())
}

#[test]
fn every_operator_costs_what_the_runner_counts() -> Result<()> {
    let dense = DECODER.split("[decoder.moe]").next().unwrap_or_default();
    let other = dense.replace("kv_heads = 2", "kv_heads = 1\nqkv_bias = true\ntied_embeddings = true");
    let preset = |name: &str| llmprof::config::models(None)?.models.remove(name).context("the preset is built in");
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
        assert_eq!(analysis.cost.as_ref().map(|cost| cost.parameters), Some(start.parameters), "{name}");
        agrees(name, &analysis)?;
        // The views and the positions that the cost is asked for without a run are those of the run.
        let sizes: Vec<(u32, u32)> = if more.is_empty() { vec![] } else { vec![(300, 420)] };
        let needs = cost::needs(&spec, Some("read this"), &sizes, None, 3)?;
        assert_eq!((needs.prompt_tokens, &needs.images), (start.prompt_tokens, &start.images), "{name}");
        assert_eq!(start.images.iter().any(|image| image.crops_wide * image.crops_high > 1), spec.vision.is_some());
    }
    Ok(())
}

#[test]
fn published_configurations_cost_what_the_runner_counts() -> Result<()> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/fixtures");
    for name in ["llama", "llama3", "qwen2", "qwen3", "deepseek-ocr-text"] {
        let config = fixtures.join(name).join("config.json");
        let text = fs::read_to_string(&config)?;
        let spec = hf::parse_config(name, &text)?;
        let prompt = "\u{1}\u{2}\u{3}\u{4}\u{5}";
        let analysis = ran(&["--model", config.to_str().context("a path")?, "--prompt", prompt], &[], &spec)?;
        let cost = analysis.cost.as_ref().context("no cost")?;
        let work = |stage: &str| analysis.operators.work[stage].flops;
        assert_eq!((cost.prefill_flops, cost.decode_flops), (work("prefill"), work("decode_all")), "{name}");
        agrees(name, &analysis)?;
    }
    Ok(())
}

/// `llmprof cost` in a folder with a page and a manifest.
fn tell(arguments: &[&str]) -> Result<(TempDir, Output)> {
    let folder = tempfile::tempdir()?;
    image::RgbImage::new(600, 400).save(folder.path().join("page.png"))?;
    fs::write(folder.path().join("one.yaml"), "prompt: read\nimages: [{path: page.png}]")?;
    let llmprof = PathBuf::from(env!("CARGO_BIN_EXE_llmprof"));
    let output = Command::new(llmprof).arg("cost").args(arguments).current_dir(folder.path()).output()?;
    Ok((folder, output))
}

#[test]
fn the_command_tells_the_cost_in_three_forms() -> Result<()> {
    let of = |format: &str| -> Result<String> {
        let inputs = ["--model", "deepseek-ocr", "--inputs", "one.yaml", "--new-tokens", "32", "--format", format];
        let (_folder, output) = tell(&inputs)?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    let json: Value = serde_json::from_str(&of("json")?)?;
    assert_eq!((&json["model"], &json["cost"]["parameters"]), (&"deepseek-ocr".into(), &3_336_106_240u64.into()));
    // One view of 1024 px is 273 positions; the text, its line break and the beginning are six more.
    assert_eq!((&json["cost"]["prompt_tokens"], &json["image_tokens"]), (&279.into(), &273.into()));
    let csv = of("csv")?;
    let rows = json["cost"]["modules"].as_array().context("rows")?.len();
    assert!(csv.starts_with("path,op,parameters,") && csv.lines().count() == rows + 1, "{csv}");
    assert!(of("md")?.contains("| decoder.layers.\\*.mlp.experts | experts |"));
    Ok(())
}

#[test]
fn a_cost_that_cannot_be_told_is_refused_in_one_line() -> Result<()> {
    for (arguments, why) in [
        (&["--model", "llama-tin", "--prompt-tokens", "8"][..], "did you mean llama-tiny?"),
        (&["--model", "llama-tiny"], "prompt_tokens"),
        (&["--model", "llama-tiny", "--inputs", "one.yaml"], "takes no images"),
        (&["--model", "llama-tiny", "--inputs", "absent.yaml"], "absent.yaml"),
        (&["--model", "llama-tiny", "--prompt-tokens", "99999999"], "do not fit the context"),
        (&["--model", "deepseek-ocr", "--inputs", "one.yaml", "--prompt-tokens", "100"], "leaves no place"),
    ] {
        let (_folder, output) = tell(arguments)?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(why) && stderr.lines().count() == 1, "{arguments:?}: {stderr}");
    }
    Ok(())
}

#[test]
fn the_command_tells_the_cost_by_module_and_of_every_model_that_can_be_used() -> Result<()> {
    let of = |more: &[&str]| -> Result<Value> {
        let arguments = [&["--model", "deepseek-ocr", "--prompt-tokens", "64", "--format", "json"], more].concat();
        Ok(serde_json::from_slice(&tell(&arguments)?.1.stdout)?)
    };
    let paths = |told: &Value| -> Vec<String> {
        told["by_module"].as_array().unwrap().iter().map(|row| row["path"].as_str().unwrap().to_owned()).collect()
    };
    let (one, two) = (of(&["--depth", "1"])?, of(&[])?);
    assert_eq!(paths(&one)[0], "vision");
    for path in ["vision.sam", "vision.clip", "vision.projector"] {
        assert!(paths(&two).iter().any(|it| it == path), "{path}");
    }
    for told in [&one, &two] {
        let sum = |field: &str| told["by_module"].as_array().unwrap().iter().map(|row| row[field].as_u64().unwrap()).sum::<u64>();
        assert_eq!((sum("parameters"), sum("decode_flops")), (3_336_106_240, told["cost"]["decode_flops"].as_u64().unwrap()));
    }
    assert!(two["notes"][0].as_str().unwrap().starts_with("No images are counted"));
    // A folder with a model that cannot be used still tells of the others.
    let folder = tempfile::tempdir()?;
    fs::create_dir(folder.path().join("mistral"))?;
    let config = r#"{"model_type": "mistral", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 300,
        "num_attention_heads": 4, "max_position_embeddings": 128, "sliding_window": 64}"#;
    fs::write(folder.path().join("mistral/config.json"), config)?;
    let models = folder.path().to_str().context("a path")?;
    assert!(tell(&["--model", "llama-tiny", "--prompt-tokens", "8", "--models", models])?.1.status.success());
    let (_folder, refused) = tell(&["--model", "mistral", "--prompt-tokens", "8", "--models", models])?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("a sliding_window of 64 in a context of 128"), "{said}");
    Ok(())
}

#[tokio::test]
async fn the_service_tells_the_cost_of_its_models() {
    let api = Api::new().await;
    let told = api.get(&format!("/models/{MODEL}/cost?inputs=inputs.yaml&new_tokens=5")).await;
    let told = told.json();
    assert_eq!((&told["inputs"], &told["cost"]["decode_steps"]), (&"inputs.yaml".into(), &5.into()));
    assert!(told["image_tokens"].as_u64() > Some(0) && told["cost"]["vision_flops"].as_u64() > Some(0));
    // The inputs of a run are the default, and a number of positions stands for none.
    assert_eq!(api.get(&format!("/models/{MODEL}/cost")).await.json()["inputs"], "inputs.yaml");
    let bare = api.get("/models/llama-tiny/cost?prompt_tokens=100&dtype=f16").await.json();
    assert_eq!((&bare["inputs"], &bare["dtype"], &bare["cost"]["vision_flops"]), (&Value::Null, &"f16".into(), &0.into()));

    let csv = api.ask(axum::http::Method::GET, "/models/llama-tiny/cost", &[("accept", "text/csv")], "").await;
    assert!(csv.text().starts_with("path,op,") && csv.header(axum::http::header::CONTENT_TYPE).starts_with("text/csv"));
    assert!(api.get("/models/llama-tiny/cost?format=md").await.text().starts_with("# What llama-tiny needs"));
    let deep = api.get("/models/llama-tiny/cost?prompt_tokens=100&depth=1").await.json();
    assert_eq!(deep["by_module"][0]["parameters"].as_u64().map(|it| it > 0), Some(true));
}

#[tokio::test]
async fn a_cost_that_the_service_cannot_tell_has_its_code() {
    let api = Api::new().await;
    for (path, status, code) in [
        ("/models/gpt/cost", 404, "model_not_found"),
        ("/models/llama-tiny/cost?tokens=1", 400, "invalid_parameter"),
        ("/models/llama-tiny/cost?prompt_tokens=-1", 400, "invalid_parameter"),
        ("/models/llama-tiny/cost?prompt_tokens=0", 422, "invalid_request"),
        ("/models/llama-tiny/cost?new_tokens=99999999", 422, "invalid_request"),
        ("/models/llama-tiny/cost?inputs=inputs.yaml", 409, "inputs_unfit"),
        ("/models/deepseek-ocr-tiny/cost?prompt_tokens=9000", 409, "inputs_unfit"),
        ("/models/llama-tiny/cost?inputs=../secret.yaml", 404, "inputs_not_found"),
        ("/models/llama-tiny/cost?inputs=", 400, "invalid_parameter"),
        ("/models/llama-tiny/cost?depth=0", 422, "invalid_request"),
        ("/models/llama-tiny/cost?format=html", 406, "not_acceptable"),
        ("/models/llama-tiny/cost?format=pdf", 400, "invalid_parameter"),
    ] {
        assert_eq!(api.get(path).await.error(), (status, code.to_owned()), "{path}");
    }
}

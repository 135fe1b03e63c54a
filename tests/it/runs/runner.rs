//! `model-runner` as its parent sees it: exit codes, the last line of standard error, the files it
//! leaves.
//!
//! The model is a decoder of a few thousand parameters, so that a run is a matter of milliseconds.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use anyhow::{Context, Result};
use llmprof_core::{
    domain::runner::{EVENTS, EXIT_BAD_INPUT, PREDICTIONS, Progress, RunnerRequest},
    trace::event::Event,
};
use tempfile::TempDir;

use crate::support::models::DECODER;

/// A folder with the model's description, in which one run is made.
struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("small.toml"), DECODER)?;
        Ok(Self { folder })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Runs with `arguments` after `run --model small.toml --out out`, less those that the
    /// arguments give themselves.
    fn run(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_model-runner"));
        command.arg("run").args(["--out", "out"]).current_dir(self.path());
        if !arguments.iter().any(|a| matches!(*a, "--model" | "--request")) {
            command.args(["--model", "small.toml"]);
        }
        Ok(command.args(arguments).output()?)
    }

    fn events(&self) -> Result<Vec<Event>> {
        let text = fs::read_to_string(self.path().join("out").join(EVENTS))?;
        text.lines()
            .map(|line| serde_json::from_str(line).with_context(|| line.to_owned()))
            .collect()
    }
}

#[test]
fn a_run_says_what_ran_and_when() -> Result<()> {
    let bench = Bench::new()?;
    let output = bench.run(&[
        "--prompt",
        "hello",
        "--warmup",
        "1",
        "--repeats",
        "2",
        "--max-new-tokens",
        "3",
    ])?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let events = bench.events()?;
    let (Some(Event::Start(start)), Some(Event::End(end))) = (events.first(), events.last()) else {
        panic!("the first event is the start and the last the end: {events:?}");
    };
    assert_eq!(
        (start.model.as_str(), start.weights.as_str(), start.prompt_tokens),
        ("small", "synthetic", 6)
    );
    // Two tables, attention twice, the dense layer, four experts with their router and one shared,
    // five norms.
    let swiglu = |width: u64| 3 * 16 * width;
    let counted =
        2 * 300 * 16 + 2 * 4 * 16 * 16 + swiglu(24) + 4 * (swiglu(8) + 16) + swiglu(8) + 5 * 16;
    assert_eq!(start.parameters, counted);
    assert!(end.t_ns > start.t_ns && end.peak_rss_bytes > 0);

    let ranges: Vec<_> = events
        .iter()
        .filter_map(|e| if let Event::Range(r) = e { Some(r) } else { None })
        .collect();
    let count =
        |name, warmup| ranges.iter().filter(|r| r.name == name && r.warmup == warmup).count();
    assert_eq!((count("prefill", true), count("prefill", false)), (1, 2));
    assert_eq!(
        (count("decode_all", true), count("decode_all", false), count("decode_step", false)),
        (1, 2, 6)
    );
    assert_eq!(count("warmup", true), 1);

    // Every operator lies within the range of the stage that it names, of its own repeat.
    let operators =
        events.iter().filter_map(|e| if let Event::Op(op) = e { Some(op) } else { None });
    let mut seen = 0;
    for op in operators {
        let stage = ranges
            .iter()
            .find(|r| r.name == op.stage && (r.warmup, r.repeat) == (op.warmup, op.repeat));
        let stage = stage.with_context(|| format!("{} has no stage", op.path))?;
        assert!(
            stage.start_ns <= op.start_ns && op.end_ns <= stage.end_ns,
            "{op:?} lies outside {stage:?}"
        );
        seen += 1;
    }
    assert!(seen > 100, "{seen} operators");

    let predictions = fs::read_to_string(bench.path().join("out").join(PREDICTIONS))?;
    let predictions: Vec<serde_json::Value> =
        predictions.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    assert_eq!(predictions.len(), 2);
    assert_eq!(
        predictions[0]["tokens"].as_array().map(Vec::len),
        Some(4),
        "the first token and three steps"
    );
    assert!(predictions[0]["text"].is_null(), "without a tokenizer there is no text");

    let progress: Vec<Progress> = String::from_utf8(output.stdout)?
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    let last = progress.last().context("progress")?;
    assert_eq!((last.phase.as_str(), last.done, last.total), ("measure", 2, 2));
    Ok(())
}

#[test]
fn stages_run_back_to_back_are_told_by_their_time_alone() -> Result<()> {
    let events_of = |arguments: &[&str]| -> Result<Vec<Event>> {
        let bench = Bench::new()?;
        let output =
            bench.run(&[&["--repeats", "1", "--max-new-tokens", "3"], arguments].concat())?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        bench.events()
    };
    let (plain, events) = (events_of(&[])?, events_of(&["--steady-ms", "5"])?);
    let steady: Vec<_> = events
        .iter()
        .filter_map(|event| if let Event::Steady(it) = event { Some(it) } else { None })
        .collect();
    assert_eq!(
        steady.iter().map(|it| it.stage.as_str()).collect::<Vec<_>>(),
        ["prefill", "decode_all"]
    );
    assert!(
        steady.iter().all(|it| it.instances > 0 && it.end_ns - it.start_ns >= 5_000_000),
        "{steady:?}"
    );
    assert!(steady[0].end_ns <= steady[1].start_ns);
    assert_eq!(events.len(), plain.len() + 2, "it has no range and no operator");
    Ok(())
}

#[test]
fn the_same_request_computes_the_same_every_time() -> Result<()> {
    let outputs = |seed: &str| -> Result<Vec<(Vec<u32>, String)>> {
        let bench = Bench::new()?;
        let output = bench.run(&[
            "--prompt",
            "the same",
            "--repeats",
            "2",
            "--max-new-tokens",
            "8",
            "--seed",
            seed,
        ])?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let output = |event| {
            if let Event::Output(o) = event { Some((o.tokens, o.logits_sha256)) } else { None }
        };
        Ok(bench.events()?.into_iter().filter_map(output).collect())
    };
    let (first, again, other) = (outputs("7")?, outputs("7")?, outputs("8")?);
    assert_eq!(first.len(), 3, "one warm-up and two repeats");
    assert!(first.iter().all(|output| *output == first[0]), "{first:?}");
    assert_eq!(first, again);
    assert_ne!(first[0].1, other[0].1, "another seed is another model");
    Ok(())
}

#[test]
fn fewer_tokens_are_the_first_ones_of_the_whole_in_a_cache_of_its_size() -> Result<()> {
    let bench = Bench::new()?;
    let whole: RunnerRequest = serde_json::from_value(serde_json::json!({
        "model": toml::from_str::<toml::Value>(DECODER)?, "seed": 7, "prompt": "the same",
        "images": [], "dtype": "f32", "device": "cpu", "warmup": 0, "repeats": 1,
        "max_new_tokens": 8, "decode_graph": false, "ceilings": false,
    }))?;
    let write = |request: &RunnerRequest| {
        fs::write(bench.path().join("request.json"), serde_json::to_string(request)?)
            .context("cannot write the request")
    };
    let tokens = |request: &RunnerRequest| -> Result<Vec<u32>> {
        write(request)?;
        let output = bench.run(&["--request", "request.json"])?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let tokens = |event| if let Event::Output(it) = event { Some(it.tokens) } else { None };
        bench.events()?.into_iter().find_map(tokens).context("no tokens")
    };
    let short = whole.with_new_tokens(2);
    assert_eq!((short.max_new_tokens, short.cache_tokens), (2, Some(8)));
    assert_eq!(short.with_new_tokens(1).cache_tokens, Some(8));
    assert_eq!(whole.with_new_tokens(9), whole);
    let (all, first) = (tokens(&whole)?, tokens(&short)?);
    assert!(all.len() > first.len() && all.starts_with(&first), "{all:?} {first:?}");
    // The room counts although nothing fills it.
    write(&RunnerRequest { cache_tokens: Some(64), ..short })?;
    refused(&bench, &["--request", "request.json"], "exceed the context of 64")
}

#[test]
fn a_batch_generates_what_its_samples_generate_alone() -> Result<()> {
    let bench = Bench::new()?;
    let further: Vec<_> = ["a longer prompt", "b"]
        .map(|prompt| serde_json::json!({ "prompt": prompt, "images": [] }))
        .into();
    let run = |batch: u32| -> Result<(Vec<Event>, Vec<serde_json::Value>)> {
        let request = serde_json::json!({
            "model": toml::from_str::<toml::Value>(DECODER)?, "seed": 7, "prompt": "the same",
            "images": [], "further_samples": further, "batch": batch, "dtype": "f32",
            "device": "cpu", "warmup": 0, "repeats": 1, "max_new_tokens": 8, "decode_graph": false,
            "ceilings": false,
        });
        fs::write(bench.path().join("request.json"), request.to_string())?;
        let output = bench.run(&["--request", "request.json"])?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = fs::read_to_string(bench.path().join("out").join(PREDICTIONS))?;
        let lines = lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        Ok((bench.events()?, lines))
    };
    let (alone, (events, together)) = (run(1)?.1, run(4)?);
    assert_eq!((alone.len(), together.len()), (3, 4));
    for (sequence, line) in together.iter().enumerate() {
        assert_eq!(line["sequence"], sequence);
        assert_eq!(line["tokens"], alone[sequence % 3]["tokens"], "{sequence}");
    }
    let Some(Event::Start(start)) = events.first() else { panic!("no start: {events:?}") };
    // A byte is a token, after the first of each.
    assert_eq!((start.prompt_tokens, &start.sequences), (36, &vec![9, 16, 2, 9]));
    let tokens = |it: &Event| if let Event::Output(it) = it { Some(it.tokens.len()) } else { None };
    let outputs: Vec<usize> = events.iter().filter_map(tokens).collect();
    assert_eq!(outputs, [4 * 9], "one repeat of four sequences of nine tokens");
    Ok(())
}

/// Asserts that the run is rejected: exit code 2, and `why` in the last line of standard error.
#[track_caller]
fn refused(bench: &Bench, arguments: &[&str], why: &str) -> Result<()> {
    let output = bench.run(arguments)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(EXIT_BAD_INPUT), "{arguments:?}: {stderr}");
    let last = stderr.lines().last().context("a last line")?;
    assert!(
        last.starts_with("model-runner: ") && last.contains(why),
        "{arguments:?}: {last:?} does not contain {why:?}"
    );
    Ok(())
}

#[test]
fn what_the_request_asks_in_vain_is_said_in_one_line() -> Result<()> {
    let bench = Bench::new()?;
    refused(&bench, &["--model", "gpt-7"], "expected a preset")?;
    refused(&bench, &["--model", "absent.toml"], "cannot read absent.toml")?;
    refused(&bench, &["--request", "absent.json"], "cannot read absent.json")?;
    refused(&bench, &["--dtype", "bf16"], "bf16 is not supported on the CPU")?;
    refused(&bench, &["--device", "tpu"], "expected cpu or cuda:INDEX")?;
    refused(&bench, &["--device", "cuda:0"], "cuda:0")?;
    refused(&bench, &["--repeats", "0"], "repeats is 0")?;
    refused(&bench, &["--batch", "0"], "batch is 0; request 1 or more")?;
    refused(&bench, &["--batch", "4294967295"], "GiB of memory")?;
    refused(&bench, &["--prompt", &"long ".repeat(20)], "exceed the context of 64")?;
    refused(&bench, &["--max-new-tokens", "4294967295"], "exceed the context of 64")?;
    refused(&bench, &["--prompt", "<image>"], "has 1 <image>")?;
    refused(&bench, &["--image", "page.png"], "does not accept images")?;

    fs::write(bench.path().join("request.json"), r#"{"model": 1}"#)?;
    refused(&bench, &["--request", "request.json"], "invalid request request.json")?;
    fs::write(bench.path().join("odd.toml"), DECODER.replace("head_dim = 8", "head_dim = 7"))?;
    refused(&bench, &["--model", "odd.toml"], "head_dim 7 is odd")?;
    fs::write(
        bench.path().join("vast.toml"),
        DECODER
            .replace("layers = 2", "layers = 1000")
            .replace("hidden = 16", "hidden = 65536")
            .replace("intermediate = 8", "intermediate = 4000"),
    )?;
    refused(&bench, &["--model", "vast.toml"], "GiB of memory")?;
    fs::write(bench.path().join("strange.toml"), "description = 3")?;
    refused(&bench, &["--model", "strange.toml"], "cannot parse the model's description")
}

#[test]
fn weights_that_do_not_fit_the_model_are_named() -> Result<()> {
    let bench = Bench::new()?;
    let weights = bench.path().join("weights");
    refused(&bench, &["--weights", "weights"], "cannot read weights")?;
    fs::create_dir(&weights)?;
    refused(&bench, &["--weights", "weights"], "no *.safetensors in")?;

    let file = weights.join("model.safetensors");
    save(&file, "model.norm.weight", &[16])?;
    refused(&bench, &["--weights", "weights"], "model.embed_tokens.weight")?;
    save(&file, "model.embed_tokens.weight", &[300, 15])?;
    refused(&bench, &["--weights", "weights"], "[300, 15]")?;
    let whole = fs::read(&file)?;
    fs::write(&file, &whole[..whole.len() / 2])?;
    refused(&bench, &["--weights", "weights"], "truncated safetensors file")?;
    refused(&bench, &["--weights", "weights"], "model.safetensors")?;
    fs::write(weights.join("tokenizer.json"), "{}")?;
    refused(&bench, &["--weights", "weights"], "tokenizer.json")
}

#[test]
fn an_image_that_cannot_be_read_is_named() -> Result<()> {
    let bench = Bench::new()?;
    let refused =
        |name, why| refused(&bench, &["--model", "deepseek-ocr-tiny", "--image", name], why);
    fs::write(bench.path().join("text.png"), "no image at all")?;
    let whole = bench.path().join("whole.png");
    image::RgbImage::from_fn(64, 64, |x, y| image::Rgb([x as u8, y as u8, (x * y) as u8]))
        .save(&whole)?;
    let bytes = fs::read(&whole)?;
    fs::write(bench.path().join("half.png"), &bytes[..bytes.len() / 2])?;
    refused("absent.png", "absent.png")?;
    refused("text.png", "text.png")?;
    refused("half.png", "half.png")?;
    refused(".", "not a regular file")
}

#[test]
fn the_smallest_image_is_an_image() -> Result<()> {
    let bench = Bench::new()?;
    image::RgbImage::new(1, 1).save(bench.path().join("dot.png"))?;
    let output = bench.run(&[
        "--model",
        "deepseek-ocr-tiny",
        "--image",
        "dot.png",
        "--warmup",
        "0",
        "--repeats",
        "1",
        "--max-new-tokens",
        "1",
    ])?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let events = bench.events()?;
    let Some(Event::Start(start)) = events.first() else { panic!("the first event is the start") };
    // A global view of 4 x 4 places, a newline each row, and a separator: no crops.
    assert_eq!((start.image_tokens, start.images[0].crops_wide), (21, 0));
    for stage in ["vision", "sam", "clip", "projector"] {
        assert!(
            events.iter().any(|e| matches!(e, Event::Range(r) if r.name == stage)),
            "no {stage}"
        );
    }
    Ok(())
}

/// Writes a safetensors file with one tensor of zeros.
fn save(path: &Path, name: &str, shape: &[usize]) -> Result<()> {
    let zeros = vec![0u8; shape.iter().product::<usize>() * 4];
    let view =
        safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.to_vec(), &zeros)?;
    Ok(safetensors::serialize_to_file([(name, view)], None, path)?)
}

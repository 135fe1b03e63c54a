//! `llmprof submit`: queues a run on a service.

use std::{
    fs,
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use llmprof_core::domain::{
    bounded_read::read_bounded_text,
    byte_order_mark::BYTE_ORDER_MARK,
    image_limits::MAX_INLINE_BYTES,
    run_config::{set_mode, set_model},
    settings::parse,
    unique_keys::UniqueKeys,
    units::quantity,
};
use serde_json::{Map, Value, json};

use super::{
    ServerOptions, ServiceClient,
    answers::{DryRunAnswer, SubmittedAnswer},
    local_inputs::{
        self, InlinedInputs, LocalInputs, NamedImage, inline_image, manifest_in, upload_name,
    },
    refusal::Refused,
    settings,
    terminal::{duration, escaped, print, print_json, print_notice},
    watch,
};

/// Maximum size of a file, that of a body with images.
const MAX_FILE: u64 = 16 << 20;
/// Maximum number of open brackets in a file: parsers take long for deep nests.
const MAX_DEPTH: usize = 1000;
/// The usual forms, for a submission of nothing.
const NO_SUBJECT: &str = "nothing to submit; name a model (`llmprof submit --model \
                          deepseek-ocr-tiny`), a command of `GET /targets` (`llmprof submit \
                          --command tiny-generate`) or a file with the fields of POST /runs \
                          (`llmprof submit run.yaml`)";

/// Queue a run on a service
///
/// The submission is a FILE, options, or a FILE whose fields options replace. Prints the id of the
/// run, which is on the service's disk by then. If `inputs` of the FILE is a path that starts with
/// `/`, `./` or `../`, it is a manifest of this machine, as of --inputs, relative to the FILE. Exit
/// code 0, or 3: bad input, or the service refuses or does not answer. Exit codes with --wait: see
/// `llmprof watch --help`.
#[derive(Debug, Args)]
pub struct SubmitOptions {
    /// Submission as of `POST /runs`, JSON or YAML; `-` is standard input
    file: Option<PathBuf>,
    /// Model to profile (`GET /models`)
    ///
    /// If FILE states another model, the values of that model in its `resolved` are dropped
    #[arg(long, conflicts_with = "command")]
    model: Option<String>,
    /// Only this part of the model, as in decoder.layers.3.self_attn
    #[arg(long, value_name = "PATH", conflicts_with = "command")]
    part: Option<String>,
    /// Command to profile, of those that the service allows (`GET /targets`)
    #[arg(long, value_name = "NAME")]
    command: Option<String>,
    /// Parameter of the command
    ///
    /// Without --command, of the command that FILE names: it replaces the parameter of this name
    #[arg(long, value_name = "NAME=VALUE", conflicts_with_all = ["model", "part"])]
    param: Vec<String>,
    /// Stored inputs, a manifest of the service, or one of this machine
    ///
    /// A path that starts with `/`, `./` or `../` is a manifest of this machine: it is uploaded
    /// with its images, which it names by absolute paths or relative to itself. Any other value is
    /// the id of stored inputs or a manifest of the service (`GET /inputs`); if the service has
    /// neither, it is a file of this machine.
    #[arg(long, value_name = "ID|FILE", conflicts_with_all = ["prompt", "image"])]
    inputs: Option<String>,
    /// Prompt for the model
    #[arg(long)]
    prompt: Option<String>,
    /// Image next to the prompt: PNG, JPEG or WebP
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// Collection mode (`GET /profiling`)
    ///
    /// If FILE states another mode, its `profiling`, the settings of that mode, is dropped; --set
    /// changes settings of this mode
    #[arg(long)]
    mode: Option<String>,
    /// Measured repeats of the unprofiled pass
    #[arg(long, allow_negative_numbers = true)]
    repeats: Option<i64>,
    /// Unmeasured repeats before them
    #[arg(long, allow_negative_numbers = true)]
    warmup: Option<i64>,
    /// Tokens to generate after prefill
    #[arg(long, allow_negative_numbers = true)]
    max_new_tokens: Option<i64>,
    /// Sequences generated together
    #[arg(long, allow_negative_numbers = true)]
    batch: Option<i64>,
    /// Seed of synthetic weights [default: seed of the inputs, else 0]
    #[arg(long, allow_negative_numbers = true)]
    seed: Option<i64>,
    /// Dtype, as in bf16 [default: dtype of the model]
    #[arg(long)]
    dtype: Option<String>,
    /// Also profile the whole model, and align --part with it: e2e
    #[arg(long, value_name = "WITH")]
    align_with: Option<String>,
    /// Device (`GET /devices`)
    #[arg(long)]
    device: Option<String>,
    /// Time limit of the whole run, seconds
    #[arg(long, allow_negative_numbers = true)]
    timeout_s: Option<i64>,
    /// Label to find the run by; several may be given
    #[arg(long)]
    label: Vec<String>,
    /// Revision of the profiled program
    #[arg(long)]
    revision: Option<String>,
    /// Priority in the queue
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i64>,
    /// Setting of the passes, as in ncu.max_launches=3
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Check the submission and print its steps; queue nothing
    #[arg(long)]
    dry_run: bool,
    /// Follow the run until it ends, as `llmprof watch` does
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
    /// Print the answer of the service; with --wait also the events
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: ServerOptions,
}

pub fn run(options: &SubmitOptions) -> ExitCode {
    super::run(&options.service, async |client| submit(&client, options).await)
}

async fn submit(client: &ServiceClient, options: &SubmitOptions) -> Result<ExitCode> {
    let (mut body, notes) = submission(options)?;
    for note in &notes {
        print_notice(escaped(note));
    }
    let file = options.file.as_deref().filter(|_| options.inputs.is_none());
    let answer = match (&options.inputs, file.and_then(|it| manifest_in(&body, it))) {
        (Some(name), _) => submit_with(client, &mut body, name).await?,
        (None, Some(manifest)) => submit_local(client, &mut body, &manifest).await?,
        (None, None) => client.submit("/runs", &body).await?,
    };
    if options.json {
        print_json(&answer)?;
    }
    if body["dry_run"] == true {
        if !options.json {
            print(&plan(&client.understood(answer, "/runs").await?))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    queued(client, answer, options.json, options.wait).await
}

/// Submits a run with named inputs: of this machine if the name is a path, else of the service, or
/// of this machine if the service does not know the name.
async fn submit_with(client: &ServiceClient, body: &mut Value, name: &str) -> Result<Value> {
    if !local_inputs::is_path(name) {
        match client.submit("/runs", body).await {
            Err(error) if is_unknown(&error) && Path::new(name).is_file() => {}
            answered => return answered,
        }
    }
    submit_local(client, body, Path::new(name)).await
}

/// Submits a run with a manifest of this machine, which is stored first, or sent along by a dry
/// run.
async fn submit_local(client: &ServiceClient, body: &mut Value, manifest: &Path) -> Result<Value> {
    let inputs = LocalInputs::read(manifest)?;
    if body["dry_run"] != true {
        body["inputs"] = inputs.store(client).await?;
        return client.submit("/runs", body).await;
    }
    let InlinedInputs { inputs, by_hash } = inputs.inline()?;
    body["inputs"] = inputs;
    let answered = client.submit("/runs", body).await;
    answered.map_err(|error| match by_hash.iter().find(|image| is_about(&error, image)) {
        None => error,
        Some(image) => error.context(format!(
            "a dry run sends images of at most {} MiB in total and names the others by hash ({}); \
             submit without --dry-run, or store them with POST /inputs first",
            MAX_INLINE_BYTES >> 20,
            image.path.display()
        )),
    })
}

/// True if the service refuses a submission because of this image.
fn is_about(error: &anyhow::Error, image: &NamedImage) -> bool {
    error.downcast_ref::<Refused>().is_some_and(|it| it.to_string().contains(&image.sha256))
}

/// True if the service has no such inputs.
fn is_unknown(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref::<Refused>();
    refused.is_some_and(|it| it.code.as_deref() == Some("inputs_not_found"))
}

/// Prints the id of a queued run, and follows it on request.
pub async fn queued(
    client: &ServiceClient,
    answer: Value,
    json: bool,
    wait: bool,
) -> Result<ExitCode> {
    let run: SubmittedAnswer = client.understood(answer, "/runs").await?;
    let id = escaped(&run.run_id);
    if !json {
        print(&format!("{id}\n"))?;
    }
    if let Some(waited) = &run.waited {
        print_notice(escaped(waited));
    }
    if wait {
        return watch::watch(client, &id, json).await;
    }
    let position = run.queue_position.map(|at| format!("position {at} in the queue; "));
    let page = client.url(&format!("/ui/runs/{id}"));
    print_notice(format_args!("{}`llmprof watch {id}`, {page}", position.unwrap_or_default()));
    Ok(ExitCode::SUCCESS)
}

/// Steps and estimate of a submission that was only checked.
pub fn plan(plan: &DryRunAnswer) -> String {
    let mut text = String::new();
    for step in &plan.steps {
        let repeats = step.repeats.map(|repeats| quantity(repeats.into(), "repeat"));
        let skipped = step.skipped_because.as_ref().map(|reason| format!("skipped: {reason}"));
        let detail = skipped.or(repeats).unwrap_or_default();
        text += escaped(&format!("{:<14} {detail}", step.step)).trim_end();
        text.push('\n');
    }
    match plan.duration.seconds.and_then(|it| Duration::try_from_secs_f64(it).ok()) {
        Some(usual) => text += &format!("about {}\n", duration(usual)),
        None => {
            let reason = plan.duration.unknown_because.as_deref().unwrap_or("no estimate");
            text += &format!("{}\n", escaped(reason));
        }
    }
    for note in &plan.notes {
        text += &format!("{}\n", escaped(note));
    }
    text
}

/// The body of the submission, with a note for each option that dropped fields of the file.
fn submission(options: &SubmitOptions) -> Result<(Value, Vec<String>)> {
    if options.file.is_none() && options.model.is_none() && options.command.is_none() {
        bail!(NO_SUBJECT);
    }
    let mut body = match &options.file {
        Some(path) => read_object(path)?,
        None => Map::new(),
    };
    let mut notes = Vec::new();
    if let Some(mode) = &options.mode {
        notes.extend(set_mode(&mut body, mode).map(|it| settings::dropped_note(&it, mode)));
    }
    if let Some(model) = &options.model {
        notes.extend(settings::dropped_model_note(&set_model(&mut body, model), model));
    }
    let params = params(&options.param)?;
    if options.command.is_none() && !params.is_empty() {
        change_params(&mut body, params.clone())?;
    }
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(name.to_owned(), value);
        }
    };
    set("target", options.part.as_ref().map(|it| json!(it)));
    let call = |command: &String| json!({ "command": command, "params": params });
    set("target", options.command.as_ref().map(call));
    set("inputs", inputs(options)?);
    set("repeats", options.repeats.map(|it| json!(it)));
    set("warmup", options.warmup.map(|it| json!(it)));
    set("max_new_tokens", options.max_new_tokens.map(|it| json!(it)));
    set("batch", options.batch.map(|it| json!(it)));
    set("seed", options.seed.map(|it| json!(it)));
    set("dtype", options.dtype.as_ref().map(|it| json!(it)));
    set("align_with", options.align_with.as_ref().map(|it| json!(it)));
    set("timeout_s", options.timeout_s.map(|it| json!(it)));
    set("device", options.device.as_ref().map(|it| json!(it)));
    set("labels", Some(json!(options.label)).filter(|_| !options.label.is_empty()));
    set("revision", options.revision.as_ref().map(|it| json!(it)));
    set("priority", options.priority.map(|it| json!(it)));
    set("dry_run", options.dry_run.then(|| json!(true)));
    let mut body = Value::from(body);
    settings::change(&mut body, &options.settings)?;
    Ok((body, notes))
}

/// Replaces parameters of the command that a file names.
fn change_params(body: &mut Map<String, Value>, params: Map<String, Value>) -> Result<()> {
    let target = body.get_mut("target").and_then(Value::as_object_mut);
    let target = target.filter(|it| it.contains_key("command"));
    let target = target.context("--param: no command is named; add --command NAME")?;
    let of_file = target.entry("params").or_insert(Value::Null);
    if of_file.is_null() {
        *of_file = json!({});
    }
    let of_file = of_file.as_object_mut().context("target.params of the file is not an object")?;
    of_file.extend(params);
    Ok(())
}

/// The fields of a file, JSON or YAML; `-` is standard input.
pub fn read_object(path: &Path) -> Result<Map<String, Value>> {
    let shown = path.display();
    let source: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(std::io::stdin()),
        false => Box::new(fs::File::open(path).with_context(|| format!("cannot read {shown}"))?),
    };
    let text = match read_bounded_text(source, MAX_FILE) {
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            bail!("{shown} is larger than {} MiB, the most that a service accepts", MAX_FILE >> 20)
        }
        read => read.with_context(|| format!("cannot read {shown}"))?,
    };
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text);
    if depth(text) > MAX_DEPTH {
        bail!("{shown} has more than {MAX_DEPTH} open brackets");
    }
    let parsed = serde_json::from_str(text).or_else(|json_error| {
        let is_json = text.trim_start().starts_with('{');
        yaml_serde::from_str(text).map_err(|yaml_error| match (is_json, json_error.is_data()) {
            (true, true) => anyhow!("{shown}: {json_error}"),
            (true, false) => anyhow!("{shown} is neither JSON nor YAML: {json_error}"),
            (false, _) => anyhow!("{shown} is not a submission in JSON or YAML: {yaml_error}"),
        })
    });
    match parsed {
        Ok(UniqueKeys(Value::Object(fields))) => Ok(fields),
        Ok(_) => bail!("{shown} is not a submission; expected an object with a model or target"),
        Err(error) => Err(error),
    }
}

/// Most brackets that are open at once.
fn depth(text: &str) -> usize {
    let (mut open, mut most) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        most = open.max(most);
    }
    most
}

fn params(params: &[String]) -> Result<Map<String, Value>> {
    let mut named = Map::new();
    for text in params {
        let (name, value) =
            text.split_once('=').with_context(|| format!("--param {text}: there is no = in it"))?;
        let value = parse(value).map_err(|why| anyhow!("--param {name}: {why}"))?;
        if named.insert(name.to_owned(), value).is_some() {
            bail!("--param {name}: given more than once; give it once");
        }
    }
    Ok(named)
}

fn inputs(options: &SubmitOptions) -> Result<Option<Value>> {
    if let Some(id) = &options.inputs {
        return Ok(Some(json!(id)));
    }
    if options.prompt.is_none() && options.image.is_empty() {
        return Ok(None);
    }
    let mut left = MAX_INLINE_BYTES;
    let image = |path: &PathBuf| inline_image(path, upload_name(path).as_deref(), &mut left);
    let images = options.image.iter().map(image).collect::<Result<Vec<_>>>()?;
    let prompt = options.prompt.as_deref().unwrap_or_default();
    Ok(Some(json!({ "prompt": prompt, "images": images })))
}

#[cfg(test)]
mod tests;

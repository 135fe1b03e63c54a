//! `llmprof upload`: imports captures into a service.

use std::{path::Path, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use llmprof_core::domain::file_name::plain_name;
use llmprof_service::{artifact::packed::open_named, runtime};
use reqwest::{
    Body,
    multipart::{Form, Part},
};
use std::io::IsTerminal;
use tokio_stream::StreamExt as _;
use tokio_util::io::ReaderStream;

use super::{
    super::local_file,
    ServerOptions, ServiceClient,
    submit::{plan, queued},
    terminal::{print, print_json},
};

/// Import captures that were collected elsewhere into a service
///
/// The files of one program: an SQLite export or a report of nsys, or traces by the profiler of
/// PyTorch; and pages or a report of ncu; each as it is or compressed with zstd or gzip. Prints the
/// id of the run. Exit code 0, or 3: bad input, or the service refuses or does not answer. Exit
/// codes with --wait: see `llmprof watch --help`.
#[derive(Debug, Args)]
pub struct UploadOptions {
    /// Captures of one program
    #[arg(required = true)]
    file: Vec<std::path::PathBuf>,
    /// Name of the model
    #[arg(long)]
    model: Option<String>,
    /// Label to find the run by; several may be given
    #[arg(long)]
    label: Vec<String>,
    /// Ranges that are a stage
    #[arg(long, value_name = "NAME=RANGE[@DOMAIN]")]
    stage: Vec<String>,
    /// Only kernels in ranges of this name count; several may be given
    #[arg(long, value_name = "RANGE")]
    include_ranges: Vec<String>,
    /// Kernels in ranges of this name do not count; several may be given
    #[arg(long, value_name = "RANGE")]
    exclude_ranges: Vec<String>,
    /// The model that ran: a configured one, or a file with its config.json
    #[arg(long, value_name = "NAME|FILE", requires = "prompt_tokens")]
    model_config: Option<String>,
    /// Prompt tokens of each sequence
    #[arg(long)]
    prompt_tokens: Option<u64>,
    /// Decode steps of one repeat
    #[arg(long)]
    new_tokens: Option<u64>,
    /// Sequences computed at the same time
    #[arg(long)]
    batch: Option<u64>,
    /// Dtype of weights and activations
    #[arg(long)]
    dtype: Option<String>,
    /// Check the files and print the steps; queue nothing
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

pub fn run(options: &UploadOptions) -> ExitCode {
    super::run(&options.service, async |client| upload(&client, options).await)
}

async fn upload(client: &ServiceClient, options: &UploadOptions) -> Result<ExitCode> {
    let bar = bar()?;
    let key = uuid::Uuid::now_v7().to_string();
    let mut form = fields(options)?;
    for path in &options.file {
        form = form.part("file", part(path, &bar).await?);
    }
    let path = "/captures";
    let request = client.http.post(client.url(path)).header("idempotency-key", key).multipart(form);
    let answer = client.json(request, path).await;
    bar.finish_and_clear();
    let answer = answer?;
    if options.json {
        print_json(&answer)?;
    }
    if options.dry_run {
        if !options.json {
            print(&plan(&client.understood(answer, path).await?))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    queued(client, answer, options.json, options.wait).await
}

/// The progress of an upload, on a terminal.
pub(super) fn bar() -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{bytes} of {total_bytes} {wide_bar} {eta} {msg}")
        .context("the bar")?;
    let bar = ProgressBar::new(0).with_style(style);
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    Ok(bar)
}

/// The fields of the form, before its files.
fn fields(options: &UploadOptions) -> Result<Form> {
    let mut form = Form::new();
    let lists = [
        ("label", &options.label),
        ("stage", &options.stage),
        ("include_ranges", &options.include_ranges),
        ("exclude_ranges", &options.exclude_ranges),
    ];
    for (name, values) in lists {
        for value in values {
            form = form.text(name, value.clone());
        }
    }
    let number = |value: Option<u64>| value.map(|value| value.to_string());
    let fields = [
        ("model", options.model.clone()),
        ("model_config", options.model_config.as_deref().map(model_config).transpose()?),
        ("prompt_tokens", number(options.prompt_tokens)),
        ("new_tokens", number(options.new_tokens)),
        ("batch", number(options.batch)),
        ("dtype", options.dtype.clone()),
        ("dry_run", options.dry_run.then(|| "true".to_owned())),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            form = form.text(name, value);
        }
    }
    Ok(form)
}

/// The text of a file, or a name.
fn model_config(name: &str) -> Result<String> {
    if !Path::new(name).is_file() {
        return Ok(name.to_owned());
    }
    local_file::read_text(Path::new(name), local_file::MAX_CONFIG)
}

/// A file as a part of the form, streamed.
pub(super) async fn part(path: &Path, bar: &ProgressBar) -> Result<Part> {
    let shown = path.display();
    let cannot = || format!("cannot read {shown}");
    let named = path.to_owned();
    let file = runtime::blocking(move || open_named(&named)).await?.with_context(cannot)?;
    let bytes = file.metadata().with_context(cannot)?.len();
    bar.inc_length(bytes);
    let bar = bar.clone();
    let stream = ReaderStream::new(tokio::fs::File::from_std(file)).map(move |read| {
        bar.inc(read.as_ref().map_or(0, |bytes| bytes.len() as u64));
        if Some(bar.position()) == bar.length() {
            bar.set_message("sent; the service checks the files");
        }
        read
    });
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    // A control character in a name makes the form malformed.
    let name = plain_name(&name);
    Ok(Part::stream_with_length(Body::wrap_stream(stream), bytes).file_name(name))
}

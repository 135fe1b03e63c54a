//! One request from load to the last event, told as a paragraph.
//!
//! Between repeats, and only there, events are written and logits hashed.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use candle_core::{DType, Device};
use llmprof::{
    run::Dtype,
    runner::{EVENTS, PREDICTIONS, Progress, RunnerRequest},
    trace::event::{EVENT_SCHEMA, End, Event, ImageViews, Output, Start},
};
use nix::{
    sys::resource::{UsageWho, getrusage},
    time::{ClockId, clock_gettime},
};

use crate::{
    ceilings,
    generate::Session,
    limits,
    models::Model,
    ops::ArgMax,
    preprocess::{self, Page},
    prompt::{self, Tokenizer, Vocabulary},
    record::{Recorder, now_ns, write_events},
    site::{Site, Size},
    weights,
};

/// Why a request ended early.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The request, or a file that it names, cannot be honoured.
    #[error("{0}")]
    BadInput(String),
    #[error("the model failed: {0}")]
    Model(#[from] candle_core::Error),
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
}

/// Makes a [`RunError::BadInput`] of any error that says in its own words what is wrong with the input.
fn bad(error: impl ToString) -> RunError {
    RunError::BadInput(error.to_string())
}

/// Honours `request`, writing into `out`. `started_ns` is when the process began.
pub fn run(request: &RunnerRequest, out: &Path, started_ns: i64) -> Result<(), RunError> {
    request.model.validate().map_err(bad)?;
    let (device, dtype) = (open_device(&request.device)?, data_type(request)?);
    let tokenizer = Tokenizer::open(request.weights.as_deref()).map_err(bad)?;
    let (pages, views) = read_pages(request, dtype, &device)?;
    let prompt = assemble(request, &views, &tokenizer)?;
    let positions = prompt.tokens.len() + request.max_new_tokens as usize;
    limits::check(request, prompt.tokens.len(), &device).map_err(RunError::BadInput)?;
    let mut sink = Sink::create(out)?;

    progress("load", 0, 1);
    let recorder = Recorder::new();
    let (model, sample, size) = load(request, positions, dtype, &device, &recorder)?;
    sink.events(&[Event::Start(start(request, dtype, size, &prompt, views, started_ns))])?;
    progress("load", 1, 1);
    tracing::info!(parameters = size.parameters, prompt_tokens = prompt.tokens.len(), "loaded");

    let mut session =
        Session { model, recorder: recorder.clone(), prompt, pages, max_new_tokens: request.max_new_tokens, sample };
    if request.warmup > 0 {
        recorder.begin_repeat(true, 0);
        let all = recorder.range("warmup");
        for repeat in 0..request.warmup {
            progress("warmup", repeat.into(), request.warmup.into());
            one_repeat(&mut session, &mut sink, &tokenizer, true, repeat)?;
        }
        recorder.begin_repeat(true, 0);
        drop(all);
        progress("warmup", request.warmup.into(), request.warmup.into());
    }
    for repeat in 0..request.repeats {
        progress("measure", repeat.into(), request.repeats.into());
        one_repeat(&mut session, &mut sink, &tokenizer, false, repeat)?;
    }
    progress("measure", request.repeats.into(), request.repeats.into());
    // Before the ceilings, whose buffers are not the model's.
    let peak_rss_bytes = peak_rss_bytes();
    if request.ceilings {
        progress("ceilings", 0, 1);
        let ceilings: Vec<Event> = ceilings::measure(dtype, &device)?.into_iter().map(Event::Ceiling).collect();
        sink.events(&ceilings)?;
        progress("ceilings", 1, 1);
    }
    sink.events(&[Event::End(End { t_ns: now_ns(), peak_rss_bytes, peak_device_bytes: None })])
}

fn one_repeat(session: &mut Session, sink: &mut Sink, tokenizer: &Tokenizer, warmup: bool, repeat: u32) -> Result<(), RunError> {
    session.recorder.begin_repeat(warmup, repeat);
    let generated = session.run()?;
    let logits_sha256 = generated.logits_sha256()?;
    let mut events = session.recorder.drain();
    if !warmup {
        sink.prediction(repeat, &generated.tokens, tokenizer.decode(&generated.tokens))?;
    }
    events.push(Event::Output(Output { warmup, repeat, tokens: generated.tokens, logits_sha256 }));
    sink.events(&events)
}

fn open_device(name: &str) -> Result<Device, RunError> {
    let index = match name.split_once(':') {
        None if name == "cpu" => return Ok(Device::Cpu),
        Some(("cuda", index)) => index.parse::<usize>().ok(),
        _ => None,
    };
    let index = index.ok_or_else(|| bad(format!("device {name:?} is neither cpu nor cuda:INDEX")))?;
    if !cfg!(feature = "cuda") {
        return Err(bad(format!("device {name} needs a model-runner built with `--features cuda`; this one knows only cpu")));
    }
    Device::new_cuda(index).map_err(|e| bad(format!("cannot open device {name}: {e}")))
}

fn data_type(request: &RunnerRequest) -> Result<DType, RunError> {
    match (request.dtype, request.device.as_str()) {
        (Dtype::Bf16, "cpu") => Err(bad("dtype bf16 cannot be multiplied on the cpu: ask for f32 or f16, or for a cuda device")),
        (Dtype::F32, _) => Ok(DType::F32),
        (Dtype::F16, _) => Ok(DType::F16),
        (Dtype::Bf16, _) => Ok(DType::BF16),
    }
}

fn read_pages(request: &RunnerRequest, dtype: DType, device: &Device) -> Result<(Vec<Page>, Vec<ImageViews>), RunError> {
    let Some(vision) = &request.model.vision else {
        return match request.images.first() {
            Some(image) => Err(bad(format!("{}: the model {} takes no images", image.display(), request.model.name))),
            None => Ok((Vec::new(), Vec::new())),
        };
    };
    let mut pages = Vec::with_capacity(request.images.len());
    let mut views = Vec::with_capacity(request.images.len());
    for path in &request.images {
        let page = preprocess::read(path, vision).map_err(bad)?.into_page(dtype, device)?;
        views.push(page.views.clone());
        pages.push(page);
    }
    Ok((pages, views))
}

fn assemble(request: &RunnerRequest, views: &[ImageViews], tokenizer: &Tokenizer) -> Result<prompt::Prompt, RunError> {
    let decoder = &request.model.decoder;
    let image = request.model.vision.as_ref().map(|vision| vision.image_token);
    let vocabulary = Vocabulary { bos: decoder.bos_token, image, size: decoder.vocab };
    let image_tokens: Vec<usize> = views.iter().map(|views| views.tokens as usize).collect();
    prompt::assemble(&request.prompt, &image_tokens, tokenizer, &vocabulary).map_err(bad)
}

fn load(
    request: &RunnerRequest,
    positions: usize,
    dtype: DType,
    device: &Device,
    recorder: &Recorder,
) -> Result<(Model, ArgMax, Size), RunError> {
    let weights = match &request.weights {
        Some(folder) => weights::load(folder, dtype, device).map_err(bad)?,
        None => weights::synthetic(request.seed, dtype, device),
    };
    let root = Site::root(weights, recorder.clone());
    // What is wrong with a tensor is wrong with the folder that holds it.
    let model =
        Model::new(&root, &request.model, positions).map_err(|e| bad(format!("the weights do not fit the model: {e}")))?;
    Ok((model, ArgMax::new(&root.part("decoder.sample", "")), root.size()))
}

fn start(
    request: &RunnerRequest,
    dtype: DType,
    size: Size,
    prompt: &prompt::Prompt,
    images: Vec<ImageViews>,
    started_ns: i64,
) -> Start {
    let now = clock_gettime(ClockId::CLOCK_REALTIME).expect("Linux always has a wall clock");
    let t_ns = now_ns();
    Start {
        schema: EVENT_SCHEMA,
        t_ns,
        unix_ns: now.tv_sec() * 1_000_000_000 + now.tv_nsec(),
        pid: std::process::id(),
        model: request.model.name.clone(),
        weights: if request.weights.is_some() { "loaded" } else { "synthetic" }.to_owned(),
        parameters: size.parameters,
        weight_bytes: size.bytes,
        dtype: dtype.as_str().to_owned(),
        device: request.device.clone(),
        threads: rayon::current_num_threads() as u32,
        prompt_tokens: prompt.tokens.len() as u64,
        image_tokens: prompt.images.iter().map(|place| place.len() as u64).sum(),
        images,
        // Capturing decode into a graph is not built yet; the request's wish is answered truthfully.
        decode_graph: false,
        load_ns: t_ns - started_ns,
    }
}

/// Peak resident memory; Linux counts it in KiB.
fn peak_rss_bytes() -> u64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| usage.max_rss() as u64 * 1024)
}

/// Tells the parent how far we are. A parent that no longer listens is no reason to stop.
fn progress(phase: &str, done: u64, total: u64) {
    let line = Progress { phase: phase.to_owned(), done, total };
    if let Ok(line) = serde_json::to_string(&line) {
        let _ = writeln!(io::stdout().lock(), "{line}");
    }
}

/// The files of a run.
struct Sink {
    events: (PathBuf, BufWriter<File>),
    predictions: (PathBuf, BufWriter<File>),
}

impl Sink {
    fn create(out: &Path) -> Result<Self, RunError> {
        fs::create_dir_all(out).map_err(|source| RunError::Write { path: out.to_owned(), source })?;
        let file = |name| {
            let path = out.join(name);
            match File::create(&path) {
                Ok(file) => Ok((path, BufWriter::new(file))),
                Err(source) => Err(RunError::Write { path, source }),
            }
        };
        Ok(Self { events: file(EVENTS)?, predictions: file(PREDICTIONS)? })
    }

    /// Writes through to the file: what was measured outlives a crash of the next repeat.
    fn events(&mut self, events: &[Event]) -> Result<(), RunError> {
        let (path, file) = &mut self.events;
        write_events(file, events).and_then(|()| file.flush()).map_err(|source| RunError::Write { path: path.clone(), source })
    }

    fn prediction(&mut self, repeat: u32, tokens: &[u32], text: Option<String>) -> Result<(), RunError> {
        let (path, file) = &mut self.predictions;
        let line = serde_json::json!({ "repeat": repeat, "tokens": tokens, "text": text });
        writeln!(file, "{line}").and_then(|()| file.flush()).map_err(|source| RunError::Write { path: path.clone(), source })
    }
}

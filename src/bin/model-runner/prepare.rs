//! From a request to a session that can run: device, input, weights, and a captured step where one is wanted.
//!
//! Everything that can be wrong with a request is found here, before anything is measured. Writes nothing.

use std::path::PathBuf;

use candle_core::{DType, Device};
use llmprof::{
    run::Dtype,
    runner::RunnerRequest,
    trace::event::{EVENT_SCHEMA, ImageViews, Start},
};
use nix::time::{ClockId, clock_gettime};

use crate::{
    generate::{Program, Session},
    limits,
    models::Model,
    ops::Sampler,
    part::{Part, Place},
    preprocess::{self, Page},
    prompt::{self, Prompt, Tokenizer, Vocabulary},
    record::{Recorder, now_ns},
    site::{Site, Size},
    text::Text,
    weights,
};

/// Why a request ended early.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The request, or a file that it names, cannot be honoured.
    #[error("{0}")]
    BadInput(String),
    #[error("the model failed: {0}")]
    Model(candle_core::Error),
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
}

impl From<candle_core::Error> for RunError {
    fn from(error: candle_core::Error) -> Self {
        // What does not fit was asked for: no fault of the model's.
        match error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY") {
            true => Self::BadInput(
                "the GPU ran out of memory: ask for fewer tokens or images, or free the GPU of other processes".to_owned(),
            ),
            false => Self::Model(error),
        }
    }
}

/// Makes a [`RunError::BadInput`] of any error that says in its own words what is wrong with the input.
fn bad(error: impl ToString) -> RunError {
    RunError::BadInput(error.to_string())
}

/// A session, and what is known of it.
pub struct Ready {
    pub session: Session,
    pub dtype: DType,
    pub tokenizer: Tokenizer,
    /// The first event: what will run.
    pub about: Start,
}

/// Reads the input, loads the weights, and captures a step if the request wants one. `started_ns` is when the process began.
pub fn prepare(request: &RunnerRequest, started_ns: i64) -> Result<Ready, RunError> {
    request.model.validate().map_err(bad)?;
    let (device, dtype) = (open_device(&request.device)?, data_type(request)?);
    let tokenizer = Tokenizer::open(request.weights.as_deref()).map_err(bad)?;
    let (pages, views) = read_pages(request, dtype, &device)?;
    let prompt = assemble(request, &views, &tokenizer)?;
    let positions = positions(request, &prompt);
    limits::check(request, positions, &device).map_err(RunError::BadInput)?;

    let recorder = Recorder::new();
    let mut about = start(request, dtype, &prompt, views);
    let (program, size) = load(request, prompt, pages, dtype, &device, &recorder)?;
    device.synchronize()?;
    (about.parameters, about.weight_bytes, about.load_ns) = (size.parameters, size.bytes, now_ns() - started_ns);

    let max_new_tokens = if program.steps() { request.max_new_tokens } else { 0 };
    let mut session = Session {
        program,
        recorder,
        max_new_tokens,
        device,
        graph: None,
        #[cfg(feature = "cuda")]
        others: None,
    };
    if request.weights.is_none() && request.model.decoder.moe.is_some() {
        let Session { program, recorder, .. } = &mut session;
        recorder.quietly(|| program.balance())?;
    }
    #[cfg(feature = "cuda")]
    if request.decode_graph && max_new_tokens > 0 && session.device.is_cuda() {
        if let Err(error) = session.capture() {
            // The event that tells what ran says so too.
            tracing::warn!("decode runs eagerly, a step of it cannot be captured: {error}");
        }
        // The capture is no repeat: what it recorded is told with each replay.
        session.recorder.drain();
    }
    about.decode_graph = session.graph.is_some();
    #[cfg(feature = "cuda")]
    if let Device::Cuda(cuda) = &session.device {
        session.recorder.time_by(crate::gpu::Timer::new(cuda));
        if request.cold_cache && request.target.is_some() {
            session.others = Some(crate::gpu::Others::new(cuda)?);
        }
    }
    Ok(Ready { session, dtype, tokenizer, about })
}

fn open_device(name: &str) -> Result<Device, RunError> {
    let index = match name.split_once(':') {
        None if name == "cpu" => return Ok(Device::Cpu),
        Some(("cuda", index)) => index.parse::<usize>().ok(),
        _ => None,
    };
    let index = index.ok_or_else(|| bad(format!("device {name:?} is neither cpu nor cuda:INDEX")))?;
    #[cfg(feature = "cuda")]
    return crate::gpu::open(index).map_err(|reason| bad(format!("cannot open device {name}: {reason}")));
    #[cfg(not(feature = "cuda"))]
    Err(bad(format!("device cuda:{index} needs a model-runner built with `--features cuda`; this one knows only cpu")))
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

/// Positions of the prompt; only a part of a model takes another number than its inputs have.
fn positions(request: &RunnerRequest, prompt: &Prompt) -> usize {
    request.prompt_tokens.filter(|_| request.target.is_some()).map_or(prompt.tokens.len(), |asked| asked as usize)
}

fn load(
    request: &RunnerRequest,
    prompt: Prompt,
    pages: Vec<Page>,
    dtype: DType,
    device: &Device,
    recorder: &Recorder,
) -> Result<(Box<dyn Program>, Size), RunError> {
    let weights = match &request.weights {
        Some(folder) => weights::load(folder, dtype, device).map_err(bad)?,
        None => weights::synthetic(request.seed, dtype, device),
    };
    let root = Site::root(weights, recorder.clone());
    let most = request.max_new_tokens as usize + 1;
    let capacity = positions(request, &prompt) + most - 1;
    // What is wrong with a tensor is wrong with the folder that holds it.
    let misfit = |error: candle_core::Error| match RunError::from(error) {
        RunError::Model(error) => bad(format!("the weights do not fit the model: {error}")),
        other => other,
    };
    let program: Box<dyn Program> = match &request.target {
        Some(path) => {
            let (spec, seed, prompt_tokens) = (&request.model, request.seed, positions(request, &prompt));
            let place = Place { spec, path, seed, prompt_tokens, capacity, pages: &pages };
            Box::new(Part::new(&root, &place, request.extracted).map_err(bad)?)
        }
        None => {
            let model = Model::new(&root, &request.model, capacity).map_err(misfit)?;
            let sampler = Sampler::new(&root.part("decoder.sample", ""), request.model.decoder.vocab, most)?;
            Box::new(Text { model, prompt, pages, sampler })
        }
    };
    Ok((program, root.size()))
}

fn start(request: &RunnerRequest, dtype: DType, prompt: &Prompt, images: Vec<ImageViews>) -> Start {
    let now = clock_gettime(ClockId::CLOCK_REALTIME).expect("Linux always has a wall clock");
    Start {
        schema: EVENT_SCHEMA,
        t_ns: now_ns(),
        unix_ns: now.tv_sec() * 1_000_000_000 + now.tv_nsec(),
        pid: std::process::id(),
        model: request.model.name.clone(),
        target: request.target.clone(),
        weights: if request.weights.is_some() { "loaded" } else { "synthetic" }.to_owned(),
        // These four are filled in once they are known.
        parameters: 0,
        weight_bytes: 0,
        decode_graph: false,
        load_ns: 0,
        dtype: dtype.as_str().to_owned(),
        device: request.device.clone(),
        threads: rayon::current_num_threads() as u32,
        prompt_tokens: positions(request, prompt) as u64,
        image_tokens: match request.prompt_tokens {
            Some(_) => 0,
            None => prompt.images.iter().map(|place| place.len() as u64).sum(),
        },
        images,
    }
}

//! From a request to a session that can run: device, input, weights, and a captured step if
//! requested.
//!
//! Every error of a request is found here, before anything is measured. Writes nothing.

use std::path::PathBuf;

use candle_core::{DType, Device};
use llmprof_core::{
    domain::{dtype::Dtype, run_config::WeightSource, runner::RunnerRequest},
    trace::event::{EVENT_SCHEMA, ImageViews, SampleStart, Start},
};
use nix::time::{ClockId, clock_gettime};

use crate::{
    generate::{Program, Session},
    limits,
    models::Model,
    module_bench::{ModelPart, PartRequest},
    module_scope::{BuiltSize, Site},
    ops::{Room, Sampler},
    preprocess::{self, PageTensors},
    prompt::{self, Prompt, Tokenizer, Vocabulary},
    record::{Recorder, now_ns},
    text::{Batch, TextGeneration, TextSample},
    weights,
};

/// A failed request.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The request, or a file that it names, is invalid.
    #[error("{0}")]
    BadInput(String),
    #[error("the model failed: {0}")]
    Model(candle_core::Error),
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
}

impl From<candle_core::Error> for RunError {
    fn from(error: candle_core::Error) -> Self {
        // The request is too large: not an error of the model.
        match error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY") {
            true => Self::BadInput(
                "the GPU ran out of memory; request fewer tokens or images, or stop other \
                 processes on the GPU"
                    .to_owned(),
            ),
            false => Self::Model(error),
        }
    }
}

/// A [`RunError::BadInput`] with the message of `error`.
fn bad_input(error: impl ToString) -> RunError {
    RunError::BadInput(error.to_string())
}

/// A session and its description.
pub struct PreparedSession {
    pub session: Session,
    pub dtype: DType,
    pub tokenizer: Tokenizer,
    /// The first event, which describes the run with its first sample.
    pub about: Start,
    /// Each sample.
    pub samples: Vec<SampleStart>,
}

/// A sample as it was read.
#[derive(Clone)]
struct ReadSample {
    text: TextSample,
    views: Vec<ImageViews>,
}

/// Reads the input, loads the weights, and captures a step if requested. `started_ns` is the start
/// of the process.
pub fn prepare(request: &RunnerRequest, started_ns: i64) -> Result<PreparedSession, RunError> {
    request.model.validate().map_err(bad_input)?;
    let (device, dtype) = (open_device(&request.device)?, data_type(request)?);
    let tokenizer = Tokenizer::open(request.weights.as_deref()).map_err(bad_input)?;
    let read = |prompt: &str, images: &[PathBuf]| {
        read_sample(request, (prompt, images), dtype, &device, &tokenizer)
    };
    let mut inputs = vec![read(&request.prompt, &request.images)?];
    for sample in &request.further_samples {
        inputs.push(read(&sample.prompt, &sample.images)?);
    }
    let longest = inputs.iter().map(|it| positions(request, &it.text.prompt)).max().unwrap_or(0);
    limits::check(request, longest, &device).map_err(RunError::BadInput)?;
    if request.batch > 1 {
        inputs = inputs.iter().cycle().take(request.batch as usize).cloned().collect();
    }

    let recorder = Recorder::new();
    recorder.record_operators(request.operators, request.operator_ranges);
    let mut about = start(request, dtype, &inputs);
    let samples = sample_starts(request, &inputs);
    let texts = inputs.into_iter().map(|it| it.text).collect();
    let (program, size) = load(request, (texts, longest), dtype, &device, &recorder)?;
    device.synchronize()?;
    (about.parameters, about.weight_bytes, about.load_ns) =
        (size.parameters, size.bytes, now_ns() - started_ns);

    let max_new_tokens = if program.has_steps() { request.max_new_tokens } else { 0 };
    let mut session = Session {
        program,
        recorder,
        max_new_tokens,
        device,
        graph: None,
        #[cfg(feature = "cuda")]
        l2_flush: None,
    };
    if request.weights.is_none() && request.model.decoder.moe.is_some() {
        let Session { program, recorder, .. } = &mut session;
        recorder.without_recording(|| program.balance())?;
    }
    #[cfg(feature = "cuda")]
    if request.decode_graph && max_new_tokens > 0 && session.device.is_cuda() {
        if let Err(error) = session.capture() {
            // The start event records it as well.
            tracing::warn!("decode runs eagerly: a step cannot be captured: {error}");
        }
        // The capture is not a repeat: its calls are recorded with each replay.
        session.recorder.drain();
    }
    about.decode_graph = session.graph.is_some();
    #[cfg(feature = "cuda")]
    if let Device::Cuda(cuda) = &session.device {
        session.recorder.time_by(crate::gpu::GpuTimer::new(cuda));
        if request.cold_cache && request.target.is_some() {
            session.l2_flush = Some(crate::gpu::L2Flush::new(cuda)?);
            about.cold_cache = true;
        }
    }
    Ok(PreparedSession { session, dtype, tokenizer, about, samples })
}

fn open_device(name: &str) -> Result<Device, RunError> {
    let index = match name.split_once(':') {
        None if name == "cpu" => return Ok(Device::Cpu),
        Some(("cuda", index)) => index.parse::<usize>().ok(),
        _ => None,
    };
    let index = index
        .ok_or_else(|| bad_input(format!("invalid device {name:?}; expected cpu or cuda:INDEX")))?;
    #[cfg(feature = "cuda")]
    return crate::gpu::open(index)
        .map_err(|reason| bad_input(format!("cannot open device {name}: {reason}")));
    #[cfg(not(feature = "cuda"))]
    Err(bad_input(format!(
        "device cuda:{index} is not supported by this build; use cpu, or build model-runner with \
         `--features cuda`"
    )))
}

fn data_type(request: &RunnerRequest) -> Result<DType, RunError> {
    match (request.dtype, request.device.as_str()) {
        (Dtype::Bf16, "cpu") => {
            Err(bad_input("bf16 is not supported on the CPU; use f32 or f16, or a CUDA device"))
        }
        (Dtype::F32, _) => Ok(DType::F32),
        (Dtype::F16, _) => Ok(DType::F16),
        (Dtype::Bf16, _) => Ok(DType::BF16),
    }
}

/// Reads the pages of a sample and assembles its prompt.
fn read_sample(
    request: &RunnerRequest,
    (text, images): (&str, &[PathBuf]),
    dtype: DType,
    device: &Device,
    tokenizer: &Tokenizer,
) -> Result<ReadSample, RunError> {
    let (pages, views) = read_pages(request, images, dtype, device)?;
    let decoder = &request.model.decoder;
    let image = request.model.vision.as_ref().map(|vision| vision.image_token);
    let vocabulary = Vocabulary { bos: decoder.bos_token, image, size: decoder.vocab };
    let image_tokens: Vec<usize> = views.iter().map(|views| views.tokens as usize).collect();
    let prompt =
        prompt::assemble(text, &image_tokens, tokenizer, &vocabulary).map_err(bad_input)?;
    Ok(ReadSample { text: TextSample { prompt, pages }, views })
}

fn read_pages(
    request: &RunnerRequest,
    images: &[PathBuf],
    dtype: DType,
    device: &Device,
) -> Result<(Vec<PageTensors>, Vec<ImageViews>), RunError> {
    let Some(vision) = &request.model.vision else {
        return match images.first() {
            Some(image) => Err(bad_input(format!(
                "image {}: the model {} does not accept images",
                image.display(),
                request.model.name
            ))),
            None => Ok((Vec::new(), Vec::new())),
        };
    };
    let mut pages = Vec::with_capacity(images.len());
    let mut views = Vec::with_capacity(images.len());
    for path in images {
        let page = preprocess::read(path, vision).map_err(bad_input)?.into_page(dtype, device)?;
        views.push(page.views.clone());
        pages.push(page);
    }
    Ok((pages, views))
}

/// Positions of the prompt; only a part of a model can override the number of its inputs.
fn positions(request: &RunnerRequest, prompt: &Prompt) -> usize {
    request
        .prompt_tokens
        .filter(|_| request.target.is_some())
        .map_or(prompt.tokens.len(), |tokens| tokens as usize)
}

fn load(
    request: &RunnerRequest,
    (mut samples, longest): (Vec<TextSample>, usize),
    dtype: DType,
    device: &Device,
    recorder: &Recorder,
) -> Result<(Box<dyn Program>, BuiltSize), RunError> {
    let weights = match &request.weights {
        Some(folder) => weights::load(folder, dtype, device).map_err(bad_input)?,
        None => weights::synthetic(request.seed, dtype, device),
    };
    let root = Site::root(weights, recorder.clone());
    let max_tokens = request.max_new_tokens as usize + 1;
    let capacity = longest + request.cache_room() as usize;
    // An invalid tensor is an error of its folder.
    let bad_weights = |error: candle_core::Error| match RunError::from(error) {
        RunError::Model(error) => bad_input(format!("the weights do not fit the model: {error}")),
        other => other,
    };
    let program: Box<dyn Program> = match &request.target {
        Some(path) => {
            let TextSample { prompt, pages } = samples.swap_remove(0);
            let (spec, seed, prompt_tokens) =
                (&request.model, request.seed, positions(request, &prompt));
            let place = PartRequest { spec, path, seed, prompt_tokens, capacity, pages: &pages };
            Box::new(ModelPart::new(&root, &place, request.extracted).map_err(bad_input)?)
        }
        None => {
            let sequences = request.batch as usize;
            let room = Room { sequences, positions: capacity };
            let model = Model::new(&root, &request.model, room).map_err(bad_weights)?;
            let site = root.part("decoder.sample", "");
            let vocabulary = request.model.decoder.vocab;
            let sampler = Sampler::new(&site, vocabulary, sequences, max_tokens)?;
            let batches = samples.chunks(sequences).map(Batch::new).collect();
            Box::new(TextGeneration { model, batches, current: 0, sampler })
        }
    };
    Ok((program, root.size()))
}

/// The measurements of the request, in order: of each sample, or of a batch of them.
fn sample_starts(request: &RunnerRequest, inputs: &[ReadSample]) -> Vec<SampleStart> {
    let start = |(sample, inputs): (u32, &[ReadSample])| SampleStart {
        sample,
        first_repeat: sample * request.repeats,
        repeats: request.repeats,
        prompt_tokens: prompt_tokens(request, inputs).sum(),
        image_tokens: inputs.iter().map(|it| image_tokens(request, &it.text.prompt)).sum(),
        images: inputs.iter().flat_map(|it| it.views.clone()).collect(),
    };
    (0..).zip(inputs.chunks(request.batch as usize)).map(start).collect()
}

/// Prompt tokens of each input.
fn prompt_tokens(request: &RunnerRequest, inputs: &[ReadSample]) -> impl Iterator<Item = u64> {
    inputs.iter().map(|it| positions(request, &it.text.prompt) as u64)
}

fn image_tokens(request: &RunnerRequest, prompt: &Prompt) -> u64 {
    match request.prompt_tokens {
        Some(_) => 0,
        None => prompt.images.iter().map(|place| place.len() as u64).sum(),
    }
}

fn start(request: &RunnerRequest, dtype: DType, inputs: &[ReadSample]) -> Start {
    let first = sample_starts(request, inputs).swap_remove(0);
    let is_batch = request.batch > 1;
    let now = clock_gettime(ClockId::CLOCK_REALTIME).expect("Linux always has a wall clock");
    Start {
        schema: EVENT_SCHEMA,
        t_ns: now_ns(),
        unix_ns: now.tv_sec() * 1_000_000_000 + now.tv_nsec(),
        pid: std::process::id(),
        model: request.model.name.clone(),
        target: request.target.clone(),
        weights: WeightSource::of(request.weights.as_deref()).as_str().to_owned(),
        // These five are set once they are known.
        parameters: 0,
        weight_bytes: 0,
        decode_graph: false,
        cold_cache: false,
        load_ns: 0,
        dtype: dtype.as_str().to_owned(),
        device: request.device.clone(),
        threads: rayon::current_num_threads() as u32,
        prompt_tokens: first.prompt_tokens,
        sequences: prompt_tokens(request, inputs).filter(|_| is_batch).collect(),
        image_tokens: first.image_tokens,
        images: first.images,
    }
}

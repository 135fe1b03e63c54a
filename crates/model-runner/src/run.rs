//! One request from load to the last event.
//!
//! Events are written and values hashed between repeats only.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use candle_core::Device;
use llmprof_core::{
    domain::runner::{EVENTS, PREDICTIONS, Progress, RunnerRequest},
    trace::event::{End, Event, Output, SampleStart},
};
use nix::sys::resource::{UsageWho, getrusage};

use crate::{
    ceilings,
    generate::{ComputedOutputs, Session},
    prepare::{PreparedSession, RunError, prepare},
    prompt::Tokenizer,
    record::{MemoryCounter, now_ns, write_events},
};

/// Runs `request`, writing into `out`. `started_ns` is the start of the process.
pub fn run(request: &RunnerRequest, out: &Path, started_ns: i64) -> Result<(), RunError> {
    progress("load", 0, 1);
    let PreparedSession { mut session, dtype, tokenizer, about, samples } =
        prepare(request, started_ns)?;
    progress("load", 1, 1);
    tracing::info!(parameters = about.parameters, prompt_tokens = about.prompt_tokens, "loaded");
    let mut files = RunFiles::create(out, request.predictions)?;
    files.events(&[Event::Start(about)])?;

    let (device, recorder) = (session.device.clone(), session.recorder.clone());
    if request.warmup > 0 {
        recorder.start_repeat(true, 0);
        let warmup = recorder.range("warmup");
        run_repeats(&mut session, &mut files, &tokenizer, &samples, (true, request.warmup))?;
        recorder.start_repeat(true, 0);
        drop(warmup);
    }
    run_repeats(&mut session, &mut files, &tokenizer, &samples, (false, request.repeats))?;
    // Steady repeats are of the first sample.
    session.program.select(0);
    // Before the ceilings, whose buffers do not belong to the model.
    let (peak_rss_bytes, peak_device_bytes) = (peak_rss_bytes(), peak_device_bytes(&device));
    if request.steady_ms > 0 {
        progress("steady", 0, 1);
        let steady = session.steady(Duration::from_millis(request.steady_ms.into()))?;
        files.events(&steady.into_iter().map(Event::Steady).collect::<Vec<_>>())?;
        progress("steady", 1, 1);
    }
    if request.memory {
        record_memory(&mut session, &mut files)?;
    }
    if request.ceilings {
        progress("ceilings", 0, 1);
        let ceilings: Vec<Event> =
            ceilings::measure(dtype, &device)?.into_iter().map(Event::Ceiling).collect();
        files.events(&ceilings)?;
        progress("ceilings", 1, 1);
    }
    files.events(&[Event::End(End { t_ns: now_ns(), peak_rss_bytes, peak_device_bytes })])
}

/// Runs the warm-up or the measured repeats of each sample, one sample after the other.
fn run_repeats(
    session: &mut Session,
    files: &mut RunFiles,
    tokenizer: &Tokenizer,
    samples: &[SampleStart],
    (warmup, repeats): (bool, u32),
) -> Result<(), RunError> {
    let phase = if warmup { "warmup" } else { "measure" };
    let total = u64::from(repeats) * samples.len() as u64;
    let has_several = samples.len() > 1;
    for about in samples {
        session.program.select(about.sample as usize);
        if has_several && !warmup {
            files.events(&[Event::Sample(about.clone())])?;
        }
        let sample = has_several.then_some(about.sample);
        for index in 0..repeats {
            let repeat = about.sample * repeats + index;
            progress_of(phase, repeat.into(), total, sample);
            let computed = run_repeat(session, files, warmup, repeat)?;
            if !warmup {
                let sequences = session.program.cursor().sequences();
                files.predictions((sample, index, sequences), &computed.tokens, tokenizer)?;
            }
        }
    }
    progress(phase, total, total);
    Ok(())
}

fn run_repeat(
    session: &mut Session,
    files: &mut RunFiles,
    warmup: bool,
    repeat: u32,
) -> Result<ComputedOutputs, RunError> {
    session.recorder.start_repeat(warmup, repeat);
    let computed = session.run()?;
    let logits_sha256 = computed.sha256()?;
    let mut events = session.recorder.drain();
    let tokens = computed.tokens.clone();
    events.push(Event::Output(Output { warmup, repeat, tokens, logits_sha256 }));
    files.events(&events)?;
    Ok(computed)
}

/// Runs the first sample once more, with one decode step, and records the device's memory. Nothing
/// of it is timed.
fn record_memory(session: &mut Session, files: &mut RunFiles) -> Result<(), RunError> {
    let Some(counter) = memory_counter(&session.device) else { return Ok(()) };
    progress("memory", 0, 1);
    let recorder = session.recorder.clone();
    let steps = session.max_new_tokens;
    session.max_new_tokens = steps.min(1);
    let compute =
        || recorder.without_recording(|| recorder.with_memory(counter, || session.run().map(drop)));
    #[cfg(feature = "cuda")]
    let computed = crate::gpu::without_slabs(compute);
    #[cfg(not(feature = "cuda"))]
    let computed = compute();
    session.max_new_tokens = steps;
    computed?;
    files.events(&recorder.drain())?;
    progress("memory", 1, 1);
    Ok(())
}

/// The counter of a GPU's memory.
fn memory_counter(device: &Device) -> Option<MemoryCounter> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => {
            let (read, reset) = (cuda.clone(), cuda.clone());
            Some(MemoryCounter {
                read: Box::new(move || crate::gpu::used_bytes(&read)),
                reset: Box::new(move || crate::gpu::reset_peak(&reset)),
            })
        }
        _ => None,
    }
}

/// Peak resident memory; Linux reports it in KiB.
fn peak_rss_bytes() -> u64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| usage.max_rss() as u64 * 1024)
}

/// Peak memory of the GPU, in bytes.
pub fn peak_device_bytes(device: &Device) -> Option<u64> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => crate::gpu::peak_bytes(cuda),
        _ => None,
    }
}

/// Reports progress to the parent. A closed output is not an error.
fn progress(phase: &str, done: u64, total: u64) {
    progress_of(phase, done, total, None);
}

/// The same with the index of a sample.
fn progress_of(phase: &str, done: u64, total: u64, sample: Option<u32>) {
    let line = Progress { phase: phase.to_owned(), done, total, sample };
    if let Ok(line) = serde_json::to_string(&line) {
        let _ = writeln!(io::stdout().lock(), "{line}");
    }
}

/// The output files of a run.
struct RunFiles {
    events: (PathBuf, BufWriter<File>),
    /// Absent if texts are not stored.
    predictions: Option<(PathBuf, BufWriter<File>)>,
}

impl RunFiles {
    fn create(out: &Path, predictions: bool) -> Result<Self, RunError> {
        fs::create_dir_all(out)
            .map_err(|source| RunError::Write { path: out.to_owned(), source })?;
        let file = |name| {
            let path = out.join(name);
            match File::create(&path) {
                Ok(file) => Ok((path, BufWriter::new(file))),
                Err(source) => Err(RunError::Write { path, source }),
            }
        };
        let predictions = predictions.then(|| file(PREDICTIONS)).transpose()?;
        Ok(Self { events: file(EVENTS)?, predictions })
    }

    /// Writes through to the file, so that events survive a crash of the next repeat.
    fn events(&mut self, events: &[Event]) -> Result<(), RunError> {
        let (path, file) = &mut self.events;
        write_events(file, events)
            .and_then(|()| file.flush())
            .map_err(|source| RunError::Write { path: path.clone(), source })
    }

    /// Writes the tokens of a repeat, a line per sequence; `sample` if there are several.
    fn predictions(
        &mut self,
        (sample, repeat, sequences): (Option<u32>, u32, usize),
        tokens: &[u32],
        tokenizer: &Tokenizer,
    ) -> Result<(), RunError> {
        let Some((path, file)) = &mut self.predictions else { return Ok(()) };
        let each = tokens.len() / sequences;
        let mut lines = String::new();
        for sequence in 0..sequences {
            let tokens = &tokens[sequence * each..(sequence + 1) * each];
            let text = tokenizer.decode(tokens);
            let mut line = serde_json::json!({ "repeat": repeat, "tokens": tokens, "text": text });
            if let Some(sample) = sample {
                line["sample"] = sample.into();
            }
            if sequences > 1 {
                line["sequence"] = sequence.into();
            }
            lines.push_str(&format!("{line}\n"));
        }
        file.write_all(lines.as_bytes())
            .and_then(|()| file.flush())
            .map_err(|source| RunError::Write { path: path.clone(), source })
    }
}

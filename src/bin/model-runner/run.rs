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
use llmprof::{
    domain::runner::{EVENTS, PREDICTIONS, Progress, RunnerRequest},
    trace::event::{End, Event, Output},
};
use nix::sys::resource::{UsageWho, getrusage};

use crate::{
    ceilings,
    generate::Session,
    prepare::{PreparedSession, RunError, prepare},
    prompt::Tokenizer,
    record::{now_ns, write_events},
};

/// Runs `request`, writing into `out`. `started_ns` is the start of the process.
pub fn run(request: &RunnerRequest, out: &Path, started_ns: i64) -> Result<(), RunError> {
    progress("load", 0, 1);
    let PreparedSession { mut session, dtype, tokenizer, about } = prepare(request, started_ns)?;
    progress("load", 1, 1);
    tracing::info!(parameters = about.parameters, prompt_tokens = about.prompt_tokens, "loaded");
    let mut files = RunFiles::create(out)?;
    files.events(&[Event::Start(about)])?;

    let (device, recorder) = (session.device.clone(), session.recorder.clone());
    if request.warmup > 0 {
        recorder.start_repeat(true, 0);
        let warmup = recorder.range("warmup");
        for repeat in 0..request.warmup {
            progress("warmup", repeat.into(), request.warmup.into());
            run_repeat(&mut session, &mut files, &tokenizer, true, repeat)?;
        }
        recorder.start_repeat(true, 0);
        drop(warmup);
        progress("warmup", request.warmup.into(), request.warmup.into());
    }
    for repeat in 0..request.repeats {
        progress("measure", repeat.into(), request.repeats.into());
        run_repeat(&mut session, &mut files, &tokenizer, false, repeat)?;
    }
    progress("measure", request.repeats.into(), request.repeats.into());
    // Before the ceilings, whose buffers do not belong to the model.
    let (peak_rss_bytes, peak_device_bytes) = (peak_rss_bytes(), peak_device_bytes(&device));
    if request.steady_ms > 0 {
        progress("steady", 0, 1);
        let steady = session.steady(Duration::from_millis(request.steady_ms.into()))?;
        files.events(&steady.into_iter().map(Event::Steady).collect::<Vec<_>>())?;
        progress("steady", 1, 1);
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

fn run_repeat(
    session: &mut Session,
    files: &mut RunFiles,
    tokenizer: &Tokenizer,
    warmup: bool,
    repeat: u32,
) -> Result<(), RunError> {
    session.recorder.start_repeat(warmup, repeat);
    let computed = session.run()?;
    let logits_sha256 = computed.sha256()?;
    let mut events = session.recorder.drain();
    if !warmup {
        files.prediction(repeat, &computed.tokens, tokenizer.decode(&computed.tokens))?;
    }
    events.push(Event::Output(Output { warmup, repeat, tokens: computed.tokens, logits_sha256 }));
    files.events(&events)
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
    let line = Progress { phase: phase.to_owned(), done, total };
    if let Ok(line) = serde_json::to_string(&line) {
        let _ = writeln!(io::stdout().lock(), "{line}");
    }
}

/// The output files of a run.
struct RunFiles {
    events: (PathBuf, BufWriter<File>),
    predictions: (PathBuf, BufWriter<File>),
}

impl RunFiles {
    fn create(out: &Path) -> Result<Self, RunError> {
        fs::create_dir_all(out)
            .map_err(|source| RunError::Write { path: out.to_owned(), source })?;
        let file = |name| {
            let path = out.join(name);
            match File::create(&path) {
                Ok(file) => Ok((path, BufWriter::new(file))),
                Err(source) => Err(RunError::Write { path, source }),
            }
        };
        Ok(Self { events: file(EVENTS)?, predictions: file(PREDICTIONS)? })
    }

    /// Writes through to the file, so that events survive a crash of the next repeat.
    fn events(&mut self, events: &[Event]) -> Result<(), RunError> {
        let (path, file) = &mut self.events;
        write_events(file, events)
            .and_then(|()| file.flush())
            .map_err(|source| RunError::Write { path: path.clone(), source })
    }

    fn prediction(
        &mut self,
        repeat: u32,
        tokens: &[u32],
        text: Option<String>,
    ) -> Result<(), RunError> {
        let (path, file) = &mut self.predictions;
        let line = serde_json::json!({ "repeat": repeat, "tokens": tokens, "text": text });
        writeln!(file, "{line}")
            .and_then(|()| file.flush())
            .map_err(|source| RunError::Write { path: path.clone(), source })
    }
}

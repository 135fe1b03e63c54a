//! Samples a GPU beside a pass: power, clocks and limits, many times a second, into a file of the run.
//!
//! On a thread of its own, so that neither the runtime nor the pass waits for the driver. A sampler that cannot sample is a finding,
//! and never the end of a run.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::PathBuf,
    sync::mpsc::{self, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::Duration,
};

use super::nvml::{self, NoGpu, now_ns};
use crate::{
    run::{Finding, Severity},
    trace::power::{PowerLine, PowerSample, SampledDevice, SamplerEnd},
};

/// Samples after which the file is written through, so that a crash costs a second or so of them.
const FLUSH: u64 = 50;

#[derive(Debug, thiserror::Error)]
enum SamplerError {
    #[error(transparent)]
    NoGpu(#[from] NoGpu),
    #[error("cannot write the samples")]
    Write(#[from] io::Error),
    #[error("the sampler broke")]
    Broke,
}

/// A thread that samples until it is stopped or dropped.
#[derive(Debug)]
pub struct Sampler {
    stop: mpsc::Sender<()>,
    thread: Option<JoinHandle<Result<(), SamplerError>>>,
}

impl Sampler {
    /// Begins to sample the device `uuid` into `path`, `hz` times a second. Devices renew their readings every 10 to 100 ms.
    pub fn start(uuid: &str, path: PathBuf, hz: u32) -> Self {
        let period_ns = 1_000_000_000 / i64::from(hz.max(1));
        let (stop, stopped) = mpsc::channel();
        let uuid = uuid.to_owned();
        let work = move || {
            // Any answer but silence ends it: a word, or that nobody is left to say one.
            let pause = |time| matches!(stopped.recv_timeout(time), Err(RecvTimeoutError::Timeout));
            nvml::watch(&uuid, period_ns, |device, look| {
                let mut out = BufWriter::new(File::create(&path)?);
                record(&mut out, device, look, now_ns, pause)?;
                Ok(())
            })?
        };
        // Without a thread there are no samples, and stopping says so.
        Self { stop, thread: thread::Builder::new().name("sample-gpu".into()).spawn(work).ok() }
    }

    /// Ends the sampling, and says why there are no samples where there are none.
    pub async fn stop(self) -> Option<Finding> {
        let Self { stop, thread } = self;
        drop(stop);
        let joined = tokio::task::spawn_blocking(move || thread.map(JoinHandle::join)).await;
        let ended = match joined {
            Ok(Some(Ok(ended))) => ended,
            _ => Err(SamplerError::Broke),
        };
        ended.err().map(|error| not_sampled(&error))
    }
}

fn not_sampled(error: &SamplerError) -> Finding {
    let message = "Power and clocks of the GPU were not sampled.";
    Finding::new("power_not_sampled", Severity::Warning, message)
        .with("reason", crate::chain(error))
        .advise("Look at nvidia-smi -L: NVIDIA's driver comes with libnvidia-ml.so.1, and knows the GPU by its UUID.")
}

/// Writes what `look` sees, every period of the device, until `pause` says that it is over.
fn record(
    out: &mut impl Write,
    device: SampledDevice,
    look: &mut dyn FnMut() -> PowerSample,
    clock: impl Fn() -> i64,
    pause: impl Fn(Duration) -> bool,
) -> io::Result<()> {
    let period = device.period_ns.max(1);
    let (mut samples, mut skipped, mut busy) = (0, 0, 0);
    let mut due = clock();
    write(out, &PowerLine::Device(device))?;
    loop {
        let began = clock();
        let sample = look();
        busy += clock() - began;
        write(out, &PowerLine::Sample(sample))?;
        samples += 1;
        if samples % FLUSH == 0 {
            out.flush()?;
        }
        due += period;
        let late = clock() - due;
        if late > 0 {
            // What was missed is not made up for: the pass has the device, we only watch.
            let missed = late / period + 1;
            skipped += missed.unsigned_abs();
            due += missed * period;
        }
        if !pause(Duration::from_nanos((due - clock()).max(0).unsigned_abs())) {
            break;
        }
    }
    write(out, &PowerLine::End(SamplerEnd { t_ns: clock(), samples, skipped, busy_ns: Some(busy) }))?;
    out.flush()
}

fn write(out: &mut impl Write, line: &PowerLine) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::trace::power::PowerSource;

    /// The lines of a recording whose looks take so many milliseconds each.
    fn recorded(looks_ms: &[i64]) -> Vec<PowerLine> {
        let clock = Cell::new(0);
        let mut looks = looks_ms.iter();
        let left = Cell::new(looks_ms.len());
        let device = SampledDevice {
            schema: 1,
            uuid: "MIG-1".into(),
            board_uuid: "GPU-1".into(),
            name: "g".into(),
            period_ns: 20_000_000,
            power_source: PowerSource::Instant,
            power_limit_w: None,
            max_sm_mhz: None,
            max_memory_mhz: None,
        };
        let mut look = || {
            let t_ns = clock.get();
            clock.set(t_ns + looks.next().unwrap() * 1_000_000);
            left.set(left.get() - 1);
            PowerSample { t_ns, ..PowerSample::default() }
        };
        let pause = |time: Duration| {
            clock.set(clock.get() + i64::try_from(time.as_nanos()).unwrap());
            left.get() > 0
        };
        let mut out = Vec::new();
        record(&mut out, device, &mut look, || clock.get(), pause).unwrap();
        String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn times_ms(lines: &[PowerLine]) -> Vec<i64> {
        let time = |line: &PowerLine| if let PowerLine::Sample(it) = line { Some(it.t_ns / 1_000_000) } else { None };
        lines.iter().filter_map(time).collect()
    }

    #[test]
    fn looks_keep_their_pace_whatever_each_takes() {
        let lines = recorded(&[1, 19, 0, 3]);
        assert_eq!(times_ms(&lines), [0, 20, 40, 60]);
        assert!(matches!(&lines[0], PowerLine::Device(device) if device.uuid == "MIG-1" && device.board_uuid == "GPU-1"));
        assert!(matches!(
            lines.last(),
            Some(PowerLine::End(SamplerEnd { samples: 4, skipped: 0, busy_ns: Some(23_000_000), .. }))
        ));
    }

    #[test]
    fn a_look_that_takes_too_long_costs_the_looks_that_it_covered() {
        let lines = recorded(&[1, 50, 1]);
        assert_eq!(times_ms(&lines), [0, 20, 80]);
        assert!(matches!(lines.last(), Some(PowerLine::End(SamplerEnd { samples: 3, skipped: 2, .. }))));
    }

    #[tokio::test]
    async fn a_device_that_is_not_there_is_a_finding_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nvml.jsonl");
        let finding = Sampler::start("GPU-00000000-0000-0000-0000-000000000000", path.clone(), 50).stop().await.unwrap();
        assert!(finding.id == "power_not_sampled" && finding.evidence.contains_key("reason") && finding.advice.is_some());
        assert!(!path.exists());
    }
}

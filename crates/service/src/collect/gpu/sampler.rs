//! Samplers of the GPUs of a pass: power, clocks and limits, many times per second, each into a
//! file of the run.
//!
//! Each runs on its own thread, so that neither the runtime nor the pass waits for the driver. A
//! failed sampler is a finding and never fails a run.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::mpsc::{self, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::Duration,
};

use llmprof_core::{
    domain::{
        finding::{Finding, catalogue},
        profiling::NvmlSettings,
    },
    layout,
    trace::power::{PowerLine, PowerSample, SampledDevice, SamplerEnd},
};

use super::nvml::{self, NoGpu, now_ns};
use crate::runtime;

/// Samples between two flushes, so that a crash loses about one second.
const FLUSH: u64 = 50;

#[derive(Debug, thiserror::Error)]
enum SamplerError {
    #[error(transparent)]
    NoGpu(#[from] NoGpu),
    #[error("cannot write the samples")]
    Write(#[from] io::Error),
    #[error("the sampler crashed")]
    Crashed,
}

/// Samplers of all GPUs of a pass.
#[derive(Debug, Default)]
pub struct Samplers(Vec<Sampler>);

impl Samplers {
    /// Starts to sample each of `gpus` into the folder `dir` of a run; none if the settings forbid
    /// it, or the first has no UUID.
    pub fn start(gpus: &[String], dir: &Path, nvml: &NvmlSettings) -> Self {
        let has_uuid = |gpu: &str| gpu.starts_with("GPU-") || gpu.starts_with("MIG-");
        if !nvml.enabled || !gpus.first().is_some_and(|gpu| has_uuid(gpu)) {
            return Self::default();
        }
        let count = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
        let sampler = |(number, gpu): (u32, &String)| {
            let file = if number == 1 { layout::NVML.to_owned() } else { layout::nvml_of(number) };
            has_uuid(gpu).then(|| Sampler::start((gpu.as_str(), count), dir.join(file), nvml.hz))
        };
        Self((1..).zip(gpus).filter_map(sampler).collect())
    }

    /// Stops the sampling; returns a finding for each GPU without samples.
    pub async fn stop(self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for sampler in self.0 {
            findings.extend(sampler.stop().await);
        }
        findings
    }
}

/// Thread that samples until it is stopped or dropped.
#[derive(Debug)]
struct Sampler {
    uuid: String,
    stop: mpsc::Sender<()>,
    thread: Option<JoinHandle<Result<(), SamplerError>>>,
}

impl Sampler {
    /// Starts to sample the device `uuid`, one of `gpus`, into `path`, `hz` times per second.
    /// Devices update their readings every 10 to 100 ms.
    fn start((uuid, gpus): (&str, u32), path: PathBuf, hz: u32) -> Self {
        let period_ns = 1_000_000_000 / i64::from(hz.max(1));
        let (stop, stopped) = mpsc::channel();
        let device = uuid.to_owned();
        let work = move || {
            // A message or a closed channel ends it.
            let pause = |time| matches!(stopped.recv_timeout(time), Err(RecvTimeoutError::Timeout));
            nvml::watch(&device, period_ns, |device, read| {
                let device = SampledDevice { gpus, ..device };
                let mut out = BufWriter::new(File::create(&path)?);
                record(&mut out, device, read, now_ns, pause)?;
                Ok(())
            })?
        };
        // Without a thread there are no samples, and stopping reports that.
        let thread = thread::Builder::new().name("sample-gpu".into()).spawn(work).ok();
        Self { uuid: uuid.to_owned(), stop, thread }
    }

    /// Stops the sampling; returns a finding if there are no samples.
    async fn stop(self) -> Option<Finding> {
        let Self { uuid, stop, thread } = self;
        drop(stop);
        let joined = runtime::blocking(move || thread.map(JoinHandle::join)).await;
        let ended = match joined {
            Ok(Some(Ok(ended))) => ended,
            _ => Err(SamplerError::Crashed),
        };
        ended.err().map(|error| not_sampled(&uuid, &error))
    }
}

fn not_sampled(uuid: &str, error: &SamplerError) -> Finding {
    let message = "Power and clocks of the GPU were not sampled.";
    Finding::new(catalogue::POWER_NOT_SAMPLED, message)
        .with("GPU", uuid)
        .with("reason", llmprof_core::chain(error))
        .advise(
            "Check nvidia-smi -L: NVIDIA's driver installs libnvidia-ml.so.1 and lists the GPU by \
             its UUID.",
        )
}

/// Writes a reading every period of the device until `pause` returns false.
fn record(
    out: &mut impl Write,
    device: SampledDevice,
    read: &mut dyn FnMut() -> PowerSample,
    clock: impl Fn() -> i64,
    pause: impl Fn(Duration) -> bool,
) -> io::Result<()> {
    let period = device.period_ns.max(1);
    let (mut samples, mut skipped, mut busy) = (0, 0, 0);
    let mut due = clock();
    write(out, &PowerLine::Device(device))?;
    loop {
        let started = clock();
        let sample = read();
        busy += clock() - started;
        write(out, &PowerLine::Sample(sample))?;
        samples += 1;
        if samples % FLUSH == 0 {
            out.flush()?;
        }
        due += period;
        let late = clock() - due;
        if late > 0 {
            // Missed readings are skipped, not made up for: the pass has priority.
            let missed = late / period + 1;
            skipped += missed.unsigned_abs();
            due += missed * period;
        }
        if !pause(Duration::from_nanos((due - clock()).max(0).unsigned_abs())) {
            break;
        }
    }
    write(
        out,
        &PowerLine::End(SamplerEnd { t_ns: clock(), samples, skipped, busy_ns: Some(busy) }),
    )?;
    out.flush()
}

fn write(out: &mut impl Write, line: &PowerLine) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use llmprof_core::trace::power::PowerSource;

    use super::*;

    /// Lines of a recording whose readings take these times, milliseconds.
    fn recorded(reads_ms: &[i64]) -> Vec<PowerLine> {
        let clock = Cell::new(0);
        let mut reads = reads_ms.iter();
        let left = Cell::new(reads_ms.len());
        let device = SampledDevice {
            schema: 1,
            uuid: "MIG-1".into(),
            board_uuid: "GPU-1".into(),
            name: "g".into(),
            gpus: 1,
            period_ns: 20_000_000,
            power_source: PowerSource::Instant,
            power_limit_w: None,
            max_sm_mhz: None,
            max_memory_mhz: None,
        };
        let mut read = || {
            let t_ns = clock.get();
            clock.set(t_ns + reads.next().unwrap() * 1_000_000);
            left.set(left.get() - 1);
            PowerSample { t_ns, ..PowerSample::default() }
        };
        let pause = |time: Duration| {
            clock.set(clock.get() + i64::try_from(time.as_nanos()).unwrap());
            left.get() > 0
        };
        let mut out = Vec::new();
        record(&mut out, device, &mut read, || clock.get(), pause).unwrap();
        String::from_utf8(out)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn times_ms(lines: &[PowerLine]) -> Vec<i64> {
        let time = |line: &PowerLine| {
            if let PowerLine::Sample(it) = line { Some(it.t_ns / 1_000_000) } else { None }
        };
        lines.iter().filter_map(time).collect()
    }

    #[test]
    fn readings_keep_their_period() {
        let lines = recorded(&[1, 19, 0, 3]);
        assert_eq!(times_ms(&lines), [0, 20, 40, 60]);
        assert!(matches!(&lines[0], PowerLine::Device(device)
                if device.uuid == "MIG-1" && device.board_uuid == "GPU-1"));
        assert!(matches!(
            lines.last(),
            Some(PowerLine::End(SamplerEnd {
                samples: 4,
                skipped: 0,
                busy_ns: Some(23_000_000),
                ..
            }))
        ));
    }

    #[test]
    fn a_slow_reading_skips_the_readings_that_it_covers() {
        let lines = recorded(&[1, 50, 1]);
        assert_eq!(times_ms(&lines), [0, 20, 80]);
        assert!(matches!(
            lines.last(),
            Some(PowerLine::End(SamplerEnd { samples: 3, skipped: 2, .. }))
        ));
    }

    #[tokio::test]
    async fn each_missing_device_is_a_finding_without_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let missing = |number: u32| format!("GPU-00000000-0000-0000-0000-00000000000{number}");
        let gpus = [missing(0), missing(1)];
        let nvml = NvmlSettings { enabled: true, hz: 50, steady_ms: 0 };
        let findings = Samplers::start(&gpus, dir.path(), &nvml).stop().await;
        assert_eq!(findings.len(), 2);
        for (finding, gpu) in findings.iter().zip(&gpus) {
            assert!(
                finding.id == "power_not_sampled"
                    && finding.evidence["GPU"] == *gpu
                    && finding.evidence.contains_key("reason")
                    && finding.advice.is_some()
            );
        }
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
        let off = NvmlSettings { enabled: false, ..nvml };
        assert!(Samplers::start(&gpus, dir.path(), &off).0.is_empty());
        assert!(Samplers::start(&["0".to_owned()], dir.path(), &nvml).0.is_empty());
    }
}

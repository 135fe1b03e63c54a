//! A host for tests of a job's steps: shell scripts in the place of the tools write real captures.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use llmprof_core::{
    domain::{
        ids::{FolderId, RunId},
        mode::Mode,
        profiling::Profiling,
        runner::{self, RunnerRequest},
        state::{Step, StepState},
        subject::RunSpec,
    },
    layout,
};
use tokio_util::sync::CancellationToken;

use super::{
    counters::{CounterTarget, CountersStep},
    gemm_log::{GemmLogStep, GemmLogTarget},
    gpu_metrics::GpuMetricsStep,
    timeline::{TimelineStep, TimelineTarget},
    *,
};
use crate::config::{self, Config, RunLimits};

pub(super) const RUNNER: &str = r#"
while [ $# -gt 0 ]; do case $1 in --out) out=$2; shift;; esac; shift; done
cat "$HERE/events.jsonl" > "$out/events.jsonl"
[ -z "$CUBLAS_LOGDEST_DBG" ] || cat "$HERE/cublas.log" > "$CUBLAS_LOGDEST_DBG""#;
pub(super) const NSYS: &str = r#"
case $1 in
profile) while [ "$1" != --output ]; do shift; done; stem=$2; shift 2; "$@" || exit $?
    echo report > "$stem.nsys-rep";;
export) while [ "$1" != --output ]; do shift; done
    case $2 in *gpu_metrics*) cat "$HERE/sampled.sqlite" > "$2";; *) cat "$HERE/run.sqlite" > "$2";;
    esac;;
esac"#;
pub(super) const NCU: &str = r#"
case $1 in
--query-metrics) echo 'dram__bytes_read  Counter  byte';;
--import) cat "$HERE/raw.csv";;
*) while [ "$1" != --export ]; do shift; done; report=$2; shift 2; "$@" || exit $?
    echo report > "$report";;
esac"#;

const START: &str = concat!(
    r#"{"kind":"start","schema":1,"t_ns":1,"unix_ns":2,"pid":3,"model":"m","#,
    r#""weights":"synthetic","parameters":4,"weight_bytes":16,"dtype":"f32","device":"cuda:0","#,
    r#""threads":2,"prompt_tokens":5,"image_tokens":0,"images":[],"decode_graph":false,"#,
    r#""load_ns":6}"#
);

/// The events of a runner that generated these tokens.
pub(super) fn events(tokens: &str) -> String {
    let output = format!(
        r#"{{"kind":"output","warmup":false,"repeat":0,"tokens":[{tokens}],"logits_sha256":"ab"}}"#
    );
    format!("{START}\n{output}\n{}\n", r#"{"kind":"end","t_ns":10,"peak_rss_bytes":1}"#)
}

/// Writes a program by a shell: a file that a fork holds open for writing cannot be executed.
fn write_program(folder: &Path, name: &str, lines: &str) -> PathBuf {
    let path = folder.join(name);
    let lines = format!("HERE='{}'\n{lines}", folder.display());
    let write = r#"rm -f "$1" && printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod 755 "$1""#;
    assert!(
        std::process::Command::new("sh")
            .args(["-c", write, "sh"])
            .arg(&path)
            .arg(lines)
            .status()
            .unwrap()
            .success()
    );
    path
}

/// A host with scripts for tools, and the files that they write.
pub(super) struct Bench {
    pub dir: tempfile::TempDir,
    pub limits: RunLimits,
    pub host: JobHost,
}

impl Bench {
    pub fn new(ncu: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, fixture) in [
            ("run.sqlite", "hf-llama-e2e.sqlite"),
            ("raw.csv", "hf-llama-decode.ncu-raw.csv"),
            ("cublas.log", "candle-probe.cublas.log"),
        ] {
            let packed = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
                .join("../../tests/fixtures/captures")
                .join(format!("{fixture}.zst"));
            fs::write(
                dir.path().join(name),
                zstd::stream::decode_all(fs::File::open(packed).unwrap()).unwrap(),
            )
            .unwrap();
        }
        fs::write(dir.path().join("events.jsonl"), events("7,8")).unwrap();
        let program = |name: &str, lines: &str| write_program(dir.path(), name, lines);
        let collector = Collector {
            nsys: Some(program("nsys", NSYS)),
            ncu: Some(program("ncu", ncu)),
            isolate: false,
            ..Collector::new(program("runner", RUNNER))
        };
        let host = JobHost {
            collector: Arc::new(collector),
            devices: Arc::new(config::devices().unwrap()),
        };
        let limits = Config::default().limits;
        Self { dir, limits, host }
    }

    /// The job of a deep run on a GPU.
    pub fn spec(&self) -> JobSpec {
        let model = config::models(None).unwrap().models["deepseek-ocr-tiny"].clone();
        let profiling = Profiling::bundled(&Mode::DEEP).unwrap();
        JobSpec {
            id: RunId::now(),
            folder: FolderId::default(),
            attempt: 1,
            spec: RunSpec::tiny(Mode::DEEP, 0, &[]).on_device("cuda:0"),
            subject: JobSubject::Model { model, profiling },
            inputs: self.dir.path().to_owned(),
            devices: vec![],
            gpus: 0,
            tools: Config::default().tools,
            limits: self.limits.clone(),
            grace_s: 10,
            device: None,
            state: None,
            other_gpus: vec![],
            session: None,
        }
    }

    /// Executes the steps after the unprofiled pass; returns steps and findings. `limit`: of ncu.
    pub async fn deep(&self, limit: Duration) -> (Vec<StepRecord>, Vec<Finding>) {
        let (stopped, steps, findings) = self.deep_until(limit, &CancellationToken::new()).await;
        stopped.unwrap();
        (steps, findings)
    }

    /// Executes the step of sampled metrics at these rates.
    pub async fn sampled(
        &self,
        rates_hz: &[u32],
        limit: Duration,
    ) -> (Vec<StepRecord>, Vec<Finding>) {
        let (_, steps, findings) =
            self.sampled_until(rates_hz, limit, &CancellationToken::new()).await;
        (steps, findings)
    }

    async fn sampled_until(
        &self,
        rates_hz: &[u32],
        limit: Duration,
        stop: &CancellationToken,
    ) -> (Result<(), StoppedBy>, Vec<StepRecord>, Vec<Finding>) {
        let sampled = self.dir.path().join("sampled.sqlite");
        if !sampled.exists() {
            samples(&sampled, "");
        }
        let (spec, dir, device) = (self.spec(), self.prepared(), Device::unknown("cuda:0"));
        let journal = Journal::open(&dir).unwrap();
        let mut job =
            RunningJob::new(&spec, &dir, &device, &self.host, stop, (journal, Vec::new()));
        job.deadline = Instant::now() + limit;
        let mut settings = Profiling::bundled(&Mode::DEEP).unwrap();
        settings.gpu_metrics.rates_hz = rates_hz.to_vec();
        let request = request();
        let target = TimelineTarget::Runner(&request);
        let step = GpuMetricsStep { target, settings: &settings };
        let stopped = job.run_step(step).await.map(|_| ());
        (stopped, job.journal.records().to_vec(), job.findings)
    }

    /// The run's folder with the events of an unprofiled pass.
    fn prepared(&self) -> PathBuf {
        let dir = self.run_dir();
        fs::create_dir_all(dir.join(layout::BASELINE)).unwrap();
        fs::write(dir.join(layout::BASELINE).join(runner::EVENTS), events("7,8,9")).unwrap();
        dir
    }

    /// As [`Bench::deep`], until `stop`.
    pub async fn deep_until(
        &self,
        limit: Duration,
        stop: &CancellationToken,
    ) -> (Result<(), StoppedBy>, Vec<StepRecord>, Vec<Finding>) {
        let (spec, dir, device) = (self.spec(), self.prepared(), Device::unknown("cuda:0"));
        let journal = Journal::open(&dir).unwrap();
        let mut job =
            RunningJob::new(&spec, &dir, &device, &self.host, stop, (journal, Vec::new()));
        let stopped = deep_passes(&mut job, limit).await;
        (stopped, job.journal.records().to_vec(), job.findings)
    }

    /// Replaces a program.
    pub fn replace(&mut self, name: &str, lines: &str) {
        write_program(self.dir.path(), name, lines);
    }

    /// A token that is cancelled when a program writes to `up`.
    fn cancelled_when_up(&self) -> (CancellationToken, tokio::task::JoinHandle<io::Result<()>>) {
        let up = self.dir.path().join("up");
        nix::unistd::mkfifo(&up, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let stop = CancellationToken::new();
        let cancel = stop.clone();
        (stop, tokio::task::spawn_blocking(move || fs::read(up).map(|_| cancel.cancel())))
    }

    pub fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }
}

/// The passes of a deep run after the unprofiled one.
async fn deep_passes(job: &mut RunningJob<'_>, limit: Duration) -> Result<(), StoppedBy> {
    let (request, settings) = (request(), &Profiling::bundled(&Mode::DEEP).unwrap());
    job.deadline = Instant::now() + LIMIT;
    let target = TimelineTarget::Runner(&request);
    let timeline = job.run_step(TimelineStep { target, settings }).await?;
    let plan = &timeline.unwrap_or_default();
    job.deadline = Instant::now() + limit;
    let target = CounterTarget::Runner(&request);
    job.run_step(CountersStep { target, plan, settings }).await?;
    job.deadline = Instant::now() + LIMIT;
    let target = GemmLogTarget::Runner(&request);
    job.run_step(GemmLogStep { target, settings }).await.map(|_| ())
}

pub(super) const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn request() -> RunnerRequest {
    let model = config::models(None).unwrap().models["deepseek-ocr-tiny"].clone();
    RunnerRequest {
        dtype: model.dtype,
        model,
        weights: None,
        seed: 0,
        prompt: String::new(),
        images: vec![],
        further_samples: vec![],
        batch: 1,
        device: "cuda:0".into(),
        warmup: 1,
        repeats: 1,
        max_new_tokens: 8,
        cache_tokens: None,
        decode_graph: true,
        steady_ms: 0,
        ceilings: true,
        gpu: None,
        target: None,
        prompt_tokens: None,
        extracted: false,
        cold_cache: false,
        operators: true,
        operator_ranges: true,
        predictions: true,
        memory: false,
    }
}

/// A tool that writes to `up` and hangs when the condition is true.
fn hang(tool: &str, when: &str) -> String {
    format!("{when} && {{ echo up > \"$HERE/up\"; exec sleep 600; }}\n{tool}")
}

/// Name, state and exit code of each step.
pub(super) fn results(steps: &[StepRecord]) -> Vec<(Step, StepState, Option<i32>)> {
    steps.iter().map(|it| (it.step, it.state, it.exit_code)).collect()
}

pub(super) fn ids(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|it| it.id.as_str()).collect()
}

/// Writes the export with samples next to `run.sqlite` unless it exists, and alters it by `sql`.
pub(super) fn samples(path: &Path, sql: &str) {
    let is_new = !path.exists();
    if is_new {
        fs::copy(path.with_file_name("run.sqlite"), path).unwrap();
    }
    let export = rusqlite::Connection::open(path).unwrap();
    if is_new {
        export.execute_batch(include_str!("../../../../tests/fixtures/gpu-metrics.sql")).unwrap();
    }
    export.execute_batch(sql).unwrap();
}

/// A failure fixture, as an argument of a shell's `cat`.
pub(super) fn failure(name: &str) -> String {
    format!("'{}/../../tests/fixtures/failures/{name}'", env!("CARGO_MANIFEST_DIR"))
}

#[tokio::test]
async fn a_run_stopped_during_a_pass_is_stopped_in_that_step_and_executes_no_other() {
    for (step, program, lines) in [
        (Step::Nsys, "nsys", hang(NSYS, "[ \"$1\" = profile ]")),
        (Step::Ncu, "ncu", hang(NCU, "[ \"$1\" != --query-metrics ]")),
        (Step::GemmLog, "runner", hang(RUNNER, "[ -n \"$CUBLAS_LOGDEST_DBG\" ]")),
    ] {
        let mut bench = Bench::new(NCU);
        bench.replace(program, &lines);
        let (stop, cancel) = bench.cancelled_when_up();
        let (stopped, steps, _) = bench.deep_until(LIMIT, &stop).await;
        cancel.await.unwrap().unwrap();
        assert!(stopped.is_err(), "{step}: {steps:?}");
        let last = steps.last().unwrap();
        assert_eq!((last.step, last.state), (step, StepState::Cancelled), "{last:?}");
        let message = last.message.as_deref().unwrap();
        assert!(message.starts_with("stopped before its end: "), "no line of a log: {message}");
    }
}

#[tokio::test]
async fn a_run_stopped_while_it_samples_starts_no_other_rate() {
    let mut bench = Bench::new(NCU);
    bench.replace("nsys", &hang(NSYS, "[ \"$1\" = profile ]"));
    let (stop, cancel) = bench.cancelled_when_up();
    let (stopped, steps, _) = bench.sampled_until(&[10_000, 20_000], LIMIT, &stop).await;
    cancel.await.unwrap().unwrap();
    assert!(stopped.is_err() && steps.last().unwrap().step == Step::GpuMetrics, "{steps:?}");
    assert!(!bench.run_dir().join(layout::metrics_pass(20_000)).exists());
}

#[tokio::test]
async fn a_run_stopped_between_two_steps_starts_no_other() {
    let (bench, stop) = (Bench::new(NCU), CancellationToken::new());
    stop.cancel();
    let (stopped, steps, _) = bench.deep_until(LIMIT, &stop).await;
    assert!(stopped.is_err() && steps.is_empty(), "{steps:?}");
}

#[tokio::test]
async fn a_job_that_is_stopped_while_it_seals_ends_without_a_manifest() {
    let mut bench = Bench::new(NCU);
    bench.limits.run_bytes = u64::MAX;
    let (spec, dir, device) = (bench.spec(), bench.prepared(), Device::unknown("cuda:0"));
    fs::create_dir_all(dir.join("nsys/out")).unwrap();
    fs::File::create(dir.join("nsys/out/map")).unwrap().set_len(50 << 30).unwrap();
    let (journal, stop) = (Journal::open(&dir).unwrap(), CancellationToken::new());
    let job = RunningJob::new(&spec, &dir, &device, &bench.host, &stop, (journal, Vec::new()));
    let (outcome, ()) = tokio::join!(job.seal(None), async { stop.cancel() });
    assert_eq!((outcome.state, outcome.artifacts), (RunState::Failed, vec![]));
    let message = outcome.message.unwrap();
    assert_eq!(message, "cannot seal the run's folder: stopped before its end");
    assert!(!dir.join(layout::MANIFEST).exists());
}

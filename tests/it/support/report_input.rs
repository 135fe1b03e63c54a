//! A small saved run, and what a report of it is rendered from.

use std::path::Path;

use llmprof_analyze::{Analysis, model_work::KnownModel, parse};
use llmprof_core::{
    domain::{
        device::Device,
        finding::{Finding, catalogue},
        mode::Mode,
        model::ModelSpec,
        run_files::InputFile,
        state::{RunState, Step, StepRecord, StepState},
        subject::{Common, ModelSubject, Passes, RunSpec, Subject, Workload},
    },
    trace::{
        Trace,
        command::CommandTrace,
        counter::{CounterValues, LaunchCounters, Stall},
        environment::{Environment, Gpu},
        event::Event,
        gemm::{GemmCall, GemmLog, GemmShape, GemmTrace},
        gpu_metrics::{DeviceSamples, GpuMetric, GpuSamples},
        kernel::Kernel,
        range::Range,
        requests::{LoadPass, RequestLoad, RequestRecord},
        timeline::{ApiCall, Timeline},
    },
};
use llmprof_report::RunFacts;

/// Everything that a report is rendered from.
pub struct ReportInput {
    pub spec: RunSpec,
    pub model: ModelSpec,
    pub environment: Environment,
    pub steps: Vec<StepRecord>,
    pub findings: Vec<Finding>,
    pub inputs: Vec<InputFile>,
    pub trace: Trace,
}

/// Settings of every run with a label.
fn nightly() -> Common {
    Common { labels: vec!["nightly".into()], timeout_s: 1800, ..Common::default() }
}

/// The host of the saved run.
fn host() -> Environment {
    Environment {
        hostname: Some("host-1".into()),
        os: Some("Debian GNU/Linux 12".into()),
        kernel: Some("6.1.0".into()),
        cpu: Some("An x86-64 processor".into()),
        cpus: Some(2),
        memory_bytes: Some(8_000_000_000),
        llmprof: "0.1.0".into(),
        ..Environment::default()
    }
}

impl ReportInput {
    /// The saved run on a CPU, without nsys.
    pub fn saved() -> Self {
        let events = include_str!("../../fixtures/events-tiny.jsonl");
        let mut model: ModelSpec =
            toml::from_str(include_str!("../../../conf/models/deepseek-ocr-tiny.toml")).unwrap();
        model.name = "deepseek-ocr-tiny".into();
        let step = |step, state, message: Option<&str>| StepRecord {
            step,
            state,
            started_at: "2026-01-02T03:04:05Z".into(),
            ended_at: Some("2026-01-02T03:04:07Z".into()),
            exit_code: None,
            message: message.map(str::to_owned),
        };
        let missing = "nsys is not installed: install the package nsight-systems \
                       (scripts/install-nsight.sh does)";
        Self {
            spec: RunSpec {
                subject: Subject::Model(ModelSubject {
                    workload: Workload {
                        model: model.name.clone(),
                        inputs_manifest: "inputs.yaml".into(),
                        max_new_tokens: 8,
                        batch: 1,
                        seed: 0,
                        dtype: None,
                    },
                    passes: Passes {
                        mode: Mode::LIGHT,
                        repeats: 3,
                        warmup: 1,
                        device: "auto".into(),
                        profiling: None,
                    },
                }),
                common: nightly(),
            },
            model,
            environment: host(),
            steps: vec![
                step(Step::Preflight, StepState::Succeeded, None),
                step(Step::Baseline, StepState::Succeeded, None),
                step(Step::Nsys, StepState::Skipped, Some(missing)),
                step(Step::Analyze, StepState::Succeeded, None),
            ],
            findings: vec![
                Finding::new(catalogue::NSYS_MISSING, "nsys was not found.")
                    .advise("Install nsight-systems."),
            ],
            inputs: vec![InputFile {
                path: "page.png".into(),
                bytes: 123_456,
                sha256: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08".into(),
                width: 1240,
                height: 1754,
            }],
            trace: Trace {
                baseline: events.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
                ..Trace::default()
            },
        }
    }

    /// The saved run as if on a GPU, with a capture of two kernels per stage.
    pub fn with_kernels() -> Self {
        let mut run = Self::saved();
        let gpu = Gpu {
            index: 0,
            uuid: "GPU-0".into(),
            name: "NVIDIA H200".into(),
            memory_bytes: 150_000_000_000,
            ..Gpu::default()
        };
        let uuid = Some(gpu.uuid.clone());
        run.environment.device =
            Some(Device { uuid, product: Some(gpu.name.clone()), ..Device::unknown("cuda:0") });
        run.environment.gpus.push(gpu);
        for event in &mut run.trace.baseline {
            if let Event::Start(start) = event {
                start.device = "cuda:0".into();
            }
        }
        let range = |name: &str, start_ns, end_ns| {
            Range::new(("LLM", name), (start_ns, Some(end_ns)), (1, true))
        };
        let launches = [(1, 0, 10, 900), (2, 1, 20, 400), (3, 0, 110, 150), (4, 0, 120, 150)];
        let kernel = |(correlation_id, name, at, long)| Kernel {
            name,
            full_name: name,
            device: 0,
            stream: 7,
            start_ns: at * 1_000,
            end_ns: (at + long) * 1_000,
            global_pid: 0,
            correlation_id,
            grid: [1; 3],
            block: [128, 1, 1],
            registers: 32,
            shared_memory: 0,
            graph_node: None,
        };
        let call = |&(correlation_id, _, at, _): &(i64, u32, i64, i64)| ApiCall {
            name: 2,
            start_ns: at,
            end_ns: at + 2,
            global_tid: 1,
            correlation_id,
        };
        run.trace.timeline = Some(Timeline {
            strings: ["gemm_bf16<128, 64>", "softmax|warp", "cudaLaunchKernel_v7000"]
                .map(str::to_owned)
                .to_vec(),
            ranges: vec![range("prefill", 0, 100), range("decode_all", 100, 200)],
            cuda_calls: launches.iter().map(call).collect(),
            kernels: launches.into_iter().map(kernel).collect(),
            ..Timeline::default()
        });
        run.trace.counters = [0, 1].map(|at| counted("gemm_bf16", at)).to_vec();
        run.trace.gemms = Some(GemmTrace {
            prefill: products(&[512, 512]),
            all: products(&[512, 512, 1, 1]),
            decode_steps: 2,
            ..GemmTrace::default()
        });
        run.trace.traced = run.trace.baseline.clone();
        run.steps[2].state = StepState::Succeeded;
        run.steps[2].message = None;
        run.findings.clear();
        run
    }

    /// The run on a GPU, forty times as slow, with samples of a synthetic device.
    pub fn with_power() -> Self {
        let mut run = Self::with_kernels();
        let slow = |t: &mut i64| *t = 1_000_000_000 + (*t - 1_000_000_000) * 40;
        for event in &mut run.trace.baseline {
            match event {
                Event::Range(it) => [&mut it.start_ns, &mut it.end_ns].into_iter().for_each(slow),
                Event::Op(it) => [&mut it.start_ns, &mut it.end_ns].into_iter().for_each(slow),
                _ => {}
            }
        }
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/nvml-synthetic.jsonl");
        let (log, findings) = parse::power::read(&path).unwrap();
        assert_eq!(findings, []);
        run.trace.power = log;
        run
    }

    /// The same with a capture that samples the GPU's metrics every 10 microseconds.
    pub fn with_samples() -> Self {
        let mut run = Self::with_power();
        let mut capture = run.trace.timeline.clone().unwrap();
        // Samples with work of both stages count for neither.
        capture.kernels = capture.kernels.map(|_, kernel| {
            let later = if kernel.correlation_id > 2 { 2_000_000 } else { 0 };
            (kernel.start_ns, kernel.end_ns) = (kernel.start_ns + later, kernel.end_ns + later);
        });
        let (first, last) = (
            capture.kernels.iter().map(|it| it.start_ns).min().unwrap(),
            capture.kernels.iter().map(|it| it.end_ns).max().unwrap(),
        );
        let mut device = DeviceSamples::new(0);
        for at in (first - 100_000..last + 100_000).step_by(10_000) {
            device.push(at, GpuMetric::SmsActive, 60);
            device.push(at, GpuMetric::DramRead, 40);
        }
        device.finish();
        let (rate_hz, devices) = (Some(100_000), vec![device]);
        capture.samples = Some(GpuSamples { rate_hz, devices, ..GpuSamples::default() });
        run.trace.sampled = vec![capture];
        run
    }

    /// The same with a collective operation and a load, so that every table has its schema.
    pub fn with_all_tables() -> Self {
        let mut run = Self::with_samples();
        let capture = run.trace.timeline.as_mut().unwrap();
        let kernel = capture.kernels.get(0);
        for name in [kernel.name, kernel.full_name] {
            capture.strings[name as usize] = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL".into();
        }
        let request = RequestRecord { ended_ns: 9, requested_tokens: 1, ..Default::default() };
        let load = RequestLoad {
            pass: LoadPass::Unprofiled,
            repeat: 0,
            header: None,
            requests: vec![request],
        };
        run.trace.command = Some(CommandTrace { loads: vec![load], ..Default::default() });
        run
    }

    pub fn analysis(&self) -> Analysis {
        let devices = llmprof_core::domain::device_peaks::Devices::from_toml(include_str!(
            "../../../conf/devices.toml"
        ))
        .unwrap();
        let peaks = self.environment.gpus.first().and_then(|gpu| devices.find(&gpu.name));
        llmprof_analyze::analyze(&self.trace, Some(KnownModel::Runner(&self.model)), peaks)
    }

    pub fn files(&self) -> Vec<(&'static str, String)> {
        let state =
            if self.trace.timeline.is_some() { RunState::Succeeded } else { RunState::Partial };
        let facts = RunFacts {
            id: "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10".parse().unwrap(),
            spec: &self.spec,
            model: Some(&self.model),
            environment: &self.environment,
            steps: &self.steps,
            findings: &self.findings,
            inputs: &self.inputs,
            inputs_sha256: None,
            command: None,
            part: &[],
            state,
        };
        llmprof_report::render(&facts, &self.trace, &self.analysis())
    }

    pub fn file(&self, name: &str) -> String {
        self.files().into_iter().find(|(file, _)| *file == name).unwrap().1
    }
}

/// A launch in prefill that ncu profiled.
fn counted(kernel: &str, id: u64) -> LaunchCounters {
    LaunchCounters {
        id,
        stage: "prefill".into(),
        all_stages: false,
        ranges: vec![],
        kernel: kernel.into(),
        full_name: kernel.into(),
        signature: String::new(),
        grid: Some([1; 3]),
        block: Some([128, 1, 1]),
        values: CounterValues {
            registers: Some(168),
            duration_ns: Some(1_000_000.0 + 2_000.0 * id as f64),
            sm_pct: Some(61.5),
            memory_pct: Some(40.0),
            dram_pct: Some(35.25),
            l2_hit_pct: Some(80.0),
            achieved_occupancy_pct: Some(14.0),
            theoretical_occupancy_pct: Some(18.75),
            tensor_pct: Some(55.0),
            dram_bytes: Some(4e6),
            flops: [("fp32".to_owned(), 1e6), ("tensor_bf16".to_owned(), 8e8)].into(),
            flops_complete: true,
            stalls: vec![Stall {
                reason: "long_scoreboard".into(),
                warps_per_issue: 4.5,
                share_pct: 52.0,
            }],
            ..CounterValues::default()
        },
    }
}

/// A log of GEMMs with these numbers of rows.
fn products(rows: &[u64]) -> GemmLog {
    let bf16 = || "bf16".to_owned();
    let call = |&m: &u64| GemmCall {
        shape: GemmShape {
            m,
            n: 1280,
            k: 640,
            batch: 1,
            left_type: bf16(),
            right_type: bf16(),
            out_type: bf16(),
            left_transposed: false,
            right_transposed: true,
            compute: "32f".into(),
        },
        function: "cublasGemmEx".into(),
        algorithm: (m == 1).then(|| "algorithm 66, tile 64x8".into()),
    };
    GemmLog { calls: rows.iter().map(call).collect(), ..GemmLog::default() }
}

/// `finding` with an id that no catalogue has, as read from a changed file.
pub fn with_foreign_id(finding: &Finding, id: &str) -> Finding {
    let mut stored = serde_json::to_value(finding).unwrap();
    stored["id"] = id.into();
    serde_json::from_value(stored).unwrap()
}

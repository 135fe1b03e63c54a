//! The reports of a small saved run: as blessed, whole, and harmless whatever the run was called.
//!
//! `LLMPROF_BLESS=1 cargo test --test it report` writes the golden files anew: read the difference before committing it.

use std::{fs, path::Path};

use llmprof::{
    analyze::{self, Analysis},
    artifact::layout,
    model::ModelSpec,
    parse,
    report::{self, RunFacts, profile::LLMProfileReport},
    run::{
        Common, Finding, InputFile, Mode, RunSpec, RunState, Severity, Step, StepRecord, StepState, Subject,
        subject::{ModelSubject, Passes, Workload},
    },
    trace::{
        Trace,
        counter::{CounterValues, LaunchCounters, Stall},
        device::Device,
        environment::{Environment, Gpu},
        event::{Event, OperatorCall},
        gemm::{GemmCall, GemmLog, GemmShape, GemmTrace},
        kernel::Kernel,
        nsys::{ApiCall, NsysTrace},
        range::Range,
    },
};

/// A run with everything that a report is made from.
struct Run {
    spec: RunSpec,
    model: ModelSpec,
    environment: Environment,
    steps: Vec<StepRecord>,
    findings: Vec<Finding>,
    inputs: Vec<InputFile>,
    trace: Trace,
}

impl Run {
    /// The saved run on a CPU, without nsys.
    fn saved() -> Self {
        let events = include_str!("../fixtures/events-tiny.jsonl");
        let mut model: ModelSpec = toml::from_str(include_str!("../../conf/models/deepseek-ocr-tiny.toml")).unwrap();
        model.name = "deepseek-ocr-tiny".into();
        let step = |step, state, message: Option<&str>| StepRecord {
            step,
            state,
            started_at: "2026-01-02T03:04:05Z".into(),
            ended_at: Some("2026-01-02T03:04:07Z".into()),
            exit_code: None,
            message: message.map(str::to_owned),
        };
        let missing = "nsys is not installed: install the package nsight-systems (scripts/install-nsight.sh does)";
        Self {
            spec: RunSpec {
                subject: Subject::Model(ModelSubject {
                    workload: Workload {
                        model: model.name.clone(),
                        inputs_manifest: "inputs.yaml".into(),
                        max_new_tokens: 8,
                        seed: 0,
                        dtype: None,
                    },
                    passes: Passes { mode: Mode::Light, repeats: 3, warmup: 1, device: "auto".into(), profiling: None },
                }),
                common: Common { labels: vec!["nightly".into()], priority: 0, timeout_s: 1800 },
            },
            model,
            environment: Environment {
                hostname: Some("host-1".into()),
                os: Some("Debian GNU/Linux 12".into()),
                kernel: Some("6.1.0".into()),
                cpu: Some("An x86-64 processor".into()),
                cpus: Some(2),
                memory_bytes: Some(8_000_000_000),
                llmprof: "0.1.0".into(),
                ..Environment::default()
            },
            steps: vec![
                step(Step::Preflight, StepState::Succeeded, None),
                step(Step::Baseline, StepState::Succeeded, None),
                step(Step::Nsys, StepState::Skipped, Some(missing)),
                step(Step::Analyze, StepState::Succeeded, None),
            ],
            findings: vec![
                Finding::new("nsys_missing", Severity::Warning, "nsys was not found.").advise("Install nsight-systems."),
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

    /// The saved run as if it had been on a GPU, with a capture of two kernels per stage.
    fn with_kernels() -> Self {
        let mut run = Self::saved();
        let gpu =
            Gpu { index: 0, uuid: "GPU-0".into(), name: "NVIDIA H200".into(), memory_bytes: 150_000_000_000, ..Gpu::default() };
        let uuid = Some(gpu.uuid.clone());
        run.environment.device = Some(Device { uuid, product: Some(gpu.name.clone()), ..Device::unknown("cuda:0") });
        run.environment.gpus.push(gpu);
        for event in &mut run.trace.baseline {
            if let Event::Start(start) = event {
                start.device = "cuda:0".into();
            }
        }
        let range = |name: &str, start_ns, end_ns| Range {
            domain: "LLM".into(),
            name: name.into(),
            start_ns,
            end_ns: Some(end_ns),
            global_tid: 1,
            push_pop: true,
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
            graph_node: None,
        };
        let call = |&(correlation_id, _, at, _): &(i64, u32, i64, i64)| ApiCall {
            name: 0,
            start_ns: at,
            end_ns: at + 2,
            global_tid: 1,
            correlation_id,
        };
        run.trace.nsys = Some(NsysTrace {
            strings: vec!["gemm_bf16<128, 64>".into(), "softmax|warp".into()],
            ranges: vec![range("prefill", 0, 100), range("decode_all", 100, 200)],
            cuda_calls: launches.iter().map(call).collect(),
            kernels: launches.into_iter().map(kernel).collect(),
            ..NsysTrace::default()
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

    /// The run on a GPU, forty times as slow, beside samples of an invented device: nobody measured those.
    fn with_power() -> Self {
        let mut run = Self::with_kernels();
        let slow = |t: &mut i64| *t = 1_000_000_000 + (*t - 1_000_000_000) * 40;
        for event in &mut run.trace.baseline {
            match event {
                Event::Range(it) => [&mut it.start_ns, &mut it.end_ns].into_iter().for_each(slow),
                Event::Op(it) => [&mut it.start_ns, &mut it.end_ns].into_iter().for_each(slow),
                _ => {}
            }
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/nvml-synthetic.jsonl");
        let (log, findings) = parse::power::read(&path).unwrap();
        assert_eq!(findings, []);
        run.trace.power = log;
        run
    }

    fn analysis(&self) -> Analysis {
        let devices = analyze::device::Devices::from_toml(include_str!("../../conf/devices.toml")).unwrap();
        let peaks = self.environment.gpus.first().and_then(|gpu| devices.find(&gpu.name));
        analyze::analyze(&self.trace, Some(&self.model), peaks)
    }

    fn files(&self) -> Vec<(&'static str, String)> {
        let state = if self.trace.nsys.is_some() { RunState::Succeeded } else { RunState::Partial };
        let facts = RunFacts {
            id: "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10".parse().unwrap(),
            spec: &self.spec,
            model: Some(&self.model),
            environment: &self.environment,
            steps: &self.steps,
            findings: &self.findings,
            inputs: &self.inputs,
            command: None,
            part: &[],
            state,
        };
        report::render(&facts, &self.trace, &self.analysis())
    }

    fn file(&self, name: &str) -> String {
        self.files().into_iter().find(|(file, _)| *file == name).unwrap().1
    }
}

/// A launch in prefill that ncu profiled.
fn counted(kernel: &str, id: u64) -> LaunchCounters {
    LaunchCounters {
        id,
        stage: "prefill".into(),
        kernel: kernel.into(),
        full_name: kernel.into(),
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
            stalls: vec![Stall { reason: "long_scoreboard".into(), warps_per_issue: 4.5, share_pct: 52.0 }],
            ..CounterValues::default()
        },
    }
}

/// A log of products with so many rows each.
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

/// Compares with `tests/golden/<prefix>-<name>`, or writes it when asked to.
pub fn golden(prefix: &str, name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{prefix}-{name}"));
    if std::env::var_os("LLMPROF_BLESS").is_some() {
        fs::write(&path, text).unwrap();
    }
    let blessed = fs::read_to_string(&path).unwrap_or_default();
    let differs = blessed.lines().zip(text.lines()).position(|(a, b)| a != b);
    let line = differs.unwrap_or_else(|| blessed.lines().count().min(text.lines().count()));
    assert!(
        blessed == text,
        "{} line {}: blessed {:?}, now {:?}",
        path.display(),
        line + 1,
        blessed.lines().nth(line),
        text.lines().nth(line)
    );
}

#[test]
fn the_files_of_a_run_without_a_gpu_are_as_blessed() {
    for (name, text) in Run::saved().files() {
        golden("cpu", name, &text);
    }
}

#[test]
fn the_files_of_a_run_with_kernels_are_as_blessed() {
    for (name, text) in Run::with_kernels().files() {
        golden("gpu", name, &text);
    }
}

#[test]
fn energy_power_and_clocks_of_a_sampled_gpu_are_as_blessed() {
    let run = Run::with_power();
    for name in [layout::POWER_JSON, layout::POWER_CSV] {
        golden("synthetic", name, &run.file(name));
    }
    let page = run.file(layout::REPORT_HTML);
    let section = page.split_once(r#"<section class="card" id="power""#).unwrap().1.split_once("</section>").unwrap().0;
    golden("synthetic", "power-section.html", section);
    let report = run.file(layout::REPORT_MD);
    let section = report.split_once("## Power and Clocks").unwrap().1.split_once("\n## ").unwrap().0;
    golden("synthetic", "power-section.md", section);
}

#[test]
fn a_throttled_gpu_is_a_finding_and_a_sampled_run_has_its_figures_in_the_report_for_programs() {
    let report: LLMProfileReport = serde_json::from_str(&Run::with_power().file(layout::REPORT_JSON)).unwrap();
    assert!(report.findings.iter().any(|it| it.id == "gpu_throttled" && it.evidence["stage"] == "prefill"));
    let power = report.power.unwrap();
    let joules: Vec<_> = power.stages.iter().map(|it| it.energy_j.unwrap() / it.mean_w.unwrap()).collect();
    for (seconds, row) in joules.iter().zip(&report.stages) {
        assert!((seconds * 1e3 - row.ms.mean).abs() < 1e-6, "energy over power is the stage's time");
    }
}

#[test]
fn a_run_on_a_gpu_that_was_not_sampled_says_why() {
    let mut run = Run::with_kernels();
    assert!(run.file(layout::REPORT_MD).contains("No GPU was sampled."));
    run.findings = vec![Finding::new("power_not_sampled", Severity::Warning, "The driver was away.")];
    assert!(run.file(layout::REPORT_HTML).contains("The driver was away."));
    assert!(run.files().iter().all(|(name, _)| *name != layout::POWER_CSV));
}

#[test]
fn a_report_holds_the_six_tables_in_order() {
    let report = Run::saved().file(layout::REPORT_MD);
    let heads: Vec<&str> = report.lines().filter_map(|line| line.strip_prefix("## ")?.split_once(". ")).map(|it| it.1).collect();
    assert_eq!(heads, ["Environment", "Aggregates", "Per-Stage Timings", "MFU", "Top Operators", "Top Kernels"]);
}

#[test]
fn vision_is_a_note_and_never_a_stage() {
    let report: LLMProfileReport = serde_json::from_str(&Run::saved().file(layout::REPORT_JSON)).unwrap();
    let stages: Vec<&str> = report.stages.iter().map(|row| row.stage.as_str()).collect();
    assert_eq!(stages, ["prefill", "decode_all"]);
    assert_eq!(report.stage_notes[0].part, "vision");
    let shares: f64 = report.stages.iter().filter_map(|row| row.share_pct).sum();
    assert!((shares - 100.0).abs() < 1e-9);
}

#[test]
fn tables_of_operators_and_kernels_are_sorted_and_their_means_are_computed() {
    let report: LLMProfileReport = serde_json::from_str(&Run::with_kernels().file(layout::REPORT_JSON)).unwrap();
    assert!(report.operators.is_sorted_by(|a, b| a.inclusive_ms >= b.inclusive_ms) && !report.operators.is_empty());
    assert!(report.kernels_topk.is_sorted_by(|a, b| a.total_ms >= b.total_ms));
    let kernels: Vec<_> = report.kernels_topk.iter().map(|it| (it.stage.as_str(), it.calls, it.total_ms, it.mean_ms)).collect();
    assert_eq!(kernels, [("prefill", 1, 0.9, 0.9), ("prefill", 1, 0.4, 0.4), ("decode_all", 2, 0.3, 0.15)]);
}

#[test]
fn what_could_not_be_collected_is_said_with_its_remedy() {
    let run = Run::saved();
    for name in [layout::REPORT_MD, layout::REPORT_HTML, layout::SUMMARY_MD] {
        assert!(run.file(name).contains("install the package nsight-systems"), "{name}");
    }
    assert!(run.file(layout::KERNELS_MD).contains("**No data.** There is no kernel data: the model ran on the CPU"));
}

#[test]
fn a_run_that_left_nothing_still_has_every_file_and_every_table_says_why() {
    let mut run = Run::saved();
    run.trace = Trace::default();
    let files = run.files();
    assert_eq!(files.len(), 18);
    let report = &files.iter().find(|(name, _)| *name == layout::REPORT_MD).unwrap().1;
    assert_eq!(report.split("## Findings").next().unwrap().matches("**No data.**").count(), 5);
    assert!(report.contains("closed no measured stage"));
}

#[test]
fn the_page_needs_no_network_and_no_script() {
    let page = Run::with_kernels().file(layout::REPORT_HTML);
    for loader in ["http:", "https:", "<script", "src=", "@import", "url(", "<iframe", "onload"] {
        assert!(!page.contains(loader), "{loader}");
    }
}

#[test]
fn text_from_outside_stays_text_in_every_file() {
    const HOSTILE: &str = "<script>alert(1)</script>|`*_x_*`\n# [a](javascript:b) \"'&\u{0}";
    let mut run = Run::with_kernels();
    run.spec.common.labels = vec![HOSTILE.into()];
    run.model.description = HOSTILE.into();
    if let Subject::Model(it) = &mut run.spec.subject {
        it.workload.model = HOSTILE.into();
    }
    run.inputs[0].path = HOSTILE.into();
    run.environment.hostname = Some(HOSTILE.into());
    run.steps[2].state = StepState::Failed;
    run.steps[2].message = Some(HOSTILE.into());
    run.findings = vec![Finding::new(HOSTILE, Severity::Critical, HOSTILE).with(HOSTILE, HOSTILE).advise(HOSTILE)];
    run.trace.nsys.as_mut().unwrap().strings[0] = HOSTILE.into();
    run.trace.counters[0].kernel = HOSTILE.into();
    run.trace.counters[0].values.stalls[0].reason = HOSTILE.into();
    for call in &mut run.trace.gemms.as_mut().unwrap().prefill.calls {
        (call.shape.left_type, call.algorithm) = (HOSTILE.into(), Some(HOSTILE.into()));
    }
    for event in &mut run.trace.baseline {
        if let Event::Op(OperatorCall { path, op, dtype, .. }) = event {
            (*path, *op, *dtype) = (HOSTILE.into(), HOSTILE.into(), HOSTILE.into());
        }
    }
    for (name, text) in run.files() {
        match Path::new(name).extension().unwrap().to_str().unwrap() {
            // Whatever is in a cell, a record is one line with the same number of cells.
            "csv" => assert!(
                text.lines().all(|line| line.split('"').step_by(2).map(|plain| plain.matches(',').count()).sum::<usize>()
                    == text.lines().next().unwrap().matches(',').count()),
                "{name}"
            ),
            "json" => assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{name}"),
            "jsonl" => {
                assert!(text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{name}");
            }
            "html" => assert!(!text.contains("<script") && text.contains("&lt;script&gt;"), "{name}"),
            _ => assert_markdown_is_harmless(name, &text),
        }
    }
}

/// Rows have the cells of their head, and nothing from outside became HTML, a link, code or emphasis.
fn assert_markdown_is_harmless(name: &str, text: &str) {
    use pulldown_cmark::{Event, Options, Parser, Tag};
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        let foreign = matches!(
            event,
            Event::Html(_)
                | Event::InlineHtml(_)
                | Event::Code(_)
                | Event::Start(Tag::Link { .. } | Tag::Image { .. } | Tag::Emphasis)
        );
        assert!(!foreign, "{name}: {event:?}");
    }
    let cells = |line: &str| line.replace("\\\\", "").replace("\\|", "").matches('|').count();
    for block in text.split("\n\n").filter(|block| block.starts_with('|')) {
        let widths: Vec<usize> = block.lines().filter(|line| line.starts_with('|')).map(cells).collect();
        assert!(widths.windows(2).all(|pair| pair[0] == pair[1]), "{name}: {block}");
    }
}

#[test]
fn the_report_of_a_model_that_reads_text_only_does_not_speak_of_vision() {
    let mut run = Run::saved();
    run.model = toml::from_str(include_str!("../../conf/models/llama-tiny.toml")).unwrap();
    run.inputs.clear();
    run.trace.baseline.retain(|event| match event {
        Event::Range(it) => !matches!(it.name.as_str(), "vision" | "sam" | "clip" | "projector"),
        Event::Op(it) => !it.path.starts_with("vision") && it.path != "decoder.insert_images",
        Event::Experts(_) => false,
        _ => true,
    });
    for event in &mut run.trace.baseline {
        if let Event::Start(start) = event {
            start.images.clear();
            start.image_tokens = 0;
        }
    }
    for name in [layout::REPORT_MD, layout::REPORT_HTML, layout::SUMMARY_MD, layout::OPERATORS_MD] {
        let text = run.file(name).to_lowercase();
        for word in ["vision", "image tokens", "of them images"] {
            assert!(!text.contains(word), "{name} speaks of {word}: {}", text.lines().find(|line| line.contains(word)).unwrap());
        }
    }
}

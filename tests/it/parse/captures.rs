//! The parser on real exports, compared with counts from plain SQL
//! (`tests/fixtures/captures/README.md`).

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    path::Path,
};

use llmprof_analyze::{
    kernels::{
        StageKernels,
        kernel_selection::{TracedProgram, select_kernels},
        kernels,
    },
    parse,
    stages::coverage::coverage,
    timeline::{capture::Capture, device_time::device_times},
};
use llmprof_core::{
    domain::{device_peaks::Devices, ids::RunId, mode::Mode, profiling::Profiling},
    trace::{
        counter::LaunchCounters, kernel::TracedKernel, names, range::Range, timeline::Timeline,
    },
};
use llmprof_report::{
    ReportForm,
    pipeline::{self, Statements},
};

use crate::support::captures;

const CAPTURES: [&str; 4] =
    ["hf-deepseek-decoder", "hf-llama-e2e", "hf-llama-attention-mock", "torch-cuda-graph-node"];

/// Reads a compressed capture of the fixtures.
pub fn capture(name: &str) -> Timeline {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/captures")
        .join(format!("{name}.sqlite.zst"));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sqlite");
    zstd::stream::copy_decode(File::open(packed).unwrap(), File::create(&path).unwrap()).unwrap();
    parse::nsys::read(&path).unwrap()
}

#[test]
fn compressed_exports_and_pages_read_like_uncompressed_ones() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures");
    let (plain, packed) = (
        capture(CAPTURES[2]),
        parse::nsys::read(&fixtures.join("hf-llama-attention-mock.sqlite")).unwrap(),
    );
    assert_eq!(
        (total(packed.kernels.iter()), packed.ranges),
        (total(plain.kernels.iter()), plain.ranges)
    );
    let page = parse::ncu::read_file(&fixtures.join("hf-llama-decode.ncu-raw.csv")).unwrap();
    assert_eq!(page, decode_page());
}

/// Number and time of the kernels whose launching call lies inside a range of each of these names
/// on its thread.
fn launched_inside(trace: &Timeline, names: &[&str]) -> (usize, i64) {
    let process = |thread: i64| thread >> 24;
    let calls: HashMap<_, _> = trace
        .cuda_calls
        .iter()
        .map(|c| ((process(c.global_tid), c.correlation_id), (c.global_tid, c.start_ns)))
        .collect();
    let ranges: Vec<Vec<&Range>> =
        names.iter().map(|n| trace.ranges.iter().filter(|r| r.name == *n).collect()).collect();
    let launched = |k: &TracedKernel| {
        let (thread, at) = calls[&(process(k.global_pid), k.correlation_id)];
        let encloses = |r: &&Range| {
            r.global_tid == thread && r.start_ns <= at && r.end_ns.is_none_or(|end| at <= end)
        };
        ranges.iter().all(|named| named.iter().any(encloses))
    };
    total(trace.kernels.iter().filter(launched))
}

fn total<'a>(kernels: impl Iterator<Item = TracedKernel<'a>>) -> (usize, i64) {
    kernels.fold((0, 0), |(count, ns), k| (count + 1, ns + k.end_ns - k.start_ns))
}

/// Number of ranges of each name in a domain.
fn ranges(trace: &Timeline, domain: &str) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for range in trace.ranges.iter().filter(|r| r.domain == domain) {
        *counts.entry(range.name.clone()).or_default() += 1;
    }
    counts
}

#[test]
fn the_deepseek_decoder_equals_the_counts_of_sql() {
    let trace = capture("hf-deepseek-decoder");
    assert_eq!(
        (trace.tool_version.as_deref(), trace.schema_version.as_deref()),
        (Some("2025.3.2.0"), Some("3.20.3"))
    );
    assert_eq!(total(trace.kernels.iter()), (13_050, 50_249_920));
    assert_eq!(trace.cuda_calls.len(), 32_761);
    let stages = ranges(&trace, "");
    assert_eq!(["prefill", "decode_all", "decode_step"].map(|name| stages[name]), [2, 2, 12]);
    assert_eq!(launched_inside(&trace, &["prefill"]), (1_972, 15_243_102));
    assert_eq!(launched_inside(&trace, &["decode_all"]), (10_800, 27_012_363));
    assert!(
        trace.os_calls.is_empty() && !trace.tables.contains(&"OSRT_API".to_owned()),
        "the run did not trace the OS runtime"
    );
}

#[test]
fn the_llama_and_its_mock_equal_the_counts_of_sql() {
    let whole = capture("hf-llama-e2e");
    assert_eq!(whole.kernels.len(), 18_262);
    let inside = |trace: &Timeline, names: &[&str]| {
        let (count, ns) = launched_inside(trace, names);
        (count, (ns + 50) / 100) // tenths of a microsecond, as the facts are given
    };
    assert_eq!(inside(&whole, &["measured", "prefill", "decoder.self_attn"]), (136, 7_240));
    assert_eq!(inside(&whole, &["measured", "decode_all", "decoder.self_attn"]), (2_304, 81_973));
    assert_eq!(
        whole.ranges.len(),
        ranges(&whole, "LLM").values().sum::<usize>(),
        "all ranges are in the domain LLM"
    );

    let mock = capture("hf-llama-attention-mock");
    assert_eq!(mock.kernels.len(), 1_380);
    assert_eq!(inside(&mock, &["measured", "prefill", "decoder.self_attn"]), (17, 891));
    assert_eq!(inside(&mock, &["measured", "decode_all", "decoder.self_attn"]), (288, 9_949));
}

#[test]
fn replayed_kernels_name_their_graph_node() {
    let trace = capture("torch-cuda-graph-node");
    assert_eq!(trace.kernels.len(), 5_260);
    assert_eq!(trace.kernels.iter().filter(|k| k.graph_node.is_some()).count(), 4_608);
    assert_eq!(ranges(&trace, "LLM")["decode_step"], 32);
}

#[test]
fn kernel_records_add_up_to_the_counts_of_sql_per_stage() {
    let trace = capture("hf-deepseek-decoder");
    let kernels = kernels(&Capture::of(&trace));
    let sum = |stage: Option<&str>| {
        let of =
            kernels.records.iter().filter(|record| stage.is_none_or(|stage| record.stage == stage));
        of.fold((0, 0), |(calls, ns), record| {
            (calls + record.calls, ns + (record.total_ms * 1e6).round() as i64)
        })
    };
    assert_eq!(sum(None), (13_050, 50_249_920));
    assert_eq!(sum(Some("prefill")), (1_972, 15_243_102));
    assert_eq!(sum(Some("decode_all")), (10_800, 27_012_363));
    assert_eq!(kernels.orphans, 0);
    let copies_ms: f64 = trace.copies.iter().map(|it| (it.end_ns - it.start_ns) as f64 / 1e6).sum();
    let bounded = |stage: &StageKernels| {
        stage.busy_ms.unwrap() <= stage.kernel_ms.unwrap() + copies_ms + 1e-9
    };
    assert!(kernels.stages.iter().all(bounded));
}

#[test]
fn replayed_kernels_belong_to_the_layer_open_at_the_capture_of_their_node() {
    let trace = capture("torch-cuda-graph-node");
    let times = device_times(&Capture::of(&trace));
    let replayed: i64 =
        trace.kernels.iter().filter(|it| it.graph_node.is_some()).map(|it| it.ns()).sum();
    assert_eq!(times.replayed_ns, replayed);
    assert!(
        times.replayed_known_ns as f64 >= 0.99 * replayed as f64,
        "{} of {replayed}",
        times.replayed_known_ns
    );
    let layers = times
        .operators
        .iter()
        .filter(|((stage, name), _)| stage == "decode_all" && name.starts_with("layer_"));
    let own: i64 = layers.clone().map(|(_, time)| time.exclusive_ns).sum();
    assert!(own as f64 >= 0.99 * replayed as f64, "{own} of {replayed}");
    assert_eq!(layers.count(), 48, "24 layers, an mlp and a softmax in each");
}

#[test]
fn real_captures_have_classes_for_nearly_all_kernel_time() {
    for name in CAPTURES {
        let trace = capture(name);
        let kernels = kernels(&Capture::of(&trace));
        assert!(kernels.classified_pct.unwrap() > 99.0, "{name}: {:?}", kernels.classified_pct);
    }
}

#[test]
fn the_base_name_of_every_kernel_is_its_short_name_in_nsys() {
    for name in ["hf-deepseek-decoder", "hf-llama-e2e", "torch-cuda-graph-node"] {
        let trace = capture(name);
        for kernel in trace.kernels.iter() {
            let (short, full) =
                (&trace.strings[kernel.name as usize], &trace.strings[kernel.full_name as usize]);
            assert_eq!(names::base_name(full), short);
        }
    }
}

#[test]
fn each_launch_profiled_by_ncu_is_in_the_timeline_by_name_and_configuration() {
    let trace = capture("hf-llama-e2e");
    let known: HashSet<_> = trace
        .kernels
        .iter()
        .map(|it| {
            (
                names::canonical(&trace.strings[it.full_name as usize]),
                Some(it.grid),
                Some(it.block),
                Some(it.registers),
            )
        })
        .collect();
    let launches = decode_page().launches;
    let found = |it: &&LaunchCounters| {
        known.contains(&(names::canonical(&it.full_name), it.grid, it.block, it.values.registers))
    };
    let lost: Vec<_> =
        launches.iter().filter(|it| !found(it)).map(|it| (it.kernel.as_str(), it.grid)).collect();
    assert_eq!((launches.len(), lost), (60, vec![]));
}

#[test]
fn real_captures_cover_their_launches_graphs_and_ranges() {
    for (name, kernels) in [
        ("hf-deepseek-decoder", 13_050),
        ("hf-llama-e2e", 18_262),
        ("hf-llama-attention-mock", 1_380),
        ("torch-cuda-graph-node", 5_260),
    ] {
        let mut trace = capture(name);
        let whole = coverage(&trace, &["decode_step"]);
        assert_eq!((whole.launched, whole.recorded), (kernels, kernels), "{name}");
        trace.kernels.truncate(trace.kernels.len() / 2);
        assert!(coverage(&trace, &[]).pct().unwrap() < 75.0, "{name}");
    }
}

#[test]
fn the_decoders_kernels_are_selected_by_stage_with_their_coverage() {
    let ncu = Profiling::bundled(&Mode::DEEP).unwrap().ncu;
    let described = |name: &str| {
        let traced = TracedProgram { samples: 1, is_runner: false };
        let plan = select_kernels(&capture(name), &ncu, traced);
        let stages: Vec<_> = plan
            .stages
            .iter()
            .map(|it| format!("{} {:.0} %", it.stage, it.planned_pct.unwrap()))
            .collect();
        let processes: Vec<_> = plan
            .processes
            .iter()
            .map(|it| format!("{} launches of {} kernels", it.launches, it.symbols.len()))
            .collect();
        format!("{}; {}", stages.join(", "), processes.join(", "))
    };
    assert_eq!(
        described("hf-deepseek-decoder"),
        "prefill 91 %, decode_all 90 %; 69 launches of 42 kernels"
    );
    let llama = described("hf-llama-e2e");
    assert!(llama.contains("prefill 9") && llama.contains("decode_all 9"), "{llama}");
}

#[test]
fn a_foreign_capture_tells_its_own_gpu_driver_and_system() {
    for name in ["hf-llama-e2e", "hf-llama-attention-mock", "torch-cuda-graph-node"] {
        let target = capture(name).target;
        let gpu = &target.gpus[0];
        assert_eq!(
            (target.gpus.len(), gpu.name.as_str(), gpu.memory_bytes),
            (1, "NVIDIA H200", 150_109_880_320),
            "{name}"
        );
        assert_eq!(
            (gpu.sm_count, gpu.max_sm_mhz, gpu.compute_capability.as_deref()),
            (Some(132), Some(1980), Some("9.0"))
        );
        assert_eq!(
            (target.driver.as_deref(), target.cuda.as_deref()),
            (Some("580.159.04"), Some("13.0"))
        );
        assert_eq!(
            (target.cpu.as_deref(), target.cpus),
            (Some("Intel(R) Xeon(R) Processor"), Some(16))
        );
        assert_eq!(target.os.as_deref(), Some("Ubuntu 24.04.3 LTS"));
    }
}

#[test]
fn the_report_of_an_external_capture_is_of_its_own_gpu() {
    let dir = tempfile::tempdir().unwrap();
    let export = dir.path().join("vllm.sqlite");
    captures::capture("hf-llama-attention-mock", &export, "").unwrap();
    let devices = Devices::from_toml(include_str!("../../../conf/devices.toml")).unwrap();
    let page = dir.path().join("decode.csv");
    let packed = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/captures/hf-llama-decode.ncu-raw.csv.zst");
    let text =
        String::from_utf8(zstd::stream::decode_all(File::open(packed).unwrap()).unwrap()).unwrap();
    let analyzed = |text: &str| {
        std::fs::write(&page, text).unwrap();
        let id = RunId::now();
        let capture = pipeline::analyze_capture(
            std::slice::from_ref(&export),
            std::slice::from_ref(&page),
            Statements::default(),
            &devices,
        )
        .unwrap();
        let found: Vec<String> = capture.findings(id).iter().map(|it| it.id.clone()).collect();
        let report = capture.render_one(ReportForm::Json, id);
        (found, serde_json::from_str::<serde_json::Value>(&report).unwrap())
    };
    let (found, report) = analyzed(&text);
    assert_eq!(report["environment"]["gpus"][0]["name"], "NVIDIA H200");
    assert_eq!(report["environment"]["driver"], "580.159.04");
    assert!(!found.iter().any(|id| id == "counters_of_another_device"), "{found:?}");
    let (found, _) = analyzed(&text.replace("NVIDIA H200", "NVIDIA A10"));
    assert!(found.iter().any(|id| id == "counters_of_another_device"), "{found:?}");
}

#[test]
fn a_capture_that_does_not_name_its_gpu_is_of_the_gpu_of_its_counters() {
    let dir = tempfile::tempdir().unwrap();
    let export = dir.path().join("vllm.sqlite");
    let nameless = "update TARGET_INFO_GPU set name = ''";
    captures::capture("hf-llama-attention-mock", &export, nameless).unwrap();
    let page = dir.path().join("decode.csv");
    let packed = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/captures/hf-llama-decode.ncu-raw.csv.zst");
    std::fs::write(&page, zstd::stream::decode_all(File::open(packed).unwrap()).unwrap()).unwrap();
    let devices = Devices::from_toml(include_str!("../../../conf/devices.toml")).unwrap();
    let id = RunId::now();
    let capture =
        pipeline::analyze_capture(&[export], &[page], Statements::default(), &devices).unwrap();
    let found: Vec<String> = capture.findings(id).iter().map(|it| it.id.clone()).collect();
    assert!(!found.iter().any(|id| id == "counters_of_another_device"), "{found:?}");
    let report = capture.render_one(ReportForm::Markdown, id);
    assert!(report.contains("0: name not recorded, "), "{report}");
}

/// The ncu counters of the Llama's decode.
pub fn decode_page() -> parse::ncu::CounterPage {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/captures/hf-llama-decode.ncu-raw.csv.zst");
    let page = zstd::stream::decode_all(File::open(packed).unwrap()).unwrap();
    parse::ncu::parse_page(std::str::from_utf8(&page).unwrap())
}

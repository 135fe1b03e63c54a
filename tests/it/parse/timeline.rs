//! The timeline read back by a decoder of the Perfetto format: sketches, real captures and events.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    fs::File,
    path::Path,
};

use llmprof_analyze::{
    Analysis, analyze,
    ledger::{LedgerCause, LedgerMember},
    parse,
    stages::in_sentence,
};
use llmprof_core::trace::{
    Trace,
    event::{Event, OperatorCall, StageRange},
    gpu_metrics::GpuMetric,
    kernel::Kernel,
    power::{PowerLog, PowerSample, PowerSource, SampledDevice},
    range::Range,
    timeline::{ApiCall, Timeline},
};
use llmprof_report::{
    format::shortened, kernel_names::KernelNames, perfetto, tables::ledger_members,
};

use crate::parse::perfetto::{Read, Slice, Wire, decode};

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn captured(name: &str) -> Trace {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sqlite");
    let packed = File::open(fixture(&format!("captures/{name}.sqlite.zst"))).unwrap();
    zstd::stream::copy_decode(packed, File::create(&path).unwrap()).unwrap();
    Trace { timeline: Some(parse::nsys::read(&path).unwrap()), ..Trace::default() }
}

fn unprofiled() -> Trace {
    let (power, _) = parse::power::read(&fixture("nvml-synthetic.jsonl")).unwrap();
    Trace {
        baseline: parse::events::read(&fixture("events-tiny.jsonl")).unwrap().events,
        power,
        ..Trace::default()
    }
}

fn sketched_events() -> Vec<Event> {
    let stage = |name: &str, start_ns, end_ns| {
        Event::Range(StageRange {
            name: name.into(),
            start_ns,
            end_ns,
            device_ns: None,
            warmup: false,
            repeat: 0,
            step: None,
        })
    };
    let call = |captured| {
        Event::Op(OperatorCall {
            path: "a\"b".into(),
            op: "linear".into(),
            start_ns: 1_001_000,
            end_ns: 1_001_500,
            thread: 0,
            captured,
            warmup: false,
            repeat: 0,
            stage: "prefill".into(),
            shapes: vec![vec![1, 2]],
            dtype: "bf16".into(),
            flops: 8,
            bytes: 4,
        })
    };
    vec![stage("prefill", 1_001_000, 1_003_000), call(false), call(true), stage("broken", 9, 3)]
}

fn sketched_power() -> PowerLog {
    let device = SampledDevice {
        schema: 1,
        uuid: "u".into(),
        board_uuid: "u".into(),
        name: "n".into(),
        period_ns: 1,
        power_source: PowerSource::Instant,
        power_limit_w: None,
        max_sm_mhz: None,
        max_memory_mhz: None,
        gpus: 1,
    };
    let sample = |t_ns, power_w| PowerSample { t_ns, power_w, ..PowerSample::default() };
    PowerLog {
        device,
        samples: vec![sample(1_000_000, Some(80.0)), sample(1_002_000, None)],
        end: None,
        others: vec![],
    }
}

fn sketch() -> Trace {
    let kernel = |stream, start_ns| Kernel {
        name: 0,
        full_name: 0,
        device: 0,
        stream,
        start_ns,
        end_ns: start_ns + 10,
        global_pid: 0,
        correlation_id: 1,
        grid: [1; 3],
        block: [1; 3],
        registers: 0,
        shared_memory: 0,
        graph_node: None,
    };
    let range = |push_pop, end_ns| Range::new(("LLM", "prefill"), (5, end_ns), (7, push_pop));
    Trace {
        baseline: sketched_events(),
        power: Some(sketched_power()),
        timeline: Some(Timeline {
            strings: vec!["gemm<1>".into(), "cudaMemcpyAsync".into()],
            ranges: vec![range(true, Some(50)), range(false, Some(60)), range(true, None)],
            cuda_calls: [ApiCall {
                name: 1,
                start_ns: 8,
                end_ns: 9,
                global_tid: 7,
                correlation_id: 2,
            }]
            .into_iter()
            .collect(),
            kernels: [kernel(7, 20), kernel(13, 22)].into_iter().collect(),
            ..Timeline::default()
        }),
        ..Trace::default()
    }
}

fn read(trace: &Trace) -> Read {
    decode(&perfetto::write(trace, &Analysis::default(), Vec::new()).unwrap())
}

#[test]
fn the_ledger_is_a_row_per_stage_from_the_floor_to_the_traced_time() {
    let trace = captured("hf-llama-e2e");
    let analysis = analyze(&trace, None, None);
    let ledger = &analysis.ledger;
    let read = decode(&perfetto::write(&trace, &analysis, Vec::new()).unwrap());
    for stage in &ledger.stages {
        let row = format!("ledger of {}", in_sentence(&stage.stage));
        let slices: Vec<&Slice> = read
            .slices
            .iter()
            .filter(|it| it.process == "gap ledger, one repeat" && it.row == row)
            .collect();
        let is_cause = |it: &&&Slice| LedgerCause::ALL.iter().any(|of| of.as_str() == it.name);
        let mut at = 0;
        for cause in slices.iter().filter(is_cause) {
            assert_eq!(cause.times.0, at, "{} of {row}", cause.name);
            at = cause.times.1;
        }
        assert_eq!(Some(at as i64), stage.traced_ns, "{row}");
        assert!(slices.len() > slices.iter().filter(is_cause).count(), "kernels are inside");
    }
}

#[test]
fn kernels_of_the_ledger_s_table_have_the_same_names_in_the_timeline() {
    let mut compared = 0;
    for name in ["hf-deepseek-decoder", "hf-llama-e2e", "torch-cuda-graph-node", "hf-continuous"] {
        let trace = captured(name);
        let analysis = analyze(&trace, None, None);
        let read = decode(&perfetto::write(&trace, &analysis, Vec::new()).unwrap());
        let drawn = read.slices.iter().filter(|it| it.kind == "kernel");
        let drawn: HashSet<String> = drawn.map(|it| shortened(&it.name, 80)).collect();
        let table = ledger_members(&analysis);
        let column = table.columns.iter().position(|it| it.title.starts_with("Kernel")).unwrap();
        let members = analysis.ledger.members.iter().filter(|it| it.cause.is_cause());
        let mut members: Vec<&LedgerMember> = members.collect();
        members.sort_by_key(|it| Reverse(it.ns));
        assert_eq!(members.len(), table.rows.len(), "{name}");
        for (row, member) in table.rows.iter().zip(members) {
            // A compiled kernel is in the table by its operator.
            if member.full_name.is_some() && member.kernel != member.operator {
                assert!(drawn.contains(&row[column]), "{name}: {}", row[column]);
                compared += 1;
            }
        }
    }
    assert!(compared > 20, "only {compared} kernels");
}

#[test]
fn stages_operators_kernels_calls_and_power_have_separate_rows() {
    let read = read(&sketch());
    let rows: Vec<_> = read
        .slices
        .iter()
        .map(|it| (it.process.as_str(), it.row.as_str(), it.kind.as_str(), it.name.as_str()))
        .collect();
    assert_eq!(
        rows,
        [
            ("unprofiled pass", "stages", "stage", "prefill"),
            ("unprofiled pass", "operators (host)", "operator", "a\"b"),
            ("traced pass (nsys)", "ranges of thread 7", "range", "prefill"),
            ("traced pass (nsys)", "ranges that cross threads", "range", "prefill"),
            ("traced pass (nsys)", "calls of thread 7", "call", "cudaMemcpyAsync"),
            ("GPU 0 in the traced pass", "stream 7", "kernel", "gemm<1>"),
            ("GPU 0 in the traced pass", "stream 13", "kernel", "gemm<1>"),
        ],
        "captured, open and broken events have no slice"
    );
    assert_eq!(read.figures, [("power, W".to_owned(), 0, 80.0)]);
    let kernel = &read.slices[5];
    let text = |text: &str| Wire::Bytes(text.as_bytes().to_vec());
    let about = [
        ("full name", text("gemm<1>")),
        ("grid", text("1 x 1 x 1")),
        ("block", text("1 x 1 x 1")),
        ("registers", Wire::Number(0)),
        ("correlation", Wire::Number(1)),
    ];
    assert_eq!(kernel.args, about.map(|(label, value)| (label.to_owned(), value)));
}

#[test]
fn each_pass_starts_at_zero_and_power_shares_the_clock_of_the_unprofiled_pass() {
    let mut trace = sketch();
    trace.baseline.pop();
    let read = read(&trace);
    let of = |kind: &str| read.slices.iter().find(|it| it.kind == kind).unwrap().times;
    assert_eq!(
        (read.figures[0].1, of("stage"), of("operator")),
        (0, (1_000, 3_000), (1_000, 1_500))
    );
    assert_eq!((of("range"), of("call"), of("kernel")), ((0, 45), (3, 4), (15, 25)));
}

#[test]
fn concurrent_slices_take_the_first_free_row() {
    let mut trace = sketch();
    let nsys = trace.timeline.as_mut().unwrap();
    let kernel = Kernel::from(nsys.kernels.get(0));
    let of = |start_ns, end_ns| Kernel { start_ns, end_ns, ..kernel };
    nsys.kernels = [of(20, 30), of(25, 28), of(26, 40), of(30, 31), of(31, 35), of(40, 41)]
        .into_iter()
        .collect();
    let read = read(&trace);
    let rows: Vec<_> =
        read.slices.iter().filter(|it| it.kind == "kernel").map(|it| it.row.as_str()).collect();
    let [first, second, third] = ["stream 7", "stream 7, concurrent 1", "stream 7, concurrent 2"];
    assert_eq!(rows, [first, second, third, first, first, first]);
}

#[test]
fn an_empty_run_is_an_empty_timeline() {
    let read = read(&Trace::default());
    assert!(read.slices.is_empty() && read.figures.is_empty());
}

/// Checks a timeline; returns its slices.
fn check(trace: &Trace) -> Vec<Slice> {
    let read = read(trace);
    let mut open: HashMap<u64, Vec<(u64, u64)>> = HashMap::new();
    for slice in &read.slices {
        let (from, to) = slice.times;
        let stack = open.entry(slice.track).or_default();
        assert!(stack.last().is_none_or(|last| last.0 <= from), "not in order: {slice:?}");
        stack.retain(|outer| outer.1 > from);
        assert!(stack.iter().all(|outer| to <= outer.1), "crosses a slice of its row: {slice:?}");
        stack.push((from, to));
    }
    let mut counted: HashMap<&str, u64> = HashMap::new();
    for (name, at, _) in &read.figures {
        let last = counted.insert(name, *at);
        assert!(last.is_none_or(|last| last <= *at), "a figure that goes back in time: {name}");
    }
    read.slices
}

#[test]
fn slices_of_a_row_nest_in_order_and_include_each_kernel() {
    for name in
        ["hf-deepseek-decoder", "hf-llama-e2e", "hf-llama-attention-mock", "torch-cuda-graph-node"]
    {
        let trace = captured(name);
        let slices = check(&trace);
        let nsys = trace.timeline.as_ref().unwrap();
        let drawn = slices
            .iter()
            .filter(|it| it.kind == "kernel")
            .map(|it| (it.name.as_str(), it.times.1 - it.times.0));
        let names = KernelNames::default().of_kinds(nsys);
        let kernels = nsys.kernels.with_kinds();
        let ran = kernels.map(|(kind, it)| (names[kind as usize].as_str(), it.ns() as u64));
        assert!(drawn.eq(ran), "{name}");
        let kinds = nsys.kernels.kinds().iter();
        let of_capture: HashSet<_> =
            kinds.map(|it| (nsys.text(it.name), nsys.text(it.full_name))).collect();
        let unique: HashSet<&String> = names.iter().collect();
        assert_eq!(unique.len(), of_capture.len(), "{name}: one name for each kernel");
        check_calls_and_flows(&slices, nsys, name);
        assert_eq!(
            slices.iter().filter(|it| it.kind == "range").count(),
            nsys.ranges.iter().filter(|it| it.end_ns.is_some()).count()
        );
    }
    assert!(check(&unprofiled()).len() > 100);
}

/// Checks that each call is a slice, and that each kernel whose call is traced has its flow.
fn check_calls_and_flows(slices: &[Slice], nsys: &Timeline, name: &str) {
    let of = |kind: &str| slices.iter().filter(move |it| it.kind == kind).collect::<Vec<_>>();
    let (calls, kernels) = (of("call"), of("kernel"));
    let drawn = calls.iter().map(|it| (it.name.as_str(), it.times.1 - it.times.0));
    let made = nsys.cuda_calls.iter();
    let made =
        made.map(|it| (nsys.strings[it.name as usize].as_str(), (it.end_ns - it.start_ns) as u64));
    assert!(drawn.eq(made), "{name}");
    let mut launched: HashMap<u64, &Slice> = HashMap::new();
    for call in &calls {
        for flow in &call.flows {
            assert!(launched.insert(*flow, call).is_none(), "{name}: a flow has one call");
        }
    }
    let correlation = |it: &Slice| it.args.iter().find(|arg| arg.0 == "correlation").cloned();
    let traced: HashSet<i64> = nsys.cuda_calls.iter().map(|it| it.correlation_id).collect();
    for (slice, kernel) in kernels.iter().zip(nsys.kernels.iter()) {
        let call = slice.flows.first().map(|flow| launched[flow]);
        assert_eq!(call.is_some(), traced.contains(&kernel.correlation_id), "{name}: {slice:?}");
        if let Some(call) = call {
            assert_eq!(correlation(call), correlation(slice), "{name}");
        }
    }
}

#[test]
fn sampled_metrics_are_counters_of_their_pass_with_each_change_of_a_value() {
    let Trace { timeline: nsys, .. } = captured("h200-gpu-metrics-10khz");
    let samples = nsys.as_ref().unwrap().samples.clone().unwrap();
    let device = &samples.devices[0];
    let changes = |metric: GpuMetric| {
        let values = (0..device.times().len()).filter_map(|at| device.value(at, metric));
        let mut values: Vec<f64> = values.map(f64::from).collect();
        values.dedup();
        values
    };
    let own = read(&Trace { timeline: nsys.clone(), ..Trace::default() });
    let separate = read(&Trace { sampled: nsys.into_iter().collect(), ..Trace::default() });
    for read in [&own, &separate] {
        let of = |name: &str| {
            let of_row = read.figures.iter().filter(|it| it.0 == name);
            of_row.map(|it| it.2).collect::<Vec<_>>()
        };
        assert_eq!(of("GPU 0 dram read, %"), changes(GpuMetric::DramRead));
        assert_eq!(of("GPU 0 sm clock, MHz"), changes(GpuMetric::SmClock));
        assert!(of("GPU 0 tensor active, %").len() > 100);
    }
    let name = "pass with sampled metrics (nsys, 10000 Hz)";
    assert!(separate.slices.iter().any(|it| it.process == name && it.name == "prefill"));
}

#[test]
fn concurrent_kernels_on_one_stream_do_not_cover_each_other() {
    let mut trace = captured("torch-cuda-graph-node");
    let nsys = trace.timeline.as_mut().unwrap();
    // Every second kernel starts in the middle of its predecessor, as branches of one graph do.
    let all: Vec<Kernel> = nsys.kernels.iter().take(100).map(Kernel::from).collect();
    nsys.kernels = (0..all.len())
        .map(|at| {
            let mut kernel = all[at];
            if at % 2 == 1 {
                kernel.start_ns = i64::midpoint(all[at - 1].start_ns, all[at - 1].end_ns);
                kernel.stream = all[at - 1].stream;
            }
            kernel
        })
        .collect();
    nsys.ranges.iter_mut().for_each(|range| range.push_pop = false);
    assert!(check(&trace).iter().any(|it| it.kind == "kernel" && it.row.contains("concurrent")));
}

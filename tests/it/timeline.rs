//! The timeline read back by a reader that knows nothing but Perfetto's format: over sketches, real captures and events.

use std::{collections::HashMap, fs::File, path::Path};

use llmprof::{
    parse,
    report::perfetto,
    trace::{
        Trace,
        event::{Event, OperatorCall, StageRange},
        kernel::Kernel,
        nsys::{ApiCall, NsysTrace},
        power::{PowerLog, PowerSample, PowerSource, SampledDevice},
        range::Range,
    },
};

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn captured(name: &str) -> Trace {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sqlite");
    let packed = File::open(fixture(&format!("captures/{name}.sqlite.zst"))).unwrap();
    zstd::stream::copy_decode(packed, File::create(&path).unwrap()).unwrap();
    Trace { nsys: Some(parse::nsys::read(&path).unwrap()), ..Trace::default() }
}

fn plain() -> Trace {
    let (power, _) = parse::power::read(&fixture("nvml-synthetic.jsonl")).unwrap();
    Trace { baseline: parse::events::read(&fixture("events-tiny.jsonl")).unwrap().events, power, ..Trace::default() }
}

fn sketch() -> Trace {
    let stage = |name: &str, start_ns, end_ns| {
        Event::Range(StageRange { name: name.into(), start_ns, end_ns, device_ns: None, warmup: false, repeat: 0, step: None })
    };
    let call = |captured| {
        Event::Op(OperatorCall {
            path: "a\"b".into(),
            op: "linear".into(),
            start_ns: 1_001_000,
            end_ns: 1_001_500,
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
        graph_node: None,
    };
    let range =
        |push_pop, end_ns| Range { domain: "LLM".into(), name: "prefill".into(), start_ns: 5, end_ns, global_tid: 7, push_pop };
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
    };
    let sample = |t_ns, power_w| PowerSample { t_ns, power_w, ..PowerSample::default() };
    Trace {
        baseline: vec![stage("prefill", 1_001_000, 1_003_000), call(false), call(true), stage("broken", 9, 3)],
        power: Some(PowerLog { device, samples: vec![sample(1_000_000, Some(80.0)), sample(1_002_000, None)], end: None }),
        nsys: Some(NsysTrace {
            strings: vec!["gemm<1>".into(), "cudaMemcpyAsync".into()],
            ranges: vec![range(true, Some(50)), range(false, Some(60)), range(true, None)],
            cuda_calls: [ApiCall { name: 1, start_ns: 8, end_ns: 9, global_tid: 7, correlation_id: 2 }].into_iter().collect(),
            kernels: [kernel(7, 20), kernel(13, 22)].into_iter().collect(),
            ..NsysTrace::default()
        }),
        ..Trace::default()
    }
}

/// A value of the wire format.
#[derive(Debug, Clone, PartialEq)]
enum Wire {
    Number(u64),
    Double(f64),
    Bytes(Vec<u8>),
}

impl Wire {
    fn number(&self) -> u64 {
        let Self::Number(value) = self else { panic!("{self:?} is no number") };
        *value
    }

    fn text(&self) -> String {
        let Self::Bytes(bytes) = self else { panic!("{self:?} is no text") };
        String::from_utf8(bytes.clone()).unwrap()
    }

    fn message(&self) -> Vec<(u64, Wire)> {
        let Self::Bytes(bytes) = self else { panic!("{self:?} is no message") };
        message(bytes)
    }
}

fn message(mut bytes: &[u8]) -> Vec<(u64, Wire)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let length = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        let (this, rest) = bytes.split_at(length);
        *bytes = rest;
        this.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => Wire::Number(varint(&mut bytes)),
            1 => {
                let (this, rest) = bytes.split_at(8);
                bytes = rest;
                Wire::Double(f64::from_le_bytes(this.try_into().unwrap()))
            }
            2 => {
                let length = varint(&mut bytes) as usize;
                let (this, rest) = bytes.split_at(length);
                bytes = rest;
                Wire::Bytes(this.to_vec())
            }
            kind => panic!("no such kind of field: {kind}"),
        };
        fields.push((key >> 3, value));
    }
    fields
}

fn one(message: &[(u64, Wire)], field: u64) -> Option<&Wire> {
    message.iter().find(|(number, _)| *number == field).map(|(_, value)| value)
}

#[derive(Debug, Clone, PartialEq)]
pub struct Slice {
    pub track: u64,
    pub process: String,
    pub row: String,
    pub kind: String,
    pub name: String,
    args: Vec<(String, Wire)>,
    times: (u64, u64),
}

#[derive(Debug, Default)]
pub struct Read {
    pub slices: Vec<Slice>,
    figures: Vec<(String, u64, f64)>,
}

fn read(trace: &Trace) -> Read {
    decode(&perfetto::write(trace, Vec::new()).unwrap())
}

/// Reads a timeline as a program would that knows nothing but the format.
pub fn decode(timeline: &[u8]) -> Read {
    let (mut read, mut texts, mut tracks, mut open) = (Read::default(), HashMap::new(), HashMap::new(), HashMap::new());
    for (field, packet) in message(timeline) {
        assert_eq!(field, 1);
        let packet = packet.message();
        for (list, entry) in one(&packet, 12).map(Wire::message).unwrap_or_default() {
            let entry = entry.message();
            let known = texts.insert((list, one(&entry, 1).unwrap().number()), one(&entry, 2).unwrap().text());
            assert_eq!(known, None, "a text is written once");
        }
        if let Some(track) = one(&packet, 60).map(Wire::message) {
            let process = match one(&track, 3) {
                Some(process) => one(&process.message(), 6).unwrap().text(),
                None => {
                    let (process, _): &(String, String) = &tracks[&one(&track, 5).unwrap().number()];
                    process.clone()
                }
            };
            let unit = one(&track, 8).map(|counter| one(&counter.message(), 6).unwrap().text());
            let name =
                one(&track, 2).map(Wire::text).unwrap_or_default() + &unit.map(|unit| format!(", {unit}")).unwrap_or_default();
            tracks.insert(one(&track, 1).unwrap().number(), (process, name));
        }
        let Some(event) = one(&packet, 11).map(Wire::message) else { continue };
        let (at, track) = (one(&packet, 8).unwrap().number(), one(&event, 11).unwrap().number());
        let (process, row) = tracks[&track].clone();
        let text = |list: u64, value: &Wire| texts[&(list, value.number())].clone();
        match one(&event, 9).unwrap().number() {
            1 => {
                let args = event.iter().filter(|(field, _)| *field == 4).map(|(_, arg)| {
                    let arg = arg.message();
                    let value = one(&arg, 17).map(|value| Wire::Bytes(text(29, value).into_bytes()));
                    let value = value.or_else(|| one(&arg, 3).or(one(&arg, 2)).cloned()).unwrap();
                    (text(3, one(&arg, 1).unwrap()), value)
                });
                let (kind, name) = (text(1, one(&event, 3).unwrap()), text(2, one(&event, 10).unwrap()));
                let slice = Slice { track, process, row, kind, name, args: args.collect(), times: (at, at) };
                assert_eq!(open.insert(track, slice), None, "a slice is written with its end");
            }
            2 => {
                let slice = open.remove(&track).unwrap();
                read.slices.push(Slice { times: (slice.times.0, at), ..slice });
            }
            4 => {
                let Some(Wire::Double(value)) = one(&event, 44) else { panic!("a figure is a number") };
                read.figures.push((row, at, *value));
            }
            other => panic!("no such event: {other}"),
        }
    }
    assert!(open.is_empty());
    read
}

#[test]
fn stages_operators_kernels_copies_and_power_have_rows_of_their_own() {
    let read = read(&sketch());
    let rows: Vec<_> =
        read.slices.iter().map(|it| (it.process.as_str(), it.row.as_str(), it.kind.as_str(), it.name.as_str())).collect();
    assert_eq!(
        rows,
        [
            ("plain pass", "stages", "stage", "prefill"),
            ("plain pass", "operators (host)", "operator", "a\"b"),
            ("traced pass (nsys)", "ranges of thread 7", "range", "prefill"),
            ("traced pass (nsys)", "ranges that cross threads", "range", "prefill"),
            ("traced pass (nsys)", "calls that copy memory, thread 7", "copy", "cudaMemcpyAsync"),
            ("GPU 0 in the traced pass", "stream 7", "kernel", "gemm<1>"),
            ("GPU 0 in the traced pass", "stream 13", "kernel", "gemm<1>"),
        ],
        "what is captured, open or broken has no slice"
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
fn each_pass_begins_at_zero_and_power_shares_the_clock_of_the_plain_one() {
    let mut trace = sketch();
    trace.baseline.pop();
    let read = read(&trace);
    let of = |kind: &str| read.slices.iter().find(|it| it.kind == kind).unwrap().times;
    assert_eq!((read.figures[0].1, of("stage"), of("operator")), (0, (1_000, 3_000), (1_000, 1_500)));
    assert_eq!((of("range"), of("copy"), of("kernel")), ((0, 45), (3, 4), (15, 25)));
}

#[test]
fn what_runs_side_by_side_takes_the_first_free_row() {
    let mut trace = sketch();
    let nsys = trace.nsys.as_mut().unwrap();
    let kernel = nsys.kernels.get(0);
    let of = |start_ns, end_ns| Kernel { start_ns, end_ns, ..kernel };
    nsys.kernels = [of(20, 30), of(25, 28), of(26, 40), of(30, 31), of(31, 35), of(40, 41)].into_iter().collect();
    let read = read(&trace);
    let rows: Vec<_> = read.slices.iter().filter(|it| it.kind == "kernel").map(|it| it.row.as_str()).collect();
    let [first, second, third] = ["stream 7", "stream 7, beside it 1", "stream 7, beside it 2"];
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
        assert!(last.is_none_or(|last| last <= *at), "a figure that goes back: {name}");
    }
    read.slices
}

#[test]
fn slices_of_a_row_nest_in_order_and_hold_each_kernel_as_it_ran() {
    for name in ["hf-deepseek-decoder", "hf-llama-e2e", "hf-llama-attention-mock", "torch-cuda-graph-node"] {
        let trace = captured(name);
        let slices = check(&trace);
        let nsys = trace.nsys.as_ref().unwrap();
        let drawn = slices.iter().filter(|it| it.kind == "kernel").map(|it| (it.name.as_str(), it.times.1 - it.times.0));
        let ran = nsys.kernels.iter().map(|it| (nsys.strings[it.name as usize].as_str(), it.ns() as u64));
        assert!(drawn.eq(ran), "{name}");
        assert_eq!(
            slices.iter().filter(|it| it.kind == "range").count(),
            nsys.ranges.iter().filter(|it| it.end_ns.is_some()).count()
        );
    }
    assert!(check(&plain()).len() > 100);
}

#[test]
fn kernels_side_by_side_on_one_stream_do_not_cover_each_other() {
    let mut trace = captured("torch-cuda-graph-node");
    let nsys = trace.nsys.as_mut().unwrap();
    // Every second kernel begins in the middle of the one before it, as branches of one graph do.
    let all: Vec<_> = nsys.kernels.iter().take(100).collect();
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
    assert!(check(&trace).iter().any(|it| it.kind == "kernel" && it.row.contains("beside")));
}

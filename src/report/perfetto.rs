//! The timeline of a run in the Chrome trace format, which Perfetto's UI opens: stages, operators, kernels by stream, calls that copy,
//! power and clocks.
//!
//! Written event by event, never held as a whole. Slices of one track lie beside or inside each other, outer ones first, as the format
//! asks: what may cross (ranges that span threads, kernels side by side on one stream) gets a track of its own.
//! The plain and the traced pass have clocks of their own, each from zero: they stand
//! side by side as processes and are not aligned.

use std::{
    cmp::Reverse,
    collections::HashMap,
    io::{self, Write},
};

use serde_json::{Value, json};

use crate::trace::{
    Trace,
    event::Event,
    kernel::Kernels,
    nsys::{ApiCall, NsysTrace},
    power::PowerLog,
};

/// Processes, as the format knows them: one a source of events.
const PLAIN: u64 = 1;
const TRACED: u64 = 2;
/// Devices follow from here on.
const DEVICE: u64 = 10;
/// Threads of the plain pass.
const STAGES: u64 = 1;
const OPERATORS: u64 = 2;
/// The traced pass: ranges that may cross threads; its threads are numbered after them, and calls that copy by thread from there on.
const CROSSING: u64 = 1;
const THREADS: u64 = 3;
const COPIES: u64 = 1 << 20;
/// From one lane of a stream to the next: a kernel that begins before another of its stream has ended takes the next free lane.
const LANE: u64 = 1 << 32;

/// Writes the timeline as JSON.
pub fn write(trace: &Trace, out: impl Write) -> io::Result<()> {
    let mut events = Events { out, first: true, crossing: 0 };
    events.out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let begin = plain_begin(trace);
    plain(&mut events, &trace.baseline, begin)?;
    if let Some(log) = &trace.power {
        power(&mut events, log, begin)?;
    }
    if let Some(nsys) = &trace.nsys {
        traced(&mut events, nsys)?;
    }
    events.out.write_all(b"\n]}\n")?;
    events.out.flush()
}

/// When the plain pass begins on its clock: with its first range, or with the first sample before it.
fn plain_begin(trace: &Trace) -> i64 {
    let ranges = trace.baseline.iter().filter_map(|event| match event {
        Event::Range(range) => Some(range.start_ns),
        Event::Op(call) => Some(call.start_ns),
        _ => None,
    });
    let samples = trace.power.iter().flat_map(|log| &log.samples).map(|sample| sample.t_ns);
    ranges.chain(samples).min().unwrap_or(0)
}

fn plain(events: &mut Events<impl Write>, passed: &[Event], begin: i64) -> io::Result<()> {
    events.named("process_name", (PLAIN, 0), "plain pass")?;
    events.named("thread_name", (PLAIN, STAGES), "stages")?;
    events.named("thread_name", (PLAIN, OPERATORS), "operators (host)")?;
    // A range is told when it ends: what lies inside it comes before it.
    let time = |event: &&Event| match event {
        Event::Range(it) => (it.start_ns, Reverse(it.end_ns)),
        Event::Op(it) => (it.start_ns, Reverse(it.end_ns)),
        _ => (0, Reverse(0)),
    };
    let mut passed: Vec<&Event> = passed.iter().collect();
    passed.sort_by_key(time);
    for event in passed {
        match event {
            Event::Range(it) => {
                let about = json!({ "repeat": it.repeat, "warmup": it.warmup, "step": it.step });
                events.slice((PLAIN, STAGES), "stage", &it.name, (it.start_ns - begin, it.end_ns - begin), about)?;
            }
            // A call inside a replayed graph has no time of its own.
            Event::Op(it) if !it.captured => {
                let about =
                    json!({ "kind": it.op, "stage": it.stage, "shapes": it.shapes, "flops": it.flops, "bytes": it.bytes });
                events.slice((PLAIN, OPERATORS), "operator", &it.path, (it.start_ns - begin, it.end_ns - begin), about)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn power(events: &mut Events<impl Write>, log: &PowerLog, begin: i64) -> io::Result<()> {
    for sample in &log.samples {
        let at = sample.t_ns - begin;
        events.counter("power", "W", at, sample.power_w)?;
        events.counter("SM clock", "MHz", at, sample.sm_mhz.map(f64::from))?;
        events.counter("memory clock", "MHz", at, sample.memory_mhz.map(f64::from))?;
        events.counter("temperature", "°C", at, sample.temperature_c.map(f64::from))?;
    }
    Ok(())
}

fn traced(events: &mut Events<impl Write>, nsys: &NsysTrace) -> io::Result<()> {
    let text = |index: u32| nsys.strings.get(index as usize).map_or("", String::as_str);
    events.named("process_name", (TRACED, 0), "traced pass (nsys)")?;
    events.named("thread_name", (TRACED, CROSSING), "ranges that cross threads")?;
    let mut threads = Threads::default();
    for range in &nsys.ranges {
        let Some(end) = range.end_ns else { continue };
        let (span, domain) = ((range.start_ns, end), if range.domain.is_empty() { "default" } else { &range.domain });
        let about = json!({ "domain": domain });
        if range.push_pop {
            events.slice((TRACED, THREADS + threads.index(range.global_tid)), "range", &range.name, span, about)?;
        } else {
            events.crossing((TRACED, CROSSING), &range.name, span, about)?;
        }
    }
    for (thread, index) in threads.0.iter().zip(THREADS..) {
        events.named("thread_name", (TRACED, index), &format!("ranges of thread {}", thread & 0xff_ffff))?;
    }
    copies(events, nsys, text)?;
    kernels(events, &nsys.kernels, text)
}

/// Calls that copy, a track for each thread: those of two may cross.
fn copies<'a>(events: &mut Events<impl Write>, nsys: &NsysTrace, text: impl Fn(u32) -> &'a str) -> io::Result<()> {
    let mut threads = Threads::default();
    let copies = |call: &ApiCall| text(call.name).contains("emcpy");
    for call in nsys.cuda_calls.iter().filter(copies) {
        let track = (TRACED, COPIES + threads.index(call.global_tid));
        events.slice(track, "copy", text(call.name), (call.start_ns, call.end_ns), json!({}))?;
    }
    for (thread, index) in threads.0.iter().zip(COPIES..) {
        events.named("thread_name", (TRACED, index), &format!("calls that copy memory, thread {}", thread & 0xff_ffff))?;
    }
    Ok(())
}

/// Kernels by device and stream.
fn kernels<'a>(events: &mut Events<impl Write>, kernels: &Kernels, text: impl Fn(u32) -> &'a str) -> io::Result<()> {
    // When the last kernel of each lane ends, by stream.
    let mut streams: HashMap<(u32, u32), Vec<i64>> = HashMap::new();
    for it in kernels.iter() {
        let lanes = streams.entry((it.device, it.stream)).or_default();
        let lane = lanes.iter().position(|end| *end <= it.start_ns).unwrap_or_else(|| {
            lanes.push(it.end_ns);
            lanes.len() - 1
        });
        lanes[lane] = it.end_ns;
        let about = json!({ "full name": text(it.full_name), "grid": it.grid, "block": it.block, "registers": it.registers,
            "correlation": it.correlation_id, "graph node": it.graph_node });
        let track = (DEVICE + u64::from(it.device), u64::from(it.stream) + lane as u64 * LANE);
        events.slice(track, "kernel", text(it.name), (it.start_ns, it.end_ns), about)?;
    }
    let mut streams: Vec<((u32, u32), usize)> = streams.into_iter().map(|(stream, lanes)| (stream, lanes.len())).collect();
    streams.sort_unstable();
    for ((device, stream), lanes) in streams {
        let process = DEVICE + u64::from(device);
        events.named("process_name", (process, 0), &format!("GPU {device} in the traced pass"))?;
        for lane in 0..lanes as u64 {
            let name = if lane == 0 { format!("stream {stream}") } else { format!("stream {stream}, beside it {lane}") };
            events.named("thread_name", (process, u64::from(stream) + lane * LANE), &name)?;
        }
    }
    Ok(())
}

/// Threads in order of first use.
#[derive(Default)]
struct Threads(Vec<i64>);

impl Threads {
    fn index(&mut self, thread: i64) -> u64 {
        let known = self.0.iter().position(|known| *known == thread);
        known.unwrap_or_else(|| {
            self.0.push(thread);
            self.0.len() - 1
        }) as u64
    }
}

/// The list of events, as far as it is written.
struct Events<W> {
    out: W,
    first: bool,
    /// Ids that were given to intervals which may cross.
    crossing: u64,
}

impl<W: Write> Events<W> {
    fn event(&mut self, event: &Value) -> io::Result<()> {
        self.out.write_all(if self.first { b"\n" } else { b",\n" })?;
        self.first = false;
        serde_json::to_writer(&mut self.out, event).map_err(io::Error::from)
    }

    /// Names a process or a thread.
    fn named(&mut self, what: &str, (pid, tid): (u64, u64), name: &str) -> io::Result<()> {
        self.event(&json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": { "name": name } }))
    }

    /// An interval; one that ends before it begins is an error of its source and is left out.
    fn slice(&mut self, track: (u64, u64), kind: &str, name: &str, (from, to): (i64, i64), about: Value) -> io::Result<()> {
        if to < from {
            return Ok(());
        }
        let (ts, dur) = (microseconds(from), microseconds(to - from));
        self.event(
            &json!({ "ph": "X", "cat": kind, "name": name, "pid": track.0, "tid": track.1, "ts": ts, "dur": dur, "args": about }),
        )
    }

    /// An interval that may cross others of its track: its begin and its end, joined by an id.
    fn crossing(&mut self, track: (u64, u64), name: &str, (from, to): (i64, i64), about: Value) -> io::Result<()> {
        if to < from {
            return Ok(());
        }
        self.crossing += 1;
        for (phase, at) in [("b", from), ("e", to)] {
            self.event(&json!({ "ph": phase, "cat": "range", "id": self.crossing, "name": name, "pid": track.0, "tid": track.1,
                "ts": microseconds(at), "args": about }))?;
        }
        Ok(())
    }

    /// A figure at a time, where it is known.
    fn counter(&mut self, name: &str, unit: &str, at: i64, value: Option<f64>) -> io::Result<()> {
        let Some(value) = value.filter(|value| value.is_finite()) else { return Ok(()) };
        let name = format!("{name}, {unit}");
        self.event(&json!({ "ph": "C", "name": name, "pid": PLAIN, "tid": 0, "ts": microseconds(at), "args": { unit: value } }))
    }
}

/// The format counts in microseconds; nanoseconds are its decimals.
fn microseconds(ns: i64) -> f64 {
    ns as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{
        event::{OperatorCall, StageRange},
        kernel::Kernel,
        nsys::ApiCall,
        power::{PowerSample, PowerSource, SampledDevice},
        range::Range,
    };

    fn sketch() -> Trace {
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
        let range = |push_pop, end_ns| Range {
            domain: "LLM".into(),
            name: "prefill".into(),
            start_ns: 5,
            end_ns,
            global_tid: 7,
            push_pop,
        };
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

    fn read(trace: &Trace) -> Vec<Value> {
        let mut text = Vec::new();
        write(trace, &mut text).unwrap();
        let mut read: Value = serde_json::from_slice(&text).unwrap();
        read["traceEvents"].take().as_array().unwrap().clone()
    }

    #[test]
    fn every_event_is_as_the_format_has_it() {
        for event in read(&sketch()) {
            assert!(event["name"].as_str().is_some_and(|name| !name.is_empty()), "{event}");
            assert!(event["pid"].is_u64() && event["tid"].is_u64() && event["args"].is_object(), "{event}");
            match event["ph"].as_str().unwrap() {
                "M" => assert!(event["args"]["name"].is_string(), "{event}"),
                "X" => assert!(event["ts"].as_f64() >= Some(-2e3) && event["dur"].as_f64() >= Some(0.0), "{event}"),
                "b" | "e" => assert!(event["ts"].is_number() && event["id"].is_u64(), "{event}"),
                "C" => assert!(event["args"].as_object().unwrap().values().all(Value::is_number), "{event}"),
                other => panic!("no such phase: {other}"),
            }
        }
    }

    #[test]
    fn stages_operators_kernels_copies_and_power_have_tracks_that_are_named() {
        let events = read(&sketch());
        let of = |kind: &str| events.iter().filter(|it| it["cat"] == kind).collect::<Vec<_>>();
        let counts = ["stage", "operator", "range", "copy", "kernel"].map(|kind| of(kind).len());
        assert_eq!(counts, [1, 1, 3, 1, 2], "a range that crosses has two ends; what is captured, open or broken has no slice");
        assert_eq!(of("operator")[0]["name"], "a\"b");
        let streams: Vec<_> = of("kernel").iter().map(|it| it["tid"].as_u64().unwrap()).collect();
        assert_eq!(streams, [7, 13]);
        let power: Vec<_> = events.iter().filter(|it| it["ph"] == "C").collect();
        assert_eq!((power.len(), &power[0]["args"]["W"]), (1, &json!(80.0)));
        let named =
            |it: &Value| events.iter().any(|m| m["name"] == "thread_name" && m["pid"] == it["pid"] && m["tid"] == it["tid"]);
        assert!(events.iter().filter(|it| it["ph"] == "X").all(named));
    }

    #[test]
    fn power_and_stages_of_the_plain_pass_share_a_clock() {
        let mut trace = sketch();
        trace.baseline.pop();
        let events = read(&trace);
        let at = |kind: &str, value: &str| events.iter().find(|it| it[kind] == value).unwrap()["ts"].as_f64();
        assert_eq!((at("ph", "C"), at("cat", "stage")), (Some(0.0), Some(1.0)));
    }

    #[test]
    fn an_empty_run_is_an_empty_timeline() {
        assert!(read(&Trace::default()).iter().all(|event| event["ph"] == "M"));
    }
}

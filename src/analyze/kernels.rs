//! Which kernels the device's time went to, and in which stage each was launched.
//!
//! A range closes when the host returns, and its kernels run later: a kernel belongs to the stage that was open, on the launching
//! thread, when the call that launched it began (joined by correlation id and process).

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    interval::{Cover, covered_ns},
    stages::STAGES,
    stats::percent,
};
use crate::trace::{event::STAGE_DOMAIN, kernel::Kernel, nsys::NsysTrace, range::Range, units::Nanos};

/// Stage of kernels launched by warm-up repeats: kept apart, never in a top list.
pub const WARMUP: &str = "warmup";

/// Launches of one kernel in one stage, in the traced pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KernelRecord {
    /// The function's name, without template arguments and parameters.
    #[schema(example = "nvjet_tst_128x64_64x8_2x1_v_bz_TNT")]
    pub kernel_name: String,
    /// Index of the device.
    pub device: u32,
    /// Empty outside every stage.
    #[schema(example = "decode_all")]
    pub stage: String,
    #[schema(example = 12.0)]
    pub total_ms: f64,
    #[schema(example = 48)]
    pub calls: u64,
    /// `total_ms / calls`.
    #[schema(example = 0.25)]
    pub mean_ms: f64,
    /// Share of the stage's kernel time, percent.
    pub share_pct: Option<f64>,
}

/// Device time of one stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StageKernels {
    #[schema(example = "decode_all")]
    pub stage: String,
    pub launches: u64,
    /// Sum over kernels.
    pub kernel_ms: f64,
    /// Time in which at least one kernel ran, over all streams.
    pub busy_ms: f64,
}

/// Kernels of the traced pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kernels {
    /// One record per device, stage and short name, longest total first; warm-up included.
    pub records: Vec<KernelRecord>,
    pub stages: Vec<StageKernels>,
    /// Kernels whose launching call is not in the trace, so that no stage can be told.
    pub orphans: u64,
}

impl Kernels {
    /// Records of measured work: everything but warm-up, longest total first.
    pub fn measured(&self) -> impl Iterator<Item = &KernelRecord> {
        self.records.iter().filter(|record| record.stage != WARMUP)
    }
}

/// Sums the kernels of one capture by stage and short name.
pub fn kernels(trace: &NsysTrace) -> Kernels {
    let launches: HashMap<(i64, i64), (i64, i64)> = trace
        .cuda_calls
        .iter()
        .filter(|call| call.correlation_id != 0)
        .map(|call| ((process_of(call.global_tid), call.correlation_id), (call.global_tid, call.start_ns)))
        .collect();
    let scopes = Scopes::of(&trace.ranges);

    let mut sums: BTreeMap<(u32, &'static str, u32), (u64, Nanos)> = BTreeMap::new();
    let mut per_stage: BTreeMap<&'static str, Vec<&Kernel>> = BTreeMap::new();
    let mut orphans = 0;
    for kernel in &trace.kernels {
        let launch = launches.get(&(process_of(kernel.global_pid), kernel.correlation_id));
        orphans += u64::from(launch.is_none());
        let stage = launch.map_or("", |&(thread, at)| scopes.stage(thread, at));
        let sum = sums.entry((kernel.device, stage, kernel.name)).or_default();
        sum.0 += 1;
        sum.1 += Nanos(kernel.end_ns - kernel.start_ns);
        per_stage.entry(stage).or_default().push(kernel);
    }

    let stages: Vec<StageKernels> = per_stage
        .iter()
        .map(|(stage, kernels)| StageKernels {
            stage: (*stage).into(),
            launches: kernels.len() as u64,
            kernel_ms: kernels.iter().map(|kernel| Nanos(kernel.end_ns - kernel.start_ns)).sum::<Nanos>().as_ms(),
            busy_ms: busy(kernels).as_ms(),
        })
        .collect();
    let stage_ms = |stage: &str| stages.iter().find(|it| it.stage == stage).map_or(0.0, |it| it.kernel_ms);
    let mut records: Vec<KernelRecord> = sums
        .into_iter()
        .map(|((device, stage, name), (calls, total))| KernelRecord {
            kernel_name: trace.strings.get(name as usize).cloned().unwrap_or_default(),
            device,
            stage: stage.into(),
            total_ms: total.as_ms(),
            calls,
            mean_ms: total.as_ms() / calls as f64,
            share_pct: percent(total.as_ms(), stage_ms(stage)),
        })
        .collect();
    records.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
    Kernels { records, stages, orphans }
}

/// Time in which at least one kernel ran, summed over devices.
fn busy(kernels: &[&Kernel]) -> Nanos {
    let mut devices: BTreeMap<u32, Vec<(i64, i64)>> = BTreeMap::new();
    for kernel in kernels {
        devices.entry(kernel.device).or_default().push((kernel.start_ns, kernel.end_ns));
    }
    devices.into_values().map(|intervals| Nanos(covered_ns(intervals))).sum()
}

/// The process part of a tool's id: its low 24 bits number the thread.
fn process_of(global_id: i64) -> i64 {
    global_id & !0xff_ffff
}

/// Where stages were open: per thread for push/pop ranges, per process for those that may cross threads.
#[derive(Default)]
struct Scopes(HashMap<(i64, &'static str), Cover>);

impl Scopes {
    fn of(ranges: &[Range]) -> Self {
        let mut open: HashMap<(i64, &'static str), Vec<(i64, i64)>> = HashMap::new();
        for range in ranges.iter().filter(|range| range.domain == STAGE_DOMAIN || range.domain.is_empty()) {
            if let Some(stage) = stage_named(&range.name) {
                let place = if range.push_pop { range.global_tid } else { process_of(range.global_tid) };
                open.entry((place, stage)).or_default().push((range.start_ns, range.end_ns.unwrap_or(i64::MAX)));
            }
        }
        Self(open.into_iter().map(|(place, intervals)| (place, Cover::new(intervals))).collect())
    }

    fn stage(&self, thread: i64, at: i64) -> &'static str {
        let open = |stage| {
            [thread, process_of(thread)].into_iter().any(|place| self.0.get(&(place, stage)).is_some_and(|it| it.holds(at)))
        };
        [WARMUP].into_iter().chain(STAGES).find(|stage| open(*stage)).unwrap_or("")
    }
}

fn stage_named(name: &str) -> Option<&'static str> {
    match name {
        "decode" => Some(super::stages::DECODE),
        _ => [WARMUP].into_iter().chain(STAGES).find(|stage| *stage == name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::nsys::ApiCall;

    const PROCESS: i64 = 7 << 24;

    /// Builds a capture from lines such as `range T prefill 0..10`, `call T 1 2..3` (correlation), `kernel 1 gemm 4..9 stream 7`.
    pub(crate) fn capture(sketch: &str) -> NsysTrace {
        let mut trace = NsysTrace::default();
        for words in sketch.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).filter(|words| !words.is_empty()) {
            let interval = |text: &str| -> (i64, i64) {
                let (start, end) = text.split_once("..").unwrap();
                (start.parse().unwrap(), end.parse().unwrap())
            };
            let thread = |text: &str| PROCESS | text.parse::<i64>().unwrap();
            match words[..] {
                [kind @ ("range" | "cross"), tid, name, at] => {
                    let (start_ns, end_ns) = interval(at);
                    trace.ranges.push(Range {
                        domain: STAGE_DOMAIN.into(),
                        name: name.into(),
                        start_ns,
                        end_ns: Some(end_ns),
                        global_tid: thread(tid),
                        push_pop: kind == "range",
                    });
                }
                ["call", tid, correlation, at] => {
                    let (start_ns, end_ns) = interval(at);
                    let correlation_id = correlation.parse().unwrap();
                    trace.cuda_calls.push(ApiCall { name: 0, start_ns, end_ns, global_tid: thread(tid), correlation_id });
                }
                ["kernel", correlation, name, at, stream] => {
                    let (start_ns, end_ns) = interval(at);
                    let index = trace.strings.iter().position(|known| known == name).unwrap_or_else(|| {
                        trace.strings.push(name.into());
                        trace.strings.len() - 1
                    }) as u32;
                    trace.kernels.push(Kernel {
                        name: index,
                        full_name: index,
                        device: 0,
                        stream: stream.parse().unwrap(),
                        start_ns,
                        end_ns,
                        global_pid: PROCESS,
                        correlation_id: correlation.parse().unwrap(),
                        grid: [1; 3],
                        block: [1; 3],
                        registers: 0,
                        graph_node: None,
                    });
                }
                _ => panic!("no such line: {words:?}"),
            }
        }
        trace
    }

    /// One line per record: `stage name calls total_ns`.
    fn table(sketch: &str) -> String {
        let kernels = kernels(&capture(sketch));
        let line = |it: &KernelRecord| format!("{:?} {} {} {}", it.stage, it.kernel_name, it.calls, (it.total_ms * 1e6).round());
        kernels.records.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_kernel_belongs_to_the_stage_that_launched_it_even_when_it_runs_later() {
        let sketch = "range 1 prefill 0..10\nrange 1 decode_all 10..20\ncall 1 1 8..9\nkernel 1 gemm 15..25 7";
        insta::assert_snapshot!(table(sketch), @r#""prefill" gemm 1 10"#);
    }

    #[test]
    fn records_are_per_stage_and_name_longest_first() {
        let sketch = "range 1 prefill 0..10\nrange 1 decode_all 10..20
            call 1 1 1..2\ncall 1 2 3..4\ncall 1 3 11..12
            kernel 1 gemm 20..22 7\nkernel 2 gemm 22..25 7\nkernel 3 gemm 30..37 7";
        insta::assert_snapshot!(table(sketch), @r#"
        "decode_all" gemm 1 7
        "prefill" gemm 2 5
        "#);
    }

    #[test]
    fn another_threads_range_does_not_claim_a_launch_unless_it_crosses_threads() {
        let launch = "call 2 1 1..2\nkernel 1 gemm 5..6 7";
        insta::assert_snapshot!(table(&format!("range 1 prefill 0..10\n{launch}")), @r#""" gemm 1 1"#);
        insta::assert_snapshot!(table(&format!("cross 1 prefill 0..10\n{launch}")), @r#""prefill" gemm 1 1"#);
    }

    #[test]
    fn warm_up_is_kept_apart_from_what_was_measured() {
        let sketch = "range 1 warmup 0..10\nrange 1 prefill 1..9\ncall 1 1 2..3\nkernel 1 gemm 5..6 7";
        let kernels = kernels(&capture(sketch));
        assert_eq!(kernels.records[0].stage, WARMUP);
        assert_eq!(kernels.measured().count(), 0);
    }

    #[test]
    fn kernels_on_two_streams_are_busy_once() {
        let sketch = "range 1 prefill 0..10\ncall 1 1 1..2\ncall 1 2 2..3\nkernel 1 a 10..20 7\nkernel 2 b 15..25 8";
        let stage = &kernels(&capture(sketch)).stages[0];
        assert_eq!((stage.kernel_ms, stage.busy_ms, stage.launches), (20e-6, 15e-6, 2));
    }

    #[test]
    fn a_kernel_without_its_launch_is_an_orphan() {
        let kernels = kernels(&capture("range 1 prefill 0..10\nkernel 9 gemm 5..6 7"));
        assert_eq!((kernels.orphans, kernels.records[0].stage.as_str()), (1, ""));
    }
}

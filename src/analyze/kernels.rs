//! Which kernels the device's time went to, and in which stage each was launched.
//!
//! A range closes when the host returns, and its kernels run later: a kernel belongs to the stage that was open, on the launching
//! thread, when the call that launched it began (joined by correlation id and process).

mod stages;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    classes::{Class, Classes, OTHER},
    counters::KernelCounters,
    launches::Launches,
    scopes::NONE,
    spans::Spans,
    stats::percent,
};
use crate::trace::{kernel::Kernel, nsys::NsysTrace, units::Nanos};

/// Stage of kernels launched by warm-up repeats: kept apart, never in a top list.
pub const WARMUP: &str = "warmup";

/// Launches of one kernel in one stage, in the traced pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KernelRecord {
    /// The function's name, without template arguments and parameters.
    #[schema(example = "nvjet_tst_128x64_64x8_2x1_v_bz_TNT")]
    pub kernel_name: String,
    /// The whole name of those that took most of the time.
    pub full_name: String,
    /// Functions that share the short name.
    #[schema(example = 1)]
    pub full_names: u64,
    /// What most of its time does: `gemm`, `attention`, `norm`, `softmax`, `elementwise`, `copy`, `reduce`, `moe`, `sort`, `conv`, or
    /// `other` where the name tells nothing.
    #[schema(example = "gemm")]
    pub class: String,
    /// Whose kernel it is; `null` where the name does not tell.
    #[schema(example = "cublas")]
    pub engine: Option<String>,
    /// Index of the device; `null` when several ran it.
    #[schema(example = 0)]
    pub device: Option<u32>,
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
    /// Single launches, nanoseconds.
    pub launch_ns: Spans,
    /// Blocks of the grid of most launches.
    #[schema(value_type = Vec<u32>, example = json!([4, 24, 1]))]
    pub grid: [u32; 3],
    /// Threads of a block of most launches.
    #[schema(value_type = Vec<u32>, example = json!([384, 1, 1]))]
    pub block: [u32; 3],
    /// Registers per thread of most launches.
    #[schema(example = 168)]
    pub registers: u32,
    /// Distinct grids and blocks.
    #[schema(example = 1)]
    pub geometries: u64,
    /// Share of the stage's recorded kernel time, percent.
    pub share_pct: Option<f64>,
    /// What ncu read of it; `null` when it was not profiled.
    pub counters: Option<KernelCounters>,
}

/// Device time of one stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StageKernels {
    #[schema(example = "decode_all")]
    pub stage: String,
    /// Kernels that are recorded.
    pub launches: u64,
    /// Sum over recorded kernels.
    pub kernel_ms: f64,
    /// Time in which at least one kernel, copy, fill or whole-traced graph of the stage ran: per device over all streams, summed
    /// over devices. An upper bound where `graph_launches` is above zero.
    pub busy_ms: f64,
    /// Launches of CUDA graphs that were traced as a whole: the kernels inside are not recorded.
    #[serde(default)]
    pub graph_launches: u64,
    /// Sum over those launches, each from its start to its end on the device.
    #[serde(default)]
    pub graph_ms: f64,
}

/// Time of one class of kernels in one stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClassRecord {
    #[schema(example = "decode_all")]
    pub stage: String,
    #[schema(example = "gemm")]
    pub class: String,
    pub calls: u64,
    pub total_ms: f64,
    /// Share of the stage's recorded kernel time, percent.
    pub share_pct: Option<f64>,
}

/// Kernels of the traced pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kernels {
    /// One record per stage and short name, longest total first; warm-up included.
    pub records: Vec<KernelRecord>,
    pub stages: Vec<StageKernels>,
    /// By stage, longest first.
    pub classes: Vec<ClassRecord>,
    /// Share of all kernel time whose class is known, percent.
    pub classified_pct: Option<f64>,
    /// Kernels whose launching call is not in the trace, so that no stage can be told.
    pub orphans: u64,
}

impl Kernels {
    /// Records of measured work: everything but warm-up, longest total first.
    pub fn measured(&self) -> impl Iterator<Item = &KernelRecord> {
        self.records.iter().filter(|record| record.stage != WARMUP)
    }
}

/// A kernel and the stage that launched it, empty outside all of them; `None` when the launching call is not in the trace.
pub(super) type Launched<'a> = (Kernel, Option<&'a str>);

/// Every kernel of a capture with its stage, in the order of the trace.
pub(super) fn launched<'a>(trace: &'a NsysTrace, launches: &'a Launches) -> impl Iterator<Item = Launched<'a>> {
    let stage = |&(call, instance): &(u32, u32)| (call != NONE).then(|| launches.stage(instance));
    trace.kernels.iter().zip(launches.kernels.iter().map(stage))
}

/// Launches of one kind in one stage.
#[derive(Clone, Copy, Default)]
struct Tally {
    calls: u64,
    ns: i64,
}

/// Sums the kernels of one capture by stage and short name.
pub fn kernels(trace: &NsysTrace, launches: &Launches) -> Kernels {
    let numbers = launches.numbers();
    let kinds = trace.kernels.kinds();
    let mut tallies = vec![Tally::default(); kinds.len() * numbers];
    let cell_of = |at: usize| trace.kernels.kind(at) as usize * numbers + launches.stage_number(launches.kernels[at].1);
    let mut orphans = 0;
    for (at, kernel) in trace.kernels.iter().enumerate() {
        orphans += u64::from(launches.kernels[at].0 == NONE);
        let tally = &mut tallies[cell_of(at)];
        tally.calls += 1;
        tally.ns = tally.ns.saturating_add(kernel.ns());
    }

    // Kinds of one stage and short name make a record.
    let mut groups: BTreeMap<(usize, u32), Vec<usize>> = BTreeMap::new();
    for (cell, _) in tallies.iter().enumerate().filter(|(_, tally)| tally.calls > 0) {
        groups.entry((cell % numbers, kinds[cell / numbers].name)).or_default().push(cell);
    }
    let mut group_of = vec![NONE; tallies.len()];
    for (group, cells) in groups.values().enumerate() {
        cells.iter().for_each(|cell| group_of[*cell] = group as u32);
    }
    let spans = Spans::grouped(groups.len(), trace.kernels.iter().enumerate().map(|(at, it)| (group_of[cell_of(at)], it.ns())));

    let stages = stages::stage_kernels(trace, launches, &tallies);
    let stage_ms = |stage: &str| stages.iter().find(|it| it.stage == stage).map_or(0.0, |it| it.kernel_ms);
    let mut classes = Classes::default();
    let mut by_class: BTreeMap<(usize, &'static str), Tally> = BTreeMap::new();
    let name = |index: u32| trace.strings.get(index as usize).cloned().unwrap_or_default();
    let mut records: Vec<KernelRecord> = Vec::with_capacity(groups.len());
    for (((number, short), cells), launch_ns) in groups.iter().zip(spans) {
        let mut of_class: BTreeMap<&str, (Tally, Class)> = BTreeMap::new();
        let mut of_name: BTreeMap<u32, Tally> = BTreeMap::new();
        let mut geometries: BTreeMap<([u32; 3], [u32; 3]), u64> = BTreeMap::new();
        for cell in cells {
            let (kind, tally) = (&kinds[cell / numbers], tallies[*cell]);
            let class = classes.of(kind.full_name, &trace.strings);
            let add = |sum: &mut Tally| (sum.calls, sum.ns) = (sum.calls + tally.calls, sum.ns + tally.ns);
            add(&mut of_class.entry(class.class).or_insert((Tally::default(), class)).0);
            add(of_name.entry(kind.full_name).or_default());
            add(by_class.entry((*number, class.class)).or_default());
            *geometries.entry((kind.grid, kind.block)).or_default() += tally.calls;
        }
        let device = kinds[cells[0] / numbers].device;
        let most =
            cells.iter().max_by_key(|cell| tallies[**cell].calls).map_or(&kinds[cells[0] / numbers], |it| &kinds[it / numbers]);
        let class = of_class.values().max_by_key(|(tally, _)| tally.ns).map(|(_, class)| *class);
        let longest = of_name.iter().max_by_key(|(_, tally)| tally.ns).map_or(*short, |(full, _)| *full);
        let stage = launches.numbered(*number);
        let (calls, total) = (launch_ns.count, Nanos(launch_ns.total));
        records.push(KernelRecord {
            kernel_name: name(*short),
            full_name: name(longest),
            full_names: of_name.len() as u64,
            class: class.map_or(OTHER, |it| it.class).to_owned(),
            engine: class.and_then(|it| it.engine).map(str::to_owned),
            device: cells.iter().all(|cell| kinds[cell / numbers].device == device).then_some(device),
            stage: stage.into(),
            total_ms: total.as_ms(),
            calls,
            mean_ms: total.as_ms() / calls as f64,
            launch_ns,
            grid: most.grid,
            block: most.block,
            registers: most.registers,
            geometries: geometries.len() as u64,
            share_pct: percent(total.as_ms(), stage_ms(stage)),
            counters: None,
        });
    }
    records.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));

    let all: i64 = by_class.values().map(|tally| tally.ns).sum();
    let known: i64 = by_class.iter().filter(|((_, class), _)| *class != OTHER).map(|(_, tally)| tally.ns).sum();
    let class = |((number, class), tally): (&(usize, &str), &Tally)| {
        let (stage, total_ms) = (launches.numbered(*number), Nanos(tally.ns).as_ms());
        let share_pct = percent(total_ms, stage_ms(stage));
        ClassRecord { stage: stage.into(), class: (*class).into(), calls: tally.calls, total_ms, share_pct }
    };
    let mut classes: Vec<ClassRecord> = by_class.iter().map(class).collect();
    classes.sort_by(|a, b| a.stage.cmp(&b.stage).then(b.total_ms.total_cmp(&a.total_ms)));
    Kernels { records, stages, classes, classified_pct: percent(known as f64, all as f64), orphans }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::trace::{
        event::STAGE_DOMAIN,
        nsys::{ApiCall, CopyKind, GraphLaunch, MemoryOp},
        range::Range,
    };

    const PROCESS: i64 = 7 << 24;

    /// Builds a capture from lines such as `range T prefill 0..10`, `call T 1 2..3` (correlation), `kernel 1 gemm 4..9 stream 7`,
    /// `graph 1 ID 4..9 stream`, `copy 1 BYTES 4..9`, `fill 1 BYTES 4..9`.
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
                ["graph", correlation, id, at, stream] => {
                    let (start_ns, end_ns) = interval(at);
                    trace.graphs.push(GraphLaunch {
                        start_ns,
                        end_ns,
                        device: 0,
                        stream: stream.parse().unwrap(),
                        global_pid: PROCESS,
                        correlation_id: correlation.parse().unwrap(),
                        graph: Some(id.parse().unwrap()),
                    });
                }
                [kind @ ("copy" | "fill"), correlation, bytes, at] => {
                    let (start_ns, end_ns) = interval(at);
                    trace.copies.push(MemoryOp {
                        start_ns,
                        end_ns,
                        bytes: bytes.parse().unwrap(),
                        kind: if kind == "fill" { CopyKind::Set } else { CopyKind::DeviceToHost },
                        device: 0,
                        global_pid: PROCESS,
                        correlation_id: correlation.parse().unwrap(),
                        graph_node: None,
                    });
                }
                _ => panic!("no such line: {words:?}"),
            }
        }
        trace
    }

    fn summed(sketch: &str) -> Kernels {
        let trace = capture(sketch);
        kernels(&trace, &Launches::of(&trace))
    }

    /// One line per record: `stage name calls total_ns`.
    fn table(sketch: &str) -> String {
        let kernels = summed(sketch);
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
        let kernels = summed(sketch);
        assert_eq!(kernels.records[0].stage, WARMUP);
        assert_eq!(kernels.measured().count(), 0);
    }

    #[test]
    fn kernels_on_two_streams_are_busy_once() {
        let sketch = "range 1 prefill 0..10\ncall 1 1 1..2\ncall 1 2 2..3\nkernel 1 a 10..20 7\nkernel 2 b 15..25 8";
        let stage = &summed(sketch).stages[0];
        assert_eq!((stage.kernel_ms, stage.busy_ms, stage.launches), (20e-6, 15e-6, 2));
    }

    #[test]
    fn a_graph_that_was_traced_as_a_whole_and_a_copy_are_busy_time_and_not_kernel_time() {
        let sketch = "range 1 prefill 0..10\ncall 1 1 1..2\ncall 1 2 2..3\ncall 1 3 4..5\nkernel 1 a 10..20 7\ngraph 2 5 15..40 7
            copy 3 100 38..44";
        let stage = &summed(sketch).stages[0];
        assert_eq!((stage.launches, stage.kernel_ms, stage.busy_ms), (1, 10e-6, 34e-6));
        assert_eq!((stage.graph_launches, stage.graph_ms), (1, 25e-6));
    }

    #[test]
    fn a_kernel_without_its_launch_is_an_orphan() {
        let kernels = summed("range 1 prefill 0..10\nkernel 9 gemm 5..6 7");
        assert_eq!((kernels.orphans, kernels.records[0].stage.as_str()), (1, ""));
    }
}

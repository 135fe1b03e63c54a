//! Reasons on sketches, the figures that each reason withholds, and tables without these figures.

use llmprof_core::trace::{
    Trace,
    clocks::UnequalClock,
    range::Range,
    stage::StageRules,
    timeline::{ApiCall, ON_HOST, Timeline},
    untimed::TimeFault,
};
use proptest::prelude::*;

use super::{TimelineFigure as Figure, WithheldReason as Reason, *};
use crate::{
    analyze,
    kernels::tests::capture,
    stages::{DECODE, PREFILL},
    timeline::{gpu::step_idle::WantedSteps, step_states, tables::TimelineTables},
};

const PROCESS: i64 = 7 << 24;
const STEP: &str = "execute_context_0(0)_generation_8(8)";
const STEPS: i64 = 8;
/// Kernels of a step.
const KERNELS: i64 = 4;
/// Correlation of a call that launches a graph; the calls from `WAIT` on wait.
const GRAPH: i64 = 888;
const WAIT: i64 = 900;

/// A capture whose calls launch kernels. Its graphs have no GPU.
fn with_launches(sketch: &str) -> Timeline {
    let mut trace = capture(sketch);
    let first = trace.strings.len() as u32;
    let names = ["cudaLaunchKernel_v7000", "cudaGraphLaunch_v10000", "cudaStreamSynchronize_v3020"];
    trace.strings.extend(names.map(str::to_owned));
    let named = |call: ApiCall| {
        let id = call.correlation_id;
        let name = first + u32::from(id >= GRAPH) + u32::from(id >= WAIT);
        ApiCall { name, ..call }
    };
    trace.cuda_calls = trace.cuda_calls.iter().map(named).collect();
    trace.graphs.iter_mut().for_each(|it| it.device = ON_HOST);
    trace
}

/// Ranges of the steps of a sketch.
#[derive(Debug, Clone, Copy)]
enum StepRanges {
    Stages,
    Engine,
    Missing,
}

/// Steps of 60 us every 100 us. `is_early` adds a kernel before its launch, `has_graph` a graph.
fn steps(ranges: StepRanges, is_early: bool, has_graph: bool) -> Timeline {
    let mut lines: Vec<(i64, String)> = Vec::new();
    for at in 0..STEPS {
        let start = 100_000 * at;
        let name = match ranges {
            StepRanges::Stages if at < 3 => Some(PREFILL),
            StepRanges::Stages => Some(DECODE),
            StepRanges::Engine => Some(STEP),
            StepRanges::Missing => None,
        };
        let range = name.map(|name| format!("range 1 {name} {start}..{}", start + 60_000));
        lines.extend(range.map(|it| (start, it)));
        for kernel in 0..KERNELS {
            let id = KERNELS * at + kernel + 1;
            let (call, work) = (start + 1_000 * (kernel + 1), start + 10_000 * (kernel + 1));
            lines.push((call, format!("call 1 {id} {call}..{}", call + 500)));
            lines.push((work, format!("kernel {id} k{kernel} {work}..{} 7", work + 9_000)));
        }
    }
    if is_early {
        lines.push((430_000, "kernel 777 early 430000..431000 8".to_owned()));
        lines.push((445_000, "call 1 777 445000..446000".to_owned()));
    }
    if has_graph {
        lines.push((506_000, format!("call 1 {GRAPH} 506000..507000")));
        lines.push((510_000, format!("graph {GRAPH} 5 510000..520000 9")));
    }
    lines.sort();
    with_launches(&lines.into_iter().map(|it| it.1).collect::<Vec<_>>().join("\n"))
}

/// A change of a recording.
#[derive(Debug, Clone, Copy)]
enum Damage {
    /// The kernel of this launch is missing.
    Kernel(i64),
    /// The kernel of this launch has no valid time.
    Time(i64),
    /// The call of this launch is missing.
    Call(i64),
    /// A range has no end.
    End(usize),
    /// A range is on another thread.
    Thread(usize),
    Clock,
}

impl Damage {
    fn apply(self, trace: &mut Timeline) {
        match self {
            Self::Kernel(id) => {
                trace.kernels = trace.kernels.iter().filter(|it| it.correlation_id != id).collect();
            }
            Self::Time(id) => {
                for it in trace.kernels.iter().filter(|it| it.correlation_id == id) {
                    trace.untimed.add_kernel(it, TimeFault::NotRecorded, 0);
                }
                Self::Kernel(id).apply(trace);
            }
            Self::Call(id) => {
                let kept = trace.cuda_calls.iter().filter(|it| it.correlation_id != id);
                trace.cuda_calls = kept.collect();
            }
            Self::End(at) => {
                trace.ranges.get_mut(at).into_iter().for_each(|it| it.end_ns = None);
            }
            Self::Thread(at) => {
                if let Some(it) = trace.ranges.get_mut(at) {
                    let place = (it.global_tid + 1, it.push_pop);
                    let times = (it.start_ns, it.end_ns);
                    *it = Range::new((&it.domain, &it.name), times, place);
                }
            }
            Self::Clock => trace.unequal_clocks.push(UnequalClock { process: PROCESS, device: 0 }),
        }
    }
}

fn damaged(mut trace: Timeline, damages: &[Damage]) -> Timeline {
    damages.iter().for_each(|it| it.apply(&mut trace));
    trace.with_rules(StageRules::default())
}

/// Figures of the tables that are withheld.
fn shown(tables: &TimelineTables) -> Vec<String> {
    let mut found = Vec::new();
    let mut see = |stage: &str, figure: Figure, is_shown: bool| {
        if is_shown && tables.withheld.has(stage, figure) {
            found.push(format!("{figure} of {stage:?}"));
        }
    };
    for it in &tables.stage_gpu.totals {
        see(&it.stage, Figure::row_of(&it.stage), true);
        see(&it.stage, Figure::Window, it.window_ms.is_some());
        let idle = it.idle_ms.or(it.idle_host_ms).or(it.longest_gap_ms).or(it.launch_bound_pct);
        see(&it.stage, Figure::Idle, idle.is_some() || it.gaps.is_some());
        let busy = it.busy_ms.or(it.busy_pct).or(it.other_ms).or(it.overlap_ms);
        see(&it.stage, Figure::Busy, busy.is_some());
    }
    for it in &tables.stage_gpu.devices {
        see(&it.stage, Figure::row_of(&it.stage), true);
    }
    tables.splits.stages.iter().for_each(|it| see(&it.stage, Figure::Division, true));
    see(NO_STAGE, Figure::LongCalls, !tables.splits.long_gaps.is_empty());
    for it in tables.host_cpu.iter().flat_map(|it| &it.stages) {
        see(&it.stage, Figure::HostThreads, true);
    }
    let kernels = &tables.kernels;
    for it in &kernels.stages {
        see(&it.stage, Figure::KernelTime, it.kernel_ms.or(it.busy_ms).is_some());
    }
    for it in &tables.processes.stages {
        see(&it.stage, Figure::KernelTime, it.kernel_ms.or(it.busy_ms).is_some());
    }
    kernels.records.iter().for_each(|it| {
        see(&it.stage, Figure::KernelTime, it.share_pct.is_some());
    });
    kernels.full.iter().for_each(|it| see(&it.stage, Figure::KernelTime, it.share_pct.is_some()));
    kernels.classes.iter().for_each(|it| {
        see(&it.stage, Figure::KernelTime, it.share_pct.is_some());
    });
    see(NO_STAGE, Figure::ClassifiedShare, kernels.classified_pct.is_some());
    tables.device.operators.keys().for_each(|it| see(&it.0, Figure::OperatorTime, true));
    see(DECODE, Figure::DecodeTimeline, tables.step.is_some());
    for it in &tables.engine_steps {
        if let Some(stage) = it.class.and_then(|it| it.stage()) {
            see(stage, Figure::StepWork, it.device_ms.or(it.gap_ms).is_some());
        }
    }
    see(NO_STAGE, Figure::Regions, !tables.regions.is_empty());
    let has_projected = tables.sums.ranges.iter().any(|it| it.projected_ns.is_some());
    see(NO_STAGE, Figure::ProjectedRanges, has_projected);
    tables.collectives.records.iter().for_each(|it| see(&it.stage, Figure::Collectives, true));
    see(NO_STAGE, Figure::Ranks, !tables.collectives.ranks.is_empty());
    found
}

/// Figures of stages on the GPUs that are neither in the table nor withheld.
fn missing(tables: &TimelineTables) -> Vec<String> {
    let mut found = Vec::new();
    for (stage, _) in &tables.stage_gpu.reasons {
        let row = tables.stage_gpu.totals.iter().find(|it| it.stage == *stage);
        let figures = [
            (Figure::row_of(stage), row.is_some()),
            (Figure::Window, row.is_some_and(|it| it.window_ms.is_some())),
            (Figure::Idle, row.is_some_and(|it| it.idle_ms.is_some())),
            (Figure::Busy, row.is_some_and(|it| it.busy_ms.is_some())),
        ];
        let lacks = |it: &&(Figure, bool)| !it.1 && !tables.withheld.has(stage, it.0);
        found.extend(figures.iter().filter(lacks).map(|it| format!("{} of {stage:?}", it.0)));
    }
    found
}

fn damage() -> impl Strategy<Value = Damage> {
    let launch = 1..=STEPS * KERNELS;
    prop_oneof![
        launch.clone().prop_map(Damage::Kernel),
        launch.clone().prop_map(Damage::Time),
        launch.prop_map(Damage::Call),
        (0..STEPS as usize).prop_map(Damage::End),
        (0..STEPS as usize).prop_map(Damage::Thread),
        Just(Damage::Clock),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_table_has_a_figure_that_is_withheld(
        ranges in prop_oneof![
            Just(StepRanges::Stages), Just(StepRanges::Engine), Just(StepRanges::Missing)
        ],
        (is_early, has_graph) in prop_oneof![
            4 => Just((false, false)), 1 => Just((true, false)), 1 => Just((false, true))
        ],
        damages in prop::collection::vec(damage(), 0..5),
    ) {
        let trace = damaged(steps(ranges, is_early, has_graph), &damages);
        let mut capture = Capture::of(&trace);
        step_states::mark(&mut capture);
        let tables = TimelineTables::of(&capture, &[], &WantedSteps::default());
        prop_assert_eq!(shown(&tables), Vec::<String>::new());
        prop_assert_eq!(missing(&tables), Vec::<String>::new());
        let trace = Trace { timeline: Some(trace.clone()), ..Trace::default() };
        let analysis = analyze(&trace, None, None);
        if let Some(totals) = &analysis.device_totals {
            let is_withheld = analysis.withheld.has_in_capture(Figure::DevicesBusy);
            let shares = [totals.busy_pct, totals.min_busy_pct, totals.max_busy_pct];
            prop_assert!(!is_withheld || shares == [None; 3]);
        }
    }
}

/// A capture of two stages, in which decode waits for its work.
const TWO_STAGES: &str = "range 1 prefill 0..10\nrange 1 decode_all 10..30
    call 1 1 1..2\ncall 1 2 3..4\ncall 1 3 12..13\ncall 1 4 14..15\ncall 1 900 16..29
    kernel 1 a 5..6 7\nkernel 2 a 6..7 7\nkernel 3 b 17..18 7\nkernel 4 b 18..19 7";

#[test]
fn each_reason_holds_for_the_stage_that_lacks_data() {
    let lost_step = [3, 4].map(|kernel| Damage::Kernel(KERNELS * 3 + kernel));
    let open = "range 1 measured 0..40\nrange 1 prefill 5..30\ncall 1 1 6..7\nkernel 1 a 8..20 7";
    let other_thread = "range 1 prefill 0..20\nrange 1 decode_all 21..40\ncall 2 1 1..2
                        kernel 1 a 3..9 7\ncall 1 2 22..23\nkernel 2 b 24..29 7";
    let early = "range 1 prefill 15000..19000\ncall 1 1 16000..16001\nkernel 1 a 5000..15300 7";
    let graph = "range 1 decode_all 60..100\ncall 1 1 61..62\ncall 1 888 62..63
                 kernel 1 a 65..70 7\ngraph 888 5 70..90 8";
    let orphan = "range 1 prefill 0..20\nrange 1 decode_all 20..40\ncall 1 1 1..2
                  kernel 1 a 2..8 7\nkernel 9 lost 25..30 7";
    let two = |damage| damaged(with_launches(TWO_STAGES), &[damage]);
    let of = |sketch: &str, damages: &[Damage]| damaged(with_launches(sketch), damages);
    let cases = [
        (Reason::KernelsLost, DECODE, two(Damage::Kernel(4))),
        (Reason::KernelsUntimed, DECODE, two(Damage::Time(4))),
        (Reason::CallsMissing, DECODE, two(Damage::Call(3))),
        (Reason::EstimatedEnd, PREFILL, of(open, &[Damage::End(1)])),
        (Reason::LaunchedElsewhere, PREFILL, of(other_thread, &[])),
        (
            Reason::NoOwnWindows,
            LEFT_OUT,
            damaged(steps(StepRanges::Engine, false, false), &lost_step),
        ),
        (Reason::NoDeviceWork, PREFILL, of("range 1 prefill 0..10\ncall 1 1 0..1", &[])),
        (Reason::ClocksDiffer, PREFILL, two(Damage::Clock)),
        (Reason::EarlyWork, PREFILL, of(early, &[])),
        (Reason::UnplacedGraph, DECODE, of(graph, &[])),
        (Reason::UnattributedWork, DECODE, of(orphan, &[])),
    ];
    assert_eq!(cases.iter().map(|it| it.0).collect::<Vec<_>>(), Reason::ALL);
    for (reason, stage, trace) in cases {
        let mut capture = Capture::of(&trace);
        if stage == LEFT_OUT {
            step_states::mark(&mut capture);
        }
        let found = TimelineTables::of(&capture, &[], &WantedSteps::default()).withheld;
        assert!(found.stages_with(reason).contains(&stage), "{reason}: {found:?}");
        let whole = TimelineTables::of(
            &Capture::of(&with_launches(TWO_STAGES)),
            &[],
            &WantedSteps::default(),
        )
        .withheld;
        assert!(whole.stages_with(reason).is_empty(), "{reason}: {whole:?}");
    }
}

/// A capture with prefill and `stage`; only `stage` has a reason.
fn with(stage: &str, reason: Reason) -> Withheld {
    let mut found = Withheld::default();
    found.add(PREFILL, []);
    found.add(stage, [reason]);
    found
}

/// Figures of a stage that are withheld.
fn figures(withheld: &Withheld, stage: &str) -> Vec<Figure> {
    Figure::ALL.iter().copied().filter(|it| withheld.has(stage, *it)).collect()
}

/// Lists of figures.
type Lists<'a> = &'a [&'a [Figure]];

#[test]
fn each_reason_withholds_its_figures_and_no_others() {
    use Figure::{
        BetweenStepsRow, Busy, ClassifiedShare, Collectives, DecodeTimeline, DevicesBusy, Division,
        Flops, HostThreads, Idle, KernelTime, LongCalls, OperatorTime, ProjectedRanges, Ranks,
        RecordingRow, Regions, StageRow, StepWork, Window,
    };
    let row = [StageRow, Window, Idle, Busy, Division, HostThreads];
    let of_kernels = [KernelTime, OperatorTime, DecodeTimeline, StepWork, Collectives];
    let of_capture = [BetweenStepsRow, ClassifiedShare, Regions, ProjectedRanges, Ranks];
    // By reason: figures of its stage, and figures of all stages.
    let table: [(Reason, Lists, Lists); 11] = [
        (
            Reason::KernelsLost,
            &[&row, &of_kernels, &[RecordingRow, Flops]],
            &[&of_capture, &[DevicesBusy]],
        ),
        (Reason::KernelsUntimed, &[&row, &of_kernels, &[Flops]], &[&of_capture]),
        (Reason::CallsMissing, &[&row, &of_kernels], &[&of_capture]),
        (Reason::EstimatedEnd, &[&row], &[]),
        (Reason::LaunchedElsewhere, &[&row], &[&[BetweenStepsRow]]),
        (Reason::NoOwnWindows, &[&row], &[]),
        (Reason::NoDeviceWork, &[&row[1..]], &[]),
        (Reason::ClocksDiffer, &[&row[1..]], &[&[LongCalls]]),
        (Reason::EarlyWork, &[&row[1..]], &[]),
        (Reason::UnplacedGraph, &[&row[2..]], &[]),
        (Reason::UnattributedWork, &[&[Busy, Division]], &[]),
    ];
    assert_eq!(table.iter().map(|it| it.0).collect::<Vec<_>>(), Reason::ALL);
    for (reason, of_stage, of_all) in table {
        let withheld = with(DECODE, reason);
        let mut all = of_all.concat();
        let mut stage = [of_stage.concat(), all.clone()].concat();
        all.sort_unstable();
        stage.sort_unstable();
        assert_eq!(figures(&withheld, DECODE), stage, "{reason}");
        assert_eq!(figures(&withheld, PREFILL), all, "{reason}, of another stage");
        for figure in stage {
            assert_eq!(withheld.why(DECODE, figure), ReasonSet::from([reason]), "{figure}");
        }
    }
}

#[test]
fn steps_that_are_left_out_withhold_only_figures_with_their_work() {
    let withheld = with(LEFT_OUT, Reason::KernelsLost);
    let of_others = figures(&withheld, DECODE);
    for figure in [Figure::BetweenStepsRow, Figure::Regions, Figure::KernelTime] {
        assert!(!of_others.contains(&figure), "{figure}");
    }
    for figure in [Figure::ClassifiedShare, Figure::ProjectedRanges, Figure::Ranks] {
        assert!(of_others.contains(&figure), "{figure}");
    }
}

#[test]
fn times_of_the_recording_and_between_steps_have_reasons_of_their_own() {
    let is_known = |reason, of, stage| !with(of, reason).has(stage, Figure::Idle);
    assert!(is_known(Reason::CallsMissing, NO_STAGE, NO_STAGE), "all work is of the recording");
    assert!(!is_known(Reason::KernelsLost, NO_STAGE, NO_STAGE));
    assert!(!is_known(Reason::EarlyWork, NO_STAGE, NO_STAGE));
    assert!(!is_known(Reason::CallsMissing, DECODE, BETWEEN_STEPS), "a step has no known end");
    assert!(is_known(Reason::EstimatedEnd, DECODE, BETWEEN_STEPS));
    assert!(is_known(Reason::KernelsLost, NO_STAGE, DECODE));
}

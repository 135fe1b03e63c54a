//! Captures changed at will: whatever they claim, no figure of their analysis contradicts another one or what it can be.

use std::{collections::BTreeMap, sync::LazyLock};

use llmprof::{
    analyze::{
        Analysis, analyze,
        device::Devices,
        gpu::StageGpu,
        invariants::{INVARIANTS, UNBOUNDED},
    },
    parse,
    trace::{
        Trace,
        counter::{CounterValues, LaunchCounters, Stall},
        nsys::{ApiCalls, GraphLaunch, NsysTrace},
    },
};
use proptest::prelude::*;
use serde_json::Value;

use crate::sums::Capture;

/// One change of a capture; places and amounts are taken modulo what there is.
#[derive(Debug, Clone)]
enum Change {
    ShiftKernels { from: usize, count: usize, ns: i64 },
    StretchKernel { at: usize, ns: i64 },
    MoveKernels { from: usize, count: usize, device: u32 },
    Relaunch { from: usize, count: usize, correlation: i64 },
    LoseKernels { from: usize, count: usize },
    RepeatKernels { from: usize, count: usize },
    LoseCalls { from: usize, count: usize },
    OtherProcess { from: usize, count: usize },
    OpenRange { at: usize },
    ShiftRange { at: usize, ns: i64 },
    WholeGraphs { every: usize },
    ShiftCopies { ns: i64 },
}

fn change() -> impl Strategy<Value = Change> {
    let (at, count, ns) = (0usize..1_000_000, 1usize..2_000, -50_000_000i64..50_000_000);
    let near = -3_000i64..3_000;
    prop_oneof![
        (at.clone(), count.clone(), ns.clone()).prop_map(|(from, count, ns)| Change::ShiftKernels { from, count, ns }),
        (at.clone(), count.clone(), near).prop_map(|(from, count, ns)| Change::ShiftKernels { from, count, ns }),
        (at.clone(), 0i64..100_000_000).prop_map(|(at, ns)| Change::StretchKernel { at, ns }),
        (at.clone(), count.clone(), 0u32..3).prop_map(|(from, count, device)| Change::MoveKernels { from, count, device }),
        (at.clone(), 1usize..20, 0i64..20_000).prop_map(|(from, count, correlation)| Change::Relaunch {
            from,
            count,
            correlation
        }),
        (at.clone(), count.clone()).prop_map(|(from, count)| Change::LoseKernels { from, count }),
        (at.clone(), count.clone()).prop_map(|(from, count)| Change::RepeatKernels { from, count }),
        (at.clone(), count.clone()).prop_map(|(from, count)| Change::LoseCalls { from, count }),
        (at.clone(), count).prop_map(|(from, count)| Change::OtherProcess { from, count }),
        at.clone().prop_map(|at| Change::OpenRange { at }),
        (at, ns.clone()).prop_map(|(at, ns)| Change::ShiftRange { at, ns }),
        (1usize..4).prop_map(|every| Change::WholeGraphs { every }),
        ns.prop_map(|ns| Change::ShiftCopies { ns }),
    ]
}

impl Change {
    fn apply(&self, trace: &mut NsysTrace) {
        let kernels = trace.kernels.len().max(1);
        let inside = |from: usize, count: usize| move |at: usize| at >= from % kernels && at < from % kernels + count;
        match *self {
            Self::ShiftKernels { from, count, ns } => {
                let inside = inside(from, count);
                trace.kernels = trace.kernels.map(|at, it| {
                    let by = if inside(at) { ns } else { 0 };
                    (it.start_ns, it.end_ns) = (it.start_ns + by, it.end_ns + by);
                });
            }
            Self::StretchKernel { at, ns } => {
                trace.kernels = trace.kernels.map(|place, it| it.end_ns += if place == at % kernels { ns } else { 0 });
            }
            Self::MoveKernels { from, count, device } => {
                let inside = inside(from, count);
                trace.kernels = trace.kernels.map(|at, it| it.device = if inside(at) { device } else { it.device });
            }
            Self::Relaunch { from, count, correlation } => {
                let inside = inside(from, count);
                let launch = |at: usize, old: i64| if inside(at) { correlation } else { old };
                trace.kernels = trace.kernels.map(|at, it| it.correlation_id = launch(at, it.correlation_id));
            }
            Self::LoseKernels { from, count } => {
                let inside = inside(from, count);
                trace.kernels = trace.kernels.iter().enumerate().filter(|(at, _)| !inside(*at)).map(|it| it.1).collect();
            }
            Self::RepeatKernels { from, count } => {
                let again: Vec<_> = trace.kernels.iter().skip(from % kernels).take(count).collect();
                again.into_iter().for_each(|it| trace.kernels.push(it));
            }
            Self::LoseCalls { from, count } => {
                let first = from % trace.cuda_calls.len().max(1);
                let kept = trace.cuda_calls.iter().enumerate().filter(|(at, _)| *at < first || *at >= first + count);
                trace.cuda_calls = kept.map(|it| it.1).collect::<ApiCalls>();
            }
            Self::OtherProcess { from, count } => {
                let inside = inside(from, count);
                trace.kernels = trace.kernels.map(|at, it| it.global_pid += if inside(at) { 1 << 24 } else { 0 });
            }
            Self::OpenRange { at } => {
                let at = at % trace.ranges.len().max(1);
                trace.ranges.get_mut(at).into_iter().for_each(|it| it.end_ns = None);
            }
            Self::ShiftRange { at, ns } => {
                let at = at % trace.ranges.len().max(1);
                if let Some(it) = trace.ranges.get_mut(at) {
                    (it.start_ns, it.end_ns) = (it.start_ns + ns, it.end_ns.map(|end| end + ns));
                }
            }
            Self::WholeGraphs { every } => whole(trace, every),
            Self::ShiftCopies { ns } => {
                for it in &mut trace.copies {
                    (it.start_ns, it.end_ns) = (it.start_ns + ns, it.end_ns + ns);
                }
            }
        }
    }
}

/// Records every so many launches of graphs as a whole.
fn whole(trace: &mut NsysTrace, every: usize) {
    let mut launches: BTreeMap<i64, GraphLaunch> = BTreeMap::new();
    let nodes = trace
        .kernels
        .iter()
        .filter(|it| it.graph_node.is_some() && (it.correlation_id.unsigned_abs() as usize).is_multiple_of(every));
    for it in nodes {
        let new = GraphLaunch {
            start_ns: it.start_ns,
            end_ns: it.end_ns,
            device: it.device,
            stream: it.stream,
            global_pid: it.global_pid,
            correlation_id: it.correlation_id,
            graph: Some(1),
        };
        let launch = launches.entry(it.correlation_id).or_insert(new);
        launch.start_ns = launch.start_ns.min(it.start_ns);
        launch.end_ns = launch.end_ns.max(it.end_ns);
    }
    trace.kernels =
        trace.kernels.iter().filter(|it| it.graph_node.is_none() || !launches.contains_key(&it.correlation_id)).collect();
    trace.graphs.extend(launches.into_values());
}

/// What reading an export ends with.
fn sorted(mut trace: NsysTrace) -> NsysTrace {
    trace.kernels.sort();
    trace.cuda_calls.sort();
    trace.copies.sort_by_key(|it| it.start_ns);
    trace.graphs.sort_by_key(|it| it.start_ns);
    trace.ranges.sort_by_key(|it| (it.start_ns, std::cmp::Reverse(it.end_ns.unwrap_or(i64::MAX))));
    trace
}

/// Figures that contradict each other.
fn contradictions(analysis: &Analysis) -> Vec<String> {
    let mut found = Vec::new();
    let mut hold = |good: bool, what: String| found.extend((!good).then_some(what));
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * (1.0 + a.abs().max(b.abs()));
    let gpus = &analysis.stage_gpu;
    for it in gpus.totals.iter().chain(&gpus.devices) {
        let parts = [it.idle_host_ms, it.idle_copy_ms, it.idle_sync_ms, it.idle_unknown_ms];
        if let (Some(idle), Some(parts)) = (it.idle_ms, parts.iter().copied().sum::<Option<f64>>()) {
            hold(near(idle, parts), format!("idle {idle} is not its parts {parts}: {it:?}"));
        }
        if let (Some(window), Some(busy), Some(other), Some(idle)) = (it.window_ms, it.busy_ms, it.other_ms, it.idle_ms) {
            hold(near(window, busy + other + idle) && other > -1e-9, format!("the window is not busy, other and idle: {it:?}"));
            hold(it.longest_gap_ms.unwrap() <= idle + 1e-9, format!("a gap is longer than all: {it:?}"));
        }
    }
    for total in gpus.totals.iter().filter(|it| it.devices > 1) {
        let of = || gpus.devices.iter().filter(|it| it.stage == total.stage);
        let fields: [fn(&StageGpu) -> Option<f64>; 3] = [|it| it.busy_ms, |it| it.idle_ms, |it| it.window_ms];
        for field in fields {
            if let (Some(all), Some(sum)) = (field(total), of().map(field).sum::<Option<f64>>()) {
                hold(near(all, sum), format!("a total is not the sum over its GPUs: {total:?}"));
            }
        }
    }
    for stage in &analysis.kernels.stages {
        let of = || analysis.kernels.records.iter().filter(|it| it.stage == stage.stage);
        let classes: f64 = analysis.kernels.classes.iter().filter(|it| it.stage == stage.stage).map(|it| it.total_ms).sum();
        let apart = || analysis.processes.stages.iter().filter(|it| it.stage == stage.stage);
        hold(of().map(|it| it.calls).sum::<u64>() == stage.launches, format!("launches are not those of the records: {stage:?}"));
        hold(apart().map(|it| it.launches).sum::<u64>() == stage.launches, format!("launches are not the processes': {stage:?}"));
        let processes = apart().map(|it| it.kernel_ms).sum::<Option<f64>>();
        hold(processes.is_some() == stage.kernel_ms.is_some(), format!("kernel time is given of some processes: {stage:?}"));
        if let (Some(kernel_ms), Some(processes)) = (stage.kernel_ms, processes) {
            hold(near(of().map(|it| it.total_ms).sum(), kernel_ms), format!("kernel time is not the records': {stage:?}"));
            hold(near(classes, kernel_ms), format!("kernel time is not the classes': {stage:?}"));
            hold(near(processes, kernel_ms), format!("kernel time is not the processes': {stage:?}"));
        }
        let total = gpus.totals.iter().find(|it| it.stage == stage.stage);
        if let Some(busy) = total.and_then(|it| it.busy_ms) {
            // Work may begin before the stage's window by what clocks are allowed to differ.
            let slack = 1e-3 * total.map_or(0, |it| it.instances * it.devices) as f64;
            let same = stage.busy_ms.is_some_and(|there| (busy - there).abs() <= slack + 1e-6);
            hold(same, format!("busy {busy} here and there: {stage:?}"));
        }
    }
    if let Some(it) = &analysis.step
        && let Some(idle) = it.idle_us
    {
        let window = it.window_us * it.devices as f64;
        hold(it.busy_us + idle <= window + 1e-6 && it.lead_us >= 0.0, format!("busy {} idle {idle} of {window}", it.busy_us));
    }
    for it in analysis.operators.rolled.iter().filter_map(|it| it.device) {
        hold(it.exclusive_ms <= it.inclusive_ms + 1e-9, format!("own time above total: {it:?}"));
    }
    found
}

/// Every number of an analysis that lies outside what its name allows.
fn outside(analysis: &Analysis) -> Vec<String> {
    let rows = serde_json::json!({
        "stages": analysis.stages.rows, "notes": analysis.stages.notes, "operators": analysis.operators.rolled,
        "by_path": analysis.operators.by_path, "kernels": analysis.kernels.records, "stage_kernels": analysis.kernels.stages,
        "classes": analysis.kernels.classes, "counters": analysis.counters, "roofline": analysis.roofline.points,
        "regions": analysis.regions, "stage_gpu": analysis.stage_gpu.totals, "devices": analysis.stage_gpu.devices,
        "graphs": analysis.graphs, "processes": analysis.processes.stages, "step": analysis.step, "mfu": analysis.mfu.operators,
    });
    let mut found = Vec::new();
    walk("", &rows, &mut found);
    found
}

fn walk(path: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| walk(&format!("{path}.{name}"), value, found)),
        Value::Array(rows) => rows.iter().for_each(|row| walk(path, row, found)),
        Value::Number(number) => {
            let (number, field) = (number.as_f64().unwrap(), path.rsplit('.').next().unwrap());
            let bounded = field.ends_with("_pct") && !UNBOUNDED.iter().any(|(name, _)| name.ends_with(&format!(".{field}")));
            let most = if bounded { 105.0 } else { f64::MAX };
            let measured = ["_pct", "_ms", "_us", "_ns", "_bytes", "_mhz", "_per_s"].iter().any(|unit| field.ends_with(unit));
            if measured && !(0.0..=most).contains(&number) {
                found.push(format!("{path} is {number}"));
            }
        }
        _ => {}
    }
}

fn base(name: &str) -> NsysTrace {
    parse::nsys::read(&Capture::open(name).dir.path().join("run.sqlite")).unwrap()
}

fn counters(figures: &[f64], trace: &NsysTrace) -> Vec<LaunchCounters> {
    let figure = |at: usize| figures.get(at).copied();
    let values = CounterValues {
        duration_ns: figure(0),
        sm_pct: figure(1),
        memory_pct: figure(2),
        dram_pct: figure(3),
        l2_hit_pct: figure(4),
        achieved_occupancy_pct: figure(5),
        tensor_pct: figure(6),
        dram_bytes: figure(7),
        flops: figure(8).map(|flops| ("f32".to_owned(), flops)).into_iter().collect(),
        flops_complete: true,
        stalls: figure(9).map(|share_pct| Stall { reason: "wait".into(), warps_per_issue: 1.0, share_pct }).into_iter().collect(),
        ..CounterValues::default()
    };
    let of = |at: usize| {
        let kind = &trace.kernels.kinds()[at];
        let kernel = trace.strings[kind.name as usize].clone();
        LaunchCounters {
            stage: String::new(),
            kernel,
            grid: Some(kind.grid),
            block: Some(kind.block),
            values: values.clone(),
            ..LaunchCounters::default()
        }
    };
    (0..trace.kernels.kinds().len().min(6)).map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_figure_of_a_changed_capture_contradicts_another_or_its_unit(
        which in 0usize..2,
        changes in prop::collection::vec(change(), 1..6),
        figures in prop::collection::vec(prop_oneof![0.0..120.0, -1e12..1e12, Just(f64::NAN), Just(f64::INFINITY)], 0..10),
    ) {
        static BASES: LazyLock<[NsysTrace; 2]> = LazyLock::new(|| ["torch-cuda-graph-node", "hf-llama-attention-mock"].map(base));
        let mut nsys = BASES[which].clone();
        changes.iter().for_each(|change| change.apply(&mut nsys));
        let nsys = sorted(nsys);
        let devices = Devices::from_toml(include_str!("../../conf/devices.toml")).unwrap();
        let trace = Trace { counters: counters(&figures, &nsys), nsys: Some(nsys), ..Trace::default() };
        let analysis = analyze(&trace, None, devices.find("NVIDIA H200"));
        prop_assert_eq!(contradictions(&analysis), Vec::<String>::new());
        prop_assert_eq!(outside(&analysis), Vec::<String>::new());
        for violation in &analysis.violations.figures {
            let named = |it: &&llmprof::run::Finding| it.id == "figure_impossible" && it.message.contains(violation.figure);
            prop_assert!(analysis.findings.iter().any(|it| named(&it)), "nothing names {:?}", violation);
        }
        for it in analysis.stage_gpu.totals.iter().filter(|it| it.devices > 0 && it.busy_ms.is_none()) {
            let causes = ["figure_impossible", "kernels_unattributed"];
            let named = analysis.findings.iter().any(|found| causes.contains(&found.id.as_str()));
            prop_assert!(named, "no finding says why busy time is left out: {:?}", it);
        }
    }
}

#[test]
fn real_captures_break_no_invariant() {
    for name in ["hf-deepseek-decoder", "hf-llama-e2e", "hf-llama-attention-mock", "torch-cuda-graph-node"] {
        let analysis = analyze(&Trace { nsys: Some(base(name)), ..Trace::default() }, None, None);
        assert_eq!((contradictions(&analysis), outside(&analysis)), (vec![], vec![]), "{name}");
        assert!(!analysis.findings.iter().any(|it| it.id == "figure_impossible"), "{name}");
    }
}

/// Settings that a client sends: no figures.
const SETTINGS: [&str; 4] = ["NcuSettings", "NcuSettingsChange", "ThresholdChanges", "Thresholds"];

#[test]
fn every_share_of_the_contract_is_bounded_or_says_why_it_is_not() {
    let contract = include_str!("../../contracts/profile.yaml");
    let (_, schemas) = contract.split_once("\n  schemas:\n").unwrap();
    let (mut schema, mut seen) = ("", 0);
    for line in schemas.lines() {
        let name = line.trim().strip_suffix(':');
        match (line.len() - line.trim_start().len(), name) {
            (4, Some(name)) => schema = name,
            (8, Some(field)) if field.ends_with("_pct") && !SETTINGS.contains(&schema) => {
                let figure = format!("{schema}.{field}");
                let bounded = INVARIANTS.iter().any(|it| it.figures.contains(&figure.as_str()));
                assert!(bounded || UNBOUNDED.iter().any(|(known, _)| *known == figure), "{figure} is in no table");
                seen += 1;
            }
            _ => {}
        }
    }
    assert!(seen > 50);
}

//! Randomly changed captures: no figure of their analysis contradicts another one or its own
//! bounds.

use std::{collections::BTreeSet, sync::LazyLock};

use llmprof_analyze::{
    Analysis, analyze,
    invariants::{INVARIANTS, UNBOUNDED},
    ledger::LedgerCause,
    parse,
    timeline::gpu::StageGpu,
};
use llmprof_core::{
    domain::device_peaks::Devices,
    trace::{
        Trace,
        counter::{CounterValues, LaunchCounters, Stall},
        timeline::Timeline,
    },
};
use llmprof_service::http;
use proptest::prelude::*;
use serde_json::Value;

use crate::{
    parse::{
        changes::{change, sorted},
        sums::OpenCapture,
    },
    support::slow_cases,
};

/// Records the message of a check that failed.
type Check<'a> = &'a mut dyn FnMut(bool, String);

/// Figures that contradict each other.
fn contradictions(analysis: &Analysis) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |good: bool, message: String| found.extend((!good).then_some(message));
    check_gpus(analysis, &mut check);
    check_kernels(analysis, &mut check);
    check_busy(analysis, &mut check);
    check_ledger(analysis, &mut check);
    if let Some(it) = &analysis.step
        && let Some(idle) = it.idle_us
    {
        let window = it.window_us * it.devices as f64;
        check(
            it.busy_us + idle <= window + 1e-6 && it.lead_us >= 0.0,
            format!("busy {} idle {idle} of {window}", it.busy_us),
        );
    }
    for it in analysis.operators.rolled.iter().filter_map(|it| it.device) {
        let good = it.exclusive_ms <= it.inclusive_ms + 1e-9;
        check(good, format!("exclusive time above total: {it:?}"));
    }
    found
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * (1.0 + a.abs().max(b.abs()))
}

/// Idle and busy time of each GPU and of all.
fn check_gpus(analysis: &Analysis, check: Check) {
    let gpus = &analysis.stage_gpu;
    for it in gpus.totals.iter().chain(&gpus.devices) {
        let parts = [it.idle_host_ms, it.idle_copy_ms, it.idle_sync_ms, it.idle_unknown_ms];
        if let (Some(idle), Some(parts)) = (it.idle_ms, parts.iter().copied().sum::<Option<f64>>())
        {
            check(near(idle, parts), format!("idle {idle} is not its parts {parts}: {it:?}"));
        }
        if let (Some(window), Some(busy), Some(other), Some(idle)) =
            (it.window_ms, it.busy_ms, it.other_ms, it.idle_ms)
        {
            check(
                near(window, busy + other + idle) && other > -1e-9,
                format!("the window is not busy, other and idle: {it:?}"),
            );
            check(
                it.longest_gap_ms.unwrap() <= idle + 1e-9,
                format!("a gap is longer than all: {it:?}"),
            );
        }
    }
    for total in gpus.totals.iter().filter(|it| it.devices > 1) {
        let of = || gpus.devices.iter().filter(|it| it.stage == total.stage);
        let fields: [fn(&StageGpu) -> Option<f64>; 3] =
            [|it| it.busy_ms, |it| it.idle_ms, |it| it.window_ms];
        for field in fields {
            if let (Some(all), Some(sum)) = (field(total), of().map(field).sum::<Option<f64>>()) {
                check(near(all, sum), format!("a total is not the sum over its GPUs: {total:?}"));
            }
        }
    }
}

/// Launches and kernel time of each stage, against its records, classes and processes.
fn check_kernels(analysis: &Analysis, check: Check) {
    for stage in &analysis.kernels.stages {
        let of = || analysis.kernels.records.iter().filter(|it| it.stage == stage.stage);
        let classes: f64 = analysis
            .kernels
            .classes
            .iter()
            .filter(|it| it.stage == stage.stage)
            .map(|it| it.total_ms)
            .sum();
        let apart = || analysis.processes.stages.iter().filter(|it| it.stage == stage.stage);
        check(
            of().map(|it| it.calls).sum::<u64>() == stage.launches,
            format!("launches are not those of the records: {stage:?}"),
        );
        check(
            apart().map(|it| it.launches).sum::<u64>() == stage.launches,
            format!("launches are not the processes': {stage:?}"),
        );
        let processes = apart().map(|it| it.kernel_ms).sum::<Option<f64>>();
        check(
            processes.is_some() == stage.kernel_ms.is_some(),
            format!("kernel time is given of some processes: {stage:?}"),
        );
        if let (Some(kernel_ms), Some(processes)) = (stage.kernel_ms, processes) {
            check(
                near(of().map(|it| it.total_ms).sum(), kernel_ms),
                format!("kernel time is not the records': {stage:?}"),
            );
            check(near(classes, kernel_ms), format!("kernel time is not the classes': {stage:?}"));
            check(
                near(processes, kernel_ms),
                format!("kernel time is not the processes': {stage:?}"),
            );
        }
    }
}

/// Busy time of each stage, against the one of its GPUs.
fn check_busy(analysis: &Analysis, check: Check) {
    for stage in &analysis.kernels.stages {
        let total = analysis.stage_gpu.totals.iter().find(|it| it.stage == stage.stage);
        if let Some(busy) = total.and_then(|it| it.busy_ms) {
            // Work may start before the stage's window by the tolerance between the clocks.
            let slack = 1e-2 * total.map_or(0, |it| it.instances * it.devices) as f64;
            let same = stage.busy_ms.is_some_and(|there| (busy - there).abs() <= slack + 1e-6);
            check(same, format!("busy {busy} here and there: {stage:?}"));
        }
    }
}

/// The ledger adds up to the nanosecond, and only the difference of the passes may be negative.
fn check_ledger(analysis: &Analysis, check: Check) {
    let ledger = &analysis.ledger;
    for stage in &ledger.stages {
        let rows = || ledger.of_stage(&stage.stage);
        let sum: i64 = rows().map(|it| it.ns).sum();
        check(sum == stage.measured_ns, format!("{sum} is not {stage:?}"));
        let traced: i64 =
            rows().filter(|it| it.cause != LedgerCause::PassDifference).map(|it| it.ns).sum();
        check(
            stage.traced_ns.is_none_or(|ns| ns == traced),
            format!("{traced} is not the traced time: {stage:?}"),
        );
        let row = analysis.stages.row(&stage.stage);
        let same =
            row.is_none_or(|row| (row.ms.mean * 1e6 - stage.measured_ns as f64).abs() <= 0.5);
        check(same, format!("another time than in the table of stages: {stage:?}"));
        let total = analysis.stage_gpu.totals.iter().find(|it| it.stage == stage.stage);
        let window = total.and_then(|it| Some((it.window_ms? * 1e6, it.busy_ms?)));
        if let (Some((window, _)), Some(traced)) = (window, stage.traced_ns) {
            let windows = window / traced.max(1) as f64;
            let good = windows >= 1.0 - 1e-6 || traced <= 1;
            check(good, format!("more than the window of {window} ns: {stage:?}"));
        }
    }
    for row in &ledger.rows {
        let members: i64 = ledger.members(&row.stage, row.cause).map(|it| it.ns).sum();
        check(members == row.ns, format!("members of {members} ns: {row:?}"));
        let good = row.ns >= 0 || row.cause == LedgerCause::PassDifference;
        check(good && (0..=row.ns.max(0)).contains(&row.max_saving_ns), format!("{row:?}"));
    }
    let mut seen = BTreeSet::new();
    for it in &ledger.members {
        // Two launchers of other work may have the same largest kernel.
        let launcher = (it.cause == LedgerCause::OtherStages).then_some(&it.evidence);
        let kernel = (&it.kernel, &it.full_name, it.grid, it.block);
        let name = (&it.stage, it.cause, launcher, &it.operator, kernel);
        check(seen.insert(name), format!("a member like another one: {it:?}"));
    }
}

/// All numbers of an analysis outside the range allowed by the name of their field.
fn outside(analysis: &Analysis) -> Vec<String> {
    let (stages, kernels) = (&analysis.stages, &analysis.kernels);
    let rows = serde_json::json!({
        "stages": stages.rows,
        "notes": stages.notes,
        "operators": analysis.operators.rolled.rows,
        "by_path": analysis.operators.by_path.rows,
        "kernels": kernels.records,
        "stage_kernels": kernels.stages,
        "classes": kernels.classes,
        "counters": analysis.counters,
        "roofline": analysis.roofline.points,
        "regions": analysis.regions.rows,
        "call_sites": analysis.call_sites,
        "stage_gpu": analysis.stage_gpu.totals,
        "devices": analysis.stage_gpu.devices,
        "graphs": analysis.graphs,
        "processes": analysis.processes.stages,
        "step": analysis.step,
        "mfu": analysis.mfu.operators,
    });
    let mut found = Vec::new();
    visit("", &rows, &mut found);
    found
}

fn visit(path: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| visit(&format!("{path}.{name}"), value, found))
        }
        Value::Array(rows) => rows.iter().for_each(|row| visit(path, row, found)),
        Value::Number(number) => {
            let (number, field) = (number.as_f64().unwrap(), path.rsplit('.').next().unwrap());
            let bounded = field.ends_with("_pct")
                && !UNBOUNDED.iter().any(|(name, _)| name.ends_with(&format!(".{field}")));
            let max = if bounded { 105.0 } else { f64::MAX };
            let measured = ["_pct", "_ms", "_us", "_ns", "_bytes", "_mhz", "_per_s"]
                .iter()
                .any(|unit| field.ends_with(unit));
            if measured && !(0.0..=max).contains(&number) {
                found.push(format!("{path} is {number}"));
            }
        }
        _ => {}
    }
}

fn base(name: &str) -> Timeline {
    parse::nsys::read(&OpenCapture::open(name).dir.path().join("run.sqlite")).unwrap()
}

fn counters(figures: &[f64], trace: &Timeline) -> Vec<LaunchCounters> {
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
        stalls: figure(9)
            .map(|share_pct| Stall { reason: "wait".into(), warps_per_issue: 1.0, share_pct })
            .into_iter()
            .collect(),
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
    #![proptest_config(slow_cases(12, 48))]

    #[test]
    fn no_figure_of_a_changed_capture_contradicts_another_or_its_unit(
        which in 0usize..2,
        changes in prop::collection::vec(change(), 1..6),
        figures in prop::collection::vec(
            prop_oneof![0.0..120.0, -1e12..1e12, Just(f64::NAN), Just(f64::INFINITY)], 0..10
        ),
    ) {
        static BASES: LazyLock<[Timeline; 2]> =
            LazyLock::new(|| ["torch-cuda-graph-node", "hf-llama-attention-mock"].map(base));
        let mut nsys = BASES[which].clone();
        changes.iter().for_each(|change| change.apply(&mut nsys));
        let nsys = sorted(nsys);
        let devices = Devices::from_toml(include_str!("../../../conf/devices.toml")).unwrap();
        let counters = counters(&figures, &nsys);
        let trace = Trace { counters, timeline: Some(nsys), ..Trace::default() };
        let analysis = analyze(&trace, None, devices.find("NVIDIA H200"));
        prop_assert_eq!(contradictions(&analysis), Vec::<String>::new());
        prop_assert_eq!(outside(&analysis), Vec::<String>::new());
        for violation in &analysis.violations.figures {
            let is_reported = analysis.findings.iter().any(|it| {
                it.id == "figure_impossible" && it.message.contains(violation.figure)
            });
            prop_assert!(is_reported, "no finding on {:?}", violation);
        }
        let gpus = analysis.stage_gpu.totals.iter();
        for it in gpus.filter(|it| it.devices > 0 && it.busy_ms.is_none()) {
            let causes = ["device_clock_differs", "kernels_unattributed"];
            let named = analysis.findings.iter().any(|found| causes.contains(&found.id.as_str()));
            prop_assert!(named, "no finding on the missing busy time: {:?}", it);
        }
    }
}

#[test]
fn real_captures_violate_no_invariant() {
    for name in
        ["hf-deepseek-decoder", "hf-llama-e2e", "hf-llama-attention-mock", "torch-cuda-graph-node"]
    {
        let analysis =
            analyze(&Trace { timeline: Some(base(name)), ..Trace::default() }, None, None);
        assert_eq!((contradictions(&analysis), outside(&analysis)), (vec![], vec![]), "{name}");
        assert!(!analysis.ledger.rows.is_empty(), "{name}");
        assert!(!analysis.findings.iter().any(|it| it.id == "figure_impossible"), "{name}");
    }
}

/// Settings sent by clients, which are not figures.
const SETTINGS: [&str; 4] = ["NcuSettings", "NcuSettingsChange", "ThresholdChanges", "Thresholds"];

#[test]
fn every_share_of_the_contract_is_bounded_or_listed_with_a_reason() {
    let schemas = http::contract()["components"]["schemas"].as_object().unwrap();
    let mut seen = 0;
    for (schema, it) in schemas.iter().filter(|(name, _)| !SETTINGS.contains(&name.as_str())) {
        for field in it["properties"].as_object().into_iter().flat_map(|fields| fields.keys()) {
            if !field.ends_with("_pct") {
                continue;
            }
            let figure = format!("{schema}.{field}");
            let bounded = INVARIANTS.iter().any(|it| it.figures.contains(&figure.as_str()));
            assert!(
                bounded || UNBOUNDED.iter().any(|(known, _)| *known == figure),
                "{figure} is in no table"
            );
            seen += 1;
        }
    }
    assert!(seen > 50);
}

//! Every rule on every kind of subject: the rules that fire, those that must not, and the bounds of
//! savings.

use llmprof_core::{
    domain::{finding::catalogue, subject::SubjectKind},
    trace::{
        command::{CommandTimes, CommandTrace, Timed},
        event::{End, OperatorCall},
        kernel::KernelTrace,
        timeline::{ApiCall, Timeline},
    },
};
use proptest::prelude::*;

use super::*;
use crate::{analyze, kernels::tests::capture};

/// Names of calls by the last digit of their correlation id: 9 waits, 8 launches a graph, others
/// launch kernels.
fn named(sketch: &str, in_graphs: bool) -> Timeline {
    let mut trace = capture(sketch);
    let first = trace.strings.len() as u32;
    trace.strings.extend(
        ["cudaLaunchKernel", "cudaGraphLaunch", "cudaStreamSynchronize"].map(str::to_owned),
    );
    let name = |call: ApiCall| match call.correlation_id % 10 {
        9 => ApiCall { name: first + 2, ..call },
        8 => ApiCall { name: first + 1, ..call },
        _ => ApiCall { name: first, ..call },
    };
    trace.cuda_calls = trace.cuda_calls.iter().map(name).collect();
    let kernels = trace.kernels.iter().map(|it| llmprof_core::trace::kernel::Kernel {
        graph_node: (in_graphs && it.correlation_id % 10 == 8).then_some(it.start_ns as u64),
        ..it.into()
    });
    trace.kernels = kernels.collect::<KernelTrace>();
    trace
}

/// Two decode steps of a millisecond with 60 kernels of 4 us each, 15 us apart, after a prefill of
/// 200 us with one of 150; each step is one replay of a graph if `graph` is set.
fn timeline(prefill: &str, decode: &str, graph: bool) -> Timeline {
    let mut lines = vec![
        format!("range 1 {prefill} 0..200000\ncall 1 11 1000..2000\nkernel 11 gemm 3000..153000 7"),
        format!("range 1 {decode} 200000..2200000"),
    ];
    let mut id = 100;
    for step in [200_000, 1_200_000] {
        let name = if decode == "b" { "step" } else { "decode_step" };
        lines.push(format!("range 1 {name} {step}..{}", step + 1_000_000));
        lines.push(format!("range 1 decoder.self_attn {}..{}", step + 10_000, step + 460_000));
        id += 10;
        if graph {
            lines.push(format!("call 1 {} {}..{}", id + 8, step + 1000, step + 3000));
        }
        for at in (0..60).map(|at| step + 20_000 + at * 15_000) {
            let call = if graph { id + 8 } else { id };
            if !graph {
                lines.push(format!("call 1 {call} {}..{}", at - 5000, at - 2000));
                id += 10;
            }
            lines.push(format!("kernel {call} CatArrayBatchedCopy {at}..{} 7", at + 4000));
        }
    }
    named(&lines.join("\n"), graph)
}

/// Events of the model runner in one pass: stages as long as in [`timeline`], operators in half of
/// decode.
fn events(device: &str, decode_graph: bool) -> Vec<Event> {
    let range = |name: &str, start_ns, end_ns, repeat, step| {
        Event::Range(StageRange {
            name: name.into(),
            start_ns,
            end_ns,
            device_ns: None,
            warmup: false,
            repeat,
            step,
        })
    };
    let mut events = vec![Event::Start(start(device, decode_graph, 0).unwrap())];
    for repeat in 0..3 {
        let at = i64::from(repeat) * 10 * MS;
        events.push(range(PREFILL, at, at + 200_000, repeat, None));
        events.push(range(DECODE, at + 200_000, at + 2_200_000, repeat, None));
        for step in 0..2 {
            let from = at + 200_000 + i64::from(step) * MS;
            events.push(range("decode_step", from, from + MS, repeat, Some(step)));
            events.push(Event::Op(OperatorCall {
                path: "decoder.layers.0.self_attn".into(),
                op: "attention".into(),
                start_ns: from + 10_000,
                end_ns: from + 460_000,
                thread: 0,
                captured: false,
                warmup: false,
                repeat,
                stage: DECODE.into(),
                shapes: vec![],
                dtype: "bf16".into(),
                flops: 0,
                bytes: 0,
            }));
        }
    }
    events.push(Event::End(
        serde_json::from_str::<End>(
            r#"{"t_ns":99000000,"peak_rss_bytes":1,"peak_device_bytes":null}"#,
        )
        .unwrap(),
    ));
    events
}

/// One kind of subject.
fn subject(name: &str) -> Trace {
    let import =
        |nsys| Trace { timeline: Some(nsys), subject: SubjectKind::Import, ..Trace::default() };
    let ours = |device, graph, nsys: Option<Timeline>| {
        let events = events(device, graph);
        Trace { baseline: events.clone(), traced: events, timeline: nsys, ..Trace::default() }
    };
    match name {
        "import" => import(timeline("prefill", "decode_all", false)),
        "import, graphs" => import(timeline("prefill", "decode_all", true)),
        "import, other names" => {
            let mut nsys = timeline("ctx", "gen", false);
            let rules = ["prefill=ctx", "decode_all=gen"].map(|rule| rule.parse().unwrap());
            nsys.rules =
                llmprof_core::trace::stage::StageRules::with(rules.to_vec(), vec![], vec![]);
            import(nsys)
        }
        "import, no stages" => import(timeline("a", "b", false)),
        "command" => {
            let plain = Some(CommandTimes {
                of: Timed::Process,
                warmup: 0,
                wall_ns: vec![10 * MS; 3],
                ready_ns: None,
            });
            let command = Some(CommandTrace { plain, ..CommandTrace::default() });
            Trace {
                command,
                subject: SubjectKind::Command,
                ..import(timeline("prefill", "decode_all", false))
            }
        }
        "model, cpu" => ours("cpu", false, None),
        "model, gpu eager" => ours("cuda:0", false, Some(timeline("prefill", "decode_all", false))),
        "model, gpu graph" => ours("cuda:0", true, Some(timeline("prefill", "decode_all", true))),
        _ => panic!("no subject {name}"),
    }
}

const SUBJECTS: [&str; 8] = [
    "import",
    "import, graphs",
    "import, other names",
    "import, no stages",
    "command",
    "model, cpu",
    "model, gpu eager",
    "model, gpu graph",
];

/// Rule by subject, in the order of [`SUBJECTS`]: `+` fires, `.` does not.
const MATRIX: [(&str, &str); 7] = [
    ("no_stages", "...+...."),
    ("decode_launch_bound", "+++.+.++"),
    ("decode_eager", "+.+.+.+."),
    ("time_between_operators", ".....+.."),
    ("kv_cache_copies", "+.+.+.+."),
    ("tiny_kernels", "+++.+.++"),
    ("capture_incomplete", "........"),
];

#[test]
fn each_rule_fires_only_on_the_subjects_that_have_its_evidence() {
    let found: Vec<Vec<Finding>> = SUBJECTS
        .iter()
        .map(|name| {
            let trace = subject(name);
            analyze(&trace, None, None).findings
        })
        .collect();
    for (rule, expected) in MATRIX {
        let fires = |of: &Vec<Finding>| if of.iter().any(|it| it.id == rule) { '+' } else { '.' };
        let seen: String = found.iter().map(fires).collect();
        assert_eq!(seen, expected, "{rule} on {SUBJECTS:?}");
    }
    for (name, found) in SUBJECTS.iter().zip(&found) {
        let advice = |it: &Finding| it.advice.clone().unwrap_or_default();
        let replay =
            [catalogue::DECODE_LAUNCH_BOUND, catalogue::DECODE_EAGER].map(|id| id.advice.unwrap());
        if name.contains("graph") || name.contains("cpu") {
            assert!(
                found.iter().all(|it| !replay.contains(&advice(it).as_str())),
                "{name}: {found:#?}"
            );
        }
        // Causes of an idle device are listed before improvements of its kernels.
        let place = |id: &str| found.iter().position(|it| it.id == id);
        if let (Some(bound), Some(kernels)) =
            (place("decode_launch_bound"), place("kv_cache_copies"))
        {
            assert!(bound < kernels, "{name}");
        }
    }
}

#[test]
fn a_launch_bound_import_names_the_traced_pass_and_saves_its_gaps() {
    let found = analyze(&subject("import"), None, None).findings;
    let bound = found.iter().find(|it| it.id == "decode_launch_bound").unwrap();
    // 120 kernels of 4 us in 2 ms.
    assert_eq!(bound.message, "The GPU is idle during 76 % of decode in the traced pass.");
    assert!((bound.max_saving.as_ref().unwrap().ms.unwrap() - 1.52).abs() < 1e-9, "{bound:?}");
}

#[test]
fn a_subject_that_replays_graphs_is_not_advised_to() {
    let replaying = |replayed_kernels| {
        let mut analysis = busy(4.0);
        let calls = StageCalls { replayed_kernels, host_ms: 100.0, ..StageCalls::default() };
        analysis.stage_gpu.totals.iter_mut().for_each(|it| it.graph_launches = Some(20));
        analysis.stages.decode_steps = Some(2);
        analysis.stage_calls.insert(DECODE.into(), calls);
        analysis
    };
    let advice = |analysis: &Analysis| {
        let found =
            findings(analysis, &no_trace()).into_iter().filter(|it| it.id == "decode_launch_bound");
        found.map(|it| it.advice.clone().unwrap()).next().unwrap()
    };
    assert_eq!(advice(&busy(4.0)), catalogue::DECODE_LAUNCH_BOUND.advice.unwrap());
    assert!(advice(&replaying(2000)).starts_with("Launch the next replay"));
    assert!(advice(&replaying(0)).starts_with("Launch the next replay"));
    assert_eq!(
        advice(&replaying(1000)),
        "Capture the rest of a decode step: graphs replay 50 % of the kernels of decode."
    );
    let all = findings(&replaying(1000), &no_trace());
    assert!(all.iter().all(|it| it.id != "decode_eager"), "{all:?}");
}

/// Findings of every rule on one capture in which each kernel was profiled and performs badly.
fn everything(nsys: Timeline) -> (Analysis, Vec<Finding>) {
    let trace = Trace { timeline: Some(nsys), ..Trace::default() };
    let mut analysis = analyze(&trace, None, None);
    let values = CounterValues {
        achieved_occupancy_pct: Some(1.0),
        sm_pct: Some(10.0),
        memory_pct: Some(10.0),
        dram_pct: Some(55.0),
        l2_hit_pct: Some(1.0),
        tensor_pct: Some(1.0),
        stalls: vec![Stall { reason: "wait".into(), warps_per_issue: 1.0, share_pct: 90.0 }],
        ..CounterValues::default()
    };
    for it in analysis.kernels.records.clone() {
        analysis.counters.push(CounterRecord {
            stage: it.stage.clone(),
            kernel_name: it.kernel_name.clone(),
            grid: Some([1; 3]),
            block: Some([1; 3]),
            timeline_calls: Some(it.calls),
            timeline_total_ms: Some(it.total_ms),
            timeline_mean_ms: Some(it.mean_ms),
            unlike_ms: None,
            like: None,
            profiled: 1,
            profiled_in: None,
            full_name: it.full_name.clone(),
            signature: String::new(),
            values: values.clone(),
            flops_per_byte: None,
        });
        for (dram_pct, sm_pct) in [(90.0, 10.0), (10.0, 90.0)] {
            analysis.roofline.points.push(RooflinePoint {
                stage: it.stage.clone(),
                kernel_name: it.kernel_name.clone(),
                timeline_total_ms: Some(it.total_ms),
                share_pct: it.share_pct,
                dram_pct: Some(dram_pct),
                memory_pct: Some(dram_pct),
                sm_pct: Some(sm_pct),
                ..RooflinePoint::default()
            });
        }
    }
    let found = rules().flat_map(|rule| rule.apply(&analysis, &trace)).collect();
    (analysis, found)
}

proptest! {
    #[test]
    fn no_saving_exceeds_its_stage_or_the_time_of_the_kernels_that_it_names(
        kernels in prop::collection::vec((0usize..4, 0i64..900, 1i64..400, 0i64..3), 1..40),
        repeats in 1i64..4
    ) {
        let names = ["nvjet_gemm", "cast_f32", "CatArrayBatchedCopy", "softmax"];
        let mut lines = Vec::new();
        let mut id = 0;
        for repeat in 0..repeats {
            let at = repeat * 4000;
            let (middle, end) = (at + 1000, at + 2000);
            lines.push(format!("range 1 prefill {at}..{middle}"));
            lines.push(format!("range 1 decode_all {middle}..{end}"));
            for (name, start, long, stream) in &kernels {
                for stage in [at, at + 1000] {
                    id += 1;
                    let start = stage + start;
                    lines.push(format!("call 1 {id} {start}..{}", start + 1));
                    let (name, from) = (names[*name], start + 2);
                    lines.push(format!("kernel {id} {name} {from}..{} {stream}", from + long));
                }
            }
        }
        let mut trace = named(&lines.join("\n"), false);
        let mut kernels: Vec<_> = trace.kernels.iter().collect();
        kernels.sort_by_key(|it| it.start_ns);
        trace.kernels = kernels.into_iter().collect();
        trace.cuda_calls.sort();
        let (analysis, found) = everything(trace);
        for it in found {
            let Some(saving) = &it.max_saving else { continue };
            let ms = saving.ms.unwrap();
            let whole = analysis.stages.row(&saving.stage).unwrap().ms.mean;
            prop_assert!(ms <= whole + 1e-12, "{it:?}");
            let text = format!("{} {:?}", it.message, it.evidence);
            let of_stage =
                || analysis.kernels.records.iter().filter(|it| it.stage == saving.stage);
            let mut own: f64 = of_stage()
                .filter(|record| text.contains(&record.kernel_name))
                .map(|record| record.total_ms)
                .sum();
            if own == 0.0 {
                own = of_stage().map(|record| record.total_ms).sum();
            }
            // The ledger's findings are of more kernels than they name, or of gaps.
            let others = ["decode_", "ledger_", "operator_dominates"];
            let kernel_rule = !others.iter().any(|id| it.id.starts_with(id));
            prop_assert!(
                !kernel_rule || ms <= own / repeats as f64 + 1e-12,
                "{it:?}: {own} ms in {repeats} repeats"
            );
        }
    }
}

#[test]
fn work_beyond_64_bits_saturates() {
    let mut events = events("cpu", false);
    // One repeat, with operators in both stages.
    events.retain(|event| match event {
        Event::Range(it) => it.repeat == 0,
        Event::Op(it) => it.repeat == 0,
        _ => true,
    });
    let mut in_prefill = Vec::new();
    for event in &mut events {
        if let Event::Op(op) = event {
            (op.flops, op.bytes) = (1 << 63, 1 << 63);
            let stage = PREFILL.to_owned();
            in_prefill.push(OperatorCall { stage, start_ns: 0, end_ns: 1, ..op.clone() });
        }
    }
    drop(events.splice(1..1, in_prefill.into_iter().map(Event::Op)));
    let trace = Trace { baseline: events.clone(), traced: events, ..Trace::default() };
    let analysis = analyze(&trace, None, None);
    for stage in [PREFILL, DECODE] {
        let work = &analysis.operators.work[stage];
        assert_eq!((work.flops, work.bytes), (u64::MAX, u64::MAX), "{stage}");
    }
    assert!(analysis.mfu.rows.iter().all(|it| it.flops == u64::MAX), "{:?}", analysis.mfu);
}

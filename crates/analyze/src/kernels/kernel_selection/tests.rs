//! Selections from small timelines.

use llmprof_core::{
    domain::{mode::Mode, profiling::Profiling},
    trace::counter::LaunchCounters,
};

use super::*;
use crate::kernels::tests::capture;

/// A run with one sample.
const WHOLE: TracedProgram = TracedProgram { samples: 1, is_runner: true };

fn settings(target_pct: f64) -> NcuSettings {
    NcuSettings { target_pct, ..Profiling::bundled(&Mode::DEEP).unwrap().ncu }
}

/// Launches in order, `a b a@2/64` (grid 2, 64 bytes of shared memory), those after `|` in decode;
/// the duration in ns is the letter's position.
fn timeline(launches: &str) -> Timeline {
    let mut sketch = String::new();
    let (mut shapes, mut id) = (Vec::new(), 0);
    for (at, (stage, words)) in
        ["prefill", "decode_all"].into_iter().zip(launches.split('|')).enumerate()
    {
        let start = at * 1_000_000;
        sketch += &format!("range 1 {stage} {start}..{}\n", start + 900_000);
        for word in words.split_whitespace() {
            let (name, shape) = word.split_once('@').unwrap_or((word, "1"));
            let (grid, shared) = shape.split_once('/').unwrap_or((shape, "0"));
            shapes.push((grid.parse().unwrap(), shared.parse().unwrap()));
            id += 1;
            let (call, from) = (start + id, start + id * 100);
            let to = from + usize::from(name.as_bytes()[0] - b'a' + 1);
            sketch += &format!("call 1 {id} {call}..{call}\nkernel {id} {name} {from}..{to} 7\n");
        }
    }
    let mut trace = capture(&sketch);
    trace.kernels = trace.kernels.map(|at, kernel| {
        (kernel.grid, kernel.shared_memory) = ([shapes[at].0, 1, 1], shapes[at].1);
    });
    trace
}

fn select(launches: &str, target_pct: f64) -> CounterPlan {
    select_kernels(&timeline(launches), &settings(target_pct), WHOLE)
}

/// Kernels of each process.
fn kernels(plan: &CounterPlan) -> Vec<String> {
    plan.processes.iter().map(|it| it.kernels.join(" ")).collect()
}

fn profiled(kernel: &str, grid: u32) -> LaunchCounters {
    LaunchCounters {
        kernel: kernel.into(),
        grid: Some([grid, 1, 1]),
        block: Some([1; 3]),
        ..LaunchCounters::default()
    }
}

#[test]
fn kernels_are_selected_until_the_target_of_each_stage_is_covered() {
    let plan = select("a@1 d@2 e@3 | c@4 b@5 a@1", 80.0);
    assert_eq!(kernels(&plan), ["d e c b"]);
    assert_eq!((plan.processes[0].launches, plan.part), (4, 2), "half of decode has both of its");
    assert_eq!(plan.processes[0].stages, ["prefill", "decode_all"]);
    let planned: Vec<f64> = plan.stages.iter().map(|it| it.planned_pct.unwrap().round()).collect();
    assert_eq!(planned, [90.0, 83.0]);
}

#[test]
fn kernels_of_equal_geometry_are_profiled_in_one_process() {
    let plan = select("d@1 e@1 d@1", 90.0);
    assert_eq!((kernels(&plan), plan.processes[0].launches), (vec!["d e".into()], 2));
    let shared = select("d@1/64 e@1/32 d@1/32", 90.0);
    assert_eq!(shared.processes[0].launches, 3, "of each shared memory");
}

#[test]
fn a_geometry_of_both_stages_is_profiled_once_and_counts_in_both() {
    let plan = select("d@1 a@2 | d@1 d@1", 80.0);
    assert_eq!((plan.processes.len(), plan.processes[0].launches), (1, 1));
    assert_eq!(plan.processes[0].stages, ["prefill"]);
    let covered = plan.covered_pct(&[profiled("d", 1)]);
    assert_eq!((covered["prefill"], covered["decode_all"]), (80.0, 100.0));
}

#[test]
fn launches_of_other_durations_than_the_first_are_not_covered() {
    let mut trace = timeline("a@1 a@1 a@1 a@1 | a@1 a@1");
    // 1 ns and three times 3 ns in prefill, 1 ns and 9 ns in decode.
    trace.kernels = trace.kernels.map(|at, it| it.end_ns = it.start_ns + [1, 3, 3, 3, 1, 9][at]);
    let plan = select_kernels(&trace, &settings(90.0), WHOLE);
    assert_eq!(plan.stages[0].planned_pct, Some(100.0), "of the kernel and geometry");
    let profiled = [profiled("a", 1)];
    assert_eq!(
        plan.covered_pct(&profiled),
        [("decode_all", 10.0), ("prefill", 10.0)]
            .map(|(stage, pct)| (stage.to_owned(), pct))
            .into()
    );
    let findings = plan.coverage_findings(&profiled, &settings(90.0));
    let evidence = &findings[0].evidence["launches of other durations than the profiled ones, %"];
    assert_eq!(evidence, "90.0");
    assert!(findings[0].advice.as_ref().unwrap().contains("launches_per_config"));
    let two = NcuSettings { launches_per_config: 2, ..settings(90.0) };
    let plan = select_kernels(&trace, &two, WHOLE);
    assert_eq!(plan.processes[0].launches, 2, "1 ns and 3 ns of prefill");
    let covered = plan.covered_pct(&profiled);
    assert_eq!((covered["prefill"], covered["decode_all"]), (100.0, 10.0));
}

#[test]
fn only_what_was_profiled_is_covered_and_the_rest_is_named() {
    let plan = select("d@1 d@2 b@3", 90.0);
    let found = [profiled("d", 1), profiled("b", 3)];
    assert_eq!(plan.covered_pct(&found)["prefill"], 60.0);
    let missing = plan.missing(0, &found, None).unwrap();
    assert_eq!(missing.message, "ncu profiled 2 of 3 selected kernels and geometries");
    assert_eq!(missing.evidence["missing"], "d (2 x 1 x 1 blocks of 1 x 1 x 1)");
    let findings = plan.coverage_findings(&found, &settings(90.0));
    assert_eq!(
        findings[0].message,
        "the counters of prefill cover 60.0 % of its kernel time; the target is 90 %"
    );
    let all = [found, [profiled("d", 2), profiled("x", 1)]].concat();
    assert_eq!(
        (plan.missing(0, &all, None), plan.coverage_findings(&all, &settings(90.0))),
        (None, vec![])
    );
}

#[test]
fn as_little_of_decode_is_profiled_as_covers_the_target() {
    let step = "a@1 b@2 a@1 a@1 a@1 b@2 a@1 a@1 ";
    assert_eq!(select(&format!("| {}", step.repeat(64)), 90.0).part, 64);
    let late = format!("| {} {}", "a@1 ".repeat(50), "b@2 ".repeat(50));
    assert_eq!(select(&late, 90.0).part, 1);
    assert_eq!(select(&late, 30.0).part, 64);
}

#[test]
fn many_geometries_of_decode_limit_its_profiled_part() {
    let launches: String = (0..1000).map(|grid| format!("a@{grid} ")).collect();
    let plan = select(&format!("| {launches}"), 90.0);
    assert_eq!((plan.part, plan.processes[0].launches, plan.pairs.len()), (16, 63, 1000));
    assert_eq!(plan.pairs.iter().filter(|it| it.process.is_some()).count(), 63);
    let whole = select_kernels(
        &timeline(&format!("| {launches}")),
        &settings(90.0),
        TracedProgram { is_runner: false, ..WHOLE },
    );
    assert_eq!((whole.part, whole.processes.len()), (1, 0), "a command runs all of its decode");
}

#[test]
fn warm_up_and_traces_without_kernels_give_no_selection() {
    let sketch = "range 1 warmup 0..10\nrange 1 prefill 1..9\ncall 1 1 2..3\nkernel 1 gemm 5..6 7";
    for trace in [capture(sketch), capture("")] {
        let plan = select_kernels(&trace, &settings(90.0), WHOLE);
        assert_eq!((plan.processes, plan.stages), (vec![], vec![]));
    }
}

#[test]
fn a_runner_is_selected_from_by_its_first_repeat_whose_time_is_the_whole() {
    let stage = |id: usize, stage: &str, start: usize, name: &str, ns: usize| {
        let (call, from) = (start + 5, start + 10);
        let (end, to) = (start + 90, from + ns);
        format!(
            "range 1 {stage} {start}..{end}\ncall 1 {id} {call}..{call}\n\
             kernel {id} {name} {from}..{to} 7\n"
        )
    };
    // Two repeats of each of two samples, after a warm-up.
    let sketch = [
        "range 1 warmup 0..99\n".to_owned(),
        stage(1, "prefill", 1, "warm", 50),
        stage(2, "prefill", 100, "a", 10),
        stage(3, "decode_all", 200, "b", 10),
        stage(4, "prefill", 300, "a", 10),
        stage(5, "decode_all", 400, "c", 30),
        stage(6, "prefill", 500, "d", 80),
        stage(7, "decode_all", 600, "e", 80),
        stage(8, "prefill", 700, "a", 80),
    ];
    let trace = capture(&sketch.concat());
    let of = |samples, is_runner| {
        let traced = TracedProgram { samples, is_runner };
        let plan = select_kernels(&trace, &settings(100.0), traced);
        let mut names: Vec<String> = plan.pairs.iter().map(|it| it.kernel.clone()).collect();
        names.sort();
        let ms: Vec<f64> = plan.stages.iter().map(|it| it.kernel_ms * 1e6).collect();
        (names.concat(), ms.iter().map(|ns| ns.round()).collect::<Vec<f64>>(), plan)
    };
    let (names, ns, plan) = of(2, true);
    assert_eq!((names.as_str(), ns, plan.sample), ("ab", vec![10.0, 10.0], Some(0)));
    let finding = &plan.coverage_findings(&[profiled("b", 1)], &settings(90.0))[0];
    assert_eq!(
        finding.message,
        "the counters of prefill cover 0.0 % of its kernel time in sample 0; the target is 90 %"
    );
    let (names, ns, plan) = of(1, false);
    // Another program's stages are all under ncu.
    assert_eq!((names.as_str(), ns, plan.sample), ("abcde", vec![180.0, 120.0], None));
}

#[test]
fn kernels_of_a_program_without_stages_are_selected_in_the_whole_program() {
    let sketch =
        "call 1 1 10..11\nkernel 1 gemm 20..100 7\ncall 1 2 12..13\nkernel 2 norm 100..110 7\n";
    let traced = TracedProgram { samples: 1, is_runner: false };
    let plan = select_kernels(&capture(sketch), &settings(85.0), traced);
    let stages: Vec<_> = plan.stages.iter().map(|it| (it.stage.as_str(), &it.range)).collect();
    assert_eq!(stages, [("", &None)]);
    assert_eq!(kernels(&plan), ["gemm"]);
    let launch = LaunchCounters { kernel: "norm".into(), ..LaunchCounters::default() };
    let found = plan.coverage_findings(&[launch], &settings(85.0));
    assert!(found[0].message.starts_with("the counters of the program cover"), "{found:?}");
}

/// `select` if all kernels are instantiations of one template.
fn select_instantiations(launches: &str, target_pct: f64, has_symbols: bool) -> CounterPlan {
    let mut trace = timeline(launches);
    let names: Vec<String> = trace.strings.clone();
    let first = names.len() as u32;
    trace.strings.extend(names.iter().map(|it| format!("void add<(int)4, {it}>(T2 *)")));
    trace.strings.extend(names.iter().map(|it| format!("_Z3addI{it}EvPT_")));
    trace.strings.push("add".into());
    let short = trace.strings.len() as u32 - 1;
    trace.kernels = trace.kernels.map(|_, kernel| {
        (kernel.full_name, kernel.name) = (kernel.full_name + first, short);
    });
    if has_symbols {
        trace.symbols = (first..2 * first).map(|full| (full, full + first)).collect();
    }
    select_kernels(&trace, &settings(target_pct), WHOLE)
}

#[test]
fn instantiations_of_a_template_are_selected_apart_by_their_symbols() {
    let plan = select_instantiations("a@1 d@1 e@2", 90.0, true);
    let symbols: Vec<String> = plan.processes.iter().map(|it| it.symbols.join(" ")).collect();
    assert_eq!(symbols, ["_Z3addIdEvPT_ _Z3addIeEvPT_"], "the process of d has no a");
    assert_eq!(kernels(&plan), ["add"]);
    let both = select_instantiations("c@1 d@1 e@2", 100.0, true);
    assert_eq!((both.processes.len(), both.processes[0].launches), (1, 3));
    let launch = |of: &str| LaunchCounters {
        signature: llmprof_core::trace::names::signature(&format!("void add<4, {of}>(T2 *)")),
        ..profiled("add", 1)
    };
    let covered = |of: &str| both.covered_pct(&[launch(of)])["prefill"].round();
    assert_eq!((covered("c"), covered("d"), covered("b")), (25.0, 33.0, 0.0));
}

#[test]
fn without_symbols_the_first_instantiation_of_a_geometry_is_profiled_and_counts_alone() {
    let plan = select_instantiations("c@1 d@1 e@2", 100.0, false);
    assert_eq!((kernels(&plan), plan.processes[0].symbols.len()), (vec!["add".into()], 0));
    assert_eq!(plan.stages[0].planned_pct.map(f64::round), Some(67.0), "of c and e");
    let profiled = profiled("add", 1);
    assert_eq!(plan.covered_pct(&[profiled])["prefill"], 0.0, "which one is unknown");
}

#[test]
fn symbols_that_are_too_long_for_an_argument_are_selected_in_several_processes() {
    let select = |max_processes| {
        let mut trace = timeline("a@1 d@1 e@2 f@3 b@4");
        let lengths = [60_000, 30_000, 60_000, 60_000, 140_000];
        for (full, symbol) in (0..).zip(lengths) {
            let number = trace.strings.len() as u32;
            trace.strings.push("x".repeat(symbol));
            trace.symbols.insert(full, number);
        }
        let settings = NcuSettings { max_processes, ..settings(100.0) };
        select_kernels(&trace, &settings, WHOLE)
    };
    assert_eq!(kernels(&select(3)), ["d f", "e", "a"]);
    assert_eq!(kernels(&select(4)), kernels(&select(3)), "one symbol fits into no argument");
    let two = select(2);
    assert_eq!((kernels(&two), two.pairs.len()), (vec!["d f".into(), "e".into()], 3));
    assert!(two.stages[0].planned_pct.is_some_and(|planned| planned < 100.0));
}

#[test]
fn decode_is_filtered_by_the_ranges_of_its_steps_where_it_has_no_other() {
    let sketch = "range 1 prefill 0..10\nrange 1 decode_step 10..20\nrange 1 decode_step 20..30
        call 1 1 1..2\ncall 1 2 11..12\nkernel 1 a 3..9 7\nkernel 2 b 13..19 7";
    let filters = |sketch: &str| {
        let plan = select_kernels(&capture(sketch), &settings(80.0), WHOLE);
        plan.stages.into_iter().map(|it| it.range.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(filters(sketch), ["LLM@prefill/", "LLM@decode_step/"]);
    let named = format!("{sketch}\nrange 1 decode_all 10..30");
    assert_eq!(filters(&named)[1], "LLM@decode_all/");
}

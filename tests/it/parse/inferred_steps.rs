//! Steps inferred from captures whose ranges are known and removed.
//!
//! A step is correct when its first launch, its last launch and its class equal the removed
//! range's. A step without a class is not correct; one with another boundary or class is wrong.

use std::{collections::HashMap, fs, path::PathBuf};

use llmprof_analyze::{
    analyze, parse,
    timeline::{capture::Capture, inferred_steps::infer},
};
use llmprof_core::trace::{
    Trace, engine_steps::StepClass, inferred_steps::InferredStep, timeline::Timeline,
};
use tempfile::TempDir;

use crate::{parse::kineto, support::captures::capture};

/// Captures with ranges around whole forwards of a model, with the numbers of correct steps, of
/// ones without a class, and of steps that the program ran outside its ranges.
///
/// `torch-gemms` has neither embedding nor choice of a token, so nothing shows where its forwards
/// start; in `torch-cuda-graph-node` that holds for prefill, and in `torch-kineto-graph` no layer
/// has attention.
const KNOWN: [(&str, [usize; 3]); 10] = [
    ("hf-deepseek-decoder", [14, 0, 0]),
    ("hf-llama-e2e", [6, 0, 0]),
    ("torch-cuda-graph-node", [32, 1, 0]),
    ("h200-whole-graphs", [10, 0, 0]),
    ("h200-deepseek-ocr-tiny", [10, 0, 0]),
    ("h200-deepseek-ocr", [130, 0, 0]),
    ("h200-gpu-metrics-10khz", [9, 0, 0]),
    ("torch-gemms", [0, 8, 0]),
    ("torch-kineto-eager", [5, 0, 0]),
    ("torch-kineto-graph", [0, 1, 0]),
];

/// First and last launch, by call and row.
type Bounds = ((u32, usize), (u32, usize));

/// A capture with its ranges.
fn read(name: &str) -> (Timeline, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures");
    let trace = if let Some(name) = name.strip_prefix("torch-kineto-") {
        parse::kineto::read(&[kineto::fixture(name)]).unwrap()
    } else if let Ok(packed) = fs::File::open(fixtures.join(format!("{name}.tar.zst"))) {
        let unpacked = zstd::stream::Decoder::new(packed).unwrap();
        let mut archive = tar::Archive::new(unpacked);
        let export = dir.path().join("run.sqlite");
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            if entry.path().unwrap().ends_with("nsys/run.sqlite") {
                entry.unpack(&export).unwrap();
            }
        }
        parse::nsys::read(&export).unwrap()
    } else {
        let export = dir.path().join("run.sqlite");
        capture(name, &export, "").unwrap();
        parse::nsys::read(&export).unwrap()
    };
    (trace.with_rules(Default::default()), dir)
}

/// Launches by thread: start, call and row, in order.
fn launches(trace: &Timeline) -> HashMap<i64, Vec<(i64, u32, usize)>> {
    let capture = Capture::of(trace);
    let kernels = capture.kernel_joins().enumerate();
    let graphs = capture.graph_joins().enumerate().map(|(row, it)| (row + (1 << 40), it));
    let mut threads: HashMap<i64, Vec<(i64, u32, usize)>> = HashMap::new();
    for (row, join) in kernels.chain(graphs).filter(|(_, join)| join.has_call()) {
        let it = trace.cuda_calls.get(join.call as usize);
        threads.entry(it.global_tid).or_default().push((it.start_ns, join.call, row));
    }
    threads.values_mut().for_each(|it| it.sort_unstable());
    threads
}

fn bounds(of: &[(i64, u32, usize)], start_ns: i64, end_ns: i64) -> Option<Bounds> {
    let from = of.partition_point(|it| it.0 < start_ns);
    let to = of.partition_point(|it| it.0 < end_ns);
    let (first, last) = (of[from..to].first()?, of[from..to].last()?);
    Some(((first.1, first.2), (last.1, last.2)))
}

/// Correct steps, ones without a class, wrong ones, and steps outside all ranges.
fn compare(name: &str) -> [usize; 4] {
    let (mut trace, _dir) = read(name);
    let threads = launches(&trace);
    let has_steps = trace.ranges.iter().any(|it| it.name == "decode_step");
    let known: Vec<(i64, Option<Bounds>, StepClass)> = trace
        .ranges
        .iter()
        .filter_map(|it| {
            let class = match it.name.as_str() {
                "prefill" => StepClass::Prefill,
                "decode_step" => StepClass::Decode,
                "decode_all" if !has_steps => StepClass::Decode,
                _ => return None,
            };
            let of = &threads[&it.global_tid];
            Some((it.global_tid, bounds(of, it.start_ns, it.end_ns?), class))
        })
        .collect();
    trace.ranges.clear();
    trace.unclosed.clear();
    trace.framework = Default::default();
    let inferred = infer(&trace);
    for (reason, count) in &inferred.unclear {
        println!("    {count} without a class: {reason}");
    }
    let steps: Vec<(i64, Bounds, StepClass)> = if has_steps {
        let classed = inferred.steps.iter().filter_map(|it| {
            let bounds = bounds(&threads[&it.global_tid], it.start_ns, it.end_ns)?;
            Some((it.global_tid, bounds, it.class?))
        });
        classed.collect()
    } else {
        let class = |stage: &str| match stage {
            "prefill" => StepClass::Prefill,
            _ => StepClass::Decode,
        };
        let stages = inferred.stages().into_iter().filter_map(|(stage, thread, start, end)| {
            Some((thread, bounds(&threads[&thread], start, end)?, class(stage)))
        });
        stages.collect()
    };
    let mut counts = [0; 4];
    let overlaps = |a: &Bounds, b: &Bounds| a.0 <= b.1 && b.0 <= a.1;
    for (thread, bounds, class) in &known {
        let bounds = bounds.expect("each range launches work");
        let found: Vec<_> =
            steps.iter().filter(|it| it.0 == *thread && overlaps(&it.1, &bounds)).collect();
        let place = match found[..] {
            [] => 1,
            [(_, of, by)] if (of, by) == (&bounds, class) => 0,
            _ => {
                println!("    wrong {name}: {class:?} {bounds:?} found {found:?}");
                2
            }
        };
        counts[place] += 1;
    }
    let is_outside = |it: &&(i64, Bounds, StepClass)| {
        known.iter().all(|(_, bounds, _)| !overlaps(&it.1, &bounds.unwrap()))
    };
    counts[3] = steps.iter().filter(is_outside).count();
    counts
}

#[test]
fn steps_of_captures_without_their_ranges_are_those_of_the_ranges() {
    let mut sums = [0; 4];
    println!("{:26} correct  no class  wrong  outside ranges", "capture");
    let mut all = Vec::new();
    for (name, expected) in KNOWN {
        let counts = compare(name);
        let [correct, unclear, wrong, outside] = counts;
        println!("{name:26} {correct:7}  {unclear:8}  {wrong:5}  {outside:14}");
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        all.push((name, counts, [expected[0], expected[1], 0, expected[2]]));
    }
    let [correct, unclear, wrong, outside] = sums;
    println!("{:26} {correct:7}  {unclear:8}  {wrong:5}  {outside:14}", "all");
    for (name, counts, expected) in all {
        assert_eq!(counts, expected, "{name}");
    }
    assert_eq!(wrong, 0);
    assert!(correct * 100 >= (correct + unclear) * 95, "{correct} of {}", correct + unclear);
}

/// First and last launching call of each range of a step, and of each inferred step.
type Calls = Vec<(StepClass, u32, u32)>;

fn calls_of_steps(trace: &Timeline, full: &HashMap<i64, Vec<(i64, u32, usize)>>) -> Calls {
    let steps = infer(trace).steps.into_iter().filter_map(|it| {
        let (first, last) = bounds(&full[&it.global_tid], it.start_ns, it.end_ns)?;
        Some((it.class?, first.0, last.0))
    });
    steps.collect()
}

#[test]
fn windows_of_captures_have_only_whole_steps() {
    for name in ["hf-deepseek-decoder", "h200-deepseek-ocr-tiny", "torch-kineto-eager"] {
        let (mut trace, _dir) = read(name);
        trace.ranges.clear();
        trace.framework = Default::default();
        let full = launches(&trace);
        let all = calls_of_steps(&trace, &full);
        assert!(all.len() >= 5, "{name}");
        let calls = trace.cuda_calls.len() as u32;
        let launching: Vec<u32> = Capture::of(&trace).kernel_joins().map(|it| it.call).collect();
        let mut found = 0;
        for part in 0..10 {
            let (from, to) = (calls / 17 * part, calls - calls / 29 * part);
            let mut window = trace.clone();
            let kept = trace.kernels.iter().zip(&launching);
            let kept = kept.filter(|(_, call)| (from..to).contains(*call));
            window.kernels = kept.map(|(kernel, _)| kernel).collect();
            let steps = calls_of_steps(&window, &full);
            found += steps.len();
            for step in steps {
                assert!(all.contains(&step), "{name} {from}..{to}: {step:?}");
                assert!(from <= step.1 && step.2 < to, "{name} {from}..{to}: {step:?}");
            }
        }
        assert!(found >= all.len(), "{name}: {found} steps in all windows");
    }
}

/// Its prompts and its generation use one kernel of attention; the server answers one request after
/// another.
#[test]
fn prompts_in_a_window_of_a_server_are_prefill_between_steps_of_one_sequence() {
    let (trace, _dir) = read("hf-serve-window");
    let steps = infer(&trace).steps;
    let count = |class: StepClass| steps.iter().filter(|it| it.class == Some(class)).count();
    // The lookups of the capture, without the lookup of a step whose end the window cut off.
    assert_eq!((count(StepClass::Prefill), count(StepClass::Decode), steps.len()), (3, 160, 163));
}

/// The window starts in one answer and ends in another.
#[test]
fn answers_that_a_window_cuts_are_no_repeats_of_decode() {
    let (mut nsys, _dir) = read("hf-serve-window");
    nsys.inferred = infer(&nsys);
    let analysis = analyze(&Trace { timeline: Some(nsys), ..Trace::default() }, None, None);
    let stages = &analysis.stages;
    assert_eq!((stages.row("decode_all").unwrap().ms.n, stages.cut_steps), (2, 34));
    assert_eq!(stages.repeat_steps, [63, 63]);
    let decode = analysis.ledger.stages.iter().find(|it| it.stage == "decode_all").unwrap();
    assert_eq!(decode.traced_ns, Some(decode.measured_ns), "causes are of the whole answers");
}

/// XLA names each execution of a program; the prompt's program has another number than the token's.
#[test]
fn executions_of_xla_programs_are_the_steps_of_a_program_in_jax() {
    let (trace, _dir) = read("jax-steps");
    let steps = infer(&trace).steps;
    let classes: Vec<_> = steps.iter().map(|it| it.class).collect();
    let decode = [Some(StepClass::Decode); 8];
    let turn = || std::iter::once(Some(StepClass::Prefill)).chain(decode);
    assert_eq!(classes, turn().chain(turn()).collect::<Vec<_>>());
    assert_eq!(
        *steps[0].evidence,
        *"program 11936 of jit_forward, which writes 256 times the rows of program 119115 after \
          it to the cache",
        "the prompt has 256 tokens"
    );
    let named = |name: &str| trace.ranges.iter().filter(|it| it.name == name).count();
    let modules = ["jit_forward, program 11936", "jit_forward, program 119115"];
    assert_eq!(modules.map(named), [2, 16]);
    assert!(named("jit(forward): loop_convert_fusion.7") > 0, "operations have short names");
}

/// Steps of the engine's own list, by turn: requests and tokens of its prompts, and the requests
/// that generate, each with the number of steps in a row.
type Turn = (&'static [(u64, u64)], &'static [(u64, usize)]);
const TURNS: [Turn; 2] = [
    (
        &[(17, 3775), (7, 1710)],
        &[
            (24, 15),
            (22, 1),
            (21, 1),
            (20, 5),
            (19, 1),
            (16, 1),
            (15, 2),
            (13, 2),
            (12, 3),
            (10, 1),
            (9, 1),
            (8, 4),
            (6, 1),
            (4, 2),
            (3, 5),
            (2, 1),
            (1, 1),
        ],
    ),
    (
        &[(15, 3918), (9, 2411)],
        &[
            (24, 18),
            (22, 1),
            (21, 1),
            (20, 4),
            (19, 1),
            (17, 1),
            (16, 1),
            (14, 3),
            (13, 4),
            (12, 3),
            (11, 2),
            (10, 2),
            (9, 1),
            (7, 2),
            (6, 2),
            (4, 1),
        ],
    ),
];

/// Warm-ups, and forwards that are captured as graphs, are not steps.
#[test]
fn steps_of_an_engine_that_batches_continuously_have_the_batches_of_its_list() {
    let (trace, _dir) = read("engine-batching-graphs");
    let inferred = infer(&trace);
    let prefill = |it: &(u64, u64)| (Some(StepClass::Prefill), Some(it.0), Some(it.1), None);
    let decode = |(requests, steps): &(u64, usize)| {
        std::iter::repeat_n((Some(StepClass::Decode), None, None, Some(*requests)), *steps)
    };
    let turn = |it: &Turn| -> Vec<_> {
        it.0.iter().map(prefill).chain(it.1.iter().flat_map(decode)).collect()
    };
    let found =
        |it: &InferredStep| (it.class, it.prefill_requests, it.prefill_tokens, it.decode_requests);
    let found: Vec<_> = inferred.steps.iter().map(found).collect();
    assert_eq!(found.len(), 4 + 94);
    assert!(inferred.steps.iter().all(|it| it.phases.is_empty()), "the engine drafts nothing");
    assert_eq!(found, TURNS.iter().flat_map(turn).collect::<Vec<_>>());
    // A decode step launches one graph, and nothing of another step.
    let graphs: Vec<i64> = Capture::of(&trace)
        .graph_joins()
        .map(|it| trace.cuda_calls.get(it.call as usize).start_ns)
        .collect();
    for it in &inferred.steps {
        let inside = graphs.iter().filter(|at| (it.start_ns..it.end_ns).contains(at)).count();
        assert_eq!(inside, usize::from(it.class == Some(StepClass::Decode)), "{it:?}");
    }
    let stages: Vec<(&str, i64)> = inferred.stages().iter().map(|it| (it.0, it.2)).collect();
    let steps = inferred.steps.iter();
    let each: Vec<_> = steps.map(|it| (it.class.unwrap().stage().unwrap(), it.start_ns)).collect();
    assert_eq!(stages, each, "each step is an instance of its stage");
}

/// A pass reads 512 tokens of four sequences, then replays one graph 47 times; kernels before each
/// replay prepare it, and the lookup of the embedding is inside.
#[test]
fn replays_of_a_compiled_decode_are_the_steps_of_transformers_with_a_static_cache() {
    let (trace, _dir) = read("hf-static-graph");
    let found: Vec<_> = infer(&trace).steps.iter().map(|it| it.class).collect();
    let decode = [Some(StepClass::Decode); 47];
    let pass = || std::iter::once(Some(StepClass::Prefill)).chain(decode);
    assert_eq!(found, pass().chain(pass()).chain(pass()).collect::<Vec<_>>());
}

/// By the bytes of the copies: 41 steps choose 23, 24, 38 times 24 and one token, 960 in all; the
/// first two read 8,192 and 247 tokens.
#[test]
fn steps_of_continuous_batching_in_transformers_have_their_requests() {
    let (trace, _dir) = read("hf-continuous");
    let steps = infer(&trace).steps;
    let found: Vec<_> = steps.iter().map(|it| (it.class, it.decode_requests)).collect();
    let decode = |requests: u64| (Some(StepClass::Decode), Some(requests));
    let expected = [[(None, None); 2].to_vec(), [decode(24); 38].to_vec(), vec![decode(1)]];
    assert_eq!(found, expected.concat());
}

/// The draft model copies the first layers of the model, and the other layers add nothing, so most
/// drafts are accepted. The program counted the drafts of each step.
#[test]
fn drafts_of_an_assistant_and_their_verification_are_one_decode_step() {
    let (trace, _dir) = read("hf-speculation");
    let steps = infer(&trace).steps;
    let drafts =
        |it: &InferredStep| it.phases.iter().filter(|it| it.class == StepClass::Draft).count();
    let found: Vec<_> = steps.iter().map(|it| (it.class, drafts(it))).collect();
    let decode = [1, 1, 1, 1, 1, 1, 1, 2, 5, 5, 4, 12].map(|it| (Some(StepClass::Decode), it));
    let pass = || std::iter::once((Some(StepClass::Prefill), 0)).chain(decode);
    assert_eq!(found, pass().chain(pass()).chain(pass()).collect::<Vec<_>>());
}

#[test]
fn a_module_that_runs_alone_has_no_steps() {
    let (mut trace, _dir) = read("hf-llama-attention-mock");
    trace.ranges.clear();
    assert!(infer(&trace).steps.iter().all(|it| it.class.is_none()));
}

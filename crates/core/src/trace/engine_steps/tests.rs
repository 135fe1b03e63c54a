//! Names of steps and their counts.

use super::*;

/// Requests, tokens, keys and products.
type Part = [Option<u64>; 4];

/// Engine, class, and the counts of prefill and decode.
fn read(name: &str) -> Option<(&'static str, StepClass, Part, Part)> {
    let it = engine_step(name)?;
    let all = |it: StepPart| [it.requests, it.tokens, it.keys, it.products];
    Some((it.engine, it.class, all(it.counts.prefill), all(it.counts.decode)))
}

const NONE: Part = [None; 4];

fn some<const N: usize>(values: [u64; N]) -> Part {
    std::array::from_fn(|at| values.get(at).copied())
}

#[test]
fn the_names_of_vllm_carry_the_work_of_a_step() {
    use StepClass::*;
    for (name, class, prefill, decode) in [
        ("execute_context_2(1024)_generation_0(0)", Prefill, some([2, 1024]), some([0, 0])),
        ("execute_context_0(0)_generation_8(8)", Decode, some([0, 0]), some([8, 8])),
        ("execute_context_1(512)_generation_7(7)", Mixed, some([1, 512]), some([7, 7])),
        ("execute_context_0(0)_generation_0(0)", Idle, some([0, 0]), some([0, 0])),
        ("execute_context_1(888_788544)_generation_0(0)", Prefill, some([1, 888]), some([0, 0])),
        ("execute_context_0(0)_generation_1(1_889)", Decode, some([0, 0]), some([1, 1])),
    ] {
        assert_eq!(read(name), Some(("vllm", class, prefill, decode)), "{name}");
    }
    let name = "execute_70_context_2(sq64sk100sqsq2048sqsk4000)_generation_6(sq6sk90sqsq6sqsk95)";
    let expected = (some([2, 64, 100, 4000]), some([6, 6, 90, 95]));
    assert_eq!(read(name), Some(("vllm", Mixed, expected.0, expected.1)));
    let speculative = "execute_8_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq8sk90sqsq32sqsk360)";
    assert_eq!(engine_step(speculative).unwrap().counts.generated(), None);
}

#[test]
fn the_names_of_sglang_carry_the_work_of_a_step_and_its_mode() {
    use StepClass::*;
    for (name, class, prefill, decode) in [
        ("step[EXTEND bs=2 toks=640]", Prefill, some([2, 640]), NONE),
        ("step[DECODE bs=4]", Decode, NONE, some([4])),
        ("step[DECODE bs=4 g_sq=4 g_sqsq=4 g_sqsk=90 g_sk=90]", Decode, NONE, some([4, 4, 90, 90])),
        ("step[TARGET_VERIFY bs=2 g_sq=6 g_sk=30]", Verify, NONE, some([2, 6, 30])),
        ("step[DRAFT_EXTEND_V2 bs=2]", DraftExtend, NONE, some([2])),
        ("draft step[EXTEND bs=4 toks=100]", Draft, NONE, some([4, 100])),
        ("draft step[DRAFT_EXTEND bs=2]", DraftExtend, NONE, some([2])),
        ("draft step[DRAFT_EXTEND_V2 bs=2]", DraftExtend, NONE, some([2])),
        ("step[MIXED bs=5]", Mixed, NONE, NONE),
        ("step[IDLE bs=0]", Idle, NONE, NONE),
        ("step[SPLIT_PREFILL bs=3]", Other, NONE, NONE),
    ] {
        assert_eq!(read(name), Some(("sglang", class, prefill, decode)), "{name}");
    }
    let mixed = engine_step("step[MIXED bs=5 c_sq=9 c_sk=9 g_sq=4 g_sk=77]").unwrap();
    assert_eq!((mixed.class, mixed.counts.requests), (Mixed, Some(5)));
    assert_eq!((mixed.counts.prefill.keys, mixed.counts.decode.keys), (Some(9), Some(77)));
    assert_eq!(engine_step("step[SPLIT_PREFILL bs=3]").unwrap().stage(), Some("SPLIT_PREFILL"));
}

#[test]
fn the_names_of_other_engines_carry_the_work_of_a_step() {
    use StepClass::*;
    for (name, engine, class, prefill, decode) in [
        (
            "[Executor] _forward_step 12: 1 ctx reqs, 3 gen reqs",
            "tensorrt-llm",
            Mixed,
            some([1]),
            some([3]),
        ),
        (
            "[Executor] _forward_step 12: 0 ctx reqs, 0 ctx tokens, 3 gen reqs",
            "tensorrt-llm",
            Decode,
            some([0, 0]),
            some([3]),
        ),
        ("prefill[bs=2 tok=30]", "atom", Prefill, some([2, 30]), NONE),
        ("decode[bs=117/128 tok=117 d=117]", "atom", Decode, NONE, some([117, 117])),
        ("eager_decode[bs=4 tok=4]", "atom", Decode, NONE, some([4, 4])),
        (
            "prefill[bs=6 tok=99 ctx=[40, 50]...+3 sqsq=9 sqsk=8 sk=7 tbo=1]",
            "atom",
            Prefill,
            some([6, 99, 7, 8]),
            NONE,
        ),
    ] {
        assert_eq!(read(name), Some((engine, class, prefill, decode)), "{name}");
    }
    let padded = engine_step("decode[bs=117/128 tok=117]").unwrap().counts;
    assert_eq!((padded.padded, padded.generated()), (Some(128), Some(117)));
    let mixed = engine_step("prefill[bs=4 tok=40 p=1 d=3]").unwrap();
    assert_eq!(mixed.class, Mixed);
}

#[test]
fn a_wrapped_name_is_the_step_that_it_is_alone() {
    let forms = known().iter().flat_map(|it| &it.patterns).map(|it| &it.name.example);
    for form in forms {
        let alone = engine_step(form);
        assert!(alone.is_some(), "{form}");
        for before in ["", "vllm:", "worker0/", "my_engine: ", "rank 3, pipeline/stage0: "] {
            for after in ["", " ", " (dummy)", " [rank 3]"] {
                let name = format!("{before}{form}{after}");
                let of = |it: EngineStep| (it.engine, it.form, it.class, it.counts);
                assert_eq!(engine_step(&name).map(of), alone.map(of), "{name}");
            }
        }
    }
}

#[test]
fn a_name_of_an_unknown_form_looks_like_a_step_of_its_engine() {
    let engine = |name| engine_of_name(name).map(|it| it.name.as_str());
    for (name, expected) in [
        ("execute_context_0(0)_generation_8(8)_dummy", Some("vllm")),
        ("worker0/execute_new_1_cached_8", Some("vllm")),
        ("step[decode, 8 requests]", Some("sglang")),
        ("decode[bs=eight]", Some("atom")),
        ("decode[0]", None),
        ("execute_query", None),
        ("aten::mm", None),
    ] {
        assert_eq!(engine(name), expected, "{name}");
    }
}

#[test]
fn a_scope_of_a_step_is_known_by_its_name() {
    let scope = |name| step_scope(name).map(|it| (it.0.name.as_str(), it.2));
    assert_eq!(scope("gpu_model_runner: sample"), Some(("vllm", "sample")));
    assert_eq!(scope("worker0/gpu_model_runner: draft"), Some(("vllm", "draft")));
    assert_eq!(["sample", "gpu_model_runner", "cpu_gpu_model_runner: x"].map(scope), [None; 3]);
}

#[test]
fn causal_pairs_of_a_step_are_those_of_its_requests() {
    // Query and key lengths of each request.
    let steps = [vec![(4_u64, 4_u64)], vec![(1, 9), (1, 30)], vec![(3, 10), (64, 90), (1, 1)]];
    for lengths in steps {
        let sum = |of: &dyn Fn(u64, u64) -> u64| {
            Some(lengths.iter().map(|it| of(it.0, it.1)).sum::<u64>())
        };
        let attended = |q: u64, k: u64| -> u64 { (0..q).map(|at| k - at).sum() };
        let mut part = StepPart {
            requests: Some(lengths.len() as u64),
            tokens: sum(&|q, _| q),
            keys: sum(&|_, k| k),
            products: sum(&|q, k| q * k),
            squares: sum(&|q, _| q * q),
        };
        assert_eq!(part.causal_pairs(), sum(&attended));
        part.squares = None;
        let single = lengths.iter().all(|it| it.0 == 1);
        assert_eq!(part.causal_pairs(), sum(&attended).filter(|_| single));
    }
    let name = "execute_9_context_1(sq8sk8sqsq64sqsk64)_generation_1(sq1sk20sqsq1sqsk20)";
    let counts = engine_step(name).unwrap().counts;
    assert_eq!([counts.prefill.squares, counts.decode.squares], [Some(64), Some(1)]);
    assert_eq!(counts.prefill.causal_pairs(), Some(36));
    let sglang = engine_step("step[DECODE bs=2 g_sq=6 g_sqsq=18 g_sqsk=90 g_sk=30]").unwrap();
    assert_eq!(sglang.counts.decode.causal_pairs(), Some(84));
    let odd = "execute_9_context_1(sq8sk8sqsq64sqsk9)_generation_0(sq0sk0sqsq0sqsk0)";
    assert_eq!(engine_step(odd).unwrap().counts.prefill.causal_pairs(), None);
}

#[test]
fn other_names_are_no_steps() {
    let names = [
        "",
        "prefill",
        "step[EXTEND bs=-1 toks=1]",
        "step[DECODE bs=99999999999999999999999]",
        "steps",
        "decode[0]",
        "layers[bs]",
        "layer[bs=4]",
        "execute_context_0(0)_generation_8(8)_dummy",
        "pre_execute_context_0(0)_generation_8(8)",
        "my.step[DECODE bs=8]",
    ];
    assert_eq!(names.map(engine_step), [None; 11]);
    assert_eq!(engine_step(&format!("step[DECODE bs={}]", "1".repeat(500))), None);
}

//! Steps of inference engines, by the names of their ranges, which carry the work of the step.
//!
//! The patterns are data: `conf/engines/`.

use super::engines::{Engine, KnownEngine, StepPattern, StepScopes, known};
use crate::domain::named_values::named_values;

/// Longer names are not matched.
const MAX_NAME: usize = 400;

/// Stage of steps that prefill some requests and decode others.
pub const MIXED: &str = "mixed";
/// Stage of steps without requests.
pub const IDLE: &str = "idle";

named_values! {
    /// Work of a step.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    StepClass {
        /// It reads prompts only.
        Prefill = "prefill",
        /// It generates one token, or a few, of each request.
        Decode = "decode",
        /// It does both.
        Mixed = "mixed",
        /// It has no requests: a rank that keeps the others company, or a step that only receives.
        Idle = "idle",
        /// A phase of a decode step: a smaller model proposes tokens.
        Draft = "draft",
        /// A phase of a decode step: the model verifies the proposed tokens.
        Verify = "verify",
        /// A phase of a decode step: the smaller model reads the accepted tokens.
        DraftExtend = "draft_extend",
        /// A mode that is not known: its stage has the engine's own word.
        Other = "other",
    }
}

impl StepClass {
    /// The stage of such steps; `None` for a mode that is not known.
    pub const fn stage(self) -> Option<&'static str> {
        match self {
            Self::Prefill => Some("prefill"),
            Self::Decode | Self::Draft | Self::Verify | Self::DraftExtend => Some("decode_all"),
            Self::Mixed => Some(MIXED),
            Self::Idle => Some(IDLE),
            Self::Other => None,
        }
    }

    /// True for a part of a decode step by speculation.
    pub const fn is_phase(self) -> bool {
        matches!(self, Self::Draft | Self::Verify | Self::DraftExtend)
    }
}

/// Requests of one kind in a step, and their sums; each `None` if the name does not carry it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepPart {
    pub requests: Option<u64>,
    /// Sum of the query lengths: tokens that the step computes.
    pub tokens: Option<u64>,
    /// Sum of the key lengths: tokens that attention reads.
    pub keys: Option<u64>,
    /// Sum of query length times key length.
    pub products: Option<u64>,
}

impl StepPart {
    /// The counts of `self`; of `other` if `self` has none.
    fn or(self, other: Self) -> Self {
        Self {
            requests: self.requests.or(other.requests),
            tokens: self.tokens.or(other.tokens),
            keys: self.keys.or(other.keys),
            products: self.products.or(other.products),
        }
    }
}

/// Counts of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepCounts {
    /// All requests, if the name does not separate prefill from decode.
    pub requests: Option<u64>,
    /// Requests of a graph of a fixed size, padding included.
    pub padded: Option<u64>,
    pub prefill: StepPart,
    pub decode: StepPart,
}

impl StepCounts {
    /// The counts of `self`; of `other` if `self` has none.
    pub fn or(self, other: Self) -> Self {
        Self {
            requests: self.requests.or(other.requests),
            padded: self.padded.or(other.padded),
            prefill: self.prefill.or(other.prefill),
            decode: self.decode.or(other.decode),
        }
    }

    /// Sets one count; one without a kind is of the class of the step. `None` for a number that is
    /// no count.
    fn set(&mut self, class: Option<StepClass>, key: &str, value: &str) -> Option<()> {
        let (value, padded) = value.split_once('/').map_or((value, None), |it| (it.0, Some(it.1)));
        let number = value.parse::<u64>().ok()?;
        if let Some(padded) = padded {
            self.padded = Some(padded.parse().ok()?);
        }
        let (kind, what) = match key.split_once('_') {
            Some(it) => it,
            None => match class {
                Some(StepClass::Prefill) => ("prefill", key),
                Some(StepClass::Mixed | StepClass::Idle | StepClass::Other) => ("", key),
                _ => ("decode", key),
            },
        };
        let part = match kind {
            "prefill" => &mut self.prefill,
            "decode" => &mut self.decode,
            _ => {
                self.requests = if what == "requests" { Some(number) } else { self.requests };
                return Some(());
            }
        };
        match what {
            "requests" => part.requests = Some(number),
            "tokens" => part.tokens = Some(number),
            "keys" => part.keys = Some(number),
            "products" => part.products = Some(number),
            _ => {}
        }
        Some(())
    }

    /// Tokens that a decode step generated, one for each request; `None` if it computed more, since
    /// it may have kept fewer than it computed.
    pub fn generated(&self) -> Option<u64> {
        let requests = self.decode.requests?;
        self.decode.tokens.is_none_or(|tokens| tokens == requests).then_some(requests)
    }
}

/// The work of one step by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineStep<'a> {
    pub engine: &'static str,
    pub class: StepClass,
    /// The engine's own word for the class, if it has one.
    pub mode: Option<&'a str>,
    /// The form of the name: two ranges around one step have different ones.
    pub form: &'static str,
    pub counts: StepCounts,
}

impl<'a> EngineStep<'a> {
    /// The step's stage: of an unknown class, the engine's word.
    pub fn stage(&self) -> Option<&'a str> {
        self.class.stage().or(self.mode)
    }
}

/// The step that a range of this name is; `None` for other ranges.
pub fn engine_step(name: &str) -> Option<EngineStep<'_>> {
    // Cheap, because every range of a capture is asked: each form has a bracket.
    if !name.contains(['[', '(']) {
        return None;
    }
    let like = engines_like(name).flat_map(|it| it.patterns.iter().map(move |form| (it, form)));
    let found = like.filter_map(|(engine, form)| step_by(engine, form, name));
    // One form may contain another, as "draft step[...]" does: the outer one counts.
    found.min_by_key(|it| it.0).map(|it| it.1)
}

/// The engine whose steps have names like this one, in a form that is known or not.
pub fn engine_of_name(name: &str) -> Option<&'static Engine> {
    engines_like(name).map(|it| &it.engine).next()
}

/// The engine with such a scope of a step, all of its scopes, and the scope.
pub fn step_scope(name: &str) -> Option<(&'static Engine, &'static StepScopes, &str)> {
    let short = Some(name).filter(|it| it.len() <= MAX_NAME)?;
    let of = |engine: &'static KnownEngine| {
        engine.scope(short).map(|(scopes, scope)| (&engine.engine, scopes, scope))
    };
    known().iter().find_map(of)
}

fn engines_like(name: &str) -> impl Iterator<Item = &'static KnownEngine> {
    let is_short = name.len() <= MAX_NAME;
    known().iter().filter(move |it| is_short && it.is_like_step(name))
}

/// The step of a name of one form, and where in the name it is.
fn step_by<'a>(
    engine: &'static KnownEngine,
    pattern: &'static StepPattern,
    name: &'a str,
) -> Option<(usize, EngineStep<'a>)> {
    let found = pattern.regex.captures(name)?;
    let at = found.get_match().start();
    let mode = found.name("mode").map(|it| it.as_str());
    let of_mode = mode.map(|mode| pattern.name.class_of(mode));
    let mut counts = StepCounts::default();
    for (key, value) in pattern.name.values(&found, &pattern.regex) {
        counts.set(of_mode, key, value)?;
    }
    let by_requests = match (counts.prefill.requests, counts.decode.requests) {
        (None, None) => None,
        (prefill, decode) => Some(match (prefill.unwrap_or(0), decode.unwrap_or(0)) {
            (0, 0) => StepClass::Idle,
            (_, 0) => StepClass::Prefill,
            (0, _) => StepClass::Decode,
            (_, _) => StepClass::Mixed,
        }),
    };
    // A mode names the larger part if the requests of both parts are written.
    let has_both = counts.prefill.requests.and(counts.decode.requests).is_some();
    let class = if has_both { by_requests } else { of_mode.or(by_requests) }?;
    let (engine, form) = (engine.engine.name.as_str(), pattern.name.example.as_str());
    Some((at, EngineStep { engine, class, mode, form, counts }))
}

#[cfg(test)]
mod tests {
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
            (
                "execute_context_1(888_788544)_generation_0(0)",
                Prefill,
                some([1, 888]),
                some([0, 0]),
            ),
            ("execute_context_0(0)_generation_1(1_889)", Decode, some([0, 0]), some([1, 1])),
        ] {
            assert_eq!(read(name), Some(("vllm", class, prefill, decode)), "{name}");
        }
        let name =
            "execute_70_context_2(sq64sk100sqsq2048sqsk4000)_generation_6(sq6sk90sqsq6sqsk95)";
        let expected = (some([2, 64, 100, 4000]), some([6, 6, 90, 95]));
        assert_eq!(read(name), Some(("vllm", Mixed, expected.0, expected.1)));
        let speculative =
            "execute_8_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq8sk90sqsq32sqsk360)";
        assert_eq!(engine_step(speculative).unwrap().counts.generated(), None);
    }

    #[test]
    fn the_names_of_sglang_carry_the_work_of_a_step_and_its_mode() {
        use StepClass::*;
        for (name, class, prefill, decode) in [
            ("step[EXTEND bs=2 toks=640]", Prefill, some([2, 640]), NONE),
            ("step[DECODE bs=4]", Decode, NONE, some([4])),
            (
                "step[DECODE bs=4 g_sq=4 g_sqsq=4 g_sqsk=90 g_sk=90]",
                Decode,
                NONE,
                some([4, 4, 90, 90]),
            ),
            ("step[TARGET_VERIFY bs=2 g_sq=6 g_sk=30]", Verify, NONE, some([2, 6, 30])),
            ("step[DRAFT_EXTEND_V2 bs=2]", DraftExtend, NONE, some([2])),
            ("draft step[EXTEND bs=4 toks=100]", Draft, NONE, some([4, 100])),
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
}

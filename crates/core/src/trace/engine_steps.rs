//! Steps of inference engines, by the names of their ranges, which carry the work of the step.
//!
//! The patterns are data: `conf/engines/`.

use super::engines::known;
use crate::domain::named_values::named_values;

/// Longer names are not matched.
const MAX_NAME: usize = 200;

/// Stage of steps that prefill some requests and decode others.
pub const MIXED: &str = "mixed";

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
    }
}

impl StepClass {
    /// The stage of such steps.
    pub const fn stage(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode_all",
            Self::Mixed => MIXED,
        }
    }
}

/// The work of one step by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineStep {
    pub engine: &'static str,
    pub class: StepClass,
    pub prefill_requests: Option<u64>,
    pub prefill_tokens: Option<u64>,
    pub decode_requests: Option<u64>,
}

/// The step that a range of this name is; `None` for other ranges, and for a step without requests.
pub fn engine_step(name: &str) -> Option<EngineStep> {
    // Cheap, because every range of a capture is asked.
    if name.len() > MAX_NAME || !name.ends_with([')', ']', 's']) {
        return None;
    }
    known().iter().find_map(|known| {
        let found = known.patterns.iter().find_map(|pattern| pattern.captures(name))?;
        let count = |group: &str| found.name(group)?.as_str().parse::<u64>().ok();
        let counts = [count("prefill_requests"), count("prefill_tokens"), count("decode_requests")];
        let [prefill_requests, prefill_tokens, decode_requests] = counts;
        let class = match (prefill_requests.unwrap_or(0), decode_requests.unwrap_or(0)) {
            (0, 0) => return None,
            (_, 0) => StepClass::Prefill,
            (0, _) => StepClass::Decode,
            (_, _) => StepClass::Mixed,
        };
        let engine = known.engine.name.as_str();
        Some(EngineStep { engine, class, prefill_requests, prefill_tokens, decode_requests })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_each_engine_carry_the_work_of_a_step() {
        let read = |name: &str| {
            let it = engine_step(name)?;
            Some((it.engine, it.class, it.prefill_requests, it.prefill_tokens, it.decode_requests))
        };
        use StepClass::*;
        assert_eq!(
            read("execute_context_2(1024)_generation_0(0)"),
            Some(("vllm", Prefill, Some(2), Some(1024), Some(0)))
        );
        assert_eq!(
            read("execute_context_0(0)_generation_8(8)"),
            Some(("vllm", Decode, Some(0), Some(0), Some(8)))
        );
        assert_eq!(
            read("execute_context_1(512)_generation_7(7)"),
            Some(("vllm", Mixed, Some(1), Some(512), Some(7)))
        );
        assert_eq!(
            read("step[EXTEND bs=2 toks=640]"),
            Some(("sglang", Prefill, Some(2), Some(640), None))
        );
        assert_eq!(read("step[DECODE bs=4]"), Some(("sglang", Decode, None, None, Some(4))));
        assert_eq!(
            read("[Executor] _forward_step 12: 1 ctx reqs, 3 gen reqs"),
            Some(("tensorrt-llm", Mixed, Some(1), None, Some(3)))
        );
        assert_eq!(
            read("[Executor] _forward_step 12: 0 ctx reqs, 0 ctx tokens, 3 gen reqs"),
            Some(("tensorrt-llm", Decode, Some(0), Some(0), Some(3)))
        );
    }

    #[test]
    fn other_names_are_no_steps() {
        let names = [
            "",
            "prefill",
            "execute_context_0(0)_generation_0(0)",
            "execute_context_1(512)_generation_7(7) ",
            "step[EXTEND bs=-1 toks=1]",
            "step[DECODE bs=99999999999999999999999]",
            "steps",
        ];
        assert_eq!(names.map(engine_step), [None; 7]);
        assert_eq!(engine_step(&format!("step[DECODE bs={}]", "1".repeat(300))), None);
    }
}

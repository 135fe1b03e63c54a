//! Rules on captures without stages: steps inferred from what was launched, reasons for none, and
//! how the engine adds its ranges.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::{
    domain::{
        finding::{Finding, catalogue},
        subject::SubjectKind,
        units::quantity,
    },
    trace::{
        Trace,
        engine_steps::{StepClass, engine_of_name, engine_step, step_scope},
        engines::{Engine, engines},
        names::base_name,
        range::{ByLabel, Range, RangeLabel},
        timeline::Timeline,
    },
};

use super::Rule;
use crate::{
    Analysis,
    kernels::kernel_classes::Pattern,
    stages::in_sentence,
    timeline::{
        interval::{Interval, IntervalSet},
        open_ranges::place,
    },
};

pub const RULES: &[Rule] = &[
    Rule { id: catalogue::STEPS_INFERRED, find: inferred },
    Rule { id: catalogue::STEPS_UNCLEAR, find: unclear },
    Rule { id: catalogue::STEP_NAMES_UNKNOWN, find: names_unknown },
    Rule { id: catalogue::STAGES_EXCLUDED, find: excluded },
];

/// The engine of a capture by the names of its ranges, or of its kernels; with its evidence.
pub fn engine_of(trace: &Timeline) -> Option<(&'static Engine, &'static str)> {
    let of_name = |name| engine_of_name(name).or_else(|| step_scope(name).map(|it| it.0));
    let mut of_range = ByLabel::new(|label: &RangeLabel| of_name(&label.name));
    let by_ranges = trace.ranges.iter().find_map(|it| of_range.get(it));
    let by_ranges = by_ranges.map(|it| (it, "engine by its ranges"));
    by_ranges.or_else(|| Some((engine_of_kernels(trace)?, "engine by its kernels")))
}

fn engine_of_kernels(trace: &Timeline) -> Option<&'static Engine> {
    let mut names: Vec<u32> = trace.kernels.kinds().iter().map(|it| it.full_name).collect();
    names.sort_unstable();
    names.dedup();
    let names: Vec<String> = names
        .iter()
        .filter_map(|it| Some(trace.strings.get(*it as usize)?.to_lowercase()))
        .collect();
    engines().find(|engine| {
        names.iter().any(|full| Pattern::holds((&engine.kernels, &[]), base_name(full), full))
    })
}

/// Names the engine in the evidence, and gives the line that adds its ranges to a capture by the
/// profiler that recorded this one. A capture without any range gets the line for a program.
pub fn with_engine(found: Finding, trace: &Trace) -> Finding {
    let Some(nsys) = &trace.timeline else { return found };
    let engine = engine_of(nsys);
    let found = match engine {
        Some((engine, evidence)) => found.with(evidence, &engine.title),
        None => found,
    };
    match engine.and_then(|(it, _)| Some((it, it.ranges_for(nsys.tool)?))) {
        Some((engine, ranges)) => found.advise(format!(
            "For the ranges of {}: {ranges}. `llmprof engines {}` prints all commands.",
            engine.title, engine.name
        )),
        None if nsys.ranges.is_empty() && nsys.unclosed.is_empty() => found.advise(format!(
            "The capture has no ranges: have the program open {} called prefill and decode_step.",
            nsys.tool.ranges()
        )),
        None => found,
    }
}

fn inferred(_: &Analysis, trace: &Trace) -> Vec<Finding> {
    let Some(nsys) = &trace.timeline else { return vec![] };
    let count =
        |class: StepClass| nsys.inferred.steps.iter().filter(|it| it.class == Some(class)).count();
    let (prefill, decode) = (count(StepClass::Prefill), count(StepClass::Decode));
    if prefill + decode == 0 {
        return vec![];
    }
    let named = [(prefill, "prefill step"), (decode, "decode step")];
    let named = named.into_iter().filter(|it| it.0 > 0);
    let named: Vec<String> = named.map(|(count, noun)| quantity(count as u64, noun)).collect();
    let message = format!(
        "Inferred from the order of launches: {}. The table engine_steps has the evidence of each.",
        named.join(" and ")
    );
    let found = Finding::new(catalogue::STEPS_INFERRED, message)
        .with("prefill steps", prefill)
        .with("decode steps", decode);
    vec![with_engine(found, trace)]
}

/// Adds the reasons for which sequences of kernels have no class, with the number of each.
pub fn with_reasons(found: Finding, trace: &Trace) -> Finding {
    let reasons = trace.timeline.iter().flat_map(|nsys| &nsys.inferred.unclear);
    reasons.fold(found, |found, (reason, count)| found.with(reason, count))
}

fn unclear(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let Some(nsys) = &trace.timeline else { return vec![] };
    let count: u64 = nsys.inferred.unclear.values().sum();
    // An import without stages has a finding of its own.
    if count == 0 || (analysis.stages.rows.is_empty() && analysis.subject == SubjectKind::Import) {
        return vec![];
    }
    let message = format!(
        "The evidence of {} of kernels does not prove a step: their kernels are outside all \
         stages.",
        quantity(count, "sequence")
    );
    let found = with_reasons(Finding::new(catalogue::STEPS_UNCLEAR, message), trace);
    vec![with_engine(found, trace)]
}

/// Range names that match no form of an engine's steps, and steps that only scopes show.
fn names_unknown(_: &Analysis, trace: &Trace) -> Vec<Finding> {
    let Some(nsys) = &trace.timeline else { return vec![] };
    let scoped = nsys.inferred.steps.iter().filter(|it| it.mode.is_some()).count();
    let (unread, engine, example) = unread_names(nsys);
    let mut found = Vec::new();
    if scoped > 0 {
        let message = format!(
            "{} known by ranges around {} parts, whose names show neither class nor requests.",
            if scoped == 1 { "1 step is".to_owned() } else { format!("{scoped} steps are") },
            if scoped == 1 { "its" } else { "their" },
        );
        let finding = Finding::new(catalogue::STEP_NAMES_UNKNOWN, message).with("steps", scoped);
        found.push(with_engine(finding, trace));
    }
    if let Some((engine, example)) = engine.zip(example) {
        let message = format!(
            "{} by name like {} of {}, in no known form: {example:?}.",
            if unread == 1 { "1 range is".to_owned() } else { format!("{unread} ranges are") },
            if unread == 1 { "a step" } else { "steps" },
            engine.title
        );
        found.push(
            Finding::new(catalogue::STEP_NAMES_UNKNOWN, message)
                .with("ranges", unread)
                .with("example", example),
        );
    }
    found
}

/// Ranges that look like steps and are none: their number, and the engine and name of the first. A
/// range around a step or inside one is a part of the engine's own.
fn unread_names(trace: &Timeline) -> (u64, Option<&'static Engine>, Option<&str>) {
    let mut steps: BTreeMap<i64, Vec<Interval>> = BTreeMap::new();
    let mut unread: Vec<(&Range, &'static Engine)> = Vec::new();
    let mut engine_of = ByLabel::new(|label: &RangeLabel| engine_of_name(&label.name));
    for range in trace.ranges.iter() {
        let Some(engine) = engine_of.get(range) else { continue };
        let is_ruled = trace.rules.ruled_stage(&range.name, &range.domain).is_some();
        match engine_step(&range.name) {
            Some(_) => {
                let at = (range.start_ns, range.end_ns.unwrap_or(range.start_ns));
                steps.entry(place(range)).or_default().push(at);
            }
            None if !is_ruled => unread.push((range, engine)),
            None => {}
        }
    }
    let steps: BTreeMap<i64, IntervalSet> =
        steps.into_iter().map(|(place, at)| (place, IntervalSet::new(at))).collect();
    unread.retain(|(range, _)| {
        let end_ns = range.end_ns.unwrap_or(range.start_ns);
        steps.get(&place(range)).is_none_or(|it| it.overlap_ns(range.start_ns, end_ns) == 0)
    });
    let first = unread.first();
    (unread.len() as u64, first.map(|it| it.1), first.map(|it| it.0.name.as_str()))
}

/// The finding on stages that a range filter leaves out, if it leaves out all of them.
pub fn excluded(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let may_exclude = |it: &&Timeline| it.rules.narrowed() && analysis.stages.rows.is_empty();
    let Some(nsys) = trace.timeline.as_ref().filter(may_exclude) else { return vec![] };
    let mut stage_of =
        ByLabel::new(|label: &RangeLabel| nsys.rules.stage(&label.name, &label.domain));
    let named = nsys.ranges.iter().filter_map(|it| stage_of.get(it));
    let inferred = nsys.inferred.stages().into_iter().map(|it| it.0);
    let stages: BTreeSet<&str> = named.chain(inferred).collect();
    if stages.is_empty() {
        return vec![];
    }
    let stages: Vec<&str> = stages.into_iter().map(in_sentence).collect();
    let message = format!(
        "No stage was timed: the ranges of {} are left out, as include_ranges and exclude_ranges \
         ask.",
        stages.join(" and ")
    );
    vec![Finding::new(catalogue::STAGES_EXCLUDED, message)]
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::{framework::TimelineTool, stage::StageRules};

    use super::*;
    use crate::{analyze, kernels::tests::capture, timeline::inferred_steps::infer};

    fn findings(kernel: &str, tool: TimelineTool) -> Vec<Finding> {
        let mut nsys = capture(&format!("call 1 1 1..2\nkernel 1 {kernel} 5..50 7"));
        nsys.tool = tool;
        let subject = llmprof_core::domain::subject::SubjectKind::Import;
        let trace = Trace { subject, timeline: Some(nsys), ..Trace::default() };
        analyze(&trace, None, None).findings
    }

    #[test]
    fn steps_without_work_are_counted_unless_none_has_work_or_they_have_no_requests() {
        let found = |sketch: &str| {
            let trace = Trace { timeline: Some(capture(sketch)), ..Trace::default() };
            let found = analyze(&trace, None, None).findings.into_iter();
            found.filter(|it| it.id == "steps_left_out").map(|it| it.message.clone()).next()
        };
        let steps = "range 1 execute_context_0(0)_generation_1(1) 0..100
            range 1 execute_context_0(0)_generation_1(1) 200..300
            range 1 execute_context_0(0)_generation_0(0) 400..500";
        assert_eq!(found(steps), None);
        assert_eq!(
            found(&format!("{steps}\ncall 1 1 10..11\nkernel 1 a 20..50 7")).unwrap(),
            "1 of 2 steps is left out of all times: 1 without recorded work on a device."
        );
    }

    #[test]
    fn stages_that_a_range_filter_leaves_out_are_named_in_place_of_no_stages() {
        let ids = |exclude: &[&str]| {
            let exclude = exclude.iter().map(|it| (*it).to_owned()).collect();
            let rules = StageRules::with(vec![], vec![], exclude);
            let nsys = capture("range 1 prefill 0..100\ncall 1 1 10..11\nkernel 1 a 20..50 7");
            let nsys = Some(nsys.with_rules(rules));
            let trace = Trace { subject: SubjectKind::Import, timeline: nsys, ..Trace::default() };
            let found = analyze(&trace, None, None).findings.into_iter();
            let found = found.filter(|it| it.id == "no_stages" || it.id == "stages_excluded");
            found.map(|it| it.message.clone()).collect::<Vec<_>>()
        };
        let message = "No stage was timed: the ranges of prefill are left out, as include_ranges \
                       and exclude_ranges ask.";
        assert_eq!(ids(&["prefill"]), [message]);
        assert_eq!(ids(&[]).len(), 0);
    }

    #[test]
    fn ranges_like_steps_in_no_known_form_are_counted_with_an_example() {
        let found = |sketch: &str| {
            let mut nsys = capture(&format!("{sketch}\ncall 1 1 1..2\nkernel 1 a 5..50 7"));
            nsys.ranges.iter_mut().for_each(|it| it.name = it.name.replace('~', " "));
            nsys.inferred = infer(&nsys);
            let trace = Trace { timeline: Some(nsys), ..Trace::default() };
            let found = analyze(&trace, None, None).findings.into_iter();
            let found = found.filter(|it| it.id == "step_names_unknown");
            found.map(|it| it.message.clone()).collect::<Vec<_>>()
        };
        let step = "execute_context_0(0)_generation_8(8)";
        let unread = format!("range 1 {step}_dummy 0..100\nrange 1 {step}_dummy 200..300");
        assert_eq!(
            found(&unread),
            [format!(
                "2 ranges are by name like steps of vLLM 0.13 and later, in no known form: \
                 \"{step}_dummy\"."
            )]
        );
        assert_eq!(found(&format!("range 1 execute_model 0..100\nrange 1 {step} 10..90")).len(), 0);
        assert_eq!(found("range 1 aten::mm 0..100").len(), 0);
        assert_eq!(
            found("range 1 gpu_model_runner:~forward 0..100"),
            ["1 step is known by ranges around its parts, whose names show neither class nor \
              requests."]
        );
    }

    #[test]
    fn a_capture_without_stages_names_its_engine_and_the_line_for_its_ranges() {
        for (kernel, title, line) in [
            ("vllm::rms_norm_kernel<float>", "vLLM 0.13 and later", Some("--profiler-config")),
            ("write_req_to_token_pool_triton", "SGLang 0.5", Some("/start_profile")),
            ("tensorrt_llm::kernels::mmha", "TensorRT-LLM", Some("TLLM_NVTX_DEBUG=1")),
            ("mul_mat_vec_q<8>", "llama.cpp", None),
            ("loop_add_fusion", "JAX", Some("`llmprof engines jax`")),
            (
                "at::native::reduce_kernel",
                "PyTorch and transformers",
                Some("`llmprof engines transformers`"),
            ),
        ] {
            let [found, by_torch] =
                [TimelineTool::Nsys, TimelineTool::Pytorch].map(|tool| findings(kernel, tool));
            let found = found.iter().find(|it| it.id == "no_stages").unwrap();
            assert_eq!(found.evidence["engine by its kernels"], title);
            let of_torch = by_torch.iter().find(|it| it.id == "no_stages").unwrap();
            let advice = of_torch.advice.as_ref().unwrap();
            assert!(!advice.to_lowercase().contains("nvtx"), "{advice}");
            let advice = found.advice.as_ref().unwrap();
            assert!(line.is_none_or(|line| advice.contains(line)), "{advice}");
        }
        for (tool, ranges) in [
            (TimelineTool::Nsys, "NVTX ranges"),
            (TimelineTool::Pytorch, "torch.profiler.record_function"),
        ] {
            let found = findings("own_kernel", tool);
            let found = found.iter().find(|it| it.id == "no_stages").unwrap();
            assert!(!found.evidence.contains_key("engine by its kernels"));
            assert!(found.advice.as_ref().unwrap().contains(ranges));
        }
    }
}

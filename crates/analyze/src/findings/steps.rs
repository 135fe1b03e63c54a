//! Rules on captures without stages: steps inferred from what was launched, reasons for none, and
//! how the engine adds its ranges.

use llmprof_core::{
    domain::{
        finding::{Finding, catalogue},
        subject::SubjectKind,
        units::quantity,
    },
    trace::{
        Trace,
        engine_steps::StepClass,
        engines::{Engine, engines},
        names::base_name,
        timeline::Timeline,
    },
};

use super::Rule;
use crate::{Analysis, kernels::kernel_classes::Pattern};

pub const RULES: &[Rule] = &[
    Rule { id: catalogue::STEPS_INFERRED, find: inferred },
    Rule { id: catalogue::STEPS_UNCLEAR, find: unclear },
    Rule { id: catalogue::STEPS_WITHOUT_WORK, find: without_work },
];

/// The engine of a capture by the names of its kernels.
pub fn engine_of(trace: &Timeline) -> Option<&'static Engine> {
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

/// Names the engine in the evidence, and gives the line that adds its ranges.
pub fn with_engine(found: Finding, trace: &Trace) -> Finding {
    let Some(engine) = trace.nsys.as_ref().and_then(engine_of) else { return found };
    let found = found.with("engine by its kernels", &engine.title);
    let name = &engine.name;
    match &engine.ranges {
        Some(ranges) => found.advise(format!(
            "For the ranges of {}: {ranges}. `llmprof engines {name}` prints all commands.",
            engine.title
        )),
        None => found,
    }
}

fn inferred(_: &Analysis, trace: &Trace) -> Vec<Finding> {
    let Some(nsys) = &trace.nsys else { return vec![] };
    let count =
        |class: StepClass| nsys.inferred.steps.iter().filter(|it| it.class == Some(class)).count();
    let (prefill, decode) = (count(StepClass::Prefill), count(StepClass::Decode));
    if prefill + decode == 0 {
        return vec![];
    }
    let message = format!(
        "No range of the capture is a stage: {prefill} prefill and {decode} decode steps are \
         inferred. The table engine_steps has the evidence of each."
    );
    let found = Finding::new(catalogue::STEPS_INFERRED, message)
        .with("prefill steps", prefill)
        .with("decode steps", decode);
    vec![with_engine(found, trace)]
}

/// Adds the reasons for which sequences of kernels have no class, with the number of each.
pub fn with_reasons(found: Finding, trace: &Trace) -> Finding {
    let reasons = trace.nsys.iter().flat_map(|nsys| &nsys.inferred.unclear);
    reasons.fold(found, |found, (reason, count)| found.with(reason, count))
}

fn unclear(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let Some(nsys) = &trace.nsys else { return vec![] };
    let count: u64 = nsys.inferred.unclear.values().sum();
    // An import without stages has a finding of its own.
    if count == 0 || (analysis.stages.rows.is_empty() && analysis.subject == SubjectKind::Import) {
        return vec![];
    }
    let message = format!(
        "No range of the capture is a stage, and of {} of kernels the evidence does not prove a \
         step: their kernels are outside all stages.",
        quantity(count, "sequence")
    );
    let found = with_reasons(Finding::new(catalogue::STEPS_UNCLEAR, message), trace);
    vec![with_engine(found, trace)]
}

fn without_work(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let steps = analysis.engine_steps.iter().filter(|it| it.class != Some(StepClass::Idle));
    let (with, without): (Vec<_>, Vec<_>) = steps.partition(|it| it.has_work());
    if with.is_empty() || without.is_empty() {
        return vec![];
    }
    let message = format!(
        "{} of {} steps have no recorded work on a device.",
        without.len(),
        with.len() + without.len()
    );
    let found = Finding::new(catalogue::STEPS_WITHOUT_WORK, message);
    vec![found.with("first such step", without[0].step)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{analyze, kernels::tests::capture};

    fn findings(kernel: &str) -> Vec<Finding> {
        let nsys = capture(&format!("call 1 1 1..2\nkernel 1 {kernel} 5..50 7"));
        let subject = llmprof_core::domain::subject::SubjectKind::Import;
        let trace = Trace { subject, nsys: Some(nsys), ..Trace::default() };
        analyze(&trace, None, None).findings
    }

    #[test]
    fn steps_without_work_are_counted_unless_none_has_work_or_they_have_no_requests() {
        let found = |sketch: &str| {
            let trace = Trace { nsys: Some(capture(sketch)), ..Trace::default() };
            let found = analyze(&trace, None, None).findings.into_iter();
            found.filter(|it| it.id == "steps_without_work").map(|it| it.message).next()
        };
        let steps = "range 1 execute_context_0(0)_generation_1(1) 0..100
            range 1 execute_context_0(0)_generation_1(1) 200..300
            range 1 execute_context_0(0)_generation_0(0) 400..500";
        assert_eq!(found(steps), None);
        assert_eq!(
            found(&format!("{steps}\ncall 1 1 10..11\nkernel 1 a 20..50 7")).unwrap(),
            "1 of 2 steps have no recorded work on a device."
        );
    }

    #[test]
    fn a_capture_without_stages_names_its_engine_and_the_line_for_its_ranges() {
        for (kernel, title, line) in [
            ("vllm::rms_norm_kernel<float>", "vLLM 0.13 and later", Some("--profiler-config")),
            ("write_req_to_token_pool_triton", "SGLang 0.5", Some("/start_profile")),
            ("tensorrt_llm::kernels::mmha", "TensorRT-LLM", Some("TLLM_NVTX_DEBUG=1")),
            ("mul_mat_vec_q<8>", "llama.cpp", None),
            ("loop_add_fusion", "JAX", Some("nvtx.annotate")),
            ("at::native::reduce_kernel", "PyTorch and transformers", Some("torch.cuda.nvtx")),
        ] {
            let found = findings(kernel);
            let found = found.iter().find(|it| it.id == "no_stages").unwrap();
            assert_eq!(found.evidence["engine by its kernels"], title);
            let advice = found.advice.as_ref().unwrap();
            assert!(line.is_none_or(|line| advice.contains(line)), "{advice}");
        }
        let found = findings("own_kernel");
        let found = found.iter().find(|it| it.id == "no_stages").unwrap();
        assert!(!found.evidence.contains_key("engine by its kernels"));
    }
}

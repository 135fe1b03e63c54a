//! Steps of an engine by the ranges around their parts, whose names have neither class nor requests
//! (`scopes` in `conf/engines/`).

use std::{cmp::Reverse, collections::BTreeMap};

use llmprof_core::trace::{
    engine_steps::{StepClass, step_scope},
    engines::StepScopes,
    inferred_steps::{InferredStep, InferredSteps},
    range::Range,
    timeline::Timeline,
};

use crate::timeline::interval::Interval;

/// A part of a step.
struct ScopeRange<'a> {
    engine: &'static str,
    scopes: &'static StepScopes,
    name: &'a str,
    at: Interval,
}

impl ScopeRange<'_> {
    fn is_forward(&self) -> bool {
        self.name == self.scopes.forward
    }

    fn order(&self) -> Option<usize> {
        self.scopes.order.iter().position(|it| it == self.name)
    }
}

/// Adds the steps whose class no launch proves.
pub fn add(trace: &Timeline, inferred: &mut InferredSteps) {
    let mut run = inferred.steps.iter().map(|it| it.run).max().unwrap_or(0);
    for (thread, ranges) in by_thread(trace) {
        let steps = steps(&ranges);
        if steps.is_empty() {
            continue;
        }
        // A launch alone shows less than a scope.
        inferred.steps.retain(|it| it.class.is_some() || it.global_tid != thread);
        inferred.unclear.clear();
        let proven: Vec<Interval> = inferred
            .steps
            .iter()
            .filter(|it| it.global_tid == thread)
            .map(|it| (it.start_ns, it.end_ns))
            .collect();
        let is_proven = |forward: Interval| {
            let common = |it: &Interval| it.1.min(forward.1) - it.0.max(forward.0);
            proven.iter().any(|it| 2 * common(it) >= forward.1 - forward.0)
        };
        for step in steps.iter().filter(|it| !is_proven(it.forward)) {
            run += 1;
            inferred.steps.push(step.inferred(thread, run));
        }
    }
}

/// The scopes of each thread, in the order of their starts.
fn by_thread(trace: &Timeline) -> BTreeMap<i64, Vec<ScopeRange<'_>>> {
    let mut found: BTreeMap<i64, Vec<ScopeRange>> = BTreeMap::new();
    let scope = |range: &'_ Range| {
        let end_ns = range.end_ns.filter(|end| *end > range.start_ns)?;
        Some((range.start_ns, end_ns))
    };
    for range in trace.ranges.iter().filter(|it| it.push_pop) {
        if let (Some(at), Some((engine, scopes, name))) = (scope(range), step_scope(&range.name)) {
            let scope = ScopeRange { engine: engine.name.as_str(), scopes, name, at };
            found.entry(range.global_tid).or_default().push(scope);
        }
    }
    found.values_mut().for_each(|it| it.sort_by_key(|it| (it.at.0, Reverse(it.at.1))));
    found
}

/// One step: consecutive scopes with one forward.
struct ScopedStep<'a> {
    scopes: Vec<&'a ScopeRange<'a>>,
    forward: Interval,
}

impl ScopedStep<'_> {
    fn inferred(&self, thread: i64, run: u32) -> InferredStep {
        let mut names: Vec<&str> = Vec::new();
        for it in &self.scopes {
            if !names.contains(&it.name) {
                names.push(it.name);
            }
        }
        let first = self.scopes[0];
        let end_ns = self.scopes.iter().map(|it| it.at.1).max();
        InferredStep {
            engine: Some(first.engine),
            class: Some(StepClass::Other),
            mode: Some(first.scopes.name.as_str()),
            global_tid: thread,
            start_ns: first.at.0,
            end_ns: end_ns.unwrap_or(first.at.1),
            run,
            is_scheduled: true,
            evidence: format!("ranges {}: {}", first.scopes.name, names.join(", ")).into(),
            ..InferredStep::default()
        }
    }
}

/// The steps of one thread: the next starts at a scope that stands before the last one in the order
/// of scopes, and at a second forward.
fn steps<'a>(ranges: &'a [ScopeRange<'a>]) -> Vec<ScopedStep<'a>> {
    let mut groups: Vec<Vec<&ScopeRange>> = Vec::new();
    let mut last: Option<usize> = None;
    for it in ranges {
        let order = it.order();
        let is_next = order.zip(last).is_some_and(|(order, last)| order < last)
            || it.is_forward()
                && groups.last().is_some_and(|it| it.iter().any(|it| it.is_forward()));
        if is_next || groups.is_empty() {
            groups.push(vec![]);
            last = None;
        }
        last = order.or(last);
        groups.last_mut().into_iter().for_each(|group| group.push(it));
    }
    let step = |scopes: Vec<&'a ScopeRange<'a>>| {
        let forward = scopes.iter().find(|it| it.is_forward())?.at;
        Some(ScopedStep { scopes, forward })
    };
    groups.into_iter().filter_map(step).collect()
}

#[cfg(test)]
mod tests {
    use crate::{kernels::tests::capture, timeline::inferred_steps::infer};

    /// Start, end and evidence of each step of these scopes, each of 10 ns.
    fn found(scopes: &[&str]) -> Vec<(i64, i64, String)> {
        let range = |(at, scope): (usize, &&str)| {
            format!("range 1 gpu_model_runner:~{scope} {}..{}", 100 * at, 100 * at + 10)
        };
        let lines: Vec<String> = scopes.iter().enumerate().map(range).collect();
        let mut trace = capture(&format!("{}\ncall 1 1 1..2\nkernel 1 a 5..9 7", lines.join("\n")));
        trace.ranges.iter_mut().for_each(|it| it.name = it.name.replace('~', " "));
        let steps = infer(&trace).steps.into_iter();
        steps.map(|it| (it.start_ns, it.end_ns, it.evidence.to_string())).collect()
    }

    #[test]
    fn consecutive_scopes_around_one_forward_are_one_step() {
        let all = ["preprocess", "forward", "postprocess", "sample", "draft", "bookkeep"];
        let evidence = format!("ranges gpu_model_runner: {}", all.join(", "));
        assert_eq!(found(&all.repeat(2)), [(0, 510, evidence.clone()), (600, 1110, evidence)]);
        let of = |scopes: &[&str]| -> Vec<(i64, i64)> {
            found(scopes).into_iter().map(|it| (it.0, it.1)).collect()
        };
        assert_eq!(of(&["forward"; 3]), [(0, 10), (100, 110), (200, 210)]);
        assert_eq!(of(&["forward", "sample", "forward", "sample"]), [(0, 110), (200, 310)]);
        let cut = ["sample", "bookkeep", "preprocess", "forward", "sample", "preprocess"];
        assert_eq!(of(&cut), [(200, 410)], "a part of a step is not a step");
    }
}

//! Steps of a program in JAX: executions of programs that XLA compiled, each within a range.
//!
//! A function that generates is compiled once for a prompt and once for a token. Both programs
//! write as often to a cache; the prompt's program writes several times the rows, and runs once
//! before each row of tokens. Blocks of other kernels prove nothing: XLA multiplies by a single row
//! without tiles.

use std::collections::BTreeMap;

use llmprof_core::trace::{
    engine_steps::StepClass,
    inferred_steps::{InferredStep, InferredSteps},
    xla::{self, XlaProgram},
};

use super::roles::KernelRole;
use crate::timeline::{
    capture::{Capture, Join},
    open_ranges::NONE,
};

/// Min ratio of the rows that a prompt writes to the cache to the rows that a token writes.
const MIN_RATIO: u64 = 4;
/// Min executions of the token's program after a prompt.
const MIN_TOKENS: usize = 2;

pub const NO_PROMPT: &str = "executions of an XLA program with a cache, without one of the same \
                             module before them that writes several times the rows to it";

/// One execution of a program.
#[derive(Debug, Clone)]
struct Execution<'a> {
    program: XlaProgram<'a>,
    start_ns: i64,
    /// End of the range, within which its launches are.
    range_end_ns: i64,
    /// End of the range, or of its work on the device if that is later.
    end_ns: i64,
    /// Kernels that write to a cache, and their blocks, which grow with the rows.
    writes: u64,
    blocks: u64,
}

/// Adds the steps of XLA's programs; returns false for a capture without any.
pub fn infer(capture: &Capture, roles: &[KernelRole], inferred: &mut InferredSteps) -> bool {
    let mut threads: BTreeMap<i64, Vec<Execution>> = BTreeMap::new();
    for range in &capture.trace.ranges {
        let (Some(program), Some(end_ns)) = (xla::program(range), range.end_ns) else { continue };
        let (start_ns, range_end_ns) = (range.start_ns, end_ns);
        threads.entry(range.global_tid).or_default().push(Execution {
            program,
            start_ns,
            range_end_ns,
            end_ns,
            writes: 0,
            blocks: 0,
        });
    }
    if threads.is_empty() {
        return false;
    }
    threads.values_mut().for_each(|it| it.sort_by_key(|it| it.start_ns));
    add_work(capture, roles, &mut threads);
    let mut run = 0;
    for (thread, executions) in threads {
        let mut modules: BTreeMap<&str, Vec<Execution>> = BTreeMap::new();
        for it in executions.into_iter().filter(|it| it.writes > 0) {
            modules.entry(it.program.module).or_default().push(it);
        }
        for executions in modules.values() {
            run = steps(thread, executions, run, inferred);
        }
    }
    true
}

/// Adds the work of the kernels that each execution launched.
fn add_work(capture: &Capture, roles: &[KernelRole], threads: &mut BTreeMap<i64, Vec<Execution>>) {
    let mut calls = capture.trace.cuda_calls.reader();
    let kernels = capture.kernels_by_kind();
    for ((kind, kernel), Join { call, .. }) in
        kernels.filter(|(_, Join { call, .. })| *call != NONE)
    {
        let call = calls.get(call);
        let Some(executions) = threads.get_mut(&call.global_tid) else { continue };
        let after = executions.partition_point(|it| it.start_ns <= call.start_ns);
        let Some(it) = after.checked_sub(1).map(|at| &mut executions[at]) else { continue };
        if call.start_ns > it.range_end_ns {
            continue;
        }
        if capture.trace.has_common_clock(kernel.global_pid, kernel.device) {
            it.end_ns = it.end_ns.max(kernel.end_ns);
        }
        if roles[kind as usize].writes_cache {
            let launched = capture.trace.kernels.kinds()[kind as usize];
            it.blocks = it.blocks.saturating_add(launched.blocks());
            it.writes += 1;
        }
    }
}

/// Adds the steps of one module; returns the number of the last run.
fn steps(thread: i64, executions: &[Execution], mut run: u32, inferred: &mut InferredSteps) -> u32 {
    let rows: Vec<&[Execution]> = executions.chunk_by(|a, b| a.program == b.program).collect();
    for (at, row) in rows.iter().enumerate() {
        let Some(tokens) = rows.get(at + 1).filter(|it| is_prompt(row, it)) else {
            let before = at.checked_sub(1).map(|before| rows[before]);
            if !before.is_some_and(|prompt| is_prompt(prompt, row)) {
                *inferred.unclear.entry(NO_PROMPT).or_default() += row.len() as u64;
            }
            continue;
        };
        let [prompt, token] = [row[0].program.id, tokens[0].program.id];
        let module = row[0].program.module;
        let ratio = row[0].blocks / tokens[0].blocks.max(1);
        let read = format!(
            "program {prompt} of {module}, which writes {ratio} times the rows of program {token} \
             after it to the cache"
        );
        let generated = format!("program {token} of {module}, {} in a row", tokens.len());
        for (class, executions, evidence) in
            [(StepClass::Prefill, *row, read), (StepClass::Decode, *tokens, generated)]
        {
            run += 1;
            let evidence: std::sync::Arc<str> = evidence.into();
            inferred.steps.extend(executions.iter().map(|it| {
                let next = self::next(executions, it);
                InferredStep {
                    class: Some(class),
                    global_tid: thread,
                    start_ns: it.start_ns,
                    end_ns: next.map_or(it.end_ns, |next| next.min(it.end_ns)),
                    run,
                    evidence: evidence.clone(),
                    ..InferredStep::default()
                }
            }));
        }
    }
    run
}

/// Start of the execution after `it`.
fn next(executions: &[Execution], it: &Execution) -> Option<i64> {
    let after = executions.partition_point(|other| other.start_ns <= it.start_ns);
    executions.get(after).map(|next| next.start_ns)
}

/// Returns true if a row of executions is a prompt before a row of tokens: it runs once.
fn is_prompt(prompt: &[Execution], tokens: &[Execution]) -> bool {
    prompt.len() == 1
        && tokens.len() >= MIN_TOKENS
        && tokens
            .iter()
            .all(|it| it.writes == prompt[0].writes && prompt[0].blocks / MIN_RATIO >= it.blocks)
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::{
        clocks::UnequalClock,
        timeline::{Timeline, process_of},
    };

    use super::*;

    /// Classes of executions `ID BLOCKS`, and their number without one.
    fn classes(text: &str) -> (Vec<StepClass>, u64) {
        let mut numbers = text.split(' ').map(|it| it.parse::<u64>().unwrap());
        let mut executions = Vec::new();
        while let (Some(id), Some(blocks)) = (numbers.next(), numbers.next()) {
            let start_ns = 10 * executions.len() as i64;
            let program = XlaProgram { module: "jit_f", id };
            let (range_end_ns, end_ns) = (start_ns + 8, start_ns + 12);
            let writes = if blocks == 91 { 5 } else { 4 };
            executions.push(Execution { program, start_ns, range_end_ns, end_ns, writes, blocks });
        }
        let mut inferred = InferredSteps::default();
        steps(1, &executions, 0, &mut inferred);
        let unclear = inferred.unclear.values().sum();
        (inferred.steps.iter().filter_map(|it| it.class).collect(), unclear)
    }

    #[test]
    fn a_program_before_a_row_of_smaller_ones_is_a_prompt() {
        use StepClass::{Decode, Prefill};
        let both = vec![Prefill, Decode, Decode, Prefill, Decode, Decode];
        assert_eq!(classes("1 90 2 9 2 9 1 90 2 9 2 9"), (both, 0));
        // Prompts of other lengths are other programs.
        assert_eq!(classes("1 90 2 9 2 9 3 40 2 9 2 9").0.len(), 6);
    }

    #[test]
    fn a_launch_after_a_range_is_not_of_its_execution_while_its_work_runs() {
        let mut trace = crate::kernels::tests::capture(
            "call 7 1 10..11\nkernel 1 cache 50..90 7\ncall 7 2 60..61\nkernel 2 cache 91..99 7",
        );
        let role = KernelRole { writes_cache: true, ..KernelRole::default() };
        let roles = vec![role; trace.kernels.kinds().len()];
        let thread = trace.cuda_calls.get(0).global_tid;
        trace.ranges = vec![llmprof_core::trace::range::Range::new(
            (xla::DOMAIN, "jit_f, program 1"),
            (5, Some(20)),
            (thread, true),
        )];
        let found = |trace: &Timeline| {
            let program = xla::program(&trace.ranges[0]).unwrap();
            let (start_ns, range_end_ns, end_ns) = (5, 20, 20);
            let execution =
                Execution { program, start_ns, range_end_ns, end_ns, writes: 0, blocks: 0 };
            let mut threads = BTreeMap::from([(thread, vec![execution])]);
            add_work(&Capture::of(trace), &roles, &mut threads);
            (threads[&thread][0].writes, threads[&thread][0].end_ns)
        };
        assert_eq!(found(&trace), (1, 90));
        let process = process_of(thread);
        trace.unequal_clocks = vec![UnequalClock { process, device: 0 }];
        assert_eq!(found(&trace), (1, 20), "on an unknown clock");
    }

    #[test]
    fn rows_without_a_prompt_before_them_have_no_class() {
        assert_eq!(classes("2 9 2 9 2 9"), (vec![], 3), "training, or tokens of a cut capture");
        assert_eq!(classes("1 20 2 9 2 9"), (vec![], 3), "another batch");
        assert_eq!(classes("1 90 1 90 2 9 2 9"), (vec![], 4), "two in a row");
        assert_eq!(classes("1 90 2 9"), (vec![], 2), "one token");
        assert_eq!(classes("1 91 2 9 2 9"), (vec![], 3), "other layers");
    }
}

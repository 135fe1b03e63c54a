//! Work between the steps of sketches: the work of a step, or sampling.

use llmprof_core::trace::Trace;

use super::*;
use crate::{analyze, kernels::tests::capture, stages::BETWEEN_STEPS};

const DECODE_STEPS: i64 = 11;

/// The name of a kernel, or the number of a graph, and its times since the start of the step.
type Launch<'a> = (&'a str, i64, i64);

/// One eager prefill of 40 kernels and decode steps of one graph each, every 1,000 ns; after each,
/// `between` is launched.
fn engine(between: &[Launch]) -> Timeline {
    let mut lines = Vec::new();
    let mut id = 0;
    let mut launch = |lines: &mut Vec<String>, name: &str, from: i64, to: i64| {
        id += 1;
        lines.push(format!("call 1 {id} {}..{}", from - 5, from - 1));
        lines.push(match name.parse::<u64>() {
            Ok(graph) => format!("graph {id} {graph} {from}..{to} 7"),
            Err(_) => format!("kernel {id} {name} {from}..{to} 7"),
        });
    };
    for step in 0..=DECODE_STEPS {
        let start = 1_000 * step;
        if step == 0 {
            lines.push("range 1 execute_context_1(64)_generation_0(0) 0..500".to_owned());
            for at in 0..40 {
                let name = ["gemm", "elementwise", "norm"][at as usize % 3];
                launch(&mut lines, name, 12 * at + 10, 12 * at + 20);
            }
        } else {
            let end = start + 500;
            lines.push(format!("range 1 execute_context_0(0)_generation_8(8) {start}..{end}"));
            launch(&mut lines, "5", start + 20, start + 480);
        }
        for (name, from, to) in between {
            launch(&mut lines, name, start + from, start + to);
        }
    }
    capture(&lines.join("\n"))
}

fn found(trace: &Timeline) -> usize {
    unrecorded(&Capture::of(trace)).len()
}

#[test]
fn work_between_steps_is_a_step_only_if_it_is_the_work_of_a_usual_step_of_one_kind() {
    let gaps = DECODE_STEPS as usize;
    let prefill: Vec<Launch> = (0..40).map(|at| ("gemm", 10 * at + 550, 10 * at + 560)).collect();
    let cases: [(&[Launch], usize, &str); 9] = [
        (&[], 0, "nothing"),
        (&[("elementwise", 550, 560), ("argmax", 570, 580)], 0, "sampling"),
        (&[("elementwise", 550, 990)], 0, "a long kernel of prefill in place of a graph"),
        (&[("6", 550, 990)], 0, "a graph that no step launches"),
        (&[("5", 550, 600)], 0, "a short replay"),
        (&[("5", 550, 990)], gaps, "a decode step"),
        (&[("elementwise", 510, 520), ("5", 550, 990)], gaps, "sampling and a decode step"),
        (&prefill[..10], 0, "a quarter of a prefill"),
        (&prefill, gaps, "a prefill"),
    ];
    for (between, expected, why) in cases {
        assert_eq!(found(&engine(between)), expected, "{why}");
    }
}

#[test]
fn sampling_after_steps_leaves_their_period_and_the_time_between_them() {
    let trace = engine(&[("elementwise", 550, 560), ("argmax", 570, 580)]);
    let found = analyze(&Trace { timeline: Some(trace), ..Trace::default() }, None, None);
    assert!(found.findings.iter().all(|it| it.id != "steps_left_out"), "{:?}", found.findings);
    let decode = found.step_batches.iter().find(|it| it.requests == Some(8)).unwrap();
    assert_eq!(decode.period_ms.map(|ms| (ms * 1e6).round()), Some(1_000.0));
    assert!(found.ledger.stages.iter().any(|it| it.stage == BETWEEN_STEPS));
}

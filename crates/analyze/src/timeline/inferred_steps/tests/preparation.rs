//! Kernels between the choice of a token and the next forward.

use super::*;

#[test]
fn a_graph_with_the_lookup_starts_a_step_after_kernels_that_prepare_it() {
    let shape = decoder();
    let mut program = Program::default();
    for _ in 0..2 {
        program.step(StepClass::Prefill, |program| shape.forward(program, 100, 100));
        for _ in 0..3 {
            program.wait();
            program.kernel(ADD, 1);
            program.step(StepClass::Decode, |program| {
                shape.replay(program, 3, true);
                program.kernel(ARGMAX, 1);
            });
        }
    }
    assert_eq!(program.found(), program.known);
}

#[test]
fn a_softmax_between_the_choice_of_a_token_and_a_lookup_is_of_the_choice() {
    let shape = decoder();
    let mut program = Program::default();
    for _ in 0..2 {
        program.step(StepClass::Prefill, |program| shape.forward(program, 100, 100));
        for step in 0..3 {
            program.kernel(SOFTMAX, 1);
            program.step(StepClass::Decode, |program| shape.forward(program, 1, 100 + step));
        }
    }
    assert_eq!(program.found(), program.known);
}

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

/// Forwards of beams: after each, the best beams are chosen, and `moved` lookups put keys and
/// values in their order.
fn beams(moved: usize) -> Program {
    const TOP_K: &str = "void at::native::sbtopk::gatherTopK<float, unsigned int>(T1)";
    let shape = decoder();
    let mut program = Program::default();
    let mut forward = |class, rows: u32, length: u32| {
        program.step(class, |program| {
            let (lookup, blocks) = if rows > 16 { (GATHER, rows) } else { (LOOKUP, 16) };
            program.kernel(lookup, blocks);
            program.kernel(ADD, rows);
            for _ in 0..shape.layers {
                (0..3).for_each(|it| program.kernel(PRODUCT[usize::from(rows > 16)], 20 + it));
                program.kernel(ATTENTION[usize::from(rows > 16)], 4 + length / 3);
            }
            program.kernel(PRODUCT[0], 500);
            program.kernel(SOFTMAX, 4);
            program.kernel(TOP_K, 1);
        });
        (0..moved).for_each(|_| program.kernel(LOOKUP, 1_000 + length));
        program.kernel(ADD, 1);
    };
    for _ in 0..3 {
        forward(StepClass::Prefill, 400, 100);
        (0..9).for_each(|step| forward(StepClass::Decode, 4, 101 + step));
    }
    program
}

#[test]
fn the_best_beams_are_chosen_where_the_keys_and_values_of_each_layer_are_moved() {
    let program = beams(2 * decoder().layers);
    let found = program.found();
    assert!(found.iter().all(|it| program.known.contains(it)), "{found:?}");
    let decode = found.iter().filter(|it| it.0 == StepClass::Decode);
    assert_eq!(decode.count(), 27);
    assert_eq!(beams(1).found(), [], "a router's top-k gathers as well");
}

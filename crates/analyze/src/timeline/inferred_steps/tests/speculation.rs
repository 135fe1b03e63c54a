//! Programs of two models: one drafts for the other, or one generates a part of each token.

use super::*;

/// The step that a round is.
type Known = (Option<StepClass>, usize, usize);

/// A program whose lookups show their rows.
#[derive(Default)]
struct TwoModels {
    program: Program,
    /// Class, first and last call of each round.
    known: Vec<Known>,
}

impl TwoModels {
    fn forward(&mut self, layers: usize, rows: u32) {
        let many = usize::from(rows > 16);
        let program = &mut self.program;
        program.kernel(GATHER, rows);
        for _ in 0..layers {
            for product in 0..3 {
                program.kernel(PRODUCT[many], 20 + product);
            }
            program.kernel(ATTENTION[many], 4);
            program.kernel(ADD, rows);
        }
        program.kernel(PRODUCT[0], 500);
        program.kernel(ARGMAX, 2);
    }

    /// Forwards of the smaller model of these rows, and one of the larger.
    fn round(&mut self, class: Option<StepClass>, drafts: &[u32], rows: u32) {
        let first = self.program.trace.cuda_calls.len();
        drafts.iter().for_each(|rows| self.forward(4, *rows));
        self.forward(12, rows);
        self.known.push((class, first, self.program.trace.cuda_calls.len() - 1));
        self.program.wait();
    }

    /// A prompt, and a round for each number of drafts. After each second one, all drafts were
    /// accepted.
    fn generate(&mut self, prompt: u32, drafts: &[usize]) {
        self.round(Some(StepClass::Prefill), &[prompt, 1, 1], prompt + 3);
        for (at, number) in drafts.iter().enumerate() {
            let mut rows = vec![1; *number];
            if let Some(first) = rows.first_mut() {
                *first += at as u32 % 2;
            }
            self.round(Some(StepClass::Decode), &rows, *number as u32 + 1);
        }
    }

    fn found(&self) -> Vec<Known> {
        self.program
            .found()
            .into_iter()
            .map(|(class, first, last)| (Some(class), first, last))
            .collect()
    }
}

proptest! {
    #[test]
    fn each_round_of_drafts_is_a_decode_step(
        prompt in 17u32..400,
        drafts in prop::collection::vec(0usize..8, 0..12),
    ) {
        let mut models = TwoModels::default();
        models.generate(prompt, &drafts);
        models.generate(prompt + 9, &[3; 9]);
        prop_assert_eq!(models.found(), models.known);
    }

    #[test]
    fn a_model_that_completes_each_token_by_a_smaller_one_does_not_speculate(
        batch in 1u32..9, parts in 1usize..9, prompt in 17u32..400,
    ) {
        let mut models = TwoModels::default();
        models.round(None, &[], prompt * batch);
        (0..20).for_each(|_| models.round(None, &vec![batch; parts], batch));
        let steps = infer(&models.program.trace).steps;
        prop_assert!(steps.iter().all(|it| it.phases.is_empty()), "{:?}", models.found());
    }
}

#[test]
fn drafts_and_their_verification_are_phases_and_no_tokens_per_step_are_known() {
    let mut models = TwoModels::default();
    models.generate(100, &[5, 2, 4, 0, 5, 5, 1, 5, 5]);
    let trace = &models.program.trace;
    let inferred = infer(trace);
    let of = |at: usize| {
        let phases = inferred.steps[at].phases.iter();
        phases.map(|it| it.class.as_str()).collect::<Vec<_>>()
    };
    assert_eq!((of(0).len(), of(2), of(4).len()), (0, vec!["draft", "draft", "verify"], 0));
    assert_eq!(
        (inferred.steps[0].evidence.as_ref(), inferred.steps[2].evidence.as_ref()),
        (
            "3 drafts by forwards of 4 layers, verified by one of 12: 103 rows, the prompt's and \
             one for each draft",
            "2 drafts by forwards of 4 layers, verified by one of 12: 3 rows, one for each draft \
             and one more",
        )
    );
    let stages: Vec<&str> = inferred.stages().into_iter().map(|it| it.0).collect();
    assert_eq!(stages, ["prefill", "decode_all"]);
}

#[test]
fn a_first_round_has_a_class_only_if_its_rows_show_that_no_draft_is_missing() {
    for (drafts, rows, is_whole) in [(&[2][..], 2, false), (&[2, 1], 3, true), (&[1], 3, false)] {
        let mut models = TwoModels::default();
        models.round(None, drafts, rows);
        models.generate(100, &[3; 9]);
        assert_eq!(models.found().len(), if is_whole { 11 } else { 10 }, "{drafts:?}");
    }
}

#[test]
fn drafts_without_their_verification_at_the_end_cut_the_decode() {
    let mut models = TwoModels::default();
    models.generate(100, &[5; 9]);
    assert!(infer(&models.program.trace).cut_threads.is_empty());
    models.forward(4, 1);
    assert_eq!(infer(&models.program.trace).cut_threads.len(), 1);
}

proptest! {
    #[test]
    fn no_step_that_verifies_drafts_of_no_model_is_a_decode_of_one_token(
        prompt in 17u32..400,
        drafts in prop::collection::vec(0u32..8, 1..6),
        steps in 8usize..12,
    ) {
        let mut models = TwoModels::default();
        for more in 0..2 {
            models.forward(12, prompt + more);
            models.program.wait();
            for number in drafts.iter().flat_map(|number| std::iter::repeat_n(*number, steps)) {
                models.forward(12, number + 1);
                models.program.wait();
            }
        }
        // A batch loses rows as its sequences end, and gains none.
        let has_drafts = drafts.windows(2).any(|pair| pair[0] < pair[1]);
        let fewest = drafts.iter().min().map_or(1, |number| u64::from(number + 1));
        let fewest = format!(", {}", quantity(fewest, "row"));
        let found = infer(&models.program.trace).steps;
        let decode = || found.iter().filter(|it| it.class == Some(StepClass::Decode));
        prop_assert_eq!(decode().count(), 2 * steps * drafts.len());
        for it in decode() {
            let verifies = has_drafts && !it.evidence.contains(&fewest);
            prop_assert_eq!(!it.phases.is_empty(), verifies, "{}", it.evidence);
            prop_assert!(it.decode_requests.is_none());
        }
    }
}

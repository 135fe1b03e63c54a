//! Advice for checks that do not pass. The whole model is the reference, so the mock changes.

/// The remedy for a check that did not pass.
pub fn advice(id: &str) -> &'static str {
    match id {
        "complete" => {
            "Capture both sides again, on a GPU: trace graphs by node (nsys profile \
             --cuda-graph-trace=node); start workers under the profiled command, or record each \
             worker where it runs; let the program end before the capture does."
        }
        "isolation" => {
            "Mark the operation with an NVTX range in both programs; check --range, --stage and \
             --include-ranges; run steps past the warm-up; or select it by --kernels (a fused \
             operation has other names)."
        }
        "names" => {
            "Use the same implementation, dtype and library versions in the mock as in the whole \
             model."
        }
        "missing_kernels" => {
            "Initialise the submodule's dependencies in the mock, as the whole model does: cache \
             manager, quantisation, communication."
        }
        "extra_kernels" => {
            "Remove unneeded work from the mock: initialisation, copies, casts and debug code \
             inside the range."
        }
        "counts" => {
            "Look for initialisation inside the mock's range, or for a part that the mock lacks."
        }
        "geometry" => {
            "Give the mock the same shapes: batch, sequence and cache length, heads, and dtype."
        }
        "sequence" => {
            "Build the mock from the model's own submodule, so that its kernels run in the same \
             order."
        }
        "matched_time" => {
            "Find the longest kernels that only one side launches, and add them to the mock or \
             remove them from it."
        }
        "latency" => {
            "Give the mock exactly the model's inputs, replay a graph in it where the model does, \
             compare at equal clocks, and measure more instances of both where the interval is \
             wide."
        }
        "kernel_time" => {
            "Give the mock's kernels the operands of the model's: shapes, cache lengths, dtype, \
             and the contents of the L2 cache; measure more instances of both where a kernel is \
             undecided."
        }
        "graphs" => "Replay a graph in the mock if the whole model does, and none if it does not.",
        "inputs" => {
            "Pass run folders on both sides, which record their inputs; give the mock the batch, \
             lengths, dtype and experts of the whole model."
        }
        _ => {
            "Sample clocks in both runs and pass their folders; lock or cool the GPU where clocks \
             differ."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::align::checks::COMPARING;

    /// Checks of evidence, which both captures have to contain.
    const OF_BOTH: [&str; 3] = ["complete", "isolation", "clocks"];

    #[test]
    fn the_advice_of_each_check_names_the_side_that_has_to_change() {
        for id in COMPARING.into_iter().chain(["inputs"]) {
            let advice = advice(id);
            assert!(advice.contains("the mock"), "{id}: {advice}");
            let changes_model = ["in the whole model:", "from the whole model", "Give the whole"];
            let is_reversed = changes_model.iter().any(|it| advice.contains(it));
            assert!(!is_reversed, "{id}: {advice}");
        }
        for id in OF_BOTH {
            let advice = advice(id);
            assert!(advice.contains("both") && !advice.contains("mock"), "{id}: {advice}");
        }
        assert!(advice("missing_kernels").contains("dependencies in the mock"));
        assert!(advice("extra_kernels").contains("work from the mock"));
    }

    #[test]
    fn no_advice_offers_a_recording_that_has_no_cuda_of_foreign_workers() {
        let all = COMPARING.into_iter().chain(OF_BOTH).chain(["inputs"]);
        all.for_each(|id| assert!(!advice(id).contains("system-wide"), "{id}"));
    }
}

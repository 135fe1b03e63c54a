//! Advice for checks that do not pass.

/// The remedy for a check that did not pass.
pub fn advice(id: &str) -> &'static str {
    match id {
        "complete" => {
            "Capture again, on a GPU: trace graphs by node (nsys profile \
             --cuda-graph-trace=node); follow workers that another program starts (system-wide \
             collection); let the program end before the capture does."
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
            "Initialise the submodule's dependencies in the whole model: cache manager, \
             quantisation, communication."
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
        "matched_time" => "Find the longest kernels that only one side launches, and their cause.",
        "latency" => {
            "Match the inputs exactly, replay a graph where the model does, compare at equal \
             clocks, and measure more instances where the interval is wide."
        }
        "kernel_time" => {
            "Compare the operands of the kernels that differ: shapes, cache lengths, dtype, and \
             the contents of the L2 cache; measure more instances where a kernel is undecided."
        }
        "graphs" => "Replay a graph on both sides, or on neither.",
        "inputs" => {
            "Pass run folders on both sides, which record their inputs; make batch, lengths, \
             dtype and experts equal."
        }
        _ => {
            "Sample clocks in both runs and pass their folders; lock or cool the GPU where clocks \
             differ."
        }
    }
}

//! What to do when a check does not pass.

/// The advice for a check that did not pass.
pub fn advice(id: &str) -> &'static str {
    match id {
        "complete" => {
            "Capture again, on a GPU: trace graphs by node (nsys profile --cuda-graph-trace=node); follow workers that another program starts \
             (system-wide collection); let the program end before the capture does."
        }
        "isolation" => {
            "Mark the operation with an NVTX range in both programs, check --range, --stage and --within, run steps past the warm-up, or \
             look for it by --kernels; a fused operation has other names."
        }
        "names" => "Use the same implementation, number format and library versions in the mock as in the whole model.",
        "missing_kernels" => {
            "Initialise what the submodule depends on in the whole model: cache manager, quantisation, communication."
        }
        "extra_kernels" => "Take unneeded work out of the mock: initialisation, copies, casts and debug code inside the range.",
        "counts" => "Look for initialisation inside the mock's range, or a part that the mock leaves out.",
        "geometry" => "Give the mock the same shapes: batch, sequence and cache length, heads, and data type.",
        "sequence" => "Build the mock from the model's own submodule, so that its kernels run in the same order.",
        "matched_time" => "Find the longest kernels that only one side launches, and why.",
        "latency" => {
            "Match the inputs exactly, replay a graph where the model does, compare at equal clocks, and measure more instances where the \
             interval is wide."
        }
        "kernel_time" => {
            "Compare the operands of the kernels that differ: shapes, lengths of the cache, data type, and what the second-level cache holds; \
             measure more instances where a kernel is undecided."
        }
        "graphs" => "Replay a CUDA graph in both, or in neither.",
        "inputs" => {
            "Give both folders of runs, whose runners tell their inputs; make batch, lengths, data type and experts equal."
        }
        _ => "Sample clocks in both runs (folders of runs hold them), and lock or cool the GPU where they differ.",
    }
}

//! Collection modes: the passes of a run, from a single unprofiled pass to every tool.

use super::named_values::named_values;

named_values! {
    /// Collection mode of a run.
    Mode {
        /// Unprofiled pass, Nsight Systems with graph nodes, Nsight Compute, GEMM log.
        Deep = "deep",
        /// Unprofiled pass and a light Nsight Systems pass.
        Light = "light",
        /// Unprofiled pass, static costs, operators and an early MFU, without Nsight tools.
        Basic = "basic",
    }
}

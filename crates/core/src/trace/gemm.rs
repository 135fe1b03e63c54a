//! GEMMs in the program's row-major terms.
//!
//! cuBLAS is column-major, so a program that computes A times B passes B and A: m and n in the
//! cuBLAS log are the program's n and m. All values here are converted.

/// One GEMM shape: `batch` products of (m x k) and (k x n).
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GemmShape {
    pub m: u64,
    pub n: u64,
    pub k: u64,
    pub batch: u64,
    /// Dtypes of the left operand, the right operand and the result: `bf16`.
    pub left_type: String,
    pub right_type: String,
    pub out_type: String,
    /// True when the operand is stored transposed; untransposed rows are contiguous.
    pub left_transposed: bool,
    pub right_transposed: bool,
    /// Dtype of the accumulator.
    pub compute: String,
}

impl GemmShape {
    /// FLOPs of one call, a multiply-add counted as two, a complex one as eight. Saturates.
    pub fn flops(&self) -> u64 {
        let is_complex = self.left_type.starts_with("c_") && self.right_type.starts_with("c_");
        [self.n, self.k, self.batch, if is_complex { 8 } else { 2 }]
            .iter()
            .fold(self.m, |product, side| product.saturating_mul(*side))
    }
}

/// One logged call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GemmCall {
    pub shape: GemmShape,
    /// Name of the library function: `cublasGemmStridedBatchedEx`.
    pub function: String,
    /// Algorithm that the library selected, if the log has it.
    pub algorithm: Option<String>,
}

/// The calls of one pass, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GemmLog {
    pub calls: Vec<GemmCall>,
    /// Calls whose sizes are missing from the log.
    pub incomplete: u64,
    /// Calls of functions for groups of products, whose sizes no log has.
    pub grouped: u64,
    /// Lines recognised as part of a GEMM log.
    pub known_lines: u64,
    /// True when the log exceeded the read limit.
    pub cut: bool,
}

/// Logs of the passes with library logging enabled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GemmTrace {
    /// Pass that ends after prefill.
    pub prefill: GemmLog,
    /// Pass with prefill and a few decode steps.
    pub all: GemmLog,
    /// The same two passes in the cublasLt log. cuBLAS calls cublasLt internally, so the log
    /// repeats calls of the above and adds the selected algorithm.
    pub lt_prefill: GemmLog,
    pub lt_all: GemmLog,
    /// Decode steps of the second pass.
    pub decode_steps: u64,
    /// Logs of a command, by process; the fields above are for a runner.
    pub processes: Vec<ProcessGemms>,
}

/// Logs of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessGemms {
    pub pid: u32,
    pub cublas: GemmLog,
    /// Calls of cublasLt, those that cuBLAS made included.
    pub lt: GemmLog,
}

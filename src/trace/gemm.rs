//! Matrix products as the program meant them.
//!
//! cuBLAS works on columns and programs on rows, so a program that wants A times B hands over B and A: what the log calls m and n
//! are the program's n and m. Everything here is in the program's terms.

/// One kind of matrix product: `batch` times (m x k) times (k x n).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GemmShape {
    pub m: u64,
    pub n: u64,
    pub k: u64,
    pub batch: u64,
    /// Number formats of the left operand, the right one, and the result: `bf16`.
    pub left_type: String,
    pub right_type: String,
    pub out_type: String,
    /// Whether the operand lies transposed in memory, rows being contiguous.
    pub left_transposed: bool,
    pub right_transposed: bool,
    /// Format that products are summed in.
    pub compute: String,
}

impl GemmShape {
    /// Operations of one call: a multiply-add as two. Saturates on sizes that no device could hold.
    pub fn flops(&self) -> u64 {
        [self.n, self.k, self.batch, 2].iter().fold(self.m, |product, side| product.saturating_mul(*side))
    }
}

/// One call in a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GemmCall {
    pub shape: GemmShape,
    /// Function of the library: `cublasGemmStridedBatchedEx`.
    pub function: String,
    /// What the library chose, where the log says it.
    pub algorithm: Option<String>,
}

/// The calls of one pass, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GemmLog {
    pub calls: Vec<GemmCall>,
    /// Calls whose sizes the log lacks.
    pub incomplete: u64,
    /// Lines that belong to such a log at all.
    pub known_lines: u64,
    /// The log is longer than what is read.
    pub cut: bool,
}

/// What the passes with the libraries' logs on left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GemmTrace {
    /// Of the pass that ends after prefill.
    pub prefill: GemmLog,
    /// Of the pass with prefill and a few decode steps.
    pub all: GemmLog,
    /// The same two of cublasLt, which cuBLAS calls itself: it repeats calls of the above, and knows what was chosen.
    pub lt_prefill: GemmLog,
    pub lt_all: GemmLog,
    /// Decode steps of the second pass.
    pub decode_steps: u64,
}

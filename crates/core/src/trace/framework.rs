//! Calls of a framework's operators on the host (`aten::mm`), as its profiler recorded them.
//!
//! Calls are packed: a capture holds millions of a few thousand signatures. Signatures are as
//! recorded; FLOPs and bytes are derived by the analysis.

use super::timeline::process_of;

/// The profiler that recorded a timeline.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TimelineTool {
    #[default]
    Nsys,
    /// The profiler of PyTorch (Kineto).
    Pytorch,
}

impl TimelineTool {
    /// Name in sentences and tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nsys => "nsys",
            Self::Pytorch => "PyTorch profiler",
        }
    }

    /// Ranges that a program opens and this profiler records.
    pub const fn ranges(self) -> &'static str {
        match self {
            Self::Nsys => "NVTX ranges",
            Self::Pytorch => "ranges by torch.profiler.record_function",
        }
    }
}

/// Name, operand shapes and operand types of calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OperatorSignature {
    /// `aten::mm`.
    pub name: String,
    /// Shapes of the inputs in order; empty for an input that is not a tensor, or a scalar.
    pub shapes: Vec<Vec<u64>>,
    /// Types of the inputs as recorded: `c10::BFloat16`, `Scalar`.
    pub types: Vec<String>,
    /// Values of the inputs as recorded, `True` or `0.5`, of the operators of [`has_values`]; empty
    /// for a tensor.
    pub values: Vec<String>,
}

/// True for an operator whose work depends on values of its inputs: the mask or window of
/// attention, the size of a rotated head, experts on other devices.
pub fn has_values(name: &str) -> bool {
    let is_flash_attention = name.ends_with("varlen_fwd") || name.ends_with("::fwd");
    is_flash_attention || ["attention", "rotary", "experts"].iter().any(|it| name.contains(it))
}

/// One call of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameworkCall {
    pub start_ns: i64,
    pub end_ns: i64,
    pub global_tid: i64,
    /// Index into [`FrameworkCalls::signatures`].
    pub signature: u32,
}

#[derive(Debug, Clone, Copy)]
struct PackedOperator {
    start_ns: i64,
    end_ns: i64,
    thread: u32,
    signature: u32,
}

/// Operator calls of a capture, with the operator of each launch and the line of code.
#[derive(Debug, Clone, Default)]
pub struct FrameworkCalls {
    rows: Vec<PackedOperator>,
    threads: Vec<i64>,
    pub signatures: Vec<OperatorSignature>,
    /// Operator calls of launches as the profiler recorded them.
    pub operators: LaunchMap,
    /// Own work of the profiler on the host: process, start and end.
    pub overheads: Vec<(i64, i64, i64)>,
    /// Lines of code of launches: indices into [`super::timeline::Timeline::strings`].
    pub call_sites: LaunchMap,
}

impl FrameworkCalls {
    pub fn push(&mut self, call: FrameworkCall) {
        let known = self.threads.iter().rposition(|it| *it == call.global_tid);
        let thread = known.unwrap_or_else(|| {
            self.threads.push(call.global_tid);
            self.threads.len() - 1
        }) as u32;
        let FrameworkCall { start_ns, end_ns, signature, .. } = call;
        self.rows.push(PackedOperator { start_ns, end_ns, thread, signature });
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The call at index `at`.
    pub fn get(&self, at: usize) -> FrameworkCall {
        let PackedOperator { start_ns, end_ns, thread, signature } = self.rows[at];
        let global_tid = self.threads[thread as usize];
        FrameworkCall { start_ns, end_ns, global_tid, signature }
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = FrameworkCall> + '_ {
        (0..self.rows.len()).map(|at| self.get(at))
    }

    /// Moves the calls of each process by a number of nanoseconds.
    pub fn shift(&mut self, by: impl Fn(i64) -> i64) {
        let of_thread: Vec<i64> = self.threads.iter().map(|it| by(process_of(*it))).collect();
        for row in &mut self.rows {
            let by = of_thread[row.thread as usize];
            (row.start_ns, row.end_ns) = (row.start_ns + by, row.end_ns + by);
        }
        for (process, start_ns, end_ns) in &mut self.overheads {
            let by = by(*process);
            (*start_ns, *end_ns) = (*start_ns + by, *end_ns + by);
        }
    }
}

/// Values by launch: process and correlation id.
#[derive(Debug, Clone, Default)]
pub struct LaunchMap {
    rows: Vec<(i64, u32, u32)>,
}

impl LaunchMap {
    /// Adds values; of several for one launch the first counts.
    pub fn extend(&mut self, rows: impl IntoIterator<Item = (i64, u32, u32)>) {
        self.rows.extend(rows);
        self.rows.sort_by_key(|(process, correlation, _)| (*process, *correlation));
        self.rows.dedup_by_key(|(process, correlation, _)| (*process, *correlation));
    }

    /// The value of a launch.
    pub fn get(&self, process: i64, correlation: i64) -> Option<u32> {
        let key = (process, u32::try_from(correlation).ok()?);
        let at = self.rows.binary_search_by_key(&key, |(process, id, _)| (*process, *id)).ok()?;
        Some(self.rows[at].2)
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_has_the_first_value_of_its_process_and_id() {
        let mut map = LaunchMap::default();
        map.extend([(2, 7, 20), (1, 7, 10), (1, 7, 11)]);
        map.extend([(1, 3, 30)]);
        assert_eq!([map.get(1, 7), map.get(2, 7), map.get(1, 3)], [Some(10), Some(20), Some(30)]);
        assert_eq!([map.get(3, 7), map.get(1, -1), map.get(1, 1 << 40)], [None; 3]);
    }

    #[test]
    fn an_operator_has_values_if_its_work_depends_on_them() {
        for (name, expected) in [
            ("aten::scaled_dot_product_attention", true),
            ("_C::rotary_embedding", true),
            ("sglang::inplace_fused_experts", true),
            ("_vllm_fa2_C::varlen_fwd", true),
            ("sgl_kernel::fwd", true),
            ("aiter::rmsnorm2d_fwd", false),
            ("aten::mm", false),
        ] {
            assert_eq!(has_values(name), expected, "{name}");
        }
    }

    #[test]
    fn packing_preserves_calls() {
        let mut calls = FrameworkCalls::default();
        let call = |start_ns, global_tid| FrameworkCall {
            start_ns,
            end_ns: start_ns + 5,
            global_tid,
            signature: 3,
        };
        [call(1, 9), call(2, 8), call(3, 9)].into_iter().for_each(|it| calls.push(it));
        calls.shift(|_| 10);
        assert_eq!(calls.iter().collect::<Vec<_>>(), [call(11, 9), call(12, 8), call(13, 9)]);
    }
}

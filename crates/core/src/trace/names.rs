//! Kernel names in one canonical form for all tools.
//!
//! nsys, ncu and the profiler of PyTorch print the same function differently. Only text is compared
//! here; callers compare launch configurations.

mod canonical;

pub use canonical::canonical;

/// The function name without namespace, template arguments and parameters.
///
/// `void at::<unnamed>::Cat<int>(T1 *)` becomes `Cat`. A name without qualifiers is returned
/// unchanged, as is one with nothing outside its brackets.
pub fn base_name(full: &str) -> &str {
    let full = full.trim();
    let name = function(full);
    if name.is_empty() { full } else { name }
}

/// The placeholder of a name that a capture lacks.
pub fn absent_name(id: i64) -> String {
    format!("(string {id} is missing)")
}

/// True for such a placeholder.
pub fn is_absent_name(text: &str) -> bool {
    let id = text.strip_prefix("(string ").and_then(|it| it.strip_suffix(" is missing)"));
    id.is_some_and(|id| absent_name(id.parse().unwrap_or_default()) == text)
}

/// The name of an operator in a range of PyTorch's `emit_nvtx`, which writes `aten::linear, seq =
/// 7, op_id = 9, sizes = [[1, 8]], input_op_ids = [(8, 0)]`: the parts after the name differ from
/// call to call. Other names are returned unchanged.
///
/// `getNvtxStr` in `torch/csrc/profiler/util.cpp` writes this form.
pub fn without_call_numbers(name: &str) -> &str {
    let numbers = [", seq = ", ", op_id = "].into_iter().map(|it| (it, false));
    let lists = [", sizes = ", ", input_op_ids = "].into_iter().map(|it| (it, true));
    let first = numbers.chain(lists).filter_map(|(part, is_list)| {
        let at = name.find(part)?;
        let value = name[at + part.len()..].chars().next()?;
        let is_value = if is_list { value == '[' } else { value.is_ascii_digit() };
        is_value.then_some(at)
    });
    match first.min() {
        Some(at) if at > 0 => &name[..at],
        _ => name,
    }
}

/// The canonical form of a full name; empty for a bare function name, which all instantiations of a
/// template share.
pub fn signature(full: &str) -> String {
    if base_name(full) == full.trim() { String::new() } else { canonical(full) }
}

/// The function name; empty if brackets do not close.
fn function(full: &str) -> &str {
    let bytes = full.as_bytes();
    let mut start = 0;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b' ' => start = at + 1,
            b':' => start = at + 1,
            b'<' | b'(' | b'[' => {
                let end = closing(bytes, at);
                // A bracket followed by `::` belongs to an enclosing scope.
                if bytes.get(end..).is_some_and(|rest| rest.starts_with(b"::")) {
                    at = end + 1;
                    start = at + 1;
                } else {
                    return &full[start..at];
                }
            }
            _ => {}
        }
        at += 1;
    }
    &full[start.min(full.len())..]
}

/// Index after the bracket that closes the one at `open`; the end if none does.
fn closing(bytes: &[u8], open: usize) -> usize {
    let mut depth = 0usize;
    for (at, byte) in bytes.iter().enumerate().skip(open) {
        match byte {
            b'<' | b'(' | b'[' => depth += 1,
            b'>' if at > 0 && bytes[at - 1] == b'-' => {}
            b'>' | b')' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_name_is_the_function_alone() {
        for (full, base) in [
            ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"),
            (
                "void at::native::reduce_kernel<(int)512, at::Op<float, (int)4>>(T3)",
                "reduce_kernel",
            ),
            (
                "void at::<unnamed>::CatArrayBatchedCopy<at::<unnamed>::OpaqueType<2>>(T1 *)",
                "CatArrayBatchedCopy",
            ),
            ("void <unnamed>::elementwise<int>(T1)", "elementwise"),
            ("void outer<int>::inner<float>(T1)", "inner"),
            ("softmax_bf16", "softmax_bf16"),
            ("unclosed<int", "unclosed"),
            ("", ""),
            ("a::", "a::"),
            ("<unnamed", "<unnamed"),
            ("void (anonymous namespace", "void (anonymous namespace"),
            ("void <lambda(int)", "void <lambda(int)"),
        ] {
            assert_eq!(base_name(full), base, "{full}");
        }
    }

    #[test]
    fn calls_of_an_operator_by_emit_nvtx_have_its_name() {
        for (range, name) in [
            ("aten::linear, op_id = 7", "aten::linear"),
            ("aten::addmm, seq = 3", "aten::addmm"),
            ("aten::addmm, seq = 3, op_id = 9, sizes = [[1, 2], []]", "aten::addmm"),
            ("x, op_id = 9, sizes = [[]], input_op_ids = [(8, 0)]", "x"),
            ("aten::linear", "aten::linear"),
            ("a step, seq = last", "a step, seq = last"),
            (", op_id = 7", ", op_id = 7"),
            ("", ""),
        ] {
            assert_eq!(without_call_numbers(range), name, "{range}");
        }
    }
}

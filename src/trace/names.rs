//! Kernel names in one canonical form for all tools.
//!
//! nsys and ncu print the same function differently: casts before template values, namespaces,
//! blanks. Only text is compared here; callers compare launch configurations.

/// The function name without namespace, template arguments and parameters.
///
/// `void at::<unnamed>::Cat<int>(T1 *)` becomes `Cat`. A name without qualifiers is returned
/// unchanged, as is one with nothing outside its brackets.
pub fn base_name(full: &str) -> &str {
    let full = full.trim();
    let name = function(full);
    if name.is_empty() { full } else { name }
}

/// The function name; empty where brackets do not close.
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

/// Index after the bracket that closes the one at `open`; the end where none does.
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

/// The full name without the differences between tools: scopes, casts before literals and suffixes
/// of them, `true` for `1`, blanks.
///
/// Names of one function from two tools are equal in this form. So are functions that differ only
/// in scope.
pub fn canonical(full: &str) -> String {
    let full = full.replace("(anonymous namespace)", "<unnamed>").replace("<unnamed>::", "");
    let mut words = NameTokens(&full).peekable();
    let mut name = String::with_capacity(full.len());
    while let Some(word) = words.next() {
        if word == "::" {
            let scope = name.trim_end_matches(|c: char| c.is_alphanumeric() || c == '_').len();
            // `operator ()() const::[lambda]` and `Outer<T>::type` are not simple scopes and stay.
            name.truncate(scope);
            continue;
        }
        let literal = words
            .peek()
            .is_some_and(|next| next.starts_with(|c: char| c.is_ascii_digit() || c == '-'));
        if word == ")" && literal && cast_at(&name).is_some() {
            name.truncate(cast_at(&name).unwrap_or_default());
            continue;
        }
        if is_word(word) && name.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            name.push(' ');
        }
        name.push_str(match word {
            "true" => "1",
            "false" => "0",
            literal if literal.starts_with(|c: char| c.is_ascii_digit()) => {
                literal.trim_end_matches(['u', 'l', 'U', 'L'])
            }
            word => word,
        });
    }
    name
}

/// Index of the opening bracket of a cast to an integer or a boolean, when `name` ends in an
/// unclosed one.
fn cast_at(name: &str) -> Option<usize> {
    let open = name.rfind('(')?;
    let mut types = name[open + 1..].split(' ');
    let known =
        |word| matches!(word, "bool" | "char" | "short" | "int" | "long" | "unsigned" | "signed");
    types.all(known).then_some(open)
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// Splits a name into words, `::` and single characters; drops blanks.
struct NameTokens<'a>(&'a str);

impl<'a> Iterator for NameTokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start();
        let first = text.chars().next()?;
        let length = if first.is_alphanumeric() || first == '_' {
            text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len())
        } else if text.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let (word, rest) = text.split_at(length);
        self.0 = rest;
        Some(word)
    }
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
    fn names_that_differ_in_casts_scopes_and_blanks_are_equal() {
        let nsys = "void cudnn::fusion::lean_reduction_kernel<(bool)0, (unsigned long)7, (int)-2>\
                    (void *, unsigned int)";
        let ncu = "void cudnn::lean_reduction_kernel<false, 7, -2>(void *, unsigned int)";
        assert_eq!(canonical(nsys), canonical(ncu));
        let kineto = "void cudnn::fusion::lean_reduction_kernel<false, 7ul, -2>(void*, unsigned \
                      int)";
        assert_eq!(canonical(kineto), canonical(ncu));
        assert_eq!(canonical(ncu), "void lean_reduction_kernel<0,7,-2>(void*,unsigned int)");
        assert_ne!(canonical("f<(int)7>(int)"), canonical("f<(int)8>(int)"));
        assert_ne!(canonical("f<7>(int)"), canonical("f<7>(unsigned int)"));
    }

    #[test]
    fn a_parameter_list_is_not_a_cast() {
        assert_eq!(canonical("f(int)"), "f(int)");
        assert_eq!(canonical("f<g(int), 3>(long)"), "f<g(int),3>(long)");
    }
}

//! A kernel's full name in the form that all tools share.
//!
//! nsys and ncu demangle in the style of EDG, the profiler of PyTorch in the style of libstdc++:
//! casts before literals, `T1` for a template argument in parameters, lambdas, blanks, the place of
//! `const`, result types of enclosing functions.

use std::iter::Peekable;

/// Depth of brackets beyond which a name is compared as text.
const MAX_DEPTH: usize = 64;
/// Length beyond which template parameters stay as they are: each may stand for a long text.
const MAX_LENGTH: usize = 64 << 10;

/// The full name without the differences between tools, and without scopes, which tools shorten.
///
/// Names of one function from two tools are equal in this form. So are functions that differ only
/// in scope or in `const`.
pub fn canonical(full: &str) -> String {
    let full = full.replace("(anonymous namespace)", "<unnamed>").replace("<unnamed>::", "");
    let mut words = NameTokens(&full).peekable();
    let mut name = String::with_capacity(full.len());
    while words.peek().is_some() {
        name += &expression(&mut words, &[], 0);
        // A bracket or comma that nothing opened.
        name.extend(words.next());
    }
    name
}

/// A type, a value or a function, up to the comma or bracket that ends it. `arguments` of the
/// template whose parameters `T1`, `T2` stand for.
fn expression(words: &mut Peekable<NameTokens>, arguments: &[String], depth: usize) -> String {
    let mut text = String::new();
    // Template arguments of the last name, for its parameters.
    let mut own: Option<Vec<String>> = None;
    // Start of the current qualified name within `text`.
    let mut start = 0;
    while let Some(word) = words.peek().copied() {
        if matches!(word, "," | ">" | ")" | "]" | "}") {
            break;
        }
        words.next();
        let parameters = own.as_deref().unwrap_or(arguments);
        match word {
            "const" => {}
            "::" => {
                if text.ends_with(')') {
                    // The result type of an enclosing function.
                    text.replace_range(..start, "");
                    start = 0;
                }
                let scope = text.trim_end_matches(is_name).len();
                // `operator()()::lambda` and `Outer<T>::type` are not simple scopes and stay.
                text.truncate(scope);
            }
            "<" => {
                let list = arguments_of(words, parameters, depth);
                text = text + "<" + &list.join(",") + ">";
                own = Some(list);
            }
            "(" => {
                let list = arguments_of(words, parameters, depth);
                // A cast before a literal of an integer or enumeration; ncu prints none.
                let is_cast = !text.ends_with(is_name) && words.peek().is_some_and(is_literal);
                if !(is_cast && list.len() == 1 && is_word(&list[0])) {
                    text = text + "(" + &list.join(",") + ")";
                }
            }
            "{" | "[" => text += &unnamed(words, parameters, depth),
            "operator" => {
                text += "operator";
                if words.peek() == Some(&"(") {
                    text.extend([words.next(), words.next()].into_iter().flatten());
                }
            }
            word => {
                let is_next = is_word(word) && text.ends_with(is_name);
                let argument = template_parameter(word).and_then(|at| parameters.get(at));
                let fits = |it: &&String| text.len() + it.len() <= MAX_LENGTH;
                let word = argument.filter(fits).map_or(literal(word), String::as_str);
                if is_next {
                    text.push(' ');
                    start = text.len();
                }
                text += word;
                if is_next {
                    own = None;
                }
            }
        }
    }
    text
}

/// The comma-separated expressions of an open bracket, and its end.
fn arguments_of(words: &mut Peekable<NameTokens>, of: &[String], depth: usize) -> Vec<String> {
    let mut list = Vec::new();
    if depth >= MAX_DEPTH {
        return list;
    }
    loop {
        let item = expression(words, of, depth + 1);
        let end = words.next();
        if !(item.is_empty() && list.is_empty() && end != Some(",")) {
            list.push(item);
        }
        if end != Some(",") {
            return list;
        }
    }
}

/// A lambda or an unnamed type: `{lambda(int)#1}` and `[lambda(int) (instance 1)]` become
/// `{lambda(int)#1}`.
fn unnamed(words: &mut Peekable<NameTokens>, of: &[String], depth: usize) -> String {
    let text = arguments_of(words, of, depth).join(",");
    match text.rsplit_once("(instance ") {
        Some((name, number)) => format!("{{{name}#{}}}", number.trim_end_matches(')')),
        None => format!("{{{text}}}"),
    }
}

/// The index of the template argument that `T1` stands for.
fn template_parameter(word: &str) -> Option<usize> {
    word.strip_prefix('T')?.parse::<usize>().ok()?.checked_sub(1)
}

/// A word, with booleans as numbers and literals without suffixes.
fn literal(word: &str) -> &str {
    match word {
        "true" => "1",
        "false" => "0",
        it if it.starts_with(|c: char| c.is_ascii_digit()) => {
            it.trim_end_matches(['u', 'l', 'U', 'L'])
        }
        it => it,
    }
}

fn is_literal(word: &&str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit() || c == '-')
}

fn is_name(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn is_word(text: &str) -> bool {
    text.starts_with(is_name)
}

/// Splits a name into words, `::` and single characters; drops blanks.
struct NameTokens<'a>(&'a str);

impl<'a> Iterator for NameTokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start();
        let first = text.chars().next()?;
        let length = if is_name(first) {
            text.find(|c: char| !is_name(c)).unwrap_or(text.len())
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
    use super::canonical;

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
        let nsys = "void sort<(at_cuda_detail::SortOrder)0, cute::MMA<(cute::SM90::GMMA::Major)1, \
                    (cute::A<int>::B)-1>>(T1)";
        assert_eq!(canonical(nsys), canonical("void sort<0, cute::MMA<1, -1>>(T1)"));
        assert_ne!(canonical("f<7>(int)"), canonical("f<7>(unsigned int)"));
    }

    #[test]
    fn lambdas_and_template_parameters_of_both_styles_are_equal() {
        let nsys = "void at::native::elementwise_kernel<(int)128, (int)4, void \
                    at::native::gpu_kernel_impl<at::native::<unnamed>::fill(at::Tensor &, const \
                    c10::Scalar &)::[lambda() (instance 1)]::operator ()() const::[lambda(float, \
                    bool) (instance 12)]>(at::TensorIteratorBase &, const T1 &)::[lambda(int) \
                    (instance 1)]>(int, T3)";
        let lambda = "at::native::(anonymous namespace)::fill(at::Tensor&, c10::Scalar \
                      const&)::{lambda()#1}::operator()() const::{lambda(float, bool)#12}";
        let inner = format!(
            "at::native::gpu_kernel_impl<{lambda}>(at::TensorIteratorBase&, {lambda} \
             const&)::{{lambda(int)#1}}"
        );
        let kineto = format!("void at::native::elementwise_kernel<128, 4, {inner}>(int, {inner})");
        assert_eq!(canonical(nsys), canonical(&kineto));
        assert_ne!(canonical(nsys), canonical(&kineto.replace("#12", "#13")));
        assert_ne!(canonical("f<float>(T1)"), canonical("f<double>(T1)"));
        assert_eq!(canonical("f<float, A<int>>(T2 *, T3)"), "f<float,A<int>>(A<int>*,T3)");
    }

    #[test]
    fn a_parameter_list_is_not_a_cast() {
        assert_eq!(canonical("f(int)"), "f(int)");
        assert_eq!(canonical("f<g(int), 3>(long)"), "f<g(int),3>(long)");
    }

    #[test]
    fn names_that_are_none_are_kept() {
        for name in ["", "gemm_bf16", "a>b", "f<", "}{", "),(", "f<g<h"] {
            canonical(name);
        }
        assert_eq!(canonical("softmax<(3)>(int)"), "softmax<(3)>(int)");
        let deep = "<".repeat(100_000);
        assert!(canonical(&deep).len() <= 2 * deep.len());
        let doubled = (0..60).fold("int".to_owned(), |it, _| format!("f<{it}>(T1,T1)"));
        assert!(canonical(&doubled).len() < 300_000);
    }
}

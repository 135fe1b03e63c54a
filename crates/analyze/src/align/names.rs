//! Names of kernels as compared between two captures, and patterns on names.
//!
//! Both sides share one numbering, so that equal names are equal numbers.

use std::collections::HashMap;

use llmprof_core::trace::{
    names::{base_name, canonical},
    timeline::Timeline,
};

use super::settings::Level;

/// Numbers of names, shared by both sides.
#[derive(Debug, Default)]
pub struct NameNumbers {
    pub texts: Vec<String>,
    index: HashMap<String, u32>,
}

impl NameNumbers {
    /// The number of each kind of launch in a capture.
    pub fn of(&mut self, trace: &Timeline, level: Level) -> Vec<u32> {
        let kinds = trace.kernels.kinds().iter();
        kinds
            .map(|kind| self.number(at_level(full_name(trace, kind.full_name, kind.name), level)))
            .collect()
    }

    fn number(&mut self, text: String) -> u32 {
        let next = self.texts.len() as u32;
        *self.index.entry(text).or_insert_with_key(|text| {
            self.texts.push(text.clone());
            next
        })
    }
}

/// The full name of a kind of launch, or the short one if the capture has no other.
pub fn full_name(trace: &Timeline, full: u32, short: u32) -> &str {
    let text = |at: u32| {
        trace.strings.get(at as usize).map(String::as_str).filter(|text| !text.is_empty())
    };
    text(full).or_else(|| text(short)).unwrap_or("?")
}

/// A name at the given strictness.
pub fn at_level(full: &str, level: Level) -> String {
    match level {
        Level::Exact => canonical(full),
        Level::Base => base_name(full).to_owned(),
        Level::Family => family(base_name(full)),
    }
}

/// A name without its tile and architecture: `nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT`
/// gives `nvjet_tst_v_bz_TNT`.
fn family(name: &str) -> String {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    let arch = |word: &str| {
        word.strip_prefix("sm").is_some_and(|rest| digits(rest.trim_end_matches(['a', 'f'])))
    };
    let tile = |word: &str| word.contains('x') && word.split('x').all(digits);
    let kept: Vec<&str> = name.split('_').filter(|word| !arch(word) && !tile(word)).collect();
    kept.join("_")
}

/// Returns whether `text` matches `pattern`, in which `*` matches any text.
pub fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Returns whether a kernel's full name, as written by the tool or by a report, contains
/// `pattern`, ignoring case.
pub fn has(pattern: &str, full: &str) -> bool {
    let pattern = format!("*{}*", pattern.to_lowercase());
    [full.to_owned(), canonical(full)].iter().any(|name| glob(&pattern, &name.to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_has_neither_tile_nor_architecture() {
        assert_eq!(family("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"), "nvjet_tst_v_bz_TNT");
        assert_eq!(family("softmax_max"), "softmax_max");
    }

    #[test]
    fn a_star_matches_any_text() {
        assert!(
            glob("decoder.layers.*.self_attn", "decoder.layers.12.self_attn")
                && glob("*", "")
                && glob("a", "a")
        );
        assert!(!glob("a", "ab") && !glob("a*b", "abc") && !glob("ab*b", "ab"));
        assert!(has("flash*fwd", "void Flash::kernel_FWD<1>") && !has("gemm", "softmax"));
        assert!(has("Copy<2>", "Copy<(int)2>") && has("Copy<(int)2>", "Copy<(int)2>"));
    }
}

//! The mark that programs of Windows write before a text in UTF-8.

pub const BYTE_ORDER_MARK: &str = "\u{feff}";

/// The text after its mark, if it has one.
pub fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(BYTE_ORDER_MARK.as_bytes()).unwrap_or(text)
}

//! Encodings of texts: UTF-8, with the mark that programs of Windows write before it, and UTF-16.

use std::borrow::Cow;

use super::foreign::quoted;

const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";
const UTF16_MARKS: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];
/// Reason to refuse the long text in UTF-16 of the file `name`, with its remedy.
pub fn utf16_refused(name: &str) -> String {
    let (from, to) = (quoted(name), quoted(&format!("utf-8-{name}")));
    format!("text in UTF-16; convert it: iconv -f UTF-16 -t UTF-8 {from} > {to}")
}

/// True for the start of a text in UTF-16.
pub fn is_utf16(head: &[u8]) -> bool {
    UTF16_MARKS.iter().any(|mark| head.starts_with(mark))
}

/// The text after the mark of UTF-8.
pub fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(UTF8_MARK).unwrap_or(text)
}

/// The characters of a text; the replacement character stands for bytes of another encoding.
pub fn decoded(text: &[u8]) -> Cow<'_, str> {
    let wide = |text: &[u8], unit: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = text.chunks_exact(2).map(|it| unit([it[0], it[1]])).collect();
        String::from_utf16_lossy(&units).into()
    };
    match text {
        [0xff, 0xfe, text @ ..] => wide(text, u16::from_le_bytes),
        [0xfe, 0xff, text @ ..] => wide(text, u16::from_be_bytes),
        text => String::from_utf8_lossy(without_mark(text)),
    }
}

//! Encodings of texts: UTF-8, with the mark that programs of Windows write before it, and UTF-16.

use std::borrow::Cow;

use llmprof_core::domain::byte_order_mark::without_mark;

use super::foreign::quoted;

const UTF16_MARKS: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];
/// Pairs of bytes by which text in UTF-16 without a mark is recognised: [min, max].
const UNMARKED_PAIRS: [usize; 2] = [4, 16];

/// A form of UTF-16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Utf16 {
    /// Its mark has the order of bytes.
    Marked,
    LittleEndian,
    BigEndian,
}

impl Utf16 {
    /// The name that `iconv` has for it.
    const fn name(self) -> &'static str {
        match self {
            Self::Marked => "UTF-16",
            Self::LittleEndian => "UTF-16LE",
            Self::BigEndian => "UTF-16BE",
        }
    }
}

/// Reason to refuse the long text in UTF-16 of the file `name`, with its remedy. `packed_with` is
/// the program that unpacks the file.
pub fn utf16_refused(form: Utf16, name: &str, packed_with: Option<&str>) -> String {
    let form = form.name();
    let Some(program) = packed_with else {
        let (from, to) = (quoted(name), quoted(&format!("utf-8-{name}")));
        return format!("text in UTF-16; convert it: iconv -f {form} -t UTF-8 {from} > {to}");
    };
    let plain = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name);
    let (from, to) = (quoted(name), quoted(&format!("utf-8-{plain}")));
    format!(
        "text in UTF-16, compressed with {program}; decompress and convert it: {program} -dc \
         {from} | iconv -f {form} -t UTF-8 > {to}"
    )
}

/// The form of a text in UTF-16, by its start; `None` for other texts. A text without a mark starts
/// with characters of ASCII.
pub fn utf16(head: &[u8]) -> Option<Utf16> {
    if UTF16_MARKS.iter().any(|mark| head.starts_with(mark)) {
        return Some(Utf16::Marked);
    }
    let [min, max] = UNMARKED_PAIRS;
    let (pairs, _) = head.as_chunks::<2>();
    let pairs = &pairs[..pairs.len().min(max)];
    let is_text = |byte: u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    if pairs.len() < min {
        None
    } else if pairs.iter().all(|[low, high]| *high == 0 && is_text(*low)) {
        Some(Utf16::LittleEndian)
    } else if pairs.iter().all(|[high, low]| *high == 0 && is_text(*low)) {
        Some(Utf16::BigEndian)
    } else {
        None
    }
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
        text => match utf16(text) {
            Some(Utf16::LittleEndian) => wide(text, u16::from_le_bytes),
            Some(Utf16::BigEndian) => wide(text, u16::from_be_bytes),
            Some(Utf16::Marked) | None => String::from_utf8_lossy(without_mark(text)),
        },
    }
}

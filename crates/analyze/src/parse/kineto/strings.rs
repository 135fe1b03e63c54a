//! One table of names for all files of a capture.

use std::fmt;

use cpp_demangle::{DemangleOptions, Symbol};
use foldhash::HashMap;

/// Maximum memory of all names, bytes.
const MAX_NAMES: usize = 256 << 20;

/// Maximum length of a demangled name: a mangled one may repeat its parts.
const MAX_DEMANGLED: usize = 64 << 10;

/// Names by index.
#[derive(Debug, Default)]
pub struct Strings {
    names: Vec<String>,
    index: HashMap<String, u32>,
    /// Short form of each name that has one.
    short: HashMap<u32, u32>,
    /// Readable form of each mangled name.
    demangled: HashMap<u32, u32>,
    bytes: usize,
}

impl Strings {
    /// Index of a name, which is added if missing.
    pub fn index(&mut self, name: &str) -> u32 {
        if let Some(known) = self.index.get(name) {
            return *known;
        }
        let index = self.names.len() as u32;
        self.bytes += name.len();
        self.names.push(name.to_owned());
        self.index.insert(name.to_owned(), index);
        index
    }

    /// Index of the short form of a name.
    pub fn shortened(&mut self, full: u32, shorten: fn(&str) -> &str) -> u32 {
        if let Some(known) = self.short.get(&full) {
            return *known;
        }
        let short = shorten(&self.names[full as usize]).to_owned();
        let index = self.index(&short);
        self.short.insert(full, index);
        index
    }

    /// Index of the readable form of a mangled name: Kineto leaves the longest ones mangled. Other
    /// names and those that cannot be read are their own.
    pub fn demangled(&mut self, name: u32) -> u32 {
        if !self.get(name).starts_with("_Z") {
            return name;
        }
        if let Some(known) = self.demangled.get(&name) {
            return *known;
        }
        let readable = demangle(self.get(name)).map_or(name, |readable| self.index(&readable));
        self.demangled.insert(name, readable);
        readable
    }

    /// Name at an index.
    pub fn get(&self, index: u32) -> &str {
        self.names.get(index as usize).map_or("", String::as_str)
    }

    /// True if names take more memory than in any program.
    pub const fn is_full(&self) -> bool {
        self.bytes > MAX_NAMES
    }

    pub fn into_names(self) -> Vec<String> {
        self.names
    }
}

/// The readable form of a mangled name; `None` if it is none, or too long.
fn demangle(mangled: &str) -> Option<String> {
    let symbol = Symbol::new(mangled).ok()?;
    let mut text = BoundedText(String::new());
    symbol.structured_demangle(&mut text, &DemangleOptions::default()).ok()?;
    Some(text.0)
}

/// Text of at most [`MAX_DEMANGLED`] bytes.
struct BoundedText(String);

impl fmt::Write for BoundedText {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        if self.0.len() + part.len() > MAX_DEMANGLED {
            return Err(fmt::Error);
        }
        self.0.push_str(part);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mangled_names_are_read_and_others_kept() {
        let mut strings = Strings::default();
        let mut read = |name: &str| {
            let index = strings.index(name);
            let readable = strings.demangled(index);
            assert_eq!(strings.demangled(index), readable);
            strings.get(readable).to_owned()
        };
        assert_eq!(read("_ZN2at6native4fillIfEEvPT_"), "void at::native::fill<float>(float*)");
        for name in ["gemm", "_Z", "_Zebra", "_ZN2at", ""] {
            assert_eq!(read(name), name);
        }
        // Each tuple holds the one before twice: 2^40 of them.
        let doubled = (0..40).fold("i".to_owned(), |it, at| {
            if at == 0 { format!("1AI{it}{it}E") } else { format!("1AI{it}S{}_E", at - 1) }
        });
        let long = format!("_Z1fI{doubled}EvT_");
        assert!(read(&long).len() <= MAX_DEMANGLED.max(long.len()));
    }
}

//! One table of names for all files of a capture.

use foldhash::HashMap;

/// Maximum memory of all names, bytes.
const MAX_NAMES: usize = 256 << 20;

/// Names by index.
#[derive(Debug, Default)]
pub struct Strings {
    names: Vec<String>,
    index: HashMap<String, u32>,
    /// Short form of each name that has one.
    short: HashMap<u32, u32>,
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

    /// Name at an index.
    pub fn get(&self, index: u32) -> &str {
        self.names.get(index as usize).map_or("", String::as_str)
    }

    /// True where names take more memory than those of any program.
    pub const fn is_full(&self) -> bool {
        self.bytes > MAX_NAMES
    }

    pub fn into_names(self) -> Vec<String> {
        self.names
    }
}

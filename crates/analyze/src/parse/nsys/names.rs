//! Strings that rows refer to by id, each kept once, in order of first use.

use std::collections::HashMap;

use llmprof_core::{
    domain::{
        digits,
        finding::{Finding, catalogue},
    },
    trace::names::{absent_name, is_absent_name},
};

use super::{
    super::ParseError,
    EXPORT_AGAIN,
    export::{Export, string},
};

/// Maximum length of a name: beyond any C++ template.
const MAX_NAME: usize = 64 << 10;

/// Ids below this are looked up by index: exports number their strings from 1.
const DENSE: usize = 1 << 16;
const UNSEEN: u32 = u32::MAX;

/// Assigns an index to each id in use.
#[derive(Default)]
pub struct StringTable {
    ids: Vec<i64>,
    dense: Vec<u32>,
    sparse: HashMap<i64, u32>,
}

impl StringTable {
    /// The index of the string with this id.
    #[inline]
    pub fn index(&mut self, id: i64) -> u32 {
        let known = self.find(id);
        if known != UNSEEN {
            return known;
        }
        let next = self.ids.len() as u32;
        self.ids.push(id);
        match usize::try_from(id) {
            Ok(place) if place < DENSE => {
                if self.dense.len() <= place {
                    self.dense.resize(place + 1, UNSEEN);
                }
                self.dense[place] = next;
            }
            _ => drop(self.sparse.insert(id, next)),
        }
        next
    }

    /// Ids in order of first use.
    pub fn ids(&self) -> &[i64] {
        &self.ids
    }

    fn find(&self, id: i64) -> u32 {
        match usize::try_from(id) {
            Ok(place) if place < DENSE => self.dense.get(place).copied().unwrap_or(UNSEEN),
            _ => self.sparse.get(&id).copied().unwrap_or(UNSEEN),
        }
    }

    /// Reads the strings in use. A placeholder replaces one that the export lacks.
    pub fn resolve(self, export: &Export) -> Result<Vec<String>, ParseError> {
        let mut strings: Vec<_> = vec![None; self.ids.len()];
        export.each("StringIds", include_str!("sql/strings.sql"), |row| {
            if let Some(place) = strings.get_mut(self.find(row.get("id")?) as usize) {
                let mut name = string(row, "value")?;
                name.truncate(name.floor_char_boundary(MAX_NAME));
                *place = Some(name);
            }
            Ok(())
        })?;
        // A row with an empty text is present.
        let named =
            |(string, id): (Option<String>, &i64)| string.unwrap_or_else(|| absent_name(*id));
        Ok(strings.into_iter().zip(&self.ids).map(named).collect())
    }
}

/// The finding on strings in use that the export lacks.
pub fn absent_names(strings: &[String]) -> Option<Finding> {
    let count = strings.iter().filter(|it| is_absent_name(it)).count();
    let message = format!(
        "StringIds lacks {} of the {} names in use: kernels and calls without a name have no kind, \
         and no launch or wait is known by it",
        digits::count(count as u64),
        digits::count(strings.len() as u64)
    );
    let found = || Finding::new(catalogue::NSYS_COLUMNS_MISSING, message).advise(EXPORT_AGAIN);
    (count > 0).then(found)
}

//! The strings that rows name by id, each kept once, in order of first use.

use std::collections::HashMap;

use super::{
    super::ParseError,
    export::{Export, string},
};

/// Longest name that is kept: C++ templates grow long, but not that long.
const MAX_NAME: usize = 64 << 10;

/// Ids below this are looked up by place: exports number their strings from 1 on.
const DENSE: usize = 1 << 16;
const UNSEEN: u32 = u32::MAX;

/// Gives each id that is named an index.
#[derive(Default)]
pub struct Names {
    ids: Vec<i64>,
    dense: Vec<u32>,
    sparse: HashMap<i64, u32>,
}

impl Names {
    /// The index of the string with this id.
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

    /// Reads the strings that were named. One that the export lacks says so.
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
        let said = |(string, id): (Option<String>, &i64)| {
            string.filter(|it| !it.is_empty()).unwrap_or_else(|| format!("(string {id} is missing)"))
        };
        Ok(strings.into_iter().zip(&self.ids).map(said).collect())
    }
}

//! The strings that rows name by id, each kept once, in order of first use.

use std::collections::HashMap;

use super::{
    super::ParseError,
    export::{Export, string},
};

/// Longest name that is kept: C++ templates grow long, but not that long.
const MAX_NAME: usize = 64 << 10;

/// Gives each id that is named an index.
#[derive(Default)]
pub struct Names {
    indices: HashMap<i64, u32>,
}

impl Names {
    /// The index of the string with this id.
    pub fn index(&mut self, id: i64) -> u32 {
        let next = u32::try_from(self.indices.len()).unwrap_or(u32::MAX);
        *self.indices.entry(id).or_insert(next)
    }

    /// Reads the strings that were named. One that the export lacks says so.
    pub fn resolve(self, export: &Export) -> Result<Vec<String>, ParseError> {
        let mut strings: Vec<_> = vec![None; self.indices.len()];
        export.each("StringIds", include_str!("sql/strings.sql"), |row| {
            if let Some(place) = self.indices.get(&row.get("id")?).and_then(|&index| strings.get_mut(index as usize)) {
                let mut name = string(row, "value")?;
                name.truncate(name.floor_char_boundary(MAX_NAME));
                *place = Some(name);
            }
            Ok(())
        })?;
        let mut strings: Vec<_> = strings.into_iter().map(Option::unwrap_or_default).collect();
        for (id, index) in self.indices {
            if let Some(string) = strings.get_mut(index as usize)
                && string.is_empty()
            {
                *string = format!("(string {id} is missing)");
            }
        }
        Ok(strings)
    }
}

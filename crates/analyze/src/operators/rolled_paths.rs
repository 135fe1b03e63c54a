//! Rolled-up paths, each computed once: millions of calls have a few thousand paths.

use std::borrow::Cow;

use foldhash::HashMap;

/// True for a path segment that is the number of a layer or an expert.
pub fn is_index(segment: &str) -> bool {
    !segment.is_empty() && segment.bytes().all(|byte| byte.is_ascii_digit())
}

/// Replaces each numeric path segment with `*`.
pub fn collapse(path: &str) -> Cow<'_, str> {
    if !path.split('.').any(is_index) {
        return Cow::Borrowed(path);
    }
    let parts: Vec<&str> =
        path.split('.').map(|part| if is_index(part) { "*" } else { part }).collect();
    Cow::Owned(parts.join("."))
}

/// Numbers of rolled-up paths, in order of first use.
#[derive(Debug, Default)]
pub struct RolledPaths<'a> {
    /// By path, and by rolled-up path.
    of_path: HashMap<&'a str, u32>,
    numbers: HashMap<Cow<'a, str>, u32>,
    paths: Vec<Cow<'a, str>>,
}

impl<'a> RolledPaths<'a> {
    /// The number of `path` rolled up.
    pub fn number(&mut self, path: &'a str) -> u32 {
        if let Some(number) = self.of_path.get(path) {
            return *number;
        }
        let next = self.paths.len() as u32;
        let number = *self.numbers.entry(collapse(path)).or_insert_with_key(|rolled| {
            self.paths.push(rolled.clone());
            next
        });
        self.of_path.insert(path, number);
        number
    }

    /// The rolled-up paths in the order of their numbers.
    pub fn into_paths(self) -> Vec<Cow<'a, str>> {
        self.paths
    }

    /// The rolled-up path with this number.
    pub fn path(&self, number: u32) -> &str {
        &self.paths[number as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_roll_up_to_one_have_its_number() {
        let mut paths = RolledPaths::default();
        let numbers = ["layers.0.q", "layers.1.q", "lm_head", "layers.*.q", "layers.0.q"]
            .map(|path| paths.number(path));
        assert_eq!(numbers, [0, 0, 1, 0, 0]);
        assert_eq!([paths.path(0), paths.path(1)], ["layers.*.q", "lm_head"]);
    }
}

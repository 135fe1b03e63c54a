//! Groups of ranges that tables sum: ranges with one domain and name.
//!
//! Names of an engine's steps carry the counts of each step, which other tables have: steps of one
//! kind are one group.

use foldhash::HashMap;
use llmprof_core::trace::{
    engine_steps::StepClass,
    range::{Range, RangeLabel},
    stage::StageRules,
};

/// Numbers of groups, in order of first use.
pub struct RangeGroups<'a> {
    rules: &'a StageRules,
    /// By domain and name of the group.
    numbers: HashMap<(&'a str, String), u32>,
    of_label: HashMap<*const RangeLabel, u32>,
    last: Option<(*const RangeLabel, u32)>,
}

impl<'a> RangeGroups<'a> {
    pub fn new(rules: &'a StageRules) -> Self {
        let (numbers, of_label, last) = Default::default();
        Self { rules, numbers, of_label, last }
    }

    /// The number of the group of a range.
    #[inline]
    pub fn number(&mut self, range: &'a Range) -> u32 {
        let label: &'a RangeLabel = range.label();
        match self.last {
            Some((last, number)) if std::ptr::eq(last, label) => number,
            _ => {
                let number = self.find(label);
                self.last = Some((label, number));
                number
            }
        }
    }

    fn find(&mut self, label: &'a RangeLabel) -> u32 {
        *self.of_label.entry(label).or_insert_with(|| {
            let name = group_name(self.rules, &label.name).unwrap_or_else(|| label.name.clone());
            let next = self.numbers.len() as u32;
            *self.numbers.entry((label.domain.as_str(), name)).or_insert(next)
        })
    }

    pub fn count(&self) -> usize {
        self.numbers.len()
    }

    /// Domain and name of each group, by number.
    pub fn names(self) -> Vec<(&'a str, String)> {
        let mut names = vec![Default::default(); self.numbers.len()];
        for (name, number) in self.numbers {
            names[number as usize] = name;
        }
        names
    }
}

/// Name of the group of an engine's step; `None` for other ranges.
fn group_name(rules: &StageRules, name: &str) -> Option<String> {
    let step = rules.step(name)?;
    let kind = step.mode.filter(|_| step.class == StepClass::Other);
    let kind = kind.unwrap_or_else(|| step.class.as_str());
    Some(format!("{} steps: {kind}", step.engine))
}

//! Counters of the launches of a timeline.

use foldhash::HashMap;

use super::{super::function_names::FunctionNames, CounterRecord};
use crate::trace::{kernel::LaunchKind, nsys::NsysTrace};

/// Stage, kernel, its signature, grid and block.
type LaunchKey<'a> = (&'a str, &'a str, &'a str, [u32; 3], [u32; 3]);

/// Counters of launches, and the names by which they are found.
pub struct ProfiledLaunches<'a> {
    names: FunctionNames,
    records: HashMap<LaunchKey<'a>, &'a CounterRecord>,
}

impl<'a> ProfiledLaunches<'a> {
    pub fn of(trace: &NsysTrace, counters: &'a [CounterRecord]) -> Self {
        let of = |it: &'a CounterRecord| {
            let key = (it.stage.as_str(), it.kernel_name.as_str(), it.signature.as_str());
            Some(((key.0, key.1, key.2, it.grid?, it.block?), it))
        };
        let records: HashMap<LaunchKey, &CounterRecord> = counters.iter().filter_map(of).collect();
        let names = match records.is_empty() {
            true => FunctionNames::default(),
            false => FunctionNames::of(trace),
        };
        Self { names, records }
    }

    /// Counters of launches of this kind in a stage.
    pub fn get(&self, stage: &str, kind: &LaunchKind) -> Option<&'a CounterRecord> {
        let (name, signature) = self.names.get(kind);
        self.records.get(&(stage, name, signature, kind.grid, kind.block)).copied()
    }
}

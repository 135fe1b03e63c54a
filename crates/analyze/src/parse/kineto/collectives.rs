//! Collective operations of one file, by the operator `record_param_comms` that recorded their
//! parameters, or by the kernel's own copy of them.
//!
//! PyTorch's versions record a field in different places; the operator was the first to have `Seq`.
//! Kernels of sends and receives, as in an all-to-all, may have neither: [`launched`] finds their
//! operators.

mod launched;

use std::collections::BTreeMap;

use foldhash::HashMap;
use llmprof_core::trace::{
    collectives::{CollectiveCall, CollectiveGroup, CollectiveKind, Collectives, dtype},
    timeline::ApiCalls,
};
use serde_json::value::RawValue;

use self::launched::LaunchRecords;

use super::event::{ArgsFields, Integer};

/// The operator that records the parameters of a collective operation.
const OPERATOR: &str = "record_param_comms";
/// Libraries that run collective operations on the host, as in the range `gloo:all_reduce`.
const HOST_LIBRARIES: [&str; 3] = ["gloo", "mpi", "ucc"];
/// Maximum number of distinct groups; no program has more.
const MAX_GROUPS: usize = 4096;

/// Operations of one file, in its own numbers.
#[derive(Debug, Default)]
pub struct FileCollectives {
    groups: Vec<CollectiveGroup>,
    of_group: HashMap<CollectiveGroup, u32>,
    calls: Vec<CollectiveCall>,
    /// Indices into `calls` by `External id`.
    of_operator: HashMap<u32, u32>,
    /// Correlation, `External id` and own record of kernels.
    kernels: Vec<(u32, u32, Option<u32>)>,
    records: LaunchRecords,
    on_host: BTreeMap<String, u64>,
}

impl FileCollectives {
    /// Adds an operator, which may record a call.
    pub fn operator(&mut self, name: &str, args: &ArgsFields, at: OnThread) {
        if name != OPERATOR {
            self.records.add_range(name, at);
        } else if let Some(call) = self.call(args) {
            self.records.add(call, at);
            if let Some(id) = small(args.external_id).filter(|id| *id != 0) {
                self.of_operator.entry(id).or_insert(call);
            }
        }
    }

    /// Adds a kernel.
    pub fn kernel(&mut self, name: &str, args: &ArgsFields) {
        let own = self.call(args);
        if own.is_none() && CollectiveKind::of_kernel(name).is_none() {
            return;
        }
        if let Some(correlation) = small(args.correlation).filter(|it| *it != 0) {
            self.kernels.push((correlation, small(args.external_id).unwrap_or(0), own));
        }
    }

    /// Adds a range, which may be an operation on the host.
    pub fn range(&mut self, name: &str, at: OnThread) {
        self.records.add_range(name, at);
        if let Some((library, _)) = name.split_once(':')
            && HOST_LIBRARIES.contains(&library)
        {
            *self.on_host.entry(library.to_owned()).or_default() += 1;
        }
    }

    /// Index of the call that these arguments describe.
    fn call(&mut self, args: &ArgsFields) -> Option<u32> {
        let name = args.collective.0.as_deref()?;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let group = self.group(CollectiveGroup {
            name: text(&args.group_name.0),
            description: text(&args.group_description.0),
            ranks: ranks(args.group_ranks.as_deref()),
            size: small(args.group_size).filter(|it| *it > 0),
        })?;
        let count = |it: Integer| it.value.and_then(|it| u64::try_from(it).ok());
        self.calls.push(CollectiveCall {
            group,
            kind: CollectiveKind::of_pytorch(name),
            sequence: count(args.sequence),
            in_elements: count(args.in_elements),
            out_elements: count(args.out_elements),
            dtype: args.dtype.0.as_deref().and_then(dtype).map(|(name, _)| name),
        });
        Some(self.calls.len() as u32 - 1)
    }

    fn group(&mut self, group: CollectiveGroup) -> Option<u32> {
        if let Some(known) = self.of_group.get(&group) {
            return Some(*known);
        }
        let number = self.groups.len() as u32;
        (self.groups.len() < MAX_GROUPS).then(|| {
            self.groups.push(group.clone());
            self.of_group.insert(group, number);
            number
        })
    }

    /// Moves the operations to `all`, the operations of all files. `has_ids`: `External id` names
    /// operators. A kernel without a record has the one of its launch among the calls of the file.
    pub fn add_to(
        self,
        all: &mut Collectives,
        process: i64,
        (has_ids, launches): (bool, &ApiCalls),
    ) {
        let recorded = |id: u32| self.of_operator.get(&id).filter(|_| has_ids && id != 0).copied();
        let by_launch = match self.kernels.iter().all(|it| it.2.or(recorded(it.1)).is_some()) {
            true => HashMap::default(),
            false => {
                let kernels = self.kernels.iter().map(|it| it.0).collect();
                self.records.by_launch(&kernels, launches, &self.calls)
            }
        };
        let mut numbers = Vec::new();
        for group in self.groups {
            let known = all.groups.iter().position(|it| *it == group);
            numbers.push(known.unwrap_or_else(|| {
                all.groups.push(group);
                all.groups.len() - 1
            }) as u32);
        }
        let mut joined = Vec::new();
        for (correlation, id, own) in self.kernels {
            let call = |at: u32| self.calls[at as usize];
            let (operator, own) = (recorded(id).map(call), own.map(call));
            let launched = || by_launch.get(&correlation).copied();
            let Some(found) = own.or(operator).or_else(launched) else { continue };
            let sequence = found.sequence.or_else(|| operator?.sequence);
            let group = numbers[found.group as usize];
            joined.push((process, correlation, all.calls.len() as u32));
            all.calls.push(CollectiveCall { group, sequence, ..found });
        }
        all.launches.extend(joined);
        for (library, count) in self.on_host {
            *all.on_host.entry(library).or_default() += count;
        }
    }
}

/// Index of a thread of the file, start and end.
pub type OnThread = (u32, i64, i64);

fn small(integer: Integer) -> Option<u32> {
    integer.value.and_then(|it| u32::try_from(it).ok())
}

/// Ranks of a group, written as `"[0, 1]"` or as a list; empty if the list is cut
/// (`"[0, ..., 63]"`) or is not one of ranks.
fn ranks(text: Option<&RawValue>) -> Vec<u32> {
    let text = text.map_or("", RawValue::get).trim().trim_matches('"').trim();
    let list = text.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or_default();
    let ranks: Option<Vec<u32>> = list.split(',').map(|it| it.trim().parse().ok()).collect();
    ranks.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_a_list_or_its_text_and_a_cut_list_has_none() {
        let read = |text: &str| ranks(Some(&RawValue::from_string(text.to_owned()).unwrap()));
        assert_eq!(read(r#""[0, 1]""#), [0, 1]);
        assert_eq!(read("[3,  2]"), [3, 2]);
        for text in [r#""[0, 1, ..., 63]""#, r#""""#, r#""[]""#, "7", "null", r#""[-1]""#, "[[1]]"]
        {
            assert_eq!(read(text), [0; 0], "{text}");
        }
        assert_eq!(ranks(None), [0; 0]);
    }
}

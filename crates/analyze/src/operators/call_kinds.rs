//! Kinds of calls: stage, path and kind of operator, each numbered once. Passes have millions of
//! calls of a few thousand kinds.

use std::borrow::Cow;

use foldhash::HashMap;

use super::rolled_paths::RolledPaths;
use crate::events::TimedCall;

/// Numbers of one kind of call.
#[derive(Debug, Clone, Copy)]
pub struct CallKind {
    pub number: u32,
    /// Number of the same kind under the rolled-up path.
    pub rolled: u32,
    /// Numbers of stage and path, and of stage and rolled-up path.
    pub of_path: u32,
    pub of_rolled_path: u32,
}

/// Stage, path and operator of a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallKey<'a> {
    pub stage: Cow<'a, str>,
    pub path: Cow<'a, str>,
    pub op: Cow<'a, str>,
}

impl<'a> CallKey<'a> {
    pub fn of(stage: &'a str, path: &'a str, op: &'a str) -> Self {
        Self { stage: stage.into(), path: path.into(), op: op.into() }
    }
}

/// All kinds of calls of a pass, in order of first use.
#[derive(Default)]
pub struct CallKinds<'a> {
    paths: RolledPaths<'a>,
    of_paths: HashMap<(&'a str, &'a str), u32>,
    of_rolled_paths: HashMap<(&'a str, u32), u32>,
    numbers: HashMap<CallKey<'a>, u32>,
    rolled: HashMap<(&'a str, u32, &'a str), u32>,
    kinds: Vec<CallKind>,
    /// By number of [`TimedCall::kind`].
    shared: Vec<Option<CallKind>>,
}

impl<'a> CallKinds<'a> {
    /// The kind of a call.
    pub fn of(&mut self, call: &TimedCall<'a>) -> CallKind {
        let Some(shared) = call.kind else { return self.find(call) };
        let shared = shared as usize;
        if let Some(Some(kind)) = self.shared.get(shared) {
            return *kind;
        }
        let kind = self.find(call);
        *super::grown(&mut self.shared, shared as u32) = Some(kind);
        kind
    }

    fn find(&mut self, call: &TimedCall<'a>) -> CallKind {
        let of = call.of;
        let (stage, path, op) = (of.stage.as_str(), of.path.as_str(), of.op.as_str());
        let key = CallKey::of(stage, path, op);
        if let Some(number) = self.numbers.get(&key) {
            return self.kinds[*number as usize];
        }
        let rolled_path = self.paths.number(path);
        let next = self.rolled.len() as u32;
        let rolled = *self.rolled.entry((stage, rolled_path, op)).or_insert(next);
        let next = self.of_paths.len() as u32;
        let of_path = *self.of_paths.entry((stage, path)).or_insert(next);
        let next = self.of_rolled_paths.len() as u32;
        let of_rolled_path = *self.of_rolled_paths.entry((stage, rolled_path)).or_insert(next);
        let number = self.kinds.len() as u32;
        self.numbers.insert(key, number);
        self.kinds.push(CallKind { number, rolled, of_path, of_rolled_path });
        self.kinds[number as usize]
    }

    /// The keys by number, and those under rolled-up paths.
    pub fn into_keys(self) -> [Vec<CallKey<'a>>; 2] {
        let Self { paths, of_paths, of_rolled_paths, numbers, rolled, kinds, shared } = self;
        drop((of_paths, of_rolled_paths, shared));
        let empty = CallKey::of("", "", "");
        let (mut own_keys, mut rolled_keys) =
            (vec![empty.clone(); kinds.len()], vec![empty; rolled.len()]);
        for (key, number) in numbers {
            own_keys[number as usize] = key;
        }
        let paths = paths.into_paths();
        for ((stage, path, op), number) in rolled {
            let path = paths[path as usize].clone();
            rolled_keys[number as usize] = CallKey { stage: stage.into(), path, op: op.into() };
        }
        [own_keys, rolled_keys]
    }
}

//! Kinds of calls: stage, path and kind of operator, each numbered once. Passes have millions of
//! calls of a few thousand kinds.

use foldhash::HashMap;

use super::{CallKey, rolled_paths::RolledPaths};
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindKey<'a> {
    pub stage: &'a str,
    pub path: &'a str,
    pub op: &'a str,
}

impl KindKey<'_> {
    pub fn owned(self) -> CallKey {
        CallKey { stage: self.stage.into(), path: self.path.into(), op: self.op.into() }
    }
}

/// All kinds of calls of a pass, in order of first use.
#[derive(Default)]
pub struct CallKinds<'a> {
    paths: RolledPaths<'a>,
    of_paths: HashMap<(&'a str, &'a str), u32>,
    of_rolled_paths: HashMap<(&'a str, u32), u32>,
    numbers: HashMap<KindKey<'a>, u32>,
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
        let key = KindKey { stage: &of.stage, path: &of.path, op: &of.op };
        if let Some(number) = self.numbers.get(&key) {
            return self.kinds[*number as usize];
        }
        let rolled_path = self.paths.number(&of.path);
        let next = self.rolled.len() as u32;
        let rolled = *self.rolled.entry((key.stage, rolled_path, key.op)).or_insert(next);
        let next = self.of_paths.len() as u32;
        let of_path = *self.of_paths.entry((key.stage, key.path)).or_insert(next);
        let next = self.of_rolled_paths.len() as u32;
        let of_rolled_path = *self.of_rolled_paths.entry((key.stage, rolled_path)).or_insert(next);
        let number = self.kinds.len() as u32;
        self.numbers.insert(key, number);
        self.kinds.push(CallKind { number, rolled, of_path, of_rolled_path });
        self.kinds[number as usize]
    }

    /// The keys by number, and those under rolled-up paths.
    pub fn keys(&self) -> [Vec<KindKey<'_>>; 2] {
        let empty = KindKey { stage: "", path: "", op: "" };
        let (mut own, mut rolled) = (vec![empty; self.kinds.len()], vec![empty; self.rolled.len()]);
        for (key, number) in &self.numbers {
            own[*number as usize] = *key;
        }
        for ((stage, path, op), number) in &self.rolled {
            rolled[*number as usize] = KindKey { stage, path: self.paths.path(*path), op };
        }
        [own, rolled]
    }
}

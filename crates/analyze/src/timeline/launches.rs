//! Sets of calls, and the ranges that are open at them.

use llmprof_core::trace::timeline::ApiCall;

use crate::timeline::open_ranges::{NONE, OpenStages, Segments};

/// A set of calls by their indices.
pub struct CallSet(Vec<u64>);

impl CallSet {
    /// An empty set of calls below `count`.
    pub fn below(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    pub fn insert(&mut self, call: u32) {
        self.0[call as usize / 64] |= 1 << (call % 64);
    }

    pub fn contains(&self, call: usize) -> bool {
        self.0[call / 64] >> (call % 64) & 1 == 1
    }
}

/// Looks up open ranges on several threads, remembering the position in the current one.
#[derive(Default)]
pub struct Cursor<'a> {
    thread: Option<i64>,
    segments: Option<&'a Segments>,
    hint: usize,
}

impl<'a> Cursor<'a> {
    /// The value open on `thread` at `t`; `of` returns the thread's segments.
    #[inline]
    pub fn at(&mut self, thread: i64, t: i64, of: impl FnOnce(i64) -> Option<&'a Segments>) -> u32 {
        if Some(thread) != self.thread {
            (self.thread, self.segments, self.hint) = (Some(thread), of(thread), 0);
        }
        self.segments.map_or(NONE, |segments| segments.at(t, &mut self.hint))
    }
}

/// Looks up the instances of stages, in the order of their calls.
pub struct StageCursor<'a> {
    stages: &'a OpenStages,
    cursor: Cursor<'a>,
}

impl OpenStages {
    pub fn cursor(&self) -> StageCursor<'_> {
        StageCursor { stages: self, cursor: Cursor::default() }
    }
}

impl StageCursor<'_> {
    /// The instance that counts at the start of a call.
    #[inline]
    pub fn at_call(&mut self, call: &ApiCall) -> u32 {
        self.at(call.global_tid, call.start_ns)
    }

    /// The instance that counts on a thread at `t`.
    #[inline]
    pub fn at(&mut self, thread: i64, t: i64) -> u32 {
        let stages = self.stages;
        self.cursor.at(thread, t, |thread| stages.on(thread))
    }
}

//! Launches between the layers of two forwards: the choice of a token, and what prepares the next.

use super::{
    roles::{KernelRole, Rows},
    segments::HEAD,
};

/// The launches since the last kernel of a layer.
#[derive(Debug, Default)]
pub struct Region {
    /// The last launch of the forward before, and the end of its work.
    pub end: (u32, i64),
    /// The last launch of all.
    pub last: (u32, i64),
    pub next: Option<u32>,
    pub is_sampled: bool,
    pub sampling: Option<u32>,
    /// The host waited after the last choice of a token.
    pub is_waited: bool,
    /// No more launches belong to the forward before.
    pub is_closed: bool,
    pub ends_with_wait: bool,
    /// Kernels that may belong to the forward before.
    pub open_kernels: u64,
    pub blocks: u64,
    /// The first lookup after the last choice of a token, or the last one after a choice of beams:
    /// its call, kind and rows.
    pub lookup: Option<(u32, u32, Rows)>,
    pub head: Vec<u32>,
    /// Kernels that may prepare the next forward were launched after the wait.
    pub has_prepared: bool,
    /// Beams were chosen.
    pub by_top_k: bool,
    /// Kind of the last lookups after it, and most lookups of one kind in a row.
    pub moved: (u32, u32),
    pub max_moved: u32,
}

impl Region {
    pub fn wait(&mut self) {
        if !self.is_closed {
            if !self.is_sampled {
                (self.end, self.next, self.ends_with_wait) = (self.last, None, true);
            }
            self.is_closed = true;
        }
        (self.is_waited, self.has_prepared) = (true, false);
    }

    /// Adds a kernel that is of no layer.
    pub fn kernel(
        &mut self,
        at: (u32, i64),
        (kind, name): (u32, u32),
        role: &KernelRole,
        is_choice: bool,
    ) {
        self.last = at;
        self.open_kernels += u64::from(!self.is_closed);
        self.blocks = self.blocks.saturating_add(role.blocks);
        if is_choice {
            self.by_top_k = role.is_top_k;
            if !self.is_closed {
                (self.end, self.next) = (at, None);
            }
            (self.is_sampled, self.is_waited, self.sampling) = (true, false, Some(kind));
            (self.lookup, self.has_prepared) = (None, false);
            self.next = self.next.or(self.is_closed.then_some(at.0));
            return;
        }
        self.next = self.next.or(Some(at.0));
        if role.lookup.is_some() {
            let in_row = if self.moved.0 == kind { self.moved.1 + 1 } else { 1 };
            self.moved = (kind, in_row);
            self.max_moved = self.max_moved.max(in_row);
        }
        match (self.lookup, role.lookup) {
            // The last lookup is the embedding's: those before it move keys and values.
            (_, Some(rows)) if self.by_top_k || self.lookup.is_none() => {
                self.lookup = Some((at.0, kind, rows));
                self.head.clear();
            }
            (Some(_), _) if self.head.len() < HEAD => self.head.push(name),
            _ => {}
        }
        self.has_prepared = true;
    }

    /// Returns true if no kernel lies between the end of the last forward, or a wait after it, and
    /// the launch of a graph by `call`.
    pub fn is_before(&self, call: u32) -> bool {
        self.next == Some(call) || (self.is_waited && !self.has_prepared)
    }
}

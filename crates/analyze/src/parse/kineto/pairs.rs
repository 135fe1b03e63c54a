//! Ranges of two events each: `B` opens a range, and `E` closes the last open range of its thread.
//!
//! PyTorch's profiler writes complete events; tools that merge or convert traces write pairs.

use foldhash::HashMap;

use super::{category::Category, event::EventFields, number::nanos, rows::FileRows};
use crate::parse::possible_interval;

/// Open events by process and thread: the index of a range, or `None` for an event of another
/// category.
#[derive(Debug, Default)]
pub struct OpenPairs(HashMap<(i64, i64), Vec<Option<usize>>>);

impl FileRows {
    /// Reads half of a pair, and counts an event that belongs to no range.
    pub(super) fn add_half(&mut self, event: &EventFields, opens: bool) {
        self.odd.unpaired += u64::from(!self.pair(event, opens));
    }

    /// Returns false for an event that belongs to no range.
    fn pair(&mut self, event: &EventFields, opens: bool) -> bool {
        let thread = (self.process(&event.pid), self.number(event.tid).unwrap_or(0));
        let ns = event.ts.as_deref().and_then(|it| nanos(it.get()));
        let ns = ns.filter(|ns| *ns >= 0 && possible_interval(*ns, *ns));
        if opens {
            let is_range =
                matches!(Category::of(event.cat.0.as_deref().unwrap_or_default()), Category::Range);
            let opened = ns.zip(event.name.0.as_deref()).filter(|_| is_range);
            let at = opened.map(|(ns, name)| {
                self.range(event, (ns, None), name);
                self.ranges.len() - 1
            });
            self.open_pairs.0.entry(thread).or_default().push(at);
            return at.is_some();
        }
        let Some(Some(at)) = self.open_pairs.0.get_mut(&thread).and_then(Vec::pop) else {
            return false;
        };
        let range = &mut self.ranges[at];
        range.end_ns = ns.filter(|ns| *ns >= range.start_ns);
        true
    }
}

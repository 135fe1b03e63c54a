//! NVTX ranges as a tool recorded them.
//!
//! A program opens millions of ranges of a few names: a range has its times and a reference to its
//! site, which ranges of the same name and thread share.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use foldhash::HashMap;

/// A named interval of host time on a thread. Push/pop ranges nest; start/end ranges may cross
/// threads.
#[derive(Debug, Clone, PartialEq)]
pub struct Range {
    site: Arc<RangeSite>,
    /// Nanoseconds since the start of the capture.
    pub start_ns: i64,
    /// `None` when the capture ended before the range did.
    pub end_ns: Option<i64>,
}

/// Name, thread and style of ranges.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RangeSite {
    label: Arc<RangeLabel>,
    /// Global thread id of nsys: process and thread.
    pub global_tid: i64,
    pub push_pop: bool,
}

/// Name and domain of ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RangeLabel {
    /// Empty for the default domain.
    pub domain: String,
    pub name: String,
}

impl Range {
    /// A range with a site of its own.
    pub fn new(
        (domain, name): (&str, &str),
        (start_ns, end_ns): (i64, Option<i64>),
        (global_tid, push_pop): (i64, bool),
    ) -> Self {
        let label = Arc::new(RangeLabel { domain: domain.into(), name: name.into() });
        Self::at(Arc::new(RangeSite { label, global_tid, push_pop }), (start_ns, end_ns))
    }

    pub fn at(site: Arc<RangeSite>, (start_ns, end_ns): (i64, Option<i64>)) -> Self {
        Self { site, start_ns, end_ns }
    }
}

impl RangeSite {
    pub fn new(label: Arc<RangeLabel>, (global_tid, push_pop): (i64, bool)) -> Self {
        Self { label, global_tid, push_pop }
    }

    pub fn label(&self) -> &Arc<RangeLabel> {
        &self.label
    }
}

impl Deref for Range {
    type Target = RangeSite;

    #[inline]
    fn deref(&self) -> &RangeSite {
        &self.site
    }
}

impl DerefMut for Range {
    /// Changes only this range.
    fn deref_mut(&mut self) -> &mut RangeSite {
        Arc::make_mut(&mut self.site)
    }
}

impl Deref for RangeSite {
    type Target = RangeLabel;

    #[inline]
    fn deref(&self) -> &RangeLabel {
        &self.label
    }
}

impl DerefMut for RangeSite {
    fn deref_mut(&mut self) -> &mut RangeLabel {
        Arc::make_mut(&mut self.label)
    }
}

/// Sorts ranges by start, the longest of those that start together first, unless already sorted.
pub fn sort(ranges: &mut [Range]) {
    let key = |it: &Range| (it.start_ns, std::cmp::Reverse(it.end_ns.unwrap_or(i64::MAX)));
    if !ranges.is_sorted_by_key(key) {
        ranges.sort_by_key(key);
    }
}

/// The sites of a capture, each once.
#[derive(Debug, Default)]
pub struct RangeSites {
    labels: HashMap<Arc<RangeLabel>, ()>,
    sites: HashMap<(usize, i64, bool), Arc<RangeSite>>,
}

impl RangeSites {
    pub fn label(&mut self, label: RangeLabel) -> Arc<RangeLabel> {
        if let Some((known, ())) = self.labels.get_key_value(&label) {
            return known.clone();
        }
        let label = Arc::new(label);
        self.labels.insert(label.clone(), ());
        label
    }

    /// The site of ranges with a label of [`Self::label`].
    pub fn site(
        &mut self,
        label: &Arc<RangeLabel>,
        (global_tid, push_pop): (i64, bool),
    ) -> Arc<RangeSite> {
        let site = || Arc::new(RangeSite { label: label.clone(), global_tid, push_pop });
        let key = (Arc::as_ptr(label).addr(), global_tid, push_pop);
        self.sites.entry(key).or_insert_with(site).clone()
    }
}

/// A value of ranges that depends only on their domain and name, computed once for each.
pub struct ByLabel<T, F> {
    /// By address of a label, which all ranges of a list keep.
    known: HashMap<usize, T>,
    last: Option<(usize, T)>,
    of: F,
}

impl<'a, T: Copy, F: FnMut(&'a RangeLabel) -> T> ByLabel<T, F> {
    pub fn new(of: F) -> Self {
        Self { known: HashMap::default(), last: None, of }
    }

    #[inline]
    pub fn get(&mut self, range: &'a Range) -> T {
        let label = range.site.label();
        let key = Arc::as_ptr(label).addr();
        match self.last {
            Some((last, value)) if last == key => value,
            _ => {
                let value = *self.known.entry(key).or_insert_with(|| (self.of)(label));
                self.last = Some((key, value));
                value
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_one_name_and_thread_share_a_site_until_one_changes() {
        let mut sites = RangeSites::default();
        let mut range = |name: &str, thread: i64| {
            let label = sites.label(RangeLabel { domain: "LLM".into(), name: name.into() });
            Range::at(sites.site(&label, (thread, true)), (0, Some(1)))
        };
        let (first, mut second, other) = (range("a", 1), range("a", 1), range("a", 2));
        assert!(Arc::ptr_eq(&first.site, &second.site));
        assert!(
            !Arc::ptr_eq(&first.site, &other.site) && Arc::ptr_eq(first.label(), other.label())
        );
        second.name = "b".into();
        assert_eq!([&first.name, &second.name, &other.name], ["a", "b", "a"]);
        assert_eq!(size_of::<Range>(), 32, "captures have millions of them");
    }

    #[test]
    fn a_value_is_computed_once_for_each_name() {
        let mut sites = RangeSites::default();
        let mut range = |name: &str, thread: i64| {
            let label = sites.label(RangeLabel { domain: String::new(), name: name.into() });
            Range::at(sites.site(&label, (thread, true)), (0, Some(1)))
        };
        let ranges = [range("ab", 1), range("c", 1), range("ab", 2), range("c", 1)];
        let mut computed = 0;
        let mut lengths = ByLabel::new(|label: &RangeLabel| {
            computed += 1;
            label.name.len()
        });
        assert_eq!(ranges.each_ref().map(|it| lengths.get(it)), [2, 1, 2, 1]);
        assert_eq!(computed, 2);
    }
}

//! Kernels inside the calls whose work counts, and outside all of them.

use std::collections::{BTreeMap, BTreeSet};

use super::works::{Counted, WorkLookup, Works};
use crate::{
    kernels::kernel_classes::{ClassCache, computes_products},
    timeline::{
        capture::{Capture, Join},
        framework_nests::FrameworkIndex,
    },
};

/// The counted calls around kernels.
pub struct CountedCalls<'a> {
    capture: &'a Capture<'a>,
    index: &'a FrameworkIndex,
    counted: &'a [Vec<Counted>],
    works: &'a Works,
}

impl<'a> CountedCalls<'a> {
    /// `counted`: the measures that count for the entries of each thread.
    pub const fn new(
        capture: &'a Capture<'a>,
        index: &'a FrameworkIndex,
        counted: &'a [Vec<Counted>],
        works: &'a Works,
    ) -> Self {
        Self { capture, index, counted, works }
    }

    /// Calls `visit` with the name and measures of each counted call around a kernel, innermost
    /// first.
    fn around(
        &self,
        at: usize,
        join: Join,
        lookup: &mut WorkLookup,
        mut visit: impl FnMut(&'a str, Counted),
    ) {
        let trace = self.capture.trace;
        let Some((thread, nest, innermost)) = self.index.innermost(at) else { return };
        let launch = || {
            let call = join.has_call().then(|| trace.cuda_calls.get(join.call as usize))?;
            Some((call.global_tid, call.start_ns))
        };
        for entry in nest.with_outer(innermost) {
            let counted = self.counted[thread as usize][entry as usize];
            if counted.any() {
                let item = nest.items[entry as usize];
                visit(nest.name(trace, entry), lookup.counts((item, counted), launch, trace));
            }
        }
    }

    /// Kernel time inside the calls whose work counts, by stage and name.
    pub fn working_kernels(&self) -> BTreeMap<(String, String), i64> {
        let mut sums: BTreeMap<(usize, &str), i64> = BTreeMap::new();
        let mut lookup = self.works.lookup();
        for (at, (kernel, join)) in self.capture.kernels().enumerate() {
            let stage = self.capture.stage_number(join.instance);
            let mut last = None;
            self.around(at, join, &mut lookup, |name, counted| {
                // A call that counts in an outer one of its name counts once.
                if counted.any() && last != Some(name) {
                    *sums.entry((stage, name)).or_default() += kernel.ns();
                    last = Some(name);
                }
            });
        }
        let named = |((number, name), ns): ((usize, &str), i64)| {
            let stage = if number == 0 { "" } else { self.capture.stage_label(number) };
            ((stage.to_owned(), name.to_owned()), ns)
        };
        sums.into_iter().map(named).collect()
    }

    /// Stages with products or attention outside the calls whose FLOPs count, and the kernel time
    /// of these in stages by the innermost operator, if its shapes are recorded.
    pub fn uncounted(&self) -> (BTreeSet<String>, BTreeMap<&'a str, i64>) {
        let mut classes = ClassCache::default();
        let mut lookup = self.works.lookup();
        let mut found = BTreeSet::new();
        let mut operators: BTreeMap<&str, i64> = BTreeMap::new();
        let trace = self.capture.trace;
        for (at, join) in self.capture.kernel_joins().enumerate() {
            let kind = &trace.kernels.kinds()[trace.kernels.kind(at) as usize];
            if !computes_products(classes.of(kind.full_name, &trace.strings).class) {
                continue;
            }
            let mut is_counted = false;
            self.around(at, join, &mut lookup, |_, counted| is_counted |= counted.flops);
            if !is_counted {
                let stage = self.capture.stage(join.instance);
                found.insert(stage.to_owned());
                if let Some(name) = self.shaped_operator(at).filter(|_| !stage.is_empty()) {
                    *operators.entry(name).or_default() += trace.kernels.get(at).ns();
                }
            }
        }
        (found, operators)
    }

    /// The innermost operator around a kernel, if its shapes are recorded.
    fn shaped_operator(&self, kernel: usize) -> Option<&'a str> {
        let trace = self.capture.trace;
        let (_, nest, entry) = self.index.innermost(kernel)?;
        let signature = nest.items[entry as usize].signature(trace)?;
        let shapes = &trace.framework.signatures.get(signature)?.shapes;
        shapes.iter().any(|it| !it.is_empty()).then(|| nest.name(trace, entry))
    }
}

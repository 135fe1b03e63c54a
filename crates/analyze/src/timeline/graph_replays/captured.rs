//! A captured graph with its operators nested.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use llmprof_core::trace::{
    framework::OperatorSignature,
    graph_capture::{CapturedGraph, CapturedLaunch},
    range::RangeLabel,
    timeline::Timeline,
};

use crate::timeline::{
    device_time::OperatorRule,
    framework_nests::{NestItem, ThreadNest},
    open_ranges::{NONE, Segments, nest},
};

/// Start of the names of operators that Inductor names like the kernel that they launch.
const TRITON: &str = "triton_";

pub struct KnownGraph<'a> {
    pub captured: &'a CapturedGraph,
    trace: &'a Timeline,
    pub nest: ThreadNest,
    /// By launch: innermost operator as an entry of the nest, [`NONE`] outside all.
    pub innermost: Vec<u32>,
    /// By launch: equal if all operators around two launches and their shapes are equal.
    pub contents: Vec<u64>,
    /// Hash of all launches in order.
    pub content: u64,
}

/// Domain and name of a captured range.
fn label(item: NestItem, trace: &Timeline) -> RangeLabel {
    RangeLabel { domain: String::new(), name: item.name(trace).to_owned() }
}

impl<'a> KnownGraph<'a> {
    /// `rule` belongs to the timeline.
    pub fn of(trace: &'a Timeline, graph: usize, rule: &OperatorRule) -> Self {
        let captured = &trace.graph_captures.graphs[graph];
        let items = captured.operators.clone().map(NestItem::Captured);
        let items: Vec<NestItem> =
            items.filter(|it| !it.is_range(trace) || rule.selects(&label(*it, trace))).collect();
        let order: Vec<u32> = (0..items.len() as u32).collect();
        let mut nest = nest(|at| items[at as usize].span(trace), &order);
        let mut hint = 0;
        let at = |it: &CapturedLaunch| nest.segments.at(it.at_ns, &mut hint);
        let innermost: Vec<u32> = captured.launches.iter().map(at).collect();
        nest.segments = Segments::default();
        // Captures have thread numbers that no thread of a timeline has.
        let thread = i64::MIN + graph as i64;
        let mut known = Self {
            captured,
            trace,
            nest: ThreadNest { thread, items, nest },
            innermost,
            contents: Vec::new(),
            content: 0,
        };
        known.contents = (0..captured.launches.len()).map(|it| known.hash(it)).collect();
        let mut hasher = DefaultHasher::new();
        known.contents.hash(&mut hasher);
        known.content = hasher.finish();
        known
    }

    fn hash(&self, launch: usize) -> u64 {
        let mut hasher = DefaultHasher::new();
        let innermost = self.innermost[launch];
        if innermost != NONE {
            for entry in self.nest.with_outer(innermost) {
                self.nest.items[entry as usize].signature(self.trace).hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    /// Signature of the innermost operator around a launch.
    pub fn operator(&self, launch: usize) -> Option<&'a OperatorSignature> {
        let entry = *self.innermost.get(launch)?;
        let item = self.nest.items.get(entry as usize)?;
        self.trace.framework.signatures.get(item.signature(self.trace)?)
    }

    /// Kernel name of a launch, by its call, or by an operator that Inductor named like its kernel.
    pub fn kernel_name(&self, launch: usize) -> Option<&'a str> {
        let trace: &'a Timeline = self.trace;
        if let Some(kernel) = self.captured.launches[launch].kernel {
            return Some(trace.text(kernel));
        }
        self.operator(launch).map(|it| it.name.as_str()).filter(|it| it.starts_with(TRITON))
    }
}

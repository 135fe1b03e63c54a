//! GEMMs that operators recorded, with the time of their kernels: the GEMMs of a program's own
//! kernels, which no library logs, and all of a framework's operators in a capture without logs.
//!
//! A product has its operator's shapes and FLOPs; an operator whose shapes differ between the calls
//! of a stage has no record.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashSet};
use llmprof_core::trace::{event::OperatorCall, gemm::GemmShape, names::base_name};

use super::{
    GemmRecord, OPERATOR,
    join::{GemmPart, part},
    tallies::joined_record,
};
use crate::{
    events::Events,
    kernels::{
        is_measured,
        kernel_classes::{KernelClass, classify},
    },
    operators::formulas::product_shape,
    timeline::{
        capture::{Capture, Join},
        framework_nests::FrameworkIndex,
        open_at::{OpenAt, operator_nests},
    },
};

/// Kinds of operators of the runner that are products.
const LINEAR: &str = "linear";
const MATMUL: &str = "matmul";
const EXPERTS: &str = "experts";

/// Product of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ProductPart {
    /// The only one.
    Whole,
    /// The first and the second one of experts.
    Up,
    Down,
}

/// Launches and time by launch kind.
type KindTimes = BTreeMap<u32, (u64, i64)>;

/// Calls and kernels of one product in one stage.
#[derive(Default)]
struct ProductTally {
    calls: u64,
    kernels: KindTimes,
}

/// Products by stage number and by their index.
#[derive(Default)]
struct ProductSums {
    products: Vec<(GemmShape, String)>,
    numbers: HashMap<(GemmShape, String), usize>,
    tallies: BTreeMap<(usize, usize), ProductTally>,
}

impl ProductSums {
    fn number(&mut self, shape: GemmShape, function: &str) -> usize {
        let product = (shape, function.to_owned());
        let next = self.products.len();
        *self.numbers.entry(product).or_insert_with_key(|product| {
            self.products.push(product.clone());
            next
        })
    }

    fn tally(&mut self, stage: usize, product: usize) -> &mut ProductTally {
        self.tallies.entry((stage, product)).or_default()
    }

    /// Adds launches of a kind, or only time (of reductions).
    fn add(&mut self, (stage, product): (usize, usize), kind: u32, launches: u64, ns: i64) {
        let sum = self.tally(stage, product).kernels.entry(kind).or_default();
        *sum = (sum.0 + launches, sum.1.saturating_add(ns));
    }

    fn records(self, capture: &Capture) -> Vec<GemmRecord> {
        let products = self.products;
        let record = |((stage, product), tally): ((usize, usize), ProductTally)| {
            let (shape, function) = &products[product];
            let record = joined_record(shape, tally.calls, tally.kernels, capture.trace);
            // The rate needs the kernels of all calls, one each.
            let is_whole = record.kernel_calls == Some(record.calls);
            GemmRecord {
                stage: capture.stage_label(stage).to_owned(),
                origin: OPERATOR.into(),
                function: function.clone(),
                flops_per_s: record.flops_per_s.filter(|_| is_whole),
                ..record
            }
        };
        self.tallies.into_iter().map(record).collect()
    }
}

/// Records of the products that no log has; `has_log`: libraries logged theirs.
pub fn records(capture: &Capture, traced: &Events, has_log: bool) -> Vec<GemmRecord> {
    match &capture.framework {
        Some(index) if !has_log => of_framework(capture, index),
        Some(_) => Vec::new(),
        None => of_events(capture, traced),
    }
}

/// The product that a kernel of a program's own computes; `None` for other kernels and for library
/// kernels.
fn own_part(full_name: &str) -> Option<ProductPart> {
    let KernelClass { class, engine } = classify(full_name);
    let name = base_name(full_name).to_ascii_lowercase();
    match class {
        _ if engine.is_some_and(|it| ["cublas", "cutlass"].contains(&it)) => None,
        "gemm" | "moe" if name.contains("_up") => Some(ProductPart::Up),
        "gemm" | "moe" if name.contains("_down") => Some(ProductPart::Down),
        "gemm" => Some(ProductPart::Whole),
        _ => None,
    }
}

/// An operator in one stage, with its measured calls.
struct RecordedOperator<'a> {
    first: &'a OperatorCall,
    calls: u64,
    is_uniform: bool,
}

/// Products of own kernels in operators that a runner recorded.
fn of_events(capture: &Capture, traced: &Events) -> Vec<GemmRecord> {
    let name = |at: u32| capture.trace.text(at);
    let kinds = capture.trace.kernels.kinds();
    let parts: Vec<Option<ProductPart>> =
        kinds.iter().map(|it| own_part(name(it.full_name))).collect();
    let recorded = recorded(traced);
    if recorded.is_empty() || parts.iter().all(Option::is_none) {
        return Vec::new();
    }
    let nests = operator_nests(capture.trace);
    let mut entries = OpenAt::new(capture, &nests);
    let mut sums = ProductSums::default();
    // By stage, place of the operator and part.
    let mut known: HashMap<(usize, (usize, u32), ProductPart), Option<usize>> = HashMap::default();
    let mut counted: HashSet<(usize, &str, usize)> = HashSet::default();
    let kernels = capture.kernels_by_kind();
    for ((kind, kernel), join) in kernels {
        let Some(part) = parts[kind as usize] else { continue };
        let Some(at) = entries.of(kernel.graph_node, join) else { continue };
        let stage = capture.stage_number(join.instance);
        let product = *known.entry((stage, at, part)).or_insert_with(|| {
            let range = nests[at.0].1.entries[at.1 as usize].0;
            let path = capture.trace.ranges[range as usize].name.as_str();
            let operator = recorded.get(&(capture.stage_label(stage), path))?;
            let number = sums.number(product(operator, part)?, &operator.first.op);
            if counted.insert((stage, path, number)) {
                sums.tally(stage, number).calls += operator.calls;
            }
            Some(number)
        });
        if let Some(product) = product {
            sums.add((stage, product), kind, 1, kernel.ns());
        }
    }
    sums.records(capture)
}

/// Operators that are products, by stage and path.
fn recorded<'a>(traced: &Events<'a>) -> HashMap<(&'a str, &'a str), RecordedOperator<'a>> {
    let mut recorded: HashMap<(&str, &str), RecordedOperator> = HashMap::default();
    let is_product = |call: &&OperatorCall| {
        !call.warmup
            && call.flops > 0
            && [LINEAR, MATMUL, EXPERTS].contains(&call.op.as_str())
            && !call.stage.is_empty()
            && is_measured(&call.stage)
    };
    for call in traced.calls.iter().map(|it| it.of).filter(is_product) {
        let operator = recorded.entry((&call.stage, &call.path)).or_insert(RecordedOperator {
            first: call,
            calls: 0,
            is_uniform: true,
        });
        operator.calls += 1;
        let work = |it: &OperatorCall| (it.flops, it.op.clone(), it.dtype.clone());
        operator.is_uniform &=
            operator.first.shapes == call.shapes && work(operator.first) == work(call);
    }
    recorded
}

/// The shape of a part of an operator; `None` unless its shapes give the recorded FLOPs.
fn product(operator: &RecordedOperator, part: ProductPart) -> Option<GemmShape> {
    let OperatorCall { op, shapes, dtype, flops, .. } = operator.first;
    if !operator.is_uniform {
        return None;
    }
    let (k, rows) = shapes.first()?.split_last()?;
    let rows = rows.iter().try_fold(1u64, |all, side| all.checked_mul(*side))?;
    let (m, n, k) = match (op.as_str(), shapes.get(1)?.as_slice(), part) {
        (LINEAR, [n, inner], _) if inner == k => (rows, *n, *k),
        (MATMUL, [inner, n], _) if inner == k => (rows, *n, *k),
        // Gates and ups of all experts, and downs: each row is multiplied by its experts' weights.
        (EXPERTS, [_, double, inner], part) if inner == k => {
            let [_, outputs, width] = shapes.get(2)?.as_slice() else { return None };
            let per_row = k.checked_mul(*width)?.checked_mul(6).filter(|it| *it > 0)?;
            if *double != 2 * width || outputs != k || flops % per_row != 0 {
                return None;
            }
            match part {
                ProductPart::Up => (flops / per_row, *double, *k),
                ProductPart::Down => (flops / per_row, *outputs, *width),
                ProductPart::Whole => return None,
            }
        }
        _ => return None,
    };
    let types = [dtype; 3].map(Clone::clone);
    let [left_type, right_type, out_type] = types;
    let right_transposed = op != MATMUL;
    let shape =
        GemmShape { m, n, k, batch: 1, left_type, right_type, out_type, ..Default::default() };
    let is_whole = op != EXPERTS;
    (!is_whole || shape.flops() == *flops).then_some(GemmShape { right_transposed, ..shape })
}

/// Products of a framework's operators: each belongs to the innermost call with the shapes of one.
fn of_framework(capture: &Capture, index: &FrameworkIndex) -> Vec<GemmRecord> {
    let signatures = &capture.trace.framework.signatures;
    let shapes: Vec<Option<GemmShape>> = signatures.iter().map(product_shape).collect();
    let name = |at: u32| capture.trace.text(at);
    let of_kind = |full_name: &str| {
        part(full_name).or_else(|| own_part(full_name).map(|_| GemmPart::Product))
    };
    let parts: Vec<Option<GemmPart>> =
        capture.trace.kernels.kinds().iter().map(|it| of_kind(name(it.full_name))).collect();
    let mut sums = ProductSums::default();
    let mut called: HashSet<(u32, u32, usize, u32)> = HashSet::default();
    let mut last: HashMap<(u32, u32), u32> = HashMap::default();
    for (at, ((kind, kernel), Join { instance, call })) in capture.kernels_by_kind().enumerate() {
        let stage = capture.stage_number(instance);
        let (Some(part), Some((thread, nest, innermost))) =
            (parts[kind as usize], index.innermost(at))
        else {
            continue;
        };
        let around = nest.with_outer(innermost);
        let signature = |entry: u32| nest.items.get(entry as usize)?.signature(capture.trace);
        let product = around.filter_map(|it| Some((it, signature(it)?)));
        let mut product = product.filter(|(_, signature)| shapes[*signature].is_some());
        let Some((entry, signature)) = product.next() else { continue };
        let (Some(shape), true) = (&shapes[signature], is_measured(capture.stage_label(stage)))
        else {
            continue;
        };
        let number = sums.number(shape.clone(), &signatures[signature].name);
        if called.insert((thread, entry, stage, index.replay_of(thread, call))) {
            sums.tally(stage, number).calls += 1;
        }
        let call = (thread, entry);
        match part {
            GemmPart::Product => {
                last.insert(call, kind);
                sums.add((stage, number), kind, 1, kernel.ns());
            }
            // A reduction belongs to its product.
            GemmPart::Reduction => {
                let kind = last.get(&call).copied().unwrap_or(kind);
                sums.add((stage, number), kind, 0, kernel.ns());
            }
        }
    }
    sums.records(capture)
}

#[cfg(test)]
mod tests;

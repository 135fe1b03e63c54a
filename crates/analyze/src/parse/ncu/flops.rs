//! Floating-point operations of a launch by dtype, and those that its counters leave open.
//!
//! Formulas follow the tool's own roofline: a multiply-add is two operations, a packed
//! half-precision one four. From Ampere on, nvcc also loads constants by a half-precision
//! multiply-add, `HFMA2.MMA R0, -RZ, RZ, 1.5, 0`, which the same counter includes.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::trace::counter::{CounterValues, UncountedOperations};

use super::metrics::LaunchMetrics;

pub(super) const TENSOR_OPS: (&str, &str) = ("sm__ops_path_tensor_src_", ".sum");
/// Multiply-adds of warps that the tensor pipe executed: constants, and arithmetic.
pub(super) const ON_TENSOR_PIPE: &str = "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum";
const THREADS_OF_WARP: f64 = 32.0;
/// Sources of matrix products: counts of zero of all of them show that tensor cores were idle.
const MAIN_SOURCES: [&str; 3] = ["bf16", "fp16", "tf32"];

/// Activity of tensor cores.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TensorActivity {
    pub pct: Option<f64>,
    /// Share up to which idle tensor cores may appear active.
    pub min_pct: f64,
}

/// Adds the operations of one launch, and whether they are complete.
pub fn add_flops(values: &mut CounterValues, metrics: &LaunchMetrics, tensor: TensorActivity) {
    let seconds = values.duration_ns.map(|ns| ns / 1e9);
    for (format, letter) in [("fp32", 'f'), ("fp64", 'd')] {
        if let Some([add, mul, fma]) = arithmetic(metrics, letter, seconds) {
            values.flops.insert(format.to_owned(), add + mul + 2.0 * fma);
        }
    }
    if let Some([add, mul, fma]) = arithmetic(metrics, 'h', seconds) {
        let constants = possible_constants(metrics, [add, mul, fma]);
        values.possible_constants = 4.0 * constants;
        values.flops.insert("fp16".to_owned(), 2.0 * (add + mul) + 4.0 * (fma - constants));
    }
    let ops: Vec<(&str, f64)> = metrics.between(TENSOR_OPS.0, TENSOR_OPS.1).collect();
    values.flops.extend(tensor_flops(&ops));
    let tensor_counted = tensor.is_counted_by(&ops);
    let is_counted = values.flops.contains_key("fp32") && tensor_counted;
    values.uncounted = if tensor.pct.is_some_and(|pct| pct > 0.0) && !tensor_counted {
        Some(UncountedOperations::TensorCores)
    } else if is_counted && !values.has_few_constants() {
        Some(UncountedOperations::HalfPrecision)
    } else {
        None
    };
    values.flops_complete = is_counted && values.uncounted.is_none();
}

/// Multiply-adds that may load constants: at most the tensor pipe's; if these were not counted, all
/// of a kernel without half-precision additions and products.
fn possible_constants(metrics: &LaunchMetrics, [add, mul, fma]: [f64; 3]) -> f64 {
    match metrics.get(ON_TENSOR_PIPE) {
        Some(warps) => fma.min(warps * THREADS_OF_WARP),
        None if add + mul == 0.0 => fma,
        None => 0.0,
    }
}

impl TensorActivity {
    /// Returns true if the operations of tensor cores are known: counted, or none. Integer ones are
    /// counted, too.
    fn is_counted_by(self, ops: &[(&str, f64)]) -> bool {
        let has = |source: &&str| ops.iter().any(|(name, _)| name.starts_with(*source));
        let is_idle = match self.pct {
            Some(pct) if pct > 0.0 => pct < self.min_pct && MAIN_SOURCES.iter().all(has),
            Some(_) => true,
            None => MAIN_SOURCES.iter().all(has),
        };
        is_idle || ops.iter().any(|(_, count)| *count > 0.0)
    }
}

/// Floating-point operations of tensor cores by the dtype of their operands. A counter without the
/// dtype of the result, or without the kind of sparsity, includes those with it.
fn tensor_flops(ops: &[(&str, f64)]) -> BTreeMap<String, f64> {
    let count = |name: &str| ops.iter().find(|(other, _)| *other == name).map(|(_, count)| *count);
    let with_sparsity = |name: &str| {
        let parts = ["_sparsity_off", "_sparsity_on"].map(|kind| count(&format!("{name}{kind}")));
        count(name).or_else(|| parts.into_iter().flatten().reduce(|off, on| off + on))
    };
    let dense = |name: &'_ str| {
        name.trim_end_matches("_sparsity_off").trim_end_matches("_sparsity_on").to_owned()
    };
    let names: BTreeSet<String> =
        ops.iter().map(|(name, _)| dense(name)).filter(|name| !name.starts_with("int")).collect();
    let mut by_result: BTreeMap<String, f64> = BTreeMap::new();
    let mut whole: BTreeMap<String, f64> = BTreeMap::new();
    for name in &names {
        let flops = with_sparsity(name).unwrap_or(0.0);
        match name.split_once("_dst_") {
            Some((source, _)) => *by_result.entry(format!("tensor_{source}")).or_default() += flops,
            None => *whole.entry(format!("tensor_{name}")).or_default() += flops,
        }
    }
    by_result.extend(whole);
    by_result
}

/// Additions, products and multiply-adds of threads that were not predicated off, of the dtype with
/// this letter.
fn arithmetic(metrics: &LaunchMetrics, letter: char, seconds: Option<f64>) -> Option<[f64; 3]> {
    let count = |op: &str| instructions(metrics, &format!("{letter}{op}"), seconds);
    Some([count("add")?, count("mul")?, count("fma")?])
}

/// Instructions of threads: counted, or the rate per cycle times the cycles.
fn instructions(metrics: &LaunchMetrics, op: &str, seconds: Option<f64>) -> Option<f64> {
    let counted = metrics.get(&format!("sm__sass_thread_inst_executed_op_{op}_pred_on.sum"));
    counted.or_else(|| {
        let per_cycle = metrics.get(&format!(
            "smsp__sass_thread_inst_executed_op_{op}_pred_on.sum.per_cycle_elapsed"
        ))?;
        Some(per_cycle * metrics.get("smsp__cycles_elapsed.avg.per_second")? * seconds?)
    })
}

#[cfg(test)]
mod tests {
    use super::{super::numbers::DecimalMark, *};

    /// Operations of a launch with these metrics, and additions, products and multiply-adds of a
    /// letter.
    fn of(
        tensor_pct: Option<f64>,
        arithmetic: &[(char, [u64; 3])],
        fields: &[(&str, &str)],
    ) -> CounterValues {
        let mut metrics = LaunchMetrics::default();
        let mut take = |name: &str, text: &str| metrics.take(name, "", text, DecimalMark::Point);
        for (letter, counts) in arithmetic {
            for (op, count) in ["add", "mul", "fma"].iter().zip(counts) {
                let name = format!("sm__sass_thread_inst_executed_op_{letter}{op}_pred_on.sum");
                take(&name, &count.to_string());
            }
        }
        fields.iter().for_each(|(name, text)| take(name, text));
        let mut values = CounterValues::default();
        add_flops(&mut values, &metrics, TensorActivity { pct: tensor_pct, min_pct: 3.0 });
        values
    }

    const HALF: Option<UncountedOperations> = Some(UncountedOperations::HalfPrecision);

    #[test]
    fn constants_are_not_half_precision_operations() {
        // A kernel of f32 with 1000 operations, and with few and many constants.
        for (constants, uncounted) in [(0, None), (25, None), (26, HALF)] {
            let found = of(Some(0.0), &[('f', [2, 2, 498]), ('h', [0, 0, constants])], &[]);
            assert_eq!((found.flops["fp16"], found.flops["fp32"]), (0.0, 1000.0));
            assert_eq!(found.possible_constants, 4.0 * constants as f64);
            assert_eq!((found.flops_complete, found.uncounted), (uncounted.is_none(), uncounted));
        }
        let copy = of(Some(0.0), &[('f', [0, 0, 0]), ('h', [0, 0, 1])], &[]);
        assert_eq!((copy.flops_complete, copy.uncounted), (false, HALF));
    }

    #[test]
    fn half_precision_arithmetic_counts_as_it_is() {
        let half = of(Some(0.0), &[('f', [0, 0, 0]), ('h', [1, 2, 3])], &[]);
        assert_eq!((half.flops["fp16"], half.flops_complete), (18.0, true));
        // 2 of 3 groups of 32 multiply-adds ran on the tensor pipe, which loads constants.
        let some = of(Some(0.0), &[('f', [0, 0, 0]), ('h', [0, 0, 96])], &[(ON_TENSOR_PIPE, "2")]);
        assert_eq!((some.flops["fp16"], some.uncounted), (128.0, HALF));
        let none = of(Some(0.0), &[('f', [0, 0, 0]), ('h', [0, 0, 96])], &[(ON_TENSOR_PIPE, "0")]);
        assert_eq!((none.flops["fp16"], none.flops_complete), (384.0, true));
    }

    /// Metrics of the operations of tensor cores.
    fn tensor_ops<'a>(ops: &[(&str, &'a str)]) -> Vec<(String, &'a str)> {
        let name = |source: &str| format!("{}{source}{}", TENSOR_OPS.0, TENSOR_OPS.1);
        ops.iter().map(|(source, count)| (name(source), *count)).collect()
    }

    fn with_tensor_ops(tensor_pct: Option<f64>, ops: &[(&str, &str)]) -> CounterValues {
        let ops = tensor_ops(ops);
        let fields: Vec<_> = ops.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        of(tensor_pct, &[('f', [1, 1, 4])], &fields)
    }

    #[test]
    fn active_tensor_cores_without_a_counted_operation_are_not_complete() {
        let zero = [("bf16_dst_fp32", "0"), ("fp16", "0"), ("tf32_dst_fp32", "0")];
        let one = &zero[1..2];
        let int = [("fp16", "0"), ("int8", "64")];
        for (tensor_pct, ops, complete) in [
            (Some(55.0), one, false),
            (Some(55.0), &zero, false),
            (Some(0.02), one, false),
            // Loads of constants.
            (Some(0.02), &zero, true),
            (Some(0.0), one, true),
            (Some(55.0), &int, true),
            (None, one, false),
            (None, &zero, true),
        ] {
            let found = with_tensor_ops(tensor_pct, ops);
            let uncounted = tensor_pct.is_some_and(|_| !complete);
            let uncounted = uncounted.then_some(UncountedOperations::TensorCores);
            assert_eq!((found.flops_complete, found.uncounted), (complete, uncounted), "{ops:?}");
            assert_eq!(found.flops["fp32"], 10.0);
        }
    }

    #[test]
    fn a_sum_is_not_counted_beside_its_parts() {
        for ops in [
            &[("fp16", "100")][..],
            &[("fp16", "100"), ("fp16_dst_fp32", "100")],
            &[("fp16", "100"), ("fp16_dst_fp32", "70"), ("fp16_dst_fp16", "30")],
            &[("fp16_dst_fp32", "70"), ("fp16_dst_fp16", "30")],
            &[("fp16", "100"), ("fp16_sparsity_off", "90"), ("fp16_sparsity_on", "10")],
            &[("fp16_sparsity_off", "90"), ("fp16_sparsity_on", "10"), ("fp16_dst_fp32", "100")],
            &[("fp16_dst_fp32_sparsity_off", "90"), ("fp16_dst_fp32_sparsity_on", "10")],
            &[("fp16_dst_fp32", "100"), ("fp16_dst_fp32_sparsity_off", "90")],
        ] {
            let found = with_tensor_ops(Some(9.0), ops);
            assert_eq!(found.flops["tensor_fp16"], 100.0, "{ops:?}");
            assert!(found.flops_complete, "{ops:?}");
        }
    }
}

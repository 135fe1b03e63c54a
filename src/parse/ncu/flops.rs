//! Floating-point operations of a launch by dtype, and those that its counters leave open.
//!
//! Formulas follow the tool's own roofline: a multiply-add is two operations, a packed
//! half-precision one four. From Ampere on, nvcc also loads constants by a half-precision
//! multiply-add, `HFMA2.MMA R0, -RZ, RZ, 1.5, 0`, which the same counter includes.

use std::collections::BTreeMap;

use super::metrics::LaunchMetrics;
use crate::trace::counter::UncountedOperations;

pub(super) const TENSOR_OPS: (&str, &str) = ("sm__ops_path_tensor_src_", ".sum");
/// Multiply-adds of warps that the tensor pipe executed: constants, and arithmetic.
pub(super) const ON_TENSOR_PIPE: &str = "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum";
const THREADS_OF_WARP: f64 = 32.0;
/// Share of possible constants in the other operations, percent, up to which they are left out.
const MAX_CONSTANTS_PCT: f64 = 10.0;

/// The operations of one launch.
#[derive(Debug, Default, PartialEq)]
pub struct LaunchFlops {
    pub by_format: BTreeMap<String, f64>,
    /// True if the operations of all units are in `by_format`.
    pub complete: bool,
    pub uncounted: Option<UncountedOperations>,
}

impl LaunchFlops {
    pub fn of(metrics: &LaunchMetrics, seconds: Option<f64>, tensor_pct: Option<f64>) -> Self {
        let mut by_format = BTreeMap::new();
        for (format, letter) in [("fp32", 'f'), ("fp64", 'd')] {
            if let Some([add, mul, fma]) = arithmetic(metrics, letter, seconds) {
                by_format.insert(format.to_owned(), add + mul + 2.0 * fma);
            }
        }
        let half = HalfPrecision::of(metrics, seconds);
        if let Some(flops) = half.flops {
            by_format.insert("fp16".to_owned(), flops);
        }
        let tensor_counted = add_tensor_ops(metrics, &mut by_format);
        let others: f64 = by_format.values().sum();
        let uncounted = if tensor_pct.is_some_and(|pct| pct > 0.0) && !tensor_counted {
            Some(UncountedOperations::TensorCores)
        } else if half.constants > others * MAX_CONSTANTS_PCT / 100.0 {
            Some(UncountedOperations::HalfPrecision)
        } else {
            None
        };
        let is_known = tensor_counted || tensor_pct.is_some();
        let complete = by_format.contains_key("fp32") && is_known && uncounted.is_none();
        Self { by_format, complete, uncounted }
    }
}

/// Half-precision operations outside tensor cores.
struct HalfPrecision {
    /// `None` where they were not counted, or all of them may be constants.
    flops: Option<f64>,
    /// Operations that may be constants.
    constants: f64,
}

impl HalfPrecision {
    /// Constants are at most the multiply-adds of the tensor pipe; where these were not counted,
    /// all multiply-adds of a kernel without half-precision additions and products.
    fn of(metrics: &LaunchMetrics, seconds: Option<f64>) -> Self {
        let Some([add, mul, fma]) = arithmetic(metrics, 'h', seconds) else {
            return Self { flops: None, constants: 0.0 };
        };
        let constants = match metrics.get(ON_TENSOR_PIPE) {
            Some(warps) => fma.min(warps * THREADS_OF_WARP),
            None if add + mul == 0.0 => fma,
            None => 0.0,
        };
        let flops = 2.0 * (add + mul) + 4.0 * (fma - constants);
        let is_known = constants == 0.0 || flops > 0.0;
        Self { flops: is_known.then_some(flops), constants: 4.0 * constants }
    }
}

/// Adds the operations of tensor cores; returns true if these were counted.
fn add_tensor_ops(metrics: &LaunchMetrics, flops: &mut BTreeMap<String, f64>) -> bool {
    let ops: Vec<(&str, f64)> = metrics
        .between(TENSOR_OPS.0, TENSOR_OPS.1)
        .filter(|(name, _)| !name.starts_with("int"))
        .collect();
    for (name, value) in &ops {
        let whole = name.trim_end_matches("_sparsity_off").trim_end_matches("_sparsity_on");
        // Where the sum over both kinds of sparsity was counted, its parts would count twice.
        if whole == *name || !ops.iter().any(|(other, _)| *other == whole) {
            let format = whole.split("_dst_").next().unwrap_or(whole);
            *flops.entry(format!("tensor_{format}")).or_default() += value;
        }
    }
    !ops.is_empty()
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
    ) -> LaunchFlops {
        let mut metrics = LaunchMetrics::default();
        let mut take = |name: &str, text: &str| metrics.take(name, "", text, DecimalMark::Point);
        for (letter, counts) in arithmetic {
            for (op, count) in ["add", "mul", "fma"].iter().zip(counts) {
                let name = format!("sm__sass_thread_inst_executed_op_{letter}{op}_pred_on.sum");
                take(&name, &count.to_string());
            }
        }
        fields.iter().for_each(|(name, text)| take(name, text));
        LaunchFlops::of(&metrics, None, tensor_pct)
    }

    const HALF: Option<UncountedOperations> = Some(UncountedOperations::HalfPrecision);

    #[test]
    fn constants_are_not_half_precision_operations() {
        // A kernel of f32 with 10 operations, and with few and many constants.
        let with = |constants| of(Some(0.0), &[('f', [2, 2, 498]), ('h', [0, 0, constants])], &[]);
        assert_eq!((with(0).by_format["fp16"], with(0).complete), (0.0, true));
        let few = with(25);
        assert_eq!((few.by_format.get("fp16"), few.by_format["fp32"]), (None, 1000.0));
        assert_eq!((few.complete, few.uncounted), (true, None));
        let many = with(26);
        assert_eq!((many.by_format["fp32"], many.complete, many.uncounted), (1000.0, false, HALF));
        let copy = of(Some(0.0), &[('f', [0, 0, 0]), ('h', [0, 0, 1])], &[]);
        assert_eq!((copy.complete, copy.uncounted), (false, HALF));
    }

    #[test]
    fn half_precision_arithmetic_counts_as_it_is() {
        let half = of(Some(0.0), &[('f', [0, 0, 0]), ('h', [1, 2, 3])], &[]);
        assert_eq!((half.by_format["fp16"], half.complete), (18.0, true));
        // Of 3 x 32 multiply-adds 2 x 32 ran on the tensor pipe, where constants are loaded.
        let some = of(Some(0.0), &[('f', [0, 0, 0]), ('h', [0, 0, 96])], &[(ON_TENSOR_PIPE, "2")]);
        assert_eq!((some.by_format["fp16"], some.uncounted), (128.0, HALF));
        let none = of(Some(0.0), &[('f', [0, 0, 0]), ('h', [0, 0, 96])], &[(ON_TENSOR_PIPE, "0")]);
        assert_eq!((none.by_format["fp16"], none.complete), (384.0, true));
    }

    #[test]
    fn a_sum_over_sparsity_is_not_counted_beside_its_parts() {
        let ops = "sm__ops_path_tensor_src_bf16_dst_fp32";
        let (whole, off, on) = (
            format!("{ops}.sum"),
            format!("{ops}_sparsity_off.sum"),
            format!("{ops}_sparsity_on.sum"),
        );
        let both = of(None, &[], &[(&whole, "100"), (&off, "90"), (&on, "10")]);
        assert_eq!(both.by_format["tensor_bf16"], 100.0);
        let parts = of(None, &[], &[(&off, "90"), (&on, "10")]);
        assert_eq!(parts.by_format["tensor_bf16"], 100.0);
    }
}

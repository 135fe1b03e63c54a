//! FLOPs and bytes of a framework's operators, from the shapes and types of their inputs.
//!
//! A multiply-add is two FLOPs; attention counts both products over all pairs of positions; if it
//! is called as causal, over the pairs of a query and the keys that it attends to. Pairs that a
//! mask hides count, since its values are not recorded. Bytes count operands and result, each once;
//! products by group have none. An operator without a formula here has neither FLOPs nor bytes.

use llmprof_core::trace::{framework::OperatorSignature, gemm::GemmShape};

use super::kinds::base;

/// FLOPs above which a call is a mistake of the trace: an hour of the fastest device.
const MAX_FLOPS: u64 = 1 << 62;

/// Work of one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OperatorWork {
    pub flops: u64,
    /// 0 if the type of the elements or the part of the operands that is read is unknown.
    pub bytes: u64,
}

/// Type of the first tensor of a signature, in the words of the other tables.
pub fn dtype(of: &OperatorSignature) -> Option<&'static str> {
    let first = of.shapes.iter().position(|it| !it.is_empty())?;
    element(of.types.get(first)?).map(|(name, _)| name)
}

/// Name and bytes of an element type as PyTorch writes it.
fn element(text: &str) -> Option<(&'static str, u64)> {
    Some(match text {
        "c10::BFloat16" => ("bf16", 2),
        "c10::Half" => ("f16", 2),
        "float" => ("f32", 4),
        "double" => ("f64", 8),
        "long int" | "long" => ("i64", 8),
        "int" => ("i32", 4),
        "signed char" => ("i8", 1),
        "unsigned char" => ("u8", 1),
        "bool" => ("bool", 1),
        it if it.starts_with("c10::Float8") => ("f8", 1),
        _ => return None,
    })
}

/// FLOPs, and elements of operands and result.
type Counts = (u64, u64);

/// Work of a call; `None` without a formula, or if the shapes do not fit it.
pub fn work(of: &OperatorSignature) -> Option<OperatorWork> {
    let shape = |at: usize| of.shapes.get(at).map(Vec::as_slice).filter(|it| !it.is_empty());
    let (flops, elements) = match base(&of.name) {
        "mm" => product(shape(0)?, shape(1)?),
        "addmm" => with_operand(product(shape(1)?, shape(2)?), shape(0)),
        "bmm" => product(shape(0)?, shape(1)?),
        "baddbmm" => with_operand(product(shape(1)?, shape(2)?), shape(0)),
        "linear" => with_operand(linear(shape(0)?, shape(1)?), shape(2)),
        "_grouped_mm" => grouped(shape(0)?, shape(1)?),
        "scaled_dot_product_attention"
        | "_scaled_dot_product_attention_math"
        | "_scaled_dot_product_flash_attention"
        | "_scaled_dot_product_efficient_attention"
        | "_scaled_dot_product_cudnn_attention"
        | "_cudnn_attention_forward"
        | "_scaled_dot_product_fused_attention_overrideable" => {
            attention(shape(0)?, shape(1)?, shape(2)?, [0, 1, 2, 3], causal(of))
        }
        // Positions come before heads.
        "_flash_attention_forward" | "_efficient_attention_forward" => {
            attention(shape(0)?, shape(1)?, shape(2)?, [0, 2, 1, 3], causal(of))
        }
        _ => None,
    }?;
    let bytes = dtype(of).and_then(|_| {
        let first = of.shapes.iter().position(|it| !it.is_empty())?;
        element(of.types.get(first)?)
    });
    let bytes = bytes.map_or(Some(0), |(_, size)| elements.checked_mul(size))?;
    (flops <= MAX_FLOPS && bytes <= MAX_FLOPS).then_some(OperatorWork { flops, bytes })
}

/// The product of a call; `None` for other operators, and if the shapes do not fit it.
pub fn product_shape(of: &OperatorSignature) -> Option<GemmShape> {
    let flops = work(of)?.flops;
    let (left, right) = match base(&of.name) {
        "mm" | "bmm" | "linear" | "_grouped_mm" => (0, 1),
        "addmm" | "baddbmm" => (1, 2),
        _ => return None,
    };
    let (a, b) = (of.shapes.get(left)?, of.shapes.get(right)?);
    let right_transposed = base(&of.name) == "linear";
    let n = if right_transposed { b.first()? } else { b.last()? };
    let (k, rows) = a.split_last()?;
    // A batch of products is one with the same batch on both sides.
    let (batch, m) = match (rows, b.len()) {
        ([batch, m], 3) => (*batch, *m),
        (rows, _) => (1, times(rows)?),
    };
    let dtype = |at: usize| of.types.get(at).and_then(|it| element(it)).map_or("", |it| it.0);
    let shape = GemmShape {
        m,
        n: *n,
        k: *k,
        batch,
        left_type: dtype(left).into(),
        right_type: dtype(right).into(),
        out_type: dtype(left).into(),
        right_transposed,
        ..GemmShape::default()
    };
    (shape.flops() == flops).then_some(shape)
}

fn times(sides: &[u64]) -> Option<u64> {
    sides.iter().try_fold(1_u64, |all, side| all.checked_mul(*side))
}

fn sum(parts: &[u64]) -> Option<u64> {
    parts.iter().try_fold(0_u64, |all, part| all.checked_add(*part))
}

/// `[m, k] x [k, n]`, or a batch of them.
fn product(a: &[u64], b: &[u64]) -> Option<Counts> {
    let (batch, [m, k], [inner, n]) = match (a, b) {
        ([m, k], [inner, n]) => (1, [*m, *k], [*inner, *n]),
        ([batch, m, k], [same, inner, n]) if batch == same => (*batch, [*m, *k], [*inner, *n]),
        _ => return None,
    };
    if k != inner {
        return None;
    }
    let elements = sum(&[times(&[batch, m, k])?, times(&[batch, k, n])?, times(&[batch, m, n])?])?;
    Some((times(&[2, batch, m, k, n])?, elements))
}

/// `[.., k] x [n, k]`.
fn linear(input: &[u64], weight: &[u64]) -> Option<Counts> {
    let ((k, rows), [n, inner]) = (input.split_last()?, weight) else { return None };
    if k != inner {
        return None;
    }
    let rows = times(rows)?;
    let elements = sum(&[times(&[rows, *k])?, times(&[*n, *k])?, times(&[rows, *n])?])?;
    Some((times(&[2, rows, *k, *n])?, elements))
}

/// Rows of `a` are each multiplied by the matrix of their group. Its bytes are unknown: matrices of
/// groups without rows are not read, and the sizes of the groups are data.
fn grouped(a: &[u64], b: &[u64]) -> Option<Counts> {
    match (a, b) {
        ([m, k], [groups, inner, n]) if k == inner => {
            times(&[*groups, *k, *n])?;
            Some((times(&[2, *m, *k, *n])?, 0))
        }
        ([_, _, _], [_, _, _]) => product(a, b),
        // Other forms depend on the sizes of the groups, which are data.
        _ => None,
    }
}

/// The keys that a query attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attended {
    All,
    /// The first query attends to the first key, each further one to one key more.
    FromFirst,
    /// The last query attends to all keys, each one before it to one key less.
    ToLast,
}

impl Attended {
    /// Pairs of a query and a key.
    fn pairs(self, queries: u64, keys: u64) -> Option<u64> {
        let triangle = |side: u64| Some(times(&[side, side.checked_add(1)?])? / 2);
        let all = times(&[queries, keys]);
        match self {
            Self::All => all,
            Self::FromFirst if queries <= keys => triangle(queries),
            Self::FromFirst => sum(&[triangle(keys)?, times(&[queries - keys, keys])?]),
            Self::ToLast if queries <= keys => {
                all?.checked_sub(triangle(queries.saturating_sub(1))?)
            }
            Self::ToLast => triangle(keys),
        }
    }
}

/// The keys attended to, by the values of a call; all if these were not recorded.
fn causal(of: &OperatorSignature) -> Attended {
    let (at, causal) = match base(&of.name) {
        "scaled_dot_product_attention"
        | "_scaled_dot_product_attention_math"
        | "_scaled_dot_product_fused_attention_overrideable" => (5, Attended::FromFirst),
        "_scaled_dot_product_flash_attention" => (4, Attended::FromFirst),
        "_scaled_dot_product_efficient_attention" | "_scaled_dot_product_cudnn_attention" => {
            (6, Attended::FromFirst)
        }
        "_cudnn_attention_forward" => (10, Attended::FromFirst),
        "_flash_attention_forward" => (8, Attended::ToLast),
        "_efficient_attention_forward" => (9, Attended::ToLast),
        _ => return Attended::All,
    };
    match of.values.get(at).map(String::as_str) {
        Some("True") => causal,
        // Types of masks: from the upper left, and to the lower right.
        Some("1") => Attended::FromFirst,
        Some("2") => Attended::ToLast,
        _ => Attended::All,
    }
}

/// Both products of attention; `sides`: where batch, heads, positions and width are.
fn attention(
    q: &[u64],
    k: &[u64],
    v: &[u64],
    sides: [usize; 4],
    attended: Attended,
) -> Option<Counts> {
    let of = |shape: &[u64]| -> Option<[u64; 4]> {
        (shape.len() == 4).then(|| sides.map(|at| shape[at]))
    };
    let ([batch, heads, queries, width], [same, key_heads, keys, key_width], value) =
        (of(q)?, of(k)?, of(v)?);
    let is_valid = batch == same
        && width == key_width
        && value[0] == batch
        && value[1] == key_heads
        && value[2] == keys
        && key_heads > 0
        && heads % key_heads == 0;
    if !is_valid {
        return None;
    }
    let pairs = attended.pairs(queries, keys)?;
    let flops = times(&[2, batch, heads, pairs, width.checked_add(value[3])?])?;
    let result = times(&[batch, heads, queries, value[3]])?;
    let elements = sum(&[times(q)?, times(k)?, times(v)?, result])?;
    Some((flops, elements))
}

/// Adds an operand that takes no product.
fn with_operand(counts: Option<Counts>, operand: Option<&[u64]>) -> Option<Counts> {
    let (flops, elements) = counts?;
    Some((flops, sum(&[elements, operand.map_or(Some(0), times)?])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, shapes: &[&[u64]]) -> Option<(u64, u64)> {
        let shapes: Vec<Vec<u64>> = shapes.iter().map(|it| it.to_vec()).collect();
        let types = vec!["c10::BFloat16".to_owned(); shapes.len()];
        let found = work(&OperatorSignature { name: name.into(), shapes, types, values: vec![] })?;
        Some((found.flops, found.bytes))
    }

    #[test]
    fn products_are_two_flops_per_multiply_add() {
        assert_eq!(of("aten::mm", &[&[2, 3], &[3, 5]]), Some((60, 62)));
        assert_eq!(of("aten::addmm", &[&[5], &[2, 3], &[3, 5]]), Some((60, 72)));
        assert_eq!(of("aten::bmm", &[&[4, 2, 3], &[4, 3, 5]]), Some((240, 248)));
        assert_eq!(of("aten::baddbmm", &[&[4, 2, 5], &[4, 2, 3], &[4, 3, 5]]), Some((240, 328)));
        assert_eq!(of("aten::linear", &[&[7, 2, 3], &[5, 3]]), Some((420, 254)));
        assert_eq!(of("aten::_grouped_mm", &[&[6, 3], &[2, 3, 5], &[2]]), Some((180, 0)));
    }

    #[test]
    fn a_product_has_the_sides_of_its_operands() {
        let of = |name: &str, shapes: &[&[u64]]| {
            let shapes: Vec<Vec<u64>> = shapes.iter().map(|it| it.to_vec()).collect();
            let types = vec!["c10::BFloat16".to_owned(); shapes.len()];
            let it = product_shape(&OperatorSignature {
                name: name.into(),
                shapes,
                types,
                values: vec![],
            })?;
            assert_eq!(it.left_type, "bf16");
            Some(([it.batch, it.m, it.n, it.k], it.right_transposed))
        };
        let product = |sides| Some((sides, false));
        assert_eq!(of("aten::mm", &[&[2, 3], &[3, 5]]), product([1, 2, 5, 3]));
        assert_eq!(of("aten::addmm", &[&[5], &[2, 3], &[3, 5]]), product([1, 2, 5, 3]));
        assert_eq!(of("aten::bmm", &[&[4, 2, 3], &[4, 3, 5]]), product([4, 2, 5, 3]));
        assert_eq!(of("aten::linear", &[&[7, 2, 3], &[5, 3]]), Some(([1, 14, 5, 3], true)));
        assert_eq!(of("aten::_grouped_mm", &[&[6, 3], &[2, 3, 5], &[2]]), product([1, 6, 5, 3]));
        assert_eq!(of("aten::mm", &[&[2, 3], &[4, 5]]), None);
        assert_eq!(of("aten::softmax", &[&[2, 3]]), None);
    }

    #[test]
    fn attention_counts_both_products_and_grouped_heads() {
        let (q, k): (&[u64], &[u64]) = (&[1, 4, 6, 8], &[1, 2, 10, 8]);
        let flops = 2 * 4 * 6 * 10 * (8 + 8);
        for name in ["scaled_dot_product_attention", "_scaled_dot_product_flash_attention"] {
            let found = of(&format!("aten::{name}"), &[q, k, k]);
            assert_eq!(found, Some((flops, 2 * (192 + 160 + 160 + 192))), "{name}");
        }
        let (q, k): (&[u64], &[u64]) = (&[1, 6, 4, 8], &[1, 10, 2, 8]);
        let found = of("aten::_flash_attention_forward", &[q, k, k]);
        assert_eq!(found.map(|it| it.0), Some(flops));
    }

    #[test]
    fn causal_attention_counts_the_pairs_of_a_query_and_the_keys_that_it_attends_to() {
        let flops = |name: &str, at: usize, value: &str| {
            let mut values = vec![String::new(); 13];
            values[at] = value.into();
            let shapes = vec![vec![1, 2, 6, 8]; 3];
            let of = OperatorSignature { name: name.into(), shapes, values, ..Default::default() };
            work(&of).unwrap().flops
        };
        let (all, causal) = (2 * 2 * 36 * 16, 2 * 2 * 21 * 16);
        for (name, at) in [
            ("aten::scaled_dot_product_attention", 5),
            ("aten::_scaled_dot_product_attention_math", 5),
            ("aten::_scaled_dot_product_fused_attention_overrideable", 5),
            ("aten::_scaled_dot_product_flash_attention", 4),
            ("aten::_scaled_dot_product_efficient_attention", 6),
            ("aten::_scaled_dot_product_cudnn_attention", 6),
            ("aten::_cudnn_attention_forward", 10),
        ] {
            let found = [flops(name, at, "True"), flops(name, at, "False"), flops(name, 0, "True")];
            assert_eq!(found, [causal, all, all], "{name}");
        }
        // Here, 2 positions of 6 heads.
        let (all, causal) = (2 * 6 * 4 * 16, 2 * 6 * 3 * 16);
        let flash = |value| flops("aten::_flash_attention_forward", 8, value);
        assert_eq!([flash("True"), flash("False")], [causal, all]);
        let efficient = |value| flops("aten::_efficient_attention_forward", 9, value);
        assert_eq!(["0", "1", "2"].map(efficient), [all, causal, causal]);
    }

    #[test]
    fn pairs_are_those_of_the_mask() {
        for (queries, keys) in (0..7).flat_map(|q| (0..7).map(move |k| (q, k))) {
            let count = |attends: &dyn Fn(i64, i64) -> bool| {
                let pairs = (0..queries).flat_map(|q| (0..keys).map(move |k| (q, k)));
                Some(pairs.filter(|it| attends(it.0, it.1)).count() as u64)
            };
            let pairs = |it: Attended| it.pairs(queries as u64, keys as u64);
            assert_eq!(pairs(Attended::All), count(&|_, _| true));
            assert_eq!(pairs(Attended::FromFirst), count(&|q, k| k <= q));
            let shift = keys - queries;
            assert_eq!(pairs(Attended::ToLast), count(&|q, k| k <= q + shift));
        }
    }

    #[test]
    fn shapes_that_do_not_fit_have_no_work_and_absurd_ones_neither() {
        assert_eq!(of("aten::mm", &[&[2, 3], &[4, 5]]), None);
        assert_eq!(of("aten::mm", &[&[2, 3]]), None);
        assert_eq!(of("aten::mm", &[&[u64::MAX, 3], &[3, 5]]), None);
        assert_eq!(of("aten::bmm", &[&[1 << 40, 1 << 20, 1], &[1 << 40, 1, 1 << 20]]), None);
        assert_eq!(
            of("aten::_flash_attention_forward", &[&[6, 4, 8], &[6, 4, 8], &[6, 4, 8]]),
            None
        );
        assert_eq!(of("aten::add", &[&[2, 3], &[2, 3]]), None);
        let untyped = OperatorSignature {
            name: "aten::mm".into(),
            shapes: vec![vec![2, 3], vec![3, 5]],
            ..OperatorSignature::default()
        };
        assert_eq!(work(&untyped), Some(OperatorWork { flops: 60, bytes: 0 }));
    }
}

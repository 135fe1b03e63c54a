//! Products of matrices.

use llmprof_core::trace::{framework::OperatorSignature, gemm::GemmShape};

use super::{Counts, element, shape, times, work};
use crate::operators::kinds::base;

/// True for products with a transposed weight: `[.., k] x [n, k]`. `gemm_a16w16` is AITER's.
pub fn is_linear(name: &str) -> bool {
    ["linear", "gemm_a16w16"].contains(&base(name))
}

/// Inputs of a product: left, right, and one that is added.
fn inputs(name: &str) -> Option<(usize, usize, Option<usize>)> {
    Some(match base(name) {
        "mm" | "bmm" | "_grouped_mm" => (0, 1, None),
        "addmm" | "baddbmm" => (1, 2, Some(0)),
        _ if is_linear(name) => (0, 1, Some(2)),
        _ => return None,
    })
}

/// FLOPs and bytes of a product.
pub fn counts(of: &OperatorSignature) -> Option<Counts> {
    let (left, right, added) = inputs(&of.name)?;
    let (a, b) = (shape(of, left)?, shape(of, right)?);
    let (flops, result) = match base(&of.name) {
        "_grouped_mm" => grouped(a, b)?,
        _ if is_linear(&of.name) => linear(a, b)?,
        _ => product(a, b)?,
    };
    // Without a known result the operands that are read are unknown, too.
    let Some(result) = result else { return Some(Counts::flops(flops)) };
    let operands = Counts::flops(flops).inputs(of, &[left, right], 1)?;
    Some(operands.inputs(of, added.as_slice(), 1)?.elements(result, left))
}

/// The product of a call; `None` for other operators, and if the shapes do not fit it.
pub fn product_shape(of: &OperatorSignature) -> Option<GemmShape> {
    let (left, right, _) = inputs(&of.name)?;
    let flops = work(of)?.flops;
    let (a, b) = (of.shapes.get(left)?, of.shapes.get(right)?);
    let right_transposed = is_linear(&of.name);
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

/// FLOPs, and elements of the result if its operands are read as a whole.
type Product = (u64, Option<u64>);

/// `[m, k] x [k, n]`, or a batch of them.
fn product(a: &[u64], b: &[u64]) -> Option<Product> {
    let (batch, [m, k], [inner, n]) = match (a, b) {
        ([m, k], [inner, n]) => (1, [*m, *k], [*inner, *n]),
        ([batch, m, k], [same, inner, n]) if batch == same => (*batch, [*m, *k], [*inner, *n]),
        _ => return None,
    };
    if k != inner {
        return None;
    }
    Some((times(&[2, batch, m, k, n])?, Some(times(&[batch, m, n])?)))
}

/// `[.., k] x [n, k]`.
fn linear(input: &[u64], weight: &[u64]) -> Option<Product> {
    let ((k, rows), [n, inner]) = (input.split_last()?, weight) else { return None };
    if k != inner {
        return None;
    }
    let rows = times(rows)?;
    Some((times(&[2, rows, *k, *n])?, Some(times(&[rows, *n])?)))
}

/// Rows of `a` are each multiplied by the matrix of their group. Its bytes are unknown: matrices of
/// groups without rows are not read, and the sizes of the groups are data.
fn grouped(a: &[u64], b: &[u64]) -> Option<Product> {
    match (a, b) {
        ([m, k], [groups, inner, n]) if k == inner => {
            times(&[*groups, *k, *n])?;
            Some((times(&[2, *m, *k, *n])?, None))
        }
        ([_, _, _], [_, _, _]) => product(a, b),
        // Other forms depend on the sizes of the groups, which are data.
        _ => None,
    }
}

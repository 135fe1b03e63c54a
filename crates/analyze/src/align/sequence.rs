//! Two sequences of kernels side by side: common places in order, and places of one side only.
//!
//! Computes the longest common subsequence (Hunt and McIlroy, 1976) between the common head and
//! tail.

/// One place of the alignment: its position in the mock's sequence and in the other.
pub type Pair = (Option<usize>, Option<usize>);

/// Maximum size of the table; beyond it the whole middle counts as changed.
const MAX_CELLS: usize = 16_000_000;

/// Aligns two sequences.
pub fn align(a: &[u32], b: &[u32]) -> Vec<Pair> {
    let same = |(a, b): &(&u32, &u32)| a == b;
    let head = a.iter().zip(b).take_while(same).count();
    let tail = a[head..].iter().rev().zip(b[head..].iter().rev()).take_while(same).count();
    let (from, to) = (&a[head..a.len() - tail], &b[head..b.len() - tail]);
    let mut pairs: Vec<Pair> = (0..head).map(|at| (Some(at), Some(at))).collect();
    pairs.extend(
        middle(from, to).into_iter().map(|(a, b)| (a.map(|at| at + head), b.map(|at| at + head))),
    );
    pairs.extend((0..tail).map(|at| (Some(a.len() - tail + at), Some(b.len() - tail + at))));
    pairs
}

fn middle(a: &[u32], b: &[u32]) -> Vec<Pair> {
    let width = b.len() + 1;
    if (a.len() + 1).saturating_mul(width) > MAX_CELLS {
        return (0..a.len())
            .map(|at| (Some(at), None))
            .chain((0..b.len()).map(|at| (None, Some(at))))
            .collect();
    }
    let mut longest = vec![0u32; (a.len() + 1) * width];
    for (i, j) in (0..a.len()).rev().flat_map(|i| (0..b.len()).rev().map(move |j| (i, j))) {
        longest[i * width + j] = if a[i] == b[j] {
            longest[(i + 1) * width + j + 1] + 1
        } else {
            longest[(i + 1) * width + j].max(longest[i * width + j + 1])
        };
    }
    let (mut i, mut j, mut pairs) = (0, 0, Vec::new());
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            pairs.push((Some(i), Some(j)));
            (i, j) = (i + 1, j + 1);
        } else if j == b.len()
            || i < a.len() && longest[(i + 1) * width + j] >= longest[i * width + j + 1]
        {
            pairs.push((Some(i), None));
            i += 1;
        } else {
            pairs.push((None, Some(j)));
            j += 1;
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn missing_extra_and_moved_places_are_located() {
        assert_eq!(
            align(&[1, 3], &[1, 2, 3]),
            [(Some(0), Some(0)), (None, Some(1)), (Some(1), Some(2))]
        );
        assert_eq!(
            align(&[2, 1], &[1, 2]).iter().filter(|(a, b)| a.is_some() && b.is_some()).count(),
            1
        );
    }

    proptest! {
        #[test]
        fn every_place_occurs_once_in_order_and_pairs_are_equal(
            a in prop::collection::vec(0u32..4, 0..12),
            b in prop::collection::vec(0u32..4, 0..12)
        ) {
            let pairs = align(&a, &b);
            prop_assert!(pairs.iter().filter_map(|it| it.0).eq(0..a.len()));
            prop_assert!(pairs.iter().filter_map(|it| it.1).eq(0..b.len()));
            prop_assert!(pairs.iter().all(|it| it.0.zip(it.1).is_none_or(|(x, y)| a[x] == b[y])));
        }
    }
}

//! Packed rows against the rows that were put in.

use proptest::prelude::*;

use super::*;

/// Values as captures have them, and the extremes.
fn value() -> impl Strategy<Value = i64> {
    let extreme = prop::sample::select(vec![i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX]);
    prop_oneof![
        4 => (any::<i64>(), 0u32..64).prop_map(|(value, shift)| value >> shift),
        1 => extreme,
    ]
}

/// Columns that increase by little, decrease, repeat or jump.
fn rows() -> impl Strategy<Value = Vec<[i64; 4]>> {
    let column = (value(), -3i64..4000, 0i64..300, prop::collection::vec(value(), 1..5), 0usize..4);
    (prop::collection::vec(column, 4), 0usize..900).prop_map(|(columns, count)| {
        let of = |at: usize, column: usize| {
            let (base, step, spread, jumps, kind) = &columns[column];
            let noise = (at as i64).wrapping_mul(7919) % (spread + 1);
            let near = base.wrapping_add(step.wrapping_mul(at as i64)).wrapping_add(noise);
            match kind {
                0 => near,
                1 => base.wrapping_sub(near),
                2 => jumps[at % jumps.len()],
                _ if at.is_multiple_of(97) => jumps[at % jumps.len()],
                _ => near,
            }
        };
        (0..count).map(|at| std::array::from_fn(|column| of(at, column))).collect()
    })
}

proptest! {
    #[test]
    fn packed_rows_are_exactly_those_that_were_put_in(rows in rows()) {
        let packed: PackedRows<4> = rows.iter().copied().collect();
        prop_assert_eq!(packed.len(), rows.len());
        prop_assert_eq!(packed.iter().len(), rows.len());
        prop_assert_eq!(packed.iter().collect::<Vec<_>>(), rows.clone());
        let mut reader = packed.reader();
        for (at, row) in rows.iter().enumerate().rev().step_by(7) {
            prop_assert_eq!(packed.get(at), *row);
            prop_assert_eq!(reader.get(at), *row);
        }
    }

    #[test]
    fn matching_rows_are_those_that_a_filter_of_all_rows_gives(
        rows in rows(), column in 0usize..4, divisor in 1i64..400
    ) {
        let packed: PackedRows<4> = rows.iter().copied().collect();
        let matches = |value: i64| value % divisor == 0;
        let wanted = rows.into_iter().enumerate().filter(|(_, row)| matches(row[column]));
        prop_assert!(packed.matching(column, matches).eq(wanted));
    }

    #[test]
    fn parts_are_all_rows_in_order_and_appended_parts_are_the_whole(
        rows in rows(), parts in 1usize..6, more in rows()
    ) {
        let packed: PackedRows<4> = rows.iter().copied().collect();
        let apart: Vec<PackedRows<4>> = packed.parts(parts).map(Iterator::collect).collect();
        prop_assert!(apart.len() <= parts);
        let mut whole = PackedRows::default();
        apart.into_iter().for_each(|part| whole.append(part));
        prop_assert_eq!(whole.iter().collect::<Vec<_>>(), rows.clone());
        whole.append(more.iter().copied().collect());
        let mut all = [rows, more].concat();
        prop_assert_eq!(whole.iter().collect::<Vec<_>>(), all.clone());
        whole.sort();
        all.sort_by_key(|row| row[0]);
        prop_assert_eq!(whole.iter().collect::<Vec<_>>(), all);
    }

    #[test]
    fn packed_rows_are_sorted_by_the_first_column_and_equal_ones_keep_their_order(rows in rows()) {
        let (mut packed, mut sorted): (PackedRows<4>, _) = (rows.iter().copied().collect(), rows);
        packed.sort();
        sorted.sort_by_key(|row| row[0]);
        prop_assert_eq!(packed.iter().collect::<Vec<_>>(), sorted.clone());
        let mut reader = packed.reader();
        for row in sorted.iter().step_by(5) {
            for wanted in [row[0], row[0].wrapping_add(1), row[0].wrapping_sub(1)] {
                let first = sorted.iter().position(|row| row[0] == wanted);
                prop_assert_eq!(reader.find(wanted), first);
            }
        }
    }
}

#[test]
fn values_of_every_number_of_bits_are_exact() {
    for bits in 0..64 {
        let mask = if bits == 0 { 0 } else { i64::MAX >> (63 - bits) };
        let value = |at: i64| if at % 3 == 0 { mask } else { at & mask };
        let rows: Vec<[i64; 1]> = (0..BLOCK as i64).map(|at| [value(at)]).collect();
        let packed: PackedRows<1> = rows.iter().copied().collect();
        assert!(packed.iter().eq(rows), "{bits} bits");
    }
}

#[test]
fn rows_far_from_their_place_are_sorted() {
    let count = 5 * WINDOW as i64;
    let mut packed: PackedRows<1> = (0..count).map(|at| [(at * 7919) % count]).collect();
    packed.sort();
    assert!(packed.iter().eq((0..count).map(|at| [at])));
}

#[test]
fn no_rows_are_empty() {
    let mut packed = PackedRows::<2>::default();
    packed.sort();
    assert!(packed.is_empty() && packed.iter().next().is_none());
    assert_eq!(packed.reader().find(0), None);
}

#[test]
fn rows_at_a_steady_pace_take_less_than_a_byte() {
    let packed: PackedRows<2> =
        (0..100 * BLOCK as i64).map(|at| [at * 1_000 + at % 2, 7]).collect();
    let bytes: usize = packed.chunks.iter().map(Vec::len).sum();
    assert!(bytes < packed.len(), "{bytes} bytes of {} rows", packed.len());
}

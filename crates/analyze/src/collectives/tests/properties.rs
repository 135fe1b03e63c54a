//! Properties of programs with any delays, clocks and losses.

use proptest::prelude::*;

use super::*;

/// Delays by operation and rank, and a transfer for each operation.
fn operations(ranks: usize) -> impl Strategy<Value = Vec<(Vec<i64>, i64)>> {
    prop::collection::vec((prop::collection::vec(0..40_000_i64, ranks), 1..30_000_i64), 8..40)
}

fn program(of: &[(Vec<i64>, i64)]) -> Program {
    let operation = |(at, (delays, transfer)): (usize, &(Vec<i64>, i64))| {
        all_reduce(at as i64 * 100_000, delays, *transfer).numbered(at as u64)
    };
    Program::of(of.iter().enumerate().map(operation))
}

proptest! {
    #[test]
    fn wait_and_transfer_add_up_to_the_time_of_each_rank(of in operations(3)) {
        let program = program(&of);
        let tables = program.tables();
        for (at, rank) in tables.ranks.iter().enumerate() {
            let late = |delays: &[i64]| delays.iter().max().unwrap() - delays[at];
            let wait: i64 = of.iter().map(|(delays, _)| late(delays)).sum();
            let transfer: i64 = of.iter().map(|it| it.1).sum();
            let ns = |ms: Option<f64>| (ms.unwrap() * 1e6).round() as i64;
            prop_assert_eq!((ns(rank.wait_ms), ns(rank.transfer_ms)), (wait, transfer));
            prop_assert_eq!(ns(Some(rank.kernel_ms)), wait + transfer);
        }
        for it in tables.waits.values() {
            prop_assert_eq!(it.wait_ns + it.transfer_ns, it.ns);
            prop_assert_eq!(it.joined, it.launches);
        }
        let last: u64 = tables.ranks.iter().filter_map(|it| it.times_last).sum();
        let waits = |(delays, transfer): &&(Vec<i64>, i64)| {
            let skew = delays.iter().max().unwrap() - delays.iter().min().unwrap();
            skew > (skew + transfer) / 10
        };
        prop_assert_eq!(last, of.iter().filter(waits).count() as u64);
    }

    #[test]
    fn offsets_of_clocks_are_recovered(
        of in operations(3), offsets in prop::collection::vec(-1_i64 << 50..1 << 50, 2)
    ) {
        let mut shifted = program(&of);
        shifted.offsets_ns = vec![0, offsets[0], offsets[1]];
        let tables = shifted.tables();
        let expected = program(&of).tables();
        for (rank, offset) in tables.ranks[1..].iter().zip(&offsets) {
            let found = rank.clock_offset_us.map_or(0, |us| (us * 1e3).round() as i64);
            prop_assert!((found - offset).abs() <= 50_000, "{} {}", found, offset);
        }
        // Clocks within 50 us count as one.
        if offsets.iter().all(|it| it.abs() > 50_000) {
            prop_assert_eq!(&tables.records, &expected.records);
        }
    }

    #[test]
    fn what_is_paired_is_one_operation_whatever_is_missing(
        of in operations(2), missing in prop::collection::vec((0..40_usize, 0..2_usize), 0..6),
        numbered in any::<bool>()
    ) {
        let mut program = program(&of);
        for (at, rank) in missing {
            let count = program.operations.len();
            let it = &mut program.operations[at % count];
            if it.delay_ns.iter().flatten().count() == 2 {
                it.delay_ns[rank] = None;
            }
        }
        if !numbered {
            program.operations.iter_mut().for_each(|it| it.sequence = None);
        }
        let trace = program.trace();
        for group in members::groups(&Capture::of(&trace)) {
            let mut joined = join::join(&group);
            let clocks = clocks::align(&group, &mut joined);
            for row in joined.iter() {
                let slot = |member: usize| {
                    group.members[member].launches[row[member] as usize].start_ns / 100_000
                };
                prop_assert_eq!(slot(0), slot(1));
            }
            prop_assert!(clocks.iter().all(|it| it.ns == 0));
        }
    }
}

//! Clocks of several hosts, and groups that only their times separate.

use super::*;

#[test]
fn clocks_of_one_host_are_left_alone_and_others_are_aligned() {
    let ranks =
        |offset: i64| Program { offsets_ns: vec![0, offset], ..Program::of(late(20, 2, |_| 1)) };
    let offset = |offset: i64| {
        let tables = ranks(offset).tables();
        assert!(near(tables.records[0].transfer_us, 20.0), "{offset}: {tables:?}");
        tables.ranks[1].clock_offset_us
    };
    assert_eq!(offset(0), None);
    assert_eq!(offset(7_000_000), Some(7_000.0));
    assert_eq!(offset(-3_600_000_000_000), Some(-3_600_000_000.0));
    // Without numbers, another offset is another pairing.
    let mut unnumbered = ranks(7_000_000);
    unnumbered.operations.iter_mut().for_each(|it| it.sequence = None);
    assert_eq!(unnumbered.problem(), NotJoined::UnknownClocks);
    let few = Program { offsets_ns: vec![0, 7_000_000], ..Program::of(late(5, 2, |_| 1)) };
    assert_eq!(few.problem(), NotJoined::UnknownClocks);
}

#[test]
fn all_to_all_operations_align_clocks_and_a_rank_may_end_before_another_starts() {
    let mut trace =
        Program { offsets_ns: vec![0, 7_000_000], ..Program::of(late(20, 2, |_| 1)) }.trace();
    trace.collectives.calls.iter_mut().for_each(|it| it.kind = CollectiveKind::AllToAll);
    let tables = collectives(&Capture::of(&trace));
    assert_eq!(tables.ranks[1].clock_offset_us, Some(7_000.0));
    assert_eq!(tables.records[0].kind, CollectiveKind::AllToAll);
    // 2 MiB in 20 us, half of it on the bus.
    assert!(near(tables.records[0].bus_bytes_per_s, 52_428_800_000.0), "{tables:?}");
    // An operation whose first rank has nothing to wait for.
    let early = |it: &mut llmprof_core::trace::kernel::Kernel| {
        if it.global_pid == 1 << 24 && it.correlation_id == 3 {
            it.end_ns = it.start_ns + 1_000;
        }
    };
    trace.kernels = trace.kernels.map(|_, it| early(it));
    assert_eq!(collectives(&Capture::of(&trace)).groups[0].joined, 20);
}

#[test]
fn an_offset_that_spreads_as_widely_as_the_operations_take_is_refused() {
    let jitter = |at: i64| [0, at % 7 * 9_000];
    let mut program = Program {
        offsets_ns: vec![0, 7_000_000],
        jitter_ns: (0..40).flat_map(jitter).collect(),
        ..Program::of(late(40, 2, |_| 1))
    };
    assert!(matches!(program.problem(), NotJoined::Spread { spread_ns: 27_000, .. }));
    program.jitter_ns.clear();
    assert_eq!(program.tables().groups[0].joined, 40);
}

#[test]
fn independent_groups_without_a_record_are_separated_by_their_ends() {
    let program = |second_ns: i64, count: u64| {
        let group = |ranks: [usize; 2], from_ns: i64| {
            late(count, 4, move |_| ranks[1]).into_iter().map(move |it| {
                let of =
                    |(rank, delay): (usize, Option<i64>)| delay.filter(|_| ranks.contains(&rank));
                let delay_ns = it.delay_ns.into_iter().enumerate().map(of).collect();
                Operation { at_ns: it.at_ns + from_ns, delay_ns, sequence: None, ..it }
            })
        };
        Program::of(group([0, 1], 0).chain(group([2, 3], second_ns)))
    };
    let tables = program(30_000, 20).tables();
    let groups: Vec<_> = tables.groups.iter().map(|it| (it.ranks.as_slice(), it.joined)).collect();
    assert_eq!(groups, [(&[0, 1][..], 20), (&[2, 3], 20)]);
    assert_eq!(tables.groups[1].group, "stream of collectives, ranks 2, 3");
    assert!(tables.records.iter().all(|it| near(it.transfer_us, 20.0)), "{tables:?}");
    // As close as the ranks of one group.
    assert_eq!(program(1_000, 20).tables().groups.len(), 1);
    // A rank that lacks an operation makes no group of its own.
    let mut lossy = program(30_000, 20);
    lossy.operations[25].delay_ns[3] = None;
    assert_eq!(lossy.problem(), NotJoined::Counts { least: 19, most: 20 });
}

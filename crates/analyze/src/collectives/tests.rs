//! Synthetic programs of several ranks with known waits, transfers and clocks.

mod offsets;
mod properties;

use llmprof_core::trace::{
    collectives::{CollectiveCall, CollectiveGroup, ProcessRank},
    kernel::Kernel,
    range::Range,
    timeline::Timeline,
};

use super::*;

/// One operation: when each rank starts, and how long the transfer takes from the last start.
#[derive(Debug, Clone)]
struct Operation {
    at_ns: i64,
    /// By rank; `None` if the rank's capture lacks it.
    delay_ns: Vec<Option<i64>>,
    transfer_ns: i64,
    name: &'static str,
    elements: u64,
    /// Number by rank.
    sequence: Option<u64>,
}

fn all_reduce(at_ns: i64, delay_ns: &[i64], transfer_ns: i64) -> Operation {
    let delay_ns = delay_ns.iter().copied().map(Some).collect();
    let name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL";
    Operation { at_ns, delay_ns, transfer_ns, name, elements: 1 << 20, sequence: None }
}

impl Operation {
    fn numbered(self, sequence: u64) -> Self {
        Self { sequence: Some(sequence), ..self }
    }

    /// The last rank's start.
    fn last_ns(&self) -> i64 {
        self.at_ns + self.delay_ns.iter().flatten().max().unwrap()
    }
}

/// A program of several processes, each on a GPU of its own.
#[derive(Debug, Clone, Default)]
struct Program {
    operations: Vec<Operation>,
    /// To be added to the times of each rank; one file for all if there is none.
    offsets_ns: Vec<i64>,
    /// Time by which the end of a rank is later.
    jitter_ns: Vec<i64>,
    size: Option<u32>,
}

impl Program {
    fn of(operations: impl IntoIterator<Item = Operation>) -> Self {
        Self { operations: operations.into_iter().collect(), ..Self::default() }
    }

    fn trace(&self) -> Timeline {
        let mut trace = Timeline::default();
        let group = CollectiveGroup { name: "1".into(), size: self.size, ..Default::default() };
        trace.collectives.groups = vec![group];
        let ranks = self.operations.iter().map(|it| it.delay_ns.len()).max().unwrap_or(0);
        for (number, it) in self.operations.iter().enumerate() {
            let name = trace.strings.len() as u32;
            trace.strings.push(it.name.to_owned());
            for rank in 0..ranks {
                let Some(delay_ns) = it.delay_ns[rank] else { continue };
                let process = (rank as i64 + 1) << 24;
                let offset = self.offsets_ns.get(rank).copied().unwrap_or(0);
                let jitter = self.jitter_ns.get(number * ranks + rank).copied().unwrap_or(0);
                trace.kernels.push(Kernel {
                    name,
                    full_name: name,
                    device: rank as u32,
                    stream: 20 + rank as u32,
                    start_ns: it.at_ns + delay_ns + offset,
                    end_ns: it.last_ns() + it.transfer_ns + offset + jitter,
                    global_pid: process,
                    correlation_id: number as i64 + 1,
                    grid: [2, 1, 1],
                    block: [512, 1, 1],
                    registers: 0,
                    shared_memory: 0,
                    graph_node: None,
                });
                let place = ProcessRank {
                    rank: Some(rank as u32),
                    file: if self.offsets_ns.is_empty() { 0 } else { rank as u32 },
                    ..ProcessRank::default()
                };
                trace.collectives.processes.insert(process, place);
                if it.sequence.is_some() {
                    let call = trace.collectives.calls.len() as u32;
                    trace.collectives.calls.push(CollectiveCall {
                        group: 0,
                        kind: CollectiveKind::of_kernel(it.name).unwrap(),
                        sequence: it.sequence,
                        in_elements: Some(it.elements),
                        out_elements: Some(it.elements),
                        dtype: Some("BFloat16"),
                    });
                    trace.collectives.launches.extend([(process, number as u32 + 1, call)]);
                }
            }
        }
        trace.kernels.sort();
        trace
    }

    fn tables(&self) -> CollectiveTables {
        let trace = self.trace();
        collectives(&Capture::of(&trace))
    }

    /// The reason for which nothing is joined.
    fn problem(&self) -> NotJoined {
        let note = self.tables().groups.remove(0);
        assert_eq!(note.joined, 0, "{note:?}");
        note.problem.unwrap()
    }
}

/// Operations every 100 us whose rank `last(n)` is 30 us late.
fn late(count: u64, ranks: usize, last: impl Fn(u64) -> usize) -> Vec<Operation> {
    let operation = |n: u64| {
        let delay = |rank| if rank == last(n) { 30_000 } else { 0 };
        let delays: Vec<i64> = (0..ranks).map(delay).collect();
        all_reduce(n as i64 * 100_000, &delays, 20_000).numbered(n)
    };
    (0..count).map(operation).collect()
}

fn verdict_of(operations: Vec<Operation>) -> RankVerdict {
    Program::of(operations).tables().groups[0].verdict.unwrap()
}

fn near(a: Option<f64>, b: f64) -> bool {
    a.is_some_and(|a| (a - b).abs() < 1e-6 * b.abs().max(1.0))
}

#[test]
fn a_late_rank_makes_the_others_wait_and_does_not_lower_the_bandwidth() {
    let tables = Program::of(late(20, 4, |_| 2)).tables();
    let [record] = tables.records.as_slice() else { panic!("{tables:?}") };
    assert_eq!((record.calls, record.joined, record.ranks), (20, 20, 4));
    assert_eq!((record.bytes, record.kind), (Some(2 << 20), CollectiveKind::AllReduce));
    assert!(near(record.skew_us, 30.0) && near(record.transfer_us, 20.0), "{record:?}");
    assert!(near(record.wait_us, 22.5), "three of four ranks wait 30 us: {record:?}");
    // 2 MiB in 20 us, and 2 (4 - 1) / 4 of it on the bus.
    assert!(near(record.algorithm_bytes_per_s, 104_857_600_000.0), "{record:?}");
    assert!(near(record.bus_bytes_per_s, 157_286_400_000.0), "{record:?}");
    assert_eq!((record.slowest_rank, record.slowest_pct), (Some(2), Some(100.0)));
    assert_eq!(record.verdict, Some(RankVerdict::OneStraggler));
    let waits: Vec<_> =
        tables.ranks.iter().map(|it| (it.rank, it.wait_ms, it.times_last)).collect();
    let waiting = (Some(0.6), Some(0));
    assert_eq!(
        waits,
        [
            (0, waiting.0, waiting.1),
            (1, waiting.0, waiting.1),
            (2, Some(0.0), Some(20)),
            (3, waiting.0, waiting.1)
        ]
    );
}

#[test]
fn verdicts_tell_a_straggler_from_ranks_that_take_turns() {
    use RankVerdict::*;
    assert_eq!(verdict_of(late(7, 2, |_| 1)), TooFew);
    assert_eq!(verdict_of(late(40, 2, |_| 1)), OneStraggler);
    assert_eq!(verdict_of(late(40, 2, |n| (n % 2) as usize)), Rotating);
    assert_eq!(verdict_of(late(40, 4, |n| (n % 4) as usize)), Rotating);
    assert_eq!(verdict_of(late(40, 4, |n| if n.is_multiple_of(4) { 1 } else { 3 })), OneStraggler);
    // Operations that follow each other: only the first of four waits.
    let chain = |n: u64| {
        let delays = if n.is_multiple_of(4) { [0, 30_000] } else { [n as i64 % 2 * 100, 0] };
        all_reduce(n as i64 * 100_000, &delays, 20_000).numbered(n)
    };
    assert_eq!(verdict_of((0..80).map(chain).collect()), OneStraggler);
    let close = |n: u64| all_reduce(n as i64 * 100_000, &[0, 1_000], 20_000).numbered(n);
    assert_eq!(verdict_of((0..40).map(close).collect()), Balanced);
}

#[test]
fn kernels_without_a_record_are_joined_by_place_and_have_no_bandwidth() {
    let operations = late(10, 2, |_| 0).into_iter().map(|it| Operation { sequence: None, ..it });
    let tables = Program::of(operations).tables();
    let record = &tables.records[0];
    assert_eq!((record.joined, record.bytes, record.bus_bytes_per_s), (10, None, None));
    assert!(near(record.transfer_us, 20.0) && near(record.wait_us, 15.0), "{record:?}");
    assert!(!tables.groups[0].has_sizes);
}

#[test]
fn one_rank_or_a_missing_one_gives_neither_wait_nor_transfer() {
    let alone = late(10, 1, |_| 0);
    assert_eq!(Program::of(alone.clone()).problem(), NotJoined::OneRank);
    let rank = &Program::of(alone).tables().ranks[0];
    assert_eq!((rank.calls, rank.wait_ms, rank.times_last), (10, None, None));
    let two_of_four = Program { size: Some(4), ..Program::of(late(10, 2, |_| 0)) };
    assert_eq!(two_of_four.problem(), NotJoined::MissingRanks { found: 2, size: 4 });
    let record = &two_of_four.tables().records[0];
    assert_eq!((record.calls, record.joined), (10, 0));
    assert_eq!((record.wait_us, record.bus_bytes_per_s, record.verdict), (None, None, None));
}

#[test]
fn unrecorded_groups_of_a_capture_that_lacks_ranks_are_not_joined() {
    let operations = late(10, 2, |_| 0).into_iter().map(|it| Operation { sequence: None, ..it });
    let mut trace = Program::of(operations).trace();
    for (world, problem) in
        [(2, None), (128, Some(NotJoined::MissingRanks { found: 2, size: 128 }))]
    {
        trace.collectives.processes.values_mut().for_each(|it| it.world_size = Some(world));
        let note = collectives(&Capture::of(&trace)).groups.remove(0);
        assert_eq!((note.joined > 0, note.problem), (problem.is_none(), problem));
    }
}

#[test]
fn sends_and_receives_alone_are_not_joined() {
    let name = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t";
    for is_numbered in [true, false] {
        let operations = late(10, 2, |_| 0).into_iter().map(|it| {
            let sequence = it.sequence.filter(|_| is_numbered);
            Operation { name, sequence, ..it }
        });
        assert_eq!(Program::of(operations).problem(), NotJoined::NoneNeedsAll);
    }
}

#[test]
fn several_files_of_one_rank_are_not_joined() {
    let mut trace = Program::of(late(10, 2, |_| 0)).trace();
    trace.collectives.processes.values_mut().for_each(|it| it.rank = Some(3));
    let note = collectives(&Capture::of(&trace)).groups.remove(0);
    assert_eq!((note.joined, note.problem), (0, Some(NotJoined::RankTwice { rank: 3 })));
}

#[test]
fn recording_windows_of_a_rank_are_one_member_of_its_group() {
    let mut trace = Program::of(late(10, 2, |_| 0)).trace();
    let whole = collectives(&Capture::of(&trace));
    for rank in 0..2 {
        let (process, window) = ((rank + 1) << 24, (rank + 9) << 24);
        let place = trace.collectives.processes[&process].clone();
        let place = ProcessRank { window_of: Some(process), ..place };
        trace.collectives.processes.insert(window, place);
        let launches = &trace.collectives.launches;
        let call = |id: u32| Some((window, id, launches.get(process, id.into())?));
        let moved: Vec<_> = (6..=10).filter_map(call).collect();
        trace.collectives.launches.extend(moved);
    }
    let is_later = |id: i64| if id > 5 { 8 << 24 } else { 0 };
    trace.kernels = trace.kernels.map(|_, it| it.global_pid += is_later(it.correlation_id));
    let windows = collectives(&Capture::of(&trace));
    assert_eq!(whole.groups[0].joined, 10);
    assert_eq!(windows.groups, whole.groups);
    assert_eq!((windows.records, windows.ranks), (whole.records, whole.ranks));
}

#[test]
fn a_number_that_one_rank_lacks_is_left_out_and_the_others_are_joined() {
    let mut program = Program::of(late(10, 2, |_| 0));
    program.operations[0].delay_ns[1] = None;
    program.operations[4].delay_ns[0] = None;
    let note = program.tables().groups.remove(0);
    assert_eq!((note.joined, note.unpaired, note.problem), (8, 2, None));
}

#[test]
fn different_operations_at_one_number_end_the_join() {
    let mut program = Program::of(late(10, 2, |_| 0));
    let mut trace = program.trace();
    let other = trace.collectives.launches.get(2 << 24, 7).unwrap();
    trace.collectives.calls[other as usize].kind = CollectiveKind::AllGather;
    let note = collectives(&Capture::of(&trace)).groups.remove(0);
    assert_eq!((note.joined, note.problem), (6, Some(NotJoined::Kinds { place: 6 })));
    // By place, nothing before it is certain either.
    for it in &mut program.operations {
        it.sequence = None;
    }
    let mut trace = program.trace();
    trace.strings[6] = "ncclDevKernel_AllGather_RING_LL".into();
    let kernels = trace.kernels.map(|_, it| {
        if it.global_pid == 1 << 24 && it.correlation_id == 7 {
            (it.name, it.full_name) = (0, 0);
        }
    });
    trace.kernels = kernels;
    let note = collectives(&Capture::of(&trace)).groups.remove(0);
    assert_eq!((note.joined, note.problem), (0, Some(NotJoined::Kinds { place: 6 })));
}

#[test]
fn a_number_that_repeats_is_joined_in_order_if_all_ranks_repeat_it() {
    let operations = late(10, 2, |_| 0).into_iter().map(|it| {
        let shared = it.sequence.unwrap() / 2;
        it.numbered(shared)
    });
    let mut program = Program::of(operations);
    assert_eq!(program.tables().groups[0].joined, 10);
    program.operations[5].delay_ns[1] = None;
    let note = program.tables().groups.remove(0);
    assert_eq!((note.joined, note.problem), (4, Some(NotJoined::Kinds { place: 2 })));
}

#[test]
fn without_numbers_a_missing_operation_leaves_nothing_joined() {
    let operations = late(10, 2, |_| 0).into_iter().map(|it| Operation { sequence: None, ..it });
    let mut program = Program::of(operations);
    program.operations[5].delay_ns[1] = None;
    assert_eq!(program.problem(), NotJoined::Counts { least: 9, most: 10 });
    // One lacks its first, the other its last: as many, and every pair would be wrong.
    program.operations[5].delay_ns[1] = Some(0);
    program.operations[0].delay_ns[1] = None;
    program.operations[9].delay_ns[0] = None;
    assert_eq!(program.tables().groups[0].joined, 8, "the clock shows which have no counterpart");
    // One lacks the third, the other the seventh.
    program.operations[0].delay_ns[1] = Some(0);
    program.operations[9].delay_ns[0] = Some(0);
    program.operations[2].delay_ns[1] = None;
    program.operations[6].delay_ns[0] = None;
    assert_eq!(program.problem(), NotJoined::NotSimultaneous { count: 4, of: 9 });
}

#[test]
fn each_instance_of_a_stage_has_its_skew_and_its_slowest_rank() {
    let mut trace = Program::of(late(4, 2, |n| usize::from(n >= 2))).trace();
    for process in [1_i64, 2] {
        let global_tid = process << 24 | 1;
        for step in 0..2 {
            let start_ns = step * 200_000 - 5_000;
            trace.ranges.push(Range::new(
                ("", "prefill"),
                (start_ns, Some(start_ns + 150_000)),
                (global_tid, true),
            ));
        }
        for number in 0..4 {
            trace.cuda_calls.push(llmprof_core::trace::timeline::ApiCall {
                name: 0,
                start_ns: number * 100_000 - 1_000,
                end_ns: number * 100_000,
                global_tid,
                correlation_id: number + 1,
            });
        }
    }
    trace.cuda_calls.sort();
    let steps = collectives(&Capture::of(&trace)).steps;
    let rows: Vec<_> =
        steps.iter().map(|it| (it.step, it.joined, it.skew_us, it.slowest_rank)).collect();
    assert_eq!(rows, [(0, 2, 30.0, Some(0)), (1, 2, 30.0, Some(1))]);
    assert!(steps.iter().all(|it| it.stage == "prefill" && (it.wait_ms - 0.03).abs() < 1e-9));
}

#[test]
fn a_capture_without_collectives_has_no_tables() {
    let mut trace = Program::of(late(3, 2, |_| 0)).trace();
    trace.strings.iter_mut().for_each(|it| *it = "gemm".into());
    trace.collectives = Default::default();
    let tables = collectives(&Capture::of(&trace));
    assert_eq!(tables, CollectiveTables::default());
}

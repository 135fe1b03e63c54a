//! Fields of collective operations, in the places where versions write them.

use llmprof_core::trace::collectives::{CollectiveCall, CollectiveGroup, CollectiveKind};

use super::*;

/// The operator that records the parameters, as Kineto writes it.
const RECORD: &str = r#"{"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 5,
    "tid": 6, "ts": 0.5, "dur": 5, "args": {"External id": 9, "Collective name": "allreduce",
    "dtype": "BFloat16", "In msg nelems": 1024, "Out msg nelems": 1024, "Group size": 2,
    "Process Group Name": "1", "Process Group Description": "tensor_parallel",
    "Process Group Ranks": "[0, 1]", "Rank": 0, "Seq": 7, "Is asynchronized op": 1}}"#;
const NCCL: &str = r#"{"ph": "X", "cat": "kernel",
    "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "pid": 0, "tid": 20, "ts": 4.5, "dur": 1.25, "args": {"External id": 9, "device": 0,
    "stream": 20, "correlation": 3}}"#;

fn call(read: &Timeline) -> Option<(CollectiveCall, &CollectiveGroup)> {
    let call = read.collectives.call(5 << 24, 3)?;
    Some((*call, &read.collectives.groups[call.group as usize]))
}

/// Moves the fields of the operator to the kernel.
fn on_kernel() -> String {
    let fields = RECORD.split_once("\"Collective name\"").unwrap().1.replace("\"Seq\": 7, ", "");
    NCCL.replace(
        "\"correlation\": 3}}",
        &format!("\"correlation\": 3, \"Collective name\"{fields}"),
    )
}

#[test]
fn a_kernel_has_the_operation_that_its_operator_recorded() {
    let read = trace(&[CALL, NCCL, RECORD]);
    let (call, group) = call(&read).unwrap();
    assert_eq!((call.kind, call.sequence), (CollectiveKind::AllReduce, Some(7)));
    assert_eq!(
        (call.in_elements, call.dtype, call.bytes()),
        (Some(1024), Some("BFloat16"), Some(2048))
    );
    let expected = CollectiveGroup {
        name: "1".into(),
        description: "tensor_parallel".into(),
        ranks: vec![0, 1],
        size: Some(2),
    };
    assert_eq!(*group, expected);
    assert!(read.findings.is_empty(), "{:?}", read.findings);
}

#[test]
fn fields_of_the_kernel_itself_are_read_and_its_number_is_that_of_the_operator() {
    let read = trace(&[CALL, &on_kernel()]);
    let (alone, _) = call(&read).unwrap();
    assert_eq!((alone.bytes(), alone.sequence), (Some(2048), None));
    let read = trace(&[CALL, &on_kernel(), RECORD]);
    let (both, _) = call(&read).unwrap();
    assert_eq!((both.bytes(), both.sequence), (Some(2048), Some(7)));
    assert_eq!((read.collectives.calls.len(), read.collectives.groups.len()), (1, 1));
}

#[test]
fn an_operation_without_a_kernel_is_not_one_of_the_device() {
    assert!(trace(&[CALL, KERNEL, RECORD]).collectives.calls.is_empty());
}

#[test]
fn a_kernel_without_the_id_of_an_operation_has_the_one_around_its_launch() {
    let sequence = |events: &[&str]| call(&trace(events)).map(|it| it.0.sequence);
    let unnamed = RECORD.replace("\"External id\": 9, ", "");
    assert_eq!(sequence(&[CALL, NCCL, &unnamed]), Some(Some(7)));
    // In 1.13 the id of a kernel is its correlation, which is not the id of an operator.
    let old = |text: &str| text.replace("\"External id\": 9", "\"External id\": 3");
    assert_eq!(sequence(&[&old(CALL), &old(NCCL), &old(RECORD)]), Some(Some(7)));
    let inner = r#"{"ph": "X", "cat": "cpu_op", "name": "nccl:all_to_all", "pid": 5, "tid": 6,
        "ts": 0.75, "dur": 4, "args": {"External id": 11}}"#;
    let pairs =
        NCCL.replace("AllReduce_Sum_bf16_RING_LL", "SendRecv").replace("id\": 9", "id\": 11");
    let read = trace(&[CALL, &pairs, inner, &RECORD.replace("allreduce", "all_to_allv")]);
    let (found, group) = call(&read).unwrap();
    assert_eq!((found.kind, found.sequence), (CollectiveKind::AllToAll, Some(7)));
    assert_eq!((found.bytes(), group.name.as_str()), (Some(2048), "1"));
    for (from, to, why) in [
        ("\"dur\": 5", "\"dur\": 0.25", "it ends before the launch"),
        ("\"ts\": 0.5", "\"ts\": 1.5", "it starts after the launch"),
        ("\"tid\": 6", "\"tid\": 8", "of another thread"),
    ] {
        assert_eq!(sequence(&[CALL, NCCL, &unnamed.replace(from, to)]), None, "{why}");
    }
}

#[test]
fn a_launch_of_coalesced_operations_has_those_that_were_recorded_before_it() {
    let launch = r#"{"ph": "X", "cat": "user_annotation", "name": "nccl:coalesced", "pid": 5,
        "tid": 6, "ts": 0.875, "dur": 4, "args": {}}"#;
    let record = |name: &str, ts: &str, id: &str| {
        let at = format!("\"ts\": {ts}, \"dur\": 0.125");
        let record = RECORD.replace("\"ts\": 0.5, \"dur\": 5", &at);
        record.replace("allreduce", name).replace("id\": 9", &format!("id\": {id}"))
    };
    let of = |names: [&str; 2], launch: &str| {
        let [first, second] = [record(names[0], "0.5", "21"), record(names[1], "0.625", "22")];
        let read = trace(&[CALL, NCCL, launch, &first, &second]);
        call(&read).map(|(it, _)| (it.kind, it.sequence, it.bytes()))
    };
    let gather = ["_allgather_base"; 2];
    let both = Some((CollectiveKind::AllGather, Some(7), Some(4096)));
    assert_eq!(of(gather, launch), both, "their sizes add up");
    let pairs = Some((CollectiveKind::SendReceive, Some(7), None));
    assert_eq!(of(["send", "recv"], launch), pairs, "two directions have no common size");
    assert_eq!(of(["_allgather_base", "wait"], launch).unwrap().2, Some(2048), "no operation");
    assert_eq!(of(["_allgather_base", "broadcast"], launch), None, "two kinds");
    assert_eq!(of(gather, &launch.replace("coalesced", "other")), None, "another range");
    assert_eq!(of(gather, &launch.replace("\"dur\": 4", "\"dur\": 0.1")), None, "it has ended");
}

#[test]
fn fields_that_are_absurd_are_absent() {
    let absurd = RECORD
        .replace("\"In msg nelems\": 1024", "\"In msg nelems\": -1")
        .replace("\"Out msg nelems\": 1024", "\"Out msg nelems\": 9223372036854775807")
        .replace("\"Group size\": 2", "\"Group size\": \"x\"")
        .replace("\"[0, 1]\"", "[0, [1]]")
        .replace("\"Seq\": 7", "\"Seq\": -7");
    let read = trace(&[CALL, NCCL, &absurd]);
    let (call, group) = call(&read).unwrap();
    assert_eq!((call.in_elements, call.bytes(), call.sequence), (None, None, None));
    assert_eq!((group.size, group.ranks.len()), (None, 0));
    let unknown = RECORD.replace("allreduce", "hash_join").replace("BFloat16", "Quantised");
    let read = trace(&[CALL, NCCL, &unknown]);
    let (call, _) = self::call(&read).unwrap();
    assert_eq!((call.kind, call.dtype, call.bytes()), (CollectiveKind::Other, None, None));
}

#[test]
fn ranks_and_groups_of_several_files_are_those_of_the_program() {
    let file = |rank: u32| {
        format!(
            r#"{{"distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": 2}},
                "traceEvents": [{CALL}, {NCCL}, {RECORD}]}}"#
        )
    };
    let read = read_all(&[file(1).as_bytes(), file(0).as_bytes()]).unwrap();
    let found: Vec<_> = read
        .collectives
        .processes
        .values()
        .map(|it| (it.rank, it.world_size, it.backend.as_deref(), it.file))
        .collect();
    let of = |rank, file| (Some(rank), Some(2), Some("nccl"), file);
    assert!(found.contains(&of(1, 0)) && found.contains(&of(0, 1)), "{found:?}");
    assert_eq!((read.collectives.groups.len(), read.collectives.calls.len()), (1, 2));
}

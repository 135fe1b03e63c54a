//! The time that the profiler recorded.

use super::*;

#[test]
fn the_time_of_the_recording_is_on_the_clock_of_the_events() {
    let window = |ts: &str, dur: &str| {
        format!(
            r#"{{"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans",
                "tid": "PyTorch Profiler", "ts": {ts}, "dur": {dur}}}"#
        )
    };
    let of = |window: &str| {
        let read = trace(&[CALL, KERNEL, window]);
        assert!(read.findings.is_empty(), "{:?}", read.findings);
        read.windows.get(&(5 << 24)).copied()
    };
    // Times count from the call, at 1 us.
    assert_eq!(of(&window("0.25", "10")), Some((-750, 9_250)));
    assert_eq!(of(&window("0.25", "-10")), None, "it ends before it starts");
    assert!(trace(&[CALL, KERNEL]).windows.is_empty());
}

#[test]
fn windows_of_a_rank_are_one_process_and_not_a_rank_twice() {
    let file = |(rank, at): (&u32, u64)| {
        let base_ns = 1_000 + 1_000_000 * at;
        format!(
            r#"{{"distributedInfo": {{"rank": {rank}, "world_size": 2}},
                "baseTimeNanoseconds": {base_ns}, "traceEvents": [{CALL}, {KERNEL}]}}"#
        )
    };
    let of = |ranks: &[u32]| {
        let files: Vec<String> = ranks.iter().zip(0..).map(file).collect();
        let texts: Vec<&[u8]> = files.iter().map(String::as_bytes).collect();
        let read = read_all(&texts).unwrap();
        let messages: Vec<String> = read.findings.iter().map(|it| it.message.clone()).collect();
        (read.collectives.processes.len(), read.collectives.owners().count(), messages)
    };
    assert_eq!(of(&[0, 1, 0, 1]), (4, 2, vec![]));
    let lacks_one = "The capture has 1 of 2 ranks: 0.".to_owned();
    assert_eq!(of(&[0, 0]), (2, 1, vec![lacks_one]));
}

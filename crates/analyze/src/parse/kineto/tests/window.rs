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

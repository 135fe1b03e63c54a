//! Events without valid times.

use super::*;

#[test]
fn impossible_times_are_left_out_and_counted() {
    let kernel = |ts: &str, dur: &str| KERNEL.replace("4.5", ts).replace("1.25", dur);
    let read = trace(&[
        KERNEL,
        &kernel("-4.5", "1"),
        &kernel("4.5", "-1"),
        &kernel("9e15", "1"),
        &kernel("9223372036854775", "1"),
        &kernel("1", "9223372036854775"),
        &kernel("1", "5e12"),
    ]);
    assert_eq!((read.kernels.len(), read.kernels.get(0).ns()), (1, 1250));
    assert_eq!((read.impossible_rows, read.untimed.kernels.len()), (5, 1));
    // Beyond 64 bits it is not a time at all.
    let read = trace(&[KERNEL, &kernel("1e40", "1"), &kernel("null", "1"), &kernel("true", "1")]);
    assert_eq!((read.kernels.len(), ids(&read)), (1, vec!["trace_events_incomplete"]));
    assert!(read.findings[0].message.starts_with("3 events"), "{}", read.findings[0].message);
}

#[test]
fn kernels_that_take_no_time_have_no_valid_time() {
    let kernel = |ts: &str, dur: &str| KERNEL.replace("4.5", ts).replace("1.25", dur);
    let read = |events: &[&str]| {
        let read = trace(events);
        let faults: Vec<_> = read.untimed.faults().map(|it| (it.0, it.1.kernels)).collect();
        (read.kernels.len(), read.impossible_rows, ids(&read).len(), faults)
    };
    let missing = KERNEL.replace("\"dur\": 1.25, ", "");
    let (zero, null, negative) = (kernel("5.5", "0"), kernel("6.5", "null"), kernel("7.5", "-2"));
    let faults = vec![(TimeFault::NoDuration, 3), (TimeFault::EndsBeforeStart, 1)];
    assert_eq!(read(&[KERNEL, &zero, &null, &missing, &negative]), (1, 0, 0, faults));
    let whole = [kernel("5", "1"), kernel("7", "0")];
    assert_eq!(read(&[&whole[0], &whole[1]]), (2, 0, 0, vec![]), "rounded to microseconds");
    let old = whole.map(|it| it.replace("\"kernel\"", "\"Kernel\""));
    assert_eq!(read(&[&old[0], &old[1]]), (2, 0, 0, vec![]), "before 1.13");
}

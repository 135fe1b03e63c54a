//! Ranges of two events, and ranges without a valid end.

use super::*;

/// Start and end of each range, with its name.
fn ranges(events: &[&str]) -> (Vec<(String, i64, Option<i64>)>, usize) {
    let read = trace(&[&[CALL, KERNEL], events].concat());
    let times = read.ranges.iter().map(|it| (it.name.clone(), it.start_ns, it.end_ns));
    (times.collect(), ids(&read).len())
}

fn half(ph: &str, name: &str, cat: &str, ts: &str) -> String {
    format!(r#"{{"ph": "{ph}", "cat": "{cat}", "name": "{name}", "pid": 5, "tid": 6, "ts": {ts}}}"#)
}

#[test]
fn pairs_of_events_are_ranges_that_nest() {
    let cat = "user_annotation";
    let events = [
        half("B", "decode_all", cat, "2"),
        half("B", "decode_step", cat, "3"),
        half("E", "", "", "5"),
        half("E", "decode_all", cat, "9"),
        half("B", "open", cat, "10"),
    ];
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let expected = [
        ("decode_all".to_owned(), 1000, Some(8000)),
        ("decode_step".to_owned(), 2000, Some(4000)),
        ("open".to_owned(), 9000, None),
    ];
    assert_eq!(ranges(&events), (expected.to_vec(), 0));
}

#[test]
fn halves_of_other_categories_are_counted_and_keep_the_nesting() {
    let events = [
        half("B", "prefill", "user_annotation", "2"),
        half("B", "other", "x", "3"),
        half("E", "other", "x", "4"),
        half("E", "prefill", "user_annotation", "5"),
        half("E", "prefill", "user_annotation", "6"),
    ];
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let expected = vec![("prefill".to_owned(), 1000, Some(4000))];
    assert_eq!(ranges(&events), (expected, 1), "a finding counts the three others");
}

#[test]
fn a_range_that_ends_before_its_start_has_no_end() {
    let reversed = r#"{"ph": "X", "cat": "user_annotation", "name": "prefill", "pid": 5,
        "tid": 6, "ts": 3, "dur": -1}"#;
    assert_eq!(ranges(&[reversed]), (vec![("prefill".to_owned(), 2000, None)], 0));
}

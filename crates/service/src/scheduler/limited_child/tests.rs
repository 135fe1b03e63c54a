//! Tests of a child next to passes, by simulated time and without a process.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex},
    task::Poll,
};

use tokio::time::sleep;

use super::{
    ChildChange::{Freeze, RunWhenIdle, Thaw},
    *,
};

/// Changes of a child, each with the second in which it is made.
type Changes = Vec<(ChildChange, u64)>;

/// The changes of a child that may wait for `max_wait_s`, next to passes with the time before each
/// and its length, in seconds. A stop fires after the last of them, while it measures if `inside`.
async fn changes(max_wait_s: u64, passes: &[(u64, u64)], inside: bool) -> Changes {
    let (measuring, stop) = (Measuring::default(), CancellationToken::new());
    let (made, started) = (Arc::new(Mutex::new(Changes::new())), Instant::now());
    let change = {
        let made = Arc::clone(&made);
        move |it| made.lock().unwrap().push((it, started.elapsed().as_secs()))
    };
    let wait = QuietWait::new(&measuring, Duration::from_secs(max_wait_s));
    let mut yielding = pin!(yield_to_passes(change, wait, &stop));
    let service = async {
        let mut last = None;
        for (quiet, length) in passes {
            drop(last.take());
            sleep(Duration::from_secs(*quiet)).await;
            let pass = measuring.start();
            sleep(Duration::from_secs(*length)).await;
            last = Some(pass).filter(|_| inside);
        }
        // A change that is due is made before the stop.
        sleep(Duration::from_millis(1)).await;
        stop.cancel();
        sleep(Duration::from_millis(1)).await;
    };
    tokio::select! {
        () = yielding.as_mut() => {}
        () = service => {}
    }
    let made = made.lock().unwrap();
    made.clone()
}

/// A case: its name, and the arguments and the result of [`changes`].
type Case = (&'static str, u64, &'static [(u64, u64)], bool, Changes);

#[tokio::test(start_paused = true)]
async fn a_child_is_stopped_during_each_pass_until_its_wait_is_used_up() {
    let two = vec![(Freeze, 5), (Thaw, 25), (Freeze, 30), (Thaw, 60)];
    let used_up = vec![(Freeze, 65), (Thaw, 75), (RunWhenIdle, 75)];
    let cases: [Case; 6] = [
        ("no pass", 60, &[], false, vec![]),
        ("two passes", 60, &[(5, 20), (5, 30)], false, two.clone()),
        ("the third is too long", 60, &[(5, 20), (5, 30), (5, 99)], false, [two, used_up].concat()),
        (
            "a pass after the wait is used up",
            10,
            &[(5, 30), (5, 30)],
            false,
            vec![(Freeze, 5), (Thaw, 15), (RunWhenIdle, 15)],
        ),
        ("no wait", 0, &[(5, 30)], false, vec![(RunWhenIdle, 5)]),
        ("a stop while it is stopped", 60, &[(5, 20)], true, vec![(Freeze, 5), (Thaw, 25)]),
    ];
    for (name, max_wait_s, passes, inside, expected) in cases {
        assert_eq!(changes(max_wait_s, passes, inside).await, expected, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_wait_for_a_pass_that_goes_on() {
    let (measuring, stop) = (Measuring::default(), CancellationToken::new());
    let _pass = measuring.start();
    stop.cancel();
    for max_wait in [Duration::from_secs(60), Duration::ZERO] {
        yield_to_passes(|_| {}, QuietWait::new(&measuring, max_wait), &stop).await;
    }
    let quiet = QuietWait::new(&Measuring::default(), Duration::from_secs(60));
    let mut yielding = pin!(yield_to_passes(|_| {}, quiet, &stop));
    let is_ready = poll_fn(|cx| Poll::Ready(yielding.as_mut().poll(cx).is_ready())).await;
    assert!(!is_ready, "without a pass, the child ends by its own stop");
}

#[test]
fn the_last_words_of_a_child_are_no_note_of_rust() {
    let last = |lines: &[&str]| last_line(lines.iter().map(|it| (*it).to_owned()).collect());
    let note = "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace";
    assert_eq!(last(&["it is damaged", note]).as_deref(), Some("it is damaged"));
    assert_eq!(last(&[note]), None);
    assert_eq!(last(&[]), None);
}

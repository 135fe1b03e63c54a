//! Tests of children with resource limits, with shell scripts.

use super::{tests::Case, *};
use crate::collect::process::{orphans::stat, output::last_lines};

fn limited(script: &str, memory_bytes: u64, cpu_s: u32) -> Case {
    let mut case = Case::new(script);
    case.limits.resources = Some(ResourceLimits { memory_bytes, cpu_s });
    case
}

#[tokio::test]
async fn a_child_ends_when_its_cpu_time_is_used_up() {
    let case = limited("while :; do :; done", 0, 1);
    assert_eq!(case.run().await, ExitReason::Signalled(Signal::SIGXCPU as i32));
}

#[tokio::test]
async fn a_child_gets_no_more_memory_than_its_limit() {
    let dd = "dd if=/dev/zero of=/dev/null count=1 bs=";
    let case = limited(&format!("{dd}10M && {dd}500M"), 100 << 20, 0);
    assert_eq!(case.run().await, ExitReason::Exited(1));
    let output = last_lines(&case.logs().stderr, 9).join("\n");
    assert!(output.contains("copied") && output.contains("memory exhausted"), "{output}");
}

#[tokio::test]
async fn a_child_with_limits_has_a_low_priority_and_is_the_first_victim() {
    let case = limited("cut -d' ' -f19,41 /proc/self/stat; cat /proc/self/oom_score_adj", 0, 0);
    assert_eq!(case.run().await, ExitReason::Exited(0));
    // Nice value, and the class: both of this process, but for the least nice value.
    let own = stat(Pid::this()).unwrap();
    let nice = own[16].parse::<i32>().unwrap().max(5);
    assert_eq!(last_lines(&case.logs().stdout, 9), [&*format!("{nice} {}", own[38]), "1000"]);
}

/// A child, and its process outside its group.
async fn with_process_outside() -> (Case, RunningChild, Pid) {
    let case = Case::new("setsid sleep 1000 & echo $! > pid; wait");
    let (logs, limits) = (case.logs(), &case.limits);
    let running = RunningChild::start(&case.argv, &logs, limits, ChildScope::Run).await.unwrap();
    let pid = loop {
        if let Some(line) = last_lines(&case.path("pid"), 1).pop() {
            break Pid::from_raw(line.parse().unwrap());
        }
        tokio::task::yield_now().await;
    };
    (case, running, pid)
}

#[tokio::test]
async fn all_processes_of_a_child_can_be_left_to_idle_cpus() {
    let (case, running, pid) = with_process_outside().await;
    // Nice value, and the class SCHED_IDLE.
    let priority = || stat(pid).map(|it| [it[16].clone(), it[38].clone()]);
    // A process that starts a program has no mark for a moment.
    while priority().is_some_and(|it| it != ["19", "5"]) {
        running.freezer().run_when_idle();
        tokio::task::yield_now().await;
    }
    assert!(priority().is_some(), "it still runs");
    running.finish(ExitReason::Stopped, &case.limits).await.unwrap();
}

#[tokio::test]
async fn frozen_processes_stop_until_they_are_thawed_and_end_with_their_run() {
    let (case, running, pid) = with_process_outside().await;
    let state = || stat(pid).unwrap_or_default().into_iter().next().unwrap_or_default();
    let freezer = running.freezer();
    for _ in 0..2 {
        freezer.freeze();
        while state() != "T" {
            tokio::task::yield_now().await;
        }
        freezer.thaw();
        while state() == "T" {
            tokio::task::yield_now().await;
        }
    }
    freezer.freeze();
    running.finish(ExitReason::Stopped, &case.limits).await.unwrap();
    assert!(["", "Z"].contains(&state().as_str()), "{}", state());
}

//! A seeded simulator of queue, leases, sessions, journal, retention, webhooks, imports and Slurm:
//! the code of the service on simulated time, disks and processes.
//!
//! `SIMULATOR_SCHEDULES` sets the number of schedules, `SIMULATOR_FIRST` the first seed. A single
//! schedule shows its events and the log of the service.

#![expect(clippy::unwrap_used, reason = "an unwrap is an assertion")]

mod checks;
mod client;
mod cluster;
mod disk;
mod files;
mod job;
mod random;
mod scenarios;
mod schedule;
mod service;
mod sessions;
mod vfs;
mod vfs_tests;
mod world;

use std::{
    env,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).ok().map_or(default, |text| text.parse().unwrap())
}

#[test]
fn every_schedule_keeps_its_promises() {
    let (count, first) = (number("SIMULATOR_SCHEDULES", 100), number("SIMULATOR_FIRST", 0));
    if count == 1 {
        tracing_subscriber::fmt().without_time().with_ansi(false).init();
    }
    let (next, failed, started) = (AtomicU64::new(first), Mutex::new(Vec::new()), Instant::now());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= first + count {
                        break;
                    }
                    let report = schedule::run(seed);
                    if count == 1 {
                        println!("{}", report.log.join("\n"));
                    }
                    if !report.broken.is_empty() {
                        failed.lock().unwrap().push((seed, report.broken));
                    }
                }
            });
        }
    });
    let took = started.elapsed().as_secs_f64();
    println!("{count} schedules from seed {first} in {took:.1} s: {:.1}/s", count as f64 / took);
    let mut failed = failed.into_inner().unwrap();
    failed.sort();
    for (seed, broken) in &failed {
        println!("seed {seed}: {}", broken.join("; "));
    }
    assert!(
        failed.is_empty(),
        "{} schedules failed; replay one: SIMULATOR_FIRST={} SIMULATOR_SCHEDULES=1",
        failed.len(),
        failed[0].0
    );
}

#[test]
fn the_same_seed_gives_the_same_events() {
    for seed in 1000..1020 {
        let (first, second) = (schedule::run(seed).log, schedule::run(seed).log);
        let different = first.iter().zip(&second).position(|(a, b)| a != b);
        if let Some(at) = different {
            panic!("seed {seed}, event {at}:\n{}\n{}", first[at], second[at]);
        }
        assert_eq!(first.len(), second.len(), "seed {seed}");
    }
}

//! Schedules that were found to break a promise, as short stories.

use std::time::Duration;

use llmprof_core::domain::{ids::RunId, state::RunState};
use llmprof_service::{
    config::{Config, ExecutorKind},
    store::Role,
};

use super::{
    client,
    schedule::{self, Report, Schedule},
    sessions,
    world::Faults,
};

fn on_cluster(config: &mut Config) {
    config.executor.kind = ExecutorKind::Slurm;
    config.executor.slurm.poll_s = 2;
    config.executor.slurm.lost_after_s = 20;
    config.executor.slurm.separate_analysis_job = false;
    config.retention.max_runs = 0;
}

async fn submit(schedule: &Schedule) -> RunId {
    submit_many(schedule, 1).await[0]
}

async fn submit_many(schedule: &Schedule, count: usize) -> Vec<RunId> {
    let service = schedule.current();
    for _ in 0..count {
        let (world, clients) = (schedule.world.clone(), schedule.clients.clone());
        client::submit_spec(world, clients, client::model_spec("auto"), || service.clone()).await;
    }
    schedule.clients.all().iter().map(|it| it.run.unwrap()).collect()
}

async fn wait_for(schedule: &Schedule, happened: impl Fn(&str) -> bool) {
    wait_for_many(schedule, happened, 1).await;
}

async fn wait_for_many(schedule: &Schedule, happened: impl Fn(&str) -> bool, count: usize) {
    for _ in 0..30_000 {
        if schedule.world.state().log.iter().filter(|line| happened(line)).count() >= count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it did not happen: {}", schedule.world.state().log.join("\n"));
}

fn kept(report: &Report) {
    assert!(report.broken.is_empty(), "{:?}\n{}", report.broken, report.log.join("\n"));
}

#[test]
fn a_run_that_is_cancelled_while_its_submission_is_unanswered_leaves_no_job() {
    for seed in 0..10 {
        let report = schedule::simulate(seed, on_cluster, async |schedule| {
            schedule.world.state().cluster.lost_submissions = 2;
            schedule.start().await;
            let run = submit(schedule).await;
            wait_for(schedule, |line| line.contains("cluster job 1 of run")).await;
            let service = schedule.current().unwrap();
            schedule.world.state().faults = Faults { answer: 30, ..Faults::default() };
            client::cancel(&schedule.world, &schedule.clients, &service, (0, run)).await;
            wait_for(schedule, |line| line.contains("message run_ended")).await;
            let at_end = schedule.world.state().log.len();
            schedule.finish().await;
            let state = schedule.world.state();
            let late = state.log[at_end..].iter().filter(|line| line.contains("starts on host"));
            assert_eq!(late.count(), 0, "{}", state.log.join("\n"));
        });
        kept(&report);
    }
}

#[test]
fn a_job_of_a_cluster_that_lacked_resources_is_submitted_again() {
    let report = schedule::simulate(1, on_cluster, async |schedule| {
        schedule.world.state().faults = Faults { exhausted: 100, ..Faults::default() };
        schedule.start().await;
        let run = submit(schedule).await;
        wait_for(schedule, |line| line.contains("ends with 1")).await;
        schedule.world.state().faults = Faults::default();
        schedule.finish().await;
        let store = schedule.current().unwrap().cx.store;
        let service = schedule.current().unwrap();
        let run = service.request(async move { store.run(run).await }).await.unwrap().unwrap();
        assert_eq!(run.unwrap().state, RunState::Succeeded);
    });
    kept(&report);
}

#[test]
fn a_pin_that_is_set_after_the_plan_keeps_its_run() {
    for seed in 0..20 {
        let removes_early = |config: &mut Config| {
            config.executor.kind = ExecutorKind::Local;
            config.retention.interval_s = 1;
            (config.retention.keep_newest, config.retention.max_runs) = (0, 1);
        };
        let report = schedule::simulate(seed, removes_early, async |schedule| {
            schedule.start().await;
            let runs = submit_many(schedule, 3).await;
            schedule.world.state().faults =
                Faults { slow: 100, stall_ms: 1_000, ..Faults::default() };
            wait_for_many(schedule, |line| line.contains("has the result"), 3).await;
            schedule.world.pause(3_000).await;
            let service = schedule.current().unwrap();
            for (at, run) in runs.into_iter().enumerate() {
                client::set_pin(&schedule.world, &schedule.clients, &service, (at, run), true)
                    .await;
            }
            schedule.finish().await;
        });
        kept(&report);
    }
}

#[test]
fn a_worker_that_stalls_beyond_its_lease_executes_no_run_next_to_another() {
    for seed in 0..20 {
        let short_lease = |config: &mut Config| {
            config.executor.kind = ExecutorKind::Local;
            config.worker.lease_s = 5;
            config.retention.max_runs = 0;
        };
        let report = schedule::simulate(seed, short_lease, async |schedule| {
            schedule.start().await;
            submit_many(schedule, 4).await;
            schedule.world.state().faults =
                Faults { slow: 100, stall_ms: 15_000, ..Faults::default() };
            tokio::time::sleep(Duration::from_secs(300)).await;
            schedule.finish().await;
        });
        kept(&report);
    }
}

#[test]
fn a_job_on_a_lost_node_changes_no_file_of_the_job_that_replaced_it() {
    for seed in 0..40 {
        let report = schedule::simulate(seed, on_cluster, async |schedule| {
            schedule.start().await;
            submit_many(schedule, 2).await;
            schedule.world.state().faults = Faults { requeue: 100, ..Faults::default() };
            let moves = |line: &str| line.ends_with("is requeued") || line.contains("run_ended");
            wait_for_many(schedule, moves, 2).await;
            schedule.world.state().faults = Faults { step: 100, ..Faults::default() };
            wait_for_many(schedule, |line| line.contains("message run_ended"), 2).await;
            schedule.finish().await;
        });
        kept(&report);
    }
}

#[test]
fn a_disk_that_only_pretends_to_sync_breaks_promises() {
    let broken = (0..60).find(|seed| {
        let report = schedule::simulate(
            *seed,
            |_| {},
            async |schedule| {
                schedule.disk.ignore_syncs();
                schedule.run().await;
            },
        );
        !report.broken.is_empty()
    });
    assert!(broken.is_some());
}

#[test]
fn a_session_that_ends_while_its_run_writes_blocks_no_other_write() {
    for seed in 0..90 {
        let local = |config: &mut Config| {
            config.executor.kind = ExecutorKind::Local;
            config.worker.lease_s = 300;
            config.retention.max_runs = 0;
        };
        let report = schedule::simulate(seed, local, async |schedule| {
            schedule.start().await;
            let service = schedule.current().unwrap();
            let (world, sessions) = (&schedule.world, &schedule.sessions);
            let life_s = if seed % 3 == 0 { 30 } else { 600 };
            let session = sessions.start(world, &service, life_s).await.unwrap();
            sessions::submit(world, &schedule.clients, session, || Some(service.clone())).await;
            // Every call that writes keeps the writer for a while.
            world.state().faults = Faults { slow: 100, stall_ms: 2_000, ..Faults::default() };
            let starts = |line: &str| line.contains("process 1 of");
            wait_for(schedule, starts).await;
            world.pause(30_000).await;
            match seed % 3 {
                0 => world.pause(60_000).await,
                1 => sessions.end(world, &service, session).await,
                _ => schedule.drain().await,
            }
            schedule.finish().await;
        });
        kept(&report);
    }
}

#[test]
fn a_write_whose_commit_fails_is_an_error() {
    for seed in 0..20 {
        let local = |config: &mut Config| config.executor.kind = ExecutorKind::Local;
        let report = schedule::simulate(seed, local, async |schedule| {
            schedule.start().await;
            let service = schedule.current().unwrap();
            let store = service.cx.store.clone();
            let create = {
                let store = store.clone();
                async move { store.create_token("ann", Role::Admin, &[1; 32], None).await }
            };
            service.request(create).await.unwrap().unwrap();
            // Each call waits, so that the session is claimed on the full disk.
            schedule.world.state().faults =
                Faults { slow: 100, stall_ms: 2_000, ..Faults::default() };
            let session = schedule.sessions.start(&schedule.world, &service, 300).await.unwrap();
            schedule.disk.set_full(true);
            let revoke = async move { store.revoke_token("ann").await.is_err() };
            assert_eq!(service.request(revoke).await, Some(true));
            schedule.world.pause(30_000).await;
            let starts = |line: &&String| line.contains(&format!("of {session} starts"));
            assert_eq!(schedule.world.state().log.iter().filter(starts).count(), 0);
            schedule.disk.set_full(false);
            schedule.finish().await;
        });
        kept(&report);
    }
}

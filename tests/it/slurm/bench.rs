//! A Slurm cluster with a service that submits jobs to it.

use std::{fs, process::Command};

use serde_json::json;
use tokio::sync::{Mutex, MutexGuard};

use crate::{
    slurm::cluster::Cluster,
    support::service::{self, Service, Setup, script},
};

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// A cluster with a service for its jobs.
pub struct Bench {
    pub cluster: Cluster,
    pub setup: Setup,
    pub separate_analysis: bool,
    pub data: tempfile::TempDir,
    _folder: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Bench {
    pub async fn new() -> Option<Self> {
        let turn = ONE_AT_A_TIME.lock().await;
        // Short: sockets are bound in it.
        let folder = tempfile::Builder::new().prefix("slurm-").tempdir_in("/tmp").unwrap();
        let data = tempfile::tempdir().unwrap();
        let cluster = Cluster::start(folder.path(), data.path())?;
        Some(Self {
            cluster,
            setup: Setup::default(),
            separate_analysis: false,
            data,
            _folder: folder,
            _turn: turn,
        })
    }

    /// Makes jobs run these lines in place of the model runner.
    pub fn runner(&mut self, lines: &str) {
        self.setup = Setup { runner: script(self.data.path(), lines), ..Setup::default() };
    }

    /// Makes jobs wait for [`Self::open`] and record their work in the ledger.
    pub fn gated(&mut self) {
        let gate = self.data.path().join("gate");
        self.runner(&format!(
            "echo up >&2; until [ -e {} ]; do sleep 0.1; done; {}",
            gate.display(),
            self.counted()
        ));
    }

    pub fn open(&self) {
        fs::write(self.data.path().join("gate"), "").unwrap();
    }

    /// Lines that run the model, and write `+` into the ledger before and `-` after it.
    pub fn counted(&self) -> String {
        let ledger = self.data.path().join("ledger");
        format!(
            "echo + >>{0}; {1} \"$@\"; code=$?; echo - >>{0}; exit $code",
            ledger.display(),
            service::RUNNER
        )
    }

    /// The maximum of concurrent jobs, and the number of finished ones.
    pub fn ledger(&self) -> (usize, usize) {
        let (mut max, mut now, mut ended) = (0_usize, 0_usize, 0);
        for line in fs::read_to_string(self.data.path().join("ledger")).unwrap_or_default().lines()
        {
            match line {
                "+" => now += 1,
                _ => (now, ended) = (now - 1, ended + 1),
            }
            max = max.max(now);
        }
        (max, ended)
    }

    pub fn command(&self) -> Command {
        let mut command = service::command(self.data.path(), &self.setup);
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.data.path().join("service.log"))
            .unwrap();
        command
            .stderr(log)
            .env("LLMPROF_LOG", "info")
            .env("SLURM_CONF", self.cluster.conf())
            .env("LLMPROF__EXECUTOR__KIND", "slurm")
            .env("LLMPROF__EXECUTOR__SLURM__POLL_S", "1")
            .env("LLMPROF__EXECUTOR__SLURM__LOST_AFTER_S", "3")
            .env(
                "LLMPROF__EXECUTOR__SLURM__SEPARATE_ANALYSIS_JOB",
                self.separate_analysis.to_string(),
            )
            .env("LLMPROF__EXECUTOR__SLURM__TYPES", r#"["h200"]"#);
        command
    }

    pub fn serve(&self) -> Service {
        Service::spawn(&mut self.command(), self.data.path())
    }

    /// Asserts that a run succeeded and was started, submitted and stored once.
    pub async fn assert_succeeded_once(&self, service: &Service, id: &str) {
        let run = service.end(id).await;
        assert_eq!((&run["state"], &run["attempts"]), (&json!("succeeded"), &json!(1)), "{run:#}");
        assert_eq!((attempts(service, id), self.cluster.jobs_of(id).len()), (1, 1));
        assert!(service.get(&format!("/runs/{id}/report")).await.status().is_success());
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "-- the service\n{}",
                fs::read_to_string(self.data.path().join("service.log")).unwrap_or_default()
            );
        }
    }
}

/// Attempts in the run's journal, each a job that started its steps.
pub fn attempts(service: &Service, id: &str) -> usize {
    let journal =
        fs::read_to_string(service.run_dir(id).join("progress.jsonl")).unwrap_or_default();
    journal.lines().filter(|line| line.contains(r#""event":"attempt""#)).count()
}

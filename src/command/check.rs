//! `llmprof check`: holds database, manifests and files to one another, and repairs what can be.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use llmprof::{
    artifact::{
        folder,
        journal::{self, JournalEvent, Position},
        layout, manifest,
        verify::{self, Fault},
    },
    config::Config,
    run::{ArtifactRecord, RunId, RunSpec, RunState, StepRecord, StepState},
    store::{LostRun, Store},
    worker::retention,
};

use super::serve;

/// Something is wrong, or stays wrong.
const FAULTY: u8 = 2;

/// Check that database, manifests and files of a data folder agree
///
/// Every file is read and hashed. Without --repair nothing is changed, and a service may use the folder meanwhile. The exit code is 0 when
/// all is in order or was repaired, 2 when something is wrong, 1 when it could not be looked at.
#[derive(Debug, Args)]
pub struct Options {
    /// Put right what can be without loss: rows that a sealed folder tells of, files that are half written, folders that belong to nobody
    #[arg(long)]
    repair: bool,
    /// Look at sizes only, and hash nothing
    #[arg(long)]
    quick: bool,
    /// Folder of the database and the runs [default: ./data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// File with settings that go over the defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub fn run(options: &Options) -> Result<ExitCode> {
    let config = Config::load(options.config.as_deref(), std::env::vars())?;
    let data = options.data.clone().unwrap_or(config.server.data);
    let database = data.join("llmprof.db");
    if !database.is_file() {
        bail!("{} holds no database of llmprof", data.display());
    }
    let _lock = options.repair.then(|| serve::lock(&data)).transpose()?;
    serve::runtime()?.block_on(async {
        let store = Store::open(&database).await?;
        let runs = data.join("runs");
        if options.repair {
            retention::recover(&store, &runs).await?;
        }
        let mut check = Check { store, runs, options, found: 0, repaired: 0, bytes: 0, files: 0 };
        check.all().await?;
        let Check { found, repaired, bytes, files, .. } = check;
        println!("{files} files with {bytes} bytes looked at; {found} faults, {repaired} repaired");
        Ok(if found > repaired { ExitCode::from(FAULTY) } else { ExitCode::SUCCESS })
    })
}

struct Check<'a> {
    store: Store,
    runs: PathBuf,
    options: &'a Options,
    found: u32,
    repaired: u32,
    bytes: u64,
    files: u64,
}

impl Check<'_> {
    async fn all(&mut self) -> Result<()> {
        for fault in self.store.faults().await? {
            self.told(&format!("database: {fault}"), false);
        }
        let runs = self.store.states().await?;
        for (id, state) in &runs {
            if state.is_final() {
                self.ended(*id).await.with_context(|| format!("cannot look at run {id}"))?;
            }
        }
        let known = |id: &RunId| runs.iter().any(|(known, _)| known == id);
        let entries = fs::read_dir(&self.runs).with_context(|| format!("cannot read {}", self.runs.display()))?;
        let mut names: Vec<String> = entries.filter_map(|it| it.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        for name in names {
            match name.parse::<RunId>() {
                Ok(id) if known(&id) => {}
                Ok(id) => self.orphan(id).await?,
                Err(_) if name.strip_suffix(".removed").is_some_and(|id| id.parse::<RunId>().is_ok()) => {
                    self.told(&format!("{name} is being removed; that was broken off, or goes on"), false);
                }
                Err(_) => println!("note: {name} is no run's folder"),
            }
        }
        Ok(())
    }

    fn told(&mut self, fault: &str, repaired: bool) {
        self.found += 1;
        self.repaired += u32::from(repaired);
        println!("{fault}{}", if repaired { " (repaired)" } else { "" });
    }

    /// Holds the folder of an ended run to its rows, and its rows to its manifest.
    async fn ended(&mut self, id: RunId) -> Result<()> {
        let (dir, rows) = (folder::of(&self.runs, id), self.store.artifacts(id).await?);
        if !dir.is_dir() {
            // Removed while we looked, or cancelled before it had a folder.
            if !rows.is_empty() && self.store.owner(id).await?.is_some() {
                self.told(&format!("run {id}: its folder is missing"), false);
            }
            return Ok(());
        }
        let sealed = manifest::read(&dir);
        let mut known = rows.clone();
        match &sealed {
            Ok(sealed) if *sealed != rows => {
                let whole = verify::faults(&dir, sealed, true)?.iter().all(|(_, fault)| harmless(*fault));
                let repaired = self.options.repair && whole;
                if repaired {
                    self.store.set_artifacts(id, sealed).await?;
                    known.clone_from(sealed);
                }
                self.told(&format!("run {id}: database and manifest disagree"), repaired);
            }
            Ok(_) => {}
            Err(_) if rows.is_empty() => {}
            Err(error) => self.told(&format!("run {id}: its manifest cannot be read: {error}"), false),
        }
        self.files(id, &dir, &known)
    }

    fn files(&mut self, id: RunId, dir: &Path, artifacts: &[ArtifactRecord]) -> Result<()> {
        self.files += artifacts.len() as u64;
        self.bytes += artifacts.iter().map(|artifact| artifact.bytes).sum::<u64>();
        for (path, fault) in verify::faults(dir, artifacts, !self.options.quick)? {
            if fault == Fault::Unlisted {
                println!("note: run {id}: {path} {fault}");
                continue;
            }
            let repaired = self.options.repair && fault.is_repairable();
            if repaired {
                verify::repair(dir, &path, fault).with_context(|| format!("cannot repair {path} of run {id}"))?;
            }
            self.told(&format!("run {id}: {path} {fault}"), repaired);
        }
        Ok(())
    }

    /// A folder without a run: a sealed one tells its run, any other belongs to nobody.
    async fn orphan(&mut self, id: RunId) -> Result<()> {
        let dir = folder::of(&self.runs, id);
        // A run that was submitted since the list was read.
        if !self.options.repair && self.store.owner(id).await?.is_some() {
            return Ok(());
        }
        let Some(lost) = lost(id, &dir) else {
            if self.options.repair {
                fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
            }
            self.told(&format!("run {id}: its folder belongs to no run and is not sealed"), self.options.repair);
            return Ok(());
        };
        if self.options.repair {
            self.store.insert_lost(&lost).await?;
        }
        self.told(&format!("run {id}: its folder is sealed and the database does not know it"), self.options.repair);
        self.files(id, &dir, &lost.artifacts)
    }
}

fn harmless(fault: Fault) -> bool {
    fault.is_repairable() || fault == Fault::Unlisted
}

/// What a sealed folder tells of its run. Its owner and findings are not in it.
fn lost(id: RunId, dir: &Path) -> Option<LostRun> {
    let artifacts = manifest::read(dir).ok()?;
    let spec: RunSpec = serde_json::from_slice(&fs::read(dir.join(layout::SPEC)).ok()?).ok()?;
    let steps = last_steps(dir);
    let reported = artifacts.iter().any(|it| it.path == layout::REPORT_JSON);
    let state = match reported {
        false => RunState::Failed,
        true if steps.iter().all(|step| step.state == StepState::Succeeded) => RunState::Succeeded,
        true => RunState::Partial,
    };
    let (seconds, nanos) = id.0.get_timestamp()?.to_unix();
    let queued_ms = i64::try_from(seconds).ok()? * 1000 + i64::from(nanos / 1_000_000);
    let ended = steps.iter().rev().find_map(|step| step.ended_at.as_ref()?.parse::<jiff::Timestamp>().ok());
    let ended_ms = ended.map_or(queued_ms, |time| time.as_millisecond());
    let message = "its row was lost and made anew from its folder by llmprof check".to_owned();
    Some(LostRun { id, spec, state, queued_ms, ended_ms, message, artifacts })
}

/// The steps of the last attempt, as the journal tells them.
fn last_steps(dir: &Path) -> Vec<StepRecord> {
    let mut steps: Vec<StepRecord> = Vec::new();
    for (_, event) in journal::read_from(dir, &mut Position::default(), usize::MAX).unwrap_or_default() {
        match event {
            JournalEvent::Attempt { .. } => steps.clear(),
            JournalEvent::Step { step } => match steps.iter_mut().find(|known| known.step == step.step) {
                Some(known) => *known = step,
                None => steps.push(step),
            },
            _ => {}
        }
    }
    steps
}

//! `llmprof check`: holds database, manifests and files to one another, and repairs what can be.

mod inputs;
mod lost;
mod subject;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use llmprof_core::domain::{
    ids::{AlignmentId, RunId},
    run_files::ArtifactRecord,
};
use llmprof_report::format;
use llmprof_service::{
    artifact::{
        data_folder::{self, FolderLock},
        folder,
        inputs::storage,
        manifest,
        packed::resolved,
        verify::{self, FileFault},
    },
    config::Config,
    runtime::work::SlicedWork,
    store::{Store, StoreError},
    tasks::retention,
};

use super::{client::terminal::print_line, progress, serve};
use subject::FolderSubject;

/// Something is wrong, or stays wrong.
const FAULTY: u8 = 2;

/// Check that database, manifests and files of a data folder agree
///
/// Covers runs (imports included), alignments and stored inputs. Every file is read and hashed.
/// Without --repair nothing is changed, and a service may use the folder meanwhile. The exit code
/// is 0 when all is in order or was repaired, 2 when something is wrong, 1 when it could not be
/// looked at.
///
/// A repair loses nothing, with one exception: a run with files that a power cut emptied is
/// requeued, and its folder is recreated when it starts again.
#[derive(Debug, Args)]
pub struct CheckOptions {
    /// Repair rows of sealed folders, partial files and folders without an owner, requeue runs with
    /// emptied files, make thumbnails and manifests of stored inputs, and remove files without a
    /// row
    #[arg(long)]
    repair: bool,
    /// Look at sizes only, and hash nothing
    #[arg(long)]
    quick: bool,
    /// Folder of the database and the runs [default: ./data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// File with settings that override the defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub fn run(options: &CheckOptions) -> Result<ExitCode> {
    let config = Config::load(options.config.as_deref())?;
    let data = resolved(&options.data.clone().unwrap_or(config.server.data));
    let database = data.join("llmprof.db");
    if !database.is_file() {
        bail!("{} holds no database of llmprof", data.display());
    }
    let _lock = options.repair.then(|| FolderLock::take(&data)).transpose()?;
    let in_use = !options.repair && data_folder::is_in_use(&data);
    serve::runtime()?.block_on(async {
        match check(options, &data, &database, in_use).await {
            Err(error) if is_damage(&error) => {
                print_line(format_args!("database: {error:#}; restore a backup"))?;
                Ok(ExitCode::from(FAULTY))
            }
            checked => checked,
        }
    })
}

async fn check(
    options: &CheckOptions,
    data: &Path,
    database: &Path,
    in_use: bool,
) -> Result<ExitCode> {
    let store = Store::open(database).await?;
    let [runs, alignments, stored_inputs] =
        ["runs", "alignments", storage::FOLDER].map(|it| resolved(&data.join(it)));
    if options.repair {
        retention::recover(&store, &runs, &alignments, &SlicedWork::default()).await?;
    }
    let (found, repaired, bytes, files) = (0, 0, 0, 0);
    let mut check = DataCheck {
        store,
        runs,
        alignments,
        stored_inputs,
        options,
        work: progress::work("checked"),
        in_use,
        found,
        repaired,
        bytes,
        files,
    };
    check.all().await?;
    let DataCheck { found, repaired, bytes, files, .. } = check;
    let bytes = format::bytes(bytes);
    print_line(format_args!(
        "{files} files with {bytes} looked at; {found} faults, {repaired} repaired"
    ))?;
    Ok(if found > repaired { ExitCode::from(FAULTY) } else { ExitCode::SUCCESS })
}

fn is_damage(error: &anyhow::Error) -> bool {
    error.chain().any(|it| it.downcast_ref::<StoreError>().is_some_and(StoreError::is_damage))
}

struct DataCheck<'a> {
    store: Store,
    runs: PathBuf,
    alignments: PathBuf,
    stored_inputs: PathBuf,
    options: &'a CheckOptions,
    work: SlicedWork,
    /// A service is at work: what an interruption would leave is its normal state.
    in_use: bool,
    found: u32,
    repaired: u32,
    bytes: u64,
    files: u64,
}

impl DataCheck<'_> {
    async fn all(&mut self) -> Result<()> {
        for fault in self.store.faults(&self.work).await? {
            self.report(&format!("database: {fault}"), false);
        }
        let runs = self.store.states().await?;
        let ended = runs
            .iter()
            .filter(|(_, state)| state.is_final())
            .map(|(id, _)| FolderSubject::Run(*id));
        let ended: Vec<FolderSubject> = ended
            .chain(self.store.ended_alignments().await?.into_iter().map(FolderSubject::Alignment))
            .collect();
        for subject in ended {
            self.ended(subject).await.with_context(|| format!("cannot look at {subject}"))?;
        }
        self.folders(&self.runs.clone(), |name| name.parse::<RunId>().ok().map(FolderSubject::Run))
            .await?;
        if self.alignments.is_dir() {
            self.folders(&self.alignments.clone(), |name| {
                name.parse::<AlignmentId>().ok().map(FolderSubject::Alignment)
            })
            .await?;
        }
        self.inputs(&self.stored_inputs.clone()).await
    }

    /// Looks for folders that the database does not know.
    async fn folders(
        &mut self,
        all: &Path,
        subject: impl Fn(&str) -> Option<FolderSubject>,
    ) -> Result<()> {
        let entries =
            fs::read_dir(all).with_context(|| format!("cannot read {}", all.display()))?;
        let mut names: Vec<String> =
            entries.filter_map(|it| it.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        for name in names {
            match subject(&name) {
                Some(it) if it.is_known(&self.store).await? => {}
                Some(it) if self.store.removals().await?.contains(&it.removal()) => {
                    print_line(format_args!(
                        "note: {it} is deleted; the service removes its folder"
                    ))?;
                }
                Some(it) => self.orphan(it).await?,
                None if name.strip_suffix(".removed").is_some_and(|id| subject(id).is_some()) => {
                    print_line(format_args!("note: {name} is being removed"))?;
                }
                None => print_line(format_args!(
                    "note: {} is not a folder of llmprof",
                    all.join(name).display()
                ))?,
            }
        }
        Ok(())
    }

    /// The folder of a subject.
    fn dir(&self, of: FolderSubject) -> PathBuf {
        match of {
            FolderSubject::Run(id) => folder::of(&self.runs, id),
            FolderSubject::Alignment(id) => folder::of(&self.alignments, id),
        }
    }

    fn report(&mut self, fault: &str, repaired: bool) {
        self.report_as(fault, repaired.then_some("repaired"));
    }

    /// Reports a fault with its repair, if there was one.
    fn report_as(&mut self, fault: &str, repair: Option<&str>) {
        self.found += 1;
        self.repaired += u32::from(repair.is_some());
        // A repair goes on without its reader.
        _ = print_line(format_args!(
            "{fault}{}",
            repair.map(|repair| format!(" ({repair})")).unwrap_or_default()
        ));
    }

    /// Holds the folder of what has ended to its rows, and its rows to its manifest.
    async fn ended(&mut self, it: FolderSubject) -> Result<()> {
        let (dir, rows) = (self.dir(it), it.rows(&self.store).await?);
        if !dir.is_dir() {
            // Removed while we looked, or ended before it had a folder.
            if !rows.is_empty() && it.is_known(&self.store).await? {
                self.report(&format!("{it}: its folder is missing"), false);
            }
            return Ok(());
        }
        let sealed = manifest::read(&dir);
        let mut known = rows.clone();
        match &sealed {
            Ok(sealed) if *sealed != rows => {
                let whole = verify::faults(&dir, sealed, true, &self.work)?
                    .iter()
                    .all(|(_, fault)| harmless(*fault));
                let repaired = self.options.repair && whole;
                if repaired {
                    it.set_rows(&self.store, sealed).await?;
                    known.clone_from(sealed);
                }
                self.report(&format!("{it}: database and manifest disagree"), repaired);
            }
            Ok(_) => {}
            Err(_) if rows.is_empty() => {}
            Err(error) => {
                self.report(&format!("{it}: its manifest cannot be read: {error}"), false)
            }
        }
        self.files(it, &dir, &known).await
    }

    async fn files(
        &mut self,
        of: FolderSubject,
        dir: &Path,
        artifacts: &[ArtifactRecord],
    ) -> Result<()> {
        self.files += artifacts.len() as u64;
        self.bytes += artifacts.iter().map(|artifact| artifact.bytes).sum::<u64>();
        let faults = verify::faults(dir, artifacts, !self.options.quick, &self.work)?;
        let requeued = self.options.repair
            && faults.iter().any(|(_, fault)| fault.is_cut_off())
            && of.requeue(&self.store, dir, &faults).await?;
        let mut damage = Vec::new();
        for (path, fault) in faults {
            if requeued {
                self.report_as(&format!("{of}: {path} {fault}"), Some("requeued"));
                continue;
            }
            if fault.is_of_unlisted() {
                print_line(format_args!("note: {of}: {path} {fault}"))?;
                continue;
            }
            if self.in_use && fault.is_repairable() {
                print_line(format_args!(
                    "note: {of}: {path} {fault}, unless the service is at work on it"
                ))?;
                continue;
            }
            let repaired = self.options.repair && fault.is_repairable();
            if repaired {
                verify::repair(dir, &path, fault)
                    .with_context(|| format!("cannot repair {path} of {of}"))?;
            }
            if !repaired {
                damage.push((path.clone(), fault.to_string()));
            }
            self.report(&format!("{of}: {path} {fault}"), repaired);
        }
        if self.options.repair && !self.options.quick && !requeued {
            of.record_damage(&self.store, &damage).await?;
        }
        Ok(())
    }

    /// Handles a folder without database rows: a sealed one is restored, any other removed.
    async fn orphan(&mut self, it: FolderSubject) -> Result<()> {
        let dir = self.dir(it);
        let Some(lost) = lost::lost(it, &dir) else {
            if self.options.repair {
                folder::remove_tree(&dir, &self.work)
                    .with_context(|| format!("cannot remove {}", dir.display()))?;
            }
            self.report(
                &format!("{it}: its folder is unknown to the database and not sealed"),
                self.options.repair,
            );
            return Ok(());
        };
        if self.options.repair {
            lost.insert(&self.store).await?;
        }
        self.report(
            &format!("{it}: its folder is sealed and the database does not know it"),
            self.options.repair,
        );
        self.files(it, &dir, lost.artifacts()).await
    }
}

fn harmless(fault: FileFault) -> bool {
    fault.is_repairable() || fault.is_of_unlisted()
}

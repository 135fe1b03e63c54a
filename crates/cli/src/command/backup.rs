//! `llmprof backup` and `llmprof restore`: a data folder to another disk while the service runs,
//! and back.
//!
//! The backup's database is put in place last, so a backup that was broken off is the one before.
//! Nothing is restored over anything.

mod inputs;

use std::{
    collections::HashSet,
    fmt::Display,
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use llmprof_core::domain::ids::RunId;
use llmprof_report::format;
use llmprof_service::{
    artifact::{
        backup::{self, BackupOutcome},
        data_folder::FolderLock,
        durable, folder,
        packed::resolved,
    },
    config::Config,
    runtime::work::SlicedWork,
    store::{Store, audit::AuditLog},
};

use super::{
    client::terminal::{print_line, print_notice},
    progress, serve,
};

const DATABASE: &str = "llmprof.db";
const NOT_SEALED: &str = "is not in the backup as it was sealed";
/// Stands in a data folder while it is restored; the service refuses one that has it.
pub const RESTORING: &str = "restoring";

/// Back up the database, stored inputs, and the files of all ended runs and alignments, also while
/// a service uses them
///
/// Each content is stored once, by its hash, and copied only if the backup lacks it. Queued and
/// running runs are only in the database and start again after a restore.
#[derive(Debug, Args)]
pub struct BackupOptions {
    /// Folder of the backup; made if absent
    #[arg(value_name = "DIR")]
    to: PathBuf,
    /// Remove contents of runs that are no longer kept
    #[arg(long)]
    prune: bool,
    /// Folder of the database and the runs [default: ./data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// File with settings that override the defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Restore a backup into an empty data folder
#[derive(Debug, Args)]
pub struct RestoreOptions {
    /// Folder of the backup
    #[arg(value_name = "DIR")]
    from: PathBuf,
    /// Folder to restore to, absent or empty [default: ./data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// File with settings that override the defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

fn data_folder(data: Option<&PathBuf>, config: Option<&Path>) -> Result<PathBuf> {
    let config = Config::load(config)?;
    Ok(resolved(&data.cloned().unwrap_or(config.server.data)))
}

pub fn backup(options: &BackupOptions) -> Result<()> {
    serve::create_private_files();
    let data = data_folder(options.data.as_ref(), options.config.as_deref())?;
    if !data.join(DATABASE).is_file() {
        bail!("{} holds no database of llmprof", data.display());
    }
    let to = &options.to;
    fs::create_dir_all(to.join(backup::OBJECTS))
        .with_context(|| format!("cannot make the folder {}", to.display()))?;
    let to = &resolved(to);
    serve::runtime()?.block_on(async {
        let store = Store::open(&data.join(DATABASE)).await?;
        let [runs, alignments] = ["runs", "alignments"].map(|it| resolved(&data.join(it)));
        let mut copied = CopyCounts { work: progress::work("backed up"), ..Default::default() };
        // Files first, so that the database never lists a missing one; again after it, for runs
        // ended meanwhile.
        copied.runs(&store, &runs, to).await?;
        copied.alignments(&store, &alignments, to).await?;
        copied.inputs(&store, &data, to).await?;
        let new = to.join("llmprof.db.new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).context("cannot replace the copy");
            }
            _ => store.copy_to(&new).await?,
        }
        copied.runs(&store, &runs, to).await?;
        copied.alignments(&store, &alignments, to).await?;
        copied.inputs(&store, &data, to).await?;
        copy_audit_log(&data, to).context("cannot copy the audit log")?;
        // The contents are durable before the database lists them.
        durable::sync_disk(to).context("cannot write the backup to its disk")?;
        fs::rename(&new, to.join(DATABASE))
            .and_then(|()| durable::sync_folder(to))
            .context("cannot put the copy of the database in place")?;
        let pruned = if options.prune {
            backup::prune(to, &copied.wanted).context("cannot prune")?
        } else {
            0
        };
        print_line(format_args!(
            "{} runs with {} files; {} files with {} copied, {pruned} removed",
            copied.seen.len(),
            copied.files,
            copied.new,
            format::bytes(copied.bytes)
        ))?;
        if copied.faults.is_empty() {
            return Ok(());
        }
        copied.faults.iter().for_each(print_notice);
        bail!("cannot back up {} files; run llmprof check", copied.faults.len())
    })
}

#[derive(Default)]
struct CopyCounts {
    work: SlicedWork,
    seen: HashSet<RunId>,
    wanted: HashSet<String>,
    files: u64,
    new: u64,
    bytes: u64,
    faults: Vec<String>,
}

impl CopyCounts {
    /// Keeps the files of all ended runs that were not looked at yet.
    async fn runs(&mut self, store: &Store, runs: &Path, to: &Path) -> Result<()> {
        for (id, state) in store.states().await? {
            if !state.is_final() || !self.seen.insert(id) {
                continue;
            }
            for artifact in store.artifacts(id).await? {
                self.files += 1;
                match backup::keep(to, &folder::of(runs, id), &artifact, &self.work) {
                    Ok(BackupOutcome::Already) => {}
                    Ok(BackupOutcome::Copied(bytes)) => {
                        (self.new, self.bytes) = (self.new + 1, self.bytes + bytes)
                    }
                    Ok(BackupOutcome::Changed) => self
                        .faults
                        .push(format!("run {id}: {} is not what was sealed", artifact.path)),
                    // The run was removed meanwhile.
                    Err(_) if store.owner(id).await?.is_none() => break,
                    Err(error) => self.faults.push(format!("run {id}: {}: {error}", artifact.path)),
                }
                self.wanted.insert(artifact.sha256);
            }
        }
        Ok(())
    }

    /// Keeps the files of all alignments that have ended; what was kept before is passed over.
    async fn alignments(&mut self, store: &Store, alignments: &Path, to: &Path) -> Result<()> {
        for id in store.ended_alignments().await? {
            for artifact in store.alignment_artifacts(id).await? {
                match backup::keep(to, &folder::of(alignments, id), &artifact, &self.work) {
                    Ok(BackupOutcome::Already) => {}
                    Ok(BackupOutcome::Copied(bytes)) => {
                        (self.files, self.new, self.bytes) =
                            (self.files + 1, self.new + 1, self.bytes + bytes);
                    }
                    Ok(BackupOutcome::Changed) => self
                        .faults
                        .push(format!("alignment {id}: {} is not what was sealed", artifact.path)),
                    Err(_) if store.alignment(id).await?.is_none() => break,
                    Err(error) => {
                        self.faults.push(format!("alignment {id}: {}: {error}", artifact.path))
                    }
                }
                self.wanted.insert(artifact.sha256);
            }
        }
        Ok(())
    }
}

/// Copies all files of the audit log of a folder to another one.
fn copy_audit_log(from: &Path, to: &Path) -> std::io::Result<()> {
    for path in AuditLog::files(from) {
        match path.file_name().map(|name| fs::copy(&path, to.join(name))) {
            // Renamed or removed by the service meanwhile.
            Some(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Makes the service refuse the folder, also after a power cut.
fn mark_as_restoring(data: &Path) -> io::Result<()> {
    fs::write(data.join(RESTORING), "")?;
    durable::sync_folder(data)
}

/// Makes the service accept the folder, once everything in it is durable.
fn mark_as_restored(data: &Path) -> io::Result<()> {
    durable::sync_disk(data)?;
    fs::remove_file(data.join(RESTORING))?;
    durable::sync_folder(data)
}

pub fn restore(options: &RestoreOptions) -> Result<()> {
    serve::create_private_files();
    let from = &resolved(&options.from);
    let data = data_folder(options.data.as_ref(), options.config.as_deref())?;
    if !from.join(DATABASE).is_file() {
        bail!("{} is not a backup: it does not contain {DATABASE}", from.display());
    }
    fs::create_dir_all(data.join("runs"))
        .with_context(|| format!("cannot make the folder {}", data.display()))?;
    let mut entries =
        fs::read_dir(&data).with_context(|| format!("cannot read {}", data.display()))?.flatten();
    let empty_runs = fs::read_dir(data.join("runs")).is_ok_and(|mut runs| runs.next().is_none());
    if entries.any(|entry| entry.file_name() != "runs") || !empty_runs {
        bail!("{} is not empty: a backup is restored into a new folder", data.display());
    }
    let _lock = FolderLock::take(&data)?;
    mark_as_restoring(&data).context("cannot mark the folder as being restored")?;
    fs::copy(from.join(DATABASE), data.join(DATABASE)).context("cannot copy the database")?;
    copy_audit_log(from, &data).context("cannot copy the audit log")?;
    serve::runtime()?.block_on(async {
        let store = Store::open(&data.join(DATABASE)).await?;
        let work = progress::work("restored");
        let (mut files, mut bytes, mut faults) = (0_u64, 0_u64, 0_u64);
        for (id, state) in store.states().await? {
            if !state.is_final() {
                continue;
            }
            let dir = folder::of(&data.join("runs"), id);
            for artifact in store.artifacts(id).await? {
                match backup::bring_back(from, &dir, &artifact, &work) {
                    Ok(Some((stored, packed))) => {
                        (files, bytes) = (files + 1, bytes + stored);
                        store.set_stored(id, &artifact.path, packed.then_some(stored)).await?;
                    }
                    Ok(None) => {
                        faults += 1;
                        print_fault("run", id, &artifact.path, "is not what was sealed");
                    }
                    Err(error) => {
                        faults += 1;
                        let why = format!("cannot be restored: {error}");
                        print_fault("run", id, &artifact.path, &why);
                    }
                }
            }
        }
        for id in store.ended_alignments().await? {
            let dir = folder::of(&data.join("alignments"), id);
            for artifact in store.alignment_artifacts(id).await? {
                match backup::bring_back(from, &dir, &artifact, &work) {
                    Ok(Some((stored, _))) => (files, bytes) = (files + 1, bytes + stored),
                    Ok(None) | Err(_) => {
                        faults += 1;
                        print_fault("alignment", id, &artifact.path, NOT_SEALED);
                    }
                }
            }
        }
        let inputs = inputs::restore(&store, from, &data, &work).await?;
        (files, bytes, faults) = (files + inputs.0, bytes + inputs.1, faults + inputs.2);
        mark_as_restored(&data).context("cannot end the restore")?;
        let (restored, to) = (format::bytes(bytes), data.display());
        print_line(format_args!("{files} files with {restored} restored to {to}"))?;
        if faults > 0 {
            bail!(
                "{faults} files are not in the backup as they were sealed; everything else was \
                 restored"
            );
        }
        Ok(())
    })
}

/// Prints why a file was not restored.
fn print_fault(kind: &str, id: impl Display, path: &str, why: &str) {
    print_notice(format_args!("{kind} {id}: {path} {why}"));
}

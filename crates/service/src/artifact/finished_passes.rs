//! The finished passes of a run: files with their hashes, recorded durably after each pass, so that
//! an attempt after an interruption repeats only the pass that was cut off.
//!
//! A pass is complete if every file has its recorded hash. Files that are written again from others
//! are not recorded.

use std::{collections::HashSet, fs, io, path::Path};

use llmprof_core::{
    domain::{finding::Finding, pass_conditions::PassConditions, run_files::ArtifactRecord},
    layout,
};
use serde::{Deserialize, Serialize};

use super::{
    durable,
    folder::remove_tree,
    manifest::{self, hash_own},
    packed::read_own,
    verify::FileFault,
};
use crate::runtime::work::{SlicedWork, is_stopped};

/// A pass that succeeded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FinishedPass {
    /// Its folder in the run's folder: `baseline`, `ncu/process-1`, `mock/nsys`.
    pub name: String,
    pub attempt: u32,
    /// RFC 3339, UTC.
    pub started_at: String,
    pub ended_at: String,
    /// Findings of its processes.
    pub findings: Vec<Finding>,
    pub files: Vec<ArtifactRecord>,
}

/// `passes.json`: the passes in the order in which they ran, under the same conditions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FinishedPasses {
    pub conditions: PassConditions,
    pub passes: Vec<FinishedPass>,
}

/// A pass that cannot be used, because a file is not the one that was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedPass {
    pub name: String,
    pub path: String,
    pub fault: FileFault,
}

/// Finished passes of earlier attempts.
#[derive(Debug, Default)]
pub struct EarlierPasses {
    /// Those up to the first damaged one.
    pub complete: Option<FinishedPasses>,
    pub damaged: Option<DamagedPass>,
}

/// Reads the finished passes in the run's folder `dir`, and compares their files with the hashes.
pub fn read(dir: &Path, work: &SlicedWork) -> io::Result<EarlierPasses> {
    let text = match read_own(&dir.join(layout::PASSES)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
        Err(error) => return Err(error),
    };
    // Another version may have written another format.
    let Ok(FinishedPasses { conditions, passes }) = serde_json::from_slice(&text) else {
        return Ok(EarlierPasses::default());
    };
    let (mut complete, mut damaged) = (Vec::new(), None);
    for pass in passes {
        damaged = damage(dir, &pass, work)?;
        if damaged.is_some() {
            break;
        }
        complete.push(pass);
    }
    let complete =
        (!complete.is_empty()).then_some(FinishedPasses { conditions, passes: complete });
    Ok(EarlierPasses { complete, damaged })
}

/// Records the finished passes of the run in `dir`, durably.
pub fn write(dir: &Path, passes: &FinishedPasses) -> io::Result<()> {
    manifest::write_whole(&dir.join(layout::PASSES), &serde_json::to_vec_pretty(passes)?)
}

/// Removes the record of finished passes, durably.
pub fn forget(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(layout::PASSES)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => durable::sync_folder(dir),
    }
}

/// Makes the files of the pass `name`, and the journal, durable; returns the files with their
/// hashes. An error if they have more than `max_bytes`.
pub fn seal(
    dir: &Path,
    name: &str,
    max_bytes: u64,
    work: &SlicedWork,
) -> io::Result<Vec<ArtifactRecord>> {
    let mut paths: Vec<String> =
        manifest::paths(dir)?.into_iter().filter(|path| layout::is_of_pass(name, path)).collect();
    paths.sort();
    let mut bytes = 0_u64;
    for path in &paths {
        bytes = bytes.saturating_add(fs::symlink_metadata(dir.join(path))?.len());
    }
    if bytes > max_bytes {
        return Err(io::Error::other(format!("{bytes} bytes, more than {max_bytes}")));
    }
    let journal = layout::PROGRESS.to_owned();
    durable::sync_files(dir, paths.iter().chain([&journal]), work)?;
    paths.into_iter().map(|path| manifest::record(dir, path, work)).collect()
}

/// Removes the files of these passes.
pub fn remove(dir: &Path, passes: &[FinishedPass]) -> io::Result<()> {
    for file in passes.iter().flat_map(|pass| &pass.files) {
        let path = dir.join(&file.path);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Folders that are empty now; one with other files stays.
        let mut above = path.ancestors().skip(1).take_while(|folder| *folder != dir);
        above.try_for_each(fs::remove_dir).ok();
    }
    Ok(())
}

/// Removes everything in `dir` but these passes, and files and folders of these names in it.
pub fn remove_others(dir: &Path, passes: &[FinishedPass], names: &[&str]) -> io::Result<()> {
    let kept = passes.iter().flat_map(|pass| &pass.files).map(|file| file.path.as_str()).collect();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if !names.iter().any(|it| name == *it) {
            remove_unless(&entry, name.to_str(), &kept)?;
        }
    }
    Ok(())
}

/// Removes the entry with the path `inside` the run's folder, unless it is one of `kept` or has
/// one; returns true if it was removed.
fn remove_unless(
    entry: &fs::DirEntry,
    inside: Option<&str>,
    kept: &HashSet<&str>,
) -> io::Result<bool> {
    let path = entry.path();
    if !entry.file_type()?.is_dir() {
        if inside.is_some_and(|inside| kept.contains(inside)) {
            return Ok(false);
        }
        return fs::remove_file(path).map(|()| true);
    }
    let is_kept = |inside: &&str| {
        kept.iter().any(|path| path.strip_prefix(inside).is_some_and(|it| it.starts_with('/')))
    };
    let Some(inside) = inside.filter(is_kept) else {
        return remove_tree(&path, &SlicedWork::default()).map(|()| true);
    };
    let mut is_empty = true;
    for entry in fs::read_dir(&path)? {
        let entry = entry?;
        let name = entry.file_name();
        let inside = name.to_str().map(|name| format!("{inside}/{name}"));
        is_empty &= remove_unless(&entry, inside.as_deref(), kept)?;
    }
    if is_empty {
        fs::remove_dir(path)?;
    }
    Ok(is_empty)
}

/// The first file of the pass that is not as recorded.
fn damage(dir: &Path, pass: &FinishedPass, work: &SlicedWork) -> io::Result<Option<DamagedPass>> {
    for file in &pass.files {
        if let Some(fault) = fault(&dir.join(&file.path), file, work)? {
            let (name, path) = (pass.name.clone(), file.path.clone());
            return Ok(Some(DamagedPass { name, path, fault }));
        }
    }
    Ok(None)
}

fn fault(path: &Path, file: &ArtifactRecord, work: &SlicedWork) -> io::Result<Option<FileFault>> {
    // A file of another size is not read.
    let content = match fs::metadata(path) {
        Ok(meta) if meta.len() != file.bytes => Ok((meta.len(), String::new())),
        Ok(_) => hash_own(path, work),
        Err(error) => Err(error),
    };
    match content {
        Ok((bytes, sha256)) if bytes == file.bytes && sha256 == file.sha256 => Ok(None),
        Ok((0, _)) => Ok(Some(FileFault::Empty)),
        Ok(_) => Ok(Some(FileFault::Changed)),
        Err(error) if is_stopped(&error) => Err(error),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(FileFault::Missing)),
        Err(_) => Ok(Some(FileFault::Unreadable)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(dir: &Path, path: &str, text: &str) {
        fs::create_dir_all(dir.join(path).parent().unwrap()).unwrap();
        fs::write(dir.join(path), text).unwrap();
    }

    fn finish(dir: &Path, name: &str) -> FinishedPass {
        FinishedPass {
            name: name.into(),
            attempt: 1,
            started_at: String::new(),
            ended_at: String::new(),
            findings: vec![],
            files: seal(dir, name, u64::MAX, &SlicedWork::default()).unwrap(),
        }
    }

    /// A folder with two finished passes, and files of others.
    fn folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for path in [
            "progress.jsonl",
            "predictions.jsonl",
            "baseline/events.jsonl",
            "baseline/out/a.bin",
            "logs/baseline-1.stdout.log",
            "logs/nsys-version.stdout.log",
            "nsys/run.sqlite",
            "nsys/coverage.json",
            "logs/nsys-export.stderr.log",
            "ncu/decode_all/raw.csv",
            "logs/ncu-decode_all.stderr.log",
            "report.md",
            "manifest.json",
        ] {
            put(dir.path(), path, path);
        }
        std::os::unix::fs::symlink("/etc", dir.path().join("baseline/out/link")).unwrap();
        let passes = vec![finish(dir.path(), "baseline"), finish(dir.path(), "nsys")];
        write(dir.path(), &FinishedPasses { conditions: PassConditions::default(), passes })
            .unwrap();
        dir
    }

    fn paths(passes: &[FinishedPass]) -> Vec<&str> {
        passes.iter().flat_map(|pass| &pass.files).map(|file| file.path.as_str()).collect()
    }

    #[test]
    fn the_files_of_a_pass_are_those_in_its_folder_and_its_logs() {
        let dir = folder();
        let earlier = read(dir.path(), &SlicedWork::default()).unwrap();
        assert_eq!(earlier.damaged, None);
        assert_eq!(
            paths(&earlier.complete.unwrap().passes),
            [
                "baseline/events.jsonl",
                "baseline/out/a.bin",
                "logs/baseline-1.stdout.log",
                "predictions.jsonl",
                "logs/nsys-export.stderr.log",
                "nsys/run.sqlite",
            ]
        );
    }

    #[test]
    fn a_damaged_file_ends_the_passes_that_can_be_used() {
        for (path, name, left, fault) in [
            ("nsys/run.sqlite", "nsys", 1, FileFault::Empty),
            ("baseline/events.jsonl", "baseline", 0, FileFault::Changed),
            ("predictions.jsonl", "baseline", 0, FileFault::Missing),
        ] {
            let dir = folder();
            match fault {
                FileFault::Missing => fs::remove_file(dir.path().join(path)).unwrap(),
                FileFault::Empty => fs::write(dir.path().join(path), "").unwrap(),
                _ => fs::write(dir.path().join(path), "other").unwrap(),
            }
            let EarlierPasses { complete, damaged } =
                read(dir.path(), &SlicedWork::default()).unwrap();
            assert_eq!(complete.map_or(0, |it| it.passes.len()), left);
            let (name, path) = (name.to_owned(), path.to_owned());
            assert_eq!(damaged, Some(DamagedPass { name, path, fault }));
        }
    }

    #[test]
    fn everything_but_finished_passes_and_the_named_files_is_removed() {
        let dir = folder();
        let passes = read(dir.path(), &SlicedWork::default()).unwrap().complete.unwrap().passes;
        remove_others(dir.path(), &passes, &["progress.jsonl", "passes.json"]).unwrap();
        let mut left = manifest::paths(dir.path()).unwrap();
        left.retain(|path| !["progress.jsonl", "passes.json"].contains(&path.as_str()));
        left.sort();
        let mut kept = paths(&passes);
        kept.sort_unstable();
        assert_eq!(left, kept);
        assert!(!dir.path().join("ncu").exists());
        assert!(dir.path().join("baseline/out/link").symlink_metadata().is_err());

        remove(dir.path(), &passes[1..]).unwrap();
        assert!(!dir.path().join("nsys").exists());
        assert!(dir.path().join("baseline/events.jsonl").exists());
    }

    #[test]
    fn a_record_that_cannot_be_parsed_is_none() {
        let dir = folder();
        fs::write(dir.path().join(layout::PASSES), "{").unwrap();
        assert!(read(dir.path(), &SlicedWork::default()).unwrap().complete.is_none());
        fs::remove_file(dir.path().join(layout::PASSES)).unwrap();
        assert!(read(dir.path(), &SlicedWork::default()).unwrap().complete.is_none());
    }
}

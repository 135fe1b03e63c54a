//! Verifies a run's folder: every artifact is complete, and no file is left over.

use std::{fmt, fs, io, path::Path};

use llmprof_core::{domain::run_files::ArtifactRecord, layout};

use super::{packed, walk::walk};
use crate::runtime::work::{SlicedWork, is_stopped};

/// A fault of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFault {
    Missing,
    /// It has no bytes, as after a power cut that came before they were durable.
    Empty,
    /// Its content is not the sealed one.
    Changed,
    Unreadable,
    /// It exists unpacked and packed: packing was interrupted at its end.
    Twice,
    /// Its writer was interrupted.
    Half,
    /// It is in no manifest.
    Unlisted,
    /// Its path is too long, so it is in no manifest.
    TooLong,
}

impl FileFault {
    /// Returns true if a power cut is the likely cause: the run has to be executed again.
    pub fn is_cut_off(self) -> bool {
        self == Self::Empty
    }

    /// Returns true if it concerns no file of the manifest.
    pub fn is_of_unlisted(self) -> bool {
        matches!(self, Self::Unlisted | Self::TooLong)
    }

    /// Returns true if a repair loses no data. Files of a service at work may be in this state.
    pub fn is_repairable(self) -> bool {
        matches!(self, Self::Twice | Self::Half)
    }
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "is missing",
            Self::Empty => "is empty",
            Self::Changed => "is not what was sealed",
            Self::Unreadable => "cannot be read",
            Self::Twice => "exists packed and unpacked: packing was interrupted",
            Self::Half => "is incomplete",
            Self::Unlisted => "is in no manifest, and no client sees it",
            Self::TooLong => "has too long a path, and no client sees it",
        })
    }
}

/// Verifies every file below `dir`. `contents`: also their hashes, otherwise sizes only.
pub fn faults(
    dir: &Path,
    artifacts: &[ArtifactRecord],
    contents: bool,
    work: &SlicedWork,
) -> io::Result<Faults> {
    let mut faults = Vec::new();
    for artifact in artifacts {
        let path = dir.join(&artifact.path);
        let mut found = fault(&path, artifact);
        if contents && found.is_none_or(FileFault::is_repairable) {
            found = content_fault(&path, artifact, work)?.or(found);
        }
        faults.extend(found.map(|fault| (artifact.path.clone(), fault)));
    }
    let (files, unseen) = files(dir, work)?;
    faults.extend(unseen);
    for path in files {
        let original = path.strip_suffix(".zst").unwrap_or(&path);
        let listed = |path: &str| artifacts.iter().any(|artifact| artifact.path == path);
        if path.ends_with(&format!(".{}", packed::HALF))
            || path == format!("{}.new", layout::MANIFEST.trim_end_matches(".json"))
        {
            faults.push((path, FileFault::Half));
        } else if !listed(&path) && !listed(original) && !layout::is_unsealed(&path) {
            faults.push((path, FileFault::Unlisted));
        }
    }
    faults.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(faults)
}

/// Compares the sealed files below `dir` with their hashes; returns the faults. Fails only if
/// `work` is stopped.
pub fn scrub(dir: &Path, artifacts: &[ArtifactRecord], work: &SlicedWork) -> io::Result<Faults> {
    let mut faults = Vec::new();
    for artifact in artifacts {
        let path = dir.join(&artifact.path);
        let found = match fault(&path, artifact).filter(|fault| !fault.is_repairable()) {
            Some(fault) => Some(fault),
            None => match packed::matches(&path, artifact, work) {
                Ok(matches) => (!matches).then_some(FileFault::Changed),
                Err(error) => Some(read_fault(error)?),
            },
        };
        faults.extend(found.map(|fault| (artifact.path.clone(), fault)));
    }
    Ok(faults)
}

/// The fault of a file's content.
fn content_fault(
    path: &Path,
    artifact: &ArtifactRecord,
    work: &SlicedWork,
) -> io::Result<Option<FileFault>> {
    match packed::hash_content(path, work) {
        Ok((bytes, sha256)) if bytes == artifact.bytes && sha256 == artifact.sha256 => Ok(None),
        Ok(_) => Ok(Some(FileFault::Changed)),
        Err(error) => read_fault(error).map(Some),
    }
}

/// The fault of a file that cannot be read; a stop of the work is an error.
fn read_fault(error: io::Error) -> io::Result<FileFault> {
    match error.kind() {
        _ if is_stopped(&error) => Err(error),
        io::ErrorKind::NotFound => Ok(FileFault::Missing),
        _ => Ok(FileFault::Unreadable),
    }
}

/// The fault of a file whose size is not wrong.
fn fault(path: &Path, artifact: &ArtifactRecord) -> Option<FileFault> {
    let (bytes, is_packed) = match packed::stored(path) {
        Ok(stored) => stored,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(FileFault::Missing),
        Err(_) => return Some(FileFault::Unreadable),
    };
    if bytes == 0 && artifact.bytes > 0 {
        return Some(FileFault::Empty);
    }
    if !is_packed && bytes != artifact.bytes {
        return Some(FileFault::Changed);
    }
    (!is_packed && packed::packed_path(path).is_file() && packed::is_raw(artifact))
        .then_some(FileFault::Twice)
}

/// Repairs a fault. If a file exists twice, the unpacked one stays: it was just verified.
pub fn repair(dir: &Path, path: &str, fault: FileFault) -> io::Result<()> {
    match fault {
        FileFault::Twice => fs::remove_file(packed::packed_path(&dir.join(path))),
        FileFault::Half => fs::remove_file(dir.join(path)),
        _ => Ok(()),
    }
}

/// Faults by path inside the folder.
type Faults = Vec<(String, FileFault)>;

/// Every file below `dir`, by its path inside, and the faults of entries that no walk visits.
fn files(dir: &Path, work: &SlicedWork) -> io::Result<(Vec<String>, Faults)> {
    let mut found = Vec::new();
    let named = |path: &Path| path.to_string_lossy().into_owned();
    let unvisited = walk(dir, work, |path, entry| {
        if !entry.file_type()?.is_dir() {
            found.push(named(&path));
        }
        Ok(())
    })?;
    let too_long = unvisited.too_long.iter().map(|path| (named(path), FileFault::TooLong));
    let unreadable = unvisited.unreadable.iter();
    let unreadable = unreadable.map(|(path, _)| (named(path), FileFault::Unreadable));
    let unseen = too_long.chain(unreadable).collect();
    Ok((found, unseen))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::{manifest::seal, walk::tests::nest};

    #[test]
    fn nested_folders_are_named_and_are_no_fault_of_the_sealed_files() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("report.md"), "#").unwrap();
        let sealed = seal(dir.path(), u64::MAX, &SlicedWork::default()).unwrap().artifacts;
        nest(dir.path(), 450);
        let found = faults(dir.path(), &sealed, true, &SlicedWork::default()).unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].0.starts_with("ten-bytes-/ten-bytes-/"));
        assert_eq!((found[0].1, found[0].1.is_of_unlisted()), (FileFault::TooLong, true));
    }

    #[test]
    fn every_kind_of_damage_is_reported_and_repairable_faults_are_repaired() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        fs::create_dir(at("nsys")).unwrap();
        fs::write(at("nsys/run.sqlite"), "row\n".repeat(5000)).unwrap();
        for name in ["a.log", "b.log", "c.log", "d.log", "e.log", "f.log"] {
            fs::write(at(name), "same").unwrap();
        }
        let sealed = seal(dir.path(), u64::MAX, &SlicedWork::default()).unwrap().artifacts;
        assert_eq!(faults(dir.path(), &sealed, true, &SlicedWork::default()).unwrap(), []);
        fs::remove_file(at("a.log")).unwrap();
        fs::write(at("b.log"), "more than that").unwrap();
        fs::write(at("c.log"), "eams").unwrap();
        fs::write(at("d.log"), "").unwrap();
        fs::write(at("e.log"), "sam").unwrap();
        fs::remove_file(at("f.log")).unwrap();
        nix::unistd::mkfifo(&at("f.log"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::write(at("nsys/run.sqlite.zst"), "half").unwrap();
        fs::write(at("nsys/run.sqlite.zst.tmp"), "half").unwrap();
        fs::write(at("stray.txt"), "who wrote this").unwrap();
        let found = faults(dir.path(), &sealed, true, &SlicedWork::default()).unwrap();
        let expected = [
            ("a.log", FileFault::Missing),
            ("b.log", FileFault::Changed),
            ("c.log", FileFault::Changed),
            ("d.log", FileFault::Empty),
            ("e.log", FileFault::Changed),
            ("f.log", FileFault::Unreadable),
            ("nsys/run.sqlite", FileFault::Twice),
            ("nsys/run.sqlite.zst.tmp", FileFault::Half),
            ("stray.txt", FileFault::Unlisted),
        ];
        assert_eq!(found, expected.map(|(path, fault)| (path.to_owned(), fault)));
        let by_size: Vec<_> = faults(dir.path(), &sealed, false, &SlicedWork::default())
            .unwrap()
            .into_iter()
            .map(|(path, _)| path)
            .collect();
        assert!(by_size.contains(&"b.log".to_owned()) && !by_size.contains(&"c.log".to_owned()));
        for (path, fault) in found.iter().filter(|(_, fault)| fault.is_repairable()) {
            repair(dir.path(), path, *fault).unwrap();
        }
        let left: Vec<_> = faults(dir.path(), &sealed, true, &SlicedWork::default())
            .unwrap()
            .into_iter()
            .map(|(_, fault)| fault)
            .collect();
        assert_eq!(
            left,
            [
                FileFault::Missing,
                FileFault::Changed,
                FileFault::Changed,
                FileFault::Empty,
                FileFault::Changed,
                FileFault::Unreadable,
                FileFault::Unlisted
            ]
        );
    }
}

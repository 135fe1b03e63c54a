//! Holds a run's folder to what is known of it: every file there, whole, and nothing half done.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use super::{layout, packed};
use crate::run::ArtifactRecord;

/// What is wrong with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Missing,
    /// Its content is not what was sealed.
    Changed,
    Unreadable,
    /// It lies both as it was and packed: packing was broken off at its end.
    Twice,
    /// A file that was being written when its writer ended.
    Half,
    /// No manifest tells of it.
    Unlisted,
}

impl Fault {
    /// Says whether it can be put right without losing anything.
    pub fn is_repairable(self) -> bool {
        matches!(self, Self::Twice | Self::Half)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "is missing",
            Self::Changed => "is not what was sealed",
            Self::Unreadable => "cannot be read",
            Self::Twice => "lies twice, packed and not: packing was broken off",
            Self::Half => "is half written",
            Self::Unlisted => "is in no manifest; nobody is shown it",
        })
    }
}

/// Looks at every file below `dir`. `contents`: reads and hashes them; otherwise sizes alone are looked at.
pub fn faults(dir: &Path, artifacts: &[ArtifactRecord], contents: bool) -> io::Result<Vec<(String, Fault)>> {
    let mut faults = Vec::new();
    for artifact in artifacts {
        faults.extend(fault(&dir.join(&artifact.path), artifact, contents).map(|fault| (artifact.path.clone(), fault)));
    }
    for path in files(dir)? {
        let original = path.strip_suffix(".zst").unwrap_or(&path);
        let listed = |path: &str| artifacts.iter().any(|artifact| artifact.path == path);
        if path.ends_with(&format!(".{}", packed::HALF)) || path == format!("{}.new", layout::MANIFEST.trim_end_matches(".json"))
        {
            faults.push((path, Fault::Half));
        } else if !listed(&path) && !listed(original) {
            faults.push((path, Fault::Unlisted));
        }
    }
    faults.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(faults)
}

fn fault(path: &Path, artifact: &ArtifactRecord, contents: bool) -> Option<Fault> {
    let (bytes, is_packed) = match packed::stored(path) {
        Ok(stored) => stored,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(Fault::Missing),
        Err(_) => return Some(Fault::Unreadable),
    };
    if contents {
        match packed::hash_content(path) {
            Ok((bytes, sha256)) if bytes == artifact.bytes && sha256 == artifact.sha256 => {}
            Ok(_) => return Some(Fault::Changed),
            Err(_) => return Some(Fault::Unreadable),
        }
    } else if !is_packed && bytes != artifact.bytes {
        return Some(Fault::Changed);
    }
    (!is_packed && packed::packed_path(path).is_file() && packed::is_raw(artifact)).then_some(Fault::Twice)
}

/// Puts a repairable fault right. Of a file that lies twice, the one as it was stays: it was just found whole.
pub fn repair(dir: &Path, path: &str, fault: Fault) -> io::Result<()> {
    match fault {
        Fault::Twice => fs::remove_file(packed::packed_path(&dir.join(path))),
        Fault::Half => fs::remove_file(dir.join(path)),
        _ => Ok(()),
    }
}

/// Every file below `dir`, by its path inside.
fn files(dir: &Path) -> io::Result<Vec<String>> {
    let (mut found, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(dir.join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else {
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::manifest::seal;

    #[test]
    fn every_kind_of_damage_is_told_and_what_can_be_is_put_right() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        fs::create_dir(at("nsys")).unwrap();
        fs::write(at("nsys/run.sqlite"), "row\n".repeat(5000)).unwrap();
        for name in ["a.log", "b.log", "c.log"] {
            fs::write(at(name), "same").unwrap();
        }
        let sealed = seal(dir.path()).unwrap();
        assert_eq!(faults(dir.path(), &sealed, true).unwrap(), []);
        fs::remove_file(at("a.log")).unwrap();
        fs::write(at("b.log"), "more than that").unwrap();
        fs::write(at("c.log"), "eams").unwrap();
        fs::write(at("nsys/run.sqlite.zst"), "half").unwrap();
        fs::write(at("nsys/run.sqlite.zst.tmp"), "half").unwrap();
        fs::write(at("stray.txt"), "who wrote this").unwrap();
        let told = faults(dir.path(), &sealed, true).unwrap();
        let expected = [
            ("a.log", Fault::Missing),
            ("b.log", Fault::Changed),
            ("c.log", Fault::Changed),
            ("nsys/run.sqlite", Fault::Twice),
            ("nsys/run.sqlite.zst.tmp", Fault::Half),
            ("stray.txt", Fault::Unlisted),
        ];
        assert_eq!(told, expected.map(|(path, fault)| (path.to_owned(), fault)));
        let by_size: Vec<_> = faults(dir.path(), &sealed, false).unwrap().into_iter().map(|(path, _)| path).collect();
        assert!(by_size.contains(&"b.log".to_owned()) && !by_size.contains(&"c.log".to_owned()));
        for (path, fault) in told.iter().filter(|(_, fault)| fault.is_repairable()) {
            repair(dir.path(), path, *fault).unwrap();
        }
        let left: Vec<_> = faults(dir.path(), &sealed, true).unwrap().into_iter().map(|(_, fault)| fault).collect();
        assert_eq!(left, [Fault::Missing, Fault::Changed, Fault::Changed, Fault::Unlisted]);
    }
}

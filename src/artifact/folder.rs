//! The folder of a run or an alignment as a whole: set aside, brought back, removed.
//!
//! Each is forgotten in three acts: its folder is set aside, its row goes, the folder goes. Wherever that is broken off, the row
//! tells at the next start what was meant: with a row the folder comes back, without one it goes.

use std::{
    fmt::Display,
    fs, io,
    path::{Path, PathBuf},
    str::FromStr,
};

/// Ending of a folder whose owner is being forgotten.
const ASIDE: &str = "removed";

/// The folder of this id below that of all.
pub fn of(all: &Path, id: impl Display) -> PathBuf {
    all.join(id.to_string())
}

fn aside(all: &Path, id: impl Display) -> PathBuf {
    all.join(format!("{id}.{ASIDE}"))
}

/// Sets a folder aside. Without one there is nothing to set aside.
pub fn set_aside(all: &Path, id: impl Display) -> io::Result<()> {
    missing_is_fine(fs::rename(of(all, &id), aside(all, &id)))
}

/// Brings back a folder that was set aside.
pub fn bring_back(all: &Path, id: impl Display) -> io::Result<()> {
    missing_is_fine(fs::rename(aside(all, &id), of(all, &id)))
}

/// Removes a folder that was set aside.
pub fn remove_aside(all: &Path, id: impl Display) -> io::Result<()> {
    missing_is_fine(fs::remove_dir_all(aside(all, id)))
}

/// Whose folders are set aside.
pub fn all_aside<T: FromStr + Ord>(all: &Path) -> io::Result<Vec<T>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(all)? {
        let name = entry?.file_name();
        let id: Option<T> = name.to_str().and_then(|name| name.strip_suffix(ASIDE)?.strip_suffix('.')?.parse().ok());
        found.extend(id);
    }
    found.sort();
    Ok(found)
}

fn missing_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::RunId;

    #[test]
    fn a_folder_is_set_aside_and_comes_back_or_goes() {
        let runs = tempfile::tempdir().unwrap();
        let (first, second) = (RunId::now(), RunId::now());
        for id in [first, second] {
            fs::create_dir(of(runs.path(), id)).unwrap();
            fs::write(of(runs.path(), id).join("report.md"), "#").unwrap();
            set_aside(runs.path(), id).unwrap();
        }
        assert_eq!(all_aside::<RunId>(runs.path()).unwrap(), [first, second]);
        bring_back(runs.path(), first).unwrap();
        remove_aside(runs.path(), second).unwrap();
        assert!(of(runs.path(), first).join("report.md").is_file() && !of(runs.path(), second).exists());
        assert_eq!(all_aside::<RunId>(runs.path()).unwrap(), []);
        set_aside(runs.path(), second).unwrap();
    }
}

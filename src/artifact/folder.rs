//! The folder of a run as a whole: set aside, brought back, removed.
//!
//! A run is forgotten in three acts: its folder is set aside, its row goes, the folder goes. Wherever that is broken off, the row
//! tells at the next start what was meant: with a row the folder comes back, without one it goes.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::run::RunId;

/// Ending of a folder whose run is being forgotten.
const ASIDE: &str = "removed";

/// The folder of a run below that of all.
pub fn of(runs: &Path, id: RunId) -> PathBuf {
    runs.join(id.to_string())
}

fn aside(runs: &Path, id: RunId) -> PathBuf {
    runs.join(format!("{id}.{ASIDE}"))
}

/// Sets the folder of a run aside. A run without one has nothing to set aside.
pub fn set_aside(runs: &Path, id: RunId) -> io::Result<()> {
    missing_is_fine(fs::rename(of(runs, id), aside(runs, id)))
}

/// Brings back a folder that was set aside.
pub fn bring_back(runs: &Path, id: RunId) -> io::Result<()> {
    missing_is_fine(fs::rename(aside(runs, id), of(runs, id)))
}

/// Removes a folder that was set aside.
pub fn remove_aside(runs: &Path, id: RunId) -> io::Result<()> {
    missing_is_fine(fs::remove_dir_all(aside(runs, id)))
}

/// The runs whose folders are set aside.
pub fn all_aside(runs: &Path) -> io::Result<Vec<RunId>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(runs)? {
        let name = entry?.file_name();
        let id: Option<RunId> = name.to_str().and_then(|name| name.strip_suffix(ASIDE)?.strip_suffix('.')?.parse().ok());
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

    #[test]
    fn a_folder_is_set_aside_and_comes_back_or_goes() {
        let runs = tempfile::tempdir().unwrap();
        let (first, second) = (RunId::now(), RunId::now());
        for id in [first, second] {
            fs::create_dir(of(runs.path(), id)).unwrap();
            fs::write(of(runs.path(), id).join("report.md"), "#").unwrap();
            set_aside(runs.path(), id).unwrap();
        }
        assert_eq!(all_aside(runs.path()).unwrap(), [first, second]);
        bring_back(runs.path(), first).unwrap();
        remove_aside(runs.path(), second).unwrap();
        assert!(of(runs.path(), first).join("report.md").is_file() && !of(runs.path(), second).exists());
        assert_eq!(all_aside(runs.path()).unwrap(), []);
        set_aside(runs.path(), second).unwrap();
    }
}

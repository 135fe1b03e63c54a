//! Files of a sealed folder: the manifest lists each with its size and hash.
//!
//! A reader takes a missing file for a pass that did not run, so the list is compared first.

use std::{
    io,
    path::{Component, Path},
};

use llmprof_core::{domain::state::Step, layout};
use serde::Deserialize;

use super::{ParseError, json, stored::stored};

#[derive(Deserialize)]
struct ListedFiles {
    artifacts: Vec<ListedFile>,
}

#[derive(Deserialize)]
struct ListedFile {
    path: String,
}

/// Refuses a sealed folder that lacks a file of its manifest, or has something other than a regular
/// file there. The report's own files may be absent: they are written again. A folder without a
/// manifest is not sealed, and passes.
pub fn check(dir: &Path) -> Result<(), ParseError> {
    let manifest = dir.join(layout::MANIFEST);
    let Some(listed): Option<ListedFiles> = json(&manifest, "a manifest")? else { return Ok(()) };
    let paths = listed.artifacts.iter().map(|it| it.path.as_str());
    for path in paths.filter(|path| layout::step_of(path) != Some(Step::Report)) {
        if let Some(fault) = fault(dir, path) {
            let what = format!(
                "lists {path:?}, which {fault}; put the file back, or get the whole run again \
                 (`llmprof fetch ID`, or its bundle)"
            );
            return Err(ParseError::Foreign { path: manifest, what });
        }
    }
    Ok(())
}

/// The reason why a listed file cannot be read.
fn fault(dir: &Path, path: &str) -> Option<String> {
    if !is_inside(path) {
        return Some("is not a path in the folder".into());
    }
    let error = stored(&dir.join(path)).err()?;
    Some(match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "is missing".into(),
        io::ErrorKind::InvalidInput => format!("is {error}"),
        _ => format!("cannot be read ({error})"),
    })
}

/// Returns true for a path, as a manifest lists it, that cannot leave the folder of the run.
pub fn is_inside(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    !path.is_empty() && parts.all(|it| matches!(it, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;
    use crate::parse::stored::packed_path;

    const LISTED: [&str; 5] = [
        "baseline/events.jsonl",
        "nsys/run.sqlite",
        "pytorch/trace-1.json",
        "ncu/page-1.csv",
        "inputs/manifest.yaml",
    ];

    /// A folder with a manifest and all files that it lists.
    fn sealed(listed: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for path in listed.iter().filter(|path| is_inside(path)) {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let artifacts: Vec<_> =
            listed.iter().map(|path| serde_json::json!({ "path": path })).collect();
        let manifest = serde_json::json!({ "format_version": 1, "artifacts": artifacts });
        fs::write(dir.path().join(layout::MANIFEST), manifest.to_string()).unwrap();
        dir
    }

    #[test]
    fn a_file_of_the_manifest_that_is_not_there_is_an_error_with_its_name() {
        type Replace = fn(&Path);
        let replacements: [(Replace, &str); 5] = [
            (|_| {}, "is missing"),
            (|path| symlink("nowhere", path).unwrap(), "is not a regular file"),
            (|path| symlink("/dev/null", path).unwrap(), "is not a regular file"),
            (|path| mkfifo(path, Mode::S_IRWXU).unwrap(), "is not a regular file"),
            (|path| fs::create_dir(path).unwrap(), "is not a regular file"),
        ];
        for name in LISTED {
            for (replace, fault) in replacements {
                let dir = sealed(&LISTED);
                assert!(check(dir.path()).is_ok(), "{name}");
                let path = dir.path().join(name);
                fs::remove_file(&path).unwrap();
                replace(&path);
                let refused = super::super::read(dir.path()).unwrap_err().to_string();
                assert!(refused.contains(&format!("lists {name:?}, which {fault}; ")), "{refused}");
                fs::remove_file(dir.path().join(layout::MANIFEST)).unwrap();
                assert!(check(dir.path()).is_ok(), "{name}: an unsealed folder");
            }
        }
    }

    #[test]
    fn a_packed_file_is_there_and_the_files_of_the_report_may_be_absent() {
        let dir = sealed(&["nsys/run.sqlite", layout::REPORT_HTML, layout::KERNELS_CSV]);
        let export = dir.path().join("nsys/run.sqlite");
        fs::rename(&export, packed_path(&export)).unwrap();
        for report in [layout::REPORT_HTML, layout::KERNELS_CSV] {
            fs::remove_file(dir.path().join(report)).unwrap();
        }
        check(dir.path()).unwrap();
    }

    #[test]
    fn a_manifest_that_leaves_the_folder_or_is_damaged_is_refused() {
        for path in ["../other", "/etc/passwd", "", "a/../../b"] {
            let refused = check(sealed(&[path]).path()).unwrap_err().to_string();
            assert!(refused.contains("is not a path in the folder"), "{path:?}: {refused}");
        }
        let dir = sealed(&[]);
        fs::write(dir.path().join(layout::MANIFEST), "{").unwrap();
        let refused = check(dir.path()).unwrap_err().to_string();
        assert!(refused.ends_with("manifest.json: not the JSON of a manifest"), "{refused}");
    }
}

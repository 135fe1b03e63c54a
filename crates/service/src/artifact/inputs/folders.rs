//! Folders in which inputs are looked up by name: the operator's manifests, the bundled samples,
//! and stored inputs.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use llmprof_core::domain::ids::InputsId;

use super::{Inputs, InputsError, read};
use crate::artifact::samples;

/// Maximum number of listed manifests, and depth of their folders.
const MAX_LISTED: usize = 1000;
const MAX_DEPTH: usize = 4;

/// The folders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputFolders {
    /// The operator's manifests.
    pub manifests: PathBuf,
    /// The bundled samples; the operator's manifests precede samples of the same name.
    pub samples: PathBuf,
    /// Manifests of stored inputs, named by id.
    pub stored: PathBuf,
}

/// A manifest that a submission can name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedManifest {
    pub name: String,
    /// Delivered with llmprof.
    pub bundled: bool,
}

impl InputFolders {
    /// The folder of the manifest `name`.
    pub fn root(&self, name: &str) -> &Path {
        if InputsId::of_name(name).is_some() {
            return &self.stored;
        }
        let is_operators = || self.manifests.join(name).symlink_metadata().is_ok();
        if samples::contains(name) && !is_operators() { &self.samples } else { &self.manifests }
    }

    /// Reads the manifest `name`, and checks that its files exist.
    pub fn read(&self, name: &str) -> Result<Inputs, InputsError> {
        read(self.root(name), name)
    }

    /// Manifests by name, at most a thousand of the operator's. Files are not opened.
    pub fn list(&self) -> io::Result<Vec<ListedManifest>> {
        let mut names = Vec::new();
        if self.manifests != self.samples {
            walk(&self.manifests, &self.manifests, 1, &mut names)?;
        }
        let operators = names.iter().map(|name| (name.clone(), false));
        let bundled = samples::manifests().filter(|name| !names.iter().any(|it| it == name));
        let mut listed: Vec<ListedManifest> = operators
            .chain(bundled.map(|name| (name.to_owned(), true)))
            .map(|(name, bundled)| ListedManifest { name, bundled })
            .collect();
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listed)
    }
}

/// Adds the names of manifests in `folder`, relative to `root`. Links are not followed.
fn walk(root: &Path, folder: &Path, depth: usize, names: &mut Vec<String>) -> io::Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, kind) = (entry.path(), entry.file_type()?);
        let is_manifest =
            path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        if names.len() >= MAX_LISTED {
            return Ok(());
        }
        if kind.is_dir() && depth < MAX_DEPTH {
            // A folder that cannot be read has no manifests for this service.
            walk(root, &path, depth + 1, names).ok();
        } else if kind.is_file() && is_manifest {
            let name = path.strip_prefix(root).ok().and_then(Path::to_str);
            names.extend(name.filter(|it| !it.chars().any(char::is_control)).map(str::to_owned));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_available_next_to_the_manifests_of_the_operator() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str| dir.path().join(name);
        let folders = InputFolders {
            manifests: folder("own"),
            samples: folder("samples"),
            stored: folder("stored"),
        };
        samples::unpack(&folders.samples).unwrap();
        fs::create_dir_all(folders.manifests.join("scans/deep/er/est")).unwrap();
        fs::create_dir(&folders.stored).unwrap();
        for name in ["scans/a.yaml", "inputs-text.yaml", "scans/deep/er/est/b.yaml", "note.txt"] {
            fs::write(folders.manifests.join(name), "prompt: own").unwrap();
        }
        let id = InputsId::now().to_string();
        fs::write(folders.stored.join(&id), "prompt: stored").unwrap();
        let prompt = |name: &str| folders.read(name).map(|it| it.samples[0].prompt.clone()).ok();
        assert_eq!(prompt("inputs-text.yaml").as_deref(), Some("own"));
        assert_eq!(prompt(&id).as_deref(), Some("stored"));
        assert!(prompt("inputs.yaml").is_some_and(|it| it.contains("markdown")));
        assert_eq!((prompt(&id.to_uppercase()), prompt("../stored/x")), (None, None));
        let listed = folders.list().unwrap();
        let names: Vec<(&str, bool)> =
            listed.iter().map(|it| (it.name.as_str(), it.bundled)).collect();
        assert_eq!(
            names,
            [
                ("inputs-small.yaml", true),
                ("inputs-text.yaml", false),
                ("inputs.yaml", true),
                ("scans/a.yaml", false)
            ]
        );
    }
}

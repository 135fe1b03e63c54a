//! Stored inputs on disk: each content once, named by its hash, and a manifest per id.
//!
//! `contents/HASH` and `thumbnails/HASH` are never changed; `ID` is a manifest that names contents.
//! The database lists both; files that it does not list are removed at the start of a service.

use std::{
    collections::HashSet,
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use llmprof_core::domain::{
    ids::InputsId,
    input_manifest::{ManifestImage, ManifestSample, ManifestSamples},
    inputs::{InputSample, InputSet, StoredImage},
};
use tokio::sync::{Mutex, MutexGuard};

use super::{
    images, manifest,
    staging::{StagedImage, StagedInputs},
};
use crate::{
    artifact::{durable, folder::ignore_missing, manifest::write_whole},
    runtime::work::SlicedWork,
};

/// Name of the folder in a data folder.
pub const FOLDER: &str = "stored_inputs";
const CONTENTS: &str = "contents";
const THUMBNAILS: &str = "thumbnails";
/// Suffix of a manifest or thumbnail that is being written.
const INCOMPLETE: &str = ".new";

/// A thumbnail on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThumbnailState {
    Readable,
    /// It is made when it is first requested.
    Missing,
    Broken,
}

/// The folder of stored inputs. Clones share its lock.
#[derive(Debug, Clone)]
pub struct InputStorage {
    root: PathBuf,
    /// Held from the first file to the commit, so that no content is removed that another upload
    /// needs.
    changes: Arc<Mutex<()>>,
    /// Held while a missing thumbnail is made: one at a time.
    thumbnails: Arc<Mutex<()>>,
}

impl InputStorage {
    /// Opens the folder, which is created if absent.
    pub fn open(root: &Path) -> io::Result<Self> {
        fs::create_dir_all(root.join(CONTENTS))?;
        fs::create_dir_all(root.join(THUMBNAILS))?;
        durable::sync_parent(root)?;
        Ok(Self::at(root))
    }

    /// The folder as it is, for readers.
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_owned(), changes: Arc::default(), thumbnails: Arc::default() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Folder of contents that were decoded.
    pub fn contents(&self) -> PathBuf {
        self.root.join(CONTENTS)
    }

    /// The file of a content.
    pub fn content(&self, sha256: &str) -> PathBuf {
        self.root.join(CONTENTS).join(sha256)
    }

    /// The thumbnail of a content.
    pub fn thumbnail(&self, sha256: &str) -> PathBuf {
        self.root.join(THUMBNAILS).join(sha256)
    }

    /// Waits until no other upload or deletion changes the files.
    pub async fn lock(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().await
    }

    /// Waits until no other missing thumbnail is made.
    pub async fn lock_thumbnails(&self) -> MutexGuard<'_, ()> {
        self.thumbnails.lock().await
    }

    /// Moves the files of an upload here and writes the manifest; durable on return. The caller
    /// holds [`Self::lock`]. Blocks.
    pub fn add(&self, id: InputsId, staged: &StagedInputs, work: &SlicedWork) -> io::Result<()> {
        for (image, file) in staged.set.images.iter().zip(&staged.files) {
            self.add_content(image, file)?;
        }
        self.write_manifest(id, &staged.set)?;
        let names = || staged.set.images.iter().map(|image| &image.sha256);
        durable::sync_files(&self.contents(), names(), work)?;
        durable::sync_folder(&self.contents())?;
        let made = names().filter(|name| self.thumbnail(name).exists());
        durable::sync_files(&self.root.join(THUMBNAILS), made, work)?;
        durable::sync_folder(&self.root)
    }

    /// Writes the manifest of inputs whose contents are stored. Blocks.
    pub fn write_manifest(&self, id: InputsId, set: &InputSet) -> io::Result<()> {
        let text = manifest::text(manifest_of(set)).map_err(io::Error::other)?;
        write_whole(&self.root.join(id.to_string()), text.as_bytes())
    }

    fn add_content(&self, image: &StoredImage, file: &StagedImage) -> io::Result<()> {
        let to = self.content(&image.sha256);
        let is_stored = fs::metadata(&to).is_ok_and(|there| there.len() == image.bytes);
        if !is_stored && file.path.exists() {
            fs::set_permissions(&file.path, Permissions::from_mode(0o400))?;
            fs::rename(&file.path, &to)?;
        }
        match &file.thumbnail {
            Some(thumbnail) if thumbnail.exists() => {
                fs::rename(thumbnail, self.thumbnail(&image.sha256))
            }
            _ => Ok(()),
        }
    }

    /// Removes the manifest of `id`, and contents that the database no longer lists. The caller
    /// holds [`Self::lock`]. Blocks.
    pub fn remove(&self, id: InputsId, contents: &[String]) -> io::Result<()> {
        ignore_missing(fs::remove_file(self.root.join(id.to_string())))?;
        for sha256 in contents {
            ignore_missing(fs::remove_file(self.content(sha256)))?;
            ignore_missing(fs::remove_file(self.thumbnail(sha256)))?;
        }
        Ok(())
    }

    /// True if the manifest of `id` has the content of `set`. Blocks.
    pub fn has_manifest(&self, id: InputsId, set: &InputSet) -> bool {
        let written = fs::read(self.root.join(id.to_string()));
        written.is_ok_and(|text| manifest::parse(&text) == Ok(manifest_of(set)))
    }

    /// Makes the thumbnail of a stored content again. The error is one line. Blocks.
    pub fn make_thumbnail(&self, sha256: &str) -> Result<(), String> {
        let (_, jpeg) = images::check(&self.content(sha256))?;
        self.keep_thumbnail(sha256, &jpeg).map_err(|error| error.to_string())
    }

    /// Stores the thumbnail of a content durably, in one step. Blocks.
    pub fn keep_thumbnail(&self, sha256: &str, jpeg: &[u8]) -> io::Result<()> {
        write_whole(&self.thumbnail(sha256), jpeg)
    }

    /// The stored thumbnail of a content; `None` if it is missing or incomplete, as after a power
    /// cut. Blocks.
    pub fn read_thumbnail(&self, sha256: &str) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.thumbnail(sha256)) {
            Ok(bytes) => Ok(Some(bytes).filter(|it| images::is_whole_jpeg(it))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// State of the thumbnail of a content. Blocks.
    pub fn thumbnail_state(&self, sha256: &str) -> ThumbnailState {
        let path = self.thumbnail(sha256);
        match self.read_thumbnail(sha256) {
            Ok(Some(_)) if images::header(&path).is_ok() => ThumbnailState::Readable,
            Ok(None) if !path.exists() => ThumbnailState::Missing,
            _ => ThumbnailState::Broken,
        }
    }

    /// Names of manifests and contents that the database does not list, by folder. Thumbnails of
    /// contents that are not stored belong to runs' copies. Blocks.
    pub fn unlisted(
        &self,
        ids: &HashSet<InputsId>,
        contents: &HashSet<String>,
    ) -> io::Result<Vec<String>> {
        let is_listed = |name: &str| name.parse().is_ok_and(|id| ids.contains(&id));
        let mut found = unlisted_files(&self.root, is_listed)?;
        let of_contents = unlisted_files(&self.contents(), |name| contents.contains(name))?;
        found.extend(of_contents.into_iter().map(|name| format!("{CONTENTS}/{name}")));
        found.sort();
        Ok(found)
    }

    /// Removes files that the database does not list; returns their number. Blocks.
    pub fn sweep(
        &self,
        ids: &HashSet<InputsId>,
        contents: &HashSet<String>,
        work: &SlicedWork,
    ) -> io::Result<usize> {
        let is_listed = |name: &str| name.parse().is_ok_and(|id| ids.contains(&id));
        let mut removed = sweep_folder(&self.root, is_listed, work)?;
        for folder in [CONTENTS, THUMBNAILS] {
            let is_listed = |name: &str| contents.contains(name);
            removed += sweep_folder(&self.root.join(folder), is_listed, work)?;
        }
        Ok(removed)
    }
}

/// The manifest of a set, next to the folder of contents.
fn manifest_of(set: &InputSet) -> ManifestSamples {
    let image = |at: &u32| {
        let image = set.images.get(*at as usize)?;
        let path = Path::new(CONTENTS).join(&image.sha256);
        Some(ManifestImage { name: Some(image.name.clone()), ..ManifestImage::of_path(path) })
    };
    let sample = |sample: &InputSample| ManifestSample {
        prompt: sample.prompt.clone(),
        images: sample.images.iter().filter_map(image).collect(),
    };
    ManifestSamples { seed: set.seed, samples: set.samples.iter().map(sample).collect() }
}

/// Removes the files of a folder that are not listed; returns their number.
fn sweep_folder(
    folder: &Path,
    is_listed: impl Fn(&str) -> bool,
    work: &SlicedWork,
) -> io::Result<usize> {
    let unlisted = unlisted_files(folder, is_listed)?;
    for name in &unlisted {
        work.checkpoint()?;
        fs::remove_file(folder.join(name))?;
    }
    Ok(unlisted.len())
}

/// Names of the files of a folder that are incomplete or not listed.
fn unlisted_files(folder: &Path, is_listed: impl Fn(&str) -> bool) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(names),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        // Names of this folder are ASCII.
        let Ok(name) = entry.file_name().into_string() else { continue };
        let is_incomplete = name.ends_with(INCOMPLETE);
        if entry.file_type()?.is_file() && (is_incomplete || !is_listed(&name)) {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use llmprof_core::domain::inputs::ImageFormat;

    use super::*;

    fn staged(dir: &Path, name: &str, text: &str) -> StagedInputs {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        let image = StoredImage {
            name: format!("{name}.png"),
            sha256: format!("hash-of-{text}"),
            bytes: text.len() as u64,
            width: 1,
            height: 1,
            format: ImageFormat::Png,
        };
        let sample = InputSample { prompt: "read".into(), images: vec![0] };
        StagedInputs {
            set: InputSet { samples: vec![sample], images: vec![image], seed: None },
            files: vec![StagedImage { path, thumbnail: None }],
        }
    }

    #[test]
    fn a_content_is_stored_once_and_what_is_not_listed_is_swept() {
        let dir = tempfile::tempdir().unwrap();
        let storage = InputStorage::open(&dir.path().join("stored")).unwrap();
        let (first, second, third) = (InputsId::now(), InputsId::now(), InputsId::now());
        let add = |id, name: &str, text: &str| {
            storage.add(id, &staged(dir.path(), name, text), &SlicedWork::default())
        };
        add(first, "a", "same").unwrap();
        add(second, "b", "same").unwrap();
        add(third, "c", "other").unwrap();
        let contents = |storage: &InputStorage| fs::read_dir(storage.contents()).unwrap().count();
        assert_eq!(contents(&storage), 2);
        let text = fs::read_to_string(storage.root().join(second.to_string())).unwrap();
        assert!(text.contains("contents/hash-of-same") && text.contains("name: b.png"), "{text}");
        let listed = (HashSet::from([first, second]), HashSet::from(["hash-of-same".to_owned()]));
        fs::write(storage.root().join(format!("{first}.new")), "").unwrap();
        assert_eq!(storage.sweep(&listed.0, &listed.1, &SlicedWork::default()).unwrap(), 3);
        assert_eq!(contents(&storage), 1);
        storage.remove(first, &["hash-of-same".into()]).unwrap();
        assert_eq!(
            (contents(&storage), storage.root().join(first.to_string()).exists()),
            (0, false)
        );
    }
}

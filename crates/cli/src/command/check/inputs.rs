//! Stored inputs: the files of each row against their hashes, and files without a row.
//!
//! Nothing that a row names is ever removed.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result};
use llmprof_core::domain::{
    ids::InputsId,
    inputs::{InputSet, StoredImage},
};
use llmprof_service::{
    artifact::{
        inputs::storage::{InputStorage, ThumbnailState},
        manifest,
        packed::open_own,
    },
    store::StoredInputs,
};

use super::{super::client::terminal::print_line, DataCheck};

/// Contents of the rows, each with the inputs that name it.
type NamedContents = BTreeMap<String, (StoredImage, Vec<StoredInputs>)>;

impl DataCheck<'_> {
    /// Checks the stored inputs in `folder`.
    pub(super) async fn inputs(&mut self, folder: &Path) -> Result<()> {
        let (ids, mut contents) = self.store.input_files().await?;
        if ids.is_empty() && !folder.is_dir() {
            return Ok(());
        }
        if !folder.is_dir() && !self.options.repair {
            self.report(&format!("the folder of {} stored inputs is missing", ids.len()), false);
            return Ok(());
        }
        let storage = if self.options.repair {
            InputStorage::open(folder)
                .with_context(|| format!("cannot open {}", folder.display()))?
        } else {
            InputStorage::at(folder)
        };
        let mut named = NamedContents::new();
        let mut sorted: Vec<InputsId> = ids.iter().copied().collect();
        sorted.sort_by_key(|id| id.0);
        for id in sorted {
            // Deleted meanwhile.
            let Some((stored, set)) = self.store.inputs(id).await? else { continue };
            self.manifest(&storage, &stored, &set)?;
            for image in set.images {
                let of = named.entry(image.sha256.clone()).or_insert((image, Vec::new()));
                of.1.push(stored.clone());
            }
        }
        // A content that a row names is kept, whether it is indexed or not.
        contents.extend(named.keys().cloned());
        for (image, inputs) in named.into_values() {
            self.content(&storage, &image, &inputs).await?;
        }
        self.orphans(&storage, &ids, &contents)
    }

    /// The manifest of one row, which can be written again.
    fn manifest(
        &mut self,
        storage: &InputStorage,
        stored: &StoredInputs,
        set: &InputSet,
    ) -> Result<()> {
        let id = stored.id;
        self.files += 1;
        if storage.has_manifest(id, set) {
            return Ok(());
        }
        if self.options.repair {
            storage
                .write_manifest(id, set)
                .with_context(|| format!("cannot write the manifest of the inputs {id}"))?;
        }
        self.report(
            &format!("inputs {id}: the manifest is missing or not that of the database"),
            self.options.repair,
        );
        Ok(())
    }

    /// One content with its thumbnail.
    async fn content(
        &mut self,
        storage: &InputStorage,
        image: &StoredImage,
        inputs: &[StoredInputs],
    ) -> Result<()> {
        self.files += 1;
        self.bytes += image.bytes;
        let subject = format!("inputs {}: {:?}", inputs[0].id, image.name);
        if let Some(fault) = self.fault(&storage.content(&image.sha256), image) {
            if self.store.inputs(inputs[0].id).await?.is_none() {
                return Ok(());
            }
            let runs = inputs.iter().filter_map(|it| it.needed_by);
            let needed: String = runs.map(|run| format!("; the run {run} needs it")).collect();
            let remedy = "restore a backup, or delete the inputs and upload them again";
            self.report(&format!("{subject} {fault}{needed}; {remedy}"), false);
            return Ok(());
        }
        let state = storage.thumbnail_state(&image.sha256);
        match state {
            ThumbnailState::Readable => return Ok(()),
            ThumbnailState::Missing if !self.options.repair => {
                print_line(format_args!(
                    "note: {subject} has no thumbnail; it is made when it is requested"
                ))?;
                return Ok(());
            }
            ThumbnailState::Missing | ThumbnailState::Broken => {}
        }
        let made = self.options.repair.then(|| storage.make_thumbnail(&image.sha256));
        match (state, made) {
            (_, Some(Err(why))) => {
                self.report(&format!("{subject}: cannot make its thumbnail: {why}"), false);
            }
            (ThumbnailState::Missing, _) => {
                print_line(format_args!("note: {subject}: its thumbnail was made"))?
            }
            (_, made) => {
                self.report(&format!("{subject}: its thumbnail is broken"), made.is_some());
            }
        }
        Ok(())
    }

    /// The fault of a content, if it has one.
    fn fault(&self, path: &Path, image: &StoredImage) -> Option<String> {
        let bytes = match fs::metadata(path) {
            Ok(about) => about.len(),
            Err(error) => return Some(format!("is missing ({error})")),
        };
        if bytes != image.bytes {
            return Some(format!("has {bytes} bytes of {}", image.bytes));
        }
        if self.options.quick {
            return None;
        }
        match open_own(path).and_then(|file| manifest::hash(file, &self.work)) {
            Ok((_, sha256)) if sha256 == image.sha256 => None,
            Ok(_) => Some("is not what was stored".into()),
            Err(error) => Some(format!("cannot be read: {error}")),
        }
    }

    /// Files without a row: of interrupted uploads and deletions.
    fn orphans(
        &mut self,
        storage: &InputStorage,
        ids: &HashSet<InputsId>,
        contents: &HashSet<String>,
    ) -> Result<()> {
        let unlisted =
            storage.unlisted(ids, contents).context("cannot list the files of stored inputs")?;
        if self.options.repair {
            storage
                .sweep(ids, contents, &self.work)
                .context("cannot remove files without a row")?;
        }
        for name in unlisted {
            if self.in_use {
                print_line(format_args!(
                    "note: stored inputs: {name} is unknown to the database, unless the \
                          service is at work on it"
                ))?;
            } else {
                let fault = format!("stored inputs: {name} is unknown to the database");
                self.report(&fault, self.options.repair);
            }
        }
        Ok(())
    }
}

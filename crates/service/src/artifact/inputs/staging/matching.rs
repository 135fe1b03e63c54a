//! Images of a manifest, matched with the files of their upload and with stored contents.
//!
//! A file is decoded once. Each name by which samples show it is an image of its own.

use std::path::{Component, Path};

use llmprof_core::domain::{
    input_manifest::{ManifestImage, ManifestSample, ManifestSamples},
    inputs::InputSample,
};

use super::{BY_HASH, InputsUpload, check_hash, unfit};
use crate::artifact::import_staging::{IntakeError, UploadedFile};

/// Samples with the files of their images.
pub(super) struct MatchedSamples {
    /// Their positions count the names of all files, in order.
    pub samples: Vec<InputSample>,
    pub files: Vec<MatchedFile>,
    pub seed: Option<u64>,
}

impl MatchedSamples {
    /// True if both have the same prompts with the same images under the same names. One of them
    /// may lack the seed.
    pub fn is_same_as(&self, other: &Self) -> bool {
        let is_same_file =
            |(a, b): (&MatchedFile, &MatchedFile)| a.file.path == b.file.path && a.names == b.names;
        self.samples == other.samples
            && self.files.len() == other.files.len()
            && self.files.iter().zip(&other.files).all(is_same_file)
            && (self.seed == other.seed || self.seed.is_none() || other.seed.is_none())
    }
}

/// A file with the path and hash by which a manifest names it.
pub(super) struct MatchedFile {
    pub file: UploadedFile,
    /// Names in reports, each once; empty while no sample names the file.
    pub names: Vec<String>,
    path: Option<String>,
    pub sha256: Option<String>,
}

impl MatchedFile {
    /// A file that no sample names yet.
    fn unnamed(file: UploadedFile) -> Self {
        Self { file, names: Vec::new(), path: None, sha256: None }
    }

    /// A file of an upload without a manifest.
    pub fn named_as_uploaded(file: UploadedFile) -> Self {
        Self { names: vec![file.name.clone()], ..Self::unnamed(file) }
    }

    /// The first name in reports, else the name in the upload.
    pub fn name(&self) -> String {
        self.names.first().unwrap_or(&self.file.name).clone()
    }

    /// The error of a file that is not the image that it stands for.
    pub fn refused(&self, why: &str) -> IntakeError {
        unfit(format!("image {}: {why}", self.name()))
    }

    /// Position of a name, which is added if it is new.
    fn position_of(&mut self, name: String) -> usize {
        self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        })
    }
}

/// Matches the samples of a manifest in `folder` with the files of their upload, and with stored
/// contents for images that are named by hash.
pub(super) fn matched_samples(
    from: &ManifestSamples,
    folder: &str,
    files: Vec<UploadedFile>,
    upload: &InputsUpload,
) -> Result<MatchedSamples, IntakeError> {
    let uploaded = files.len();
    let files = files.into_iter().map(MatchedFile::unnamed).collect();
    let mut matching = Matching { files, uploaded, folder, upload };
    let mut samples = Vec::with_capacity(from.samples.len());
    for (at, ManifestSample { images, .. }) in from.samples.iter().enumerate() {
        let sample = if from.samples.len() > 1 { format!("sample {at}: ") } else { String::new() };
        let image = |image: &ManifestImage| {
            let found = matching.find(image);
            let found =
                found.map_err(|why| unfit(format!("{sample}image {}: {why}", image.shown())))?;
            matching.name(found, image)
        };
        samples.push(images.iter().map(image).collect::<Result<Vec<NamedImage>, _>>()?);
    }
    let files = matching.files;
    if let Some(unused) = files.iter().find(|file| file.names.is_empty()) {
        let name = &unused.file.name;
        let is_named = files.iter().any(|file| file.file.name == *name && !file.names.is_empty());
        let why = if is_named { "sent more than once" } else { "not named in the manifest" };
        return Err(unfit(format!("image {name}: {why}")));
    }
    let before = |file: usize| files[..file].iter().map(|it| it.names.len()).sum::<usize>();
    let sample = |(from, images): (&ManifestSample, Vec<NamedImage>)| InputSample {
        prompt: from.prompt.clone(),
        images: images.iter().map(|it| (before(it.file) + it.name) as u32).collect(),
    };
    let samples = from.samples.iter().zip(samples).map(sample).collect();
    Ok(MatchedSamples { samples, files, seed: from.seed })
}

/// An image of a sample: positions of its file, and of its name in the names of the file.
struct NamedImage {
    file: usize,
    name: usize,
}

/// The files of an upload, followed by the stored contents that its manifest names.
struct Matching<'a> {
    files: Vec<MatchedFile>,
    /// Number of uploaded files.
    uploaded: usize,
    /// Folder of the manifest.
    folder: &'a str,
    upload: &'a InputsUpload,
}

impl Matching<'_> {
    /// Position of the file of an image: of the upload, else a stored content, which is added.
    fn find(&mut self, image: &ManifestImage) -> Result<usize, String> {
        let missing = match &image.path {
            Some(path) => match self.find_uploaded(path, image.name.as_deref()) {
                Ok(found) => return Ok(found),
                Err(why) => Some(why),
            },
            None => None,
        };
        let Some(hash) = &image.sha256 else { return Err(missing.unwrap_or_default()) };
        let is_known = |file: &MatchedFile| file.sha256.as_ref() == Some(hash);
        if let Some(found) = self.files.iter().position(is_known) {
            return Ok(found);
        }
        let paths = [self.upload.folder.join(BY_HASH).join(hash), self.upload.known.join(hash)];
        let path = paths.into_iter().find(|path| path.is_file()).ok_or_else(|| {
            let missing = missing.map(|why| format!("{why}, and ")).unwrap_or_default();
            format!("{missing}the service has no image with the hash {hash}; send its file")
        })?;
        let file = UploadedFile { path, name: image.shown() };
        self.files.push(MatchedFile { sha256: Some(hash.clone()), ..MatchedFile::unnamed(file) });
        Ok(self.files.len() - 1)
    }

    /// Position of an uploaded file: by its path, else by the last part of it or by its name in
    /// reports. A file stands for one path.
    fn find_uploaded(&mut self, path: &Path, name: Option<&str>) -> Result<usize, String> {
        let mut parts = Vec::new();
        for part in path.components() {
            match part {
                Component::Normal(part) => parts.push(part.to_string_lossy()),
                Component::CurDir => {}
                _ => return Err("the path leaves the folder of the manifest".into()),
            }
        }
        let (folder, inner) = (self.folder, parts.join("/"));
        let whole = if folder.is_empty() { inner.clone() } else { format!("{folder}/{inner}") };
        let uploaded = &mut self.files[..self.uploaded];
        let position = |name: &str| uploaded.iter().position(|it| it.file.name == name);
        let last = parts.last().map(AsRef::as_ref).unwrap_or_default();
        // Clients send the last part of a file's name in a form; a run's copy has another name than
        // the page that it copies.
        let found = position(&whole)
            .or_else(|| position(last).filter(|_| !self.upload.is_archive))
            .or_else(|| name.and_then(position))
            .ok_or("not in the upload")?;
        let file = &mut uploaded[found];
        match file.path.get_or_insert(inner.clone()) {
            known if *known == inner => Ok(found),
            known => Err(format!(
                "not in the upload: {} is image {known}; images of one name need an archive",
                file.file.name
            )),
        }
    }

    /// The image of the file at `file`, with its name in reports.
    fn name(&mut self, file: usize, image: &ManifestImage) -> Result<NamedImage, IntakeError> {
        let is_uploaded = file < self.uploaded;
        let matched = &mut self.files[file];
        let unnamed = || if is_uploaded { matched.file.name.clone() } else { image.shown() };
        let name = image.name.clone().unwrap_or_else(unnamed);
        let name = matched.position_of(name);
        if let Some(stated) = &image.sha256 {
            let known = matched.sha256.get_or_insert_with(|| stated.clone());
            if let Err(why) = check_hash(known, stated) {
                return Err(matched.refused(&why));
            }
        }
        Ok(NamedImage { file, name })
    }
}

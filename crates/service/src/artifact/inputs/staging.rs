//! Uploaded inputs before they are stored: unpacked within limits, matched with their manifest, and
//! decoded.
//!
//! Executed in a child process: a hostile file ends that process and nothing else. No uploaded name
//! is used as a path.

use std::path::{Path, PathBuf};

use llmprof_core::domain::inputs::{
    InputSample, InputSet, MAX_IMAGES, MAX_PROMPT, MAX_SAMPLES, StoredImage,
};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{
    archive,
    images::{self, ImageHeader},
    manifest::{self, ManifestSample, check_name},
};
use crate::{
    artifact::{
        import_staging::{IntakeError, UploadLimits, UploadedFile},
        manifest::hash_file,
    },
    runtime::work::SlicedWork,
};

/// Images of more pixels are decoded one at a time: one needs up to 1 GB of memory.
const MAX_PARALLEL_PIXELS: u64 = 12_000_000;
/// Extensions of a manifest's name in an archive.
const MANIFESTS: [&str; 3] = ["yaml", "yml", "json"];

/// Files and fields of an upload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InputsUpload {
    /// Folder of the upload.
    pub folder: PathBuf,
    /// Images in order, or the archive.
    pub files: Vec<UploadedFile>,
    pub manifest: Option<UploadedFile>,
    /// The only file is a tar, possibly compressed with zstd.
    pub is_archive: bool,
    /// Samples of an upload without a manifest.
    pub samples: UploadedSamples,
    pub limits: UploadLimits,
    /// Folder of the contents that were decoded before, named by their hash.
    pub known: PathBuf,
}

/// Samples of an upload without a manifest.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct UploadedSamples {
    pub prompt: Option<String>,
    /// Each image is a sample of its own; otherwise all are one.
    pub each_image: bool,
}

/// Checked inputs, whose files are still in the folder of their upload.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StagedInputs {
    pub set: InputSet,
    /// File of each image.
    pub files: Vec<StagedImage>,
}

/// File of an image with its thumbnail; `None` if the content was stored before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StagedImage {
    pub path: PathBuf,
    pub thumbnail: Option<PathBuf>,
}

/// A request to check an upload.
#[derive(Debug)]
pub struct InputsInspection {
    pub upload: InputsUpload,
    pub answer: oneshot::Sender<Result<StagedInputs, IntakeError>>,
}

fn unfit(message: impl Into<String>) -> IntakeError {
    IntakeError::Unfit(message.into())
}

/// Checks an upload: every image is decoded once. Blocks.
pub fn stage(upload: &InputsUpload) -> Result<StagedInputs, IntakeError> {
    let (files, manifest) = if upload.is_archive {
        unpack(upload)?
    } else {
        (upload.files.clone(), upload.manifest.clone())
    };
    if files.len() > MAX_IMAGES {
        return Err(unfit(format!("{} images; at most {MAX_IMAGES} are accepted", files.len())));
    }
    for file in &files {
        check_name(&file.name).map_err(unfit)?;
    }
    let (samples, names) = match &manifest {
        Some(manifest) => named_samples(manifest, &files)?,
        None => {
            let names = files.iter().map(|file| file.name.clone()).collect();
            (plain_samples(&upload.samples, files.len())?, names)
        }
    };
    let decoded: Vec<(StoredImage, StagedImage)> = decode(&files, names, upload)?;
    let (images, files) = decoded.into_iter().unzip();
    Ok(StagedInputs { set: InputSet { samples, images }, files })
}

/// Unpacks the archive; returns its images by name, and its manifest.
fn unpack(upload: &InputsUpload) -> Result<(Vec<UploadedFile>, Option<UploadedFile>), IntakeError> {
    let [file] = upload.files.as_slice() else { return Err(unfit("not one archive")) };
    let unpacked = archive::unpack(&file.path, &upload.folder, upload.limits)?;
    let is_manifest = |file: &UploadedFile| {
        let extension = file.name.rsplit_once('.').map_or("", |(_, extension)| extension);
        MANIFESTS.contains(&extension)
    };
    let (mut manifests, mut images): (Vec<_>, Vec<_>) = unpacked.into_iter().partition(is_manifest);
    if let [first, second, ..] = manifests.as_slice() {
        let message = format!("more than one manifest: {} and {}", first.name, second.name);
        return Err(unfit(message));
    }
    images.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((images, manifests.pop()))
}

/// The samples of an upload without a manifest.
fn plain_samples(from: &UploadedSamples, images: usize) -> Result<Vec<InputSample>, IntakeError> {
    let missing = "neither a manifest nor a prompt; send one of them";
    let prompt = from.prompt.clone().ok_or_else(|| unfit(missing))?;
    if prompt.len() > MAX_PROMPT {
        return Err(unfit(format!("the prompt is longer than {MAX_PROMPT} bytes")));
    }
    let all = 0..images as u32;
    if !from.each_image || images == 0 {
        return Ok(vec![InputSample { prompt, images: all.collect() }]);
    }
    if images > MAX_SAMPLES {
        return Err(unfit(format!("{images} samples; at most {MAX_SAMPLES} are accepted")));
    }
    Ok(all.map(|at| InputSample { prompt: prompt.clone(), images: vec![at] }).collect())
}

/// The samples of a manifest, and the name of each file in reports.
fn named_samples(
    from: &UploadedFile,
    files: &[UploadedFile],
) -> Result<(Vec<InputSample>, Vec<String>), IntakeError> {
    let wrong = |why: String| unfit(format!("{} is not a manifest: {why}", from.name));
    let text = std::fs::read(&from.path)?;
    let samples = manifest::parse(&text).map_err(wrong)?;
    let folder = from.name.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut names: Vec<Option<String>> = vec![None; files.len()];
    let mut find = |at: usize, image: &manifest::ManifestImage| {
        let shown = image.path.display();
        let found = find_file(files, folder, &image.path).map_err(|why| {
            let sample = if samples.len() > 1 { format!("sample {at}: ") } else { String::new() };
            unfit(format!("{sample}image {shown}: {why}"))
        })?;
        let name = image.name.clone().unwrap_or_else(|| files[found].name.clone());
        names[found].get_or_insert(name);
        Ok(found as u32)
    };
    let mut found = Vec::with_capacity(samples.len());
    for (at, ManifestSample { prompt, images }) in samples.iter().enumerate() {
        let images = images.iter().map(|image| find(at, image)).collect::<Result<_, IntakeError>>();
        found.push(InputSample { prompt: prompt.clone(), images: images? });
    }
    let unused = names.iter().position(Option::is_none);
    if let Some(at) = unused {
        return Err(unfit(format!("image {}: not named in the manifest", files[at].name)));
    }
    Ok((found, names.into_iter().flatten().collect()))
}

/// The file that a manifest in `folder` names: by its path, else by the last part of it.
fn find_file(files: &[UploadedFile], folder: &str, path: &Path) -> Result<usize, String> {
    use std::path::Component;
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => parts.push(part.to_string_lossy()),
            Component::CurDir => {}
            _ => return Err("the path leaves the folder of the manifest".into()),
        }
    }
    let inner = parts.join("/");
    let whole = if folder.is_empty() { inner.clone() } else { format!("{folder}/{inner}") };
    let position = |name: &str| files.iter().position(|file| file.name == name);
    let last = parts.last().map(AsRef::as_ref).unwrap_or_default();
    // Clients send the last part of a file's name in a form.
    position(&whole)
        .or_else(|| position(last).filter(|_| folder.is_empty()))
        .ok_or_else(|| "not in the upload".into())
}

/// Decodes the files, in parallel where their memory permits it.
fn decode(
    files: &[UploadedFile],
    names: Vec<String>,
    upload: &InputsUpload,
) -> Result<Vec<(StoredImage, StagedImage)>, IntakeError> {
    let headers = files
        .par_iter()
        .map(|file| images::header(&file.path).map_err(|why| bad_image(file, &why)))
        .collect::<Result<Vec<ImageHeader>, _>>()?;
    let is_small = |header: &ImageHeader| {
        u64::from(header.width) * u64::from(header.height) <= MAX_PARALLEL_PIXELS
    };
    let check = |at: usize| check_image(at, &files[at], headers[at], upload);
    let (small, large): (Vec<usize>, Vec<usize>) =
        (0..files.len()).partition(|at| is_small(&headers[*at]));
    let mut checked: Vec<(usize, (StoredImage, StagedImage))> = small
        .into_par_iter()
        .map(|at| Ok((at, check(at)?)))
        .collect::<Result<Vec<_>, IntakeError>>()?;
    for at in large {
        checked.push((at, check(at)?));
    }
    checked.sort_by_key(|(at, _)| *at);
    let named = |((_, (image, file)), name)| (StoredImage { name, ..image }, file);
    Ok(checked.into_iter().zip(names).map(named).collect())
}

fn bad_image(file: &UploadedFile, why: &str) -> IntakeError {
    unfit(format!("image {}: {why}", file.name))
}

/// Hashes one image, and decodes it unless its content was decoded before.
fn check_image(
    at: usize,
    file: &UploadedFile,
    header: ImageHeader,
    upload: &InputsUpload,
) -> Result<(StoredImage, StagedImage), IntakeError> {
    let (bytes, sha256) = hash_file(&file.path, &SlicedWork::default())?;
    let thumbnail = if upload.known.join(&sha256).is_file() {
        None
    } else {
        let thumbnail = upload.folder.join(format!("thumbnail-{at}"));
        images::check(&file.path, &thumbnail).map_err(|why| bad_image(file, &why))?;
        Some(thumbnail)
    };
    let ImageHeader { format, width, height } = header;
    let image = StoredImage { name: file.name.clone(), sha256, bytes, width, height, format };
    Ok((image, StagedImage { path: file.path.clone(), thumbnail }))
}

#[cfg(test)]
mod tests;

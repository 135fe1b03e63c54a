//! Uploaded inputs before they are stored: unpacked within limits, matched with their manifest, and
//! decoded.
//!
//! Executed in a child process: a hostile file ends that process and nothing else. No uploaded name
//! is used as a path.

use std::path::{Path, PathBuf};

use llmprof_core::domain::{
    input_manifest::{ManifestImage, ManifestSample, ManifestSamples, check_name},
    inputs::{InputSample, InputSet, MAX_IMAGES, MAX_PROMPT, MAX_SAMPLES, StoredImage},
    placeholders::check_placeholders,
};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{
    archive, check_hash,
    images::{self, ImageHeader},
    manifest,
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
/// Folder of contents that a manifest names by hash, in the folder of its upload.
pub const BY_HASH: &str = "by_hash";
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
    /// Samples of the body of a submission, in place of a manifest.
    pub stated: Option<ManifestSamples>,
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
    let all = match (&upload.stated, &manifest) {
        (Some(stated), _) => matched_samples(stated, "", files, upload)?,
        (None, Some(manifest)) => {
            let wrong = |why: String| unfit(format!("{} is not a manifest: {why}", manifest.name));
            let samples = manifest::parse(&std::fs::read(&manifest.path)?).map_err(wrong)?;
            let folder = manifest.name.rsplit_once('/').map_or("", |(folder, _)| folder);
            matched_samples(&samples, folder, files, upload)?
        }
        (None, None) => MatchedSamples {
            samples: plain_samples(&upload.samples, files.len())?,
            files: files.into_iter().map(MatchedFile::from).collect(),
            seed: None,
        },
    };
    let MatchedSamples { samples, files, seed } = all;
    check_placeholders(samples.iter().map(|it| (it.prompt.as_str(), it.images.len())))
        .map_err(unfit)?;
    let decoded: Vec<(StoredImage, StagedImage)> = decode(&files, upload)?;
    let (images, files) = decoded.into_iter().unzip();
    Ok(StagedInputs { set: InputSet { samples, images, seed }, files })
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

/// Samples with the files of their images.
struct MatchedSamples {
    samples: Vec<InputSample>,
    files: Vec<MatchedFile>,
    seed: Option<u64>,
}

/// A file with its name in reports, and the path and hash by which a manifest names it.
struct MatchedFile {
    file: UploadedFile,
    name: Option<String>,
    path: Option<String>,
    sha256: Option<String>,
}

impl From<UploadedFile> for MatchedFile {
    fn from(file: UploadedFile) -> Self {
        Self { file, name: None, path: None, sha256: None }
    }
}

/// Matches the samples of a manifest in `folder` with the files of their upload, and with stored
/// contents for images that are named by hash.
fn matched_samples(
    from: &ManifestSamples,
    folder: &str,
    files: Vec<UploadedFile>,
    upload: &InputsUpload,
) -> Result<MatchedSamples, IntakeError> {
    let uploaded = files.len();
    let mut files: Vec<MatchedFile> = files.into_iter().map(MatchedFile::from).collect();
    let mut is_used = vec![false; uploaded];
    let mut samples = Vec::with_capacity(from.samples.len());
    for (at, ManifestSample { prompt, images }) in from.samples.iter().enumerate() {
        let mut positions = Vec::with_capacity(images.len());
        for image in images {
            let found = find_image(&mut files, folder, image, upload).map_err(|why| {
                let several = from.samples.len() > 1;
                let sample = if several { format!("sample {at}: ") } else { String::new() };
                unfit(format!("{sample}image {}: {why}", image.shown()))
            })?;
            if let Some(used) = is_used.get_mut(found) {
                *used = true;
            }
            let file = &mut files[found];
            file.name = file.name.take().or_else(|| image.name.clone());
            if let Some(stated) = &image.sha256 {
                let known = file.sha256.get_or_insert_with(|| stated.clone());
                check_hash(known, stated).map_err(|why| bad_image(&file.file, &why))?;
            }
            positions.push(found as u32);
        }
        samples.push(InputSample { prompt: prompt.clone(), images: positions });
    }
    if let Some(at) = is_used.iter().position(|used| !used) {
        let name = &files[at].file.name;
        return Err(unfit(format!("image {name}: not named in the manifest")));
    }
    Ok(MatchedSamples { samples, files, seed: from.seed })
}

/// The file of an image: of the upload, else a stored content, which is added to `files`.
fn find_image(
    files: &mut Vec<MatchedFile>,
    folder: &str,
    image: &ManifestImage,
    upload: &InputsUpload,
) -> Result<usize, String> {
    let missing = match &image.path {
        Some(path) => match find_file(files, (upload, folder), path, image.name.as_deref()) {
            Ok(found) => return Ok(found),
            Err(why) => why,
        },
        None => "not in the upload".to_owned(),
    };
    let Some(hash) = &image.sha256 else { return Err(missing) };
    let is_known = |file: &MatchedFile| file.sha256.as_ref() == Some(hash);
    if let Some(found) = files.iter().position(is_known) {
        return Ok(found);
    }
    let paths = [upload.folder.join(BY_HASH).join(hash), upload.known.join(hash)];
    let path = paths.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        format!("{missing}, and the service has no image with the hash {hash}; send its file")
    })?;
    let name = image.name.clone().unwrap_or_else(|| image.shown());
    let file = UploadedFile { path, name: name.clone() };
    files.push(MatchedFile { file, name: Some(name), path: None, sha256: Some(hash.clone()) });
    Ok(files.len() - 1)
}

/// The uploaded file that a manifest in `folder` names: by its path, else by the last part of it or
/// by its name in reports. A file stands for one path.
fn find_file(
    files: &mut [MatchedFile],
    (upload, folder): (&InputsUpload, &str),
    path: &Path,
    name: Option<&str>,
) -> Result<usize, String> {
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
    let position = |name: &str| files.iter().position(|it| it.file.name == name);
    let last = parts.last().map(AsRef::as_ref).unwrap_or_default();
    // Clients send the last part of a file's name in a form; a run's copy has another name than the
    // page that it copies.
    let found = position(&whole)
        .or_else(|| position(last).filter(|_| !upload.is_archive))
        .or_else(|| name.and_then(position))
        .ok_or("not in the upload")?;
    let file = &mut files[found];
    match file.path.get_or_insert(inner.clone()) {
        known if *known == inner => Ok(found),
        known => Err(format!(
            "not in the upload: {} is image {known}; images of one name need an archive",
            file.file.name
        )),
    }
}

/// Decodes the files, in parallel if their memory permits it.
fn decode(
    files: &[MatchedFile],
    upload: &InputsUpload,
) -> Result<Vec<(StoredImage, StagedImage)>, IntakeError> {
    let header =
        |it: &MatchedFile| images::header(&it.file.path).map_err(|why| bad_image(&it.file, &why));
    let headers = files.par_iter().map(header).collect::<Result<Vec<ImageHeader>, _>>()?;
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
    Ok(checked.into_iter().map(|(_, image)| image).collect())
}

fn bad_image(file: &UploadedFile, why: &str) -> IntakeError {
    unfit(format!("image {}: {why}", file.name))
}

/// Hashes one image, and decodes it unless its content was decoded before.
fn check_image(
    at: usize,
    matched: &MatchedFile,
    header: ImageHeader,
    upload: &InputsUpload,
) -> Result<(StoredImage, StagedImage), IntakeError> {
    let file = &matched.file;
    let (bytes, sha256) = hash_file(&file.path, &SlicedWork::default())?;
    if let Some(stated) = &matched.sha256 {
        check_hash(&sha256, stated).map_err(|why| bad_image(file, &why))?;
    }
    let thumbnail = if upload.known.join(&sha256).is_file() {
        None
    } else {
        let thumbnail = upload.folder.join(format!("thumbnail-{at}"));
        images::check(&file.path, &thumbnail).map_err(|why| bad_image(file, &why))?;
        Some(thumbnail)
    };
    let ImageHeader { format, width, height } = header;
    let name = matched.name.clone().unwrap_or_else(|| file.name.clone());
    let image = StoredImage { name, sha256, bytes, width, height, format };
    Ok((image, StagedImage { path: file.path.clone(), thumbnail }))
}

#[cfg(test)]
mod tests;

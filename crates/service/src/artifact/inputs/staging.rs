//! Uploaded inputs before they are stored: unpacked within limits, matched with their manifest, and
//! decoded.
//!
//! Executed in a child process: a hostile file ends that process and nothing else. No uploaded name
//! is used as a path.

mod matching;

use std::path::PathBuf;

use llmprof_core::domain::{
    input_manifest::{ManifestSamples, check_name},
    inputs::{InputSample, InputSet, MAX_IMAGES, MAX_PROMPT, MAX_SAMPLES, StoredImage},
    placeholders::check_placeholders,
};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use self::matching::{MatchedFile, MatchedSamples, matched_samples};
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
    let (files, manifests) = if upload.is_archive {
        unpack(upload)?
    } else {
        (upload.files.clone(), upload.manifest.iter().cloned().collect())
    };
    if files.len() > MAX_IMAGES {
        return Err(unfit(format!("{} images; at most {MAX_IMAGES} are accepted", files.len())));
    }
    for file in &files {
        check_name(&file.name).map_err(unfit)?;
    }
    let all = match (&upload.stated, manifests.as_slice()) {
        (Some(stated), _) => matched_samples(stated, "", files, upload)?,
        (None, [first, others @ ..]) => samples_of_manifests(first, others, &files, upload)?,
        (None, []) => MatchedSamples {
            samples: plain_samples(&upload.samples, files.len())?,
            files: files.into_iter().map(MatchedFile::named_as_uploaded).collect(),
            seed: None,
        },
    };
    let MatchedSamples { samples, files, seed } = all;
    check_placeholders(samples.iter().map(|it| (it.prompt.as_str(), it.images.len())))
        .map_err(unfit)?;
    let decoded: Vec<(StoredImage, StagedImage)> = decode(&files, upload)?;
    let named = |(file, (image, staged)): (MatchedFile, (StoredImage, StagedImage))| {
        let named = move |name| (StoredImage { name, ..image.clone() }, staged.clone());
        file.names.into_iter().map(named)
    };
    let (images, files) = files.into_iter().zip(decoded).flat_map(named).unzip();
    Ok(StagedInputs { set: InputSet { samples, images, seed }, files })
}

/// The samples of the manifest `first`. Another one states the same: a run has `inputs.yaml` and
/// the manifest of its copies.
fn samples_of_manifests(
    first: &UploadedFile,
    others: &[UploadedFile],
    files: &[UploadedFile],
    upload: &InputsUpload,
) -> Result<MatchedSamples, IntakeError> {
    let read = |manifest: &UploadedFile| -> Result<MatchedSamples, IntakeError> {
        check_alone(manifest, &upload.samples)?;
        let wrong = |why: String| unfit(format!("{} is not a manifest: {why}", manifest.name));
        let samples = manifest::parse(&std::fs::read(&manifest.path)?).map_err(wrong)?;
        let folder = manifest.name.rsplit_once('/').map_or("", |(folder, _)| folder);
        matched_samples(&samples, folder, files.to_vec(), upload)
    };
    let mut all = read(first)?;
    for other in others {
        let same = read(other)?;
        if !all.is_same_as(&same) {
            let message = format!(
                "more than one manifest: {} and {} state different samples; send one of them",
                first.name, other.name
            );
            return Err(unfit(message));
        }
        all.seed = all.seed.or(same.seed);
    }
    Ok(all)
}

/// Refuses fields that state the samples of an upload next to its manifest.
fn check_alone(manifest: &UploadedFile, fields: &UploadedSamples) -> Result<(), IntakeError> {
    let field = match fields {
        UploadedSamples { prompt: Some(_), .. } => "prompt",
        UploadedSamples { each_image: true, .. } => "each_image",
        UploadedSamples { prompt: None, each_image: false } => return Ok(()),
    };
    Err(unfit(format!(
        "the manifest {} and `{field}` contradict each other: a manifest states the prompt and the \
         images of each sample; omit `{field}` or the manifest",
        manifest.name
    )))
}

/// Unpacks the archive; returns its images by name, and its manifests.
fn unpack(upload: &InputsUpload) -> Result<(Vec<UploadedFile>, Vec<UploadedFile>), IntakeError> {
    let [file] = upload.files.as_slice() else { return Err(unfit("not one archive")) };
    let unpacked = archive::unpack(&file.path, &upload.folder, upload.limits)?;
    let is_manifest = |file: &UploadedFile| {
        let extension = file.name.rsplit_once('.').map_or("", |(_, extension)| extension);
        MANIFESTS.contains(&extension)
    };
    let (mut manifests, mut images): (Vec<_>, Vec<_>) = unpacked.into_iter().partition(is_manifest);
    manifests.sort_by(|a, b| a.name.cmp(&b.name));
    if let [first, second, third, ..] = manifests.as_slice() {
        let names = [first, second, third].map(|it| it.name.as_str()).join(", ");
        return Err(unfit(format!("more than two manifests: {names}; send one of them")));
    }
    images.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((images, manifests))
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

/// Decodes the files, in parallel if their memory permits it.
fn decode(
    files: &[MatchedFile],
    upload: &InputsUpload,
) -> Result<Vec<(StoredImage, StagedImage)>, IntakeError> {
    let header = |it: &MatchedFile| images::header(&it.file.path).map_err(|why| it.refused(&why));
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

/// Hashes one image, and decodes it unless its content was decoded before.
fn check_image(
    at: usize,
    matched: &MatchedFile,
    header: ImageHeader,
    upload: &InputsUpload,
) -> Result<(StoredImage, StagedImage), IntakeError> {
    let path = &matched.file.path;
    let (bytes, sha256) = hash_file(path, &SlicedWork::default())?;
    if let Some(stated) = &matched.sha256 {
        check_hash(&sha256, stated).map_err(|why| matched.refused(&why))?;
    }
    let thumbnail = if upload.known.join(&sha256).is_file() {
        None
    } else {
        let (_, jpeg) = images::check(path).map_err(|why| matched.refused(&why))?;
        let thumbnail = upload.folder.join(format!("thumbnail-{at}"));
        std::fs::write(&thumbnail, jpeg)?;
        Some(thumbnail)
    };
    let ImageHeader { format, width, height } = header;
    let image = StoredImage { name: matched.name(), sha256, bytes, width, height, format };
    Ok((image, StagedImage { path: path.clone(), thumbnail }))
}

#[cfg(test)]
mod tests;

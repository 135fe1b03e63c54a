//! Manifests of this machine: uploaded with their images, so that a submission can name them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use llmprof_core::domain::{
    image_limits::{MAX_FILE_BYTES, MAX_INLINE_BYTES},
    input_manifest::{ManifestImage, ManifestSample, ManifestSamples, check_name},
};
use llmprof_service::{
    artifact::{
        inputs::{MAX_MANIFEST, check_file_hash, manifest_text, parse_manifest},
        manifest,
        packed::open_named,
    },
    runtime::work::SlicedWork,
};
use reqwest::multipart::{Form, Part};
use serde_json::{Value, json};

use super::{
    super::local_file,
    ServiceClient,
    answers::InputsAnswer,
    terminal::{escaped, print_notice},
    upload::{bar, part},
};

/// A manifest of this machine with the files of its images.
pub struct LocalInputs {
    /// Name in lists.
    name: String,
    /// Its images are named by hash, or by their name in the upload.
    samples: ManifestSamples,
    /// Each file once.
    files: Vec<LocalImage>,
}

/// A file with its name in the upload.
struct LocalImage {
    path: PathBuf,
    name: String,
}

/// The inputs as a part of a submission.
pub struct InlinedInputs {
    pub inputs: Value,
    /// Images that are too large for the submission: it has only their hashes, and the service may
    /// have the images.
    pub by_hash: Vec<NamedImage>,
}

/// An image that a submission names by hash.
pub struct NamedImage {
    pub path: PathBuf,
    pub sha256: String,
}

/// True for the path of a file on this machine; other names are the service's first.
pub fn is_path(name: &str) -> bool {
    ["/", "./", "../"].iter().any(|start| name.starts_with(start))
}

/// The manifest of this machine that a submission in `file` names by a path, relative to the file.
pub fn manifest_in(submission: &Value, file: &Path) -> Option<PathBuf> {
    let name = submission["inputs"].as_str().filter(|name| is_path(name))?;
    Some(file.parent().unwrap_or(Path::new("")).join(name))
}

impl LocalInputs {
    /// Reads a manifest, and finds its images: relative to it, or by absolute paths.
    pub fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let about = fs::metadata(path).map_err(|error| {
            anyhow!(
                "cannot read the manifest {shown}: {error}; --inputs uploads a manifest of this \
                 machine with its images, as POST /inputs does; GET /inputs lists the manifests of \
                 the service"
            )
        })?;
        ensure!(!about.is_dir(), "{shown} is a folder; name the manifest in it");
        ensure!(about.is_file(), "{shown} is not a regular file");
        let bytes = about.len();
        ensure!(
            bytes <= MAX_MANIFEST,
            "{shown} is not a manifest: it has {bytes} bytes; at most {MAX_MANIFEST} are read"
        );
        let text = local_file::read(path, MAX_MANIFEST)?;
        let wrong = |why| anyhow!("{shown} is not a manifest: {why}");
        let mut samples = parse_manifest(&text).map_err(wrong)?;
        let mut files = Vec::new();
        let folder = path.parent().unwrap_or(Path::new(""));
        for image in samples.samples.iter_mut().flat_map(|sample| &mut sample.images) {
            find(image, folder, &mut files)?;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, samples, files })
    }

    /// Stores the inputs; returns their id.
    pub async fn store(self, client: &ServiceClient) -> Result<Value> {
        let Self { name, samples, files } = self;
        let images = samples.images().count();
        let text = manifest_text(samples).map_err(anyhow::Error::msg)?;
        let mut form = Form::new();
        if check_name(&name).is_ok() {
            form = form.text("name", name);
        }
        let bar = bar()?;
        form = form.part("manifest", Part::text(text).file_name("manifest.yaml"));
        for LocalImage { path, name } in files {
            form = form.part("image", part(&path, &bar).await?.file_name(name));
        }
        let path = "/inputs";
        let request = client.http.post(client.url(path)).multipart(form);
        let answer = client.json(request, path).await;
        bar.finish_and_clear();
        let stored: InputsAnswer = client.understood(answer?, path).await?;
        let id = escaped(&stored.inputs_id);
        let plural = if images == 1 { "" } else { "s" };
        print_notice(format_args!(
            "inputs {id}: {images} image{plural}, {}",
            client.url(&format!("/ui/inputs/{id}"))
        ));
        Ok(json!(stored.inputs_id))
    }

    /// The inputs as a part of a submission, for one that stores nothing.
    pub fn inline(self) -> Result<InlinedInputs> {
        let Self { mut samples, files, .. } = self;
        let mut inputs = json!({});
        if let Some(seed) = samples.seed.take() {
            inputs["seed"] = json!(seed);
        }
        let (mut left, mut by_hash) = (MAX_INLINE_BYTES, Vec::new());
        let mut image = |image: &ManifestImage| -> Result<Value> {
            let Some(file) = files.iter().find(|it| is_of(image, it)) else {
                return Ok(json!(image));
            };
            let shown = file.path.display();
            let cannot = || format!("cannot read {shown}");
            let bytes = fs::metadata(&file.path).with_context(cannot)?.len();
            if bytes <= left {
                return inline_image(&file.path, image.name.as_deref(), &mut left);
            }
            let content = open_named(&file.path).with_context(cannot)?;
            let hashed = manifest::hash(content, &SlicedWork::default());
            let (_, sha256) = hashed.with_context(cannot)?;
            by_hash.push(NamedImage { path: file.path.clone(), sha256: sha256.clone() });
            Ok(json!({ "name": image.name, "sha256": sha256 }))
        };
        let sample = |sample: &ManifestSample| -> Result<Value> {
            let images = sample.images.iter().map(&mut image).collect::<Result<Vec<Value>>>()?;
            Ok(json!({ "prompt": sample.prompt, "images": images }))
        };
        inputs["samples"] = samples.samples.iter().map(sample).collect::<Result<Value>>()?;
        Ok(InlinedInputs { inputs, by_hash })
    }
}

/// A file as an image of a submission; without a name it has its position. `left`: bytes of images
/// that the submission may still have.
pub(super) fn inline_image(path: &Path, name: Option<&str>, left: &mut u64) -> Result<Value> {
    let bytes = local_file::read(path, MAX_FILE_BYTES)?;
    *left = left.checked_sub(bytes.len() as u64).with_context(|| {
        format!(
            "image {}: {} bytes; a submission has images of at most {} MiB in total; name them in \
             a manifest and submit it with --inputs FILE, which uploads them, or store them with \
             POST /inputs first",
            path.display(),
            bytes.len(),
            MAX_INLINE_BYTES >> 20
        )
    })?;
    // The service reads the format from the content.
    let data = format!("data:image/*;base64,{}", STANDARD.encode(bytes));
    Ok(match name {
        Some(name) => json!({ "name": name, "data": data }),
        None => json!(data),
    })
}

fn is_of(image: &ManifestImage, file: &LocalImage) -> bool {
    image.path.as_deref() == Some(Path::new(&file.name))
}

/// Finds the file of an image, and names it in the upload. The service may have the content of an
/// image with a hash, whose file is absent here.
fn find(image: &mut ManifestImage, folder: &Path, files: &mut Vec<LocalImage>) -> Result<()> {
    let Some(stated) = image.path.take() else { return Ok(()) };
    let path = folder.join(&stated);
    let shown = path.display();
    let about = match fs::metadata(&path) {
        Ok(about) => about,
        Err(error) if error.kind() == io::ErrorKind::NotFound && image.sha256.is_some() => {
            image.name = image.name.take().or_else(|| upload_name(&stated));
            return Ok(());
        }
        Err(error) => bail!("image {}: cannot read {shown}: {error}", stated.display()),
    };
    local_file::check(&about, MAX_FILE_BYTES).with_context(|| format!("image {shown}"))?;
    if let Some(hash) = &image.sha256 {
        check_file_hash(&path, hash).map_err(|why| anyhow!("image {shown}: {why}"))?;
    }
    let path = path.canonicalize().with_context(|| format!("cannot read {shown}"))?;
    let plain = upload_name(&stated)
        .filter(|name| files.iter().all(|it| it.name != *name || it.path == path));
    image.name = image.name.take().or_else(|| plain.clone()).or_else(|| whole_name(&stated));
    let known = files.iter().find(|file| file.path == path).map(|file| file.name.clone());
    let name = known.unwrap_or_else(|| {
        let name = plain.unwrap_or_else(|| format!("image {}", files.len() + 1));
        files.push(LocalImage { path, name: name.clone() });
        name
    });
    image.path = Some(name.into());
    Ok(())
}

/// A path as it is stated, if it is a valid name of an image.
fn whole_name(path: &Path) -> Option<String> {
    path.to_str().filter(|name| check_name(name).is_ok()).map(str::to_owned)
}

/// The last part of a path, if it is a valid name of an image.
pub(super) fn upload_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    check_name(name).is_ok().then(|| name.to_owned())
}

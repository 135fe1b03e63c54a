//! Inputs of runs: manifests in the inputs folder, and stored inputs.
//!
//! A manifest is checked when a run is submitted, so that no run is queued that cannot start, and
//! again when it starts. Only the headers of its images are read; the runner decodes them. Nothing
//! outside its folder is read.

mod archive;
pub mod copies;
mod folders;
mod images;
mod manifest;
pub mod staging;
pub mod storage;

use std::{
    fs, io,
    path::{Component, Path, PathBuf},
};

use super::manifest::hash_file;
use crate::runtime::work::SlicedWork;
pub use folders::{InputFolders, ListedManifest};
use llmprof_core::domain::{
    image_limits::MAX_FILE_BYTES,
    input_manifest::{ManifestImage, ManifestSample},
    placeholders::check_placeholders,
    run_files::InputFile,
};
pub use manifest::{MAX_MANIFEST, parse as parse_manifest, text as manifest_text};

/// A manifest with existing images.
#[derive(Debug, Clone, PartialEq)]
pub struct Inputs {
    pub manifest: PathBuf,
    /// At least one.
    pub samples: Vec<Sample>,
    /// Seed of a run that states none.
    pub seed: Option<u64>,
}

/// A prompt with its images.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub prompt: String,
    pub images: Vec<Image>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    /// Absolute.
    pub path: PathBuf,
    /// Name in reports; relative to the inputs folder unless the manifest sets it.
    pub name: String,
    pub width: u32,
    pub height: u32,
}

impl Inputs {
    /// Images of all samples, in order.
    pub fn images(&self) -> impl Iterator<Item = &Image> {
        self.samples.iter().flat_map(|sample| &sample.images)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum InputsError {
    #[error("there is no {0} in the inputs folder")]
    NotFound(String),
    #[error("{0} lies outside the inputs folder")]
    Outside(String),
    #[error("{name} is not a manifest: {why}")]
    NotAManifest { name: String, why: String },
    #[error("{name}: {why}")]
    BadPrompt { name: String, why: String },
    #[error("image {name}: {why}")]
    BadImage { name: String, why: String },
    #[error("cannot read {name}")]
    Read { name: String, source: io::Error },
}

/// Reads the manifest `name` under `root`, and checks that its files exist.
pub fn read(root: &Path, name: &str) -> Result<Inputs, InputsError> {
    let root = root
        .canonicalize()
        .map_err(|source| InputsError::Read { name: "the inputs folder".into(), source })?;
    let path = inside(&root, &root, Path::new(name)).map_err(|missing| match missing {
        MissingInput::Outside => InputsError::Outside(name.into()),
        MissingInput::Absent => InputsError::NotFound(name.into()),
    })?;
    let wrong = |why: String| InputsError::NotAManifest { name: name.into(), why };
    let failed = |error: io::Error| wrong(error.to_string());
    let about = fs::metadata(&path).map_err(failed)?;
    if !about.is_file() {
        return Err(wrong("not a regular file".into()));
    }
    if about.len() > manifest::MAX_MANIFEST {
        return Err(wrong(format!("it is larger than {} bytes", manifest::MAX_MANIFEST)));
    }
    let text = fs::read(&path).map_err(failed)?;
    let folder = path.parent().unwrap_or(&root);
    let sample = |sample: ManifestSample| {
        let image = |image: &ManifestImage| read_image(&root, folder, image);
        let images = sample.images.iter().map(image).collect::<Result<_, _>>()?;
        Ok(Sample { prompt: sample.prompt, images })
    };
    let all = manifest::parse(&text).map_err(wrong)?;
    check_placeholders(all.samples.iter().map(|it| (it.prompt.as_str(), it.images.len())))
        .map_err(|why| InputsError::BadPrompt { name: name.into(), why })?;
    let samples = all.samples.into_iter().map(sample).collect::<Result<_, _>>()?;
    Ok(Inputs { manifest: path, samples, seed: all.seed })
}

/// Hashes the images of all samples, each as often as it is named.
pub fn hash_images(inputs: &Inputs, work: &SlicedWork) -> Result<Vec<InputFile>, InputsError> {
    inputs
        .images()
        .map(|image| {
            let path = image.name.clone();
            let (bytes, sha256) = hash_file(&image.path, work)
                .map_err(|source| InputsError::Read { name: path.clone(), source })?;
            Ok(InputFile { path, bytes, sha256, width: image.width, height: image.height })
        })
        .collect()
}

/// Refuses a content other than the one that a manifest states.
fn check_hash(sha256: &str, stated: &str) -> Result<(), String> {
    if sha256 == stated {
        return Ok(());
    }
    Err(format!("it has the hash {sha256}, and the manifest states {stated}"))
}

/// Refuses a file of another content than the one that a manifest states.
pub fn check_file_hash(path: &Path, stated: &str) -> Result<(), String> {
    let hashed = hash_file(path, &SlicedWork::default());
    let (_, sha256) = hashed.map_err(|error| error.to_string())?;
    check_hash(&sha256, stated)
}

enum MissingInput {
    Outside,
    Absent,
}

/// The real path of `name` in `folder`, if it stays under `root` (links followed) and exists.
fn inside(root: &Path, folder: &Path, name: &Path) -> Result<PathBuf, MissingInput> {
    let climbs =
        name.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir));
    if climbs || name.as_os_str().is_empty() || name.as_os_str().as_encoded_bytes().contains(&0) {
        return Err(MissingInput::Outside);
    }
    let path = folder.join(name).canonicalize().map_err(|_| MissingInput::Absent)?;
    if path.starts_with(root) { Ok(path) } else { Err(MissingInput::Outside) }
}

/// Finds an image and reads its size from its first bytes.
fn read_image(root: &Path, folder: &Path, image: &ManifestImage) -> Result<Image, InputsError> {
    let shown = image.shown();
    let wrong = |why: String| InputsError::BadImage { name: shown.clone(), why };
    let Some(path) = &image.path else {
        return Err(wrong("it has no path; POST /inputs also reads images by their hash".into()));
    };
    let path = inside(root, folder, path).map_err(|missing| match missing {
        MissingInput::Outside => InputsError::Outside(shown.clone()),
        MissingInput::Absent => wrong("the file does not exist".into()),
    })?;
    let about = fs::metadata(&path).map_err(|error| wrong(error.to_string()))?;
    if !about.is_file() {
        return Err(wrong("not a regular file".into()));
    }
    if about.len() > MAX_FILE_BYTES {
        return Err(wrong(format!("it is larger than {MAX_FILE_BYTES} bytes")));
    }
    let (width, height) = images::size(&path, &about).map_err(wrong)?;
    if let Some(stated) = &image.sha256 {
        check_file_hash(&path, stated).map_err(wrong)?;
    }
    let relative = || path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
    let name = image.name.clone().unwrap_or_else(relative);
    Ok(Image { path, name, width, height })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nix::time::{ClockId, clock_gettime};

    use super::*;

    fn folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        image::RgbImage::new(3, 2).save(dir.path().join("page.png")).unwrap();
        fs::write(dir.path().join("text.png"), "not an image").unwrap();
        dir
    }

    fn read_text(dir: &Path, text: &str) -> Result<Inputs, InputsError> {
        fs::write(dir.join("m.yaml"), text).unwrap();
        read(dir, "m.yaml")
    }

    #[test]
    fn a_manifest_names_images_in_its_folder() {
        let dir = folder();
        let inputs = read_text(dir.path(), "prompt: hello\nimages: [{path: page.png}]").unwrap();
        assert_eq!(
            (
                inputs.samples[0].prompt.as_str(),
                inputs.samples[0].images[0].width,
                inputs.samples[0].images[0].height
            ),
            ("hello", 3, 2)
        );
        let hashed = hash_images(&inputs, &SlicedWork::default()).unwrap();
        assert_eq!(
            (hashed[0].path.as_str(), hashed[0].bytes),
            ("page.png", fs::metadata(dir.path().join("page.png")).unwrap().len())
        );
    }

    #[test]
    fn nothing_outside_the_folder_is_read() {
        let outer = folder();
        let root = outer.path().join("root");
        fs::create_dir(&root).unwrap();
        std::os::unix::fs::symlink(outer.path().join("page.png"), root.join("link.png")).unwrap();
        fs::write(outer.path().join("m.yaml"), "prompt: x").unwrap();
        std::os::unix::fs::symlink(outer.path().join("m.yaml"), root.join("link.yaml")).unwrap();
        for name in ["../m.yaml", "/etc/passwd", "link.yaml", "", "a\0b", ".//../m.yaml"] {
            assert!(matches!(read(&root, name), Err(InputsError::Outside(_))), "{name}");
        }
        for name in ["../page.png", "/etc/passwd", "link.png"] {
            let read = read_text(&root, &format!("prompt: x\nimages: [{{path: {name}}}]"));
            assert!(matches!(read, Err(InputsError::Outside(_))), "{name}: {read:?}");
        }
    }

    #[test]
    fn an_image_that_no_runner_decodes_is_refused_by_its_header() {
        let dir = folder();
        let name = dir.path().join("wide.png");
        for (width, height, accepted) in
            [(20_000_u32, 1_u32, false), (8000, 8001, false), (8000, 8000, true), (16_384, 1, true)]
        {
            // A header without pixels.
            let mut header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
            header.extend([width.to_be_bytes(), height.to_be_bytes()].concat());
            header.extend([8, 0, 0, 0, 0]);
            let checksum = crc32(&header[12..]);
            header.extend(checksum.to_be_bytes());
            header.extend(b"\0\0\0\0IDAT\x35\xaf\x06\x1e\0\0\0\0IEND\xae\x42\x60\x82");
            fs::write(&name, header).unwrap();
            let read = read_text(dir.path(), "prompt: x\nimages: [{path: wide.png}]");
            assert_eq!(read.is_ok(), accepted, "{width} x {height}: {read:?}");
            assert!(accepted || read.unwrap_err().to_string().contains("scale it down to 16384"));
        }
    }

    /// The checksum of a PNG's chunk.
    fn crc32(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(u32::MAX, |sum, byte| {
            (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
                (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg())
            })
        })
    }

    #[test]
    fn deep_nesting_is_refused_before_it_is_parsed() {
        let dir = folder();
        for text in ["[".repeat(100_000), "{".repeat(100_000), "a: [\"]\",".repeat(50_000)] {
            let error = read_text(dir.path(), &text).unwrap_err().to_string();
            assert!(error.contains("opening brackets"), "{error}");
        }
        let cpu_time = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
        let start = cpu_time();
        let size = (manifest::MAX_MANIFEST - 10) as usize;
        for filler in ["- ", "? ", "a: ", "*a ", "&a ", "'a' ", ", ", "] ", "!a "] {
            let text = "[".repeat(manifest::MAX_BRACKETS - 1) + &filler.repeat(size / filler.len());
            let text = &text[..size];
            assert!(read_text(dir.path(), text).is_err(), "{filler}");
        }
        let took = cpu_time() - start;
        assert!(took.as_secs() < 60, "{took:?}");
        let prompt = "prompt: |\n  [{\"a\": [1, 2]}, {\"b\": {}}]\n";
        assert!(read_text(dir.path(), prompt).is_ok());
    }

    #[test]
    fn errors_name_the_faulty_file() {
        let dir = folder();
        let error_of = |text: &str| read_text(dir.path(), text).unwrap_err().to_string();
        assert!(error_of("images: []").contains("missing field `prompt`"));
        assert!(error_of("prompt: x\nimage: page.png").contains("unknown field `image`"));
        assert_eq!(
            error_of("prompt: x\nimages: [{path: gone.png}]"),
            "image gone.png: the file does not exist"
        );
        assert_eq!(
            error_of("prompt: x\nimages: [{path: text.png}]"),
            "image text.png: neither PNG, JPEG nor WebP"
        );
        assert_eq!(error_of("prompt: x\nimages: [{path: .}]"), "image .: not a regular file");
        let hash = "0".repeat(64);
        let other = error_of(&format!("prompt: x\nimages: [{{path: page.png, sha256: {hash}}}]"));
        assert!(other.ends_with(&format!("and the manifest states {hash}")), "{other}");
        let by_hash = error_of(&format!("prompt: x\nimages: [{{sha256: {hash}}}]"));
        assert!(by_hash.contains("it has no path; POST /inputs"), "{by_hash}");
        let excess = "prompt: \"<image> <image>\"\nimages: [{path: page.png}]";
        assert_eq!(
            error_of(excess),
            "m.yaml: prompt: 2 <image> placeholders, but 1 image; remove placeholders or add images"
        );
        assert!(matches!(read(dir.path(), "gone.yaml"), Err(InputsError::NotFound(_))));
    }
}

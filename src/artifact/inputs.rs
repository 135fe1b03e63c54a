//! Input manifests: a prompt and images, in one folder, and nothing outside it.
//!
//! Checked when a run is submitted, so that no run is queued that cannot start, and again when it
//! starts. Only the headers of images are read; the runner decodes them.

use std::{
    collections::HashMap,
    fs::{self, File, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use image::ImageReader;
use serde::Deserialize;

use super::manifest::hash_file;
use crate::domain::{
    image_limits::{self, MAX_PIXELS, MAX_SIDE},
    run_files::InputFile,
};

const MAX_MANIFEST: u64 = 1 << 20;
const MAX_PROMPT: usize = 64 * 1024;
const MAX_IMAGES: usize = 64;
const MAX_IMAGE: u64 = 64 << 20;
/// Brackets that open a YAML list or map. Its parser compares each token with all that are open.
const MAX_BRACKETS: usize = 1000;

/// The file named by a request.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct InputManifest {
    prompt: String,
    #[serde(default)]
    images: Vec<ManifestImage>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct ManifestImage {
    path: PathBuf,
}

/// A manifest with existing images.
#[derive(Debug, Clone, PartialEq)]
pub struct Inputs {
    pub manifest: PathBuf,
    pub prompt: String,
    pub images: Vec<Image>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    /// Absolute.
    pub path: PathBuf,
    pub width: u32,
    pub height: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum InputsError {
    #[error("there is no {0} in the inputs folder")]
    NotFound(String),
    #[error("{0} lies outside the inputs folder")]
    Outside(String),
    #[error("{name} is not a manifest: {why}")]
    NotAManifest { name: String, why: String },
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
    let manifest = inside(&root, &root, Path::new(name)).map_err(|missing| match missing {
        MissingInput::Outside => InputsError::Outside(name.into()),
        MissingInput::Absent => InputsError::NotFound(name.into()),
    })?;
    let wrong = |why: String| InputsError::NotAManifest { name: name.into(), why };
    let failed = |error: io::Error| wrong(error.to_string());
    let about = fs::metadata(&manifest).map_err(failed)?;
    if !about.is_file() {
        return Err(wrong("not a regular file".into()));
    }
    if about.len() > MAX_MANIFEST {
        return Err(wrong(format!("it is larger than {MAX_MANIFEST} bytes")));
    }
    let text = fs::read(&manifest).map_err(failed)?;
    let brackets = text.iter().filter(|byte| matches!(byte, b'[' | b'{')).count();
    if brackets > MAX_BRACKETS {
        return Err(wrong(format!(
            "it has {brackets} opening brackets, in its prompt or around it; at most \
             {MAX_BRACKETS} are read"
        )));
    }
    let parsed: InputManifest =
        yaml_serde::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
    if parsed.prompt.len() > MAX_PROMPT {
        return Err(wrong(format!("its prompt is longer than {MAX_PROMPT} bytes")));
    }
    if parsed.images.len() > MAX_IMAGES {
        return Err(wrong(format!("it names more than {MAX_IMAGES} images")));
    }
    let folder = manifest.parent().unwrap_or(&root);
    let images = parsed
        .images
        .iter()
        .map(|image| read_image(&root, folder, &image.path))
        .collect::<Result<_, _>>()?;
    Ok(Inputs { manifest, prompt: parsed.prompt, images })
}

/// Hashes the manifest's images; names are relative to `root`.
pub fn hash_images(root: &Path, inputs: &Inputs) -> Result<Vec<InputFile>, InputsError> {
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    inputs
        .images
        .iter()
        .map(|image| {
            let name = image
                .path
                .strip_prefix(&root)
                .unwrap_or(&image.path)
                .to_string_lossy()
                .into_owned();
            let (bytes, sha256) = hash_file(&image.path)
                .map_err(|source| InputsError::Read { name: name.clone(), source })?;
            Ok(InputFile { path: name, bytes, sha256, width: image.width, height: image.height })
        })
        .collect()
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
fn read_image(root: &Path, folder: &Path, name: &Path) -> Result<Image, InputsError> {
    let shown = name.display().to_string();
    let wrong = |why: String| InputsError::BadImage { name: shown.clone(), why };
    let path = inside(root, folder, name).map_err(|missing| match missing {
        MissingInput::Outside => InputsError::Outside(shown.clone()),
        MissingInput::Absent => wrong("the file does not exist".into()),
    })?;
    let about = fs::metadata(&path).map_err(|error| wrong(error.to_string()))?;
    if !about.is_file() {
        return Err(wrong("not a regular file".into()));
    }
    if about.len() > MAX_IMAGE {
        return Err(wrong(format!("it is larger than {MAX_IMAGE} bytes")));
    }
    let (width, height) = size(&path, &about).map_err(wrong)?;
    Ok(Image { path, width, height })
}

/// Version of a file, to detect changes.
#[derive(PartialEq, Eq, Hash, Clone, Copy)]
struct FileVersion {
    device: u64,
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

/// An image's size in pixels; cached, because submissions name the same few images.
fn size(path: &Path, about: &Metadata) -> Result<(u32, u32), String> {
    static KNOWN: Mutex<Option<HashMap<FileVersion, (u32, u32)>>> = Mutex::new(None);
    const MANY: usize = 10_000;
    let version = FileVersion {
        device: about.dev(),
        inode: about.ino(),
        bytes: about.len(),
        changed: (about.mtime(), about.mtime_nsec()),
    };
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(size) = known().as_ref().and_then(|sizes| sizes.get(&version)) {
        return Ok(*size);
    }
    let reader = File::open(path).map_err(|error| error.to_string())?;
    let reader = ImageReader::new(io::BufReader::new(reader))
        .with_guessed_format()
        .map_err(|error| error.to_string())?;
    if reader.format().is_none() {
        return Err("neither PNG, JPEG nor WebP".into());
    }
    let (width, height) =
        reader.into_dimensions().map_err(|error| format!("cannot read its header: {error}"))?;
    if !image_limits::is_within(width, height) {
        return Err(format!(
            "{width} x {height} pixels; scale it down to {MAX_SIDE} per side and {MAX_PIXELS} in \
             total"
        ));
    }
    let mut sizes = known();
    let sizes = sizes.get_or_insert_default();
    if sizes.len() >= MANY {
        sizes.clear();
    }
    sizes.insert(version, (width, height));
    Ok((width, height))
}

#[cfg(test)]
mod tests {
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
            (inputs.prompt.as_str(), inputs.images[0].width, inputs.images[0].height),
            ("hello", 3, 2)
        );
        let hashed = hash_images(dir.path(), &inputs).unwrap();
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
        let start = std::time::Instant::now();
        let size = (MAX_MANIFEST - 10) as usize;
        for filler in ["- ", "? ", "a: ", "*a ", "&a ", "'a' ", ", ", "] ", "!a "] {
            let text = "[".repeat(MAX_BRACKETS - 1) + &filler.repeat(size / filler.len());
            let text = &text[..size];
            assert!(read_text(dir.path(), text).is_err(), "{filler}");
        }
        assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
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
        assert!(matches!(read(dir.path(), "gone.yaml"), Err(InputsError::NotFound(_))));
    }
}

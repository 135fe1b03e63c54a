//! Images of inputs: their sizes from their headers, and their complete content.

use std::{
    collections::HashMap,
    fs::{File, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{Mutex, PoisonError},
};

use image::{DynamicImage, ImageDecoder, ImageReader, Limits, codecs::jpeg::JpegEncoder};
use llmprof_core::domain::{
    image_limits::{self, MAX_DECODER_BYTES, MAX_FILE_BYTES, MAX_PIXELS, MAX_SIDE},
    inputs::ImageFormat,
};

use crate::artifact::packed::open_named;

/// Longest side of a thumbnail, pixels.
const THUMBNAIL: u32 = 240;
const THUMBNAIL_QUALITY: u8 = 75;

/// Format and size of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ImageHeader {
    pub format: ImageFormat,
    pub width: u32,
    pub height: u32,
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
pub(super) fn size(path: &Path, about: &Metadata) -> Result<(u32, u32), String> {
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
    let ImageHeader { width, height, .. } = header(path)?;
    let mut sizes = known();
    let sizes = sizes.get_or_insert_default();
    if sizes.len() >= MANY {
        sizes.clear();
    }
    sizes.insert(version, (width, height));
    Ok((width, height))
}

/// Format and size of an image, from its first bytes.
pub(super) fn header(path: &Path) -> Result<ImageHeader, String> {
    let (reader, format) = open(path)?;
    let (width, height) =
        reader.into_dimensions().map_err(|error| format!("cannot read its header: {error}"))?;
    check_size(width, height)?;
    Ok(ImageHeader { format, width, height })
}

/// Decodes an image completely, within the limits of a runner; returns its header and its
/// thumbnail, a JPEG.
pub(super) fn check(path: &Path) -> Result<(ImageHeader, Vec<u8>), String> {
    let (mut reader, format) = open(path)?;
    let mut limits = Limits::default();
    limits.max_alloc = Some(MAX_DECODER_BYTES);
    reader.limits(limits);
    let broken = |error: image::ImageError| format!("cannot decode it: {}", one_line(&error));
    let mut decoder = reader.into_decoder().map_err(broken)?;
    let (width, height) = decoder.dimensions();
    check_size(width, height)?;
    let orientation = decoder.orientation().map_err(broken)?;
    let page = DynamicImage::from_decoder(decoder).map_err(broken)?;
    let mut small = DynamicImage::from(page.thumbnail(THUMBNAIL, THUMBNAIL).into_rgb8());
    small.apply_orientation(orientation);
    let mut thumbnail = Vec::new();
    let encoder = JpegEncoder::new_with_quality(&mut thumbnail, THUMBNAIL_QUALITY);
    small.write_with_encoder(encoder).map_err(broken)?;
    Ok((ImageHeader { format, width, height }, thumbnail))
}

/// Returns true for a JPEG with its first and last bytes: a power cut may have emptied a thumbnail
/// or cut it off.
pub(super) fn is_whole_jpeg(bytes: &[u8]) -> bool {
    bytes.len() > 4 && bytes.starts_with(&[0xff, 0xd8]) && bytes.ends_with(&[0xff, 0xd9])
}

fn open(path: &Path) -> Result<(ImageReader<io::BufReader<File>>, ImageFormat), String> {
    let file = open_named(path).map_err(|error| error.to_string())?;
    let bytes = file.metadata().map_err(|error| error.to_string())?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(format!("it is larger than {MAX_FILE_BYTES} bytes"));
    }
    let reader = ImageReader::new(io::BufReader::new(file))
        .with_guessed_format()
        .map_err(|error| error.to_string())?;
    let format = match reader.format() {
        Some(image::ImageFormat::Png) => ImageFormat::Png,
        Some(image::ImageFormat::Jpeg) => ImageFormat::Jpeg,
        Some(image::ImageFormat::WebP) => ImageFormat::Webp,
        _ => return Err("neither PNG, JPEG nor WebP".into()),
    };
    Ok((reader, format))
}

fn check_size(width: u32, height: u32) -> Result<(), String> {
    if image_limits::is_within(width, height) {
        return Ok(());
    }
    Err(format!(
        "{width} x {height} pixels; scale it down to {MAX_SIDE} per side and {MAX_PIXELS} in total"
    ))
}

fn one_line(error: &image::ImageError) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

//! From image files to the pixels that the model reads.
//!
//! A page becomes one padded view of the whole and, if it is larger than a crop, a grid of crops.
//! Memory is limited before anything is decoded. Independent of models and stages.

use std::{
    fs::{self, File},
    io::{self, BufReader},
    path::{Path, PathBuf},
};

use candle_core::{DType, Device, Tensor};
use image::{DynamicImage, ImageDecoder, ImageReader, Limits, RgbImage, imageops::FilterType};
use llmprof_core::{
    domain::{
        image_limits::{self, MAX_PIXELS, MAX_SIDE},
        model::VisionSpec,
    },
    trace::event::ImageViews,
};

const MAX_FILE_BYTES: u64 = 256 << 20;
/// Memory limit of a decoder in addition to the page, which has at most 8 bytes per pixel.
const MAX_DECODER_BYTES: u64 = 512 << 20;
/// Grey padding of a page that is not square: the mean of the pixels' normalisation.
const PAD: u8 = 127;

/// A page that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{0} is not a regular file")]
    NoFile(PathBuf),
    #[error("{path} has {bytes} bytes; the maximum is {MAX_FILE_BYTES}")]
    Bytes { path: PathBuf, bytes: u64 },
    #[error(
        "{path} has {width} x {height} pixels; scale it down to {MAX_SIDE} per side and \
         {MAX_PIXELS} in total"
    )]
    Pixels { path: PathBuf, width: u32, height: u32 },
    #[error("cannot decode {path} as an image: {reason}")]
    Decode { path: PathBuf, reason: image::ImageError },
}

/// A page as pixels on the host.
#[derive(Debug)]
pub struct PagePixels {
    views: ImageViews,
    global: Vec<f32>,
    crops: Vec<f32>,
}

/// A page on the device: `[1, 3, side, side]` of the whole, and `[crops, 3, side, side]` in reading
/// order.
#[derive(Clone)]
pub struct PageTensors {
    pub views: ImageViews,
    pub global: Tensor,
    pub crops: Option<Tensor>,
}

/// Reads a page and cuts it into views.
pub fn read(path: &Path, spec: &VisionSpec) -> Result<PagePixels, PageError> {
    decode(path).map(|page| cut(&page, spec))
}

fn decode(path: &Path) -> Result<DynamicImage, PageError> {
    let path = || path.to_owned();
    let read = |source| PageError::Read { path: path(), source };
    let undecodable = |reason| PageError::Decode { path: path(), reason };
    let metadata = fs::metadata(path()).map_err(read)?;
    if !metadata.is_file() {
        return Err(PageError::NoFile(path()));
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(PageError::Bytes { path: path(), bytes: metadata.len() });
    }
    let file = BufReader::new(File::open(path()).map_err(read)?);
    let mut reader = ImageReader::new(file).with_guessed_format().map_err(read)?;
    let mut limits = Limits::default();
    limits.max_alloc = Some(MAX_DECODER_BYTES);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(undecodable)?;
    let (width, height) = decoder.dimensions();
    if !image_limits::is_within(width, height) {
        return Err(PageError::Pixels { path: path(), width, height });
    }
    let orientation = decoder.orientation().map_err(undecodable)?;
    let mut page = DynamicImage::from_decoder(decoder).map_err(undecodable)?;
    page.apply_orientation(orientation);
    // As published, the alpha channel is dropped.
    Ok(page.into_rgb8().into())
}

/// Cuts a page into views.
fn cut(page: &DynamicImage, spec: &VisionSpec) -> PagePixels {
    let (width, height) = (page.width(), page.height());
    let (crops_wide, crops_high) = crop_grid(width, height, spec);
    let crops = local_crops(page, spec.crop_px as u32, crops_wide, crops_high);
    let views = ImageViews {
        width,
        height,
        global_px: spec.global_px as u32,
        crop_px: if crops.is_empty() { 0 } else { spec.crop_px as u32 },
        crops_wide,
        crops_high,
        tokens: spec.tokens(crops_wide as usize, crops_high as usize) as u64,
    };
    PagePixels { views, global: global_view(page, spec.global_px as u32), crops }
}

/// Crops across and down, 0 x 0 for none: of the allowed grids, the one whose aspect ratio is
/// closest to the page's.
///
/// If grids have the same shape, the larger one wins only if the page fills more than half of its
/// pixels.
fn crop_grid(width: u32, height: u32, spec: &VisionSpec) -> (u32, u32) {
    if width.max(height) as usize <= spec.crop_px {
        return (0, 0);
    }
    let sides = 1..=spec.max_crops as u32;
    let allowed = spec.min_crops as u32..=spec.max_crops as u32;
    let mut grids: Vec<(u32, u32)> =
        sides.clone().flat_map(|wide| sides.clone().map(move |high| (wide, high))).collect();
    grids.retain(|(wide, high)| allowed.contains(&(wide * high)));
    grids.sort_by_key(|&(wide, high)| (wide * high, wide));

    let shape = f64::from(width) / f64::from(height);
    let (pixels, crop_pixels) =
        (f64::from(width) * f64::from(height), (spec.crop_px as f64).powi(2));
    let mut best = ((1, 1), f64::INFINITY);
    for (wide, high) in grids {
        let distance = (shape - f64::from(wide) / f64::from(high)).abs();
        let fills = pixels > 0.5 * crop_pixels * f64::from(wide * high);
        if distance < best.1 || (distance == best.1 && fills) {
            best = ((wide, high), distance);
        }
    }
    // One crop would repeat the global view.
    if best.0 == (1, 1) { (0, 0) } else { best.0 }
}

/// The whole page, scaled to fit, in the middle of a grey square.
fn global_view(page: &DynamicImage, side: u32) -> Vec<f32> {
    let (width, height) = (f64::from(page.width()), f64::from(page.height()));
    let fit =
        |short: f64, long: f64| ((short / long * f64::from(side)).round_ties_even() as u32).max(1);
    let (wide, high) =
        if width > height { (side, fit(height, width)) } else { (fit(width, height), side) };
    let middle = |free: u32| i64::from((f64::from(free) / 2.0).round_ties_even() as u32);
    let mut square = RgbImage::from_pixel(side, side, image::Rgb([PAD; 3]));
    let fitted = resize(page, wide, high);
    image::imageops::replace(&mut square, &fitted, middle(side - wide), middle(side - high));
    let mut planes = Vec::with_capacity(3 * (side * side) as usize);
    push_planes(&square, (0, 0), side, &mut planes);
    planes
}

/// The page stretched over a grid of crops, in reading order.
fn local_crops(page: &DynamicImage, side: u32, wide: u32, high: u32) -> Vec<f32> {
    if wide * high == 0 {
        return Vec::new();
    }
    let sheet = resize(page, wide * side, high * side);
    let mut planes = Vec::with_capacity(sheet.len());
    for row in 0..high {
        for column in 0..wide {
            push_planes(&sheet, (column * side, row * side), side, &mut planes);
        }
    }
    planes
}

fn resize(page: &DynamicImage, width: u32, height: u32) -> RgbImage {
    page.resize_exact(width, height, FilterType::CatmullRom).into_rgb8()
}

/// Appends the square at `(left, top)`, one plane per colour, values scaled from 0..=255 to -1..=1.
fn push_planes(sheet: &RgbImage, (left, top): (u32, u32), side: u32, planes: &mut Vec<f32>) {
    let (stride, left, side) = (3 * sheet.width() as usize, 3 * left as usize, side as usize);
    let rows = || sheet.as_raw().chunks_exact(stride).skip(top as usize).take(side);
    for colour in 0..3 {
        for row in rows() {
            let values = row[left..left + 3 * side].iter().skip(colour).step_by(3);
            planes.extend(values.map(|&value| f32::from(value) / 127.5 - 1.0));
        }
    }
}

impl PagePixels {
    /// Moves the pixels to the device.
    pub fn into_page(self, dtype: DType, device: &Device) -> candle_core::Result<PageTensors> {
        let tensor = |pixels: Vec<f32>, count: usize, side: usize| {
            Tensor::from_vec(pixels, (count, 3, side, side), &Device::Cpu)?
                .to_dtype(dtype)?
                .to_device(device)
        };
        let crops = (self.views.crops_wide * self.views.crops_high) as usize;
        let global = tensor(self.global, 1, self.views.global_px as usize)?;
        let crops = (crops > 0)
            .then(|| tensor(self.crops, crops, self.views.crop_px as usize))
            .transpose()?;
        Ok(PageTensors { views: self.views, global, crops })
    }
}

#[cfg(test)]
mod tests {
    use llmprof_core::domain::model::ModelSpec;
    use proptest::prelude::*;

    use super::*;

    fn spec() -> VisionSpec {
        let preset: ModelSpec =
            toml::from_str(include_str!("../../../conf/models/deepseek-ocr.toml"))
                .expect("the preset parses");
        preset.vision.expect("an image side")
    }

    #[test]
    fn a_page_within_one_crop_is_not_cut() {
        assert_eq!(crop_grid(640, 640, &spec()), (0, 0));
        assert_eq!(
            crop_grid(641, 640, &spec()),
            (2, 2),
            "the first of the nearly square grids need not be half filled"
        );
        assert_eq!(crop_grid(4000, 4000, &VisionSpec { max_crops: 0, ..spec() }), (0, 0));
        assert_eq!(
            crop_grid(700, 700, &VisionSpec { min_crops: 1, ..spec() }),
            (0, 0),
            "one crop repeats the global view"
        );
    }

    #[test]
    fn the_grid_has_the_shape_of_the_page() {
        assert_eq!(crop_grid(1240, 1754, &spec()), (2, 3));
        assert_eq!(crop_grid(909, 615, &spec()), (3, 2));
        assert_eq!(crop_grid(16_000, 10, &spec()), (9, 1));
        assert_eq!(crop_grid(10, 16_000, &spec()), (1, 9));
    }

    #[test]
    fn the_larger_of_two_grids_of_one_shape_needs_a_page_that_fills_it() {
        // 3x3 crops of 640 have 3.7 million pixels.
        assert_eq!(crop_grid(1300, 1300, &spec()), (2, 2));
        assert_eq!(crop_grid(1400, 1400, &spec()), (3, 3));
        assert_eq!(crop_grid(600, 1200, &spec()), (1, 2));
        assert_eq!(crop_grid(1000, 2000, &spec()), (2, 4));
    }

    proptest! {
        #[test]
        fn a_page_gets_the_tokens_and_the_pixels_of_its_grid(
            width in 1u32..3000, height in 1u32..3000
        ) {
            let (wide, high) = crop_grid(width, height, &spec());
            let crops = wide * high;
            prop_assert_eq!(crops == 0, width.max(height) <= 640);
            prop_assert!(crops == 0 || (2..=9).contains(&crops));
            let small = VisionSpec { global_px: 32, crop_px: 16, ..spec() };
            let page = DynamicImage::new_rgb8(width.div_ceil(40), height.div_ceil(40));
            let pixels = cut(&page, &small);
            let ImageViews { crops_wide, crops_high, .. } = pixels.views;
            prop_assert_eq!(pixels.global.len(), 3 * 32 * 32);
            prop_assert_eq!(pixels.crops.len() as u32, 3 * 16 * 16 * crops_wide * crops_high);
            // A view of 32 has one image token, as has a crop; rows end in a newline, the page in a
            // separator.
            let local = if pixels.crops.is_empty() { 0 } else { (crops_wide + 1) * crops_high };
            prop_assert_eq!(pixels.views.tokens, u64::from(3 + local));
        }
    }

    #[test]
    fn the_global_view_is_padded_evenly_with_grey() {
        let white = DynamicImage::from(RgbImage::from_pixel(40, 20, image::Rgb([255; 3])));
        let view = global_view(&white, 8);
        let grey = f32::from(PAD) / 127.5 - 1.0;
        let rows: Vec<f32> = view.chunks_exact(8).map(|row| row[0]).take(8).collect();
        assert_eq!(rows, [grey, grey, 1.0, 1.0, 1.0, 1.0, grey, grey]);
        assert!(view.chunks_exact(8).all(|row| row.iter().all(|value| *value == row[0])));
    }

    #[test]
    fn crops_are_in_reading_order_with_a_plane_per_colour() {
        let colour =
            |x, y| image::Rgb([if x < 2 { 0 } else { 255 }, if y < 2 { 0 } else { 255 }, 0]);
        let page = DynamicImage::from(RgbImage::from_fn(4, 4, colour));
        let crops = local_crops(&page, 2, 2, 2);
        let planes: Vec<f32> = crops.chunks_exact(4).map(|plane| plane[0]).collect();
        assert_eq!(planes, [-1.0, -1.0, -1.0, 1.0, -1.0, -1.0, -1.0, 1.0, -1.0, 1.0, 1.0, -1.0]);
        assert!(crops.chunks_exact(4).all(|plane| plane.iter().all(|value| *value == plane[0])));
    }

    #[test]
    fn an_unreadable_page_is_named_in_one_line() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let refused =
            |name: &str| read(&folder.path().join(name), &spec()).expect_err("refused").to_string();
        fs::write(folder.path().join("text.png"), "not an image")?;
        RgbImage::new(8, 8).save(folder.path().join("cut.png"))?;
        let whole = fs::read(folder.path().join("cut.png"))?;
        fs::write(folder.path().join("cut.png"), &whole[..whole.len() / 2])?;
        RgbImage::new(20_000, 1).save(folder.path().join("wide.png"))?;
        for name in ["text.png", "cut.png", "wide.png", "missing.png", ""] {
            let message = refused(name);
            assert!(message.contains(name) && !message.contains('\n'), "{message}");
        }
        assert!(refused("wide.png").contains("20000 x 1 pixels"));
        assert!(refused("").ends_with("is not a regular file"));
        Ok(())
    }

    #[test]
    fn a_single_pixel_is_a_page() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("dot.png");
        RgbImage::from_pixel(1, 1, image::Rgb([255; 3])).save(&path)?;
        let pixels = read(&path, &spec())?;
        assert_eq!((pixels.views.tokens, pixels.views.crop_px), (273, 0));
        assert!(pixels.global.iter().all(|value| *value == 1.0));
        Ok(())
    }
}

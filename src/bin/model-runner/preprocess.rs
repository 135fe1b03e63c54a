//! From image files to the pixels that the model sees.
//!
//! Pages are cut into views here; nothing knows of models or stages.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Result, Tensor};
use llmprof::{model::Vision, trace::event::ImageViews};

/// Why a page cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    #[error("{0}: images are not read yet")]
    Unread(PathBuf),
}

/// A page as pixels on the host.
pub struct Pixels {
    views: ImageViews,
    global: Vec<f32>,
    crops: Vec<f32>,
}

/// A page on the device: `[1, 3, side, side]` of the whole, and `[crops, 3, side, side]` in reading order.
pub struct Page {
    pub views: ImageViews,
    pub global: Tensor,
    pub crops: Option<Tensor>,
}

/// Reads a page and cuts it into views.
pub fn read(path: &Path, _: &Vision) -> std::result::Result<Pixels, PageError> {
    Err(PageError::Unread(path.to_owned()))
}

impl Pixels {
    /// Moves the pixels to the device.
    pub fn into_page(self, dtype: DType, device: &Device) -> Result<Page> {
        let tensor = |pixels: Vec<f32>, count: usize, side: usize| {
            Tensor::from_vec(pixels, (count, 3, side, side), &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
        };
        let crops = (self.views.crops_wide * self.views.crops_high) as usize;
        let global = tensor(self.global, 1, self.views.global_px as usize)?;
        let crops = (crops > 0).then(|| tensor(self.crops, crops, self.views.crop_px as usize)).transpose()?;
        Ok(Page { views: self.views, global, crops })
    }
}

//! From a page's views to the vectors that the decoder reads.
//!
//! SAM, CLIP and the projector process the crops and the whole page; their outputs become one
//! sequence, row by row.

use candle_core::{Result, Tensor};
use candle_nn::Init;
use llmprof_core::domain::model::VisionSpec as Spec;

use super::{clip::Clip, sam::Sam};
use crate::{
    module_scope::Site,
    ops::{Linear, Pointwise},
    preprocess::PageTensors,
    record::{Op, Recorder},
};

/// The whole image side.
pub struct Vision {
    recorder: Recorder,
    module: Op,
    sam: Sam,
    clip: Clip,
    concat: Pointwise,
    projector: Linear,
    assemble: Pointwise,
    newline: Tensor,
    separator: Tensor,
}

impl Vision {
    /// Builds the image side; `site` is `vision` in operator paths and `model` in the weights.
    pub fn new(site: &Site, spec: &Spec, hidden: usize) -> Result<Self> {
        let mut views = vec![spec.global_px];
        if spec.max_crops > 0 && spec.crop_px != spec.global_px {
            views.push(spec.crop_px);
        }
        let grids: Vec<usize> = views.iter().map(|&px| spec.grid(px)).collect();
        let projector = site.part("projector", "projector.layers");
        let vector = Init::Randn { mean: 0.0, stdev: (hidden as f64).sqrt().recip() };
        Ok(Self {
            recorder: site.recorder().clone(),
            module: site.module(),
            sam: Sam::new(&site.part("sam", "sam_model"), &spec.sam, &views)?,
            clip: Clip::new(&site.part("clip", "vision_model"), &spec.clip, &grids)?,
            concat: Pointwise::new(&site.part("projector.concat", "")),
            projector: Linear::new(
                &projector,
                spec.clip.width + spec.sam.downsample[1],
                hidden,
                true,
            )?,
            assemble: Pointwise::new(&site.part("assemble", "")),
            newline: site.get(hidden, "image_newline", vector)?,
            // Spelt as published.
            separator: site.get(hidden, "view_seperator", vector)?,
        })
    }

    /// Vectors of one page, `[views.tokens, hidden]`: vectors of the crops, of the whole page, and
    /// the separator.
    pub fn forward(&self, page: &PageTensors) -> Result<Tensor> {
        let _vision = self.recorder.range("vision");
        let _scope = self.module.enter();
        let views: Vec<&Tensor> = page.crops.iter().chain([&page.global]).collect();
        let sam = {
            let _stage = self.recorder.range("sam");
            views.into_iter().map(|view| self.sam.forward(view)).collect::<Result<Vec<_>>>()?
        };
        let clip = {
            let _stage = self.recorder.range("clip");
            sam.iter().map(|features| self.clip.forward(features)).collect::<Result<Vec<_>>>()?
        };
        let projected = {
            let _stage = self.recorder.range("projector");
            let operands: Vec<&Tensor> = clip.iter().chain(&sam).collect();
            let features = self.concat.run(&operands, || concat(&clip, &sam))?;
            self.projector.forward(&features)?
        };
        let grids: Vec<usize> = sam.iter().map(|features| features.dims()[1].isqrt()).collect();
        self.assemble.run(&[&projected, &self.newline, &self.separator], || {
            let wide = page.views.crops_wide as usize;
            assemble(&projected, &grids, wide, &self.newline, &self.separator)
        })
    }
}

/// CLIP's and SAM's features of all views side by side, `[places, widths]`, for one product of the
/// projector.
fn concat(clip: &[Tensor], sam: &[Tensor]) -> Result<Tensor> {
    let views = clip.iter().zip(sam).map(|(clip, sam)| Tensor::cat(&[clip, sam], 2)?.flatten(0, 1));
    Tensor::cat(&views.collect::<Result<Vec<_>>>()?, 0)
}

/// The sequence of `projected` `[places, hidden]`: crops of side `grids[0]`, `wide` per row, if
/// there are any, then the whole page.
fn assemble(
    projected: &Tensor,
    grids: &[usize],
    wide: usize,
    newline: &Tensor,
    separator: &Tensor,
) -> Result<Tensor> {
    let (places, hidden) = projected.dims2()?;
    let mut parts = Vec::with_capacity(3);
    let whole = grids.last().map_or(0, |grid| grid * grid);
    if let [grid, _] = *grids {
        let crops = projected.narrow(0, 0, places - whole)?;
        let high = (places - whole) / (wide * grid * grid);
        let rows = crops.reshape((high, wide, grid, grid, hidden))?.transpose(1, 2)?;
        parts.push(end_rows(&rows.reshape((high * grid, wide * grid, hidden))?, newline)?);
    }
    let grid = whole.isqrt();
    let page = projected.narrow(0, places - whole, whole)?.reshape((grid, grid, hidden))?;
    parts.push(end_rows(&page, newline)?);
    parts.push(separator.unsqueeze(0)?);
    Tensor::cat(&parts, 0)
}

/// Ends each row of `[rows, columns, hidden]` with a newline, and joins the rows.
fn end_rows(map: &Tensor, newline: &Tensor) -> Result<Tensor> {
    let (rows, _, hidden) = map.dims3()?;
    Tensor::cat(&[map, &newline.expand((rows, 1, hidden))?], 1)?.flatten(0, 1)
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use llmprof_core::{
        domain::model::ModelSpec,
        trace::event::{Event, ImageViews},
    };

    use super::*;
    use crate::weights;

    fn page(spec: &Spec, wide: usize, high: usize) -> Result<PageTensors> {
        let views = ImageViews {
            width: 1,
            height: 1,
            global_px: spec.global_px as u32,
            crop_px: spec.crop_px as u32,
            crops_wide: wide as u32,
            crops_high: high as u32,
            tokens: spec.tokens(wide, high) as u64,
        };
        let pixels = |count, side| Tensor::randn(0f32, 1.0, (count, 3, side, side), &Device::Cpu);
        let crops = (wide > 0).then(|| pixels(wide * high, spec.crop_px)).transpose()?;
        Ok(PageTensors { views, global: pixels(1, spec.global_px)?, crops })
    }

    #[test]
    fn a_page_has_a_finite_vector_per_place() -> anyhow::Result<()> {
        let preset: ModelSpec =
            toml::from_str(include_str!("../../../../../conf/models/deepseek-ocr-tiny.toml"))?;
        let spec = preset.vision.expect("an image side");
        let recorder = Recorder::new();
        let site = Site::root(weights::synthetic(1, DType::F32, &Device::Cpu), recorder.clone());
        let vision = Vision::new(&site.part("vision", "model"), &spec, preset.decoder.hidden)?;
        for (wide, high) in [(0, 0), (2, 1), (2, 3)] {
            let vectors = vision.forward(&page(&spec, wide, high)?)?;
            assert_eq!(vectors.dims(), [spec.tokens(wide, high), preset.decoder.hidden]);
            let sum = vectors.abs()?.sum_all()?.to_scalar::<f32>()?;
            assert!(sum.is_finite() && sum > 0.0, "{sum}");
            let ranges = recorder.drain().into_iter().filter_map(|event| match event {
                Event::Range(range) => Some(range.name),
                _ => None,
            });
            assert_eq!(ranges.collect::<Vec<_>>(), ["sam", "clip", "projector", "vision"]);
        }
        Ok(())
    }

    #[test]
    fn the_published_image_side_has_its_published_size() -> anyhow::Result<()> {
        let preset: ModelSpec =
            toml::from_str(include_str!("../../../../../conf/models/deepseek-ocr.toml"))?;
        // Zeros that are never read take no memory.
        let site =
            Site::root(candle_nn::VarBuilder::zeros(DType::F32, &Device::Cpu), Recorder::new());
        Vision::new(&site, &preset.vision.expect("an image side"), preset.decoder.hidden)?;
        assert_eq!(u128::from(site.size().parameters), 3_336_106_240 - preset.decoder.parameters());
        Ok(())
    }

    #[test]
    fn crops_are_read_row_by_row_across_the_page() -> anyhow::Result<()> {
        // Two crops side by side with a grid of 2, and a page with a grid of 1: places are numbered
        // in the order of the views.
        let places = Tensor::arange(0f32, 9.0, &Device::Cpu)?.reshape((9, 1))?;
        let (newline, separator) =
            (Tensor::new(&[-1f32], &Device::Cpu)?, Tensor::new(&[-2f32], &Device::Cpu)?);
        let sequence = |places: &Tensor, grids: &[usize], wide| {
            assemble(places, grids, wide, &newline, &separator)?.flatten_all()?.to_vec1::<f32>()
        };
        let side_by_side = [0.0, 1.0, 4.0, 5.0, -1.0, 2.0, 3.0, 6.0, 7.0, -1.0, 8.0, -1.0, -2.0];
        assert_eq!(sequence(&places, &[2, 1], 2)?, side_by_side);
        let stacked =
            [0.0, 1.0, -1.0, 2.0, 3.0, -1.0, 4.0, 5.0, -1.0, 6.0, 7.0, -1.0, 8.0, -1.0, -2.0];
        assert_eq!(sequence(&places, &[2, 1], 1)?, stacked);
        assert_eq!(
            sequence(&places.narrow(0, 0, 4)?, &[2], 0)?,
            [0.0, 1.0, -1.0, 2.0, 3.0, -1.0, -2.0]
        );
        Ok(())
    }
}

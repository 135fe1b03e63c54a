//! The module of a part, with inputs drawn from the seed.

use candle_core::{Result, Tensor};
use candle_nn::Init;
use llmprof_core::domain::model::{DecoderSpec, VisionSpec};

use super::{Module, PartRequest};
use crate::{
    models::{
        DecoderAttention, DecoderLayer, FeedForward,
        deepseek_ocr::{Clip, ClipLayer, Sam, SamBlock},
    },
    module_scope::Site,
    ops::{Room, RopeTables},
    weights,
};

/// Builds the module of a part, alone or `extracted` from its layer, and its inputs; `None` if the
/// model has no such part.
pub fn build(
    root: &Site,
    request: &PartRequest,
    extracted: bool,
) -> Result<Option<(Module, Vec<Tensor>)>> {
    let names: Vec<&str> = request.path.split('.').collect();
    match (names.as_slice(), &request.spec.vision) {
        (["decoder", "layers", layer, rest @ ..], _) if rest.len() < 2 => {
            decoder_part(root, request, layer, rest.first().copied(), extracted)
        }
        (["vision", rest @ ..], Some(vision)) => vision_part(root, request, vision, rest),
        _ => Ok(None),
    }
}

fn index(text: &str, count: usize) -> Option<usize> {
    text.parse().ok().filter(|&index: &usize| index < count)
}

/// A layer of the decoder, or a part of one.
fn decoder_part(
    root: &Site,
    request: &PartRequest,
    layer: &str,
    part: Option<&str>,
    extracted: bool,
) -> Result<Option<(Module, Vec<Tensor>)>> {
    let (spec, capacity) = (&request.spec.decoder, request.capacity);
    let Some(layer) = index(layer, spec.layers) else { return Ok(None) };
    let tables = RopeTables::new(capacity, &spec.rope_frequencies(), root.device())?;
    let site = root.part("decoder", "model").pp("layers").pp(layer);
    let whole = || DecoderLayer::new(&site, spec, layer, &tables, Room::of_one(capacity));
    let module = match (part, extracted) {
        (None, _) => Module::Layer(whole()?),
        (Some("self_attn"), true) => Module::Attention(whole()?.into_parts().0),
        (Some("self_attn"), false) => {
            Module::Attention(DecoderAttention::new(&site.pp("self_attn"), spec, &tables)?)
        }
        (Some("mlp"), true) => Module::FeedForward(whole()?.into_parts().1),
        (Some("mlp"), false) => {
            Module::FeedForward(FeedForward::new(&site.pp("mlp"), spec, layer, capacity)?)
        }
        _ => return Ok(None),
    };
    let prompt = request.input(root, "prompt", &[request.prompt_tokens, spec.hidden])?;
    Ok(Some((module, vec![prompt])))
}

/// SAM, CLIP, or a layer of one.
fn vision_part(
    root: &Site,
    request: &PartRequest,
    vision: &VisionSpec,
    path: &[&str],
) -> Result<Option<(Module, Vec<Tensor>)>> {
    let site = root.part("vision", "model");
    let (sam, clip) = (site.part("sam", "sam_model"), site.part("clip", "vision_model"));
    let sizes = [vision.global_px, vision.crop_px];
    let features = |class_tokens: usize| {
        request.view_inputs(root, |count, px| {
            vec![count, vision.grid(px).pow(2) + class_tokens, vision.clip.width]
        })
    };
    Ok(Some(match path {
        ["sam"] => {
            (Module::Sam(Sam::new(&sam, &vision.sam, &sizes)?), request.views().cloned().collect())
        }
        ["sam", "blocks", block] => {
            let Some(block) = index(block, vision.sam.layers) else { return Ok(None) };
            let (patch, width) = (vision.sam.patch, vision.sam.width);
            let module = SamBlock::new(
                &sam.pp("blocks").pp(block),
                &vision.sam,
                block,
                &sizes.map(|px| px / patch),
            )?;
            let inputs = request
                .view_inputs(root, |count, px| vec![count, px / patch, px / patch, width])?;
            (Module::SamBlock(module), inputs)
        }
        ["clip"] => {
            let grids = sizes.map(|px| vision.grid(px));
            (Module::Clip(Clip::new(&clip, &vision.clip, &grids)?), features(0)?)
        }
        ["clip", "layers", layer] => {
            let Some(layer) = index(layer, vision.clip.layers) else { return Ok(None) };
            let site = clip.part("layers", "transformer.layers").pp(layer);
            (Module::ClipLayer(ClipLayer::new(&site, &vision.clip)?), features(1)?)
        }
        _ => return Ok(None),
    }))
}

impl PartRequest<'_> {
    /// Pixels of all views: the crops of each page and the whole page.
    fn views(&self) -> impl Iterator<Item = &Tensor> {
        self.pages.iter().flat_map(|page| page.crops.iter().chain([&page.global]))
    }

    /// An input per view, with the shape for its number of images and their side in pixels.
    fn view_inputs(
        &self,
        root: &Site,
        shape: impl Fn(usize, usize) -> Vec<usize>,
    ) -> Result<Vec<Tensor>> {
        let input = |(i, view): (usize, &Tensor)| {
            let shape = shape(view.dims()[0], view.dims()[2]);
            self.input(root, &format!("view {i}"), &shape)
        };
        self.views().enumerate().map(input).collect()
    }

    /// The input of a decode step.
    pub fn token(&self, root: &Site, spec: &DecoderSpec) -> Result<Tensor> {
        self.input(root, "token", &[1, spec.hidden])
    }

    /// Values of an input, the same for the same seed on every device.
    fn input(&self, root: &Site, name: &str, shape: &[usize]) -> Result<Tensor> {
        let source = weights::synthetic(self.seed, root.dtype(), root.device());
        source.get_with_hints(
            shape,
            &format!("input of {}: {name}", self.path),
            Init::Randn { mean: 0.0, stdev: 1.0 },
        )
    }
}

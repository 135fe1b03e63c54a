//! A part of a model alone, with the model's dimensions: the mock of a layer, run as the whole model would run it.
//!
//! Weights and operator paths are those of the whole model; inputs are drawn from the seed, and the same however the part is built.

use candle_core::{Result, Tensor};
use candle_nn::Init;
use llmprof::model::{Decoder as Spec, ModelSpec, parts::UnknownPart};

use crate::{
    generate::{Computed, Program},
    models::{Attention, FeedForward, Layer, deepseek_ocr},
    ops::{Cursor, LayerCache, RopeTables},
    preprocess::Page,
    site::Site,
    weights,
};

/// Why there is no such part.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    #[error(transparent)]
    Unknown(#[from] UnknownPart),
    #[error("the weights do not fit the model: {0}")]
    Build(#[from] candle_core::Error),
    #[error("{path:?} built alone and taken out of its layer give different outputs")]
    Differs { path: String },
}

/// What runs.
enum Module {
    Layer(Layer),
    Attention(Attention),
    FeedForward(FeedForward),
    Sam(deepseek_ocr::Sam),
    SamBlock(deepseek_ocr::SamBlock),
    Clip(deepseek_ocr::Clip),
    ClipLayer(deepseek_ocr::ClipLayer),
}

/// A part with its inputs.
pub struct Part {
    module: Module,
    /// Of the prefill: one for each view of a page, or one for the prompt.
    inputs: Vec<Tensor>,
    /// Of each decode step.
    token: Option<Tensor>,
    cache: LayerCache,
    cursor: Cursor,
    /// Whether nothing comes before it whose output it would add first.
    first: bool,
    /// Of the prefill.
    outputs: Vec<Tensor>,
    /// Of the last step; a replayed graph writes where its capture did.
    step_output: Option<Tensor>,
    /// Of the step before: freed only by the next one, since nothing may be freed while a step is captured.
    stale_output: Option<Tensor>,
}

/// What a part is built for.
pub struct Place<'a> {
    pub spec: &'a ModelSpec,
    /// Module path in the whole model: `decoder.layers.3.self_attn`.
    pub path: &'a str,
    pub seed: u64,
    pub prompt_tokens: usize,
    pub capacity: usize,
    pub pages: &'a [Page],
}

impl Part {
    /// Builds the part at `place` alone; or, `extracted`, builds the layer that it is in, takes it out, and makes sure that both give
    /// the same for the same inputs.
    pub fn new(root: &Site, place: &Place, extracted: bool) -> std::result::Result<Self, PartError> {
        if !extracted {
            return Self::build(root, place, false);
        }
        let (mut alone, mut taken) = (Self::build(root, place, false)?, Self::build(root, place, true)?);
        let mut same = || {
            alone.run_quietly(root)?;
            taken.run_quietly(root)?;
            let bits = |part: &Part| Computed { tokens: Vec::new(), values: part.outputs.clone() }.sha256();
            Ok::<_, candle_core::Error>(bits(&alone)? == bits(&taken)?)
        };
        match same()? {
            true => Ok(taken),
            false => Err(PartError::Differs { path: place.path.to_owned() }),
        }
    }

    fn run_quietly(&mut self, root: &Site) -> Result<()> {
        root.recorder().quietly(|| {
            self.clear()?;
            self.prefill()
        })
    }

    fn build(root: &Site, place: &Place, whole_layer: bool) -> std::result::Result<Self, PartError> {
        let spec = &place.spec.decoder;
        let unknown = || PartError::Unknown(place.spec.unknown_part(place.path));
        let names: Vec<&str> = place.path.split('.').collect();
        let index = |text: &str, count: usize| text.parse().ok().filter(|&index: &usize| index < count);
        let (module, inputs) = match (names.as_slice(), &place.spec.vision) {
            (["decoder", "layers", layer, rest @ ..], _) if rest.len() < 2 => {
                let layer = index(layer, spec.layers).ok_or_else(unknown)?;
                let module = decoder_part(root, spec, layer, rest.first().copied(), place.capacity, whole_layer)?;
                let x = place.input(root, "prompt", &[place.prompt_tokens, spec.hidden])?;
                (module.ok_or_else(unknown)?, vec![x])
            }
            (["vision", rest @ ..], Some(vision)) => {
                let site = root.part("vision", "model");
                let views: Vec<usize> = [vision.global_px, vision.crop_px].into();
                let sides: Vec<usize> = views.iter().map(|px| px / vision.sam.patch).collect();
                let grids: Vec<usize> = views.iter().map(|&px| vision.grid(px)).collect();
                let pixels = || place.pages.iter().flat_map(|page| page.crops.iter().chain([&page.global]));
                let per_view = |shape: &dyn Fn(usize, usize) -> Vec<usize>| {
                    let view = |(i, view): (usize, &Tensor)| {
                        place.input(root, &format!("view {i}"), &shape(view.dims()[0], view.dims()[2]))
                    };
                    pixels().enumerate().map(view).collect::<Result<Vec<_>>>()
                };
                let (sam, clip) = (site.part("sam", "sam_model"), site.part("clip", "vision_model"));
                match rest {
                    ["sam"] => (Module::Sam(deepseek_ocr::Sam::new(&sam, &vision.sam, &views)?), pixels().cloned().collect()),
                    ["sam", "blocks", block] => {
                        let block = index(block, vision.sam.layers).ok_or_else(unknown)?;
                        let site = sam.pp("blocks").pp(block);
                        let module = deepseek_ocr::SamBlock::new(&site, &vision.sam, block, &sides)?;
                        let (patch, width) = (vision.sam.patch, vision.sam.width);
                        let inputs = per_view(&|count, px| vec![count, px / patch, px / patch, width])?;
                        (Module::SamBlock(module), inputs)
                    }
                    ["clip"] | ["clip", "layers", _] => {
                        let class = usize::from(rest.len() > 1);
                        let inputs = per_view(&|count, px| vec![count, vision.grid(px).pow(2) + class, vision.clip.width])?;
                        let module = match rest {
                            [_, _, layer] => {
                                let layer = index(layer, vision.clip.layers).ok_or_else(unknown)?;
                                let site = clip.part("layers", "transformer.layers").pp(layer);
                                Module::ClipLayer(deepseek_ocr::ClipLayer::new(&site, &vision.clip)?)
                            }
                            _ => Module::Clip(deepseek_ocr::Clip::new(&clip, &vision.clip, &grids)?),
                        };
                        (module, inputs)
                    }
                    _ => return Err(unknown()),
                }
            }
            _ => return Err(unknown()),
        };
        if inputs.is_empty() {
            return Err(PartError::Build(candle_core::Error::Msg(format!("{} reads images, and none are given", place.path))));
        }
        let in_decoder = names[0] == "decoder";
        let token = in_decoder.then(|| place.input(root, "token", &[1, spec.hidden])).transpose()?;
        let cache = LayerCache::new(spec, if in_decoder { place.capacity } else { 1 }, root.dtype(), root.device())?;
        let (cursor, first) = (Cursor::new(spec.heads, root.device())?, names.last() == Some(&"0"));
        Ok(Self { module, inputs, token, cache, cursor, first, outputs: Vec::new(), step_output: None, stale_output: None })
    }

    /// Runs the module on one input; only a decoder's goes on from where the text is.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let before = (!self.first).then_some(x);
        match &self.module {
            Module::Layer(layer) => Ok(layer.forward(x, before, &self.cache, &self.cursor)?.1),
            Module::Attention(attention) => attention.forward(x, &self.cache, &self.cursor),
            Module::FeedForward(mlp) => mlp.forward(x, &self.cursor),
            Module::Sam(sam) => sam.forward(x),
            Module::SamBlock(block) => Ok(block.forward(x, before)?.1),
            Module::Clip(clip) => clip.forward(x),
            Module::ClipLayer(layer) => Ok(layer.forward(x, before)?.1),
        }
    }

    /// The mixture of experts that it is or holds.
    fn mixture(&self) -> Option<&FeedForward> {
        match &self.module {
            Module::Layer(layer) => Some(layer.mlp()),
            Module::FeedForward(mlp) => Some(mlp),
            _ => None,
        }
    }
}

impl Place<'_> {
    /// Values of an input, the same for the same seed on every device.
    fn input(&self, root: &Site, name: &str, shape: &[usize]) -> Result<Tensor> {
        let source = weights::synthetic(self.seed, root.dtype(), root.device());
        source.get_with_hints(shape, &format!("input of {}: {name}", self.path), Init::Randn { mean: 0.0, stdev: 1.0 })
    }
}

/// A layer of the decoder, or a part of one: built alone, or taken out of the layer.
fn decoder_part(
    root: &Site,
    spec: &Spec,
    layer: usize,
    part: Option<&str>,
    capacity: usize,
    whole: bool,
) -> Result<Option<Module>> {
    let tables = RopeTables::new(capacity, &spec.rope_frequencies(), root.device())?;
    let site = root.part("decoder", "model").pp("layers").pp(layer);
    let build = || Layer::new(&site, spec, layer, &tables, capacity);
    Ok(Some(match (part, whole) {
        (None, _) => Module::Layer(build()?),
        (Some("self_attn"), true) => Module::Attention(build()?.into_parts().0),
        (Some("self_attn"), false) => Module::Attention(Attention::new(&site.pp("self_attn"), spec, &tables)?),
        (Some("mlp"), true) => Module::FeedForward(build()?.into_parts().1),
        (Some("mlp"), false) => Module::FeedForward(FeedForward::new(&site.pp("mlp"), spec, layer, capacity)?),
        _ => return Ok(None),
    }))
}

impl Program for Part {
    fn clear(&mut self) -> Result<()> {
        self.outputs.clear();
        self.stale_output = None;
        self.cursor.clear()
    }

    fn prefill(&mut self) -> Result<()> {
        self.outputs = self.inputs.iter().map(|x| self.forward(x)).collect::<Result<_>>()?;
        if self.token.is_some() {
            self.cursor.advance(self.inputs[0].dim(0)?)?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        let Some(token) = &self.token else { candle_core::bail!("this part has no steps") };
        let output = self.forward(token)?;
        self.stale_output = self.step_output.replace(output);
        self.cursor.advance(1)
    }

    fn steps(&self) -> bool {
        self.token.is_some()
    }

    fn cursor(&mut self) -> &mut Cursor {
        &mut self.cursor
    }

    fn balance(&mut self) -> Result<()> {
        let Some(mlp) = self.mixture() else { return Ok(()) };
        mlp.balancing(true);
        let read = self.prefill();
        if let Some(mlp) = self.mixture() {
            mlp.balancing(false);
        }
        self.clear()?;
        read
    }

    fn computed(&mut self, steps: usize) -> Result<Computed> {
        if let Some(mlp) = self.mixture() {
            mlp.settle(self.inputs[0].dim(0)?, steps)?;
        }
        let values = self.outputs.iter().chain(self.step_output.iter().filter(|_| steps > 0)).cloned().collect();
        Ok(Computed { tokens: Vec::new(), values })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::record::Recorder;

    fn tiny() -> ModelSpec {
        let spec: ModelSpec =
            toml::from_str(include_str!("../../../conf/models/deepseek-ocr-tiny.toml")).expect("the preset parses");
        ModelSpec { name: "tiny".to_owned(), ..spec }
    }

    fn part(path: &str, extracted: bool) -> std::result::Result<(Part, Recorder), PartError> {
        let spec = tiny();
        let recorder = Recorder::new();
        let root = Site::root(weights::synthetic(1, DType::F32, &Device::Cpu), recorder.clone());
        let pixels = |count: usize, side: usize| Tensor::zeros((count, 3, side, side), DType::F32, &Device::Cpu);
        let views = llmprof::trace::event::ImageViews {
            width: 1,
            height: 1,
            global_px: 256,
            crop_px: 160,
            crops_wide: 2,
            crops_high: 1,
            tokens: 1,
        };
        let pages = [Page { views, global: pixels(1, 256)?, crops: Some(pixels(2, 160)?) }];
        let place = Place { spec: &spec, path, seed: 4, prompt_tokens: 9, capacity: 12, pages: &pages };
        Part::new(&root, &place, extracted).map(|part| (part, recorder))
    }

    #[test]
    fn a_part_runs_under_the_paths_of_the_whole_model() -> anyhow::Result<()> {
        for path in [
            "decoder.layers.0.mlp",
            "decoder.layers.3.self_attn",
            "decoder.layers.2",
            "vision.sam.blocks.2",
            "vision.clip.layers.1",
        ] {
            let (mut part, recorder) = part(path, false)?;
            tiny().check_part(path)?;
            assert_eq!(part.steps(), llmprof::model::parts::has_steps(path));
            part.prefill()?;
            if part.steps() {
                part.step()?;
            }
            let calls = recorder.drain().into_iter().filter_map(|event| match event {
                llmprof::trace::event::Event::Op(call) => Some(call.path),
                _ => None,
            });
            let (mine, others): (Vec<_>, Vec<_>) = calls.partition(|call| call.starts_with(path));
            assert!(!mine.is_empty() && others.is_empty(), "{path}: {others:?}");
        }
        Ok(())
    }

    #[test]
    fn a_part_taken_out_of_its_layer_gives_what_it_gives_alone() -> anyhow::Result<()> {
        for path in ["decoder.layers.1.mlp", "decoder.layers.3.self_attn"] {
            assert!(part(path, true)?.0.steps());
        }
        Ok(())
    }

    #[test]
    fn a_part_that_the_model_does_not_have_is_refused_with_those_it_has() {
        for path in
            ["", "decoder.layers.4", "decoder.layers.0.norm", "vision.sam.blocks.x", "vision.sam.blocks.1.attn", "encoder"]
        {
            let refused = part(path, false).err().expect("refused").to_string();
            assert!(refused.contains("is no part of tiny: it has decoder.layers.0 to 3"), "{refused}");
            assert!(tiny().check_part(path).is_err(), "{path}");
        }
    }
}

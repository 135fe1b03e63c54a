//! A separate part of a model, with the model's dimensions: the mock of a layer, run as in the
//! whole model.
//!
//! Weights and operator paths are the whole model's; inputs are drawn from the seed, independent of
//! the construction of the part.

mod build;

use candle_core::{Result, Tensor};
use llmprof_core::domain::model::{ModelSpec, parts::UnknownPart};

use crate::{
    generate::{ComputedOutputs, Program},
    models::{DecoderAttention, DecoderLayer, FeedForward, deepseek_ocr},
    module_scope::Site,
    ops::{Cursor, LayerCache, Room},
    preprocess::PageTensors,
};

/// A part that cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    #[error(transparent)]
    Unknown(#[from] UnknownPart),
    #[error("the weights do not fit the model: {0}")]
    Build(#[from] candle_core::Error),
    #[error("{path:?} computes different outputs alone and extracted from its layer")]
    Differs { path: String },
}

/// The module of a part.
enum Module {
    Layer(DecoderLayer),
    Attention(DecoderAttention),
    FeedForward(FeedForward),
    Sam(deepseek_ocr::Sam),
    SamBlock(deepseek_ocr::SamBlock),
    Clip(deepseek_ocr::Clip),
    ClipLayer(deepseek_ocr::ClipLayer),
}

/// A part of a model with its inputs.
pub struct ModelPart {
    module: Module,
    /// Inputs of the prefill: one per view of a page, or one for the prompt.
    inputs: Vec<Tensor>,
    /// Input of each decode step.
    token: Option<Tensor>,
    cache: LayerCache,
    cursor: Cursor,
    /// The first layer: no output of a previous one is added.
    first: bool,
    /// Outputs of the prefill.
    outputs: Vec<Tensor>,
    /// Output of the last step; a replayed graph writes to the memory of its capture.
    step_output: Option<Tensor>,
    /// Output of the step before: freed by the next one, since nothing may be freed during a
    /// capture.
    stale_output: Option<Tensor>,
}

/// The part to build, and its inputs' sizes.
pub struct PartRequest<'a> {
    pub spec: &'a ModelSpec,
    /// Module path in the whole model: `decoder.layers.3.self_attn`.
    pub path: &'a str,
    pub seed: u64,
    pub prompt_tokens: usize,
    pub capacity: usize,
    pub pages: &'a [PageTensors],
}

impl ModelPart {
    /// Builds only the requested part; or, if `extracted`, builds its whole layer, extracts the
    /// part, and verifies that its outputs equal the separate part's.
    pub fn new(
        root: &Site,
        request: &PartRequest,
        extracted: bool,
    ) -> std::result::Result<Self, PartError> {
        let mut alone = Self::build(root, request, false)?;
        if !extracted {
            return Ok(alone);
        }
        let mut part = Self::build(root, request, true)?;
        match alone.output_hash(root)? == part.output_hash(root)? {
            true => Ok(part),
            false => Err(PartError::Differs { path: request.path.to_owned() }),
        }
    }

    /// Hash of the outputs of an unrecorded prefill.
    fn output_hash(&mut self, root: &Site) -> Result<String> {
        root.recorder().without_recording(|| {
            self.clear()?;
            self.prefill()
        })?;
        ComputedOutputs { tokens: Vec::new(), values: self.outputs.clone() }.sha256()
    }

    fn build(
        root: &Site,
        request: &PartRequest,
        extracted: bool,
    ) -> std::result::Result<Self, PartError> {
        let spec = &request.spec.decoder;
        let Some((module, inputs)) = build::build(root, request, extracted)? else {
            return Err(PartError::Unknown(request.spec.unknown_part(request.path)));
        };
        if inputs.is_empty() {
            let message = format!("{} needs an image; add one to the request", request.path);
            return Err(PartError::Build(candle_core::Error::Msg(message)));
        }
        let in_decoder = request.path.starts_with("decoder.");
        let token = in_decoder.then(|| request.token(root, spec)).transpose()?;
        let capacity = if in_decoder { request.capacity } else { 1 };
        Ok(Self {
            module,
            inputs,
            token,
            cache: LayerCache::new(spec, Room::of_one(capacity), root.dtype(), root.device())?,
            cursor: Cursor::new(1, spec.heads, root.device())?,
            first: request.path.rsplit('.').next() == Some("0"),
            outputs: Vec::new(),
            step_output: None,
            stale_output: None,
        })
    }

    /// Runs the module on one input; only a decoder's part uses the text's position.
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

    /// The mixture of experts of the part.
    fn mixture(&self) -> Option<&FeedForward> {
        match &self.module {
            Module::Layer(layer) => Some(layer.mlp()),
            Module::FeedForward(mlp) => Some(mlp),
            _ => None,
        }
    }
}

impl Program for ModelPart {
    fn clear(&mut self) -> Result<()> {
        self.outputs.clear();
        self.stale_output = None;
        self.cursor.clear()
    }

    fn prefill(&mut self) -> Result<()> {
        if self.token.is_some() {
            self.cursor.read(&[self.inputs[0].dim(0)?])?;
        }
        self.outputs = self.inputs.iter().map(|x| self.forward(x)).collect::<Result<_>>()?;
        if self.token.is_some() {
            self.cursor.advance()?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        let Some(token) = &self.token else { candle_core::bail!("this part has no decode steps") };
        self.cursor.read_one();
        let output = self.forward(token)?;
        self.stale_output = self.step_output.replace(output);
        self.cursor.advance()
    }

    fn has_steps(&self) -> bool {
        self.token.is_some()
    }

    fn cursor(&mut self) -> &mut Cursor {
        &mut self.cursor
    }

    fn balance(&mut self) -> Result<()> {
        let Some(mlp) = self.mixture() else { return Ok(()) };
        mlp.set_balancing(true);
        let read = self.prefill();
        if let Some(mlp) = self.mixture() {
            mlp.set_balancing(false);
        }
        self.clear()?;
        read
    }

    fn computed(&mut self, steps: usize) -> Result<ComputedOutputs> {
        if let Some(mlp) = self.mixture() {
            let mut forwards = vec![1; steps + 1];
            forwards[0] = self.inputs[0].dim(0)?;
            mlp.record_experts(&forwards)?;
        }
        let values = self
            .outputs
            .iter()
            .chain(self.step_output.iter().filter(|_| steps > 0))
            .cloned()
            .collect();
        Ok(ComputedOutputs { tokens: Vec::new(), values })
    }
}

#[cfg(test)]
mod tests;

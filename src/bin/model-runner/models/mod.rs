//! The models that can run, built from their dimensions: a decoder, and an image side where there is one.

mod attention;
mod decoder;
pub mod deepseek_ocr;
mod mlp;

use candle_core::{Device, Result, Tensor};
use llmprof::model::ModelSpec;

use self::{
    decoder::{Cache, Decoder},
    deepseek_ocr::vision::Vision,
};
use crate::{ops::Pointwise, preprocess::Page, prompt::Prompt, site::Site};

/// A whole model, with the cache of the one text that it is at.
pub struct Model {
    vision: Option<Vision>,
    decoder: Decoder,
    insert: Pointwise,
    cache: Cache,
    device: Device,
}

impl Model {
    /// Builds from the root of the weights, for texts of up to `positions` tokens.
    pub fn new(root: &Site, spec: &ModelSpec, positions: usize) -> Result<Self> {
        let vision = spec.vision.as_ref();
        let vision = vision.map(|vision| Vision::new(&root.part("vision", "model"), vision, spec.decoder.hidden)).transpose()?;
        Ok(Self {
            vision,
            decoder: Decoder::new(root, &spec.decoder, positions)?,
            insert: Pointwise::new(&root.part("decoder.insert_images", "")),
            cache: Cache::new(&spec.decoder, positions, root.dtype(), root.device())?,
            device: root.device().clone(),
        })
    }

    /// Forgets the text.
    pub fn clear(&mut self) {
        self.cache.clear();
    }

    /// Reads the whole prompt; returns the logits after it.
    pub fn prefill(&mut self, prompt: &Prompt, pages: &[Page]) -> Result<Tensor> {
        let features = match &self.vision {
            Some(vision) => pages.iter().map(|page| vision.forward(page)).collect::<Result<Vec<_>>>()?,
            None => Vec::new(),
        };
        let tokens = Tensor::new(prompt.tokens.as_slice(), &self.device)?;
        let x = self.decoder.embed(&tokens)?;
        let x = if features.is_empty() { x } else { self.insert.run(&[&x], || insert(&x, prompt, &features))? };
        self.decoder.forward(&x, &mut self.cache)
    }

    /// Reads one more token; returns the logits after it.
    pub fn step(&mut self, token: u32) -> Result<Tensor> {
        let x = self.decoder.embed(&Tensor::new(&[token], &self.device)?)?;
        self.decoder.forward(&x, &mut self.cache)
    }
}

/// Puts each image's features in its place among the text's vectors.
fn insert(text: &Tensor, prompt: &Prompt, features: &[Tensor]) -> Result<Tensor> {
    let mut parts = Vec::with_capacity(2 * features.len() + 1);
    let mut start = 0;
    for (place, features) in prompt.images.iter().zip(features) {
        if features.dim(0)? != place.len() {
            candle_core::bail!("an image gave {} vectors for its {} places", features.dim(0)?, place.len());
        }
        parts.push(text.narrow(0, start, place.start - start)?);
        parts.push(features.clone());
        start = place.end;
    }
    parts.push(text.narrow(0, start, text.dim(0)? - start)?);
    parts.retain(|part| part.dims()[0] > 0);
    Tensor::cat(&parts, 0)
}

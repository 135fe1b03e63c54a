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

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use llmprof::model::{Decoder as Spec, Moe};

    use super::*;

    /// A decoder small enough to check by hand: grouped heads, one dense layer, one mixture.
    pub fn decoder() -> Spec {
        Spec {
            hidden: 16,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 4,
            intermediate: 24,
            vocab: 50,
            max_positions: 64,
            rope_theta: 10_000.0,
            rms_norm_eps: 1e-6,
            tied_embeddings: false,
            qkv_bias: false,
            qk_norm: true,
            bos_token: 0,
            eos_token: None,
            moe: Some(Moe { first_layer: 1, experts: 4, top_k: 2, intermediate: 8, shared: 1, norm_topk: false }),
        }
    }

    fn logits_after(decoder: &Decoder, spec: &Spec, parts: &[&[u32]]) -> Result<Vec<f32>> {
        let mut cache = Cache::new(spec, 16, DType::F32, &Device::Cpu)?;
        let mut logits = None;
        for part in parts {
            let x = decoder.embed(&Tensor::new(*part, &Device::Cpu)?)?;
            logits = Some(decoder.forward(&x, &mut cache)?);
        }
        logits.expect("at least one part").to_vec1()
    }

    #[test]
    fn a_text_read_in_steps_has_the_logits_of_the_text_read_at_once() -> Result<()> {
        let spec = decoder();
        let decoder = Decoder::new(&Site::synthetic(1), &spec, 16)?;
        let whole = logits_after(&decoder, &spec, &[&[0, 7, 9, 23, 4, 4, 31]])?;
        for parts in [&[&[0u32, 7, 9][..], &[23], &[4], &[4], &[31]][..], &[&[0, 7], &[9, 23, 4, 4, 31]]] {
            let stepped = logits_after(&decoder, &spec, parts)?;
            let worst = whole.iter().zip(&stepped).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-5, "logits differ by {worst}");
        }
        Ok(())
    }

    #[test]
    fn grouped_heads_are_repeated_heads() -> Result<()> {
        // Key heads repeated to the number of query heads, in the weights themselves, must change nothing.
        let grouped = Spec { layers: 1, moe: None, qk_norm: false, ..decoder() };
        let plain = Spec { kv_heads: grouped.heads, ..grouped.clone() };
        let folder = std::collections::HashMap::from_iter(repeated_heads(&grouped)?);
        let weights = candle_nn::VarBuilder::from_tensors(folder, DType::F32, &Device::Cpu);
        let repeated = Decoder::new(&Site::root(weights, crate::record::Recorder::silent()), &plain, 16)?;
        let original = Decoder::new(&Site::synthetic(5), &grouped, 16)?;
        let text: &[&[u32]] = &[&[0, 3, 8, 1], &[6]];
        let (a, b) = (logits_after(&original, &grouped, text)?, logits_after(&repeated, &plain, text)?);
        let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "logits differ by {worst}");
        Ok(())
    }

    /// The synthetic weights of one layer, with each key and value head once per query head that shares it.
    fn repeated_heads(spec: &Spec) -> Result<Vec<(String, Tensor)>> {
        let vb = crate::weights::synthetic(5, DType::F32, &Device::Cpu);
        let normal = |shape: (usize, usize), name: &str| {
            let init = candle_nn::Init::Randn {
                mean: 0.0,
                stdev: if name.contains("embed") { 1.0 } else { (shape.1 as f64).sqrt().recip() },
            };
            vb.get_with_hints(shape, name, init)
        };
        let (hidden, wide, narrow) = (spec.hidden, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
        let repeat = |kv: Tensor| {
            let heads = kv.reshape((spec.kv_heads, 1, spec.head_dim, hidden))?;
            heads.repeat((1, spec.heads / spec.kv_heads, 1, 1))?.reshape((wide, hidden))
        };
        let mut tensors = Vec::new();
        for (name, shape) in [
            ("model.embed_tokens.weight", (spec.vocab, hidden)),
            ("lm_head.weight", (spec.vocab, hidden)),
            ("model.layers.0.self_attn.q_proj.weight", (wide, hidden)),
            ("model.layers.0.self_attn.o_proj.weight", (hidden, wide)),
            ("model.layers.0.mlp.gate_proj.weight", (spec.intermediate, hidden)),
            ("model.layers.0.mlp.up_proj.weight", (spec.intermediate, hidden)),
            ("model.layers.0.mlp.down_proj.weight", (hidden, spec.intermediate)),
        ] {
            tensors.push((name.to_owned(), normal(shape, name)?));
        }
        for name in ["model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight"] {
            tensors.push((name.to_owned(), repeat(normal((narrow, hidden), name)?)?));
        }
        for name in ["model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"] {
            tensors.push((format!("{name}.weight"), Tensor::ones(hidden, DType::F32, &Device::Cpu)?));
        }
        Ok(tensors)
    }

    #[test]
    fn what_was_built_has_the_size_that_the_dimensions_give() -> Result<()> {
        for spec in [decoder(), Spec { tied_embeddings: true, qkv_bias: true, ..decoder() }] {
            let site = Site::synthetic(0);
            Decoder::new(&site, &spec, 16)?;
            assert_eq!(u128::from(site.size().parameters), spec.parameters());
        }
        Ok(())
    }

    #[test]
    fn images_replace_the_tokens_that_stand_for_them() -> Result<()> {
        let text = Tensor::arange(0f32, 6.0, &Device::Cpu)?.reshape((6, 1))?;
        let image = |value: f32, rows| Tensor::full(value, (rows, 1), &Device::Cpu);
        let prompt = Prompt { tokens: vec![0; 6], images: vec![1..3, 5..6] };
        let merged = insert(&text, &prompt, &[image(-1.0, 2)?, image(-2.0, 1)?])?;
        assert_eq!(merged.flatten_all()?.to_vec1::<f32>()?, [0.0, -1.0, -1.0, 3.0, 4.0, -2.0]);
        assert!(insert(&text, &prompt, &[image(-1.0, 3)?, image(-2.0, 1)?]).is_err(), "a wrong number of vectors is an error");
        Ok(())
    }
}

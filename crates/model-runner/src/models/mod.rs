//! The supported models, built from their dimensions: a decoder, and optionally an image side.

mod attention;
mod decoder;
pub mod deepseek_ocr;
mod mlp;
#[cfg(test)]
mod reference;

use candle_core::{Device, Result, Tensor};
use llmprof_core::domain::model::ModelSpec;

use self::deepseek_ocr::vision::Vision;
pub use self::{
    attention::DecoderAttention,
    decoder::{Decoder, DecoderLayer, KvCache},
    mlp::FeedForward,
};
use crate::{
    module_scope::Site,
    ops::{Cursor, Pointwise, Room},
    prompt::Prompt,
    text::Batch,
};

/// A whole model, with the KV cache of its current texts.
pub struct Model {
    vision: Option<Vision>,
    decoder: Decoder,
    insert: Pointwise,
    cache: KvCache,
    device: Device,
}

impl Model {
    /// Builds from the root of the weights, for batches that fit `room`.
    pub fn new(root: &Site, spec: &ModelSpec, room: Room) -> Result<Self> {
        let vision = spec.vision.as_ref();
        let vision = vision
            .map(|vision| Vision::new(&root.part("vision", "model"), vision, spec.decoder.hidden))
            .transpose()?;
        Ok(Self {
            vision,
            decoder: Decoder::new(root, &spec.decoder, room)?,
            insert: Pointwise::new(&root.part("decoder.insert_images", "")),
            cache: KvCache::new(&spec.decoder, room, root.dtype(), root.device())?,
            device: root.device().clone(),
        })
    }

    /// Clears the texts.
    pub fn clear(&mut self) -> Result<()> {
        self.cache.clear()
    }

    /// The positions of the next tokens.
    pub fn cursor(&mut self) -> &mut Cursor {
        &mut self.cache.cursor
    }

    /// Reads all prompts whole; returns the logits after each, `[sequences, vocab]`.
    pub fn prefill(&mut self, batch: &Batch) -> Result<Tensor> {
        let Batch { prompt, lengths, pages } = batch;
        self.cache.cursor.read(lengths)?;
        let features = match &self.vision {
            Some(vision) => {
                pages.iter().map(|page| vision.forward(page)).collect::<Result<Vec<_>>>()?
            }
            None => Vec::new(),
        };
        let tokens = Tensor::new(prompt.tokens.as_slice(), &self.device)?;
        let x = self.decoder.embed(&tokens)?;
        let x = if features.is_empty() {
            x
        } else {
            self.insert.run(&[&x], || insert(&x, prompt, &features))?
        };
        self.decoder.forward(&x, &mut self.cache)
    }

    /// Reads one more token of each sequence, `[sequences]`; returns the logits after each.
    pub fn step(&mut self, tokens: &Tensor) -> Result<Tensor> {
        self.cache.cursor.read_one();
        let x = self.decoder.embed(tokens)?;
        self.decoder.forward(&x, &mut self.cache)
    }

    /// Balances synthetic routers over the tokens of the first prompt, as training would: random
    /// ones send nearly all tokens to the same few experts.
    pub fn balance(&mut self, batch: &Batch) -> Result<()> {
        self.decoder.set_balancing(true);
        let read = self.prefill(batch);
        self.decoder.set_balancing(false);
        self.clear()?;
        read.map(drop)
    }

    /// Records the experts that only the GPU knows, of `forwards`, each with its number of tokens.
    pub fn record_experts(&self, forwards: &[usize]) -> Result<()> {
        self.decoder.record_experts(forwards)
    }
}

/// Inserts each image's features at its position among the text's vectors.
fn insert(text: &Tensor, prompt: &Prompt, features: &[Tensor]) -> Result<Tensor> {
    let mut parts = Vec::with_capacity(2 * features.len() + 1);
    let mut start = 0;
    for (place, features) in prompt.images.iter().zip(features) {
        if features.dim(0)? != place.len() {
            candle_core::bail!(
                "an image has {} vectors for its {} positions",
                features.dim(0)?,
                place.len()
            );
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
pub mod tests {
    use std::{collections::HashMap, sync::Mutex};

    use candle_core::{DType, Shape};
    use candle_nn::{Init, VarBuilder, var_builder::SimpleBackend};
    use llmprof_core::domain::model::{DecoderSpec as Spec, MoeSpec};

    use super::*;
    use crate::record::Recorder;

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
            rope_scaling: None,
            rms_norm_eps: 1e-6,
            tied_embeddings: false,
            qkv_bias: false,
            qk_norm: true,
            bos_token: 0,
            eos_token: None,
            moe: Some(MoeSpec {
                first_layer: 1,
                experts: 4,
                top_k: 2,
                intermediate: 8,
                shared: 1,
                norm_topk: false,
            }),
        }
    }

    fn logits_after(decoder: &Decoder, spec: &Spec, parts: &[&[u32]]) -> Result<Vec<f32>> {
        let mut cache = KvCache::new(spec, Room::of_one(16), DType::F32, &Device::Cpu)?;
        let mut logits = None;
        for part in parts {
            let x = decoder.embed(&Tensor::new(*part, &Device::Cpu)?)?;
            cache.cursor.read(&[part.len()])?;
            logits = Some(decoder.forward(&x, &mut cache)?);
        }
        logits.expect("at least one part").get(0)?.to_vec1()
    }

    #[test]
    fn a_text_read_in_steps_has_the_logits_of_the_text_read_at_once() -> Result<()> {
        let spec = decoder();
        let decoder = Decoder::new(&Site::synthetic(1), &spec, Room::of_one(16))?;
        let whole = logits_after(&decoder, &spec, &[&[0, 7, 9, 23, 4, 4, 31]])?;
        for parts in
            [&[&[0u32, 7, 9][..], &[23], &[4], &[4], &[31]][..], &[&[0, 7], &[9, 23, 4, 4, 31]]]
        {
            let stepped = logits_after(&decoder, &spec, parts)?;
            let worst = whole.iter().zip(&stepped).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-5, "logits differ by {worst}");
        }
        Ok(())
    }

    /// Synthetic weights that record the returned tensors.
    struct RecordingWeights<'a> {
        source: VarBuilder<'static>,
        seen: &'a Mutex<HashMap<String, Tensor>>,
    }

    impl SimpleBackend for RecordingWeights<'_> {
        fn get(
            &self,
            shape: Shape,
            name: &str,
            init: Init,
            _: DType,
            _: &Device,
        ) -> Result<Tensor> {
            let tensor = self.source.get_with_hints(shape, name, init)?;
            self.seen.lock().expect("no builder panics").insert(name.to_owned(), tensor.clone());
            Ok(tensor)
        }

        fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
            candle_core::bail!("{name} has no shape")
        }

        fn contains_tensor(&self, _: &str) -> bool {
            true
        }
    }

    /// A decoder and its weights by name.
    fn built(spec: &Spec) -> Result<(Decoder, HashMap<String, Tensor>)> {
        let seen = Mutex::default();
        let source = crate::weights::synthetic(5, DType::F32, &Device::Cpu);
        let weights = VarBuilder::from_backend(
            Box::new(RecordingWeights { source, seen: &seen }),
            DType::F32,
            Device::Cpu,
        );
        let decoder =
            Decoder::new(&Site::root(weights, Recorder::silent()), spec, Room::of_one(16))?;
        Ok((decoder, seen.into_inner().expect("no builder panics")))
    }

    const TEXT: &[&[u32]] = &[&[0, 3, 8, 1], &[6]];

    #[test]
    fn grouped_heads_equal_repeated_heads() -> Result<()> {
        // Repeating key heads to the number of query heads in the weights must not change the
        // result.
        let grouped = decoder();
        let plain = Spec { kv_heads: grouped.heads, ..grouped.clone() };
        let (original, mut weights) = built(&grouped)?;
        for (_, tensor) in weights
            .iter_mut()
            .filter(|(name, _)| name.contains("k_proj") || name.contains("v_proj"))
        {
            let heads = tensor.reshape((grouped.kv_heads, 1, grouped.head_dim, grouped.hidden))?;
            let repeated = heads.repeat((1, grouped.heads / grouped.kv_heads, 1, 1))?;
            *tensor = repeated.reshape((grouped.heads * grouped.head_dim, grouped.hidden))?;
        }
        let weights = VarBuilder::from_tensors(weights, DType::F32, &Device::Cpu);
        let repeated =
            Decoder::new(&Site::root(weights, Recorder::silent()), &plain, Room::of_one(16))?;
        let (a, b) =
            (logits_after(&original, &grouped, TEXT)?, logits_after(&repeated, &plain, TEXT)?);
        let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "logits differ by {worst}");
        Ok(())
    }

    #[test]
    fn sharded_weights_compute_the_logits_of_weights_in_memory() -> anyhow::Result<()> {
        let spec = decoder();
        let (original, weights) = built(&spec)?;
        let folder = tempfile::tempdir()?;
        let shard = |name: &str| format!("part-{}.safetensors", name.len() % 2);
        let index: HashMap<_, _> = weights.keys().map(|name| (name, shard(name))).collect();
        for part in ["part-0.safetensors", "part-1.safetensors"] {
            let mine = weights.iter().filter(|(name, _)| shard(name) == part);
            let tensors: HashMap<_, _> =
                mine.map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
            candle_core::safetensors::save(&tensors, folder.path().join(part))?;
        }
        let index = serde_json::json!({ "weight_map": index }).to_string();
        std::fs::write(folder.path().join("model.safetensors.index.json"), index)?;

        let weights = crate::weights::load(folder.path(), DType::F32, &Device::Cpu)?;
        let loaded =
            Decoder::new(&Site::root(weights, Recorder::silent()), &spec, Room::of_one(16))?;
        assert_eq!(logits_after(&original, &spec, TEXT)?, logits_after(&loaded, &spec, TEXT)?);
        Ok(())
    }

    #[test]
    fn a_built_decoder_has_the_size_of_its_dimensions() -> Result<()> {
        for spec in [decoder(), Spec { tied_embeddings: true, qkv_bias: true, ..decoder() }] {
            let site = Site::synthetic(0);
            Decoder::new(&site, &spec, Room::of_one(16))?;
            assert_eq!(u128::from(site.size().parameters), spec.parameters());
        }
        Ok(())
    }

    #[test]
    fn images_replace_their_placeholder_tokens() -> Result<()> {
        let text = Tensor::arange(0f32, 6.0, &Device::Cpu)?.reshape((6, 1))?;
        let image = |value: f32, rows| Tensor::full(value, (rows, 1), &Device::Cpu);
        let prompt = Prompt { tokens: vec![0; 6], images: vec![1..3, 5..6] };
        let merged = insert(&text, &prompt, &[image(-1.0, 2)?, image(-2.0, 1)?])?;
        assert_eq!(merged.flatten_all()?.to_vec1::<f32>()?, [0.0, -1.0, -1.0, 3.0, 4.0, -2.0]);
        assert!(
            insert(&text, &prompt, &[image(-1.0, 3)?, image(-2.0, 1)?]).is_err(),
            "a wrong number of vectors is an error"
        );
        Ok(())
    }
}

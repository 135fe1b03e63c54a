//! A whole model that reads prompts with their pages and generates tokens for each.
//!
//! Sampling is greedy, so the same request gives the same tokens.

use std::ops::Range;

use candle_core::Result;

use crate::{
    generate::{ComputedOutputs, Program},
    models::Model,
    ops::{Cursor, Sampler},
    preprocess::PageTensors,
    prompt::Prompt,
};

/// A prompt with its pages.
#[derive(Clone)]
pub struct TextSample {
    pub prompt: Prompt,
    pub pages: Vec<PageTensors>,
}

/// Prompts that are read together, as one after the other.
pub struct Batch {
    /// The tokens of all.
    pub prompt: Prompt,
    /// Tokens of each.
    pub lengths: Vec<usize>,
    /// The pages of all.
    pub pages: Vec<PageTensors>,
}

impl Batch {
    /// The samples as one batch.
    pub fn new(samples: &[TextSample]) -> Self {
        let prompt = Prompt { tokens: Vec::new(), images: Vec::new() };
        let mut batch = Self { prompt, lengths: Vec::new(), pages: Vec::new() };
        for TextSample { prompt, pages } in samples {
            let start = batch.prompt.tokens.len();
            batch.prompt.tokens.extend(&prompt.tokens);
            let moved = |image: &Range<usize>| start + image.start..start + image.end;
            batch.prompt.images.extend(prompt.images.iter().map(moved));
            batch.lengths.push(prompt.tokens.len());
            batch.pages.extend(pages.iter().cloned());
        }
        batch
    }
}

/// A model with its batches.
pub struct TextGeneration {
    pub model: Model,
    /// At least one, all of as many sequences.
    pub batches: Vec<Batch>,
    /// Index of the batch that the next repeat reads.
    pub current: usize,
    pub sampler: Sampler,
}

impl Program for TextGeneration {
    fn select(&mut self, batch: usize) {
        self.current = batch;
    }

    fn clear(&mut self) -> Result<()> {
        self.model.clear()?;
        self.sampler.clear()
    }

    fn prefill(&mut self) -> Result<()> {
        let logits = self.model.prefill(&self.batches[self.current])?;
        self.sampler.sample(logits)
    }

    fn step(&mut self) -> Result<()> {
        let logits = self.model.step(&self.sampler.last()?)?;
        self.sampler.sample(logits)
    }

    fn has_steps(&self) -> bool {
        true
    }

    fn rewind(&mut self, positions: &[usize]) -> Result<()> {
        self.model.cursor().set(positions)?;
        self.sampler.rewind()
    }

    fn cursor(&mut self) -> &mut Cursor {
        self.model.cursor()
    }

    fn note_replay(&mut self) {
        self.sampler.note_replay();
    }

    fn balance(&mut self) -> Result<()> {
        self.model.balance(&self.batches[self.current])
    }

    fn computed(&mut self, steps: usize) -> Result<ComputedOutputs> {
        let Batch { prompt, lengths, .. } = &self.batches[self.current];
        let mut forwards = vec![lengths.len(); steps + 1];
        forwards[0] = prompt.tokens.len();
        self.model.record_experts(&forwards)?;
        let (tokens, values) = self.sampler.chosen()?;
        Ok(ComputedOutputs { tokens, values })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use llmprof_core::domain::{
        dtype::Dtype,
        model::{DecoderSpec, ModelSpec},
    };

    use super::*;
    use crate::{
        generate::Session, models::tests::decoder, module_scope::Site, ops::Room, record::Recorder,
        weights,
    };

    fn text(tokens: &[u32]) -> TextSample {
        TextSample {
            prompt: Prompt { tokens: tokens.to_vec(), images: Vec::new() },
            pages: Vec::new(),
        }
    }

    /// The tokens of each sequence of `samples`, read as one batch, with `steps` steps each.
    fn generated(spec: &DecoderSpec, samples: &[TextSample], steps: u32) -> Result<Vec<Vec<u32>>> {
        let model = ModelSpec {
            name: "test".to_owned(),
            description: String::new(),
            dtype: Dtype::F32,
            cpu_dtype: Dtype::F32,
            weights: None,
            decoder: spec.clone(),
            vision: None,
        };
        let recorder = Recorder::silent();
        let root = Site::root(weights::synthetic(5, DType::F32, &Device::Cpu), recorder.clone());
        let (sequences, tokens) = (samples.len(), steps as usize + 1);
        let program = TextGeneration {
            model: Model::new(&root, &model, Room { sequences, positions: 24 })?,
            batches: vec![Batch::new(samples)],
            current: 0,
            sampler: Sampler::new(&root.part("sample", ""), spec.vocab, sequences, tokens)?,
        };
        let mut session = Session {
            program: Box::new(program),
            recorder,
            max_new_tokens: steps,
            device: Device::Cpu,
            graph: None,
            #[cfg(feature = "cuda")]
            l2_flush: None,
        };
        let first = session.run()?;
        let again = session.run()?;
        assert_eq!(first.tokens, again.tokens, "a repeat starts again");
        assert_eq!(first.values.len(), tokens, "logits are those of the first sequence");
        Ok(first.tokens.chunks(tokens).map(<[u32]>::to_vec).collect())
    }

    #[test]
    fn a_batch_generates_the_tokens_of_its_single_runs() -> Result<()> {
        let mixture = DecoderSpec { layers: 4, ..decoder() };
        let dense = DecoderSpec { moe: None, tied_embeddings: true, ..mixture.clone() };
        let texts: Vec<TextSample> =
            [&[0, 7, 9, 23, 4][..], &[31], &[2, 2, 40, 11, 8, 19, 3], &[0, 7, 9, 23, 4]]
                .into_iter()
                .map(text)
                .collect();
        for spec in [mixture, dense] {
            let single = |text| Ok(generated(&spec, std::slice::from_ref(text), 12)?.remove(0));
            let alone = texts.iter().map(single).collect::<Result<Vec<_>>>()?;
            assert_eq!(generated(&spec, &texts, 12)?, alone);
            assert_eq!(generated(&spec, &texts[..2], 12)?, alone[..2]);
            assert!(alone[0] != alone[1] && alone[1] != alone[2], "{alone:?}");
        }
        Ok(())
    }

    #[test]
    fn prompts_of_a_batch_keep_the_places_of_their_images() {
        let sample = |tokens: &[u32], image: Option<Range<usize>>| TextSample {
            prompt: Prompt { tokens: tokens.to_vec(), images: image.into_iter().collect() },
            pages: Vec::new(),
        };
        let samples =
            [sample(&[1, 9, 9, 2], Some(1..3)), sample(&[3], None), sample(&[9, 4], Some(0..1))];
        let batch = Batch::new(&samples);
        assert_eq!(batch.prompt.tokens, [1, 9, 9, 2, 3, 9, 4]);
        assert_eq!((batch.prompt.images, batch.lengths), (vec![1..3, 5..6], vec![4, 1, 2]));
    }
}

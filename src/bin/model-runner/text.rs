//! A whole model that reads a prompt with its pages and generates tokens.
//!
//! Sampling is greedy, so the same request gives the same tokens.

use candle_core::Result;

use crate::{
    generate::{ComputedOutputs, Program},
    models::Model,
    ops::{Cursor, Sampler},
    preprocess::PageTensors,
    prompt::Prompt,
};

/// A prompt with its pages.
pub struct TextSample {
    pub prompt: Prompt,
    pub pages: Vec<PageTensors>,
}

/// A model with its samples.
pub struct TextGeneration {
    pub model: Model,
    /// At least one.
    pub samples: Vec<TextSample>,
    /// Index of the sample that the next repeat reads.
    pub current: usize,
    pub sampler: Sampler,
}

impl Program for TextGeneration {
    fn select(&mut self, sample: usize) {
        self.current = sample;
    }

    fn clear(&mut self) -> Result<()> {
        self.model.clear()?;
        self.sampler.clear()
    }

    fn prefill(&mut self) -> Result<()> {
        let TextSample { prompt, pages } = &self.samples[self.current];
        let logits = self.model.prefill(prompt, pages)?;
        self.sampler.sample(logits)
    }

    fn step(&mut self) -> Result<()> {
        let logits = self.model.step(&self.sampler.last()?)?;
        self.sampler.sample(logits)
    }

    fn has_steps(&self) -> bool {
        true
    }

    fn rewind(&mut self, tokens: usize) -> Result<()> {
        let cursor = self.model.cursor();
        cursor.clear()?;
        cursor.advance(tokens)?;
        self.sampler.rewind()
    }

    fn cursor(&mut self) -> &mut Cursor {
        self.model.cursor()
    }

    fn note_replay(&mut self) {
        self.sampler.note_replay();
    }

    fn balance(&mut self) -> Result<()> {
        let TextSample { prompt, pages } = &self.samples[self.current];
        self.model.balance(prompt, pages)
    }

    fn computed(&mut self, steps: usize) -> Result<ComputedOutputs> {
        let tokens = self.samples[self.current].prompt.tokens.len();
        self.model.record_experts(tokens, steps)?;
        let (tokens, values) = self.sampler.chosen()?;
        Ok(ComputedOutputs { tokens, values })
    }
}

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

/// A model with its input.
pub struct TextGeneration {
    pub model: Model,
    pub prompt: Prompt,
    pub pages: Vec<PageTensors>,
    pub sampler: Sampler,
}

impl Program for TextGeneration {
    fn clear(&mut self) -> Result<()> {
        self.model.clear()?;
        self.sampler.clear()
    }

    fn prefill(&mut self) -> Result<()> {
        let logits = self.model.prefill(&self.prompt, &self.pages)?;
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
        self.model.balance(&self.prompt, &self.pages)
    }

    fn computed(&mut self, steps: usize) -> Result<ComputedOutputs> {
        self.model.record_experts(self.prompt.tokens.len(), steps)?;
        let (tokens, values) = self.sampler.chosen()?;
        Ok(ComputedOutputs { tokens, values })
    }
}

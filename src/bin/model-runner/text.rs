//! A whole model reading a prompt with its pages, and writing tokens greedily.
//!
//! Sampling is greedy, so the same request gives the same tokens.

use candle_core::Result;

use crate::{
    generate::{Computed, Program},
    models::Model,
    ops::{Cursor, Sampler},
    preprocess::Page,
    prompt::Prompt,
};

/// A model with its input.
pub struct Text {
    pub model: Model,
    pub prompt: Prompt,
    pub pages: Vec<Page>,
    pub sampler: Sampler,
}

impl Program for Text {
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

    fn steps(&self) -> bool {
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

    fn follow(&mut self) {
        self.sampler.follow();
    }

    fn balance(&mut self) -> Result<()> {
        self.model.balance(&self.prompt, &self.pages)
    }

    fn computed(&mut self, steps: usize) -> Result<Computed> {
        self.model.settle(self.prompt.tokens.len(), steps)?;
        let (tokens, values) = self.sampler.chosen()?;
        Ok(Computed { tokens, values })
    }
}

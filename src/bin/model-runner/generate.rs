//! One repeat: prefill, then a fixed number of decode steps, each under its range.
//!
//! Inside a timed stage nothing is written, hashed or formatted. Sampling is greedy, so the same request gives the same tokens.

use candle_core::{DType, Result, Tensor};
use sha2::{Digest, Sha256};

use crate::{models::Model, ops::ArgMax, preprocess::Page, prompt::Prompt, record::Recorder};

/// What one repeat computed: the tokens, and the logits that each was chosen from.
pub struct Generated {
    pub tokens: Vec<u32>,
    logits: Vec<Tensor>,
}

impl Generated {
    /// SHA-256 over the logits of every sampled position, as little-endian f32.
    pub fn logits_sha256(&self) -> Result<String> {
        let mut hash = Sha256::new();
        for logits in &self.logits {
            for value in logits.to_dtype(DType::F32)?.to_vec1::<f32>()? {
                hash.update(value.to_le_bytes());
            }
        }
        Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// A model with its input, ready to run any number of times.
pub struct Session {
    pub model: Model,
    pub recorder: Recorder,
    pub prompt: Prompt,
    pub pages: Vec<Page>,
    pub max_new_tokens: u32,
    pub sample: ArgMax,
}

impl Session {
    /// Runs once, from an empty cache.
    ///
    /// An end-of-text token does not end it: every repeat, and every pass under a profiler, does the same work, or their times could
    /// not be compared.
    pub fn run(&mut self) -> Result<Generated> {
        let mut generated = Generated { tokens: Vec::new(), logits: Vec::new() };
        self.model.clear();
        {
            let _prefill = self.recorder.range("prefill");
            let logits = self.model.prefill(&self.prompt, &self.pages)?;
            self.sample(logits, &mut generated)?;
        }
        if self.max_new_tokens > 0 {
            let _decode_all = self.recorder.range("decode_all");
            for step in 0..self.max_new_tokens {
                let _step = self.recorder.decode_step(step);
                let last = generated.tokens[generated.tokens.len() - 1];
                let logits = self.model.step(last)?;
                self.sample(logits, &mut generated)?;
            }
        }
        Ok(generated)
    }

    /// Chooses the likeliest token on the host, which waits for the device: a stage ends when its token is known.
    fn sample(&self, logits: Tensor, generated: &mut Generated) -> Result<()> {
        generated.tokens.push(self.sample.forward(&logits)?);
        generated.logits.push(logits);
        Ok(())
    }
}

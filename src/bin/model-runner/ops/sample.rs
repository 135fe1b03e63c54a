//! Greedy sampling: the likeliest token, and its logits.
//!
//! On a GPU the token stays there for the next step; chosen tokens are fetched after the repeat.

#[cfg(feature = "cuda")]
use candle_core::DType;
use candle_core::{D, Device, Result, Tensor};

use crate::{module_scope::Site, record::Op};

/// Chooses and stores tokens.
pub struct Sampler {
    op: Op,
    device: Device,
    tokens: Vec<u32>,
    logits: Vec<Tensor>,
    #[cfg(feature = "cuda")]
    on_gpu: Option<OnGpu>,
}

/// The chosen tokens, on a GPU.
#[cfg(feature = "cuda")]
struct OnGpu {
    /// The last token, the number of tokens, and a zero.
    chosen: Tensor,
    tokens: Tensor,
    /// Logits of each token, `[max_tokens, vocab]`.
    history: Tensor,
    count: usize,
}

impl Sampler {
    /// A sampler of up to `max_tokens` tokens of a vocabulary of `vocab`.
    pub fn new(site: &Site, vocab: usize, max_tokens: usize) -> Result<Self> {
        #[cfg(not(feature = "cuda"))]
        let _ = (vocab, max_tokens);
        Ok(Self {
            op: site.op("argmax"),
            device: site.device().clone(),
            tokens: Vec::new(),
            logits: Vec::new(),
            #[cfg(feature = "cuda")]
            on_gpu: OnGpu::new(site, vocab, max_tokens)?,
        })
    }

    /// Clears all tokens.
    pub fn clear(&mut self) -> Result<()> {
        self.tokens.clear();
        self.logits.clear();
        #[cfg(feature = "cuda")]
        if let Some(on_gpu) = &mut self.on_gpu {
            on_gpu.count = 0;
            on_gpu.chosen.zero_set()?;
        }
        Ok(())
    }

    /// Clears all tokens except the first, which the prefill chose.
    pub fn rewind(&mut self) -> Result<()> {
        self.tokens.truncate(1);
        self.logits.truncate(1);
        #[cfg(feature = "cuda")]
        if let Some(on_gpu) = &mut self.on_gpu {
            on_gpu.count = 1;
            on_gpu.chosen.slice_set(&on_gpu.tokens.narrow(0, 0, 1)?, 0, 0)?;
            on_gpu.chosen.slice_set(&Tensor::ones(1, DType::U32, &self.device)?, 0, 1)?;
        }
        Ok(())
    }

    /// Chooses the index of the largest of `logits` `[vocab]`.
    pub fn sample(&mut self, logits: Tensor) -> Result<()> {
        let Self { op, tokens, .. } = self;
        #[cfg(feature = "cuda")]
        if let Some(on_gpu) = &mut self.on_gpu {
            let sampled = op.call(&[&logits], 0, || on_gpu.sample(&logits))?;
            drop(sampled);
            on_gpu.count += 1;
            return Ok(());
        }
        // The copy to the host belongs to the call: it synchronises with the device.
        op.call(&[&logits], 0, || {
            let largest = logits.argmax(D::Minus1)?;
            tokens.push(largest.to_scalar::<u32>()?);
            Ok(largest)
        })?;
        self.logits.push(logits);
        Ok(())
    }

    /// The token chosen last, `[1]`.
    pub fn last(&self) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if let Some(on_gpu) = &self.on_gpu {
            return on_gpu.chosen.narrow(0, 0, 1);
        }
        Tensor::new(&self.tokens[self.tokens.len() - 1..], &self.device)
    }

    /// Records one token chosen by a replayed graph.
    pub fn note_replay(&mut self) {
        #[cfg(feature = "cuda")]
        if let Some(on_gpu) = &mut self.on_gpu {
            on_gpu.count += 1;
        }
    }

    /// All chosen tokens, and the logits of each.
    pub fn chosen(&self) -> Result<(Vec<u32>, Vec<Tensor>)> {
        #[cfg(feature = "cuda")]
        if let Some(OnGpu { tokens, history, count, .. }) = &self.on_gpu {
            let logits = (0..*count).map(|i| history.get(i)).collect::<Result<_>>()?;
            return Ok((tokens.narrow(0, 0, *count)?.to_vec1()?, logits));
        }
        Ok((self.tokens.clone(), self.logits.clone()))
    }
}

#[cfg(feature = "cuda")]
impl OnGpu {
    /// `None` on the CPU, and if rows of logits are not a multiple of 16 bytes.
    fn new(site: &Site, vocab: usize, max_tokens: usize) -> Result<Option<Self>> {
        let (device, dtype) = (site.device(), site.dtype());
        if !device.is_cuda() || !vocab.is_multiple_of(16 / dtype.size_in_bytes()) {
            return Ok(None);
        }
        Ok(Some(Self {
            chosen: Tensor::zeros(3, DType::U32, device)?,
            tokens: Tensor::zeros(max_tokens, DType::U32, device)?,
            history: Tensor::zeros((max_tokens, vocab), dtype, device)?,
            count: 0,
        }))
    }

    fn sample(&self, logits: &Tensor) -> Result<Tensor> {
        match crate::gpu::sample(logits, &self.chosen, &self.tokens, &self.history)? {
            true => self.chosen.narrow(0, 0, 1),
            false => candle_core::bail!("no kernel samples logits of {:?}", logits.dtype()),
        }
    }
}

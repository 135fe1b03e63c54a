//! Greedy sampling: the likeliest token of each sequence, and the logits of the first sequence.
//!
//! On a GPU the tokens stay there for the next step; chosen tokens are fetched after the repeat.

#[cfg(feature = "cuda")]
use candle_core::DType;
use candle_core::{D, Device, Result, Tensor};

use crate::{module_scope::Site, record::Op};

/// Chooses and stores tokens.
pub struct Sampler {
    op: Op,
    device: Device,
    sequences: usize,
    /// One of each sequence, then the next of each.
    tokens: Vec<u32>,
    /// Logits of each token of the first sequence.
    logits: Vec<Tensor>,
    #[cfg(feature = "cuda")]
    on_gpu: Option<OnGpu>,
}

/// The chosen tokens, on a GPU.
#[cfg(feature = "cuda")]
struct OnGpu {
    /// The last token of each sequence, then each sequence's number of tokens, then zeros.
    chosen: Tensor,
    /// `[sequences, max_tokens]`
    tokens: Tensor,
    /// Logits of each token of the first sequence, `[max_tokens, vocab]`.
    history: Tensor,
    count: usize,
}

impl Sampler {
    /// A sampler of up to `max_tokens` tokens of each of `sequences`, of a vocabulary of `vocab`.
    pub fn new(site: &Site, vocab: usize, sequences: usize, max_tokens: usize) -> Result<Self> {
        #[cfg(not(feature = "cuda"))]
        let _ = (vocab, max_tokens);
        Ok(Self {
            op: site.op("argmax"),
            device: site.device().clone(),
            sequences,
            tokens: Vec::new(),
            logits: Vec::new(),
            #[cfg(feature = "cuda")]
            on_gpu: OnGpu::new(site, vocab, sequences, max_tokens)?,
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

    /// Clears all tokens except the first of each sequence, which the prefill chose.
    pub fn rewind(&mut self) -> Result<()> {
        self.tokens.truncate(self.sequences);
        self.logits.truncate(1);
        #[cfg(feature = "cuda")]
        if let Some(on_gpu) = &mut self.on_gpu {
            on_gpu.count = 1;
            let first = on_gpu.tokens.narrow(1, 0, 1)?.contiguous()?.flatten_all()?;
            on_gpu.chosen.slice_set(&first, 0, 0)?;
            let ones = Tensor::ones(self.sequences, DType::U32, &self.device)?;
            on_gpu.chosen.slice_set(&ones, 0, self.sequences)?;
        }
        Ok(())
    }

    /// Chooses the index of the largest of each row of `logits` `[sequences, vocab]`.
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
            tokens.extend(largest.to_vec1::<u32>()?);
            Ok(largest)
        })?;
        self.logits.push(logits.get(0)?);
        Ok(())
    }

    /// The token of each sequence that was chosen last, `[sequences]`.
    pub fn last(&self) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if let Some(on_gpu) = &self.on_gpu {
            return on_gpu.chosen.narrow(0, 0, self.sequences);
        }
        Tensor::new(&self.tokens[self.tokens.len() - self.sequences..], &self.device)
    }

    /// Records one token of each sequence chosen by a replayed graph.
    pub fn note_replay(&mut self) {
        #[cfg(feature = "cuda")]
        if let Some(on_gpu) = &mut self.on_gpu {
            on_gpu.count += 1;
        }
    }

    /// All chosen tokens, sequence after sequence, and the logits of the first sequence's tokens.
    pub fn chosen(&self) -> Result<(Vec<u32>, Vec<Tensor>)> {
        #[cfg(feature = "cuda")]
        if let Some(OnGpu { tokens, history, count, .. }) = &self.on_gpu {
            let logits = (0..*count).map(|i| history.get(i)).collect::<Result<_>>()?;
            return Ok((tokens.narrow(1, 0, *count)?.flatten_all()?.to_vec1()?, logits));
        }
        let of = |sequence| self.tokens.iter().copied().skip(sequence).step_by(self.sequences);
        Ok(((0..self.sequences).flat_map(of).collect(), self.logits.clone()))
    }
}

#[cfg(feature = "cuda")]
impl OnGpu {
    /// `None` on the CPU, and if rows of logits are not a multiple of 16 bytes.
    fn new(site: &Site, vocab: usize, sequences: usize, max_tokens: usize) -> Result<Option<Self>> {
        let (device, dtype) = (site.device(), site.dtype());
        if !device.is_cuda() || !vocab.is_multiple_of(16 / dtype.size_in_bytes()) {
            return Ok(None);
        }
        Ok(Some(Self {
            chosen: Tensor::zeros(3 * sequences, DType::U32, device)?,
            tokens: Tensor::zeros((sequences, max_tokens), DType::U32, device)?,
            history: Tensor::zeros((max_tokens, vocab), dtype, device)?,
            count: 0,
        }))
    }

    fn sample(&self, logits: &Tensor) -> Result<Tensor> {
        match crate::gpu::sample(logits, &self.chosen, &self.tokens, &self.history)? {
            true => self.chosen.narrow(0, 0, logits.dim(0)?),
            false => candle_core::bail!("no kernel samples logits of {:?}", logits.dtype()),
        }
    }
}

//! Greedy sampling: the likeliest token, and the logits that it was chosen from.
//!
//! On a GPU the token stays there, where the next step reads it; what was chosen is fetched when the repeat is over.

#[cfg(feature = "cuda")]
use candle_core::DType;
use candle_core::{D, Device, Result, Tensor};

use crate::{record::Op, site::Site};

/// Chooses tokens, and remembers them.
pub struct Sampler {
    op: Op,
    device: Device,
    tokens: Vec<u32>,
    logits: Vec<Tensor>,
    #[cfg(feature = "cuda")]
    on_gpu: Option<OnGpu>,
}

/// What was chosen, on a GPU.
#[cfg(feature = "cuda")]
struct OnGpu {
    /// The last token, how many there are, and a zero.
    chosen: Tensor,
    tokens: Tensor,
    /// Logits that each was chosen from, `[most, vocab]`.
    history: Tensor,
    count: usize,
}

impl Sampler {
    /// Makes room for `most` tokens of a vocabulary of `vocab`.
    pub fn new(site: &Site, vocab: usize, most: usize) -> Result<Self> {
        #[cfg(not(feature = "cuda"))]
        let _ = (vocab, most);
        Ok(Self {
            op: site.op("argmax"),
            device: site.device().clone(),
            tokens: Vec::new(),
            logits: Vec::new(),
            #[cfg(feature = "cuda")]
            on_gpu: OnGpu::new(site, vocab, most)?,
        })
    }

    /// Forgets all tokens.
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

    /// Forgets all tokens but the first, which the prefill chose.
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
        // The copy to the host belongs to the call: it is where a device is waited for.
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

    /// Notes that a replayed graph chose one more.
    pub fn follow(&mut self) {
        #[cfg(feature = "cuda")]
        if let Some(on_gpu) = &mut self.on_gpu {
            on_gpu.count += 1;
        }
    }

    /// All tokens chosen, and the logits of each.
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
    /// `None` on the CPU, and where rows of logits are not whole words of 16 bytes.
    fn new(site: &Site, vocab: usize, most: usize) -> Result<Option<Self>> {
        let (device, dtype) = (site.device(), site.dtype());
        if !device.is_cuda() || !vocab.is_multiple_of(16 / dtype.size_in_bytes()) {
            return Ok(None);
        }
        Ok(Some(Self {
            chosen: Tensor::zeros(3, DType::U32, device)?,
            tokens: Tensor::zeros(most, DType::U32, device)?,
            history: Tensor::zeros((most, vocab), dtype, device)?,
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

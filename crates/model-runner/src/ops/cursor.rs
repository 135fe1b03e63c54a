//! The positions of a batch's sequences, on the host and on a GPU.
//!
//! Each sequence continues its own text: lengths differ. On a GPU the positions are stored there
//! too, so that a captured step does not depend on the host.

use std::{cell::RefCell, collections::HashMap};

use candle_core::{DType, Device, Result, Tensor};

/// Sequences of a batch, and the positions of each.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    pub sequences: usize,
    pub positions: usize,
}

impl Room {
    /// One sequence.
    pub fn of_one(positions: usize) -> Self {
        Self { sequences: 1, positions }
    }

    /// Tokens of all sequences.
    pub fn tokens(self) -> usize {
        self.sequences * self.positions
    }
}

/// The position of the next token of each sequence, and the tokens that the forward in progress
/// reads of each.
pub struct Cursor {
    positions: Vec<usize>,
    /// Tokens of each sequence in the forward in progress.
    reading: Vec<usize>,
    device: Option<OnDevice>,
    /// Masks by their numbers of tokens and positions: repeats read the same prompts.
    masks: RefCell<HashMap<(usize, usize), Tensor>>,
}

/// The same numbers on a GPU.
struct OnDevice {
    /// The positions, and of several sequences their sum.
    all: Tensor,
    /// The sum, in `all`.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "read by kernels"))]
    sum: Tensor,
    /// A zero per head of each sequence, with which attention counts finished parts.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "read by kernels"))]
    tickets: Tensor,
}

/// Positions on a GPU.
#[cfg(feature = "cuda")]
pub struct DevicePositions<'a> {
    /// One per sequence.
    pub positions: &'a Tensor,
    /// Tokens read so far, of all sequences.
    pub sum: &'a Tensor,
    /// A zero per head of each sequence.
    pub tickets: &'a Tensor,
}

/// The rows of one sequence in a forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub sequence: usize,
    /// The first row.
    pub row: usize,
    /// Number of rows, which are tokens.
    pub tokens: usize,
    /// Position of the first token in its text.
    pub position: usize,
}

impl Span {
    /// Tokens of the text with these.
    pub fn length(self) -> usize {
        self.position + self.tokens
    }
}

impl Cursor {
    /// The start of `sequences` texts.
    pub fn new(sequences: usize, heads: usize, device: &Device) -> Result<Self> {
        let zeros = |count: usize| Tensor::zeros(count, DType::U32, device);
        let on_device = || {
            let all = zeros(sequences + usize::from(sequences > 1))?;
            let sum = all.narrow(0, all.elem_count() - 1, 1)?;
            Ok::<_, candle_core::Error>(OnDevice { all, sum, tickets: zeros(sequences * heads)? })
        };
        Ok(Self {
            positions: vec![0; sequences],
            reading: vec![0; sequences],
            device: device.is_cuda().then(on_device).transpose()?,
            masks: RefCell::default(),
        })
    }

    pub fn sequences(&self) -> usize {
        self.positions.len()
    }

    /// Positions of all sequences.
    pub fn positions(&self) -> &[usize] {
        &self.positions
    }

    /// Tokens read so far, of all sequences.
    pub fn tokens(&self) -> usize {
        self.positions.iter().sum()
    }

    /// Starts a forward of `tokens` tokens of each sequence.
    pub fn read(&mut self, tokens: &[usize]) -> Result<()> {
        if tokens.len() != self.reading.len() || tokens.contains(&0) {
            candle_core::bail!("{tokens:?} tokens of {} sequences", self.reading.len());
        }
        self.reading.copy_from_slice(tokens);
        Ok(())
    }

    /// Starts a forward of one token of each sequence.
    pub fn read_one(&mut self) {
        self.reading.fill(1);
    }

    /// True if the forward in progress reads one token of each sequence.
    pub fn reads_one(&self) -> bool {
        self.common_reading() == Some(1)
    }

    /// The rows of each sequence in the forward in progress: rows of the first, then of the second,
    /// and so on.
    pub fn spans(&self) -> impl ExactSizeIterator<Item = Span> + Clone + '_ {
        let mut row = 0;
        let each = self.positions.iter().zip(&self.reading).enumerate();
        each.map(move |(sequence, (&position, &tokens))| {
            row += tokens;
            Span { sequence, row: row - tokens, tokens, position }
        })
    }

    /// The common number of tokens and position of all sequences in the forward in progress.
    pub fn common_span(&self) -> Option<Span> {
        let first = self.spans().next()?;
        let is_common = |it: Span| (it.tokens, it.position) == (first.tokens, first.position);
        self.spans().all(is_common).then_some(first)
    }

    /// Ends a forward: advances by its tokens, here and on the GPU.
    pub fn advance(&mut self) -> Result<()> {
        self.advance_host();
        let Some(on_device) = &self.device else { return Ok(()) };
        #[cfg(feature = "cuda")]
        if let Some(by) = self.common_reading() {
            let device = on_device.all.device().as_cuda_device()?;
            return crate::gpu::advance(device, &on_device.all, self.positions.len(), by);
        }
        on_device.set(&self.positions)
    }

    /// Ends a forward on the host only; a replayed graph has advanced the GPU's positions.
    pub fn advance_host(&mut self) {
        self.positions.iter_mut().zip(&self.reading).for_each(|(at, tokens)| *at += tokens);
    }

    /// The tokens that the forward in progress reads of each sequence, if that is one number.
    fn common_reading(&self) -> Option<usize> {
        let first = self.reading[0];
        self.reading.iter().all(|&tokens| tokens == first).then_some(first)
    }

    /// Resets to the start.
    pub fn clear(&mut self) -> Result<()> {
        self.positions.fill(0);
        self.device.as_ref().map_or(Ok(()), |on_device| on_device.all.zero_set())
    }

    /// Sets the positions, one per sequence.
    pub fn set(&mut self, positions: &[usize]) -> Result<()> {
        self.positions.copy_from_slice(positions);
        self.device.as_ref().map_or(Ok(()), |on_device| on_device.set(positions))
    }

    /// Positions, their sum, and tickets on the GPU.
    #[cfg(feature = "cuda")]
    pub fn on_device(&self) -> Option<DevicePositions<'_>> {
        let OnDevice { all, sum, tickets } = self.device.as_ref()?;
        Some(DevicePositions { positions: all, sum, tickets })
    }

    /// Fails while a step is captured: the caller uses the host's positions, and replays would keep
    /// using the captured ones.
    pub fn require_host(&self) -> Result<()> {
        #[cfg(feature = "cuda")]
        if crate::gpu::is_capturing() {
            candle_core::bail!(
                "attention with this head size or dtype has no kernel and needs the host's \
                 position"
            );
        }
        Ok(())
    }

    /// The mask added to the scores of `span`: minus infinity for later keys; `None` for a single
    /// token.
    pub fn mask(&self, span: Span, dtype: DType, device: &Device) -> Result<Option<Tensor>> {
        let Span { tokens, position, .. } = span;
        if tokens == 1 {
            return Ok(None);
        }
        let mut masks = self.masks.borrow_mut();
        if let Some(mask) = masks.get(&(tokens, position)) {
            return Ok(Some(mask.clone()));
        }
        // Masks of earlier prompts are freed.
        if masks.len() >= self.positions.len() {
            masks.clear();
        }
        let row = |i: usize| {
            (0..span.length()).map(move |j| if j > position + i { f32::NEG_INFINITY } else { 0.0 })
        };
        let mask = Tensor::from_iter((0..tokens).flat_map(row), device)?
            .reshape((tokens, span.length()))?
            .to_dtype(dtype)?;
        masks.insert((tokens, position), mask.clone());
        Ok(Some(mask))
    }
}

impl OnDevice {
    /// Copies the positions to the GPU.
    fn set(&self, positions: &[usize]) -> Result<()> {
        let sum = (positions.len() > 1).then(|| positions.iter().sum());
        let all = positions.iter().copied().chain(sum).map(|position: usize| position as u32);
        self.all.slice_set(&Tensor::from_iter(all, self.all.device())?, 0, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_of_different_lengths_advance_by_their_own_tokens() -> Result<()> {
        let mut cursor = Cursor::new(3, 1, &Device::Cpu)?;
        cursor.read(&[4, 1, 2])?;
        let span = |sequence, row, tokens, position| Span { sequence, row, tokens, position };
        let spans: Vec<Span> = cursor.spans().collect();
        assert_eq!(spans, [span(0, 0, 4, 0), span(1, 4, 1, 0), span(2, 5, 2, 0)]);
        assert_eq!((cursor.reads_one(), cursor.common_span()), (false, None));
        cursor.advance()?;
        cursor.read_one();
        let spans: Vec<Span> = cursor.spans().collect();
        assert_eq!(spans, [span(0, 0, 1, 4), span(1, 1, 1, 1), span(2, 2, 1, 2)]);
        cursor.advance()?;
        assert_eq!((cursor.positions(), cursor.tokens()), (&[5, 2, 3][..], 10));
        cursor.set(&[4, 1, 2])?;
        assert_eq!(cursor.positions(), [4, 1, 2]);
        assert!(cursor.read(&[1, 1]).is_err() && cursor.read(&[1, 0, 1]).is_err());
        Ok(())
    }

    #[test]
    fn a_mask_hides_later_keys_of_its_own_sequence() -> Result<()> {
        let cursor = Cursor::new(1, 1, &Device::Cpu)?;
        let span = Span { sequence: 0, row: 0, tokens: 2, position: 1 };
        let mask = cursor.mask(span, DType::F32, &Device::Cpu)?.expect("of two tokens");
        let hidden = f32::NEG_INFINITY;
        assert_eq!(mask.to_vec2::<f32>()?, [[0.0, 0.0, hidden], [0.0, 0.0, 0.0]]);
        Ok(())
    }
}

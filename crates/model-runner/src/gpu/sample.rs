//! Greedy sampling on the GPU, and the positions of the next tokens.
//!
//! Tokens and logits stay there until they are fetched.

use candle_core::{CudaDevice, DType, Result, Tensor};

use super::{
    device_of, empty,
    kernels::{KernelArg, LaunchGrid, launch},
};

const BLOCKS: usize = 132;

/// Advances the `positions` of `sequences` by `tokens` each, and, for several sequences, their sum
/// after them.
pub fn advance(
    device: &CudaDevice,
    positions: &Tensor,
    sequences: usize,
    tokens: usize,
) -> Result<()> {
    let threads = if sequences == 1 { 1 } else { 128 };
    let args =
        &mut [KernelArg::tensor(positions)?, KernelArg::int(sequences), KernelArg::int(tokens)];
    launch(device, "advance", None, LaunchGrid::new((1, 1), threads), args)
}

/// Chooses the largest of each row of `logits` `[sequences, vocab]` and stores it in `chosen` (of
/// each sequence the last token, then of each the count, then a zero) and in `tokens`
/// `[sequences, max_tokens]`, and the logits of the first in `history`. Returns whether there is a
/// kernel for it.
pub fn sample(logits: &Tensor, chosen: &Tensor, tokens: &Tensor, history: &Tensor) -> Result<bool> {
    let Some(device) = device_of(logits, &[history]) else { return Ok(false) };
    let (sequences, vocabulary) = logits.dims2()?;
    let best = empty(2 * BLOCKS * sequences, DType::U32, device)?;
    let args = &mut [
        KernelArg::tensor(logits)?,
        KernelArg::tensor(chosen)?,
        KernelArg::tensor(tokens)?,
        KernelArg::tensor(history)?,
        KernelArg::tensor(&best)?,
        KernelArg::int(vocabulary),
        KernelArg::int(tokens.dim(1)?),
    ];
    let grid = LaunchGrid::new((BLOCKS, sequences), 512);
    launch(device, "sample", Some(logits.dtype()), grid, args)?;
    Ok(true)
}

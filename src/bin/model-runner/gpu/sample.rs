//! Greedy sampling on the GPU, and the position of the next token.
//!
//! Tokens and logits stay there until somebody asks.

use candle_core::{CudaDevice, DType, Result, Tensor};

use super::{
    device_of, empty,
    kernels::{Arg, Grid, launch},
};

const BLOCKS: usize = 132;

/// Moves the number in `position` on by `tokens`.
pub fn advance(device: &CudaDevice, position: &Tensor, tokens: usize) -> Result<()> {
    launch(device, "advance", None, Grid::new((1, 1), 1), &mut [Arg::tensor(position)?, Arg::int(tokens)])
}

/// Chooses the largest of `logits` and notes it in `chosen` (last, count, and a zero), `tokens` and, with the logits, `history`.
/// Says whether there is a kernel for it.
pub fn sample(logits: &Tensor, chosen: &Tensor, tokens: &Tensor, history: &Tensor) -> Result<bool> {
    let Some(device) = device_of(logits, &[history]) else { return Ok(false) };
    let best = empty(2 * BLOCKS, DType::U32, device)?;
    let args = &mut [
        Arg::tensor(logits)?,
        Arg::tensor(chosen)?,
        Arg::tensor(tokens)?,
        Arg::tensor(history)?,
        Arg::tensor(&best)?,
        Arg::int(logits.elem_count()),
        Arg::int(tokens.elem_count()),
    ];
    launch(device, "sample", Some(logits.dtype()), Grid::new((BLOCKS, 1), 512), args)?;
    Ok(true)
}

//! Greedy sampling on the GPU, and the position of the next token.
//!
//! Tokens and logits stay there until they are fetched.

use candle_core::{CudaDevice, DType, Result, Tensor};

use super::{
    device_of, empty,
    kernels::{KernelArg, LaunchGrid, launch},
};

const BLOCKS: usize = 132;

/// Advances `position` by `tokens`.
pub fn advance(device: &CudaDevice, position: &Tensor, tokens: usize) -> Result<()> {
    launch(
        device,
        "advance",
        None,
        LaunchGrid::new((1, 1), 1),
        &mut [KernelArg::tensor(position)?, KernelArg::int(tokens)],
    )
}

/// Chooses the largest of `logits` and stores it in `chosen` (last, count, and a zero) and
/// `tokens`, and the logits in `history`. Returns whether there is a kernel for it.
pub fn sample(logits: &Tensor, chosen: &Tensor, tokens: &Tensor, history: &Tensor) -> Result<bool> {
    let Some(device) = device_of(logits, &[history]) else { return Ok(false) };
    let best = empty(2 * BLOCKS, DType::U32, device)?;
    let args = &mut [
        KernelArg::tensor(logits)?,
        KernelArg::tensor(chosen)?,
        KernelArg::tensor(tokens)?,
        KernelArg::tensor(history)?,
        KernelArg::tensor(&best)?,
        KernelArg::int(logits.elem_count()),
        KernelArg::int(tokens.elem_count()),
    ];
    launch(device, "sample", Some(logits.dtype()), LaunchGrid::new((BLOCKS, 1), 512), args)?;
    Ok(true)
}

//! Partition of a feature map into square windows, and their join.
//!
//! Only moves values. The last windows of a row or column are padded with zeros to full size.

use candle_core::{Result, Tensor};

use crate::ops::gpu_kernel;

/// Cuts `[batch, high, wide, width]` into windows `[batch * windows, side, side, width]`, in
/// reading order.
pub fn partition(x: &Tensor, side: usize) -> Result<Tensor> {
    gpu_kernel!(partition_windows(x, side));
    let (batch, high, wide, width) = x.dims4()?;
    let (rows, columns) = (high.div_ceil(side), wide.div_ceil(side));
    x.pad_with_zeros(1, 0, rows * side - high)?
        .pad_with_zeros(2, 0, columns * side - wide)?
        .reshape(&[batch, rows, side, columns, side, width][..])?
        .permute((0, 1, 3, 2, 4, 5))?
        .reshape((batch * rows * columns, side, side, width))
}

/// Joins the windows of [`partition`] as `[batch, high, wide, width]`; padding is dropped.
pub fn join(windows: &Tensor, (high, wide): (usize, usize)) -> Result<Tensor> {
    let (count, side, _, width) = windows.dims4()?;
    if high == wide {
        gpu_kernel!(join_windows(windows, high));
    }
    let (rows, columns) = (high.div_ceil(side), wide.div_ceil(side));
    let batch = count / (rows * columns);
    windows
        .reshape(&[batch, rows, columns, side, side, width][..])?
        .permute((0, 1, 3, 2, 4, 5))?
        .reshape((batch, rows * side, columns * side, width))?
        .narrow(1, 0, high)?
        .narrow(2, 0, wide)?
        .contiguous()
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, IndexOp};

    use super::*;

    fn numbered(batch: usize, high: usize, wide: usize) -> Result<Tensor> {
        Tensor::arange(1f32, (batch * high * wide * 2 + 1) as f32, &Device::Cpu)?
            .reshape((batch, high, wide, 2))
    }

    #[test]
    fn joining_windows_restores_the_map() -> anyhow::Result<()> {
        for (high, wide) in [(4, 4), (5, 7), (1, 9), (2, 2)] {
            let x = numbered(3, high, wide)?;
            let joined = join(&partition(&x, 3)?, (high, wide))?;
            assert_eq!(joined.flatten_all()?.to_vec1::<f32>()?, x.flatten_all()?.to_vec1::<f32>()?);
        }
        Ok(())
    }

    #[test]
    fn windows_are_in_reading_order_and_padded_with_zeros() -> anyhow::Result<()> {
        let windows = partition(&numbered(1, 3, 5)?, 3)?;
        assert_eq!(windows.dims(), [2, 3, 3, 2]);
        // Patch (row 1, column 3) of five per row is number 8; its first channel counts from 1.
        assert_eq!(windows.i((1, 1, 0, 0))?.to_scalar::<f32>()?, 17.0);
        assert_eq!(windows.i((1, .., 2, ..))?.sum_all()?.to_scalar::<f32>()?, 0.0);
        Ok(())
    }
}

//! Position tables resampled from their learned grid to another size.
//!
//! A resampling is a matrix `[new, old]`, computed and applied once on the host, when the model is
//! built.

use candle_core::{DType, Device, Result, Tensor};

/// Resamples a square table `[side, side, width]` to another side: bicubic, antialiased if it
/// shrinks.
pub fn grid(table: &Tensor, side: usize) -> Result<Tensor> {
    let (old, _, width) = table.dims3()?;
    if old == side {
        return Ok(table.clone());
    }
    let matrix = matrix(side, old, cubic_row)?;
    on_host(table, |table| {
        let rows =
            matrix.matmul(&table.reshape((old, old * width))?)?.reshape((side, old, width))?;
        let columns = rows.transpose(0, 1)?.reshape((old, side * width))?;
        matrix.matmul(&columns)?.reshape((side, side, width))?.transpose(0, 1)?.contiguous()
    })
}

/// Resamples a list `[length, width]` to another length, linearly.
pub fn list(table: &Tensor, length: usize) -> Result<Tensor> {
    let old = table.dim(0)?;
    if old == length {
        return Ok(table.clone());
    }
    let matrix = matrix(length, old, linear_row)?;
    on_host(table, |table| matrix.matmul(&table))
}

fn on_host(table: &Tensor, compute: impl FnOnce(Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let host = table.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
    compute(host)?.to_dtype(table.dtype())?.to_device(table.device())
}

fn matrix(new: usize, old: usize, row: fn(usize, usize, usize) -> Vec<f32>) -> Result<Tensor> {
    Tensor::from_vec((0..new).flat_map(|i| row(i, new, old)).collect(), (new, old), &Device::Cpu)
}

/// Weights of the `old` samples for sample `i` of `new`; the centres of both divide the same
/// length.
fn cubic_row(i: usize, new: usize, old: usize) -> Vec<f32> {
    let step = old as f64 / new as f64;
    let spread = step.max(1.0);
    let centre = (i as f64 + 0.5) * step;
    let weights: Vec<f64> = (0..old).map(|j| cubic((j as f64 + 0.5 - centre) / spread)).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| (weight / sum) as f32).collect()
}

/// Keys' cubic kernel with `a = -1/2`, 0 from 2.
fn cubic(x: f64) -> f64 {
    match x.abs() {
        x if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
        x if x < 2.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
        _ => 0.0,
    }
}

fn linear_row(i: usize, new: usize, old: usize) -> Vec<f32> {
    let at = ((i as f64 + 0.5) * old as f64 / new as f64 - 0.5).clamp(0.0, (old - 1) as f64);
    let (left, share) = (at.floor() as usize, at.fract() as f32);
    let mut weights = vec![0.0; old];
    weights[left] += 1.0 - share;
    weights[(left + 1).min(old - 1)] += share;
    weights
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(table: &Tensor) -> Result<Vec<f32>> {
        table.flatten_all()?.to_vec1::<f32>()
    }

    #[test]
    fn a_table_of_the_right_size_is_unchanged() -> anyhow::Result<()> {
        let table = Tensor::randn(0f32, 1.0, (5, 5, 3), &Device::Cpu)?;
        assert_eq!(values(&grid(&table, 5)?)?, values(&table)?);
        // The kernels agree: weight 1 at the sample itself, 0 at all others.
        for i in 0..5 {
            let one: Vec<f32> = (0..5).map(|j| if i == j { 1.0 } else { 0.0 }).collect();
            assert_eq!((cubic_row(i, 5, 5), linear_row(i, 5, 5)), (one.clone(), one));
        }
        Ok(())
    }

    #[test]
    fn a_list_is_interpolated_between_middles() -> anyhow::Result<()> {
        let table = Tensor::new(&[[0f32], [1.0], [2.0], [3.0]], &Device::Cpu)?;
        assert_eq!(values(&list(&table, 2)?)?, [0.5, 2.5]);
        assert_eq!(values(&list(&table, 8)?)?, [0.0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.0]);
        Ok(())
    }

    #[test]
    fn a_plane_stays_a_plane_within_and_keeps_its_axes() -> anyhow::Result<()> {
        // Rows count in ones, columns in hundreds, so that swapped axes are detected.
        let plane = Tensor::from_iter(
            (0..64).map(|i| (i / 8) as f32 + 100.0 * (i % 8) as f32),
            &Device::Cpu,
        )?;
        let small = values(&grid(&plane.reshape((8, 8, 1))?, 4)?)?;
        let (row, column) = (small[2 * 4 + 1] - small[4 + 1], small[4 + 2] - small[4 + 1]);
        assert!((row - 2.0).abs() < 0.1 && (column - 200.0).abs() < 10.0, "{small:?}");
        let large = grid(&plane.reshape((8, 8, 1))?, 16)?;
        assert!(
            (large.mean_all()?.to_scalar::<f32>()? - plane.mean_all()?.to_scalar::<f32>()?).abs()
                < 1e-2
        );
        Ok(())
    }
}

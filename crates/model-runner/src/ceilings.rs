//! The ceilings of this device: a large matrix product, and a large copy.
//!
//! The references of utilisation, measured by this process on this device: the best of several
//! tries within a fixed time.

use std::time::{Duration, Instant};

use candle_core::{DType, Device, Result, Tensor};
use llmprof_core::trace::event::Ceiling;
use rayon::prelude::*;

/// Time for each ceiling, of at least `MIN_TRIES` tries.
const BUDGET: Duration = Duration::from_millis(100);
const MIN_TRIES: u32 = 3;

/// Measures both ceilings in `dtype`.
pub fn measure(dtype: DType, device: &Device) -> Result<Vec<Ceiling>> {
    Ok(vec![matmul(dtype, device)?, copy(dtype, device)?])
}

fn matmul(dtype: DType, device: &Device) -> Result<Ceiling> {
    let side = if device.is_cpu() { 768 } else { 8192 };
    let square = || Tensor::ones((side, side), dtype, device);
    let (a, b) = (square()?, square()?);
    let (seconds, tries) = best(device, || a.matmul(&b).map(drop))?;
    let flops = 2.0 * (side as f64).powi(3);
    Ok(Ceiling {
        what: "matmul".to_owned(),
        dtype: dtype.as_str().to_owned(),
        shape: vec![side as u64; 3],
        per_second: flops / seconds,
        tries,
    })
}

fn copy(dtype: DType, device: &Device) -> Result<Ceiling> {
    let (bytes, (seconds, tries)) = if device.is_cpu() {
        // Larger than any cache, and on every core: one core does not saturate the memory bus.
        let source = vec![1u8; 128 << 20];
        let mut target = vec![2u8; source.len()];
        let chunk = source.len().div_ceil(rayon::current_num_threads());
        let timed = best(device, || {
            let pairs = target.par_chunks_mut(chunk).zip(source.par_chunks(chunk));
            pairs.for_each(|(target, source)| target.copy_from_slice(source));
            std::hint::black_box(&target);
            Ok(())
        })?;
        (source.len(), timed)
    } else {
        // The driver's copy: a kernel of candle would measure candle. Several per try, so that one
        // reuses the memory of another and allocation does not count.
        const COPIES: usize = 16;
        let source = Tensor::ones(1 << 28, DType::F32, device)?;
        let (seconds, tries) =
            best(device, || (0..COPIES).try_for_each(|_| source.copy().map(drop)))?;
        (source.elem_count() * DType::F32.size_in_bytes(), (seconds / COPIES as f64, tries))
    };
    Ok(Ceiling {
        what: "copy".to_owned(),
        dtype: dtype.as_str().to_owned(),
        shape: vec![(bytes / dtype.size_in_bytes()) as u64],
        per_second: 2.0 * bytes as f64 / seconds,
        tries,
    })
}

/// The shortest time of the tries within the budget, in seconds, after one warm-up.
fn best(device: &Device, mut work: impl FnMut() -> Result<()>) -> Result<(f64, u32)> {
    work()?;
    device.synchronize()?;
    let (started, mut shortest, mut tries) = (Instant::now(), f64::INFINITY, 0);
    while tries < MIN_TRIES || started.elapsed() < BUDGET {
        let start = Instant::now();
        work()?;
        device.synchronize()?;
        shortest = shortest.min(start.elapsed().as_secs_f64());
        tries += 1;
    }
    Ok((shortest, tries))
}

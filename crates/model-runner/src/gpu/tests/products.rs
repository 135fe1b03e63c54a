//! Products with weights, and the memory of their outputs.

use candle_core::{DType, Device, Result};

use super::{DTYPES, far, gpu as open, tolerance, values};
use crate::{gpu, ops::gate};

#[test]
#[ignore = "needs a GPU"]
fn products_with_one_vector() -> Result<()> {
    let device = open();
    for dtype in DTYPES {
        for (outputs, inputs) in [(3840, 1280), (64, 32), (7, 6848), (1000, 896)] {
            let ((x, gpu_x), (w, gpu_w)) = (
                values(&[1, inputs], dtype, &device)?,
                values(&[outputs, inputs], dtype, &device)?,
            );
            let (bias, gpu_bias) = values(&[outputs], dtype, &device)?;
            let want = x.matmul(&w.t()?)?.broadcast_add(&bias)?;
            let got = gpu::gemv(&gpu_x, &gpu_w, Some(&gpu_bias))?.expect("a kernel");
            assert!(far(&got, &want)? < tolerance(dtype), "{dtype:?} {outputs} {inputs}");
            if outputs % 16 == 0 {
                let got = gpu::gated(&gpu_x, &gpu_w, None)?.expect("a kernel");
                assert!(
                    far(&got, &gate(&x.matmul(&w.t()?)?)?)? < tolerance(dtype),
                    "gated {dtype:?} {outputs} {inputs}"
                );
            }
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn products_of_several_rows_equal_the_hosts() -> Result<()> {
    let device = open();
    for dtype in DTYPES {
        for (rows, inputs, outputs) in [(1, 64, 24), (7, 256, 1_000), (300, 128, 96)] {
            let (x, on_gpu) = values(&[rows, inputs], dtype, &device)?;
            let (weight, weight_on_gpu) = values(&[outputs, inputs], dtype, &device)?;
            let got = gpu::product(&on_gpu, &weight_on_gpu)?.expect("the layout of the kernels");
            assert_eq!(got.dims(), [rows, outputs]);
            let difference = far(&got, &x.matmul(&weight.t()?)?)?;
            assert!(difference < tolerance(dtype), "{dtype:?} {rows}: {difference}");
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn outputs_that_share_an_allocation_keep_their_values() -> Result<()> {
    let device = open();
    let (x, on_gpu) = values(&[3, 1_000], DType::BF16, &device)?;
    let (weight, weight_on_gpu) = values(&[1_000, 1_000], DType::BF16, &device)?;
    let product = || gpu::product(&on_gpu, &weight_on_gpu).map(Option::unwrap);
    // More than four allocations; a hundredth is kept.
    let mut kept = Vec::new();
    for at in 0..6_000 {
        let output = product()?;
        if at % 100 == 0 {
            kept.push(output);
        }
    }
    let want = x.matmul(&weight.t()?)?;
    for output in kept {
        assert!(far(&output, &want)? < tolerance(DType::BF16));
    }
    let alone = gpu::without_slabs(product)?;
    assert!(far(&alone, &want)? < tolerance(DType::BF16));
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn a_graph_beyond_its_memory_writes_to_no_shared_allocation() -> Result<()> {
    let device = open();
    let Device::Cuda(cuda) = &device else { panic!("not a GPU") };
    let (x, on_gpu) = values(&[3, 1_000], DType::BF16, &device)?;
    let (_, other) = values(&[3, 1_000], DType::BF16, &device)?;
    let (weight, weight_on_gpu) = values(&[1_000, 1_000], DType::BF16, &device)?;
    let product = |x| gpu::product(x, &weight_on_gpu).map(Option::unwrap);
    // One allocation is in use, and the graph has three times the outputs that its memory holds.
    let before = product(&on_gpu)?;
    let captured = || (0..4_000).try_for_each(|_| product(&other).map(drop));
    let (graph, ()) = gpu::CapturedGraph::capture(cuda, captured)?;
    drop(before);
    let kept = (0..4_000).map(|_| product(&on_gpu)).collect::<Result<Vec<_>>>()?;
    graph.replay()?;
    device.synchronize()?;
    let want = x.matmul(&weight.t()?)?;
    for output in kept {
        assert!(far(&output, &want)? < tolerance(DType::BF16));
    }
    Ok(())
}

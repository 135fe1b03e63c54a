//! Every kernel compared with candle's computation on the CPU, in f32.
//!
//! Needs a GPU: run by `tests/gpu/runner.sh`, on a GPU host.

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::Init;
use llmprof_core::domain::model::{DecoderSpec as Spec, MoeSpec};

use super::{AttendMany, MatrixView};
use crate::{
    module_scope::Site,
    ops::{
        Activation, CausalAttention, Cursor, Experts, LayerCache, Norm, Room, Rope, RopeTables,
        Router, SelfAttention, gate,
    },
    record::Recorder,
    weights,
};

fn gpu() -> Device {
    super::open(0).expect("a GPU")
}

/// Largest difference, relative to the largest value.
fn far(got: &Tensor, want: &Tensor) -> Result<f32> {
    let host = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all();
    let (got, want) = (host(got)?, host(want)?);
    let largest = want.abs()?.max_all()?.to_scalar::<f32>()?;
    let worst = (got - want)?.abs()?.max_all()?.to_scalar::<f32>()?;
    // NaN compares as equal to nothing: it counts as infinite.
    Ok(if worst.is_nan() { f32::INFINITY } else { worst / largest.max(1e-6) })
}

/// Maximum difference of results in `dtype` from those in f32.
fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F32 => 2e-5,
        DType::F16 => 4e-3,
        _ => 2e-2,
    }
}

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Values that are the same in `dtype` and in f32: on the CPU and on the GPU.
fn values(shape: &[usize], dtype: DType, gpu: &Device) -> Result<(Tensor, Tensor)> {
    let host = Tensor::randn(0f32, 1.0, shape, &Device::Cpu)?.to_dtype(dtype)?;
    Ok((host.to_dtype(DType::F32)?, host.to_device(gpu)?))
}

/// The same synthetic weights in f32 on the CPU and in `dtype` on the GPU.
fn sites(dtype: DType, gpu: &Device) -> (Site<'static>, Site<'static>) {
    let site = |dtype, device: &Device| {
        Site::root(weights::synthetic(3, dtype, device), Recorder::silent())
    };
    (site(DType::F32, &Device::Cpu), site(dtype, gpu))
}

#[test]
#[ignore = "needs a GPU"]
fn synthetic_weights_equal_the_hosts() -> Result<()> {
    let gpu = gpu();
    for dtype in DTYPES {
        let (host, device) =
            (weights::synthetic(9, dtype, &Device::Cpu), weights::synthetic(9, dtype, &gpu));
        let init = Init::Randn { mean: 0.25, stdev: 0.02 };
        let (host, device) = (
            host.get_with_hints((300, 1001), "w", init)?,
            device.get_with_hints((300, 1001), "w", init)?,
        );
        assert_eq!(far(&device, &host)?, 0.0, "{dtype:?}");
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn norms_with_and_without_a_residual_sum() -> Result<()> {
    let gpu = gpu();
    for dtype in DTYPES {
        for (rows, width) in [(1, 1280), (70, 768), (3, 8192), (5, 32)] {
            let ((x, gpu_x), (delta, gpu_delta)) =
                (values(&[rows, width], dtype, &gpu)?, values(&[rows, width], dtype, &gpu)?);
            let (host, device) = sites(dtype, &gpu);
            for (host, device) in [
                (Norm::rms(&host, width, 1e-6)?, Norm::rms(&device, width, 1e-6)?),
                (Norm::layer(&host, width, 1e-5)?, Norm::layer(&device, width, 1e-5)?),
            ] {
                let (want, got) =
                    (host.forward_sum(&x, &delta)?, device.forward_sum(&gpu_x, &gpu_delta)?);
                assert!(
                    far(&got.0, &want.0)? < tolerance(dtype)
                        && far(&got.1, &want.1)? < tolerance(dtype),
                    "{dtype:?} {width}"
                );
                assert!(
                    far(&device.forward(&gpu_x)?, &host.forward(&x)?)? < tolerance(dtype),
                    "{dtype:?} {width}"
                );
            }
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn biases_gates_windows_and_rows_of_tables() -> Result<()> {
    let gpu = gpu();
    for dtype in DTYPES {
        let near = |got: &Tensor, want: &Tensor| far(got, want).map(|far| far < tolerance(dtype));
        let ((x, gpu_x), (bias, gpu_bias)) =
            (values(&[33, 256], dtype, &gpu)?, values(&[256], dtype, &gpu)?);
        for function in [Activation::Gelu, Activation::QuickGelu] {
            let want = function.apply(&x.broadcast_add(&bias)?)?;
            let got =
                super::bias(&gpu_x, Some(&gpu_bias), None, function as i32)?.expect("a kernel");
            assert!(near(&got, &want)?, "{function:?} {dtype:?}");
        }
        let got = super::bias(&gpu_x, None, Some(&gpu_x), 0)?.expect("a kernel");
        assert!(near(&got, &(&x + &x)?)?);
        assert!(near(&super::swiglu(&gpu_x)?.expect("a kernel"), &gate(&x)?)?);

        let (map, gpu_map) = values(&[2, 10, 10, 64], dtype, &gpu)?;
        let windows = super::partition_windows(&gpu_map, 4)?.expect("a kernel");
        assert_eq!(windows.dims(), [18, 4, 4, 64]);
        let padded = map
            .pad_with_zeros(1, 0, 2)?
            .pad_with_zeros(2, 0, 2)?
            .reshape(&[2, 3, 4, 3, 4, 64][..])?;
        assert_eq!(far(&windows, &padded.permute((0, 1, 3, 2, 4, 5))?.contiguous()?)?, 0.0);
        assert_eq!(far(&super::join_windows(&windows, 10)?.expect("a kernel"), &map)?, 0.0);

        let tokens = Tensor::new(&[5u32, 0, 32], &gpu)?;
        let rows = super::embed(&tokens, &gpu_x)?.expect("a kernel");
        assert_eq!(far(&rows, &x.index_select(&tokens.to_device(&Device::Cpu)?, 0)?)?, 0.0);
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn attention_over_a_cache_in_any_pieces() -> Result<()> {
    let gpu = gpu();
    for dtype in DTYPES {
        for (sequences, heads, kv_heads, head_dim, qk_norm) in [
            (1, 10, 10, 128, false),
            (3, 10, 10, 128, false),
            (1, 8, 2, 64, true),
            (3, 8, 2, 64, true),
            (3, 4, 4, 32, false),
            // Blocks that share their keys, for at least one block per SM.
            (3, 44, 44, 32, false),
            (3, 48, 24, 128, false),
            (3, 48, 12, 64, true),
        ] {
            let spec = Spec { heads, kv_heads, head_dim, qk_norm, ..decoder(None) };
            let (host, device) = sites(dtype, &gpu);
            let positions = 1100;
            let make = |site: &Site, dtype: DType| {
                let tables = RopeTables::new(positions, &spec.rope_frequencies(), site.device())?;
                let rope = Rope::new(site, &spec, &tables)?;
                let room = Room { sequences, positions };
                let cache = LayerCache::new(&spec, room, dtype, site.device())?;
                Ok::<_, candle_core::Error>((
                    rope,
                    cache,
                    Cursor::new(sequences, heads, site.device())?,
                    CausalAttention::new(site),
                ))
            };
            let (host_rope, host_cache, mut host_cursor, host_attend) = make(&host, DType::F32)?;
            let (rope, cache, mut cursor, attend) = make(&device, dtype)?;
            let lengths =
                [64, 64, 64, 1, 1, 1, 1, 1, 1, 1, 64, 3, 1, 1, 1, 200, 1, 1, 1, 131, 63, 131, 1, 1];
            for tokens in lengths.chunks(sequences) {
                let rows = tokens.iter().sum();
                let (qkv, gpu_qkv) =
                    values(&[rows, (heads + 2 * kv_heads) * head_dim], dtype, &gpu)?;
                host_cursor.read(tokens)?;
                cursor.read(tokens)?;
                // Halved, which is exact: scores then have the size of trained models' scores.
                let (qkv, gpu_qkv) = ((qkv * 0.5)?, (gpu_qkv * 0.5)?);
                let want = host_attend.forward(
                    &host_rope.forward(&qkv, &host_cache, &host_cursor)?,
                    &host_cache,
                    &host_cursor,
                )?;
                let got =
                    attend.forward(&rope.forward(&gpu_qkv, &cache, &cursor)?, &cache, &cursor)?;
                let far = far(&got, &want)?;
                assert!(
                    far < tolerance(dtype),
                    "{dtype:?} {heads}/{kv_heads}x{head_dim}: {tokens:?} at {:?}: {far}",
                    cursor.positions()
                );
                host_cursor.advance()?;
                cursor.advance()?;
            }
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn attention_of_an_encoder_with_and_without_a_grid() -> Result<()> {
    let gpu = gpu();
    for dtype in [DType::F16, DType::BF16] {
        for (batch, heads, head_dim, side) in
            [(3, 12, 64, 14), (1, 12, 64, 64), (2, 3, 64, 40), (1, 2, 128, 10)]
        {
            let ((host, device), tokens) = (sites(dtype, &gpu), side * side);
            let grid = |site: &Site| {
                crate::ops::GridPositions::new(site, head_dim, side, &[side], |table, length| {
                    table.narrow(0, 0, length)
                })
            };
            let (qkv, gpu_qkv) = values(&[batch, tokens, 3 * heads * head_dim], dtype, &gpu)?;
            for positions in [false, true] {
                let attention = |site: &Site| {
                    let positions = positions.then(|| grid(site)).transpose()?;
                    Ok::<_, candle_core::Error>(SelfAttention::new(site, heads, positions))
                };
                let (want, got) =
                    (attention(&host)?.forward(&qkv)?, attention(&device)?.forward(&gpu_qkv)?);
                let far = far(&got, &want)?;
                assert!(
                    far < tolerance(dtype),
                    "{dtype:?} {batch}x{heads}x{head_dim} of {side}, {positions}: {far}"
                );
            }
        }
    }
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn a_class_token_in_addition_to_a_grid_attends() -> Result<()> {
    let gpu = gpu();
    let (qkv, gpu_qkv) = values(&[2, 257, 3 * 1024], DType::BF16, &gpu)?;
    let want = SelfAttention::new(&Site::synthetic(0), 16, None).forward(&qkv)?;
    let view = |part: usize| MatrixView {
        tensor: &gpu_qkv,
        first: part * 1024,
        strides: [257 * 3072, 64, 3072],
    };
    let got = super::attend_many(&AttendMany {
        queries: view(0),
        keys: view(1),
        values: view(2),
        batch: 2,
        heads: 16,
        group: 1,
        queries_count: 257,
        keys_count: 257,
        head_dim: 64,
        causal: false,
        relative: None,
    })?;
    assert!(far(&got.expect("a kernel"), &want)? < tolerance(DType::BF16));
    Ok(())
}

#[test]
#[ignore = "needs a GPU"]
fn mixtures_of_experts_for_one_token_and_for_many() -> Result<()> {
    let gpu = gpu();
    for dtype in DTYPES {
        for (count, top_k, shared, width, hidden) in
            [(64, 6, 2, 896, 1280), (16, 4, 2, 64, 128), (8, 2, 0, 40, 64)]
        {
            let spec = MoeSpec {
                first_layer: 0,
                experts: count,
                top_k,
                intermediate: width,
                shared,
                norm_topk: count == 8,
            };
            let (host, device) = sites(dtype, &gpu);
            let make = |site: &Site| {
                Ok::<_, candle_core::Error>((
                    Router::new(&site.pp("gate"), hidden, &spec, 1024)?,
                    Experts::new(site, hidden, &spec)?,
                    Cursor::new(1, 1, site.device())?,
                ))
            };
            let ((host_router, host_experts, host_cursor), (router, experts, cursor)) =
                (make(&host)?, make(&device)?);
            for tokens in [1, 2, 65, 918] {
                let (x, gpu_x) = values(&[tokens, hidden], dtype, &gpu)?;
                // The router computes in f32 on weights rounded to `dtype`; of two nearly equal
                // experts either may be chosen.
                let (host_routes, routes) =
                    (host_router.forward(&x, &host_cursor)?, router.forward(&gpu_x, &cursor)?);
                let later = Default::default();
                let (want, _) = host_experts.forward(&x, &host_routes, &later)?;
                let (got, _) = experts.forward(&gpu_x, &routes, &later)?;
                let difference = (got.to_device(&Device::Cpu)?.to_dtype(DType::F32)? - &want)?
                    .abs()?
                    .max(D::Minus1)?;
                let largest = want.abs()?.max_all()?.to_scalar::<f32>()?;
                let rows = difference.to_vec1::<f32>()?;
                let wrong = rows
                    .iter()
                    .filter(|&&far| far.is_nan() || far / largest > tolerance(dtype))
                    .count();
                let allowed = if dtype == DType::F32 { 0 } else { tokens / 20 + 1 };
                assert!(
                    wrong <= allowed,
                    "{dtype:?} {count} of {width}: {wrong} of {tokens} tokens differ"
                );
                let text = 0..tokens;
                let hit = router.hit(std::slice::from_ref(&text))?;
                let expected = matches!(dtype, DType::BF16 | DType::F16) || tokens == 1;
                assert!(!expected || (top_k..=count).contains(&hit[0].len()), "{hit:?}");
            }
        }
    }
    Ok(())
}

fn decoder(moe: Option<MoeSpec>) -> Spec {
    Spec {
        hidden: 256,
        layers: 3,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        intermediate: 512,
        vocab: 1024,
        max_positions: 4096,
        qk_norm: false,
        moe,
        ..crate::models::tests::decoder()
    }
}

fn mixture() -> MoeSpec {
    MoeSpec {
        first_layer: 1,
        experts: 16,
        top_k: 4,
        intermediate: 128,
        shared: 2,
        norm_topk: false,
    }
}

#[test]
#[ignore = "needs a GPU"]
fn the_log_of_experts_equals_the_hosts_choices() -> Result<()> {
    let gpu = gpu();
    let spec = mixture();
    let (host, device) = sites(DType::F32, &gpu);
    let (x, gpu_x) = values(&[40, 256], DType::F32, &gpu)?;
    let (cpu_router, gpu_router) =
        (Router::new(&host, 256, &spec, 64)?, Router::new(&device, 256, &spec, 64)?);
    let crate::ops::Routes::Host { ids, .. } =
        cpu_router.forward(&x, &Cursor::new(1, 1, &Device::Cpu)?)?
    else {
        candle_core::bail!("the CPU routes on the host")
    };
    gpu_router.forward(&gpu_x, &Cursor::new(1, 1, &gpu)?)?;
    let chosen = ids.into_iter().filter(|&id| id < spec.experts).map(|id| id as u32).collect();
    assert_eq!(gpu_router.hit(std::slice::from_ref(&(0..40)))?, [chosen]);
    Ok(())
}

mod decoding;
mod products;

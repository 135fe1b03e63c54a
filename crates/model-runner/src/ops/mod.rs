//! The operators of models: computed by candle or by GPU kernels of this project, and recorded.
//!
//! Each is built at a [`crate::module_scope::Site`] and records one call per forward. Independent
//! of models, stages and clocks.

/// Returns the result of a GPU kernel if there is one for its arguments; otherwise continues with
/// candle's computation.
macro_rules! gpu_kernel {
    ($name:ident $arguments:tt) => {
        #[cfg(feature = "cuda")]
        if let Some(computed) = crate::gpu::$name $arguments? {
            return Ok(computed);
        }
    };
}
pub(crate) use gpu_kernel;

mod attention;
mod conv;
mod cursor;
mod experts;
mod linear;
mod norm;
mod pointwise;
mod rope;
mod router;
mod sample;

pub use attention::{CausalAttention, GridPositions, SelfAttention};
pub use conv::{Conv2d, ConvShape};
#[cfg(feature = "cuda")]
pub use cursor::DevicePositions;
pub use cursor::{Cursor, Room, Span};
pub use experts::Experts;
pub use linear::{Embedding, GatedLinear, Linear};
pub use norm::Norm;
pub use pointwise::{Activation, Pointwise, gate};
pub use rope::{LayerCache, Rope, RopeTables, join};
pub use router::Router;
#[cfg(all(test, feature = "cuda"))]
pub use router::Routes;
pub use sample::Sampler;

/// FLOPs of `batch` products of `m` x `k` by `k` x `n`, a multiply-add as two.
pub fn matmul_flops(batch: usize, m: usize, k: usize, n: usize) -> u64 {
    2 * batch as u64 * m as u64 * k as u64 * n as u64
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Result, Tensor};
    use llmprof_core::trace::event::{Event, OperatorCall};

    use super::*;
    use crate::module_scope::Site;

    fn calls(site: &Site) -> Vec<OperatorCall> {
        let op = |event| if let Event::Op(call) = event { Some(call) } else { None };
        site.recorder().drain().into_iter().filter_map(op).collect()
    }

    fn ones(shape: &[usize]) -> Result<Tensor> {
        Tensor::ones(shape, candle_core::DType::F32, &Device::Cpu)
    }

    #[test]
    fn a_linear_counts_its_products_and_every_operand_once() -> Result<()> {
        let site = Site::synthetic(0);
        let y = Linear::new(&site.pp("q_proj"), 8, 4, true)?.forward(&ones(&[2, 3, 8])?)?;
        assert_eq!(y.dims(), [2, 3, 4]);
        let [call] = &calls(&site)[..] else { panic!("one call") };
        assert_eq!((call.path.as_str(), call.op.as_str()), ("q_proj", "linear"));
        assert_eq!(call.shapes, [vec![2, 3, 8], vec![4, 8], vec![4]]);
        assert_eq!(call.flops, 2 * 6 * 8 * 4);
        assert_eq!(call.bytes, 4 * (48 + 32 + 4 + 24));
        Ok(())
    }

    #[test]
    fn attention_counts_the_pairs_of_query_and_key() -> Result<()> {
        let (site, spec) = (Site::synthetic(0), crate::models::tests::decoder());
        let (cache, mut cursor) = (
            LayerCache::new(&spec, Room::of_one(16), candle_core::DType::F32, &Device::Cpu)?,
            Cursor::new(1, 4, &Device::Cpu)?,
        );
        cursor.set(&[2])?;
        cursor.read(&[3])?;
        CausalAttention::new(&site).forward(&ones(&[3, 4, 4])?, &cache, &cursor)?;
        // The third, fourth and fifth token attend to 3, 4 and 5: 12 pairs of 16 elements, for the
        // score and for the value.
        assert_eq!(calls(&site)[0].flops, 2 * 2 * 12 * 16);
        Ok(())
    }

    #[test]
    fn a_replay_counts_the_positions_added_since_its_capture() -> Result<()> {
        let (site, spec) = (Site::synthetic(0), crate::models::tests::decoder());
        for (captured_at, replayed_at) in [(&[2][..], &[7][..]), (&[1, 1], &[3, 9])] {
            let sequences = captured_at.len();
            let room = Room { sequences, positions: 16 };
            let cache = LayerCache::new(&spec, room, candle_core::DType::F32, &Device::Cpu)?;
            let (attention, query) = (CausalAttention::new(&site), ones(&[sequences, 4, 4])?);
            let at = |positions| -> Result<Cursor> {
                let mut cursor = Cursor::new(sequences, 4, &Device::Cpu)?;
                cursor.set(positions)?;
                cursor.read_one();
                Ok(cursor)
            };
            let (before, after) = (at(captured_at)?, at(replayed_at)?);
            let run = |cursor: &Cursor| attention.forward(&query, &cache, cursor);
            let (_, captured) = site.recorder().captured(|| run(&before));
            assert!(calls(&site).is_empty(), "the capture is recorded by its replays");
            site.recorder().replayed(&captured, (after.tokens() - before.tokens()) as u64);
            run(&after)?;
            let [replayed, computed] = &calls(&site)[..] else { panic!("two calls") };
            assert!(replayed.captured && !computed.captured);
            assert_eq!((replayed.flops, replayed.bytes), (computed.flops, computed.bytes));
        }
        Ok(())
    }

    #[test]
    fn a_convolution_counts_each_output_pixel() -> Result<()> {
        let site = Site::synthetic(0);
        let shape = ConvShape { inputs: 3, outputs: 8, kernel: 3, padding: 1, stride: 2 };
        let y = Conv2d::new(&site, shape, false)?.forward(&ones(&[1, 9, 9, 3])?)?;
        assert_eq!(y.dims(), [1, 5, 5, 8]);
        assert_eq!(calls(&site)[0].flops, 2 * (8 * 5 * 5) * (3 * 3 * 3));
        Ok(())
    }

    #[test]
    fn an_embedding_counts_its_rows_and_not_its_table() -> Result<()> {
        let site = Site::synthetic(0);
        Embedding::new(&site, 1000, 16)?.forward(&Tensor::new(&[5u32, 7], &Device::Cpu)?)?;
        assert_eq!(calls(&site)[0].bytes, 2 * (16 * 4 + 4) + 2 * 16 * 4);
        Ok(())
    }

    #[test]
    fn rotary_positions_rotate_pairs_half_a_head_apart() -> Result<()> {
        let spec = llmprof_core::domain::model::DecoderSpec {
            heads: 1,
            kv_heads: 1,
            head_dim: 4,
            qk_norm: false,
            ..crate::models::tests::decoder()
        };
        let tables = RopeTables::new(8, &[1.0, 0.01], &Device::Cpu)?;
        let rope = Rope::new(&Site::synthetic(0), &spec, &tables)?;
        let (cache, mut cursor) = (
            LayerCache::new(&spec, Room::of_one(8), candle_core::DType::F32, &Device::Cpu)?,
            Cursor::new(1, 1, &Device::Cpu)?,
        );
        cursor.set(&[2])?;
        cursor.read_one();
        // A query and a key of four at position 2: the pairs are (1, 3) and (2, 4), turned by 2 and
        // by 2 / 100. The value is unchanged.
        let qkv = Tensor::new(
            &[[1f32, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]],
            &Device::Cpu,
        )?;
        let turned = rope.forward(&qkv, &cache, &cursor)?.flatten_all()?.to_vec1::<f32>()?;
        let turn = |a: f32, b: f32, angle: f32| {
            (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin())
        };
        let ((a, c), (b, d)) = (turn(1.0, 3.0, 2.0), turn(2.0, 4.0, 0.02));
        let kept = |t: &Tensor| t.narrow(2, 2, 1)?.flatten_all()?.to_vec1::<f32>();
        for turned in [turned, kept(&cache.keys)?] {
            for (got, want) in turned.iter().zip([a, b, c, d]) {
                assert!((got - want).abs() < 1e-6, "{turned:?}");
            }
        }
        assert_eq!(kept(&cache.values)?, [5.0, 6.0, 7.0, 8.0]);
        Ok(())
    }

    #[test]
    fn norms_match_their_formulas() -> Result<()> {
        let site = Site::synthetic(0);
        let x = Tensor::new(&[[1f32, 2.0, 3.0, 6.0]], &Device::Cpu)?;
        let rms = Norm::rms(&site.pp("r"), 4, 1e-6)?.forward(&x)?.to_vec2::<f32>()?;
        let layer = Norm::layer(&site.pp("l"), 4, 1e-6)?.forward(&x)?.to_vec2::<f32>()?;
        // Mean square 12.5; mean 3, variance 3.5.
        for (i, value) in [1f32, 2.0, 3.0, 6.0].into_iter().enumerate() {
            assert!((rms[0][i] - value / 12.5f32.sqrt()).abs() < 1e-5);
            assert!((layer[0][i] - (value - 3.0) / 3.5f32.sqrt()).abs() < 1e-5);
        }
        Ok(())
    }
}

//! Rotary positions, and the KV cache that rotated keys are appended to.
//!
//! The cache has a fixed size and is written in place: nothing grows while a stage is timed, and
//! only positions change between steps. On a GPU the position is stored there too, so that a
//! captured step does not depend on the host.

use std::cell::RefCell;

use candle_core::{DType, Device, Result, Tensor};
use llmprof::domain::model::DecoderSpec as Spec;

use super::Norm;
use crate::{
    module_scope::Site,
    record::{Op, OperatorWork},
};

/// Keys and values of one layer, `[1, kv_heads, capacity, head_dim]` each.
pub struct LayerCache {
    pub keys: Tensor,
    pub values: Tensor,
}

impl LayerCache {
    pub fn new(spec: &Spec, capacity: usize, dtype: DType, device: &Device) -> Result<Self> {
        let shape = (1, spec.kv_heads, capacity, spec.head_dim);
        Ok(Self {
            keys: Tensor::zeros(shape, dtype, device)?,
            values: Tensor::zeros(shape, dtype, device)?,
        })
    }

    /// Writes `keys` and `values` `[1, kv_heads, tokens, head_dim]` at `position`.
    fn append(&self, keys: &Tensor, values: &Tensor, position: usize) -> Result<()> {
        self.keys.slice_set(&keys.contiguous()?, 2, position)?;
        self.values.slice_set(&values.contiguous()?, 2, position)
    }
}

/// The position of the next token.
pub struct Cursor {
    position: usize,
    /// The same number on a GPU, and a zero per head, with which attention counts finished parts.
    device: Option<(Tensor, Tensor)>,
    /// The last mask, with its number of tokens and position: repeats read the same prompt.
    mask: RefCell<Option<(usize, usize, Tensor)>>,
}

impl Cursor {
    pub fn new(heads: usize, device: &Device) -> Result<Self> {
        let zeros = |count: usize| Tensor::zeros(count, DType::U32, device);
        let device = if device.is_cuda() { Some((zeros(1)?, zeros(heads)?)) } else { None };
        Ok(Self { position: 0, device, mask: RefCell::default() })
    }

    pub fn position(&self) -> usize {
        self.position
    }

    /// Position and tickets on the GPU.
    #[cfg(feature = "cuda")]
    pub fn on_device(&self) -> Option<(&Tensor, &Tensor)> {
        self.device.as_ref().map(|(position, tickets)| (position, tickets))
    }

    /// Fails while a step is captured: the caller uses the host's position, and replays would keep
    /// using the captured one.
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

    /// Resets to the start.
    pub fn clear(&mut self) -> Result<()> {
        self.position = 0;
        self.device.as_ref().map_or(Ok(()), |(position, _)| position.zero_set())
    }

    /// Advances by `tokens`, here and on the GPU.
    pub fn advance(&mut self, tokens: usize) -> Result<()> {
        self.advance_host(tokens);
        #[cfg(feature = "cuda")]
        if let Some((position, _)) = &self.device {
            crate::gpu::advance(position.device().as_cuda_device()?, position, tokens)?;
        }
        Ok(())
    }

    /// Advances by `tokens` on the host only; a replayed graph has advanced the GPU's position.
    pub fn advance_host(&mut self, tokens: usize) {
        self.position += tokens;
    }

    /// The mask added to the scores of `tokens` tokens: minus infinity for later keys; `None` for a
    /// single token.
    pub fn mask(&self, tokens: usize, dtype: DType, device: &Device) -> Result<Option<Tensor>> {
        if tokens == 1 {
            return Ok(None);
        }
        let mut cached = self.mask.borrow_mut();
        if cached.as_ref().is_none_or(|(t, p, _)| (*t, *p) != (tokens, self.position)) {
            let (position, length) = (self.position, self.position + tokens);
            let row = |i: usize| {
                (0..length).map(move |j| if j > position + i { f32::NEG_INFINITY } else { 0.0 })
            };
            let mask = Tensor::from_iter((0..tokens).flat_map(row), device)?
                .reshape((tokens, length))?
                .to_dtype(dtype)?;
            *cached = Some((tokens, position, mask));
        }
        Ok(cached.as_ref().map(|(_, _, mask)| mask.clone()))
    }
}

/// Angles of rotary positions, computed once and shared by all layers.
#[derive(Clone)]
pub struct RopeTables {
    /// `[positions, dim / 2]` in f32.
    cos: Tensor,
    sin: Tensor,
}

impl RopeTables {
    /// The tables of `positions` angles `position * frequency`.
    pub fn new(positions: usize, frequencies: &[f64], device: &Device) -> Result<Self> {
        let half = frequencies.len();
        let angles: Vec<f64> =
            (0..positions).flat_map(|p| frequencies.iter().map(move |f| p as f64 * f)).collect();
        let table = |f: fn(f64) -> f64| {
            Tensor::from_iter(angles.iter().map(|&a| f(a) as f32), device)?
                .reshape((positions, half))
        };
        Ok(Self { cos: table(f64::cos)?, sin: table(f64::sin)? })
    }
}

/// Rotary positions, half-split: element `i` rotates with element `i + dim / 2`. Queries and keys
/// may be normalised first.
pub struct Rope {
    tables: RopeTables,
    norms: Option<(Norm, Norm)>,
    #[cfg(feature = "cuda")]
    eps: f64,
    op: Op,
}

impl Rope {
    /// Builds `q_norm` and `k_norm` if the model has them; `site` is the attention's.
    pub fn new(site: &Site, spec: &Spec, tables: &RopeTables) -> Result<Self> {
        let norm = |name| Norm::rms(&site.pp(name), spec.head_dim, spec.rms_norm_eps);
        let norms = spec
            .qk_norm
            .then(|| Ok::<_, candle_core::Error>((norm("q_norm")?, norm("k_norm")?)))
            .transpose()?;
        Ok(Self {
            tables: tables.clone(),
            norms,
            #[cfg(feature = "cuda")]
            eps: spec.rms_norm_eps,
            op: site.part("rope", "").op("rope"),
        })
    }

    /// Rotates the queries and keys of `qkv` `[tokens, (heads + 2 kv_heads) * head_dim]`, appends
    /// keys and values to `cache`, and returns the queries `[tokens, heads, head_dim]`.
    pub fn forward(&self, qkv: &Tensor, cache: &LayerCache, cursor: &Cursor) -> Result<Tensor> {
        let (tokens, width) = qkv.dims2()?;
        let (_, kv_heads, _, dim) = cache.keys.dims4()?;
        let position = cursor.position();
        let (cos, sin) = (
            self.tables.cos.narrow(0, position, tokens)?,
            self.tables.sin.narrow(0, position, tokens)?,
        );
        // The input, the angles, the writes to the cache, and the weights of the norms.
        let size = qkv.dtype().size_in_bytes();
        let norms = if self.norms.is_some() { 2 * dim * size } else { 0 };
        let read = tokens * (width * size + dim * 4 + 2 * kv_heads * dim * size) + norms;
        let work = OperatorWork { read: read as u64, ..OperatorWork::default() };
        self.op.call_with_work(&[qkv, &cos, &sin], work, || {
            #[cfg(feature = "cuda")]
            if let Some((position, _)) = cursor.on_device() {
                let norms = self.norms.as_ref().map(|(query, key)| (query.weight(), key.weight()));
                let (tables, cache) =
                    ((&self.tables.cos, &self.tables.sin), (&cache.keys, &cache.values));
                gpu_kernel!(rope(&crate::gpu::RopeArgs {
                    qkv,
                    tables,
                    norms,
                    eps: self.eps as f32,
                    position,
                    cache
                }));
            }
            cursor.require_host()?;
            let heads = width / dim - 2 * kv_heads;
            let split = |first: usize, heads: usize| {
                qkv.narrow(1, first * dim, heads * dim)?
                    .reshape((1, tokens, heads, dim))?
                    .transpose(1, 2)?
                    .contiguous()
            };
            let (mut queries, mut keys, values) =
                (split(0, heads)?, split(heads, kv_heads)?, split(heads + kv_heads, kv_heads)?);
            if let Some((query_norm, key_norm)) = &self.norms {
                (queries, keys) =
                    (query_norm.compute(&queries, None)?.1, key_norm.compute(&keys, None)?.1);
            }
            let (cos, sin) = (cos.to_dtype(qkv.dtype())?, sin.to_dtype(qkv.dtype())?);
            cache.append(&candle_nn::rotary_emb::rope(&keys, &cos, &sin)?, &values, position)?;
            candle_nn::rotary_emb::rope(&queries, &cos, &sin)?
                .squeeze(0)?
                .transpose(0, 1)?
                .contiguous()
        })
    }
}

//! Rotary positions, and the KV cache that rotated keys are appended to.
//!
//! The cache has a fixed size and is written in place: nothing grows while a stage is timed, and
//! only positions change between steps.

use candle_core::{DType, Device, Result, Tensor};
use llmprof_core::domain::model::DecoderSpec as Spec;

use super::{Cursor, Norm, Room, Span};
use crate::{
    module_scope::Site,
    record::{Op, OperatorWork},
};

/// Keys and values of one layer, `[sequences, kv_heads, capacity, head_dim]` each.
pub struct LayerCache {
    pub keys: Tensor,
    pub values: Tensor,
}

impl LayerCache {
    pub fn new(spec: &Spec, room: Room, dtype: DType, device: &Device) -> Result<Self> {
        let shape = (room.sequences, spec.kv_heads, room.positions, spec.head_dim);
        Ok(Self {
            keys: Tensor::zeros(shape, dtype, device)?,
            values: Tensor::zeros(shape, dtype, device)?,
        })
    }

    /// Keys and values of one sequence, `[1, kv_heads, capacity, head_dim]`.
    pub fn of(&self, sequence: usize) -> Result<(Tensor, Tensor)> {
        Ok((self.keys.narrow(0, sequence, 1)?, self.values.narrow(0, sequence, 1)?))
    }

    /// Writes `keys` and `values` `[1, kv_heads, tokens, head_dim]` of a sequence at `span`.
    fn append(&self, keys: &Tensor, values: &Tensor, span: Span) -> Result<()> {
        let (own_keys, own_values) = self.of(span.sequence)?;
        own_keys.slice_set(&keys.contiguous()?, 2, span.position)?;
        own_values.slice_set(&values.contiguous()?, 2, span.position)
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

    /// Rotates the queries and keys of `qkv` `[rows, (heads + 2 kv_heads) * head_dim]`, appends
    /// keys and values to `cache`, and returns the queries `[rows, heads, head_dim]`.
    pub fn forward(&self, qkv: &Tensor, cache: &LayerCache, cursor: &Cursor) -> Result<Tensor> {
        let (rows, width) = qkv.dims2()?;
        let (_, kv_heads, _, dim) = cache.keys.dims4()?;
        let angles = self.angles(cursor)?;
        // The input, the angles, the writes to the cache, and the weights of the norms.
        let size = qkv.dtype().size_in_bytes();
        let norms = if self.norms.is_some() { 2 * dim * size } else { 0 };
        let read = rows * (width * size + dim * 4 + 2 * kv_heads * dim * size) + norms;
        let work = OperatorWork { read: read as u64, ..OperatorWork::default() };
        self.op.call_with_work(&[qkv, &angles.0, &angles.1], work, || {
            #[cfg(feature = "cuda")]
            if let Some(queries) = self.on_gpu(qkv, cache, cursor)? {
                return Ok(queries);
            }
            cursor.require_host()?;
            join(cursor.spans().map(|span| self.rotate(qkv, cache, span)))
        })
    }

    /// The angles of a forward: for its positions, or the whole tables if its sequences are at
    /// different ones.
    fn angles(&self, cursor: &Cursor) -> Result<(Tensor, Tensor)> {
        let RopeTables { cos, sin } = &self.tables;
        let Some(Span { position, tokens, .. }) = cursor.common_span() else {
            return Ok((cos.clone(), sin.clone()));
        };
        Ok((cos.narrow(0, position, tokens)?, sin.narrow(0, position, tokens)?))
    }

    /// The queries of one sequence, `[tokens, heads, head_dim]`; appends its keys and values.
    fn rotate(&self, qkv: &Tensor, cache: &LayerCache, span: Span) -> Result<Tensor> {
        let (_, kv_heads, _, dim) = cache.keys.dims4()?;
        let heads = qkv.dim(1)? / dim - 2 * kv_heads;
        let split = |first: usize, heads: usize| {
            qkv.narrow(0, span.row, span.tokens)?
                .narrow(1, first * dim, heads * dim)?
                .reshape((1, span.tokens, heads, dim))?
                .transpose(1, 2)?
                .contiguous()
        };
        let (mut queries, mut keys, values) =
            (split(0, heads)?, split(heads, kv_heads)?, split(heads + kv_heads, kv_heads)?);
        if let Some((query_norm, key_norm)) = &self.norms {
            (queries, keys) =
                (query_norm.compute(&queries, None)?.1, key_norm.compute(&keys, None)?.1);
        }
        let angles =
            |table: &Tensor| table.narrow(0, span.position, span.tokens)?.to_dtype(qkv.dtype());
        let (cos, sin) = (angles(&self.tables.cos)?, angles(&self.tables.sin)?);
        cache.append(&candle_nn::rotary_emb::rope(&keys, &cos, &sin)?, &values, span)?;
        candle_nn::rotary_emb::rope(&queries, &cos, &sin)?.squeeze(0)?.transpose(0, 1)?.contiguous()
    }

    /// One launch if each sequence has one row, or there is one sequence; else one per sequence.
    #[cfg(feature = "cuda")]
    fn on_gpu(&self, qkv: &Tensor, cache: &LayerCache, cursor: &Cursor) -> Result<Option<Tensor>> {
        let Some(on_device) = cursor.on_device() else { return Ok(None) };
        let launch = |qkv: &Tensor, positions: &Tensor, (keys, values): (&Tensor, &Tensor)| {
            crate::gpu::rope(&crate::gpu::RopeArgs {
                qkv,
                tables: (&self.tables.cos, &self.tables.sin),
                norms: self.norms.as_ref().map(|(query, key)| (query.weight(), key.weight())),
                eps: self.eps as f32,
                positions,
                cache: (keys, values),
            })
        };
        if cursor.sequences() == 1 || cursor.reads_one() {
            return launch(qkv, on_device.positions, (&cache.keys, &cache.values));
        }
        join_launches(cursor, |span| {
            let (keys, values) = cache.of(span.sequence)?;
            let position = on_device.positions.narrow(0, span.sequence, 1)?;
            launch(&qkv.narrow(0, span.row, span.tokens)?, &position, (&keys, &values))
        })
    }
}

/// The rows of all sequences by a launch each; `None` if a launch has no kernel.
#[cfg(feature = "cuda")]
pub fn join_launches(
    cursor: &Cursor,
    launch: impl FnMut(Span) -> Result<Option<Tensor>>,
) -> Result<Option<Tensor>> {
    let parts: Option<Vec<Tensor>> = cursor.spans().map(launch).collect::<Result<_>>()?;
    parts.map(|parts| Tensor::cat(&parts, 0)).transpose()
}

/// The rows of all sequences, in order.
pub fn join(mut parts: impl ExactSizeIterator<Item = Result<Tensor>>) -> Result<Tensor> {
    if parts.len() == 1
        && let Some(only) = parts.next()
    {
        return only;
    }
    Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)
}

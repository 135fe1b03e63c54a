//! Attention kernels: rotary positions with the cache's append, one token over the cache, many tokens tile by tile.
//!
//! Scores never reach memory. Head sizes without a kernel run by candle's products and softmax.

use candle_core::{CudaDevice, D, DType, Result, Tensor};

use super::{
    device_of, empty,
    kernels::{Arg, Grid, launch, pointer},
};

/// Blocks, and threads of each, that one token attends by: about one for each multiprocessor of a large GPU.
const BLOCKS: usize = 132;
const THREADS: usize = 256;
/// Parts of a cache at most, and keys that a part has at least at full capacity.
const MOST_PARTS: usize = 64;
const FEWEST_KEYS: usize = 32;
/// Queries, and keys, of a tile.
const TILE: usize = 64;

/// What [`rope`] reads and writes.
pub struct RopeArgs<'a> {
    /// `[tokens, (heads + 2 kv_heads) * head_dim]`
    pub qkv: &'a Tensor,
    /// Cosines and sines, `[positions, head_dim / 2]` in f32.
    pub tables: (&'a Tensor, &'a Tensor),
    /// Weights that queries and keys are normalised by.
    pub norms: Option<(&'a Tensor, &'a Tensor)>,
    pub eps: f32,
    /// Where the first token stands, on the GPU.
    pub position: &'a Tensor,
    /// Keys and values, `[1, kv_heads, capacity, head_dim]`.
    pub cache: (&'a Tensor, &'a Tensor),
}

/// Turns queries and keys, appends keys and values to the cache, and gives the queries `[tokens, heads, head_dim]`.
pub fn rope(args: &RopeArgs) -> Result<Option<Tensor>> {
    let RopeArgs { qkv, tables, norms, eps, position, cache: (keys, values) } = *args;
    let (_, kv_heads, capacity, dim) = keys.dims4()?;
    let Some(device) = device_of(qkv, &[qkv, keys, values]) else { return Ok(None) };
    let width = qkv.dim(D::Minus1)?;
    let (tokens, all) = (qkv.elem_count() / width, width / dim);
    let heads = all - 2 * kv_heads;
    let queries = empty((tokens, heads, dim), qkv.dtype(), device)?;
    let grid = Grid::new(((tokens * all).div_ceil(4), 1), 128);
    let args = &mut [
        Arg::tensor(qkv)?,
        Arg::tensor(tables.0)?,
        Arg::tensor(tables.1)?,
        Arg::optional(norms.map(|norms| norms.0))?,
        Arg::optional(norms.map(|norms| norms.1))?,
        Arg::tensor(position)?,
        Arg::tensor(&queries)?,
        Arg::tensor(keys)?,
        Arg::tensor(values)?,
        Arg::int(tokens),
        Arg::int(heads),
        Arg::int(kv_heads),
        Arg::int(dim),
        Arg::int(capacity),
        Arg::Float(eps),
    ];
    launch(device, "rope", Some(qkv.dtype()), grid, args)?;
    Ok(Some(queries))
}

/// Attention of one token's `queries` `[1, heads, head_dim]` to all that the cache holds up to and with `position`; `tickets` is a zero
/// for each head, and is so again afterwards.
pub fn attend_one(queries: &Tensor, cache: (&Tensor, &Tensor), position: &Tensor, tickets: &Tensor) -> Result<Option<Tensor>> {
    let (tokens, heads, dim) = queries.dims3()?;
    let (_, kv_heads, capacity, _) = cache.0.dims4()?;
    let name = match dim {
        32 => "attend_one_32",
        64 => "attend_one_64",
        128 => "attend_one_128",
        _ => return Ok(None),
    };
    let Some(device) = device_of(queries, &[queries, cache.0, cache.1]).filter(|_| tokens == 1) else { return Ok(None) };
    let parts = BLOCKS.div_ceil(heads).min(capacity.div_ceil(FEWEST_KEYS)).clamp(1, MOST_PARTS);
    let partial = empty((heads, parts, dim + 2), DType::F32, device)?;
    let out = empty((1, heads * dim), queries.dtype(), device)?;
    let args = &mut [
        Arg::tensor(queries)?,
        Arg::tensor(cache.0)?,
        Arg::tensor(cache.1)?,
        Arg::tensor(position)?,
        Arg::tensor(&out)?,
        Arg::tensor(&partial)?,
        Arg::tensor(tickets)?,
        Arg::int(kv_heads),
        Arg::int(capacity),
        Arg::Float((dim as f32).sqrt().recip()),
    ];
    launch(device, name, Some(queries.dtype()), Grid::new((heads, parts), THREADS), args)?;
    Ok(Some(out))
}

/// A matrix of attention inside a tensor: its first element, and elements between batches, heads and rows.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub tensor: &'a Tensor,
    pub first: usize,
    pub strides: [usize; 3],
}

impl View<'_> {
    fn pointer(&self) -> Result<u64> {
        Ok(pointer(self.tensor)? + (self.first * self.tensor.dtype().size_in_bytes()) as u64)
    }
}

/// What [`attend_many`] reads.
pub struct AttendMany<'a> {
    pub queries: View<'a>,
    pub keys: View<'a>,
    pub values: View<'a>,
    pub batch: usize,
    pub heads: usize,
    /// Query heads that share a key head.
    pub group: usize,
    pub queries_count: usize,
    pub keys_count: usize,
    pub head_dim: usize,
    /// Whether the last query sees every key, and each before it one less.
    pub causal: bool,
    /// Vectors of the offsets between rows and between columns, `[2 side - 1, head_dim]`, of a grid of this side.
    pub relative: Option<(&'a Tensor, &'a Tensor, usize)>,
}

/// Attention of many queries; gives `[batch, queries, heads * head_dim]`.
pub fn attend_many(args: &AttendMany) -> Result<Option<Tensor>> {
    let AttendMany { queries, keys, values, batch, heads, group, queries_count, keys_count, head_dim, .. } = *args;
    let dtype = queries.tensor.dtype();
    let name = match (head_dim, args.causal, args.relative) {
        (64, true, None) => "attend_causal_64",
        (64, false, None) => "attend_all_64",
        (64, false, Some(_)) => "attend_relative_64",
        (128, true, None) => "attend_causal_128",
        (128, false, None) => "attend_all_128",
        (128, false, Some(_)) => "attend_relative_128",
        _ => return Ok(None),
    };
    let half = matches!(dtype, DType::BF16 | DType::F16);
    let device = device_of(queries.tensor, &[queries.tensor, keys.tensor, values.tensor]).filter(|_| half);
    let Some(device) = device else { return Ok(None) };
    let (relative, side) = match args.relative {
        Some((rows, columns, side)) => (Some(relative_terms(device, args, rows, columns, side)?), side),
        None => (None, 0),
    };
    let width = heads * head_dim;
    let out = empty((batch, queries_count, width), dtype, device)?;
    let mut words = vec![queries.pointer()?, keys.pointer()?, values.pointer()?, pointer(&out)?];
    for strides in [queries.strides, keys.strides, values.strides, [queries_count * width, head_dim, width]] {
        words.extend(strides.map(|stride| stride as u64));
    }
    words.push(relative.as_ref().map_or(Ok(0), pointer)?);
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    words.push(pair(heads as u32, group as u32));
    words.push(pair(queries_count as u32, keys_count as u32));
    words.push(pair(side as u32, (head_dim as f32).sqrt().recip().to_bits()));
    let tile = TILE * head_dim * dtype.size_in_bytes();
    let terms = if relative.is_some() { TILE * (2 * side + 1) * DType::F32.size_in_bytes() } else { 0 };
    let grid = Grid::new((queries_count.div_ceil(TILE), batch * heads), 128).shared(5 * tile + terms);
    launch(device, name, Some(dtype), grid, &mut [Arg::Bytes(words)])?;
    Ok(Some(out))
}

/// What each query adds to its scores for a key's row and column, `[batch * heads, side^2, 2 * side]` in f32.
fn relative_terms(device: &CudaDevice, args: &AttendMany, rows: &Tensor, columns: &Tensor, side: usize) -> Result<Tensor> {
    let AttendMany { queries, batch, heads, head_dim, .. } = *args;
    let dtype = queries.tensor.dtype();
    let name = if head_dim == 64 { "relative_64" } else { "relative_128" };
    let out = empty((batch * heads, side * side, 2 * side), DType::F32, device)?;
    let shared = (side + 2 * side - 1) * (head_dim + 2) * dtype.size_in_bytes();
    let [q_batch, q_head, q_row] = queries.strides.map(|stride| Arg::Long(stride as u64));
    let kernel_args = &mut [
        Arg::Pointer(queries.pointer()?),
        Arg::tensor(rows)?,
        Arg::tensor(columns)?,
        Arg::tensor(&out)?,
        q_batch,
        q_head,
        q_row,
        Arg::int(heads),
        Arg::int(side),
    ];
    launch(device, name, Some(dtype), Grid::new((side, batch * heads), 256).shared(shared), kernel_args)?;
    Ok(out)
}

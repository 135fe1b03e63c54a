//! Attention kernels: rotary positions with the cache's append, one token over the cache, many
//! tokens tile by tile.
//!
//! Scores are never stored in memory. Head sizes without a kernel run by candle's products and
//! softmax.

use candle_core::{CudaDevice, D, DType, Result, Tensor};

use super::{
    device_of, empty,
    kernels::{KernelArg, LaunchGrid, launch, pointer},
};

/// Blocks, and threads of each, for one token: about one block per SM of a large GPU.
const BLOCKS: usize = 132;
const THREADS: usize = 256;
/// Maximum parts of a cache, and minimum keys of a part at full capacity.
const MAX_PARTS: usize = 64;
const MIN_KEYS: usize = 32;
/// Queries, and keys, of a tile.
const TILE: usize = 64;

/// Arguments of [`rope`].
pub struct RopeArgs<'a> {
    /// `[tokens, (heads + 2 kv_heads) * head_dim]`
    pub qkv: &'a Tensor,
    /// Cosines and sines, `[positions, head_dim / 2]` in f32.
    pub tables: (&'a Tensor, &'a Tensor),
    /// Weights of the norms of queries and keys.
    pub norms: Option<(&'a Tensor, &'a Tensor)>,
    pub eps: f32,
    /// Position of the first token, on the GPU.
    pub position: &'a Tensor,
    /// Keys and values, `[1, kv_heads, capacity, head_dim]`.
    pub cache: (&'a Tensor, &'a Tensor),
}

/// Rotates queries and keys, appends keys and values to the cache, and returns the queries
/// `[tokens, heads, head_dim]`.
pub fn rope(args: &RopeArgs) -> Result<Option<Tensor>> {
    let RopeArgs { qkv, tables, norms, eps, position, cache: (keys, values) } = *args;
    let (_, kv_heads, capacity, dim) = keys.dims4()?;
    let Some(device) = device_of(qkv, &[qkv, keys, values]) else { return Ok(None) };
    let width = qkv.dim(D::Minus1)?;
    let (tokens, all) = (qkv.elem_count() / width, width / dim);
    let heads = all - 2 * kv_heads;
    let queries = empty((tokens, heads, dim), qkv.dtype(), device)?;
    let grid = LaunchGrid::new(((tokens * all).div_ceil(4), 1), 128);
    let args = &mut [
        KernelArg::tensor(qkv)?,
        KernelArg::tensor(tables.0)?,
        KernelArg::tensor(tables.1)?,
        KernelArg::optional(norms.map(|norms| norms.0))?,
        KernelArg::optional(norms.map(|norms| norms.1))?,
        KernelArg::tensor(position)?,
        KernelArg::tensor(&queries)?,
        KernelArg::tensor(keys)?,
        KernelArg::tensor(values)?,
        KernelArg::int(tokens),
        KernelArg::int(heads),
        KernelArg::int(kv_heads),
        KernelArg::int(dim),
        KernelArg::int(capacity),
        KernelArg::Float(eps),
    ];
    launch(device, "rope", Some(qkv.dtype()), grid, args)?;
    Ok(Some(queries))
}

/// Attention of one token's `queries` `[1, heads, head_dim]` to the cache up to and including
/// `position`; `tickets` is a zero per head, and is reset afterwards.
pub fn attend_one(
    queries: &Tensor,
    cache: (&Tensor, &Tensor),
    position: &Tensor,
    tickets: &Tensor,
) -> Result<Option<Tensor>> {
    let (tokens, heads, dim) = queries.dims3()?;
    let (_, kv_heads, capacity, _) = cache.0.dims4()?;
    let name = match dim {
        32 => "attend_one_32",
        64 => "attend_one_64",
        128 => "attend_one_128",
        _ => return Ok(None),
    };
    let Some(device) = device_of(queries, &[queries, cache.0, cache.1]).filter(|_| tokens == 1)
    else {
        return Ok(None);
    };
    let parts = BLOCKS.div_ceil(heads).min(capacity.div_ceil(MIN_KEYS)).clamp(1, MAX_PARTS);
    let partial = empty((heads, parts, dim + 2), DType::F32, device)?;
    let out = empty((1, heads * dim), queries.dtype(), device)?;
    let args = &mut [
        KernelArg::tensor(queries)?,
        KernelArg::tensor(cache.0)?,
        KernelArg::tensor(cache.1)?,
        KernelArg::tensor(position)?,
        KernelArg::tensor(&out)?,
        KernelArg::tensor(&partial)?,
        KernelArg::tensor(tickets)?,
        KernelArg::int(kv_heads),
        KernelArg::int(capacity),
        KernelArg::Float((dim as f32).sqrt().recip()),
    ];
    launch(device, name, Some(queries.dtype()), LaunchGrid::new((heads, parts), THREADS), args)?;
    Ok(Some(out))
}

/// A matrix of attention inside a tensor: its first element, and its strides between batches, heads
/// and rows.
#[derive(Clone, Copy)]
pub struct MatrixView<'a> {
    pub tensor: &'a Tensor,
    pub first: usize,
    pub strides: [usize; 3],
}

impl MatrixView<'_> {
    fn pointer(&self) -> Result<u64> {
        Ok(pointer(self.tensor)? + (self.first * self.tensor.dtype().size_in_bytes()) as u64)
    }
}

/// Arguments of [`attend_many`].
pub struct AttendMany<'a> {
    pub queries: MatrixView<'a>,
    pub keys: MatrixView<'a>,
    pub values: MatrixView<'a>,
    pub batch: usize,
    pub heads: usize,
    /// Query heads per key head.
    pub group: usize,
    pub queries_count: usize,
    pub keys_count: usize,
    pub head_dim: usize,
    /// The last query attends to every key, and each before it to one fewer.
    pub causal: bool,
    /// Vectors of the offsets between rows and between columns, `[2 side - 1, head_dim]`, of a grid
    /// of this side.
    pub relative: Option<(&'a Tensor, &'a Tensor, usize)>,
}

/// Attention of many queries; returns `[batch, queries, heads * head_dim]`.
pub fn attend_many(args: &AttendMany) -> Result<Option<Tensor>> {
    let AttendMany {
        queries,
        keys,
        values,
        batch,
        heads,
        group,
        queries_count,
        keys_count,
        head_dim,
        ..
    } = *args;
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
    let device =
        device_of(queries.tensor, &[queries.tensor, keys.tensor, values.tensor]).filter(|_| half);
    let Some(device) = device else { return Ok(None) };
    let (relative, side) = match args.relative {
        Some((rows, columns, side)) => {
            (Some(relative_terms(device, args, rows, columns, side)?), side)
        }
        None => (None, 0),
    };
    let width = heads * head_dim;
    let out = empty((batch, queries_count, width), dtype, device)?;
    let mut words = vec![queries.pointer()?, keys.pointer()?, values.pointer()?, pointer(&out)?];
    for strides in
        [queries.strides, keys.strides, values.strides, [queries_count * width, head_dim, width]]
    {
        words.extend(strides.map(|stride| stride as u64));
    }
    words.push(relative.as_ref().map_or(Ok(0), pointer)?);
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    words.push(pair(heads as u32, group as u32));
    words.push(pair(queries_count as u32, keys_count as u32));
    words.push(pair(side as u32, (head_dim as f32).sqrt().recip().to_bits()));
    let tile = TILE * head_dim * dtype.size_in_bytes();
    let terms =
        if relative.is_some() { TILE * (2 * side + 1) * DType::F32.size_in_bytes() } else { 0 };
    let grid = LaunchGrid::new((queries_count.div_ceil(TILE), batch * heads), 128)
        .shared(5 * tile + terms);
    launch(device, name, Some(dtype), grid, &mut [KernelArg::Bytes(words)])?;
    Ok(Some(out))
}

/// Each query's terms for a key's row and column, `[batch * heads, side^2, 2 * side]` in f32.
fn relative_terms(
    device: &CudaDevice,
    args: &AttendMany,
    rows: &Tensor,
    columns: &Tensor,
    side: usize,
) -> Result<Tensor> {
    let AttendMany { queries, batch, heads, head_dim, .. } = *args;
    let dtype = queries.tensor.dtype();
    let name = if head_dim == 64 { "relative_64" } else { "relative_128" };
    let out = empty((batch * heads, side * side, 2 * side), DType::F32, device)?;
    let shared = (side + 2 * side - 1) * (head_dim + 2) * dtype.size_in_bytes();
    let [q_batch, q_head, q_row] = queries.strides.map(|stride| KernelArg::Long(stride as u64));
    let kernel_args = &mut [
        KernelArg::Pointer(queries.pointer()?),
        KernelArg::tensor(rows)?,
        KernelArg::tensor(columns)?,
        KernelArg::tensor(&out)?,
        q_batch,
        q_head,
        q_row,
        KernelArg::int(heads),
        KernelArg::int(side),
    ];
    launch(
        device,
        name,
        Some(dtype),
        LaunchGrid::new((side, batch * heads), 256).shared(shared),
        kernel_args,
    )?;
    Ok(out)
}

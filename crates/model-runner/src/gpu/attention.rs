//! Attention kernels: rotary positions with the cache's append, one token over the cache, many
//! tokens tile by tile.
//!
//! Scores are never stored in memory. Head sizes without a kernel run by candle's products and
//! softmax.

use candle_core::{D, DType, Result, Tensor};

use super::{
    device_of, empty,
    kernels::{KernelArg, LaunchGrid, has_clusters, launch, pointer},
};
use crate::ops::DevicePositions;

/// Parts of a cache for one token if blocks form clusters, and threads of each.
const CLUSTER_PARTS: usize = 8;
const THREADS: usize = 512;
/// Without clusters, about one block per SM of a large GPU: blocks, maximum parts of a cache, and
/// minimum keys of a part at full capacity.
const BLOCKS: usize = 132;
const MAX_PARTS: usize = 64;
const MIN_KEYS: usize = 32;
/// For many sequences: threads of a block, and blocks that a large GPU runs at once.
const BATCH_THREADS: usize = 128;
const BATCH_BLOCKS: usize = 5 * BLOCKS;
const WARP: usize = 32;
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
    /// On the GPU: of one sequence the position of its first token; of several, which have one
    /// token each, of every token.
    pub positions: &'a Tensor,
    /// Keys and values, `[sequences, kv_heads, capacity, head_dim]`.
    pub cache: (&'a Tensor, &'a Tensor),
}

/// Rotates queries and keys, appends keys and values to the cache, and returns the queries
/// `[tokens, heads, head_dim]`.
pub fn rope(args: &RopeArgs) -> Result<Option<Tensor>> {
    let RopeArgs { qkv, tables, norms, eps, positions, cache: (keys, values) } = *args;
    let (sequences, kv_heads, capacity, dim) = keys.dims4()?;
    let Some(device) = device_of(qkv, &[qkv, keys, values]) else { return Ok(None) };
    let width = qkv.dim(D::Minus1)?;
    let (tokens, all) = (qkv.elem_count() / width, width / dim);
    let heads = all - 2 * kv_heads;
    let queries = empty((tokens, heads, dim), qkv.dtype(), device)?;
    // Lanes of a head whose halves are read 16 bytes at a time.
    let (half, wide) = (dim / 2, 16 / qkv.dtype().size_in_bytes());
    let lanes = half / wide;
    let is_wide = half % wide == 0 && lanes.is_power_of_two() && lanes <= WARP;
    let (name, lanes) = if is_wide { ("rope_wide", lanes) } else { ("rope", WARP) };
    let grid = LaunchGrid::new(((tokens * all * lanes).div_ceil(128), 1), 128);
    let args = &mut [
        KernelArg::tensor(qkv)?,
        KernelArg::tensor(tables.0)?,
        KernelArg::tensor(tables.1)?,
        KernelArg::optional(norms.map(|norms| norms.0))?,
        KernelArg::optional(norms.map(|norms| norms.1))?,
        KernelArg::tensor(positions)?,
        KernelArg::tensor(&queries)?,
        KernelArg::tensor(keys)?,
        KernelArg::tensor(values)?,
        KernelArg::int(tokens),
        KernelArg::int(sequences),
        KernelArg::int(heads),
        KernelArg::int(kv_heads),
        KernelArg::int(dim),
        KernelArg::int(capacity),
        KernelArg::Float(eps),
    ];
    launch(device, name, Some(qkv.dtype()), grid, args)?;
    Ok(Some(queries))
}

/// A kernel's name, its grid, and the parts of the keys in it.
type AttendPlan = (&'static str, LaunchGrid, usize);

/// For one token of few sequences; `None` for head sizes without a kernel.
fn one_plan(heads: usize, cache: &Tensor) -> Result<Option<AttendPlan>> {
    let (sequences, _, capacity, dim) = cache.dims4()?;
    let name = match dim {
        32 => "attend_one_32",
        64 => "attend_one_64",
        128 => "attend_one_128",
        _ => return Ok(None),
    };
    let parts = match has_clusters() {
        true => CLUSTER_PARTS,
        false => {
            BLOCKS.div_ceil(heads * sequences).min(capacity.div_ceil(MIN_KEYS)).clamp(1, MAX_PARTS)
        }
    };
    Ok(Some((name, LaunchGrid::new((heads, parts), THREADS).times(sequences), parts)))
}

/// For one token of each of many sequences. Neighbouring heads that share their keys are one
/// block's; the keys have as many parts as the blocks of one wave.
fn batch_plan(heads: usize, cache: &Tensor) -> Result<Option<AttendPlan>> {
    let (sequences, kv_heads, capacity, dim) = cache.dims4()?;
    let group = heads / kv_heads;
    let shared = [4, 2, 1].into_iter().find(|it| group.is_multiple_of(*it)).unwrap_or(1);
    let name = match (shared, dim) {
        (4, 32) => "attend_batch_4_32",
        (4, 64) => "attend_batch_4_64",
        (4, 128) => "attend_batch_4_128",
        (2, 32) => "attend_batch_2_32",
        (2, 64) => "attend_batch_2_64",
        (2, 128) => "attend_batch_2_128",
        (_, 32) => "attend_batch_1_32",
        (_, 64) => "attend_batch_1_64",
        (_, 128) => "attend_batch_1_128",
        _ => return Ok(None),
    };
    let blocks = heads / shared;
    let parts = BATCH_BLOCKS / (blocks * sequences);
    let parts = parts.min(capacity.div_ceil(MIN_KEYS)).clamp(1, MAX_PARTS);
    let grid = LaunchGrid::new((blocks, parts), BATCH_THREADS).times(sequences);
    Ok(Some((name, grid, parts)))
}

/// Attention of `queries` `[sequences, heads, head_dim]`, one token of each sequence, to the cache
/// up to and including its position; the tickets are reset afterwards.
pub fn attend_one(
    queries: &Tensor,
    cache: (&Tensor, &Tensor),
    on_device: &DevicePositions,
) -> Result<Option<Tensor>> {
    let (tokens, heads, dim) = queries.dims3()?;
    let (sequences, kv_heads, capacity, _) = cache.0.dims4()?;
    let Some(device) =
        device_of(queries, &[queries, cache.0, cache.1]).filter(|_| tokens == sequences)
    else {
        return Ok(None);
    };
    let is_few = sequences == 1 || heads * sequences < BLOCKS;
    let plan = if is_few { one_plan(heads, cache.0)? } else { batch_plan(heads, cache.0)? };
    let Some((name, grid, parts)) = plan else { return Ok(None) };
    let partial = empty((sequences * heads, parts, dim + 2), DType::F32, device)?;
    let out = empty((sequences, heads * dim), queries.dtype(), device)?;
    let args = &mut [
        KernelArg::tensor(queries)?,
        KernelArg::tensor(cache.0)?,
        KernelArg::tensor(cache.1)?,
        KernelArg::tensor(on_device.positions)?,
        KernelArg::tensor(&out)?,
        KernelArg::tensor(&partial)?,
        KernelArg::tensor(on_device.tickets)?,
        KernelArg::int(kv_heads),
        KernelArg::int(capacity),
        KernelArg::Float((dim as f32).sqrt().recip()),
    ];
    launch(device, name, Some(queries.dtype()), grid, args)?;
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
    let grid = args.relative.map(|(_, _, side)| GridKernel::of(head_dim, side));
    let name = match (head_dim, args.causal, &grid) {
        (64, true, None) => "attend_causal_64",
        (64, false, None) => "attend_all_64",
        (128, true, None) => "attend_causal_128",
        (128, false, None) => "attend_all_128",
        (_, false, Some(Some(kernel))) => kernel.name,
        _ => return Ok(None),
    };
    let half = matches!(dtype, DType::BF16 | DType::F16);
    let device =
        device_of(queries.tensor, &[queries.tensor, keys.tensor, values.tensor]).filter(|_| half);
    let Some(device) = device else { return Ok(None) };
    let width = heads * head_dim;
    let out = empty((batch, queries_count, width), dtype, device)?;
    let mut words = vec![queries.pointer()?, keys.pointer()?, values.pointer()?, pointer(&out)?];
    for strides in
        [queries.strides, keys.strides, values.strides, [queries_count * width, head_dim, width]]
    {
        words.extend(strides.map(|stride| stride as u64));
    }
    for offsets in args.relative.map_or([None; 2], |(rows, columns, _)| [Some(rows), Some(columns)])
    {
        words.push(offsets.map_or(Ok(0), pointer)?);
    }
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    words.push(pair(heads as u32, group as u32));
    words.push(pair(queries_count as u32, keys_count as u32));
    words.push(pair((head_dim as f32).sqrt().recip().to_bits(), 0));
    let row_bytes = head_dim * dtype.size_in_bytes();
    let (threads, shared_bytes) = match grid.flatten() {
        Some(kernel) => (128, kernel.shared_bytes(row_bytes)),
        // A tile of queries, and two stages of keys and values of each group of threads.
        None => {
            let groups = if head_dim == 128 { 3 } else { 2 };
            (128 * groups, (1 + 4 * groups) * TILE * row_bytes)
        }
    };
    let grid = LaunchGrid::new((queries_count.div_ceil(TILE), batch * heads), threads)
        .shared(shared_bytes);
    launch(device, name, Some(dtype), grid, &mut [KernelArg::Bytes(words)])?;
    Ok(Some(out))
}

/// A kernel for a grid of one side.
struct GridKernel {
    name: &'static str,
    side: usize,
    /// Rows of the grid in a tile of keys.
    rows: usize,
}

impl GridKernel {
    fn of(head_dim: usize, side: usize) -> Option<Self> {
        let (name, rows) = match (head_dim, side) {
            (64, 14) => ("attend_grid_14", 7),
            (64, 32) => ("attend_grid_32", 2),
            (64, 40) => ("attend_grid_40", 2),
            (64, 64) => ("attend_grid_64", 1),
            (64, 80) => ("attend_grid_80", 1),
            _ => return None,
        };
        Some(Self { name, side, rows })
    }

    /// A tile of queries, two stages of keys and values, and the terms of each query: as the kernel
    /// places them.
    fn shared_bytes(&self, row_bytes: usize) -> usize {
        let slots = self.side.next_multiple_of(8);
        let column_pitch = if slots.is_multiple_of(16) { slots + 8 } else { slots };
        let terms = TILE * (column_pitch + (self.side | 1)) * DType::F32.size_in_bytes();
        (TILE + 4 * self.rows * slots) * row_bytes + terms
    }
}

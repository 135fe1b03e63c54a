//! Attention without projections: of a decoder over its cache, and of an encoder over its input,
//! with or without positions on a grid.
//!
//! One operator each. On a GPU scores are never stored in memory; elsewhere they are products and a
//! softmax of candle.

use candle_core::{Result, Tensor};
use candle_nn::Init;

use super::{Cursor, LayerCache, Span, join, matmul_flops};
use crate::{
    module_scope::Site,
    record::{Op, OperatorWork},
};

/// Attention of new tokens to all tokens before them and to themselves.
pub struct CausalAttention(Op);

impl CausalAttention {
    pub fn new(site: &Site) -> Self {
        Self(site.op("attention"))
    }

    /// Attends from `queries` `[rows, heads, head_dim]`, each sequence's from its position, to the
    /// cache with these tokens.
    pub fn forward(&self, queries: &Tensor, cache: &LayerCache, cursor: &Cursor) -> Result<Tensor> {
        let (_, heads, dim) = queries.dims3()?;
        let kv_heads = cache.keys.dim(1)?;
        // Each token attends to those before it and itself: pairs of a query and a key, each
        // multiplied for its score and for its value.
        let pairs = |span: Span| span.tokens * span.position + span.tokens * (span.tokens + 1) / 2;
        let lengths = || cursor.spans().map(Span::length);
        let key_bytes = (2 * kv_heads * dim * queries.dtype().size_in_bytes()) as u64;
        let pair_flops = 2 * matmul_flops(1, 1, heads * dim, 1);
        let work = OperatorWork {
            flops: pair_flops * cursor.spans().map(pairs).sum::<usize>() as u64,
            read: (queries.elem_count() * queries.dtype().size_in_bytes()) as u64
                + lengths().sum::<usize>() as u64 * key_bytes,
            per_position: (pair_flops, key_bytes),
            deferred: None,
        };
        let longest = lengths().max().unwrap_or(0);
        let (keys, values) =
            (cache.keys.narrow(2, 0, longest)?, cache.values.narrow(2, 0, longest)?);
        self.0.call_with_work(&[queries, &keys, &values], work, || {
            #[cfg(feature = "cuda")]
            if let Some(mixed) = on_gpu(queries, cache, cursor)? {
                return Ok(mixed);
            }
            cursor.require_host()?;
            join(cursor.spans().map(|span| attend(queries, cache, cursor, span)))
        })
    }
}

/// Attention of one sequence, `[tokens, heads * head_dim]`.
fn attend(queries: &Tensor, cache: &LayerCache, cursor: &Cursor, span: Span) -> Result<Tensor> {
    let (_, heads, dim) = queries.dims3()?;
    let (tokens, length, kv_heads) = (span.tokens, span.length(), cache.keys.dim(1)?);
    let (keys, values) = cache.of(span.sequence)?;
    let (keys, values) = (keys.narrow(2, 0, length)?, values.narrow(2, 0, length)?);
    let queries = queries.narrow(0, span.row, tokens)?;
    // Query heads with a common key head are rows of one product, so keys are not repeated in
    // memory.
    let rows = (1, kv_heads, heads / kv_heads * tokens, dim);
    let scaled = (queries.transpose(0, 1)? * (dim as f64).sqrt().recip())?.reshape(rows)?;
    let scores = scaled.matmul(&keys.t()?)?.reshape((1, heads, tokens, length))?;
    let scores = match cursor.mask(span, scores.dtype(), scores.device())? {
        Some(mask) => scores.broadcast_add(&mask)?,
        None => scores,
    };
    let weights = candle_nn::ops::softmax_last_dim(&scores)?;
    let mixed = weights.reshape((1, kv_heads, rows.2, length))?.matmul(&values)?;
    mixed.reshape((heads, tokens, dim))?.transpose(0, 1)?.reshape((tokens, heads * dim))
}

/// One launch if the sequences have equal spans or one row each; else one per sequence.
#[cfg(feature = "cuda")]
fn on_gpu(queries: &Tensor, cache: &LayerCache, cursor: &Cursor) -> Result<Option<Tensor>> {
    use crate::gpu::attend_one;

    if cursor.reads_one() {
        let Some(on_device) = cursor.on_device() else { return Ok(None) };
        return attend_one(queries, (&cache.keys, &cache.values), &on_device);
    }
    if let Some(span) = cursor.common_span() {
        return attend_spans(queries, (&cache.keys, &cache.values), span);
    }
    super::rope::join_launches(cursor, |span| {
        let (keys, values) = cache.of(span.sequence)?;
        attend_spans(&queries.narrow(0, span.row, span.tokens)?, (&keys, &values), span)
    })
}

/// Attention of all sequences of a cache `[sequences, kv_heads, capacity, head_dim]`, each with
/// `span`; `queries` are `[sequences * tokens, heads, head_dim]`.
#[cfg(feature = "cuda")]
fn attend_spans(
    queries: &Tensor,
    (keys, values): (&Tensor, &Tensor),
    span: Span,
) -> Result<Option<Tensor>> {
    use crate::gpu::{AttendMany, MatrixView, attend_many};

    let (rows, heads, dim) = queries.dims3()?;
    let (batch, kv_heads, capacity, _) = keys.dims4()?;
    let of_sequence = kv_heads * capacity * dim;
    let cached =
        |tensor| MatrixView { tensor, first: 0, strides: [of_sequence, capacity * dim, dim] };
    let width = heads * dim;
    let mixed = attend_many(&AttendMany {
        queries: MatrixView {
            tensor: queries,
            first: 0,
            strides: [span.tokens * width, dim, width],
        },
        keys: cached(keys),
        values: cached(values),
        batch,
        heads,
        group: heads / kv_heads,
        queries_count: span.tokens,
        keys_count: span.length(),
        head_dim: dim,
        causal: true,
        relative: None,
    })?;
    mixed.map(|mixed| mixed.reshape((rows, width))).transpose()
}

/// Decomposed relative positions on a square grid: a query's terms for the rows, and for the
/// columns, between it and a key.
pub struct GridPositions {
    sides: Vec<GridTables>,
}

/// The tables for grids of one side.
struct GridTables {
    side: usize,
    /// Vectors of the offsets from `side - 1` down to `1 - side`, `[2 * side - 1, head_dim]`, of
    /// rows and of columns.
    offsets: (Tensor, Tensor),
    /// The same for each pair of places, `[side, side, head_dim]`.
    spread: (Tensor, Tensor),
}

impl GridPositions {
    /// Builds `rel_pos_h` and `rel_pos_w`, learned for grids of side `learned`; `resample` converts
    /// them to other lengths.
    pub fn new(
        site: &Site,
        head_dim: usize,
        learned: usize,
        sides: &[usize],
        resample: impl Fn(&Tensor, usize) -> Result<Tensor>,
    ) -> Result<Self> {
        let table = |name| {
            site.get((2 * learned - 1, head_dim), name, Init::Randn { mean: 0.0, stdev: 0.02 })
        };
        let (rows, columns) = (table("rel_pos_h")?, table("rel_pos_w")?);
        let side = |&side: &usize| {
            let offsets = (resample(&rows, 2 * side - 1)?, resample(&columns, 2 * side - 1)?);
            let spread = (spread(&offsets.0, side)?, spread(&offsets.1, side)?);
            Ok(GridTables { side, offsets, spread })
        };
        Ok(Self { sides: sides.iter().map(side).collect::<Result<_>>()? })
    }

    fn of(&self, tokens: usize) -> Result<&GridTables> {
        let side = self.sides.iter().find(|tables| tables.side * tables.side == tokens);
        side.ok_or_else(|| {
            candle_core::Error::Msg(format!(
                "no relative positions were built for a grid of {tokens} places"
            ))
        })
    }
}

impl GridTables {
    /// Adds the terms of `queries` `[batch, side^2, head_dim]` for each offset to `scores` `[batch,
    /// side^2, side^2]`.
    fn add(&self, queries: &Tensor, scores: &Tensor) -> Result<Tensor> {
        let (batch, tokens, dim) = queries.dims3()?;
        let side = self.side;
        let queries = queries.reshape((batch, side, side, dim))?;
        // Queries of one row share their offsets: one product per row, over the whole batch.
        let by_row = queries
            .transpose(0, 1)?
            .reshape((side, batch * side, dim))?
            .matmul(&self.spread.0.t()?)?;
        let by_row = by_row.reshape((side, batch, side, side))?.transpose(0, 1)?.unsqueeze(4)?;
        let by_column = queries
            .permute((2, 0, 1, 3))?
            .reshape((side, batch * side, dim))?
            .matmul(&self.spread.1.t()?)?;
        let by_column =
            by_column.reshape((side, batch, side, side))?.permute((1, 2, 0, 3))?.unsqueeze(3)?;
        let scores = scores.reshape((batch, side, side, side, side))?;
        scores.broadcast_add(&by_row)?.broadcast_add(&by_column)?.reshape((batch, tokens, tokens))
    }
}

/// Vectors of the offsets between each pair of places, `[side, side, head_dim]`, of a table.
fn spread(table: &Tensor, side: usize) -> Result<Tensor> {
    let offsets = (0..side).flat_map(|from| (0..side).map(move |to| (from + side - 1 - to) as u32));
    let offsets = Tensor::from_iter(offsets, table.device())?;
    table.index_select(&offsets, 0)?.reshape((side, side, ()))
}

/// Attention of every token to every other.
pub struct SelfAttention {
    heads: usize,
    positions: Option<GridPositions>,
    op: Op,
}

impl SelfAttention {
    pub fn new(site: &Site, heads: usize, positions: Option<GridPositions>) -> Self {
        Self { heads, positions, op: site.op("attention") }
    }

    /// Attends within each item of a batch: `qkv` is `[batch, tokens, 3 * width]`, queries first;
    /// returns `[batch, tokens, width]`.
    pub fn forward(&self, qkv: &Tensor) -> Result<Tensor> {
        let (batch, tokens, width) = qkv.dims3()?;
        let (width, heads) = (width / 3, self.heads);
        let dim = width / heads;
        let grid = self.positions.as_ref().map(|positions| positions.of(tokens)).transpose()?;
        let relative = grid.map_or(0, |grid| 2 * matmul_flops(batch, tokens, width, grid.side));
        let mut operands = vec![qkv];
        operands.extend(grid.iter().flat_map(|grid| [&grid.offsets.0, &grid.offsets.1]));
        self.op.call(&operands, 2 * matmul_flops(batch, tokens, width, tokens) + relative, || {
            #[cfg(feature = "cuda")]
            {
                let view = |part: usize| crate::gpu::MatrixView {
                    tensor: qkv,
                    first: part * width,
                    strides: [tokens * 3 * width, dim, 3 * width],
                };
                gpu_kernel!(attend_many(&crate::gpu::AttendMany {
                    queries: view(0),
                    keys: view(1),
                    values: view(2),
                    batch,
                    heads,
                    group: 1,
                    queries_count: tokens,
                    keys_count: tokens,
                    head_dim: dim,
                    causal: false,
                    relative: grid.map(|grid| (&grid.offsets.0, &grid.offsets.1, grid.side)),
                }));
            }
            // One copy makes queries, keys and values contiguous.
            let split = qkv.reshape((batch, tokens, 3, heads, dim))?.permute((2, 0, 3, 1, 4))?;
            let split = split.reshape((3, batch * heads, tokens, dim))?;
            let (queries, keys, values) = (split.get(0)?, split.get(1)?, split.get(2)?);
            let scores = (&queries * (dim as f64).sqrt().recip())?.matmul(&keys.t()?)?;
            let scores = match grid {
                Some(grid) => grid.add(&queries, &scores)?,
                None => scores,
            };
            let mixed = candle_nn::ops::softmax_last_dim(&scores)?.matmul(&values)?;
            mixed
                .reshape((batch, heads, tokens, dim))?
                .transpose(1, 2)?
                .reshape((batch, tokens, width))
        })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{D, Device};

    use super::*;

    fn vectors(x: &Tensor) -> Result<Vec<Vec<f32>>> {
        x.reshape(((), x.dim(D::Minus1)?))?.to_vec2()
    }

    fn grid(site: &Site, side: usize, sides: &[usize]) -> Result<GridPositions> {
        GridPositions::new(site, 4, side, sides, |table, length| table.narrow(0, 0, length))
    }

    #[test]
    fn each_score_gets_the_terms_of_its_row_and_column() -> anyhow::Result<()> {
        let (side, batch, head_dim, tokens) = (3, 2, 4, 9);
        let site = Site::synthetic(7);
        let positions = grid(&site, side, &[2, side])?;
        let table = |name: &str| {
            site.get((2 * side - 1, head_dim), name, Init::Randn { mean: 0.0, stdev: 0.02 })
        };
        let (rows, columns) = (vectors(&table("rel_pos_h")?)?, vectors(&table("rel_pos_w")?)?);
        let query = Tensor::randn(0f32, 1.0, (batch, tokens, head_dim), &Device::Cpu)?;
        let scores = Tensor::randn(0f32, 1.0, (batch, tokens, tokens), &Device::Cpu)?;

        let added = vectors(&positions.of(tokens)?.add(&query, &scores)?)?;
        let (query, scores) = (vectors(&query)?, vectors(&scores)?);
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        for (line, query) in query.iter().enumerate() {
            let from = line % tokens;
            for to in 0..tokens {
                let row = &rows[from / side + side - 1 - to / side];
                let column = &columns[from % side + side - 1 - to % side];
                let expected = scores[line][to] + dot(query, row) + dot(query, column);
                assert!((added[line][to] - expected).abs() < 1e-5, "{line} {to}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_grid_without_tables_is_refused() -> anyhow::Result<()> {
        let site = Site::synthetic(7);
        let attention = SelfAttention::new(&site, 1, Some(grid(&site, 3, &[3])?));
        assert!(
            attention
                .forward(&Tensor::zeros((1, 4, 12), candle_core::DType::F32, &Device::Cpu)?)
                .is_err()
        );
        Ok(())
    }

    #[test]
    fn attention_agrees_with_its_definition() -> anyhow::Result<()> {
        let qkv = Tensor::randn(0f32, 1.0, (1, 3, 12), &Device::Cpu)?;
        let head = |part: usize, head: usize| qkv.squeeze(0)?.narrow(1, 4 * part + 2 * head, 2);
        let mut mixed = Vec::new();
        for h in 0..2 {
            let scores = (head(0, h)?.matmul(&head(1, h)?.t()?)? / 2f64.sqrt())?;
            mixed.push(candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&head(2, h)?)?);
        }
        let attention = SelfAttention::new(&Site::synthetic(5), 2, None);
        let difference = (attention.forward(&qkv)?.squeeze(0)? - Tensor::cat(&mixed, 1)?)?
            .abs()?
            .max_all()?
            .to_scalar::<f32>()?;
        assert!(difference < 1e-5, "{difference}");
        Ok(())
    }
}

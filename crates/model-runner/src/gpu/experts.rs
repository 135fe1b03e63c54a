//! A mixture of experts without the host: the router, and the experts for one token or for many.
//!
//! Many tokens are sorted by expert on the GPU, so that a prompt of any length takes a fixed number
//! of launches.

use candle_core::{CudaDevice, DType, Result, Tensor};

use super::{
    device_of, empty,
    kernels::{KernelArg, LaunchGrid, has_clusters, launch},
    linear,
};

/// Rows of a tile of the grouped products, as in the kernels.
const TILE_ROWS: usize = 128;
/// Values of an expert's output per block, for one token.
const ROWS: usize = 2;
/// Blocks of the router for one token, if blocks form clusters.
const CLUSTER: usize = 8;
/// Tokens per block of the router for many tokens, its warps, and the floats of a token's partial
/// sums, as in the kernel.
const ROUTED: usize = 16;
const ROUTE_WARPS: usize = 16;
const ROUTE_STRIDE: usize = 72;
const MAX_EXPERTS: usize = 1024;
/// Assignments that are sorted in shared memory: 36 KB, with the counts below a block's default.
const STAGED: usize = 9000;
const WARP: usize = 32;

/// Arguments of [`route`].
pub struct RouteArgs<'a> {
    /// `[tokens, hidden]`
    pub x: &'a Tensor,
    /// `[experts, hidden]`
    pub weight: &'a Tensor,
    /// The first row to write in the log, on the GPU.
    pub row: &'a Tensor,
    /// Chosen experts of every token in the order of reading, `[capacity, top_k]`; written.
    pub log: &'a Tensor,
    pub top_k: usize,
    /// Shared experts, used by every token and numbered after the routed ones.
    pub shared: usize,
    pub normalise: bool,
}

/// The experts of each token and their weights (f32), `[tokens, top_k + shared]`.
pub fn route(args: &RouteArgs) -> Result<Option<(Tensor, Tensor)>> {
    let RouteArgs { x, weight, row, log, top_k, shared, normalise } = *args;
    let (tokens, hidden) = x.dims2()?;
    let (experts, slots, dtype) = (weight.dim(0)?, top_k + shared, x.dtype());
    let fits =
        slots <= WARP && experts + shared <= MAX_EXPERTS && (tokens == 1 || dtype != DType::F32);
    let Some(device) = device_of(x, &[x, weight]).filter(|_| fits) else { return Ok(None) };
    let ids = empty((tokens, slots), DType::U32, device)?;
    let weights = empty((tokens, slots), DType::F32, device)?;
    let float = DType::F32.size_in_bytes();
    let one_bytes = hidden * dtype.size_in_bytes() + experts * float;
    let (name, blocks, threads, bytes) = match tokens {
        1 if has_clusters() => ("route_one", CLUSTER, 256, one_bytes),
        1 => ("route_one", 1, 1024, one_bytes),
        _ => {
            let bytes = ROUTED * (ROUTE_WARPS * ROUTE_STRIDE + experts) * float;
            ("route_many", tokens.div_ceil(ROUTED), ROUTE_WARPS * WARP, bytes)
        }
    };
    let kernel_args = &mut [
        KernelArg::tensor(x)?,
        KernelArg::tensor(weight)?,
        KernelArg::tensor(row)?,
        KernelArg::tensor(&ids)?,
        KernelArg::tensor(&weights)?,
        KernelArg::tensor(log)?,
        KernelArg::int(tokens),
        KernelArg::int(hidden),
        KernelArg::int(experts),
        KernelArg::int(top_k),
        KernelArg::int(slots),
        KernelArg::int(log.dim(0)?),
        KernelArg::Int(normalise.into()),
    ];
    launch(
        device,
        name,
        Some(dtype),
        LaunchGrid::new((blocks, 1), threads).shared(bytes),
        kernel_args,
    )?;
    Ok(Some((ids, weights)))
}

/// Arguments of [`experts`].
pub struct ExpertsArgs<'a> {
    /// `[tokens, hidden]`
    pub x: &'a Tensor,
    /// Gates and ups of each expert, `[experts, 2 * width, hidden]`.
    pub up: &'a Tensor,
    /// `[experts, hidden, width]`
    pub down: &'a Tensor,
    /// From [`route`].
    pub ids: &'a Tensor,
    pub weights: &'a Tensor,
}

/// [`experts`] for one token.
fn experts_for_one_token(args: &ExpertsArgs, device: &CudaDevice) -> Result<Option<Tensor>> {
    let ExpertsArgs { x, up, down, ids, weights } = *args;
    let (dtype, hidden, width, slots) = (x.dtype(), x.dim(1)?, down.dim(2)?, ids.dim(1)?);
    let Some(gated) = linear::gated(x, up, Some(ids))? else { return Ok(None) };
    let out = empty((1, hidden), dtype, device)?;
    let args = &mut [
        KernelArg::tensor(down)?,
        KernelArg::tensor(&gated)?,
        KernelArg::tensor(ids)?,
        KernelArg::tensor(weights)?,
        KernelArg::tensor(&out)?,
        KernelArg::int(hidden),
        KernelArg::int(width),
    ];
    launch(
        device,
        "expert_down",
        Some(dtype),
        LaunchGrid::new((hidden.div_ceil(ROWS), 1), slots * WARP),
        args,
    )?;
    Ok(Some(out))
}

/// The weighted sum of each token's experts, `[tokens, hidden]`.
pub fn experts(args: &ExpertsArgs) -> Result<Option<Tensor>> {
    let ExpertsArgs { x, up, down, ids, weights } = *args;
    let (tokens, hidden) = x.dims2()?;
    let Some(device) = device_of(x, &[x, up, down]) else { return Ok(None) };
    let (dtype, width, slots, count) = (x.dtype(), down.dim(2)?, ids.dim(1)?, up.dim(0)?);
    if tokens == 1 {
        return experts_for_one_token(args, device);
    }
    if dtype == DType::F32 {
        return Ok(None);
    }
    let assignments = tokens * slots;
    // Each expert has at most one partial tile.
    let tiles = assignments.div_ceil(TILE_ROWS) + count.min(assignments);
    let order = empty(assignments, DType::U32, device)?;
    let places = empty(assignments, DType::U32, device)?;
    let tiling = empty(3 * tiles, DType::U32, device)?;
    let args = &mut [
        KernelArg::tensor(ids)?,
        KernelArg::tensor(&order)?,
        KernelArg::tensor(&places)?,
        KernelArg::tensor(&tiling)?,
        KernelArg::int(assignments),
        KernelArg::int(count),
        KernelArg::int(tiles),
        KernelArg::Int((assignments <= STAGED).into()),
    ];
    let staged = if assignments <= STAGED { assignments * DType::U32.size_in_bytes() } else { 0 };
    launch(device, "sort_by_expert", None, LaunchGrid::new((1, 1), 1024).shared(staged), args)?;

    let product =
        |name, from: &Tensor, weights: &Tensor, outputs: usize, inputs: usize, columns: usize| {
            let out = empty((assignments, outputs), dtype, device)?;
            let args = &mut [
                KernelArg::tensor(from)?,
                KernelArg::tensor(weights)?,
                KernelArg::tensor(&order)?,
                KernelArg::tensor(&tiling)?,
                KernelArg::tensor(&out)?,
                KernelArg::int(outputs),
                KernelArg::int(inputs),
                KernelArg::int(slots),
            ];
            // Three stages of a tile of rows and one of 128 columns, 64 deep.
            let shared = 3 * (TILE_ROWS + 128) * 64 * dtype.size_in_bytes();
            launch(
                device,
                name,
                Some(dtype),
                LaunchGrid::new((outputs.div_ceil(columns), tiles), 256).shared(shared),
                args,
            )?;
            Ok::<_, candle_core::Error>(out)
        };
    let gated = product("grouped_up", x, up, width, hidden, 64)?;
    let outputs = product("grouped_down", &gated, down, hidden, width, 128)?;

    let out = empty((tokens, hidden), dtype, device)?;
    let args = &mut [
        KernelArg::tensor(&outputs)?,
        KernelArg::tensor(&places)?,
        KernelArg::tensor(weights)?,
        KernelArg::tensor(&out)?,
        KernelArg::int(hidden),
        KernelArg::int(slots),
    ];
    launch(device, "combine", Some(dtype), LaunchGrid::new((tokens, 1), 160), args)?;
    Ok(Some(out))
}

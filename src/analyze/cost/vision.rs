//! Cost of the image side: SAM per view, CLIP over SAM's features, the projector.
//!
//! Counts each view as it is executed; interpolating position tables is not counted.

use super::{Tally, matmul};
use crate::{
    model::{Clip, Sam, Vision},
    trace::event::ImageViews,
};

/// Side of CLIP-L's own patches: their table is part of the published weights, though SAM's features take its place.
const CLIP_PATCH: u64 = 14;

/// Counts the image side into `tally`: its parameters once, its FLOPs for every view.
pub fn count(tally: &mut Tally, vision: &Vision, hidden: u64, images: &[ImageViews]) {
    let (sam, clip) = (&vision.sam, &vision.clip);
    parameters(tally, sam, clip, hidden);
    for image in images {
        view(tally, vision, hidden, u64::from(image.global_px));
        let crops = u64::from(image.crops_wide) * u64::from(image.crops_high);
        for _ in 0..if crops > 1 { crops } else { 0 } {
            view(tally, vision, hidden, u64::from(image.crop_px));
        }
    }
}

fn parameters(tally: &mut Tally, sam: &Sam, clip: &Clip, hidden: u64) {
    let (width, mlp, neck) = (sam.width as u64, sam.mlp as u64, sam.neck as u64);
    let (patch, window) = (sam.patch as u64, sam.window as u64);
    let [mid, out] = sam.downsample.map(|channels| channels as u64);
    let linear = |inputs: u64, outputs: u64| inputs * outputs + outputs;

    let grid = sam.image_px as u64 / patch;
    tally.parameters("vision.sam.patch_embed", 3 * patch * patch * width + width);
    tally.parameters("vision.sam.pos_embed", grid * grid * width);
    let head = width / sam.heads as u64;
    for layer in 0..sam.layers {
        let side = if sam.global_layers.contains(&layer) { grid } else { window };
        tally.parameters("vision.sam.blocks.*.attn", linear(width, 3 * width) + linear(width, width) + 2 * (2 * side - 1) * head);
        tally.parameters("vision.sam.blocks.*.mlp", linear(width, mlp) + linear(mlp, width));
        tally.parameters("vision.sam.blocks.*.norms", 4 * width);
    }
    tally.parameters("vision.sam.neck", width * neck + 2 * neck + 9 * neck * neck + 2 * neck);
    tally.parameters("vision.sam.downsample", 9 * neck * mid + 9 * mid * out);

    let (width, mlp, grid) = (clip.width as u64, clip.mlp as u64, clip.grid as u64);
    tally.parameters("vision.clip.embeddings", width + (grid * grid + 1) * width + 2 * width);
    tally.parameters("vision.clip.embeddings.patch_embedding (kept, never run)", 3 * CLIP_PATCH * CLIP_PATCH * width);
    let layers = clip.layers as u64;
    tally.parameters("vision.clip.layers.*.self_attn", layers * (linear(width, 3 * width) + linear(width, width)));
    tally.parameters("vision.clip.layers.*.mlp", layers * (linear(width, mlp) + linear(mlp, width)));
    tally.parameters("vision.clip.layers.*.norms", layers * 4 * width);

    tally.parameters("vision.projector", linear(width + out, hidden));
    tally.parameters("vision.separators", 2 * hidden);
}

/// FLOPs of one square view.
fn view(tally: &mut Tally, vision: &Vision, hidden: u64, px: u64) {
    let (sam, clip) = (&vision.sam, &vision.clip);
    let (width, neck, patch) = (sam.width as u64, sam.neck as u64, sam.patch as u64);
    let [mid, out] = sam.downsample.map(|channels| channels as u64);
    let side = px / patch;

    tally.prefill("vision.sam.patch_embed", matmul(side * side, 3 * patch * patch, width));
    for layer in 0..sam.layers {
        sam_block(tally, sam, side, sam.global_layers.contains(&layer));
    }
    tally.prefill("vision.sam.neck", matmul(side * side, width, neck) + matmul(side * side, 9 * neck, neck));
    let (half, quarter) = (side.div_ceil(2), side.div_ceil(2).div_ceil(2));
    let strided = matmul(half * half, 9 * neck, mid) + matmul(quarter * quarter, 9 * mid, out);
    tally.prefill("vision.sam.downsample", strided);

    let (width, mlp, layers) = (clip.width as u64, clip.mlp as u64, clip.layers as u64);
    let tokens = quarter * quarter + 1;
    let products = matmul(tokens, width, 3 * width) + matmul(tokens, width, width);
    let scores = 2 * matmul(tokens, width, tokens);
    tally.prefill("vision.clip.layers.*.self_attn", layers * (products + scores));
    tally.prefill("vision.clip.layers.*.mlp", layers * 2 * matmul(tokens, width, mlp));
    tally.prefill("vision.projector", matmul(quarter * quarter, width + out, hidden));
}

/// FLOPs of one of SAM's blocks over `side` x `side` patches.
pub(super) fn sam_block(tally: &mut Tally, sam: &Sam, side: u64, global: bool) {
    let (width, mlp, window) = (sam.width as u64, sam.mlp as u64, sam.window as u64);
    // A window attends within itself; the last ones are padded to full size.
    let (padded, reach) = if global { (side, side) } else { (side.div_ceil(window) * window, window) };
    let tokens = padded * padded;
    let products = matmul(tokens, width, 3 * width) + matmul(tokens, width, width);
    let scores = 2 * matmul(tokens, width, reach * reach);
    // Decomposed relative positions: each query meets one row and one column of offsets.
    let positions = 2 * matmul(tokens, width, reach);
    tally.prefill("vision.sam.blocks.*.attn", products + scores + positions);
    tally.prefill("vision.sam.blocks.*.mlp", 2 * matmul(side * side, width, mlp));
}

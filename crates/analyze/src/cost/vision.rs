//! Cost of the vision encoder: SAM per view, CLIP on SAM's features, the projector.
//!
//! Counts each view as executed, crops of one size together. Interpolation of position tables is
//! not counted.

use llmprof_core::{
    domain::model::{ClipSpec, SamSpec, VisionSpec},
    trace::event::ImageViews,
};

use super::tally::{CostStage, CostTally, LinearShape, MovedElements, OperatorWork, matmul};

/// Side of CLIP-L's own patches. The published weights contain their embedding, which SAM's
/// features replace.
const CLIP_PATCH: u128 = 14;
const PREFILL: CostStage = CostStage::Prefill;

/// Square views of one size that run as one batch.
#[derive(Debug, Clone, Copy)]
pub struct Views {
    pub count: u128,
    pub px: u128,
}

/// Counts the encoder into `tally`: parameters once, work for every page.
pub fn count(tally: &mut CostTally, vision: &VisionSpec, hidden: usize, images: &[ImageViews]) {
    let hidden = hidden as u128;
    parameters(tally, &vision.sam, &vision.clip, hidden);
    for image in images {
        let crops = u128::from(image.crops_wide) * u128::from(image.crops_high);
        let crops = Views { count: if crops > 1 { crops } else { 0 }, px: image.crop_px.into() };
        let mut places = 0;
        for views in [crops, Views { count: 1, px: image.global_px.into() }]
            .into_iter()
            .filter(|views| views.count > 0)
        {
            let grid = sam(tally, &vision.sam, views);
            clip(tally, &vision.clip, views.count, grid * grid);
            places += views.count * grid * grid;
        }
        project(tally, vision, hidden, (places, image.tokens.into()));
    }
}

fn parameters(tally: &mut CostTally, sam: &SamSpec, clip: &ClipSpec, hidden: u128) {
    let [width, mlp, neck, patch, window] =
        [sam.width, sam.mlp, sam.neck, sam.patch, sam.window].map(|n| n as u128);
    let [middle, last] = sam.downsample.map(|channels| channels as u128);
    let linear = |inputs: u128, outputs: u128| inputs * outputs + outputs;
    let grid = sam.image_px as u128 / patch;
    let head = width / sam.heads as u128;
    tally.parameters("vision.sam.patch_embed", "conv", 3 * patch * patch * width + width);
    tally.parameters("vision.sam.pos_embed", "elementwise", grid * grid * width);
    for layer in 0..sam.layers {
        tally.set_layer(Some(layer));
        let side = if sam.global_layers.contains(&layer) { grid } else { window };
        tally.parameters("vision.sam.blocks.*.norm1", "norm", 2 * width);
        tally.parameters("vision.sam.blocks.*.attn.qkv", "linear", linear(width, 3 * width));
        tally.parameters("vision.sam.blocks.*.attn.attend", "attention", 2 * (2 * side - 1) * head);
        tally.parameters("vision.sam.blocks.*.attn.proj", "linear", linear(width, width));
        tally.parameters("vision.sam.blocks.*.norm2", "norm", 2 * width);
        tally.parameters("vision.sam.blocks.*.mlp.lin1", "linear", linear(width, mlp));
        tally.parameters("vision.sam.blocks.*.mlp.lin2", "linear", linear(mlp, width));
    }
    tally.set_layer(None);
    tally.parameters("vision.sam.neck.*", "conv", width * neck + 9 * neck * neck);
    tally.parameters("vision.sam.neck.*", "norm", 4 * neck);
    tally.parameters("vision.sam.downsample.*", "conv", 9 * neck * middle + 9 * middle * last);

    let [width, mlp, grid] = [clip.width, clip.mlp, clip.grid].map(|n| n as u128);
    tally.parameters("vision.clip.embeddings", "elementwise", width + (grid * grid + 1) * width);
    // Stored with the weights but never executed.
    tally.parameters(
        "vision.clip.embeddings.patch_embedding",
        "",
        3 * CLIP_PATCH * CLIP_PATCH * width,
    );
    tally.parameters("vision.clip.pre_layrnorm", "norm", 2 * width);
    for layer in 0..clip.layers {
        tally.set_layer(Some(layer));
        tally.parameters("vision.clip.layers.*.layer_norm1", "norm", 2 * width);
        let qkv = linear(width, 3 * width);
        tally.parameters("vision.clip.layers.*.self_attn.qkv_proj", "linear", qkv);
        let out = linear(width, width);
        tally.parameters("vision.clip.layers.*.self_attn.out_proj", "linear", out);
        tally.parameters("vision.clip.layers.*.layer_norm2", "norm", 2 * width);
        tally.parameters("vision.clip.layers.*.mlp.fc1", "linear", linear(width, mlp));
        tally.parameters("vision.clip.layers.*.mlp.fc2", "linear", linear(mlp, width));
    }
    tally.set_layer(None);

    tally.parameters("vision.projector", "linear", linear(width + last, hidden));
    // The row newline and the view separator.
    tally.parameters("vision.assemble", "elementwise", 2 * hidden);
}

/// Counts SAM on `views`; returns the side of the feature grid.
fn sam(tally: &mut CostTally, sam: &SamSpec, views: Views) -> u128 {
    let [width, neck, patch] = [sam.width, sam.neck, sam.patch].map(|n| n as u128);
    let side = views.px / patch;
    let x = views.count * side * side * width;
    let patches =
        Conv { channels: 3, outputs: width, kernel: patch, from: views.px, to: side, bias: true };
    conv(tally, "vision.sam.patch_embed", views.count, patches);
    moved(
        tally,
        "vision.sam.pos_embed",
        "elementwise",
        MovedElements { weights: side * side * width, read: x, written: x },
    );
    for layer in 0..sam.layers {
        tally.set_layer(Some(layer));
        let terms = if layer == 0 { 1 } else { 2 };
        norm(tally, "vision.sam.blocks.*.norm1", (terms, x), width);
        sam_block(tally, sam, (views.count, side), sam.global_layers.contains(&layer));
    }
    tally.set_layer(None);
    moved(
        tally,
        "vision.sam.add_mlp",
        "elementwise",
        MovedElements { weights: 0, read: 2 * x, written: x },
    );
    let y = views.count * side * side * neck;
    for (channels, kernel) in [(width, 1), (neck, 3)] {
        let shape = Conv { channels, outputs: neck, kernel, from: side, to: side, bias: false };
        conv(tally, "vision.sam.neck.*", views.count, shape);
        norm(tally, "vision.sam.neck.*", (1, y), neck);
    }
    let (mut from, mut channels) = (side, neck);
    for outputs in sam.downsample.map(|channels| channels as u128) {
        let shape = Conv { channels, outputs, kernel: 3, from, to: from.div_ceil(2), bias: false };
        conv(tally, "vision.sam.downsample.*", views.count, shape);
        (from, channels) = (from.div_ceil(2), outputs);
    }
    from
}

/// One SAM block on `count` views of `side` x `side` patches, without the norm before it.
pub(super) fn sam_block(
    tally: &mut CostTally,
    sam: &SamSpec,
    (count, side): (u128, u128),
    global: bool,
) {
    let [width, mlp, window, heads] =
        [sam.width, sam.mlp, sam.window, sam.heads].map(|n| n as u128);
    let x = count * side * side * width;
    // Attention is local to a window; partial windows are padded to full size.
    let windows = if global { 1 } else { side.div_ceil(window).pow(2) };
    let reach = if global { side } else { window };
    let (batch, tokens) = (count * windows, reach * reach);
    let padded = batch * tokens * width;
    if !global {
        moved(
            tally,
            "vision.sam.blocks.*.partition",
            "elementwise",
            MovedElements { weights: 0, read: x, written: padded },
        );
    }
    linear(tally, "vision.sam.blocks.*.attn.qkv", batch * tokens, (width, 3 * width));
    // Decomposed relative positions: each query is combined with one row and one column of offsets.
    let flops = 2 * matmul(batch, tokens, width, tokens) + 2 * matmul(batch, tokens, width, reach);
    let (offsets, e) = (2 * (2 * reach - 1) * (width / heads), tally.element);
    let attend = OperatorWork::call(flops, offsets * e, 3 * padded * e, padded * e);
    tally.add(PREFILL, "vision.sam.blocks.*.attn.attend", "attention", attend);
    linear(tally, "vision.sam.blocks.*.attn.proj", batch * tokens, (width, width));
    if !global {
        moved(
            tally,
            "vision.sam.blocks.*.join",
            "elementwise",
            MovedElements { weights: 0, read: padded, written: x },
        );
    }
    norm(tally, "vision.sam.blocks.*.norm2", (2, x), width);
    linear(tally, "vision.sam.blocks.*.mlp.lin1", x / width, (width, mlp));
    linear(tally, "vision.sam.blocks.*.mlp.lin2", x / width, (mlp, width));
}

/// CLIP on `count` views of `places` features each, plus a class token.
fn clip(tally: &mut CostTally, clip: &ClipSpec, count: u128, places: u128) {
    let (width, mlp, tokens) = (clip.width as u128, clip.mlp as u128, places + 1);
    let (x, rows, e) = (count * tokens * width, count * tokens, tally.element);
    let embed =
        MovedElements { weights: (1 + tokens) * width, read: count * places * width, written: x };
    moved(tally, "vision.clip.embeddings", "elementwise", embed);
    norm(tally, "vision.clip.pre_layrnorm", (1, x), width);
    for layer in 0..clip.layers {
        tally.set_layer(Some(layer));
        norm(tally, "vision.clip.layers.*.layer_norm1", (if layer == 0 { 1 } else { 2 }, x), width);
        linear(tally, "vision.clip.layers.*.self_attn.qkv_proj", rows, (width, 3 * width));
        let attend =
            OperatorWork::call(2 * matmul(count, tokens, width, tokens), 0, 3 * x * e, x * e);
        tally.add(PREFILL, "vision.clip.layers.*.self_attn.attend", "attention", attend);
        linear(tally, "vision.clip.layers.*.self_attn.out_proj", rows, (width, width));
        norm(tally, "vision.clip.layers.*.layer_norm2", (2, x), width);
        linear(tally, "vision.clip.layers.*.mlp.fc1", rows, (width, mlp));
        linear(tally, "vision.clip.layers.*.mlp.fc2", rows, (mlp, width));
    }
    tally.set_layer(None);
    moved(
        tally,
        "vision.clip.add_mlp",
        "elementwise",
        MovedElements { weights: 0, read: 2 * x, written: x },
    );
}

/// The projector on all places of a page, and the assembled sequence of `tokens` vectors.
fn project(
    tally: &mut CostTally,
    vision: &VisionSpec,
    hidden: u128,
    (places, tokens): (u128, u128),
) {
    let features = (vision.clip.width + vision.sam.downsample[1]) as u128;
    let both = MovedElements { weights: 0, read: places * features, written: places * features };
    moved(tally, "vision.projector.concat", "elementwise", both);
    linear(tally, "vision.projector", places, (features, hidden));
    let sequence =
        MovedElements { weights: 2 * hidden, read: places * hidden, written: tokens * hidden };
    moved(tally, "vision.assemble", "elementwise", sequence);
}

fn moved(tally: &mut CostTally, path: &'static str, op: &'static str, moved: MovedElements) {
    tally.pointwise(PREFILL, path, op, 1, moved);
}

fn linear(tally: &mut CostTally, path: &'static str, rows: u128, (inputs, outputs): (u128, u128)) {
    tally.linear(PREFILL, path, 1, rows, LinearShape { inputs, outputs, bias: true });
}

/// A LayerNorm of the sum of `terms` operands of `elements` each; with two, the sum is written as
/// well.
fn norm(tally: &mut CostTally, path: &'static str, (terms, elements): (u128, u128), width: u128) {
    moved(
        tally,
        path,
        "norm",
        MovedElements { weights: 2 * width, read: terms * elements, written: terms * elements },
    );
}

/// A square convolution of a map of side `from` to one of side `to`.
struct Conv {
    channels: u128,
    outputs: u128,
    kernel: u128,
    from: u128,
    to: u128,
    bias: bool,
}

fn conv(tally: &mut CostTally, path: &'static str, count: u128, shape: Conv) {
    let Conv { channels, outputs, kernel, from, to, bias } = shape;
    let (e, window) = (tally.element, channels * kernel * kernel);
    let weights = window * outputs + if bias { outputs } else { 0 };
    let (read, written) = (count * channels * from * from, count * outputs * to * to);
    let call = OperatorWork::call(
        matmul(1, count * to * to, window, outputs),
        weights * e,
        read * e,
        written * e,
    );
    tally.add(PREFILL, path, "conv", call);
}

//! Number of parameters of a model, from its dimensions.
//!
//! Pure arithmetic in u128, which no dimensions overflow.

use super::{DecoderSpec, ModelSpec, VisionSpec};
use crate::domain::dtype::Dtype;

/// Side of CLIP-L's patches: the published weights contain their embedding, although SAM's features
/// replace it.
const CLIP_PATCH: u128 = 14;

impl ModelSpec {
    /// Parameters of the whole model.
    pub fn parameters(&self) -> u128 {
        self.decoder.parameters()
            + self.vision.as_ref().map_or(0, |vision| vision.parameters(self.decoder.hidden))
    }

    /// Bytes that a run of `batch` sequences needs at least: the weights, the keys and values of
    /// all positions, a forward's logits, and the kept logits of one sequence.
    pub fn minimum_bytes(&self, dtype: Dtype, batch: u32, prompt: usize, new_tokens: u32) -> u128 {
        let (decoder, batch) = (&self.decoder, u128::from(batch));
        let product = |factors: &[usize]| factors.iter().map(|&it| it as u128).product::<u128>();
        let positions = prompt as u128 + u128::from(new_tokens);
        let cached = positions * product(&[2, decoder.layers, decoder.kv_heads, decoder.head_dim]);
        let logits = (u128::from(new_tokens) + 1 + batch) * product(&[decoder.vocab]);
        (self.parameters() + batch * cached + logits) * u128::from(dtype.bytes())
    }
}

impl DecoderSpec {
    /// Parameters by the dimensions, embedding and head included.
    pub fn parameters(&self) -> u128 {
        let [hidden, vocab, heads, kv_heads] =
            [self.hidden, self.vocab, self.heads, self.kv_heads].map(|n| n as u128);
        let swiglu = |width: usize| 3 * hidden * width as u128;
        let head_dim = self.head_dim as u128;
        let biases = if self.qkv_bias { head_dim * (heads + 2 * kv_heads) } else { 0 };
        let norms = if self.qk_norm { 2 * head_dim } else { 0 };
        let attention = hidden * head_dim * (2 * heads + 2 * kv_heads) + biases + norms;
        let feed_forward = |layer| match &self.moe {
            Some(moe) if layer >= moe.first_layer => {
                let experts = moe.experts as u128;
                experts * (swiglu(moe.intermediate) + hidden)
                    + moe.shared as u128 * swiglu(moe.intermediate)
            }
            _ => swiglu(self.intermediate),
        };
        let layers: u128 =
            (0..self.layers).map(|layer| attention + feed_forward(layer) + 2 * hidden).sum();
        let tables = if self.tied_embeddings { 1 } else { 2 };
        tables * vocab * hidden + layers + hidden
    }
}

impl VisionSpec {
    /// Parameters by the dimensions, for a decoder of width `hidden`.
    pub fn parameters(&self, hidden: usize) -> u128 {
        let linear = |inputs: u128, outputs: u128| inputs * outputs + outputs;
        let (sam, hidden) = (&self.sam, hidden as u128);
        let [width, mlp, neck, patch, window] =
            [sam.width, sam.mlp, sam.neck, sam.patch, sam.window].map(|n| n as u128);
        let [middle, last] = sam.downsample.map(|n| n as u128);
        let (grid, head) = ((sam.image_px / sam.patch) as u128, (sam.width / sam.heads) as u128);
        let block = |layer| {
            let side = if sam.global_layers.contains(&layer) { grid } else { window };
            let attention =
                linear(width, 3 * width) + linear(width, width) + 2 * (2 * side - 1) * head;
            attention + linear(width, mlp) + linear(mlp, width) + 4 * width
        };
        let blocks: u128 = (0..sam.layers).map(block).sum();
        let ends = 3 * patch * patch * width + width + grid * grid * width;
        let tail =
            width * neck + 9 * neck * neck + 4 * neck + 9 * neck * middle + 9 * middle * last;

        let [clip, clip_mlp, clip_grid] =
            [self.clip.width, self.clip.mlp, self.clip.grid].map(|n| n as u128);
        let layer = linear(clip, 3 * clip)
            + linear(clip, clip)
            + linear(clip, clip_mlp)
            + linear(clip_mlp, clip)
            + 4 * clip;
        let embeddings = clip
            + (clip_grid * clip_grid + 1) * clip
            + 2 * clip
            + 3 * CLIP_PATCH * CLIP_PATCH * clip;
        let clip_layers = self.clip.layers as u128 * layer;
        ends + blocks + tail + embeddings + clip_layers + linear(clip + last, hidden) + 2 * hidden
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_model_has_its_published_size() {
        let preset: ModelSpec =
            toml::from_str(include_str!("../../../../../conf/models/deepseek-ocr.toml"))
                .expect("the preset parses");
        assert_eq!(preset.decoder.parameters(), 2_934_734_080);
        assert_eq!(preset.parameters(), 3_336_106_240);
    }
}

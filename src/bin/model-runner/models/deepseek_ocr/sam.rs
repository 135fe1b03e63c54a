//! SAM's image encoder: patches, windowed and global attention, a neck, and two strided convolutions.
//!
//! Works on square views of the sizes that it was built for, several of one size at once.

use candle_core::{Result, Tensor};
use candle_nn::Init;
use llmprof::model::Sam as Spec;

use super::{attention::SelfAttention, relative::RelativePositions, resample, window};
use crate::{
    ops::{Activation, Conv2d, ConvShape, Function, LayerNorm, LayerNorm2d, Linear, Pointwise},
    record::Op,
    site::Site,
};

const EPS: f64 = 1e-6;

struct Block {
    module: Op,
    attention_norm: LayerNorm,
    /// Side of a window; none where the whole view attends.
    window: Option<usize>,
    partition: Pointwise,
    attention: SelfAttention,
    positions: RelativePositions,
    join: Pointwise,
    add_attention: Pointwise,
    mlp_norm: LayerNorm,
    mlp: (Linear, Activation, Linear),
    add_mlp: Pointwise,
}

impl Block {
    fn new(site: &Site, spec: &Spec, layer: usize, sides: &[usize]) -> Result<Self> {
        let window = (!spec.global_layers.contains(&layer)).then_some(spec.window);
        let attn = site.pp("attn");
        let head_dim = spec.width / spec.heads;
        let positions = match window {
            Some(side) => RelativePositions::new(&attn, head_dim, side, &[side])?,
            None => RelativePositions::new(&attn, head_dim, spec.image_px / spec.patch, sides)?,
        };
        let mlp = site.pp("mlp");
        let mlp = (
            Linear::new(&mlp.pp("lin1"), spec.width, spec.mlp, true)?,
            Activation::new(&mlp.pp("act"), Function::Gelu),
            Linear::new(&mlp.pp("lin2"), spec.mlp, spec.width, true)?,
        );
        Ok(Self {
            module: site.module(),
            attention_norm: LayerNorm::new(&site.pp("norm1"), spec.width, EPS)?,
            window,
            partition: Pointwise::new(&site.pp("partition")),
            attention: SelfAttention::new(&attn, spec.width, spec.heads, "qkv", "proj")?,
            positions,
            join: Pointwise::new(&site.pp("join")),
            add_attention: Pointwise::new(&site.pp("add_attention")),
            mlp_norm: LayerNorm::new(&site.pp("norm2"), spec.width, EPS)?,
            mlp,
            add_mlp: Pointwise::new(&site.pp("add_mlp")),
        })
    }

    /// Forward of `x` `[batch, side, side, width]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = self.module.enter();
        let (_, side, _, _) = x.dims4()?;
        let normed = self.attention_norm.forward(x)?;
        let attended = match self.window {
            None => self.attend(&normed)?,
            Some(window) => {
                let windows = self.partition.run(&[&normed], || window::partition(&normed, window))?;
                let attended = self.attend(&windows)?;
                self.join.run(&[&attended], || window::join(&attended, (side, side)))?
            }
        };
        let x = self.add_attention.add(x, &attended)?;
        let (up, activation, down) = &self.mlp;
        let fed = down.forward(&activation.forward(&up.forward(&self.mlp_norm.forward(&x)?)?)?)?;
        self.add_mlp.add(&x, &fed)
    }

    fn attend(&self, x: &Tensor) -> Result<Tensor> {
        let (_, side, _, _) = x.dims4()?;
        let tokens = x.flatten(1, 2)?;
        let attended = self.attention.forward_with(&tokens, |query, scores| self.positions.add(query, scores, side))?;
        attended.reshape(x.shape())
    }
}

/// The encoder.
pub struct Sam {
    module: Op,
    patches: Conv2d,
    /// The position table, `[side, side, width]`, for each side of a grid of patches.
    positions: Vec<Tensor>,
    add_positions: Pointwise,
    blocks: Vec<Block>,
    neck: (Conv2d, LayerNorm2d, Conv2d, LayerNorm2d),
    downsample: [Conv2d; 2],
}

impl Sam {
    /// Builds for views of `views` pixels a side.
    pub fn new(site: &Site, spec: &Spec, views: &[usize]) -> Result<Self> {
        let Spec { patch, width, image_px, neck, downsample: [middle, last], .. } = *spec;
        let sides: Vec<usize> = views.iter().map(|px| px / patch).collect();
        let conv = |site: &Site, inputs, outputs, kernel, stride| {
            Conv2d::new(site, ConvShape { inputs, outputs, kernel, padding: kernel / 2, stride }, false)
        };
        let patches = ConvShape { inputs: 3, outputs: width, kernel: patch, padding: 0, stride: patch };
        let learned = image_px / patch;
        let positions =
            site.get((1, learned, learned, width), "pos_embed", Init::Randn { mean: 0.0, stdev: 0.02 })?.squeeze(0)?;
        let part = site.pp("neck");
        Ok(Self {
            module: site.module(),
            patches: Conv2d::new(&site.part("patch_embed", "patch_embed.proj"), patches, true)?,
            positions: sides.iter().map(|&side| resample::grid(&positions, side)).collect::<Result<_>>()?,
            add_positions: Pointwise::new(&site.pp("pos_embed")),
            blocks: (0..spec.layers)
                .map(|layer| Block::new(&site.pp("blocks").pp(layer), spec, layer, &sides))
                .collect::<Result<_>>()?,
            neck: (
                conv(&part.pp(0), width, neck, 1, 1)?,
                LayerNorm2d::new(&part.pp(1), neck, EPS)?,
                conv(&part.pp(2), neck, neck, 3, 1)?,
                LayerNorm2d::new(&part.pp(3), neck, EPS)?,
            ),
            downsample: [
                conv(&site.part("downsample.0", "net_2"), neck, middle, 3, 2)?,
                conv(&site.part("downsample.1", "net_3"), middle, last, 3, 2)?,
            ],
        })
    }

    /// Features `[batch, grid^2, channels]` of `pixels` `[batch, 3, side, side]`.
    pub fn forward(&self, pixels: &Tensor) -> Result<Tensor> {
        let _scope = self.module.enter();
        let x = self.patches.forward(pixels)?.permute((0, 2, 3, 1))?;
        let side = x.dim(1)?;
        let Some(positions) = self.positions.iter().find(|table| table.dims()[0] == side) else {
            candle_core::bail!("no positions were built for {side} patches a side");
        };
        let mut x = self.add_positions.add(&x, positions)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        let (narrow, narrow_norm, mix, mix_norm) = &self.neck;
        let x = narrow_norm.forward(&narrow.forward(&x.permute((0, 3, 1, 2))?)?)?;
        let mut x = mix_norm.forward(&mix.forward(&x)?)?;
        for conv in &self.downsample {
            x = conv.forward(&x)?;
        }
        x.flatten_from(2)?.transpose(1, 2)?.contiguous()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::{record::Recorder, weights};

    fn sam(image_px: usize, views: &[usize]) -> Result<Sam> {
        let spec = Spec {
            patch: 4,
            width: 16,
            layers: 2,
            heads: 2,
            mlp: 32,
            window: 3,
            global_layers: vec![1],
            image_px,
            neck: 8,
            downsample: [12, 20],
        };
        let site = Site::root(weights::synthetic(3, DType::F32, &Device::Cpu), Recorder::new());
        Sam::new(&site, &spec, views)
    }

    #[test]
    fn views_of_a_batch_do_not_see_each_other() -> anyhow::Result<()> {
        let sam = sam(32, &[32, 20])?;
        for side in [32, 20] {
            let pixels = Tensor::randn(0f32, 1.0, (2, 3, side, side), &Device::Cpu)?;
            let both = sam.forward(&pixels)?;
            assert_eq!(both.dims(), [2, (side / 4).div_ceil(4).pow(2), 20]);
            let second = sam.forward(&pixels.narrow(0, 1, 1)?)?;
            let difference = (both.narrow(0, 1, 1)? - second)?.abs()?.max_all()?.to_scalar::<f32>()?;
            assert!(difference < 1e-4, "{difference}");
        }
        Ok(())
    }

    #[test]
    fn a_view_of_another_size_is_refused() -> anyhow::Result<()> {
        let pixels = Tensor::zeros((1, 3, 16, 16), DType::F32, &Device::Cpu)?;
        assert!(sam(32, &[32])?.forward(&pixels).is_err());
        Ok(())
    }
}

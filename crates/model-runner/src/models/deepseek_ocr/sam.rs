//! SAM's image encoder: patches, windowed and global attention, a neck, and two strided
//! convolutions.
//!
//! Works on square views of the sizes given at construction, several of one size at once.

use candle_core::{Result, Tensor};
use candle_nn::Init;
use llmprof_core::domain::model::SamSpec as Spec;

use super::{resample, window};
use crate::{
    module_scope::Site,
    ops::{Activation, Conv2d, ConvShape, GridPositions, Linear, Norm, Pointwise, SelfAttention},
    record::Op,
};

const EPS: f64 = 1e-6;

/// One block: attention, then feed-forward, each after a norm.
pub struct SamBlock {
    module: Op,
    attention_norm: Norm,
    /// Side of a window; `None` for attention over the whole view.
    window: Option<usize>,
    partition: Pointwise,
    attention: SamAttention,
    join: Pointwise,
    mlp_norm: Norm,
    mlp: (Linear, Linear),
}

/// Self-attention with its projections.
struct SamAttention {
    module: Op,
    qkv: Linear,
    attend: SelfAttention,
    output: Linear,
}

impl SamBlock {
    /// Builds block `layer` for views with sides of `sides` patches.
    pub fn new(site: &Site, spec: &Spec, layer: usize, sides: &[usize]) -> Result<Self> {
        let window = (!spec.global_layers.contains(&layer)).then_some(spec.window);
        let attn = site.pp("attn");
        let head_dim = spec.width / spec.heads;
        let positions = match window {
            Some(side) => GridPositions::new(&attn, head_dim, side, &[side], resample::list)?,
            None => GridPositions::new(
                &attn,
                head_dim,
                spec.image_px / spec.patch,
                sides,
                resample::list,
            )?,
        };
        let mlp = site.pp("mlp");
        Ok(Self {
            module: site.module(),
            attention_norm: Norm::layer(&site.pp("norm1"), spec.width, EPS)?,
            window,
            partition: Pointwise::new(&site.pp("partition")),
            attention: SamAttention {
                module: attn.module(),
                qkv: Linear::new(&attn.pp("qkv"), spec.width, 3 * spec.width, true)?,
                attend: SelfAttention::new(&attn.part("attend", ""), spec.heads, Some(positions)),
                output: Linear::new(&attn.pp("proj"), spec.width, spec.width, true)?,
            },
            join: Pointwise::new(&site.pp("join")),
            mlp_norm: Norm::layer(&site.pp("norm2"), spec.width, EPS)?,
            mlp: (
                Linear::new(&mlp.pp("lin1"), spec.width, spec.mlp, true)?.then(Activation::Gelu),
                Linear::new(&mlp.pp("lin2"), spec.mlp, spec.width, true)?,
            ),
        })
    }

    /// Continues from `x` and the addend of the block before, `[batch, side, side, width]` each;
    /// returns the same two.
    pub fn forward(&self, x: &Tensor, delta: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        let _scope = self.module.enter();
        let (_, side, _, _) = x.dims4()?;
        let (x, normed) = match delta {
            Some(delta) => self.attention_norm.forward_sum(x, delta)?,
            None => (x.clone(), self.attention_norm.forward(x)?),
        };
        let attended = match self.window {
            None => self.attention.forward(&normed)?,
            Some(window) => {
                let windows =
                    self.partition.run(&[&normed], || window::partition(&normed, window))?;
                let attended = self.attention.forward(&windows)?;
                self.join.run(&[&attended], || window::join(&attended, (side, side)))?
            }
        };
        let (x, normed) = self.mlp_norm.forward_sum(&x, &attended)?;
        let (up, down) = &self.mlp;
        Ok((x, down.forward(&up.forward(&normed)?)?))
    }
}

impl SamAttention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = self.module.enter();
        let qkv = self.qkv.forward(&x.flatten(1, 2)?)?;
        self.output.forward(&self.attend.forward(&qkv)?)?.reshape(x.shape())
    }
}

/// The encoder.
pub struct Sam {
    module: Op,
    patches: Conv2d,
    /// The position table, `[side, side, width]`, for each side of a grid of patches.
    positions: Vec<Tensor>,
    add_positions: Pointwise,
    blocks: Vec<SamBlock>,
    add_mlp: Pointwise,
    neck: (Conv2d, Norm, Conv2d, Norm),
    downsample: [Conv2d; 2],
}

impl Sam {
    /// Builds for views with sides of `views` pixels.
    pub fn new(site: &Site, spec: &Spec, views: &[usize]) -> Result<Self> {
        let Spec { patch, width, image_px, neck, downsample: [middle, last], .. } = *spec;
        let sides: Vec<usize> = views.iter().map(|px| px / patch).collect();
        let conv = |site: &Site, inputs, outputs, kernel, stride| {
            Conv2d::new(
                site,
                ConvShape { inputs, outputs, kernel, padding: kernel / 2, stride },
                false,
            )
        };
        let patches =
            ConvShape { inputs: 3, outputs: width, kernel: patch, padding: 0, stride: patch };
        let learned = image_px / patch;
        let positions = site
            .get((1, learned, learned, width), "pos_embed", Init::Randn { mean: 0.0, stdev: 0.02 })?
            .squeeze(0)?;
        let part = site.pp("neck");
        Ok(Self {
            module: site.module(),
            patches: Conv2d::new(&site.part("patch_embed", "patch_embed.proj"), patches, true)?,
            positions: sides
                .iter()
                .map(|&side| resample::grid(&positions, side))
                .collect::<Result<_>>()?,
            add_positions: Pointwise::new(&site.pp("pos_embed")),
            blocks: (0..spec.layers)
                .map(|layer| SamBlock::new(&site.pp("blocks").pp(layer), spec, layer, &sides))
                .collect::<Result<_>>()?,
            add_mlp: Pointwise::new(&site.pp("add_mlp")),
            neck: (
                conv(&part.pp(0), width, neck, 1, 1)?,
                Norm::layer(&part.pp(1), neck, EPS)?,
                conv(&part.pp(2), neck, neck, 3, 1)?,
                Norm::layer(&part.pp(3), neck, EPS)?,
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
        let x = self.patches.forward_planes(pixels)?;
        let side = x.dim(1)?;
        let Some(positions) = self.positions.iter().find(|table| table.dims()[0] == side) else {
            candle_core::bail!("no positions were built for {side} patches per side");
        };
        let (mut x, mut delta) = (self.add_positions.add(&x, positions)?, None);
        for block in &self.blocks {
            let (sum, fed) = block.forward(&x, delta.as_ref())?;
            (x, delta) = (sum, Some(fed));
        }
        if let Some(delta) = delta {
            x = self.add_mlp.add(&x, &delta)?;
        }
        let (narrow, narrow_norm, mix, mix_norm) = &self.neck;
        let x = narrow_norm.forward(&narrow.forward(&x)?)?;
        let mut x = mix_norm.forward(&mix.forward(&x)?)?;
        for conv in &self.downsample {
            x = conv.forward(&x)?;
        }
        x.flatten(1, 2)
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
    fn views_of_a_batch_are_independent() -> anyhow::Result<()> {
        let sam = sam(32, &[32, 20])?;
        for side in [32, 20] {
            let pixels = Tensor::randn(0f32, 1.0, (2, 3, side, side), &Device::Cpu)?;
            let both = sam.forward(&pixels)?;
            assert_eq!(both.dims(), [2, (side / 4).div_ceil(4).pow(2), 20]);
            let second = sam.forward(&pixels.narrow(0, 1, 1)?)?;
            let difference =
                (both.narrow(0, 1, 1)? - second)?.abs()?.max_all()?.to_scalar::<f32>()?;
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

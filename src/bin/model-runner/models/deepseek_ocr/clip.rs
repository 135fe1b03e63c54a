//! CLIP's vision transformer over SAM's features: what its own patches would have been, they are.
//!
//! Norms come before each half of a layer and once before all of them; none comes last.

use candle_core::{Result, Tensor};
use candle_nn::Init;
use llmprof::model::Clip as Spec;

use super::{attention::SelfAttention, resample};
use crate::{
    ops::{Activation, Function, LayerNorm, Linear, Pointwise},
    record::Op,
    site::Site,
};

const EPS: f64 = 1e-5;
/// Pixels a side of CLIP's own patches.
const PATCH: usize = 14;

struct Layer {
    module: Op,
    attention_norm: LayerNorm,
    attention: SelfAttention,
    add_attention: Pointwise,
    mlp_norm: LayerNorm,
    mlp: (Linear, Activation, Linear),
    add_mlp: Pointwise,
}

impl Layer {
    fn new(site: &Site, spec: &Spec) -> Result<Self> {
        let mlp = site.pp("mlp");
        let mlp = (
            Linear::new(&mlp.pp("fc1"), spec.width, spec.mlp, true)?,
            Activation::new(&mlp.pp("act"), Function::QuickGelu),
            Linear::new(&mlp.pp("fc2"), spec.mlp, spec.width, true)?,
        );
        Ok(Self {
            module: site.module(),
            attention_norm: LayerNorm::new(&site.pp("layer_norm1"), spec.width, EPS)?,
            attention: SelfAttention::new(&site.pp("self_attn"), spec.width, spec.heads, "qkv_proj", "out_proj")?,
            add_attention: Pointwise::new(&site.pp("add_attention")),
            mlp_norm: LayerNorm::new(&site.pp("layer_norm2"), spec.width, EPS)?,
            mlp,
            add_mlp: Pointwise::new(&site.pp("add_mlp")),
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = self.module.enter();
        let attended = self.attention.forward(&self.attention_norm.forward(x)?)?;
        let x = self.add_attention.add(x, &attended)?;
        let (up, activation, down) = &self.mlp;
        let fed = down.forward(&activation.forward(&up.forward(&self.mlp_norm.forward(&x)?)?)?)?;
        self.add_mlp.add(&x, &fed)
    }
}

/// The transformer.
pub struct Clip {
    module: Op,
    class: Tensor,
    /// The class token's position and the grid's, `[1 + grid^2, width]`, for each side of a grid.
    positions: Vec<Tensor>,
    embed: Pointwise,
    norm: LayerNorm,
    layers: Vec<Layer>,
    /// Part of the published weights and of the model's size, and never run.
    _patches: Tensor,
}

impl Clip {
    /// Builds for grids of `sides` features.
    pub fn new(site: &Site, spec: &Spec, sides: &[usize]) -> Result<Self> {
        let Spec { width, grid, .. } = *spec;
        let embeddings = site.pp("embeddings");
        let small = Init::Randn { mean: 0.0, stdev: 0.02 };
        let table = embeddings.get((grid * grid + 1, width), "position_embedding.weight", small)?;
        let (class, square) = (table.narrow(0, 0, 1)?, table.narrow(0, 1, grid * grid)?.reshape((grid, grid, width))?);
        let positions = |&side: &usize| Tensor::cat(&[&class, &resample::grid(&square, side)?.flatten(0, 1)?], 0);
        Ok(Self {
            module: site.module(),
            class: embeddings.get(width, "class_embedding", small)?,
            positions: sides.iter().map(positions).collect::<Result<_>>()?,
            embed: Pointwise::new(&embeddings),
            norm: LayerNorm::new(&site.pp("pre_layrnorm"), width, EPS)?,
            layers: (0..spec.layers)
                .map(|layer| Layer::new(&site.part("layers", "transformer.layers").pp(layer), spec))
                .collect::<Result<_>>()?,
            _patches: embeddings.get((width, 3, PATCH, PATCH), "patch_embedding.weight", small)?,
        })
    }

    /// Features `[batch, grid^2, width]` of SAM's features of the same shape. The class token is left out.
    pub fn forward(&self, features: &Tensor) -> Result<Tensor> {
        let _scope = self.module.enter();
        let (batch, places, width) = features.dims3()?;
        let Some(positions) = self.positions.iter().find(|table| table.dims()[0] == places + 1) else {
            candle_core::bail!("no positions were built for {places} features");
        };
        let x = self.embed.run(&[features, &self.class, positions], || {
            let class = self.class.expand((batch, 1, width))?;
            Tensor::cat(&[&class, features], 1)?.broadcast_add(positions)
        })?;
        let mut x = self.norm.forward(&x)?;
        for layer in &self.layers {
            x = layer.forward(&x)?;
        }
        x.narrow(1, 1, places)
    }
}

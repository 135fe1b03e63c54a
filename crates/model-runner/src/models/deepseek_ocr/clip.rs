//! CLIP's vision transformer over SAM's features, which replace its own patches.
//!
//! Norms are before each half of a layer and once before the first layer; there is no final one.

use candle_core::{Result, Tensor};
use candle_nn::Init;
use llmprof_core::domain::model::ClipSpec as Spec;

use super::resample;
use crate::{
    module_scope::Site,
    ops::{Activation, Linear, Norm, Pointwise, SelfAttention},
    record::Op,
};

const EPS: f64 = 1e-5;
/// Side of CLIP's own patches, pixels.
const PATCH: usize = 14;

/// One layer: attention, then feed-forward, each after a norm.
pub struct ClipLayer {
    module: Op,
    attention_norm: Norm,
    attention: ClipAttention,
    mlp_norm: Norm,
    mlp: (Linear, Linear),
}

/// Self-attention with its projections.
struct ClipAttention {
    module: Op,
    qkv: Linear,
    attend: SelfAttention,
    output: Linear,
}

impl ClipLayer {
    pub fn new(site: &Site, spec: &Spec) -> Result<Self> {
        let (mlp, attn, width) = (site.pp("mlp"), site.pp("self_attn"), spec.width);
        Ok(Self {
            module: site.module(),
            attention_norm: Norm::layer(&site.pp("layer_norm1"), width, EPS)?,
            attention: ClipAttention {
                module: attn.module(),
                qkv: Linear::new(&attn.pp("qkv_proj"), width, 3 * width, true)?,
                attend: SelfAttention::new(&attn.part("attend", ""), spec.heads, None),
                output: Linear::new(&attn.pp("out_proj"), width, width, true)?,
            },
            mlp_norm: Norm::layer(&site.pp("layer_norm2"), width, EPS)?,
            mlp: (
                Linear::new(&mlp.pp("fc1"), width, spec.mlp, true)?.then(Activation::QuickGelu),
                Linear::new(&mlp.pp("fc2"), spec.mlp, width, true)?,
            ),
        })
    }

    /// Continues from `x` and the addend of the layer before, `[batch, tokens, width]` each;
    /// returns the same two.
    pub fn forward(&self, x: &Tensor, delta: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
        let _scope = self.module.enter();
        let (x, normed) = match delta {
            Some(delta) => self.attention_norm.forward_sum(x, delta)?,
            None => (x.clone(), self.attention_norm.forward(x)?),
        };
        let attended = self.attention.forward(&normed)?;
        let (x, normed) = self.mlp_norm.forward_sum(&x, &attended)?;
        let (up, down) = &self.mlp;
        Ok((x, down.forward(&up.forward(&normed)?)?))
    }
}

impl ClipAttention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = self.module.enter();
        self.output.forward(&self.attend.forward(&self.qkv.forward(x)?)?)
    }
}

/// The transformer.
pub struct Clip {
    module: Op,
    class: Tensor,
    /// The class token's position and the grid's, `[1 + grid^2, width]`, for each side of a grid.
    positions: Vec<Tensor>,
    embed: Pointwise,
    norm: Norm,
    layers: Vec<ClipLayer>,
    add_mlp: Pointwise,
    /// Part of the published weights and of the model's size; never run.
    _patches: Tensor,
}

impl Clip {
    /// Builds for grids of `sides` features.
    pub fn new(site: &Site, spec: &Spec, sides: &[usize]) -> Result<Self> {
        let Spec { width, grid, .. } = *spec;
        let embeddings = site.pp("embeddings");
        let small = Init::Randn { mean: 0.0, stdev: 0.02 };
        let table = embeddings.get((grid * grid + 1, width), "position_embedding.weight", small)?;
        let (class, square) = (
            table.narrow(0, 0, 1)?,
            table.narrow(0, 1, grid * grid)?.reshape((grid, grid, width))?,
        );
        let positions = |&side: &usize| {
            Tensor::cat(&[&class, &resample::grid(&square, side)?.flatten(0, 1)?], 0)
        };
        Ok(Self {
            module: site.module(),
            class: embeddings.get(width, "class_embedding", small)?,
            positions: sides.iter().map(positions).collect::<Result<_>>()?,
            embed: Pointwise::new(&embeddings),
            norm: Norm::layer(&site.pp("pre_layrnorm"), width, EPS)?,
            layers: (0..spec.layers)
                .map(|layer| {
                    ClipLayer::new(&site.part("layers", "transformer.layers").pp(layer), spec)
                })
                .collect::<Result<_>>()?,
            add_mlp: Pointwise::new(&site.pp("add_mlp")),
            _patches: embeddings.get((width, 3, PATCH, PATCH), "patch_embedding.weight", small)?,
        })
    }

    /// Features `[batch, grid^2, width]` of SAM's features of the same shape, without the class
    /// token.
    pub fn forward(&self, features: &Tensor) -> Result<Tensor> {
        let _scope = self.module.enter();
        let (batch, places, width) = features.dims3()?;
        let Some(positions) = self.positions.iter().find(|table| table.dims()[0] == places + 1)
        else {
            candle_core::bail!("no positions were built for {places} features");
        };
        let x = self.embed.run(&[features, &self.class, positions], || {
            let class = self.class.expand((batch, 1, width))?;
            Tensor::cat(&[&class, features], 1)?.broadcast_add(positions)
        })?;
        let (mut x, mut delta) = (self.norm.forward(&x)?, None);
        for layer in &self.layers {
            let (sum, fed) = layer.forward(&x, delta.as_ref())?;
            (x, delta) = (sum, Some(fed));
        }
        if let Some(delta) = delta {
            x = self.add_mlp.add(&x, &delta)?;
        }
        x.narrow(1, 1, places)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use candle_core::{DType, Device};
    use candle_nn::VarBuilder;

    use super::*;
    use crate::{record::Recorder, weights};

    const SPEC: Spec = Spec { width: 4, layers: 2, heads: 2, mlp: 8, grid: 2 };

    /// Layers whose weights are zero: they return their input.
    fn idle_layers() -> Result<HashMap<String, Tensor>> {
        let mut tensors = HashMap::new();
        let mut insert = |name: &str, shape: &[usize], value: f64| -> Result<()> {
            let tensor = (Tensor::ones(shape, DType::F32, &Device::Cpu)? * value)?;
            tensors.insert(name.to_owned(), tensor);
            Ok(())
        };
        insert("embeddings.class_embedding", &[4], 9.0)?;
        insert("embeddings.position_embedding.weight", &[5, 4], 0.0)?;
        insert("embeddings.patch_embedding.weight", &[4, 3, PATCH, PATCH], 0.0)?;
        for norm in
            ["pre_layrnorm", "transformer.layers.0.layer_norm1", "transformer.layers.0.layer_norm2"]
        {
            insert(&format!("{norm}.weight"), &[4], 1.0)?;
            insert(&format!("{norm}.bias"), &[4], 0.5)?;
        }
        for (linear, inputs, outputs) in [
            ("self_attn.qkv_proj", 4, 12),
            ("self_attn.out_proj", 4, 4),
            ("mlp.fc1", 4, 8),
            ("mlp.fc2", 8, 4),
        ] {
            insert(&format!("transformer.layers.0.{linear}.weight"), &[outputs, inputs], 0.0)?;
            insert(&format!("transformer.layers.0.{linear}.bias"), &[outputs], 0.0)?;
        }
        // Only the position of the second place is the negative of SAM's features there.
        let positions = [[0f32; 4], [0.0; 4], [-8.0, -4.0, -2.0, 0.0], [0.0; 4], [0.0; 4]];
        tensors.insert(
            "embeddings.position_embedding.weight".to_owned(),
            Tensor::new(&positions, &Device::Cpu)?,
        );
        Ok(tensors)
    }

    #[test]
    fn idle_layers_return_the_normalised_embedding_of_each_place() -> anyhow::Result<()> {
        let weights = VarBuilder::from_tensors(idle_layers()?, DType::F32, &Device::Cpu);
        let spec = Spec { layers: 1, ..SPEC };
        let clip = Clip::new(&Site::root(weights, Recorder::new()), &spec, &[2])?;
        let features = Tensor::new(&[[[8f32, 4.0, 2.0, 0.0]; 4]], &Device::Cpu)?;
        let output = clip.forward(&features)?.squeeze(0)?.to_vec2::<f32>()?;
        // Mean 3.5, variance 8.75: (x - 3.5) / 2.958 + 0.5.
        let normed = [2.02128, 0.669031, -0.00709, -0.683216];
        for (place, output) in output.iter().enumerate() {
            let expected = if place == 1 { [0.5; 4] } else { normed };
            assert!(
                output.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4),
                "{place}: {output:?}"
            );
        }
        Ok(())
    }

    #[test]
    fn a_grid_of_another_size_is_refused() -> anyhow::Result<()> {
        let site = Site::root(weights::synthetic(5, DType::F32, &Device::Cpu), Recorder::new());
        let clip = Clip::new(&site, &SPEC, &[2, 3])?;
        let features = |places: usize| Tensor::ones((1, places, 4), DType::F32, &Device::Cpu);
        assert_eq!(clip.forward(&features(9)?)?.dims(), [1, 9, 4]);
        assert!(clip.forward(&features(16)?).is_err());
        Ok(())
    }
}

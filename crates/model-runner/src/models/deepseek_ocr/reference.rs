//! The whole image side compared with an independent one: `tests/fixtures/vision/reference.py`,
//! numpy in float64.
//!
//! Grids are both larger and smaller than in the learned tables, so that resampling is compared
//! too.

use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::{Init, VarBuilder, var_builder::SimpleBackend};
use llmprof_core::{
    domain::model::{ClipSpec, SamSpec, VisionSpec as Spec},
    trace::event::ImageViews,
};

use super::vision::Vision;
use crate::{module_scope::Site, preprocess::PageTensors, record::Recorder};

const EXPECTED: &str = include_str!("../../../../../tests/fixtures/vision/expected.json");
const CROPS: (usize, usize) = (2, 1);
const HIDDEN: usize = 4;

fn spec() -> Spec {
    let sam = SamSpec {
        patch: 4,
        width: 8,
        layers: 3,
        heads: 2,
        mlp: 12,
        window: 3,
        global_layers: vec![1],
        image_px: 40,
        neck: 6,
        downsample: [8, 10],
    };
    let clip = ClipSpec { width: 10, layers: 2, heads: 2, mlp: 14, grid: 4 };
    Spec { image_token: 0, global_px: 48, crop_px: 20, min_crops: 2, max_crops: 9, sam, clip }
}

/// A number in -1..1 from a name (FNV-1a) and an index (splitmix64): the same as the reference's.
fn uniform(name: &str, index: usize) -> f64 {
    let hash = name.bytes().fold(0xcbf29ce484222325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100000001b3)
    });
    let z = hash.wrapping_add((index as u64 + 1).wrapping_mul(0x9e3779b97f4a7c15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
    ((z ^ (z >> 31)) >> 40) as f64 / f64::from(1 << 23) - 1.0
}

/// Weights derived from their names, with norms and biases, so that a missing one is detected.
struct NamedWeights;

impl SimpleBackend for NamedWeights {
    fn get(&self, shape: Shape, name: &str, _: Init, _: DType, device: &Device) -> Result<Tensor> {
        let fan_in: usize = shape.dims().iter().skip(1).product();
        let value = |number: f64| match shape.rank() {
            _ if name.contains("pos") => number,
            1 if name.ends_with("weight") => 1.0 + 0.25 * number,
            1 => 0.25 * number,
            _ => number * (3.0 / fan_in as f64).sqrt(),
        };
        Tensor::from_iter((0..shape.elem_count()).map(|i| value(uniform(name, i)) as f32), device)?
            .reshape(shape)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("{name}: a named tensor needs a shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

fn page(spec: &Spec) -> Result<PageTensors> {
    let (wide, high) = CROPS;
    let pixels = |name: &str, count: usize, side: usize| {
        let values = (0..count * 3 * side * side).map(|i| uniform(name, i) as f32);
        Tensor::from_iter(values, &Device::Cpu)?.reshape((count, 3, side, side))
    };
    let views = ImageViews {
        width: (wide * spec.crop_px) as u32,
        height: (high * spec.crop_px) as u32,
        global_px: spec.global_px as u32,
        crop_px: spec.crop_px as u32,
        crops_wide: wide as u32,
        crops_high: high as u32,
        tokens: spec.tokens(wide, high) as u64,
    };
    Ok(PageTensors {
        views,
        global: pixels("global", 1, spec.global_px)?,
        crops: Some(pixels("crops", wide * high, spec.crop_px)?),
    })
}

#[test]
fn the_image_side_equals_an_independent_one() -> anyhow::Result<()> {
    let spec = spec();
    let weights = VarBuilder::from_backend(Box::new(NamedWeights), DType::F32, Device::Cpu);
    let root = Site::root(weights, Recorder::new());
    let vision = Vision::new(&root.part("vision", "model"), &spec, HIDDEN)?;
    let vectors = vision.forward(&page(&spec)?)?.to_vec2::<f32>()?;
    let expected: Vec<Vec<f32>> = serde_json::from_str(EXPECTED)?;
    assert_eq!(vectors.len(), expected.len());
    for (place, (vector, expected)) in vectors.iter().zip(&expected).enumerate() {
        let far = vector.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far < 2e-5, "place {place}: {vector:?}, expected {expected:?}");
    }
    Ok(())
}

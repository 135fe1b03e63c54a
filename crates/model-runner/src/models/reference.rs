//! The decoder compared with Hugging Face transformers: fixtures of `tests/reference/make.py`, on
//! the CPU in f32.
//!
//! Each is a folder as published, read as a user's folder is, and compared with transformers'
//! logits after a prompt and after each further token.

use std::{collections::HashMap, fs, path::Path};

use candle_core::{DType, Device, Tensor};
use llmprof_core::domain::model::{DecoderSpec as Spec, hf};

use super::decoder::{Decoder, KvCache};
use crate::{module_scope::Site, ops::Room, record::Recorder, weights};

/// Maximum error of any number of an output, as a share of the largest absolute value of the
/// expected output.
const TOLERANCE: f32 = 1e-4;
/// Tokens that the reference reads at once; it reads the others one by one.
const PROMPT: usize = 23;

/// A small model, and the outputs of transformers with it.
pub struct Fixture {
    /// The text of `config.json`, or of `dimensions.json` for parts without a published one.
    pub description: String,
    pub root: Site<'static>,
    expected: HashMap<String, Tensor>,
}

impl Fixture {
    pub fn open(name: &str, description: &str) -> anyhow::Result<Self> {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/fixtures");
        let weights = weights::load(&fixtures.join(name), DType::F32, &Device::Cpu)?;
        Ok(Self {
            description: fs::read_to_string(fixtures.join(name).join(description))?,
            root: Site::root(weights, Recorder::silent()),
            expected: candle_core::safetensors::load(
                fixtures.join(format!("{name}.safetensors")),
                &Device::Cpu,
            )?,
        })
    }

    pub fn tensor(&self, name: &str) -> &Tensor {
        self.expected.get(name).unwrap_or_else(|| panic!("the fixture has no {name}"))
    }
}

/// The largest difference as a share of the largest expected value; NaN if an output is.
pub fn distance(got: &Tensor, expected: &Tensor) -> candle_core::Result<f32> {
    assert_eq!(got.dims(), expected.dims());
    let (got, expected) =
        (got.flatten_all()?.to_vec1::<f32>()?, expected.flatten_all()?.to_vec1::<f32>()?);
    let largest = expected.iter().map(|value| value.abs()).fold(0.0, f32::max);
    let differences =
        got.iter().zip(&expected).map(|(got, expected)| (got - expected).abs() / largest);
    // NaN is the largest in this order, so it is not lost.
    Ok(differences.max_by(f32::total_cmp).unwrap_or(f32::NAN))
}

/// Fails unless all of `got` is within [`TOLERANCE`] of `expected`.
pub fn assert_close(got: &Tensor, expected: &Tensor, name: &str) -> candle_core::Result<()> {
    let far = distance(got, expected)?;
    assert!(far <= TOLERANCE, "{name} is off by {far:e} of the largest value");
    Ok(())
}

fn decoder(fixture: &Fixture) -> anyhow::Result<Spec> {
    Ok(hf::parse_config("fixture", &fixture.description)?.decoder)
}

/// The logits after each part of the fixture's text.
fn logits(fixture: &Fixture, spec: &Spec, parts: &[usize]) -> candle_core::Result<Vec<Tensor>> {
    let tokens = fixture.tensor("tokens");
    let room = Room::of_one(tokens.dim(0)?);
    let decoder = Decoder::new(&fixture.root, spec, room)?;
    let mut cache = KvCache::new(spec, room, DType::F32, &Device::Cpu)?;
    let mut start = 0;
    let mut read = |&part: &usize| {
        let x = decoder.embed(&tokens.narrow(0, start, part)?)?;
        start += part;
        cache.cursor.read(&[part])?;
        decoder.forward(&x, &mut cache)?.get(0)
    };
    parts.iter().map(&mut read).collect()
}

/// Compares `name` with its logits, read as by the reference, and at once.
fn assert_agrees(name: &str) -> anyhow::Result<()> {
    let fixture = Fixture::open(name, "config.json")?;
    let spec = decoder(&fixture)?;
    let (expected, length) = (fixture.tensor("logits"), fixture.tensor("tokens").dim(0)?);
    let mut parts = vec![PROMPT];
    parts.resize(1 + length - PROMPT, 1);
    let stepped = logits(&fixture, &spec, &parts)?;
    assert_eq!(stepped.len(), expected.dim(0)?);
    for (step, got) in stepped.iter().enumerate() {
        assert_close(got, &expected.get(step)?, &format!("{name}: step {step}"))?;
    }
    let last = expected.get(length - PROMPT)?;
    for parts in [&[length][..], &[10, PROMPT - 10, length - PROMPT]] {
        let whole = logits(&fixture, &spec, parts)?;
        assert_close(
            &whole[parts.len() - 1],
            &last,
            &format!("{name}: read in {} parts", parts.len()),
        )?;
    }
    Ok(())
}

#[test]
fn llama_with_grouped_heads_and_a_tied_head_equals_transformers() -> anyhow::Result<()> {
    assert_agrees("llama")
}

#[test]
fn llama_3_with_stretched_positions_equals_transformers() -> anyhow::Result<()> {
    assert_agrees("llama3")
}

#[test]
fn qwen2_with_biases_equals_transformers() -> anyhow::Result<()> {
    assert_agrees("qwen2")
}

#[test]
fn qwen3_with_normalised_queries_and_keys_equals_transformers() -> anyhow::Result<()> {
    assert_agrees("qwen3")
}

#[test]
fn the_mixture_of_experts_equals_transformers() -> anyhow::Result<()> {
    assert_agrees("deepseek-ocr-text")
}

#[test]
fn leaving_out_a_feature_of_a_model_is_detected() -> anyhow::Result<()> {
    type SpecChange = fn(&mut Spec);
    let changes: [(&str, SpecChange); 4] = [
        ("llama3", |spec| spec.rope_scaling = None),
        ("qwen2", |spec| spec.qkv_bias = false),
        ("qwen3", |spec| spec.qk_norm = false),
        ("deepseek-ocr-text", |spec| spec.moe.as_mut().expect("a mixture").norm_topk = true),
    ];
    for (name, change) in changes {
        let fixture = Fixture::open(name, "config.json")?;
        let mut spec = decoder(&fixture)?;
        change(&mut spec);
        let far =
            distance(&logits(&fixture, &spec, &[PROMPT])?[0], &fixture.tensor("logits").get(0)?)?;
        assert!(far > 100.0 * TOLERANCE, "{name} is off by {far:e} only");
    }
    Ok(())
}

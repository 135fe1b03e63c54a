//! Proofs by the shapes and dtypes of products with weights, if all products of a stage are
//! recorded.

use std::collections::BTreeMap;

use llmprof_core::domain::model::DecoderSpec;

use super::{Claim, Refutation};
use crate::{
    operators::products::{ProductCalls, WeightProduct},
    stages::{PREFILL, in_sentence},
};

/// Weights of a decoder's layer that no engine fuses with another weight.
struct LayerWeight {
    name: &'static str,
    inputs: u64,
    outputs: u64,
    layers: u64,
}

/// The output projections of attention and of the dense SwiGLU.
fn layer_weights(it: &DecoderSpec) -> [LayerWeight; 2] {
    let dense = it.moe.as_ref().map_or(it.layers, |moe| moe.first_layer.min(it.layers));
    let [hidden, heads, inter] = [it.hidden, it.heads * it.head_dim, it.intermediate];
    let weight = |name, inputs: usize, layers: usize| LayerWeight {
        name,
        inputs: inputs as u64,
        outputs: hidden as u64,
        layers: layers as u64,
    };
    [
        weight("output projection of attention", heads, it.layers),
        weight("down projection of the MLP", inter, dense),
    ]
}

impl LayerWeight {
    /// Rows of a product with this weight, also of the transposed product.
    fn rows(&self, of: &WeightProduct) -> Option<u64> {
        let is = |inputs, outputs| of.inputs == inputs && outputs == self.outputs;
        match () {
            () if is(self.inputs, of.outputs) => Some(of.rows),
            () if is(self.inputs, of.rows) => Some(of.outputs),
            () => None,
        }
    }

    /// Calls, and rows of all calls.
    fn sums(&self, products: &ProductCalls) -> (u64, u64) {
        let matching = products.iter().filter_map(|(it, calls)| Some((self.rows(it)?, *calls)));
        matching.fold((0, 0), |(all, rows), (of_call, calls)| {
            (all + calls, rows.saturating_add(of_call.saturating_mul(calls)))
        })
    }
}

/// A weight of the model that no product of the stage has.
pub fn weights(claim: &Claim, stage: &str) -> Option<Refutation> {
    let products = claim.analysis.operators.products.get(stage).filter(|it| !it.is_empty())?;
    let weights = layer_weights(&claim.stated.model.decoder);
    let missing = weights.iter().find(|it| it.layers > 0 && it.sums(products).0 == 0)?;
    let mut flops: BTreeMap<(u64, u64), f64> = BTreeMap::new();
    for (it, calls) in products {
        *flops.entry((it.inputs, it.outputs)).or_default() += it.flops() * *calls as f64;
    }
    let ((inputs, outputs), _) = flops.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let stated = format!("{} x {}", missing.inputs, missing.outputs);
    let found = format!("{inputs} x {outputs}");
    let stage = in_sentence(stage);
    Some(Refutation(format!(
        "no product of {stage} has its {} of {stated}; most FLOPs are of weights of {found}",
        missing.name
    )))
}

/// Calls and rows that do not fit the layers and tokens.
pub fn rows(claim: &Claim, stage: &str) -> Option<Refutation> {
    let products = claim.analysis.operators.products.get(stage)?;
    let products = Some(products).filter(|_| claim.analysis.only_traced)?;
    let [attention, mlp] = layer_weights(&claim.stated.model.decoder);
    let all_layers = claim.stated.model.decoder.layers as u64;
    // Attention's input projections may have the shape of its output projection.
    if mlp.layers != all_layers || mlp.inputs == attention.inputs || mlp.inputs == mlp.outputs {
        return None;
    }
    let (calls, rows) = mlp.sums(products);
    // An engine pads the rows of its steps to sizes of its own.
    if claim.work.step_loads(stage).is_some() {
        let is_other = !calls.is_multiple_of(mlp.layers) && !claim.speculates();
        return is_other.then(|| {
            Refutation(format!(
                "{} has {calls} products with the {}, not a multiple of the model's {} layers",
                in_sentence(stage),
                mlp.name,
                mlp.layers
            ))
        });
    }
    let forwards = claim.forwards(stage)?;
    let tokens = claim.tokens(stage);
    let needed = tokens.checked_mul(mlp.layers)?.checked_mul(forwards)?;
    let most = padded(tokens).checked_mul(mlp.layers)?.checked_mul(forwards)?;
    if calls == 0 || (calls.is_multiple_of(mlp.layers) && (needed..=most).contains(&rows)) {
        return None;
    }
    let each = |count: u64| {
        let mean = count as f64 / forwards as f64;
        if mean.fract() == 0.0 { format!("{mean:.0}") } else { format!("{mean:.1}") }
    };
    let unit = if stage == PREFILL { "instance" } else { "step" };
    let stage = in_sentence(stage);
    Some(Refutation(format!(
        "each {unit} of {stage} has {} products with the {}, of {} rows together, and the \
             statement is {} layers and {}",
        each(calls),
        mlp.name,
        each(rows),
        mlp.layers,
        if tokens == 1 { "1 token".to_owned() } else { format!("{tokens} tokens") }
    )))
}

/// The largest size to which engines pad a number of tokens: sizes of graphs differ by up to 64.
fn padded(tokens: u64) -> u64 {
    match tokens {
        0..=8 => tokens.next_power_of_two(),
        9..=256 => tokens.next_multiple_of(16),
        257..=512 => tokens.next_multiple_of(32),
        _ => tokens.checked_next_multiple_of(64).unwrap_or(u64::MAX),
    }
}

/// A dtype of most FLOPs other than the stated one.
pub fn dtype(claim: &Claim) -> Option<Refutation> {
    let mut flops: BTreeMap<&str, f64> = BTreeMap::new();
    for (it, calls) in claim.analysis.operators.products.values().flatten() {
        *flops.entry(&it.dtype).or_default() += it.flops() * *calls as f64;
    }
    let (found, _) = flops.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let stated = claim.stated.dtype.to_string();
    (!found.is_empty() && found != stated)
        .then(|| Refutation(format!("its products are in {found}, not in {stated}")))
}

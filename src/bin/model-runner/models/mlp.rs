//! The feed-forward halves of a layer: SwiGLU, and a mixture of SwiGLU experts.
//!
//! The mixture groups tokens by expert on the host: one product per expert that was hit, none for the others.

use candle_core::{DType, Device, Result, Tensor};
use llmprof::model::{Decoder as Spec, Moe as MoeSpec};

use crate::{
    ops::{Activation, Function, Linear, Pointwise, Softmax},
    record::{Op, Recorder},
    site::Site,
};

/// `down(silu(gate(x)) * up(x))`.
pub struct SwiGlu {
    module: Op,
    gate: Linear,
    up: Linear,
    down: Linear,
    silu: Activation,
    product: Pointwise,
}

impl SwiGlu {
    pub fn new(site: &Site, hidden: usize, intermediate: usize) -> Result<Self> {
        Ok(Self {
            module: site.module(),
            gate: Linear::new(&site.pp("gate_proj"), hidden, intermediate, false)?,
            up: Linear::new(&site.pp("up_proj"), hidden, intermediate, false)?,
            down: Linear::new(&site.pp("down_proj"), intermediate, hidden, false)?,
            silu: Activation::new(&site.pp("act_fn"), Function::Silu),
            product: Pointwise::new(&site.pp("product")),
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = self.module.enter();
        let gate = self.silu.forward(&self.gate.forward(x)?)?;
        self.down.forward(&self.product.mul(&gate, &self.up.forward(x)?)?)
    }
}

/// Softmax router, greedy top-k, routed experts, and shared experts fused into one SwiGLU.
pub struct Moe {
    module: Op,
    router: Linear,
    softmax: Softmax,
    top_k: Pointwise,
    gather: Pointwise,
    combine: Pointwise,
    experts: Vec<SwiGlu>,
    shared: Option<(SwiGlu, Pointwise)>,
    spec: MoeSpec,
    layer: usize,
    recorder: Recorder,
}

/// Which tokens go to which expert.
#[derive(Debug, PartialEq)]
struct Routes {
    /// Assignments (`token * top_k + choice`) in order of expert, then of token.
    order: Vec<u32>,
    /// Experts that were hit, each with its number of tokens, in the order of `order`.
    hit: Vec<(usize, usize)>,
}

impl Routes {
    fn new(chosen: &[usize], experts: usize) -> Self {
        let mut order: Vec<u32> = (0..chosen.len() as u32).collect();
        order.sort_by_key(|&assignment| chosen[assignment as usize]);
        let mut counts = vec![0; experts];
        chosen.iter().for_each(|&expert| counts[expert] += 1);
        let hit = counts.into_iter().enumerate().filter(|&(_, tokens)| tokens > 0).collect();
        Self { order, hit }
    }

    /// The token of each assignment in `order`.
    fn tokens(&self, top_k: usize) -> Vec<u32> {
        self.order.iter().map(|assignment| assignment / top_k as u32).collect()
    }

    /// Where each assignment stands in `order`.
    fn places(&self) -> Vec<u32> {
        let mut places = vec![0; self.order.len()];
        self.order.iter().enumerate().for_each(|(place, &assignment)| places[assignment as usize] = place as u32);
        places
    }
}

impl Moe {
    pub fn new(site: &Site, spec: &Spec, moe: &MoeSpec, layer: usize) -> Result<Self> {
        let experts = (0..moe.experts)
            .map(|e| SwiGlu::new(&site.pp("experts").pp(e), spec.hidden, moe.intermediate))
            .collect::<Result<_>>()?;
        let shared = (moe.shared > 0)
            .then(|| SwiGlu::new(&site.pp("shared_experts"), spec.hidden, moe.shared * moe.intermediate))
            .transpose()?
            .map(|shared| (shared, Pointwise::new(&site.pp("add_shared"))));
        Ok(Self {
            module: site.module(),
            router: Linear::new(&site.pp("gate"), spec.hidden, moe.experts, false)?,
            softmax: Softmax::new(&site.pp("gate.softmax")),
            top_k: Pointwise::new(&site.pp("gate.top_k")),
            gather: Pointwise::new(&site.pp("experts.gather")),
            combine: Pointwise::new(&site.pp("experts.combine")),
            experts,
            shared,
            spec: moe.clone(),
            layer,
            recorder: site.recorder().clone(),
        })
    }

    /// Forward of `x` `[1, tokens, hidden]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = self.module.enter();
        let routed = self.routed(&x.squeeze(0)?)?.unsqueeze(0)?;
        match &self.shared {
            Some((shared, add)) => add.add(&routed, &shared.forward(x)?),
            None => Ok(routed),
        }
    }

    fn routed(&self, x: &Tensor) -> Result<Tensor> {
        let (tokens, hidden) = x.dims2()?;
        let top_k = self.spec.top_k;
        let (weights, routes) = self.route(x)?;
        self.recorder.experts(self.layer, routes.hit.len(), self.spec.experts);

        let index = |places: Vec<u32>, device: &Device| Tensor::from_vec(places, tokens * top_k, device);
        let sorted = index(routes.tokens(top_k), x.device())?;
        let sorted = self.gather.run(&[x, &sorted], || x.index_select(&sorted, 0))?;
        let mut start = 0;
        let mut outputs = Vec::with_capacity(routes.hit.len());
        for &(expert, count) in &routes.hit {
            outputs.push(self.experts[expert].forward(&sorted.narrow(0, start, count)?)?);
            start += count;
        }
        let places = index(routes.places(), x.device())?;
        // Each token's experts are summed in its order of choice, whatever order they ran in: the sum is the same every time.
        self.combine.run(&[&sorted, &weights], || {
            let outputs = Tensor::cat(&outputs, 0)?.index_select(&places, 0)?.reshape((tokens, top_k, hidden))?;
            outputs.broadcast_mul(&weights)?.sum(1)
        })
    }

    /// Weights of the chosen experts `[tokens, top_k, 1]`, and where the tokens go.
    fn route(&self, x: &Tensor) -> Result<(Tensor, Routes)> {
        let (experts, top_k) = (self.spec.experts, self.spec.top_k);
        let logits = self.router.forward(x)?.to_dtype(DType::F32)?;
        let probabilities = self.softmax.forward(&logits)?;
        let mut chosen = Vec::with_capacity(x.dim(0)? * top_k);
        let weights = self.top_k.run(&[&probabilities], || {
            let host = probabilities.flatten_all()?.to_vec1::<f32>()?;
            let mut weights = Vec::with_capacity(chosen.capacity());
            for row in host.chunks_exact(experts) {
                let best = top(row, top_k);
                let sum: f32 = if self.spec.norm_topk { best.iter().map(|&e| row[e]).sum() } else { 1.0 };
                weights.extend(best.iter().map(|&e| row[e] / sum));
                chosen.extend(best);
            }
            Tensor::from_vec(weights, (host.len() / experts, top_k, 1), x.device())?.to_dtype(x.dtype())
        })?;
        Ok((weights, Routes::new(&chosen, experts)))
    }
}

/// Indices of the `k` largest, largest first; equal ones by index.
fn top(row: &[f32], k: usize) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..row.len()).collect();
    indices.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    indices.truncate(k);
    indices
}

/// A layer's feed-forward half.
pub enum FeedForward {
    Dense(SwiGlu),
    Mixture(Moe),
}

impl FeedForward {
    /// Builds what `layer` has by the model's dimensions.
    pub fn new(site: &Site, spec: &Spec, layer: usize) -> Result<Self> {
        match &spec.moe {
            Some(moe) if layer >= moe.first_layer => Moe::new(site, spec, moe, layer).map(Self::Mixture),
            _ => SwiGlu::new(site, spec.hidden, spec.intermediate).map(Self::Dense),
        }
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(mlp) => mlp.forward(x),
            Self::Mixture(moe) => moe.forward(x),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_first_and_ties_keep_their_order() {
        assert_eq!(top(&[0.1, 0.4, 0.1, 0.4], 3), [1, 3, 0]);
    }

    #[test]
    fn routes_group_tokens_by_expert_and_lead_back() {
        // Two tokens, two choices each: the first goes to experts 2 and 0, the second to 0 and 1.
        let routes = Routes::new(&[2, 0, 0, 1], 4);
        assert_eq!(routes, Routes { order: vec![1, 2, 3, 0], hit: vec![(0, 2), (1, 1), (2, 1)] });
        assert_eq!(routes.tokens(2), [0, 1, 1, 0]);
        assert_eq!(routes.places(), [3, 0, 1, 2]);
    }

    #[test]
    fn the_grouped_mixture_is_the_sum_of_each_tokens_own_experts() -> Result<()> {
        let site = Site::synthetic(3);
        let mut decoder = super::super::tests::decoder();
        for norm_topk in [false, true] {
            let spec = MoeSpec { first_layer: 0, experts: 6, top_k: 3, intermediate: 5, shared: 1, norm_topk };
            decoder.moe = Some(spec.clone());
            let moe = Moe::new(&site, &decoder, &spec, 0)?;
            let x = Tensor::randn(0f32, 1.0, (1, 7, decoder.hidden), &Device::Cpu)?;
            let grouped = moe.forward(&x)?.squeeze(0)?;

            let probabilities = candle_nn::ops::softmax_last_dim(&moe.router.forward(&x.squeeze(0)?)?)?.to_vec2::<f32>()?;
            for (token, row) in probabilities.iter().enumerate() {
                let token_x = x.narrow(1, token, 1)?.squeeze(0)?;
                let mut expected = moe.shared.as_ref().expect("shared").0.forward(&token_x)?;
                let mut ranked: Vec<usize> = (0..6).collect();
                ranked.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).expect("finite"));
                let sum: f32 = ranked[..3].iter().map(|&e| row[e]).sum();
                for &e in &ranked[..3] {
                    let weight = if norm_topk { row[e] / sum } else { row[e] };
                    expected = (expected + (moe.experts[e].forward(&token_x)? * f64::from(weight))?)?;
                }
                let difference = (grouped.narrow(0, token, 1)? - expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
                assert!(difference < 1e-5, "token {token} differs by {difference}");
            }
        }
        Ok(())
    }
}

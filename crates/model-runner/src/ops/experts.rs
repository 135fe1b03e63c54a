//! Experts of a mixture, routed and shared.
//!
//! Shared experts, which every token uses with weight one, are numbered after the routed ones and
//! run with them. On a GPU they run without the host.

use std::{cell::Cell, collections::BTreeSet, rc::Rc};

use candle_core::{D, Device, Result, Tensor};
use candle_nn::Init;
use llmprof_core::domain::model::MoeSpec as Spec;

use super::{gate, matmul_flops, router::Routes};
use crate::{
    module_scope::Site,
    record::{Op, OperatorOutput, OperatorWork},
};

/// SwiGLU experts of one width, routed and shared.
pub struct Experts {
    /// Gates and ups, `[experts + shared, 2 * width, hidden]`.
    up: Tensor,
    /// `[experts + shared, hidden, width]`
    down: Tensor,
    routed: usize,
    op: Op,
}

impl Experts {
    /// Builds `experts.N`, and `shared_experts` with all `shared` of them in one, each with
    /// `gate_proj`, `up_proj` and `down_proj`.
    pub fn new(site: &Site, hidden: usize, spec: &Spec) -> Result<Self> {
        let Spec { experts, shared, intermediate: width, .. } = *spec;
        let get = |site: &Site, name: &str, outputs: usize, inputs: usize| {
            let init = Init::Randn { mean: 0.0, stdev: (inputs as f64).sqrt().recip() };
            site.pp(name).get((outputs, inputs), "weight", init)
        };
        let (mut ups, mut downs) =
            (Vec::with_capacity(experts + shared), Vec::with_capacity(experts + shared));
        for expert in 0..experts {
            let site = site.pp("experts").pp(expert);
            ups.push(Tensor::cat(
                &[get(&site, "gate_proj", width, hidden)?, get(&site, "up_proj", width, hidden)?],
                0,
            )?);
            downs.push(get(&site, "down_proj", hidden, width)?);
        }
        if shared > 0 {
            // A SwiGLU of several widths is the sum of as many of one width.
            let site = site.pp("shared_experts");
            let gates = get(&site, "gate_proj", shared * width, hidden)?;
            let all_ups = get(&site, "up_proj", shared * width, hidden)?;
            let all_downs = get(&site, "down_proj", hidden, shared * width)?;
            for part in 0..shared {
                let rows = |t: &Tensor| t.narrow(0, part * width, width);
                ups.push(Tensor::cat(&[rows(&gates)?, rows(&all_ups)?], 0)?);
                downs.push(all_downs.narrow(1, part * width, width)?.contiguous()?);
            }
        }
        let (up, down) = (Tensor::stack(&ups, 0)?, Tensor::stack(&downs, 0)?);
        Ok(Self { up, down, routed: experts, op: site.part("experts", "").op("experts") })
    }

    /// Bytes of the weights of `distinct` routed experts, and of the shared ones.
    pub fn bytes_of(&self, distinct: usize) -> u64 {
        let experts = self.up.dims()[0];
        let shared = experts - self.routed;
        (distinct + shared) as u64 * (self.up.bytes() + self.down.bytes()) / experts as u64
    }

    /// The weighted sum of each row's experts, of `x` `[tokens, hidden]`, and the number of
    /// distinct routed experts, if the host knows it. If it does not, `later` will have the bytes
    /// that were read of them.
    pub fn forward(
        &self,
        x: &Tensor,
        routes: &Routes,
        later: &Rc<Cell<u64>>,
    ) -> Result<(Tensor, Option<usize>)> {
        let (tokens, hidden) = x.dims2()?;
        let (width, shared) = (self.down.dim(2)?, self.down.dim(0)? - self.routed);
        let (slots, distinct) = match routes {
            Routes::Host { ids, .. } => {
                let distinct: BTreeSet<usize> =
                    ids.iter().copied().filter(|&id| id < self.routed).collect();
                (ids.len() / tokens, Some(distinct.len()))
            }
            #[cfg(feature = "cuda")]
            Routes::Device { ids, .. } => (ids.dim(1)?, None),
        };
        // One token uses as many experts as it chooses; experts of several tokens are only in the
        // log.
        let known = distinct.or((tokens == 1).then_some(slots - shared));
        let work = OperatorWork {
            flops: 3 * matmul_flops(1, tokens * slots, hidden, width),
            read: x.bytes() + known.map_or(0, |known| self.bytes_of(known)),
            deferred: known.is_none().then(|| Rc::clone(later)),
            ..OperatorWork::default()
        };
        let mixed = self.op.call_with_work(&[x, &self.up, &self.down], work, || match routes {
            Routes::Host { ids, weights } => self.run_on_host(x, ids, weights),
            #[cfg(feature = "cuda")]
            Routes::Device { ids, weights } => {
                let args =
                    crate::gpu::ExpertsArgs { x, up: &self.up, down: &self.down, ids, weights };
                gpu_kernel!(experts(&args));
                candle_core::bail!(
                    "no kernel runs experts of {:?} after a router on the GPU",
                    x.dtype()
                )
            }
        })?;
        Ok((mixed, known))
    }

    /// One product per hit expert.
    fn run_on_host(&self, x: &Tensor, ids: &[usize], weights: &Tensor) -> Result<Tensor> {
        let (tokens, hidden) = x.dims2()?;
        let slots = ids.len() / tokens;
        let order = ExpertOrder::new(ids, self.down.dim(0)?);
        let index = |places: Vec<u32>, device: &Device| Tensor::from_vec(places, ids.len(), device);
        let sorted = x.index_select(&index(order.tokens(slots), x.device())?, 0)?;
        let mut start = 0;
        let mut outputs = Vec::with_capacity(order.hit.len());
        for &(expert, count) in &order.hit {
            let rows = sorted.narrow(0, start, count)?;
            let gated = gate(&rows.matmul(&self.up.get(expert)?.t()?)?)?;
            outputs.push(gated.matmul(&self.down.get(expert)?.t()?)?);
            start += count;
        }
        // Each token's experts are summed in its order of choice, independent of the order in which
        // they ran, so that the sum is reproducible.
        let outputs =
            Tensor::cat(&outputs, 0)?.index_select(&index(order.places(), x.device())?, 0)?;
        outputs
            .reshape((tokens, slots, hidden))?
            .broadcast_mul(&weights.unsqueeze(D::Minus1)?)?
            .sum(1)
    }
}

/// The tokens of each expert.
#[derive(Debug, PartialEq)]
struct ExpertOrder {
    /// Assignments (`token * slots + choice`) in order of expert, then of token.
    order: Vec<u32>,
    /// Hit experts, each with its number of tokens, in the order of `order`.
    hit: Vec<(usize, usize)>,
}

impl ExpertOrder {
    fn new(chosen: &[usize], experts: usize) -> Self {
        let mut order: Vec<u32> = (0..chosen.len() as u32).collect();
        order.sort_by_key(|&assignment| chosen[assignment as usize]);
        let mut counts = vec![0; experts];
        chosen.iter().for_each(|&expert| counts[expert] += 1);
        let hit = counts.into_iter().enumerate().filter(|&(_, tokens)| tokens > 0).collect();
        Self { order, hit }
    }

    /// The token of each assignment in `order`.
    fn tokens(&self, slots: usize) -> Vec<u32> {
        self.order.iter().map(|assignment| assignment / slots as u32).collect()
    }

    /// The position of each assignment in `order`.
    fn places(&self) -> Vec<u32> {
        let mut places = vec![0; self.order.len()];
        self.order
            .iter()
            .enumerate()
            .for_each(|(place, &assignment)| places[assignment as usize] = place as u32);
        places
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Cursor, Router},
        *,
    };

    #[test]
    fn an_order_groups_tokens_by_expert_and_is_invertible() {
        // Two tokens, two choices each: the first chooses experts 2 and 0, the second 0 and 1.
        let order = ExpertOrder::new(&[2, 0, 0, 1], 4);
        assert_eq!(
            order,
            ExpertOrder { order: vec![1, 2, 3, 0], hit: vec![(0, 2), (1, 1), (2, 1)] }
        );
        assert_eq!(order.tokens(2), [0, 1, 1, 0]);
        assert_eq!(order.places(), [3, 0, 1, 2]);
    }

    fn spec() -> Spec {
        Spec { first_layer: 0, experts: 6, top_k: 3, intermediate: 5, shared: 2, norm_topk: false }
    }

    #[test]
    fn the_grouped_mixture_equals_the_sum_of_each_tokens_experts() -> Result<()> {
        let site = Site::synthetic(3);
        for norm_topk in [false, true] {
            let spec = Spec { norm_topk, ..spec() };
            let (router, experts) =
                (Router::new(&site.pp("gate"), 16, &spec, 8)?, Experts::new(&site, 16, &spec)?);
            let x = Tensor::randn(0f32, 1.0, (7, 16), &Device::Cpu)?;
            let routes = router.forward(&x, &Cursor::new(1, 1, &Device::Cpu)?)?;
            let (grouped, _) = experts.forward(&x, &routes, &Rc::default())?;

            let logits = x.matmul(&router.weight.borrow().t()?)?;
            let probabilities = candle_nn::ops::softmax_last_dim(&logits)?.to_vec2::<f32>()?;
            let swiglu = |x: &Tensor, expert: usize| {
                let both = x.matmul(&experts.up.get(expert)?.t()?)?;
                (both.narrow(1, 0, 5)?.silu()? * both.narrow(1, 5, 5)?)?
                    .matmul(&experts.down.get(expert)?.t()?)
            };
            for (token, row) in probabilities.iter().enumerate() {
                let token_x = x.narrow(0, token, 1)?;
                let mut expected = (swiglu(&token_x, 6)? + swiglu(&token_x, 7)?)?;
                let mut ranked: Vec<usize> = (0..6).collect();
                ranked.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).expect("finite"));
                let sum: f32 = ranked[..3].iter().map(|&e| row[e]).sum();
                for &e in &ranked[..3] {
                    let weight = if norm_topk { row[e] / sum } else { row[e] };
                    expected = (expected + (swiglu(&token_x, e)? * f64::from(weight))?)?;
                }
                let difference = (grouped.narrow(0, token, 1)? - expected)?
                    .abs()?
                    .max_all()?
                    .to_scalar::<f32>()?;
                assert!(difference < 1e-5, "token {token} differs by {difference}");
            }
        }
        Ok(())
    }
}

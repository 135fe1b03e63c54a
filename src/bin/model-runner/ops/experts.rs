//! A mixture of experts: the router, and the experts that it sends each token to.
//!
//! Shared experts, which every token goes to with weight one, are numbered after the routed ones and run with them. On a GPU nothing is
//! asked of the host; which experts were hit is read from a log when the repeat is over.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    rc::Rc,
};

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::Init;
use llmprof::model::Moe as Spec;

use super::{Cursor, gate, matmul_flops};
use crate::{
    record::{Op, Outcome, Work},
    site::Site,
};

/// The experts of each token, in the order of its choice and then the shared ones, and what each counts.
pub enum Routes {
    Host {
        /// `[tokens * slots]`
        ids: Vec<usize>,
        /// `[tokens, slots]` in the activations' type.
        weights: Tensor,
    },
    #[cfg(feature = "cuda")]
    Device { ids: Tensor, weights: Tensor },
}

impl Outcome for Routes {
    fn bytes(&self) -> u64 {
        match self {
            Self::Host { weights, .. } => weights.bytes() + weights.elem_count() as u64 * 4,
            #[cfg(feature = "cuda")]
            Self::Device { ids, weights } => ids.bytes() + weights.bytes(),
        }
    }

    fn dtype(&self) -> DType {
        DType::F32
    }
}

/// Softmax over a token's logits, then the largest, greedily.
pub struct Router {
    /// `[experts, hidden]`; changes only while it is balanced.
    weight: RefCell<Tensor>,
    spec: Spec,
    /// On a GPU, the experts chosen at each position, `[capacity, top_k]`.
    log: Option<Tensor>,
    op: Op,
}

impl Router {
    /// Builds from `weight` `[experts, hidden]`, for texts of up to `capacity` tokens.
    pub fn new(site: &Site, hidden: usize, spec: &Spec, capacity: usize) -> Result<Self> {
        let init = Init::Randn { mean: 0.0, stdev: (hidden as f64).sqrt().recip() };
        let weight = RefCell::new(site.get((spec.experts, hidden), "weight", init)?);
        let log = || Tensor::zeros((capacity, spec.top_k), DType::U32, site.device());
        let log = site.device().is_cuda().then(log).transpose()?;
        Ok(Self { weight, spec: spec.clone(), log, op: site.op("router") })
    }

    /// The experts of each row of `x` `[tokens, hidden]`.
    pub fn forward(&self, x: &Tensor, cursor: &Cursor) -> Result<Routes> {
        let (tokens, hidden) = x.dims2()?;
        let weight = self.weight.borrow();
        self.op.call(&[x, &weight], matmul_flops(1, tokens, hidden, self.spec.experts), || {
            #[cfg(feature = "cuda")]
            if let (Some((position, _)), Some(log)) = (cursor.on_device(), &self.log) {
                let Spec { top_k, shared, norm_topk: normalise, .. } = self.spec;
                let args = crate::gpu::RouteArgs { x, weight: &weight, position, log, top_k, shared, normalise };
                if let Some((ids, weights)) = crate::gpu::route(&args)? {
                    return Ok(Routes::Device { ids, weights });
                }
            }
            self.route_on_host(x, &weight, cursor)
        })
    }

    fn route_on_host(&self, x: &Tensor, weight: &Tensor, cursor: &Cursor) -> Result<Routes> {
        let Spec { experts, top_k, shared, norm_topk, .. } = self.spec;
        let logits = x.matmul(&weight.t()?)?.to_dtype(DType::F32)?;
        let probabilities = candle_nn::ops::softmax_last_dim(&logits)?.flatten_all()?.to_vec1::<f32>()?;
        let tokens = probabilities.len() / experts;
        let mut ids = Vec::with_capacity(tokens * (top_k + shared));
        let mut weights = Vec::with_capacity(ids.capacity());
        for row in probabilities.chunks_exact(experts) {
            let best = top(row, top_k);
            let sum: f32 = if norm_topk { best.iter().map(|&e| row[e]).sum() } else { 1.0 };
            weights.extend(best.iter().map(|&e| row[e] / sum));
            weights.extend(std::iter::repeat_n(1.0, shared));
            ids.extend(best);
            ids.extend(experts..experts + shared);
        }
        if let Some(log) = &self.log {
            let routed = ids.chunks_exact(top_k + shared).flat_map(|ids: &[usize]| ids[..top_k].iter().map(|&id| id as u32));
            log.slice_set(&Tensor::from_iter(routed, x.device())?.reshape((tokens, top_k))?, 0, cursor.position())?;
        }
        let weights = Tensor::from_vec(weights, (tokens, top_k + shared), x.device())?.to_dtype(x.dtype())?;
        Ok(Routes::Host { ids, weights })
    }

    /// Takes from each expert's weights what all rows of `x` have in common, so that a synthetic router tells tokens apart and does not
    /// send them all to the same few experts.
    pub fn balance(&self, x: &Tensor) -> Result<()> {
        let x = x.to_dtype(DType::F32)?;
        let common = x.mean(0)?;
        let length = common.sqr()?.sum_all()?.to_scalar::<f32>()?;
        // One token has nothing but what it has in common with itself.
        if x.dim(0)? < 2 || length == 0.0 {
            return Ok(());
        }
        let weight = self.weight.borrow().to_dtype(DType::F32)?;
        let along = (weight.matmul(&common.unsqueeze(1)?)? / f64::from(length))?;
        let balanced = (weight - along.broadcast_mul(&common.unsqueeze(0)?)?)?;
        let dtype = self.weight.borrow().dtype();
        self.weight.replace(balanced.to_dtype(dtype)?);
        Ok(())
    }

    /// Experts that each forward of the last text hit, by the log of a GPU: forwards are given as ranges of positions.
    pub fn hit(&self, forwards: &[std::ops::Range<usize>]) -> Result<Vec<BTreeSet<u32>>> {
        let Some(log) = &self.log else { return Ok(Vec::new()) };
        let rows = log.to_vec2::<u32>()?;
        let distinct = |range: &std::ops::Range<usize>| rows[range.clone()].iter().flatten().copied().collect();
        Ok(forwards.iter().map(distinct).collect())
    }
}

/// SwiGLU experts of one width, routed and shared.
pub struct Experts {
    /// Gates and ups, `[experts + shared, 2 * width, hidden]`.
    up: Tensor,
    /// `[experts + shared, hidden, width]`
    down: Tensor,
    routed: usize,
    /// Bytes of the experts that the last prefill hit, once known.
    read: RefCell<Rc<Cell<u64>>>,
    op: Op,
}

impl Experts {
    /// Builds `experts.N` and, `shared` of them in one, `shared_experts`, each with `gate_proj`, `up_proj` and `down_proj`.
    pub fn new(site: &Site, hidden: usize, spec: &Spec) -> Result<Self> {
        let Spec { experts, shared, intermediate: width, .. } = *spec;
        let get = |site: &Site, name: &str, outputs: usize, inputs: usize| {
            let init = Init::Randn { mean: 0.0, stdev: (inputs as f64).sqrt().recip() };
            site.pp(name).get((outputs, inputs), "weight", init)
        };
        let (mut ups, mut downs) = (Vec::with_capacity(experts + shared), Vec::with_capacity(experts + shared));
        for expert in 0..experts {
            let site = site.pp("experts").pp(expert);
            ups.push(Tensor::cat(&[get(&site, "gate_proj", width, hidden)?, get(&site, "up_proj", width, hidden)?], 0)?);
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
        Ok(Self { up, down, routed: experts, read: RefCell::default(), op: site.part("experts", "").op("experts") })
    }

    /// Bytes of one expert's weights.
    fn expert_bytes(&self) -> u64 {
        (self.up.bytes() + self.down.bytes()) / self.up.dims()[0] as u64
    }

    /// The weighted sum of each row's experts, of `x` `[tokens, hidden]`; with the number of distinct routed experts, where the host
    /// knows it.
    pub fn forward(&self, x: &Tensor, routes: &Routes) -> Result<(Tensor, Option<usize>)> {
        let (tokens, hidden) = x.dims2()?;
        let (width, shared) = (self.down.dim(2)?, self.down.dim(0)? - self.routed);
        let (slots, distinct) = match routes {
            Routes::Host { ids, .. } => {
                let distinct: BTreeSet<usize> = ids.iter().copied().filter(|&id| id < self.routed).collect();
                (ids.len() / tokens, Some(distinct.len()))
            }
            #[cfg(feature = "cuda")]
            Routes::Device { ids, .. } => (ids.dim(1)?, None),
        };
        // One token goes to as many experts as it chooses; what many go to is known to the log alone.
        let known = distinct.or((tokens == 1).then_some(slots - shared));
        let late = known.is_none().then(Rc::default);
        if let Some(late) = &late {
            self.read.replace(Rc::clone(late));
        }
        let work = Work {
            flops: 3 * matmul_flops(1, tokens * slots, hidden, width),
            read: x.bytes() + known.map_or(0, |known| (known + shared) as u64 * self.expert_bytes()),
            late,
            ..Work::default()
        };
        let mixed = self.op.call_doing(&[x, &self.up, &self.down], work, || match routes {
            Routes::Host { ids, weights } => self.run_on_host(x, ids, weights),
            #[cfg(feature = "cuda")]
            Routes::Device { ids, weights } => {
                let args = crate::gpu::ExpertsArgs { x, up: &self.up, down: &self.down, ids, weights };
                gpu_kernel!(experts(&args));
                candle_core::bail!("experts of {:?} cannot run where their router did", x.dtype())
            }
        })?;
        Ok((mixed, known))
    }

    /// Notes what the log says of the last prefill.
    pub fn settle(&self, distinct: usize) {
        let shared = self.up.dims()[0] - self.routed;
        self.read.borrow().set((distinct + shared) as u64 * self.expert_bytes());
    }

    /// One product per expert that was hit, none for the others.
    fn run_on_host(&self, x: &Tensor, ids: &[usize], weights: &Tensor) -> Result<Tensor> {
        let (tokens, hidden) = x.dims2()?;
        let slots = ids.len() / tokens;
        let order = Order::new(ids, self.down.dim(0)?);
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
        // Each token's experts are summed in its order of choice, whatever order they ran in: the sum is the same every time.
        let outputs = Tensor::cat(&outputs, 0)?.index_select(&index(order.places(), x.device())?, 0)?;
        outputs.reshape((tokens, slots, hidden))?.broadcast_mul(&weights.unsqueeze(D::Minus1)?)?.sum(1)
    }
}

/// Which tokens go to which expert.
#[derive(Debug, PartialEq)]
struct Order {
    /// Assignments (`token * slots + choice`) in order of expert, then of token.
    order: Vec<u32>,
    /// Experts that were hit, each with its number of tokens, in the order of `order`.
    hit: Vec<(usize, usize)>,
}

impl Order {
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

    /// Where each assignment stands in `order`.
    fn places(&self) -> Vec<u32> {
        let mut places = vec![0; self.order.len()];
        self.order.iter().enumerate().for_each(|(place, &assignment)| places[assignment as usize] = place as u32);
        places
    }
}

/// Indices of the `k` largest, largest first; equal ones by index.
fn top(row: &[f32], k: usize) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..row.len()).collect();
    indices.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    indices.truncate(k);
    indices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_first_and_ties_keep_their_order() {
        assert_eq!(top(&[0.1, 0.4, 0.1, 0.4], 3), [1, 3, 0]);
    }

    #[test]
    fn an_order_groups_tokens_by_expert_and_leads_back() {
        // Two tokens, two choices each: the first goes to experts 2 and 0, the second to 0 and 1.
        let order = Order::new(&[2, 0, 0, 1], 4);
        assert_eq!(order, Order { order: vec![1, 2, 3, 0], hit: vec![(0, 2), (1, 1), (2, 1)] });
        assert_eq!(order.tokens(2), [0, 1, 1, 0]);
        assert_eq!(order.places(), [3, 0, 1, 2]);
    }

    fn spec() -> Spec {
        Spec { first_layer: 0, experts: 6, top_k: 3, intermediate: 5, shared: 2, norm_topk: false }
    }

    #[test]
    fn the_grouped_mixture_is_the_sum_of_each_tokens_own_experts() -> Result<()> {
        let site = Site::synthetic(3);
        for norm_topk in [false, true] {
            let spec = Spec { norm_topk, ..spec() };
            let (router, experts) = (Router::new(&site.pp("gate"), 16, &spec, 8)?, Experts::new(&site, 16, &spec)?);
            let x = Tensor::randn(0f32, 1.0, (7, 16), &Device::Cpu)?;
            let routes = router.forward(&x, &Cursor::new(1, &Device::Cpu)?)?;
            let (grouped, _) = experts.forward(&x, &routes)?;

            let logits = x.matmul(&router.weight.borrow().t()?)?;
            let probabilities = candle_nn::ops::softmax_last_dim(&logits)?.to_vec2::<f32>()?;
            let swiglu = |x: &Tensor, expert: usize| {
                let both = x.matmul(&experts.up.get(expert)?.t()?)?;
                (both.narrow(1, 0, 5)?.silu()? * both.narrow(1, 5, 5)?)?.matmul(&experts.down.get(expert)?.t()?)
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
                let difference = (grouped.narrow(0, token, 1)? - expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
                assert!(difference < 1e-5, "token {token} differs by {difference}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_balanced_router_ignores_what_all_tokens_have_in_common() -> Result<()> {
        let router = Router::new(&Site::synthetic(3), 64, &Spec { experts: 32, ..spec() }, 8)?;
        let common = (Tensor::randn(0f32, 1.0, (1, 64), &Device::Cpu)? * 5.0)?;
        let x = Tensor::randn(0f32, 1.0, (200, 64), &Device::Cpu)?.broadcast_add(&common)?;
        let distinct = |router: &Router| -> Result<usize> {
            let ids = match router.forward(&x, &Cursor::new(1, &Device::Cpu)?)? {
                Routes::Host { ids, .. } => ids,
                #[cfg(feature = "cuda")]
                Routes::Device { .. } => Vec::new(),
            };
            Ok(ids.into_iter().filter(|&id| id < 32).collect::<BTreeSet<_>>().len())
        };
        let before = distinct(&router)?;
        router.balance(&x)?;
        let after = distinct(&router)?;
        assert!(before < 20 && after == 32, "{before} of 32 before, {after} after");
        Ok(())
    }
}

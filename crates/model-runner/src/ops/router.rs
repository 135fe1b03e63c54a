//! The router of a mixture of experts: the experts of each token, and their weights.
//!
//! On a GPU it runs without the host; the experts that were hit are read from a log after the
//! repeat.

use std::{cell::RefCell, collections::BTreeSet};

use candle_core::{DType, Result, Tensor};
use candle_nn::Init;
use llmprof_core::domain::model::MoeSpec as Spec;

use super::{Cursor, matmul_flops};
use crate::{
    module_scope::Site,
    record::{Op, OperatorOutput},
};

/// The experts of each token, in the order of its choice and then the shared ones, with their
/// weights.
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

impl OperatorOutput for Routes {
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
    /// `[experts, hidden]`; changes only while balancing.
    pub(super) weight: RefCell<Tensor>,
    spec: Spec,
    /// On a GPU, the experts chosen for each token in the order of reading, `[capacity, top_k]`.
    log: Option<Tensor>,
    op: Op,
}

impl Router {
    /// Builds from `weight` `[experts, hidden]`, for up to `capacity` tokens of all sequences.
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
            if let (Some(on_device), Some(log)) = (cursor.on_device(), &self.log) {
                let Spec { top_k, shared, norm_topk: normalise, .. } = self.spec;
                let args = crate::gpu::RouteArgs {
                    x,
                    weight: &weight,
                    row: on_device.sum,
                    log,
                    top_k,
                    shared,
                    normalise,
                };
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
        let probabilities =
            candle_nn::ops::softmax_last_dim(&logits)?.flatten_all()?.to_vec1::<f32>()?;
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
            let routed = ids
                .chunks_exact(top_k + shared)
                .flat_map(|ids: &[usize]| ids[..top_k].iter().map(|&id| id as u32));
            log.slice_set(
                &Tensor::from_iter(routed, x.device())?.reshape((tokens, top_k))?,
                0,
                cursor.tokens(),
            )?;
        }
        let weights =
            Tensor::from_vec(weights, (tokens, top_k + shared), x.device())?.to_dtype(x.dtype())?;
        Ok(Routes::Host { ids, weights })
    }

    /// Subtracts the common component of all rows of `x` from each expert's weights, so that a
    /// synthetic router does not send all tokens to the same few experts.
    pub fn balance(&self, x: &Tensor) -> Result<()> {
        let x = x.to_dtype(DType::F32)?;
        let common = x.mean(0)?;
        let length = common.sqr()?.sum_all()?.to_scalar::<f32>()?;
        // A single token is its own common component.
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

    /// Experts hit by each forward of the last text, by the log of a GPU; forwards are ranges of
    /// its rows.
    pub fn hit(&self, forwards: &[std::ops::Range<usize>]) -> Result<Vec<BTreeSet<u32>>> {
        let Some(log) = &self.log else { return Ok(Vec::new()) };
        let rows = log.to_vec2::<u32>()?;
        let distinct = |range: &std::ops::Range<usize>| {
            rows[range.clone()].iter().flatten().copied().collect()
        };
        Ok(forwards.iter().map(distinct).collect())
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
    use candle_core::Device;

    use super::*;

    #[test]
    fn the_largest_are_first_and_ties_keep_their_order() {
        assert_eq!(top(&[0.1, 0.4, 0.1, 0.4], 3), [1, 3, 0]);
    }

    fn spec() -> Spec {
        Spec { first_layer: 0, experts: 32, top_k: 3, intermediate: 5, shared: 2, norm_topk: false }
    }

    #[test]
    fn a_balanced_router_ignores_the_common_component_of_tokens() -> Result<()> {
        let router = Router::new(&Site::synthetic(3), 64, &spec(), 8)?;
        let common = (Tensor::randn(0f32, 1.0, (1, 64), &Device::Cpu)? * 5.0)?;
        let x = Tensor::randn(0f32, 1.0, (200, 64), &Device::Cpu)?.broadcast_add(&common)?;
        let distinct = |router: &Router| -> Result<usize> {
            let ids = match router.forward(&x, &Cursor::new(1, 1, &Device::Cpu)?)? {
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

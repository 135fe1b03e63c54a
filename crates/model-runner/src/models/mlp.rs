//! The feed-forward halves of a layer: SwiGLU, and a mixture of SwiGLU experts.
//!
//! The model's dimensions determine which of the two a layer has.

use std::{cell::Cell, ops::Range, rc::Rc};

use candle_core::{Result, Tensor};
use llmprof_core::domain::model::{DecoderSpec as Spec, MoeSpec};

use crate::{
    module_scope::Site,
    ops::{Cursor, Experts, GatedLinear, Linear, Router},
    record::{Op, Recorder},
};

/// `down(silu(gate(x)) * up(x))`.
pub struct SwiGlu {
    module: Op,
    up: GatedLinear,
    down: Linear,
}

impl SwiGlu {
    pub fn new(site: &Site, hidden: usize, intermediate: usize) -> Result<Self> {
        Ok(Self {
            module: site.module(),
            up: GatedLinear::new(site, hidden, intermediate)?,
            down: Linear::new(&site.pp("down_proj"), intermediate, hidden, false)?,
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _scope = self.module.enter();
        self.down.forward(&self.up.forward(x)?)
    }
}

/// Softmax router, greedy top-k, and the experts, routed and shared.
pub struct Moe {
    module: Op,
    router: Router,
    experts: Experts,
    layer: usize,
    total: usize,
    recorder: Recorder,
    /// Each forward balances the router first.
    balancing: Cell<bool>,
    /// Bytes of the experts that forwards of many tokens, and of one token of each sequence, have
    /// read: known after a repeat. Steps, which may be replays of one, have the mean.
    prefill_bytes: Rc<Cell<u64>>,
    step_bytes: Rc<Cell<u64>>,
}

impl Moe {
    /// Builds `gate`, `experts.N` and `shared_experts`, for up to `capacity` tokens of all
    /// sequences.
    pub fn new(
        site: &Site,
        spec: &Spec,
        moe: &MoeSpec,
        layer: usize,
        capacity: usize,
    ) -> Result<Self> {
        Ok(Self {
            module: site.module(),
            router: Router::new(&site.pp("gate"), spec.hidden, moe, capacity)?,
            experts: Experts::new(site, spec.hidden, moe)?,
            layer,
            total: moe.experts,
            recorder: site.recorder().clone(),
            balancing: Cell::new(false),
            prefill_bytes: Rc::default(),
            step_bytes: Rc::default(),
        })
    }

    /// Forward of `x` `[rows, hidden]`, which the cursor reads.
    pub fn forward(&self, x: &Tensor, cursor: &Cursor) -> Result<Tensor> {
        let _scope = self.module.enter();
        if self.balancing.get() {
            // Over one text, so that the weights do not depend on the batch.
            let first = cursor.spans().next().map_or(0, |span| span.tokens);
            self.router.balance(&x.narrow(0, 0, first)?)?;
        }
        let routes = self.router.forward(x, cursor)?;
        let bytes = if cursor.reads_one() { &self.step_bytes } else { &self.prefill_bytes };
        let (mixed, distinct) = self.experts.forward(x, &routes, bytes)?;
        if let Some(distinct) = distinct.filter(|_| x.device().is_cpu()) {
            self.recorder.experts(self.layer, distinct, self.total);
        }
        Ok(mixed)
    }

    /// Records the experts hit on a GPU by the forwards of a repeat, a prefill and steps, each with
    /// its number of tokens.
    fn record_experts(&self, forwards: &[usize]) -> Result<()> {
        let mut start = 0;
        let ranges: Vec<Range<usize>> = forwards
            .iter()
            .map(|tokens| {
                start += tokens;
                start - tokens..start
            })
            .collect();
        let hit: Vec<usize> =
            self.router.hit(&ranges)?.into_iter().map(|experts| experts.len()).collect();
        for (forward, &distinct) in hit.iter().enumerate() {
            let step = forward.checked_sub(1).map(|step| step as u32);
            let stage = if step.is_some() { "decode_all" } else { "prefill" };
            self.recorder.experts_of(stage, step, self.layer, distinct, self.total);
        }
        let Some((prefill, steps)) = hit.split_first() else { return Ok(()) };
        self.prefill_bytes.set(self.experts.bytes_of(*prefill));
        let bytes: u64 = steps.iter().map(|&distinct| self.experts.bytes_of(distinct)).sum();
        self.step_bytes.set(bytes / (steps.len() as u64).max(1));
        Ok(())
    }
}

/// A layer's feed-forward half.
pub enum FeedForward {
    Dense(SwiGlu),
    Mixture(Box<Moe>),
}

impl FeedForward {
    /// Builds the half of `layer`, for up to `capacity` tokens of all sequences.
    pub fn new(site: &Site, spec: &Spec, layer: usize, capacity: usize) -> Result<Self> {
        match &spec.moe {
            Some(moe) if layer >= moe.first_layer => {
                Moe::new(site, spec, moe, layer, capacity).map(|moe| Self::Mixture(Box::new(moe)))
            }
            _ => SwiGlu::new(site, spec.hidden, spec.intermediate).map(Self::Dense),
        }
    }

    /// Forward of `x` `[rows, hidden]`, which the cursor reads.
    pub fn forward(&self, x: &Tensor, cursor: &Cursor) -> Result<Tensor> {
        match self {
            Self::Dense(mlp) => mlp.forward(x),
            Self::Mixture(moe) => moe.forward(x, cursor),
        }
    }

    /// Sets whether each forward balances its router first.
    pub fn set_balancing(&self, on: bool) {
        if let Self::Mixture(moe) = self {
            moe.balancing.set(on);
        }
    }

    /// Records the experts that only the GPU knows.
    pub fn record_experts(&self, forwards: &[usize]) -> Result<()> {
        match self {
            Self::Mixture(moe) => moe.record_experts(forwards),
            Self::Dense(_) => Ok(()),
        }
    }
}

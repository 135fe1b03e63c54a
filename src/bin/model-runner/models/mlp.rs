//! The feed-forward halves of a layer: SwiGLU, and a mixture of SwiGLU experts.
//!
//! The model's dimensions determine which of the two a layer has.

use std::{cell::Cell, ops::Range};

use candle_core::{Result, Tensor};
use llmprof::domain::model::{DecoderSpec as Spec, MoeSpec};

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
}

impl Moe {
    /// Builds `gate`, `experts.N` and `shared_experts`, for texts of up to `capacity` tokens.
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
        })
    }

    /// Forward of `x` `[tokens, hidden]`, whose first token is at the cursor.
    pub fn forward(&self, x: &Tensor, cursor: &Cursor) -> Result<Tensor> {
        let _scope = self.module.enter();
        if self.balancing.get() {
            self.router.balance(x)?;
        }
        let routes = self.router.forward(x, cursor)?;
        let (mixed, distinct) = self.experts.forward(x, &routes)?;
        if let Some(distinct) = distinct.filter(|_| x.device().is_cpu()) {
            self.recorder.experts(self.layer, distinct, self.total);
        }
        Ok(mixed)
    }

    /// Records the experts hit by a text on a GPU, of `prompt` tokens at once and `steps` one by
    /// one.
    fn record_experts(&self, prompt: usize, steps: usize) -> Result<()> {
        let forwards: Vec<Range<usize>> = std::iter::once(0..prompt)
            .chain((prompt..prompt + steps).map(|position| position..position + 1))
            .collect();
        for (forward, hit) in self.router.hit(&forwards)?.iter().enumerate() {
            let step = forward.checked_sub(1).map(|step| step as u32);
            let stage = if step.is_some() { "decode_all" } else { "prefill" };
            if step.is_none() && prompt > 1 {
                self.experts.set_prefill_bytes(hit.len());
            }
            self.recorder.experts_of(stage, step, self.layer, hit.len(), self.total);
        }
        Ok(())
    }
}

/// A layer's feed-forward half.
pub enum FeedForward {
    Dense(SwiGlu),
    Mixture(Box<Moe>),
}

impl FeedForward {
    /// Builds the half of `layer`, for texts of up to `capacity` tokens.
    pub fn new(site: &Site, spec: &Spec, layer: usize, capacity: usize) -> Result<Self> {
        match &spec.moe {
            Some(moe) if layer >= moe.first_layer => {
                Moe::new(site, spec, moe, layer, capacity).map(|moe| Self::Mixture(Box::new(moe)))
            }
            _ => SwiGlu::new(site, spec.hidden, spec.intermediate).map(Self::Dense),
        }
    }

    /// Forward of `x` `[tokens, hidden]`, whose first token is at the cursor.
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
    pub fn record_experts(&self, prompt: usize, steps: usize) -> Result<()> {
        match self {
            Self::Mixture(moe) => moe.record_experts(prompt, steps),
            Self::Dense(_) => Ok(()),
        }
    }
}

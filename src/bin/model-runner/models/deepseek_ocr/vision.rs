//! From a page's views to the vectors that the decoder reads.

use candle_core::{Result, Tensor};
use llmprof::model::Vision as Spec;

use crate::{preprocess::Page, record::Recorder, site::Site};

/// SAM, CLIP and the projector, and how their outputs become one sequence.
pub struct Vision {
    recorder: Recorder,
}

impl Vision {
    /// Builds the image side; `site` is `vision` in operator paths and `model` in the weights.
    pub fn new(site: &Site, _: &Spec, _hidden: usize) -> Result<Self> {
        Ok(Self { recorder: site.recorder().clone() })
    }

    /// Vectors of one page, `[views.tokens, hidden]`.
    pub fn forward(&self, page: &Page) -> Result<Tensor> {
        let _vision = self.recorder.range("vision");
        candle_core::bail!("the image side of {} tokens is not built yet", page.views.tokens)
    }
}

//! The scope of a module under construction: its weights, its operator path, and the recorder.
//!
//! Counts the parameters it returns, so that a model's size is measured and not declared. Never
//! computes.

use std::{cell::Cell, fmt::Display, rc::Rc};

use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::{Init, VarBuilder};

use crate::record::{Op, Recorder};

/// Number and bytes of the built parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BuiltSize {
    pub parameters: u64,
    pub bytes: u64,
}

/// A position in the tree of modules.
#[derive(Clone)]
pub struct Site<'a> {
    weights: VarBuilder<'a>,
    path: String,
    recorder: Recorder,
    size: Rc<Cell<BuiltSize>>,
}

impl<'a> Site<'a> {
    /// The root, over all weights.
    pub fn root(weights: VarBuilder<'a>, recorder: Recorder) -> Self {
        Self { weights, path: String::new(), recorder, size: Rc::default() }
    }

    /// The part `name`, in the weights and in operator paths. Dots are allowed.
    pub fn pp(&self, name: impl Display) -> Self {
        let name = name.to_string();
        self.part(&name, &name)
    }

    /// The part named `path` in operator paths and `weights` in the weights; either may be empty.
    pub fn part(&self, path: &str, weights: &str) -> Self {
        let joined = match (self.path.as_str(), path) {
            (whole, "") => whole.to_owned(),
            ("", part) => part.to_owned(),
            (whole, part) => format!("{whole}.{part}"),
        };
        let weights =
            if weights.is_empty() { self.weights.clone() } else { self.weights.pp(weights) };
        Self { weights, path: joined, ..self.clone() }
    }

    /// The tensor `name` of this shape; a synthetic one is drawn from `init`.
    pub fn get(&self, shape: impl Into<Shape>, name: &str, init: Init) -> Result<Tensor> {
        let tensor = self.weights.get_with_hints(shape, name, init)?;
        let size = self.size.get();
        let parameters = tensor.elem_count() as u64;
        self.size.set(BuiltSize {
            parameters: size.parameters + parameters,
            bytes: size.bytes + parameters * tensor.dtype().size_in_bytes() as u64,
        });
        Ok(tensor)
    }

    /// The operator at this position.
    pub fn op(&self, kind: &'static str) -> Op {
        self.recorder.operator(self.path.clone(), kind)
    }

    /// The module at this position: a scope around its parts.
    pub fn module(&self) -> Op {
        self.op("module")
    }

    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    pub fn device(&self) -> &Device {
        self.weights.device()
    }

    pub fn dtype(&self) -> DType {
        self.weights.dtype()
    }

    /// Size of the parameters built so far in the whole tree.
    pub fn size(&self) -> BuiltSize {
        self.size.get()
    }
}

#[cfg(test)]
impl Site<'static> {
    /// A root over synthetic weights on the CPU.
    pub fn synthetic(seed: u64) -> Self {
        Self::root(crate::weights::synthetic(seed, DType::F32, &Device::Cpu), Recorder::silent())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_parameters_are_counted_once_in_the_whole_tree() -> Result<()> {
        let root = Site::synthetic(0);
        root.pp("a").get((3, 4), "weight", Init::Const(1.0))?;
        root.part("b", "model").pp("c").get(5, "bias", Init::Const(0.0))?;
        assert_eq!(root.size(), BuiltSize { parameters: 17, bytes: 68 });
        Ok(())
    }
}

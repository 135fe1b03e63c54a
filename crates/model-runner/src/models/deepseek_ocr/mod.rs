//! DeepSeek-OCR's image side.

mod clip;
#[cfg(test)]
mod reference;
mod resample;
mod sam;
#[cfg(test)]
mod transformers;
pub mod vision;
mod window;

pub use clip::{Clip, ClipLayer};
pub use sam::{Sam, SamBlock};

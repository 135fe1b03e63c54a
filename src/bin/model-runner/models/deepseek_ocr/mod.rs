//! DeepSeek-OCR's image side.

mod attention;
mod clip;
#[cfg(test)]
mod reference;
mod relative;
mod resample;
mod sam;
pub mod vision;
mod window;

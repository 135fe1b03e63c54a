//! DeepSeek-OCR's image side.

mod attention;
mod clip;
mod relative;
mod resample;
mod sam;
pub mod vision;
mod window;

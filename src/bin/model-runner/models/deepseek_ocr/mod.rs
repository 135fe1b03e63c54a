//! DeepSeek-OCR's image side.

pub mod vision;

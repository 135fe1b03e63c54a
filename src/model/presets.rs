//! The bundled models, by name: what service and runner know without a file.
//!
//! Texts of `conf/models/`; who reads them says what is wrong with them.

/// Name and TOML of each bundled model.
pub const PRESETS: &[(&str, &str)] = &[
    ("deepseek-ocr", include_str!("../../conf/models/deepseek-ocr.toml")),
    ("deepseek-ocr-tiny", include_str!("../../conf/models/deepseek-ocr-tiny.toml")),
    ("llama-tiny", include_str!("../../conf/models/llama-tiny.toml")),
    ("qwen3-0.6b", include_str!("../../conf/models/qwen3-0.6b.toml")),
];

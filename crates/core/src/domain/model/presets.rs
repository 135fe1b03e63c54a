//! Bundled models of the service and the runner: the texts of `conf/models/`, unparsed.

/// Name and TOML of each bundled model.
pub const PRESETS: &[(&str, &str)] = &[
    ("deepseek-ocr", include_str!("../../../../../conf/models/deepseek-ocr.toml")),
    ("deepseek-ocr-tiny", include_str!("../../../../../conf/models/deepseek-ocr-tiny.toml")),
    ("llama-tiny", include_str!("../../../../../conf/models/llama-tiny.toml")),
    ("qwen3-0.6b", include_str!("../../../../../conf/models/qwen3-0.6b.toml")),
];

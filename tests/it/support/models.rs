//! Models of tests.

/// A small mixture of experts.
pub const DECODER: &str = r#"
description = "A decoder for tests"
dtype = "f32"
cpu_dtype = "f32"

[decoder]
hidden = 16
layers = 2
heads = 2
kv_heads = 2
head_dim = 8
intermediate = 24
vocab = 300
max_positions = 64
rope_theta = 10000.0
rms_norm_eps = 1e-6
bos_token = 0

[decoder.moe]
first_layer = 1
experts = 4
top_k = 2
intermediate = 8
shared = 1
"#;

//! Kinds of the operators of a framework and of inference engines, by their names.

/// The name without its namespace: `mm` of `aten::mm`.
pub fn base(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name)
}

/// Parts of names of operators that write a KV cache.
const CACHES: [&str; 4] = ["and_cache", "kv_cache", "kvcache", "store_cache"];

/// Kind of an operator, as in the tables of operators.
pub fn kind(name: &str) -> &'static str {
    match base(name) {
        "linear" => "linear",
        "mm" | "addmm" | "bmm" | "baddbmm" | "matmul" | "_grouped_mm" | "einsum" => "matmul",
        it if it.contains("moe") || it.contains("experts") => "moe",
        it if it.contains("scaled_mm") || it.contains("gemm") => "matmul",
        it if it.contains("all_reduce") || it.contains("all_gather") => "collective",
        // Attention that reads a cache.
        it if it.starts_with("fwd_kvcache") || it.contains("mla_decode") => "attention",
        it if CACHES.iter().any(|part| it.contains(part)) => "cache",
        // Flash attention of engines has no other name.
        "fwd" | "varlen_fwd" => "attention",
        it if it.contains("attention") || it.contains("flash_attn") => "attention",
        it if it.contains("norm") && !it.contains("normal") => "norm",
        it if it.contains("softmax") => "softmax",
        "embedding" | "index_select" => "embedding",
        it if it.contains("rotary") || it.contains("rope") => "rope",
        "silu" | "gelu" | "relu" | "sigmoid" | "tanh" => "activation",
        it if it.ends_with("_and_mul") || it == "mul_and_silu" => "activation",
        it if it.contains("conv") => "conv",
        "copy_" | "to" | "_to_copy" | "clone" | "contiguous" | "cat" => "copy",
        _ => "operator",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_of_engines_have_the_kinds_of_their_work() {
        for (name, expected) in [
            ("vllm::unified_attention_with_output", "attention"),
            ("vllm::unified_kv_cache_update", "cache"),
            ("_C_cache_ops::reshape_and_cache_flash", "cache"),
            ("sglang::store_cache", "cache"),
            ("_vllm_fa2_C::varlen_fwd", "attention"),
            ("sgl_kernel::fwd", "attention"),
            ("_flashmla_C::fwd_kvcache_mla", "attention"),
            ("sgl_kernel::cutlass_mla_decode", "attention"),
            ("_C_cache_ops::concat_and_cache_mla", "cache"),
            ("aiter::gemm_a16w16", "matmul"),
            ("vllm::moe_forward", "moe"),
            ("sglang::fused_experts", "moe"),
            ("_C::cutlass_scaled_mm", "matmul"),
            ("_C::rms_norm", "norm"),
            ("sgl_kernel::fused_add_rmsnorm", "norm"),
            ("_C::rotary_embedding", "rope"),
            ("sgl_kernel::silu_and_mul", "activation"),
            ("vllm::all_reduce", "collective"),
            ("aten::mm", "matmul"),
            ("aten::add", "operator"),
        ] {
            assert_eq!(kind(name), expected, "{name}");
        }
    }
}

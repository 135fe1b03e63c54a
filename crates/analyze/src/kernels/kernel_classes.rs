//! Class and library of a kernel, by the name patterns of `conf/kernels.toml`.
//!
//! Kernels that match no pattern are `other`; nothing is guessed.

use std::sync::LazyLock;

use foldhash::HashMap;
use llmprof_core::trace::names::base_name;
use serde::Deserialize;

/// Class of kernels that match no pattern.
pub const OTHER: &str = "other";
/// Classes of kernels that compute products of operands: weights, or keys and values.
const PRODUCTS: [&str; 4] = ["gemm", "attention", "conv", "moe"];

/// Parts of names of kernels in these classes that only pass activations on.
const NO_OPERANDS: [&str; 9] = [
    "splitkreduce",
    "split_k_kernel",
    "im2col",
    "route_",
    "routing",
    "combine_",
    "topkgating",
    "sort_by_expert",
    "prepare_grouped_gemm",
];

/// The work of a class, as the verb of a sentence on a kernel, copy or graph.
pub fn work_of_class(class: &str) -> &'static str {
    match class {
        "gemm" => "multiplies matrices",
        "attention" => "computes attention",
        "norm" => "normalises",
        "softmax" => "computes a softmax",
        "elementwise" => "computes each element on its own",
        "copy" => "copies, fills or converts data",
        "reduce" => "reduces",
        "moe" => "computes or routes experts",
        "sort" => "sorts",
        "conv" => "convolves",
        "collective" => "exchanges data between GPUs",
        "graph" => "replays a graph",
        _ => "does work that its name does not show",
    }
}

/// True for a class of kernels that compute products.
pub fn computes_products(class: &str) -> bool {
    PRODUCTS.contains(&class)
}

/// True for a kernel that reads operands of products: weights, or keys and values.
pub fn reads_operands(class: &str, full_name: &str) -> bool {
    let full = full_name.to_lowercase();
    computes_products(class) && !NO_OPERANDS.iter().any(|part| full.contains(part))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassTable {
    /// Parts of names without a meaning for the work, in lower case.
    libraries: Vec<String>,
    engine: Vec<Pattern>,
    class: Vec<Pattern>,
}

/// Parts of a kernel's name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pattern {
    name: String,
    #[serde(default)]
    any: Vec<String>,
    #[serde(default)]
    all: Vec<String>,
}

static TABLE: LazyLock<ClassTable> = LazyLock::new(|| {
    toml::from_str(include_str!("../../../../conf/kernels.toml"))
        .expect("the table is embedded: a test reads all of it")
});

impl Pattern {
    fn matches(&self, base: &str, full: &str) -> bool {
        Self::holds((&self.any, &self.all), base, full)
    }

    /// Returns true if any of the first parts occurs, or all of the second. Names are lower case.
    pub fn holds((any, all): (&[String], &[String]), base: &str, full: &str) -> bool {
        let holds = |part: &String| match part.strip_prefix('^') {
            Some(prefix) => base.starts_with(prefix),
            None => full.contains(part.as_str()),
        };
        any.iter().any(holds) || (!all.is_empty() && all.iter().all(holds))
    }
}

/// Class of a kernel, and its library if known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelClass {
    pub class: &'static str,
    pub engine: Option<&'static str>,
}

/// Classifies a kernel by its full name.
pub fn classify(full_name: &str) -> KernelClass {
    let full = full_name.to_lowercase();
    let base = base_name(&full);
    let work = TABLE.libraries.iter().fold(full.clone(), |name, it| name.replace(it, ""));
    let first = |patterns: &'static [Pattern], base: &str, full: &str| {
        patterns.iter().find(|it| it.matches(base, full)).map(|it| it.name.as_str())
    };
    KernelClass {
        class: first(&TABLE.class, base_name(&work), &work).unwrap_or(OTHER),
        engine: first(&TABLE.engine, base, &full),
    }
}

/// ClassCache by index of the full name, computed once each.
#[derive(Debug, Default)]
pub struct ClassCache(HashMap<u32, KernelClass>);

impl ClassCache {
    pub fn of(&mut self, full_name: u32, strings: &[String]) -> KernelClass {
        let name = || strings.get(full_name as usize).map_or("", String::as_str);
        *self.0.entry(full_name).or_insert_with(|| classify(name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(full: &str) -> String {
        let KernelClass { class, engine } = classify(full);
        format!("{class} {}", engine.unwrap_or("-"))
    }

    #[test]
    fn kernels_of_many_libraries_are_classified_by_name() {
        for (full, expected) in [
            ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "gemm cublas"),
            ("void cublasLt::splitKreduce_kernel<(int)32, (int)16>(T1)", "gemm cublas"),
            (
                "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_tn_align1>(T1::Params)",
                "gemm cutlass",
            ),
            (
                concat!(
                    "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<",
                    "cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<",
                    "cute::tuple<int>>>>>(T1)",
                ),
                "moe cutlass",
            ),
            (
                "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_kernel0_0",
                "attention cudnn",
            ),
            (
                concat!(
                    "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128>>",
                    "(flash::Flash_fwd_params)",
                ),
                "attention flash-attn",
            ),
            (
                "void <unnamed>::softmax_warp_forward<float, float, float, (int)6>(T2 *)",
                "softmax torch",
            ),
            (
                concat!(
                    "void at::native::vectorized_elementwise_kernel<(int)8, ",
                    "at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase &)>(int)",
                ),
                "copy torch",
            ),
            (
                concat!(
                    "void at::native::vectorized_elementwise_kernel<(int)8, ",
                    "at::native::CUDAFunctor_add<c10::BFloat16>>(int)",
                ),
                "elementwise torch",
            ),
            (
                "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float>>(T3)",
                "reduce torch",
            ),
            ("void vllm::rms_norm_kernel<c10::BFloat16>(T1 *)", "norm vllm"),
            ("void vllm::paged_attention_v2_kernel<unsigned short>(float *)", "attention vllm"),
            ("triton_poi_fused_add_mul_0", "elementwise triton"),
            ("triton_red_fused_mean_1", "reduce triton"),
            (
                concat!(
                    "void at_cuda_detail::cub::detail::radix_sort::",
                    "DeviceRadixSortOnesweepKernel<int>(T1 *)",
                ),
                "sort torch",
            ),
            ("ucopy_bf16", "copy candle"),
            ("usilu_f32", "elementwise candle"),
            ("attend_one_128_bf16", "attention llmprof"),
            ("grouped_up_bf16", "moe llmprof"),
            ("rms_norm_bf16", "norm llmprof"),
            ("something_else", "other -"),
            ("", "other -"),
        ] {
            assert_eq!(label(full), expected, "{full}");
        }
    }

    #[test]
    fn copies_and_fills_of_rocm_are_copies() {
        for name in ["__amd_rocclr_copyBuffer", "__amd_rocclr_fillBufferAligned"] {
            assert_eq!(label(name), "copy -");
        }
    }

    #[test]
    fn the_name_of_a_library_is_not_the_work_of_its_kernels() {
        for (full, expected) in [
            (
                concat!(
                    "void split_embedding_codegen_forward_unweighted_kernel<c10::Half, float, ",
                    "false, long, 2ul>(at::PackedTensorAccessor<float>, fbgemm_gpu::FixedDivisor)",
                ),
                "elementwise torch",
            ),
            (
                "void fbgemm_gpu::permute_2D_data_kernel<false, int, int>(int, int, int const*)",
                "copy -",
            ),
            ("cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1", "conv cudnn"),
            (
                concat!(
                    "void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688fprop_optimized_",
                    "tf32_128x128_32x4_nhwc_align4>(T1::Params)",
                ),
                "conv cutlass",
            ),
            ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512>()", "norm cudnn"),
            ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "collective nccl"),
            (
                "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)",
                "collective nccl",
            ),
            ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(T1 *)", "collective vllm"),
            ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN", "gemm tensile"),
        ] {
            assert_eq!(label(full), expected, "{full}");
        }
    }

    #[test]
    fn products_of_a_matrix_and_a_vector_are_products_in_every_library_and_dtype() {
        for full in [
            "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4>(T13)",
            "void gemvNSP_kernel<float, float, float, float, (int)1, (int)32, (int)4>(T5)",
            "void internal::gemvx::kernel<int, int, __nv_bfloat16, float, (bool)0>(T13)",
            "void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, float>(T1)",
            "void dot_kernel<float, (int)128, (int)0, cublasDotParams<float>>(T4)",
            "cutlass_80_simt_sgemm_32x128_8x5_tn_align1",
            "gemv_bf16",
            "gemv_f32",
            "void mul_mat_vec_q<(ggml_type)12, 1, false>(void const*)",
            "void mul_mat_vec_f<__half, __half, 1, 128>(T1 const*, float const*)",
            "dequantize_mul_mat_vec_q4_0_cuda",
            "void dequantize_mul_mat_vec<1, 1, &convert_q8_0>(void const*, float const*)",
            "void marlin::Marlin<__nv_bfloat16, 1125899906909960l, 256, 1, 8, 8, false>(int4)",
            concat!(
                "void tensorrt_llm::kernels::weight_only::kernel<tensorrt_llm::kernels::",
                "weight_only::KernelDetails<T1>, (int)1, (int)8, (int)128>(T2)",
            ),
            "void awq_gemv_kernel<128>(float4 const*)",
            "void kgemv_4bit_inference_naive<__nv_bfloat16, 128, 16>(int)",
            "_w8a8_triton_block_scaled_mm",
            "_w8a8_block_fp8_matmul",
            "triton_tem_fused_addmm_t_view_3",
            "triton_red_fused_mm_0",
            "triton_per_fused_mv_2",
            "Cijk_Alik_Bljk_BBS_BH_MT16x16x64_MI16x16x16x1_SN",
            "void rocblas_gemvt_warp_reduce_kernel<false, 256, int, float const*>(T1)",
            "void wvSplitK_hf_sml_<__hip_bfloat16, 64, 1, 16, 8, 4, 4>(int, int)",
        ] {
            assert_eq!(classify(full).class, "gemm", "{full}");
            assert!(computes_products(classify(full).class), "{full}");
        }
        for (full, expected) in [
            ("triton_poi_fused_addmm_relu_0", "elementwise"),
            ("triton_red_fused_add_mean_mul_pow_rsqrt_1", "reduce"),
            ("triton_tem_fused_flex_attention_0", "attention"),
            ("triton_tem_fused__to_copy_convolution_view_2", "conv"),
            ("void quantize_q8_1<256>(float const*, void*)", "elementwise"),
            ("void marlin_moe_wna16::Marlin<__half, 1, 256>(int4)", "moe"),
            ("_fwd_grouped_kernel_stage1", "attention"),
            ("mla_a16w16_qh16_m16x4_n16x1_coex0_mask1_ps", "attention"),
            ("void vllm::concat_and_cache_mla_kernel<__nv_bfloat16>(T1 const*)", "copy"),
        ] {
            assert_eq!(classify(full).class, expected, "{full}");
        }
    }

    #[test]
    fn the_table_contains_exactly_the_known_classes() {
        const CLASSES: [&str; 11] = [
            "gemm",
            "attention",
            "norm",
            "softmax",
            "elementwise",
            "copy",
            "reduce",
            "moe",
            "sort",
            "conv",
            "collective",
        ];
        assert!(TABLE.class.iter().all(|it| CLASSES.contains(&it.name.as_str())));
        assert!(CLASSES.iter().all(|name| TABLE.class.iter().any(|it| it.name == *name)));
        let works: Vec<&str> = CLASSES.iter().map(|it| work_of_class(it)).collect();
        let has_words =
            |at: usize| works[at] != work_of_class(OTHER) && !works[..at].contains(&works[at]);
        assert!((0..works.len()).all(has_words), "words of its own for each class: {works:?}");
        let lower = |it: &Pattern| {
            it.any.iter().chain(&it.all).all(|part| *part == part.to_lowercase() && part.len() > 2)
        };
        assert!(TABLE.class.iter().chain(&TABLE.engine).all(lower));
        assert!(TABLE.libraries.iter().all(|it| it.ends_with("::") && *it == it.to_lowercase()));
    }

    #[test]
    fn every_kernel_of_the_runner_has_a_class() {
        let sources = [
            include_str!("../../../model-runner/src/kernels/attention.cu"),
            include_str!("../../../model-runner/src/kernels/attention_grid.cu"),
            include_str!("../../../model-runner/src/kernels/attention_one.cu"),
            include_str!("../../../model-runner/src/kernels/conv.cu"),
            include_str!("../../../model-runner/src/kernels/gemv.cu"),
            include_str!("../../../model-runner/src/kernels/grouped.cu"),
            include_str!("../../../model-runner/src/kernels/moe.cu"),
            include_str!("../../../model-runner/src/kernels/norm.cu"),
            include_str!("../../../model-runner/src/kernels/pointwise.cu"),
            include_str!("../../../model-runner/src/kernels/rope.cu"),
            include_str!("../../../model-runner/src/kernels/sample.cu"),
        ];
        let mut seen = 0;
        for declared in sources.iter().flat_map(|source| source.split("__global__").skip(1)) {
            let mut declared = declared.split_once("void").unwrap().1;
            // Only launch bounds and the shape of a cluster stand between type and name, and they
            // contain no bracket of their own.
            loop {
                declared = declared.trim_start_matches([' ', '\\', '\n']);
                let Some(rest) = ["__launch_bounds__(", "CLUSTER(", "BLOCKS "]
                    .iter()
                    .find_map(|prefix| declared.strip_prefix(prefix))
                else {
                    break;
                };
                let bracket = !declared.starts_with("BLOCKS");
                declared = if bracket { rest.split_once(')').unwrap().1 } else { rest };
            }
            let name = declared.split('(').next().unwrap();
            let name = name
                .replace("##DIM##", "128")
                .replace("##SIDE##", "64")
                .replace("##NAME", "bf16")
                .replace("##TOKENS##", "one");
            assert_ne!(classify(&name).class, OTHER, "{name}");
            assert_eq!(classify(&name).engine, Some("llmprof"), "{name}");
            seen += 1;
        }
        assert!(seen >= 20);
    }
}

//! Real logs, and logs that are cut, huge or no logs.

use std::{collections::BTreeMap, path::PathBuf};

use proptest::prelude::*;

use super::*;

fn capture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/captures")
        .join(format!("{name}.zst"));
    zstd::stream::decode_all(std::fs::File::open(path).unwrap()).unwrap()
}

fn cublas(text: &[u8]) -> GemmLog {
    parse_log(text, &mut Cublas::default()).unwrap()
}

fn lt(text: &[u8]) -> GemmLog {
    parse_log(text, &mut CublasLt).unwrap()
}

/// One line per shape and algorithm, with how often it was called.
fn table(log: &GemmLog) -> String {
    let mut counts = BTreeMap::new();
    for call in &log.calls {
        let GemmShape {
            m,
            n,
            k,
            batch,
            left_type,
            right_type,
            out_type,
            left_transposed,
            right_transposed,
            compute,
        } = &call.shape;
        let transposed = |it: &bool| if *it { "T" } else { "N" };
        let (left, right) = (transposed(left_transposed), transposed(right_transposed));
        let types = format!("{left_type} x {right_type} -> {out_type} in {compute}");
        let algorithm = call.algorithm.as_deref().unwrap_or("-");
        let line = format!(
            "{batch} x ({m} x {k}){left} ({k} x {n}){right}, {types}, {}: {algorithm}",
            call.function
        );
        *counts.entry(line).or_insert(0) += 1;
    }
    let lines: Vec<_> = counts.iter().map(|(line, count)| format!("{count:4} {line}")).collect();
    lines.join("\n").replace(", cublas", ",\n     cublas")
}

#[test]
fn candles_products_come_back_in_its_own_terms() {
    let log = cublas(&capture("candle-probe.cublas.log"));
    assert_eq!((log.calls.len(), log.incomplete), (131, 1), "the last call is cut");
    insta::assert_snapshot!(table(&log), @r"
      51 1 x (4096 x 4096)N (4096 x 4096)N, bf16 x bf16 -> bf16 in 32f,
         cublasGemmStridedBatchedEx: -
      36 1 x (512 x 1280)N (1280 x 1280)T, bf16 x bf16 -> bf16 in 32f,
         cublasGemmStridedBatchedEx: -
      17 1 x (512 x 1280)N (1280 x 6848)T, bf16 x bf16 -> bf16 in 32f,
         cublasGemmStridedBatchedEx: -
       8 1 x (512 x 6848)N (6848 x 1280)T, bf16 x bf16 -> bf16 in 32f,
         cublasGemmStridedBatchedEx: -
       1 1 x (584 x 1)N (1 x 64)N, f32 x f32 -> f32 in 32f,
         cublasGemmStridedBatchedEx: -
       9 10 x (512 x 128)N (128 x 512)N, bf16 x bf16 -> bf16 in 32f,
         cublasGemmStridedBatchedEx: -
       9 10 x (512 x 512)N (512 x 128)N, bf16 x bf16 -> bf16 in 32f,
         cublasGemmStridedBatchedEx: -
    ");
}

#[test]
fn torchs_products_come_with_what_was_chosen() {
    let log = lt(&capture("torch.cublaslt.log"));
    assert_eq!((log.calls.len(), log.incomplete), (130, 1), "the last call is cut");
    insta::assert_snapshot!(table(&log), @r"
       2 1 x (1 x 1)N (1 x 64)T, f32 x f32 -> f32 in 32f,
         cublasLtSSSMatmul: algorithm 20, tile 128x32, stages 8x5
      20 1 x (1 x 2048)N (2048 x 1024)T, bf16 x bf16 -> bf16 in 32f,
         cublasLtTSTMatmul: algorithm 66, tile 8x64, stages 64xAUTO, cluster 2x1x1
      20 1 x (1 x 2048)N (2048 x 2048)T, bf16 x bf16 -> bf16 in 32f,
         cublasLtTSTMatmul: algorithm 66, tile 64x8, stages 64xAUTO, cluster 4x1x1
       1 1 x (1 x 2048)N (2048 x 32000)T, bf16 x bf16 -> bf16 in 32f,
         cublasLtTSTMatmul: algorithm 66, tile 256x8, stages 64xAUTO, cluster 2x1x1
      20 1 x (1 x 2048)N (2048 x 5632)T, bf16 x bf16 -> bf16 in 32f,
         cublasLtTSTMatmul: algorithm 66, tile 64x8, stages 64xAUTO, cluster 4x1x1
       9 1 x (1 x 5632)N (5632 x 2048)T, bf16 x bf16 -> bf16 in 32f,
         cublasLtTSTMatmul: algorithm 66, tile 64x8, stages 64xAUTO, cluster 4x1x1, split-K 3
      16 1 x (512 x 2048)N (2048 x 1024)T, bf16 x bf16 -> bf16 in 32f,
         cublasLtTSTMatmul: algorithm 66, tile 64x64, stages 64xAUTO, cluster 2x1x1
      16 1 x (512 x 2048)N (2048 x 2048)T, bf16 x bf16 -> bf16 in 32f,
         cublasLtTSTMatmul: algorithm 66, tile 128x64, stages 64xAUTO, cluster 1x2x1
       1 1 x (512 x 2048)N (2048 x 32000)T, bf16 x bf16 -> bf16 in 32f,
         cublasLtTSTMatmul: algorithm 66, tile 256x128, stages 64xAUTO, cluster 1x2x1
      16 1 x (512 x 2048)N (2048 x 5632)T, bf16 x bf16 -> bf16 in 32f,
         cublasLtTSTMatmul: algorithm 66, tile 176x128, stages 64xAUTO, cluster 1x2x1
       8 1 x (512 x 5632)N (5632 x 2048)T, bf16 x bf16 -> bf16 in 32f,
         cublasLtTSTMatmul: algorithm 66, tile 128x64, stages 64xAUTO, cluster 1x2x1
       1 1 x (64 x 1)N (1 x 512)N, f32 x f32 -> f32 in 32f,
         cublasLtSSSMatmul: algorithm 20, tile 128x32, stages 8x5
    ");
}

#[test]
fn a_call_of_old_has_its_type_in_its_name() {
    let of = |function: &str| {
        let text = format!(
            "I! cuBLAS (v12.0) function cublasStatus_t {function}(cublasHandle_t, int) called:\n\
             i!  transa: type=cublasOperation_t; val=CUBLAS_OP_T(1)\n\
             i!  transb: type=cublasOperation_t; val=CUBLAS_OP_N(0)\n\
             i!  m: type=int; val=3\ni!  n: type=int; val=5\ni!  k: type=int; val=7\n"
        );
        cublas(text.as_bytes())
    };
    let log = of("cublasSgemm_v2");
    assert_eq!(
        table(&log),
        "   1 1 x (5 x 7)N (7 x 3)T, f32 x f32 -> f32 in 32f,\n     cublasSgemm_v2: -"
    );
    // A complex multiply-add is four real ones.
    for (function, dtype, compute, operations) in [
        ("cublasSgemm_v2", "f32", "32f", 2),
        ("cublasDgemm_v2", "f64", "64f", 2),
        ("cublasCgemm_v2", "c_32f", "32f", 8),
        ("cublasZgemm_v2", "c_64f", "64f", 8),
    ] {
        let shape = of(function).calls.remove(0).shape;
        assert_eq!((shape.left_type.as_str(), shape.compute.as_str()), (dtype, compute));
        assert_eq!(shape.flops(), operations * 3 * 5 * 7, "{function}");
    }
}

#[test]
fn grouped_calls_are_counted_without_sizes() {
    let log = String::from_utf8(capture("candle-probe.cublas.log")).unwrap();
    let grouped = log.replacen("cublasGemmStridedBatchedEx(", "cublasGemmGroupedBatchedEx(", 7);
    let (before, after) = (cublas(log.as_bytes()), cublas(grouped.as_bytes()));
    assert_eq!((before.grouped, after.grouped), (0, 7));
    assert_eq!(before.calls[7..], after.calls);
    assert_eq!(before.incomplete, after.incomplete);
}

#[test]
fn a_handle_that_allows_tf32_computes_products_of_f32_in_it() {
    let log = String::from_utf8(capture("candle-probe.cublas.log")).unwrap();
    let of = |mode: &str, compute: &str| {
        let log = log.replace("MathMode=CUBLAS_DEFAULT_MATH", &format!("MathMode={mode}"));
        let log = log.replace("val=CUBLAS_COMPUTE_32F(", &format!("val={compute}("));
        let log = cublas(log.as_bytes());
        let computes = |dtype: &str| -> Vec<String> {
            let calls = log.calls.iter().filter(|it| it.shape.left_type == dtype);
            let mut found: Vec<_> = calls.map(|it| it.shape.compute.clone()).collect();
            found.dedup();
            found
        };
        (computes("f32"), computes("bf16"))
    };
    let one = |compute: &str| vec![compute.to_owned()];
    let tf32 = "CUBLAS_TF32_TENSOR_OP_MATH";
    for (mode, compute, expected, of_bf16) in [
        ("CUBLAS_DEFAULT_MATH", "CUBLAS_COMPUTE_32F", "32f", "32f"),
        (tf32, "CUBLAS_COMPUTE_32F", "32f_fast_tf32", "32f"),
        (tf32, "CUBLAS_COMPUTE_32F_PEDANTIC", "32f_pedantic", "32f_pedantic"),
    ] {
        assert_eq!(of(mode, compute), (one(expected), one(of_bf16)), "{mode} {compute}");
    }
}

#[test]
fn rubbish_gives_no_call_and_no_known_line() {
    let endless = vec![b'x'; 3 * MAX_LINE];
    for text in [&b""[..], b"\n\n", b"hello\n[a][b]\n", b"\xff\xfe\x00", &endless] {
        assert_eq!((cublas(text), lt(text)), (GemmLog::default(), GemmLog::default()));
    }
}

#[test]
fn sizes_that_overflow_saturate() {
    let size = u64::MAX;
    let shape = cublas(&capture("candle-probe.cublas.log")).calls[0].shape.clone();
    assert_eq!(GemmShape { m: size, n: size, k: size, ..shape }.flops(), u64::MAX);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_damaged_log_gives_no_more_than_it_had(
        cut in 0usize..200_000,
        damage in prop::collection::vec((0usize..200_000, any::<u8>()), 0..20),
    ) {
        for name in ["candle-probe.cublas.log", "torch.cublaslt.log"] {
            let mut bytes = capture(name);
            damage.iter().for_each(|&(at, byte)| bytes[at] = byte);
            bytes.truncate(cut);
            prop_assert!(cublas(&bytes).calls.len() <= 152 && lt(&bytes).calls.len() <= 152);
        }
    }
}

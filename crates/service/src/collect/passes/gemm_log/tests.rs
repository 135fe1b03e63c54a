//! Tests of the GEMM log passes.

use std::fs;

use super::*;
use crate::collect::tests::{RUNNER, TestHost, settings};

#[tokio::test]
async fn gemms_are_logged_for_prefill_and_a_few_eager_steps() {
    let host = TestHost::new(
        &format!("{RUNNER}; echo log > \"$CUBLAS_LOGDEST_DBG\"; [ $CUBLASLT_LOG_LEVEL = 5 ]"),
        None,
    );
    let request = RunnerRequest { max_new_tokens: 100, decode_graph: true, ..host.request() };
    host.collector
        .gemm_log(&host.run(), &request, &settings().gemm_log, &host.limits)
        .await
        .unwrap();
    let requests = ["gemm_log/prefill", "gemm_log/all"].map(|pass| host.runner_request(pass));
    assert_eq!(
        requests.clone().map(|it| (it.max_new_tokens, it.repeats, it.warmup, it.decode_graph)),
        [(0, 1, 0, false), (4, 1, 0, false)]
    );
    // The KV cache decides the grids of attention kernels.
    assert_eq!(requests.map(|it| it.cache_tokens), [Some(100); 2]);
    assert!(host.run().join("gemm_log/all/cublas.log").is_file());
    assert!(
        fs::read_to_string(host.run().join("gemm_log/all/cmd.txt"))
            .unwrap()
            .starts_with("CUBLAS_LOGINFO_DBG=1 CUBLAS_LOGDEST_DBG=")
    );
}

#[tokio::test]
async fn a_runner_without_logged_gemms_is_a_failure() {
    let host = TestHost::new(RUNNER, None);
    let error = host
        .collector
        .gemm_log(&host.run(), &host.request(), &settings().gemm_log, &host.limits)
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the model runner exited with code 0 but left no cublas.log: \
         {\"phase\":\"measure\",\"done\":1,\"total\":1}"
    );
}

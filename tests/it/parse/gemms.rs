//! Matrix products of a real PyTorch program: logs of both libraries, joined to its timeline.

use std::{fs, io::Write, path::Path};

use llmprof_analyze::{Analysis, analyze, kernels::gemms::GemmRecord, parse};
use llmprof_core::{
    domain::{device_peaks::Devices, subject::SubjectKind},
    trace::Trace,
};

fn unpacked(name: &str) -> Vec<u8> {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/captures")
        .join(format!("torch-gemms.{name}.zst"));
    zstd::decode_all(fs::File::open(packed).unwrap()).unwrap()
}

/// The analysis of the program with `change`d logs.
fn analysis(change: impl Fn(&Path)) -> Analysis {
    let dir = tempfile::tempdir().unwrap();
    let logs = dir.path().join("gemm_log/processes");
    fs::create_dir_all(&logs).unwrap();
    fs::write(logs.join("cublas_532.log"), unpacked("cublas.log")).unwrap();
    fs::write(logs.join("cublaslt_532.log"), unpacked("cublaslt.log")).unwrap();
    change(&logs);
    let export = dir.path().join("run.sqlite");
    fs::write(&export, unpacked("sqlite")).unwrap();
    let trace = Trace {
        subject: SubjectKind::Command,
        timeline: Some(parse::nsys::read(&export).unwrap()),
        gemms: parse::cublas::read(dir.path()).unwrap(),
        ..Trace::default()
    };
    let devices = Devices::from_toml(include_str!("../../../conf/devices.toml")).unwrap();
    analyze(&trace, None, devices.find("NVIDIA H200"))
}

fn sum(analysis: &Analysis, stage: &str, of: impl Fn(&GemmRecord) -> u64) -> u64 {
    analysis.gemms.records.iter().filter(|it| it.stage == stage).map(of).sum()
}

fn reasons(analysis: &Analysis) -> Vec<&str> {
    let found = analysis.findings.iter().filter(|it| it.id == "gemm_kernels_not_joined");
    found.map(|it| it.message.as_str()).collect()
}

#[test]
fn each_call_of_pytorch_has_the_stage_and_the_time_of_its_kernel() {
    let analysis = analysis(|_| {});
    assert_eq!(reasons(&analysis), [""; 0]);
    for (stage, calls) in [("prefill", 25), ("decode_all", 100), ("", 0)] {
        assert_eq!(sum(&analysis, stage, |it| it.calls), calls, "{stage}, without the warm-up");
        assert_eq!(sum(&analysis, stage, |it| it.kernel_calls.unwrap()), calls, "{stage}");
    }
    // All kernels of GEMMs in both stages are the libraries'.
    for stage in ["prefill", "decode_all"] {
        let classes = analysis.kernels.classes.iter();
        let gemm = classes.filter(|it| it.stage == stage && it.class == "gemm");
        let expected: f64 = gemm.map(|it| it.total_ms).sum();
        let records = analysis.gemms.records.iter().filter(|it| it.stage == stage);
        let found: f64 = records.map(|it| it.kernel_ms.unwrap()).sum();
        assert!((found - expected).abs() < 1e-9 && found > 0.0, "{stage}: {found}, {expected}");
    }
    let up = |m: u64| {
        let records = analysis.gemms.records.iter();
        records.filter(|it| (it.m, it.n, it.k) == (m, 2048, 512)).collect::<Vec<_>>()
    };
    let [prefill] = up(200)[..] else { panic!("{:?}", up(200)) };
    assert_eq!(prefill.function, "cublasLtMatmul", "torch adds the bias by cublasLt");
    assert_eq!(
        prefill.kernel_name.as_deref(),
        Some("nvjet_sm90_tst_64x72_64x12_4x1_v_bz_bias_TNT")
    );
    // 200 of 3 x 72 rows.
    assert_eq!(prefill.tile.as_deref(), Some("72x64x64"));
    assert!((prefill.tile_fill_pct.unwrap() - 100.0 * 200.0 / 216.0).abs() < 1e-9);
    assert_eq!(prefill.ceiling.as_deref(), Some("datasheet"));
    assert!(prefill.ceiling_pct.is_some_and(|pct| (1.0..50.0).contains(&pct)));
    // One row in tiles of eight.
    assert_eq!(up(1)[0].tile_fill_pct, Some(12.5));
}

#[test]
fn logs_with_one_call_more_than_the_timeline_give_shapes_without_stages_and_times() {
    let analysis = analysis(|logs| {
        let path = logs.join("cublaslt_532.log");
        let text = fs::read_to_string(&path).unwrap();
        let last = text.lines().rfind(|line| line.contains("[Trace]")).unwrap().to_owned();
        writeln!(fs::OpenOptions::new().append(true).open(&path).unwrap(), "{last}").unwrap();
    });
    assert_eq!(
        reasons(&analysis),
        ["GEMMs of the command have no kernel times: the log has 201 calls, the timeline 200 \
             GEMM kernels of libraries."]
    );
    assert_eq!(sum(&analysis, "", |it| it.calls), 201);
    assert!(analysis.gemms.records.iter().all(|it| it.stage.is_empty() && it.kernel_ms.is_none()));
}

#[test]
fn logs_of_another_process_are_not_joined_to_this_one() {
    let analysis = analysis(|logs| {
        fs::copy(logs.join("cublas_532.log"), logs.join("cublas_600.log")).unwrap();
    });
    assert_eq!(
        reasons(&analysis),
        ["GEMMs of the command have no kernel times: 2 processes logged GEMMs, 1 of the timeline \
          launched some."]
    );
    assert_eq!(sum(&analysis, "", |it| it.calls), 200 + 168);
}

#[test]
fn a_command_without_gemms_says_so() {
    let analysis = analysis(|logs| {
        fs::remove_file(logs.join("cublas_532.log")).unwrap();
        fs::write(logs.join("cublaslt_532.log"), "rubbish\n").unwrap();
    });
    assert!(analysis.gemms.records.is_empty());
    assert!(analysis.findings.iter().any(|it| it.id == "gemm_log_empty"));
}

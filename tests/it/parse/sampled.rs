//! Sampled metrics of a real capture of an H200 at 10 kHz, and of altered ones.

use std::process::Command;

use serde_json::Value;

use crate::support::captures::capture;

const CAPTURE: &str = "h200-gpu-metrics-10khz";

/// The report of `llmprof analyze` for the capture changed by `sql`.
fn report(sql: &str) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sqlite");
    capture(CAPTURE, &path, sql).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_llmprof"))
        .arg("analyze")
        .arg(&path)
        .args(["--format", "json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn rows<'a>(report: &'a Value, table: &str) -> &'a [Value] {
    report[table].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn ids(report: &Value) -> Vec<&str> {
    let of_samples = |id: &&str| id.starts_with("gpu_metrics");
    let ids = rows(report, "findings").iter().map(|it| it["id"].as_str().unwrap());
    ids.filter(of_samples).collect()
}

/// Stage, kernel, grid, share, samples and values of the longest kernels, a line each.
fn lines(report: &Value) -> String {
    let value = |kernel: &Value, metric: &str| {
        let value = &kernel["metrics"][metric];
        value["pct"].as_f64().map_or("not resolved".to_owned(), |pct| {
            let group = value["is_group_mean"].as_bool().unwrap();
            let group = if group { " (group)" } else { "" };
            format!("{pct:.0}+-{:.0}{group}", value["half_width"].as_f64().unwrap())
        })
    };
    let line = |it: &Value| {
        format!(
            "{} {} {} {:.1} % {}: tensor {}, reads {}",
            it["stage"].as_str().unwrap(),
            it["kernel_name"].as_str().unwrap(),
            it["grid"],
            it["share_pct"].as_f64().unwrap(),
            it["samples"],
            value(it, "tensor_active"),
            value(it, "dram_read")
        )
    };
    rows(report, "sampled_metrics").iter().take(12).map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_real_capture_has_values_of_kernels_and_stages_with_intervals() {
    let report = report("");
    insta::assert_snapshot!(lines(&report), @r#"
    prefill attend_relative_64_bf16 [64,12,1] 19.4 % 22: tensor 18+-3, reads 1+-3
    decode_all expert_up_bf16 [112,8,1] 21.0 % 47: tensor 1+-6, reads 60+-8
    prefill grouped_up_bf16 [14,105,1] 11.0 % 22: tensor 43+-6, reads 72+-10
    decode_all expert_down_bf16 [640,1,1] 14.2 % 47: tensor 1+-9, reads 35+-5 (group)
    decode_all attend_one_128_bf16 [10,10,1] 12.7 % 49: tensor 1+-7 (group), reads 18+-9 (group)
    decode_all gemv_bf16 [16160,1,1] 11.6 % 13: tensor 1+-3, reads 96+-4
    prefill grouped_down_bf16 [10,105,1] 6.3 % 17: tensor 32+-5 (group), reads 64+-5 (group)
    decode_all route_1_bf16 [1,1,1] 10.7 % 46: tensor 1+-10, reads 35+-5 (group)
    prefill relative_64_bf16 [64,12,1] 5.3 % 9: tensor 0+-5, reads 1+-6
    prefill attend_relative_64_bf16 [4,300,1] 4.9 % 13: tensor 19+-7 (group), reads 2+-9 (group)
    decode_all gemv_bf16 [480,1,1] 8.5 % 50: tensor 1+-7 (group), reads 18+-9 (group)
    prefill relative_64_bf16 [14,300,1] 4.0 % 11: tensor 19+-7 (group), reads 2+-9 (group)
    "#);
    let coverage = rows(&report, "gpu_sample_coverage");
    assert_eq!(coverage.len(), 2, "{coverage:#?}");
    for row in coverage {
        assert_eq!((&row["rate_hz"], &row["gaps"]), (&10_000.into(), &0.into()), "{row:#}");
        assert_eq!(row["is_spanned"], true, "{row:#}");
        let [expected, samples] = ["expected", "samples"].map(|it| row[it].as_i64().unwrap());
        assert!((expected - samples).abs() <= 2 + samples / 100, "{row:#}");
    }
    for stage in rows(&report, "sampled_stages") {
        for (metric, value) in stage["metrics"].as_object().unwrap() {
            let part = |name: &str| value[name].as_f64().unwrap();
            let all = part("alone_pct") + part("grouped_pct") + part("unresolved_pct");
            assert!((all - 100.0).abs() < 1e-6, "{metric}: {value:#}");
            assert!(part("pct") >= 0.0 && part("pct") <= 100.0, "{metric}: {value:#}");
        }
    }
    for kernel in rows(&report, "sampled_metrics") {
        for (metric, value) in kernel["metrics"].as_object().unwrap() {
            let width = value["half_width"].as_f64().unwrap();
            assert!((1.0..=10.0).contains(&width), "{metric}: {kernel:#}");
        }
    }
}

#[test]
fn samples_that_are_lost_leave_no_value_and_the_report_is_partial() {
    let overflow = "insert into DIAGNOSTIC_EVENT select 5, timestampType, source, 3, \
                    'GPU Metrics [0]: Sampling buffer overflow', globalPid \
                    from DIAGNOSTIC_EVENT limit 1";
    for (sql, expected) in [
        (overflow, vec!["gpu_metrics_overflowed"]),
        ("delete from GPU_METRICS", vec!["gpu_metrics_empty"]),
        ("delete from CUPTI_ACTIVITY_KIND_KERNEL", vec!["gpu_metrics_without_kernels"]),
        (
            "delete from GPU_METRICS where timestamp > (select max(start) from NVTX_EVENTS where \
             coalesce(text, (select value from StringIds where id = textId)) = 'decode_all')",
            vec!["gpu_metrics_do_not_span"],
        ),
    ] {
        let report = report(sql);
        assert_eq!(report["state"], "partial", "{sql}");
        let found = ids(&report);
        assert!(expected.iter().all(|id| found.contains(id)), "{sql}: {found:?}");
        // An overflow has one finding, not another for each stage.
        let is_overflow = found.contains(&"gpu_metrics_overflowed");
        assert!(!(is_overflow && found.contains(&"gpu_metrics_do_not_span")), "{found:?}");
        let spanned = rows(&report, "gpu_sample_coverage").iter();
        let spanned: Vec<&Value> = spanned.filter(|it| it["is_spanned"] == true).collect();
        for kernel in rows(&report, "sampled_metrics") {
            assert!(spanned.iter().any(|it| it["stage"] == kernel["stage"]), "{sql}: {kernel:#}");
        }
    }
}

/// Adds a second GPU to the capture: the same kernels, and samples of half the values.
const SECOND_GPU: &str = "
    create temp table more as select * from CUPTI_ACTIVITY_KIND_KERNEL;
    update more set deviceId = 1;
    insert into CUPTI_ACTIVITY_KIND_KERNEL select * from more;
    drop table more;
    create temp table more as select * from CUPTI_ACTIVITY_KIND_MEMCPY;
    update more set deviceId = 1;
    insert into CUPTI_ACTIVITY_KIND_MEMCPY select * from more;
    drop table more;
    create temp table more as select * from CUPTI_ACTIVITY_KIND_MEMSET;
    update more set deviceId = 1;
    insert into CUPTI_ACTIVITY_KIND_MEMSET select * from more;
    drop table more;
    create temp table more as select * from GPU_METRICS;
    update more set typeId = typeId + 1;
    update more set value = value / 2 where metricId > 1;
    insert into GPU_METRICS select * from more;
    drop table more;
    create temp table more as select * from TARGET_INFO_GPU_METRICS;
    update more set typeId = typeId + 1;
    insert into TARGET_INFO_GPU_METRICS select * from more;
    drop table more;
    create temp table more as select * from TARGET_INFO_GPU;
    update more set id = 1;
    insert into TARGET_INFO_GPU select * from more;
    insert into TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid)
        select 1, 1, pid from TARGET_INFO_CUDA_DEVICE;";

/// The rows of one device.
fn of_device<'a>(report: &'a Value, table: &str, device: u32) -> Vec<&'a Value> {
    rows(report, table).iter().filter(|it| it["device"] == device).collect()
}

#[test]
fn samples_of_two_devices_are_attributed_to_the_kernels_of_their_own() {
    let (one, two) = (report(""), report(SECOND_GPU));
    for table in ["sampled_metrics", "sampled_stages", "gpu_sample_coverage"] {
        let alone: Vec<&Value> = rows(&one, table).iter().collect();
        assert!(!alone.is_empty() && of_device(&two, table, 0) == alone, "{table}");
        assert_eq!(of_device(&two, table, 1).len(), alone.len(), "{table}");
    }
    for stage in of_device(&two, "sampled_stages", 1) {
        let of_first = of_device(&two, "sampled_stages", 0);
        let of_first = of_first.iter().find(|it| it["stage"] == stage["stage"]).unwrap();
        for (metric, value) in stage["metrics"].as_object().unwrap() {
            let pct = |value: &Value| value["pct"].as_f64().unwrap();
            let expected = pct(&of_first["metrics"][metric]) / 2.0;
            // Whole percents are halved and rounded down.
            assert!((expected - pct(value)).abs() < 1.0, "{metric}: {value:#} {expected}");
        }
    }
    let numbers = format!("{SECOND_GPU} delete from TARGET_INFO_CUDA_DEVICE;");
    let unknown = report(&numbers);
    assert_eq!(
        (&unknown["state"], rows(&unknown, "sampled_metrics").len()),
        (&"partial".into(), 0)
    );
    assert_eq!(ids(&unknown), ["gpu_metrics_refused"]);
}

//! Samples from handmade exports, of one and of two devices.

use std::path::PathBuf;

use rusqlite::Connection;
use tempfile::TempDir;

use super::*;
use crate::parse::nsys;

const EXPORT: &str = "create table META_DATA_EXPORT (name text, value text);
    create table META_DATA_CAPTURE (name text, value text);
    insert into META_DATA_CAPTURE values ('GPU_METRICS_OPTIONS:SAMPLING_FREQUENCY', '20000');
    create table DIAGNOSTIC_EVENT (timestamp int, severity int, text text);
    create table TARGET_INFO_GPU_METRICS (typeId int, metricId int, metricName text);
    insert into TARGET_INFO_GPU_METRICS values
        (0x1000100000000, 0, 'GPC Clock Frequency [MHz]'),
        (0x1000100000000, 4, 'SMs Active [Throughput %]'),
        (0x1000100000000, 5, 'NVLink RX [Throughput %]'),
        (0x1000100000001, 4, 'DRAM Read Bandwidth [Throughput %]');
    create table TARGET_INFO_GPU (id int);
    insert into TARGET_INFO_GPU values (0), (1);
    create table TARGET_INFO_CUDA_DEVICE (gpuId int, cudaId int, pid int);
    insert into TARGET_INFO_CUDA_DEVICE values (0, 0, 7), (1, 1, 7);
    create table GPU_METRICS (rawTimestamp int, timestamp int, typeId int, metricId int, value int);
    insert into GPU_METRICS values
        (0, -50, 0x1000100000000, 0, 1979887500), (0, -50, 0x1000100000000, 4, 0),
        (0, 20, 0x1000100000001, 4, 33), (0, 0, 0x1000100000000, 5, 9),
        (0, 0, 0x1000100000000, 0, 1410), (0, 0, 0x1000100000000, 4, 81),
        (0, 9, 0x1000100000777, 4, 1), (0, 9, 0x1000100000000, 99, 1);";

fn export(more: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sqlite");
    Connection::open(&path).unwrap().execute_batch(&format!("{EXPORT}{more}")).unwrap();
    (dir, path)
}

fn samples(more: &str) -> GpuSamples {
    nsys::read(&export(more).1).unwrap().samples.unwrap()
}

#[test]
fn samples_are_read_by_device_and_metric_in_order_of_time() {
    let samples = samples("");
    assert_eq!(samples.rate_hz, Some(20_000));
    assert_eq!(samples.unread, ["NVLink RX [Throughput %]"]);
    let [first, second] = &samples.devices[..] else { panic!("{samples:?}") };
    assert_eq!((first.device, first.times()), (0, [-50, 0].as_slice()));
    assert_eq!(first.value(0, GpuMetric::SmsActive), Some(0), "zero is a value");
    assert_eq!(first.value(1, GpuMetric::SmsActive), Some(81));
    let clocks = [0, 1].map(|at| first.value(at, GpuMetric::SmClock));
    assert_eq!(clocks, [Some(1980), Some(1410)], "in Hz and in MHz");
    assert_eq!((second.device, second.times()), (1, [20].as_slice()));
    assert_eq!(second.value(0, GpuMetric::DramRead), Some(33));
    assert_eq!(second.value(0, GpuMetric::SmsActive), None);
}

#[test]
fn an_overflow_is_of_the_named_device_or_of_all() {
    let overflowed = |text: &str| {
        let more = format!("insert into DIAGNOSTIC_EVENT values (1, 3, '{text}');");
        samples(&more).devices.iter().map(|it| it.overflowed).collect::<Vec<_>>()
    };
    assert_eq!(overflowed("GPU Metrics [1]: Sampling buffer overflow"), [false, true]);
    assert_eq!(overflowed("GPU Metrics: sampling buffer overflowed"), [true, true]);
    assert_eq!(overflowed("GPU Metrics [1]: Skipping metric X"), [false, false]);
}

#[test]
fn an_export_without_samples_has_none_and_one_without_rows_has_no_device() {
    let none = "drop table GPU_METRICS; drop table TARGET_INFO_GPU_METRICS;
        create table StringIds (id int, value text);";
    assert_eq!(nsys::read(&export(none).1).unwrap().samples, None);
    assert_eq!(samples("delete from GPU_METRICS;").devices, []);
    assert_eq!(samples("drop table META_DATA_CAPTURE;").rate_hz, None);
}

#[test]
fn values_that_are_no_integers_or_impossible_are_left_out_and_counted() {
    let column = "alter table GPU_METRICS drop column timestamp;";
    let error = llmprof_core::chain(&nsys::read(&export(column).1).unwrap_err());
    assert!(error.contains("GPU_METRICS lacks the column timestamp"), "{error}");
    for value in ["'x'", "null", "8.5", "-1", "101", "1e300", "1 << 40"] {
        let samples = samples(&format!("update GPU_METRICS set value = {value} where value = 81;"));
        let device = &samples.devices[0];
        assert_eq!(device.value(1, GpuMetric::SmsActive), None, "{value}");
        assert_eq!(
            (device.value(1, GpuMetric::SmClock), device.invalid),
            (Some(1410), 1),
            "{value}"
        );
    }
    let time = samples("update GPU_METRICS set timestamp = null where value = 81;");
    assert_eq!((time.devices[0].invalid, time.rows), (1, 8));
    let kind = samples("update GPU_METRICS set typeId = null, metricId = 'x' where value = 81;");
    assert_eq!((kind.devices[0].invalid, kind.devices[0].times().len()), (0, 2));
}

#[test]
fn a_clock_of_any_integer_is_read_or_counted_as_invalid() {
    for value in [i64::MAX, i64::MAX - 500_000, i64::MIN, 0, -1] {
        let samples =
            samples(&format!("update GPU_METRICS set value = {value} where value = 1410;"));
        let device = &samples.devices[0];
        assert_eq!(device.value(1, GpuMetric::SmClock), None, "{value}");
        assert_eq!(device.invalid, 1, "{value}");
    }
}

#[test]
fn a_table_of_many_pages_is_read_in_parts_without_loss() {
    let many = "with recursive t(at) as (select 1 union all select at + 1 from t where at < 60000)
        insert into GPU_METRICS select at, at * 50, 0x1000100000000, 4, at % 101 from t;";
    let samples = samples(many);
    let device = &samples.devices[0];
    assert_eq!(device.times().len(), 60_002);
    assert!(device.times().is_sorted());
    let wrong = (1..=60_000u16)
        .filter(|at| device.value(usize::from(*at) + 1, GpuMetric::SmsActive) != Some(at % 101));
    assert_eq!(wrong.count(), 0);
}

#[test]
fn samples_whose_device_is_not_certain_are_refused_with_the_reason() {
    let found = |more: &str| {
        let samples = samples(more);
        let devices: Vec<u32> = samples.devices.iter().map(|it| it.device).collect();
        let refused = samples.refused.iter().map(|it| (it.type_id & DEVICE, it.reason));
        (devices, refused.collect::<Vec<_>>())
    };
    assert_eq!(found(""), (vec![0, 1], vec![]));
    let unknown = found("delete from TARGET_INFO_GPU where id = 1;");
    assert_eq!(unknown, (vec![0], vec![(1, RefusalReason::UnknownGpu)]));
    let source = "insert into TARGET_INFO_GPU_METRICS
            values (0x2000100000001, 4, 'DRAM Read Bandwidth [Throughput %]');
        insert into GPU_METRICS values (0, 20, 0x2000100000001, 4, 99);";
    let several = (1, RefusalReason::SeveralSources);
    assert_eq!(found(source), (vec![0], vec![several, several]));
    let unnumbered = [0, 1].map(|device| (device, RefusalReason::UnknownNumbering));
    assert_eq!(found("delete from TARGET_INFO_CUDA_DEVICE;"), (vec![], unnumbered.to_vec()));
    // One GPU has one number.
    let one = "delete from TARGET_INFO_CUDA_DEVICE; delete from TARGET_INFO_GPU where id = 1;
        delete from GPU_METRICS where typeId & 255 = 1;";
    assert_eq!(found(one), (vec![0], vec![]));
}

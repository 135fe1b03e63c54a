//! Handmade exports with impossible rows or a malicious schema.

use std::{
    fs,
    path::{Path, PathBuf},
};

use llmprof_analyze::parse;
use llmprof_core::domain::ids::RunId;
use llmprof_report::pipeline::{self, Statements};
use llmprof_service::config;
use rusqlite::Connection;
use uuid::Uuid;

use crate::parse::fuzz::{analysed, write};

/// A handmade export with its metadata, extended by `sql`.
fn handmade(dir: &Path, sql: &str) -> PathBuf {
    let path = dir.join("run.sqlite");
    fs::remove_file(&path).ok();
    let facts = "create table META_DATA_EXPORT (name text, value text);
        insert into META_DATA_EXPORT values ('EXPORT_SCHEMA_VERSION', '3.20.3');
        create table NVTX_EVENTS (start int, end int, eventType int, text text, globalTid int,
            textId int, domainId int);
        create table CUPTI_ACTIVITY_KIND_KERNEL (start int, end int, deviceId int, streamId int,
            correlationId int, globalPid int, shortName int, demangledName int,
            registersPerThread int, gridX int, gridY int, gridZ int, blockX int, blockY int,
            blockZ int);
        create table StringIds (id integer primary key, value text);";
    Connection::open(&path).unwrap().execute_batch(&format!("{facts}{sql}")).unwrap();
    path
}

#[test]
fn impossible_times_are_dropped_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let kernel = |times: &str| {
        format!(
            "insert into CUPTI_ACTIVITY_KIND_KERNEL
             values ({times}, 0, 7, 1, 0, 1, 1, 32, 1, 1, 1, 1, 1, 1);"
        )
    };
    let rows =
        ["10, 20", "20, 10", "-9223372036854775808, 9223372036854775807", "5, 9223372036854775807"]
            .map(kernel)
            .concat();
    let path = handmade(dir.path(), &format!("insert into StringIds values (1, 'gemm'); {rows}"));
    let analyzed =
        pipeline::analyze_capture(&[path], &[], Statements::default(), &config::devices().unwrap())
            .unwrap();
    let findings = analyzed.findings(RunId(Uuid::nil()));
    let found = findings.iter().find(|it| it.id == "capture_times_impossible").unwrap();
    assert!(found.message.starts_with("3 rows"), "{}", found.message);
}

#[test]
fn repeated_names_of_ten_megabytes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let many = "insert into StringIds values (1, printf('%.*c', 10000000, 'n'));
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
        insert into NVTX_EVENTS select i, i + 1, 59, null, 1, 1, 0 from n;";
    let error = pipeline::analyze_capture(
        &[handmade(dir.path(), many)],
        &[],
        Statements::default(),
        &config::devices().unwrap(),
    )
    .unwrap_err();
    let text = llmprof_core::chain(&error);
    assert!(text.contains("run.sqlite: the names of its ranges take more room"), "{text}");
}

#[test]
fn a_malicious_schema_is_not_executed() {
    let dir = tempfile::tempdir().unwrap();
    let endless = "with recursive n(i) as (select 1 union all select i + 1 from n) \
                   select i as start, i + 1 as end from n";
    for harm in [
        format!("create view CUPTI_ACTIVITY_KIND_RUNTIME as {endless}"),
        format!(
            "create view OSRT_API as {endless};
             create trigger t instead of insert on OSRT_API begin select 1; end"
        ),
        "create table CUPTI_ACTIVITY_KIND_RUNTIME (start int,
             end int generated always as (start + zeroblob(100000000)), nameId int);
         insert into CUPTI_ACTIVITY_KIND_RUNTIME (start, nameId) values (1, 1)"
            .to_owned(),
        "create table CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, nameId, correlationId);
         insert into CUPTI_ACTIVITY_KIND_RUNTIME values ('a', 'b', 'c', 'd', 'e')"
            .to_owned(),
    ] {
        analysed(&handmade(dir.path(), &harm)).unwrap();
    }
}

#[test]
fn the_error_on_a_broken_schema_is_one_short_line() {
    let dir = tempfile::tempdir().unwrap();
    let table = format!("create table LONG (a int, -- {}\n b int)", "x".repeat(2000));
    let path = handmade(dir.path(), &table);
    let bytes = fs::read(&path).unwrap();
    let at = bytes.windows(3).position(|it| it == b"LON").unwrap() + 12;
    let mut broken = bytes.clone();
    broken[at] = b'`';
    let error = parse::nsys::read(&write(dir.path(), "run.sqlite", &broken)).unwrap_err();
    let text = llmprof_core::chain(&error);
    assert!(
        text.contains("run.sqlite")
            && text.contains("malformed")
            && text.len() < 400
            && text.lines().count() == 1,
        "{text}"
    );
}

//! Handmade exports with impossible rows or a malicious schema.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use llmprof_analyze::{
    Analysis,
    parse::{self, stored::resolved},
};
use llmprof_core::{
    domain::ids::RunId,
    layout,
    trace::{Trace, stage::StageRules},
};
use llmprof_report::pipeline::{self, Statements};
use llmprof_service::{artifact::manifest, config, runtime::work::SlicedWork};
use nix::{sys::stat::Mode, unistd::mkfifo};
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
fn a_pipe_in_place_of_a_file_of_a_run_is_not_waited_for() {
    for name in [
        layout::ENV,
        layout::HOST_LOAD,
        layout::NVML,
        layout::COMMAND_PLAN,
        layout::NSYS_EXPORT,
        "baseline/events.jsonl",
        "nsys/events.jsonl",
        "pytorch/trace-1.json",
        layout::SPEC,
        layout::PROGRESS,
        layout::MANIFEST,
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        match parse::read(dir.path()) {
            Ok(trace) => assert!(trace.timeline.is_none() && trace.baseline.is_empty(), "{name}"),
            Err(error) => {
                let error = llmprof_core::chain(&error);
                assert!(error.contains(name) && error.contains("not a regular file"), "{error}");
            }
        }
        // The first files that it reads; the others are not reached.
        let is_reached = [layout::PROGRESS, layout::SPEC].contains(&name);
        let error = llmprof_core::chain(&parse::saved::read(dir.path()).unwrap_err());
        assert_eq!(error.contains("not a regular file"), is_reached, "{name}: {error}");
        let tail = parse::journal::tail(dir.path(), 9);
        assert_eq!(tail.is_err(), name == layout::PROGRESS);
        let error = manifest::read(dir.path()).unwrap_err().to_string();
        assert_eq!(error.contains("not a regular file"), name == layout::MANIFEST, "{error}");
        let sealed = manifest::seal(dir.path(), u64::MAX, &SlicedWork::default()).unwrap();
        assert!(sealed.artifacts.iter().all(|it| it.path != name || name == layout::MANIFEST));
    }
}

/// A secret file outside the folder of a run.
const SECRET: &str = "{\"traceEvents\": [{\"ph\": \"X\", \"name\": \"the secret\"";

#[test]
fn no_capture_of_a_run_is_read_through_a_link() {
    let export = layout::NSYS_EXPORT_FILE;
    let sampled = layout::metrics_pass(20_000);
    for (folder, name) in [
        (layout::NSYS, export),
        (layout::PYTORCH, "trace-1.json"),
        (layout::TORCH_PROFILER, "process-1.json.gz"),
        (&*sampled, export),
    ] {
        // The file or its folder is a link, out of the run's folder or to a place in it.
        for (is_folder, is_outside) in [(false, true), (false, false), (true, true), (true, false)]
        {
            let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let (dir, other) = (resolved(dir.path()), resolved(other.path()));
            let aside = if is_outside { other } else { dir.join("aside") };
            fs::create_dir_all(&aside).unwrap();
            match name == export {
                true => drop(handmade(&aside, "")),
                false => fs::write(aside.join(name), SECRET).unwrap(),
            }
            let (link, target) = match is_folder {
                true => (dir.join(folder), aside),
                false => (dir.join(folder).join(name), aside.join(name)),
            };
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            symlink(&target, &link).unwrap();
            let error = llmprof_core::chain(&parse::read(&dir).unwrap_err());
            assert!(error.contains("a link, and links are not followed"), "{folder}: {error}");
            assert!(!error.contains("secret"), "{folder}: {error}");
        }
    }
}

#[test]
fn an_argument_may_be_a_link_to_a_capture_or_a_page() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let export = handmade(other.path(), "");
    let page = write(other.path(), "page.txt", b"no page");
    let links = ["run-7.sqlite", "page.csv"].map(|name| dir.path().join(name));
    for (target, link) in [export, page].iter().zip(&links) {
        symlink(target, link).unwrap();
    }
    let [export, page] = links.map(|link| vec![link]);
    assert!(parse::timeline(&export).is_ok());
    let devices = config::devices().unwrap();
    let read = |pages: &[PathBuf]| {
        pipeline::analyze_capture(&export, pages, Statements::default(), &devices)
    };
    assert!(read(&[]).is_ok());
    let error = llmprof_core::chain(&read(&page).unwrap_err());
    assert!(!error.contains("links are not followed"), "its content is refused: {error}");
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
    assert!(found.message.starts_with("2 rows"), "{}", found.message);
    let untimed = findings.iter().find(|it| it.id == "work_untimed").unwrap();
    assert!(untimed.message.contains("the end lies before the start (1)"), "{}", untimed.message);
}

fn analyzed(path: PathBuf) -> Result<Analysis, String> {
    let nsys = parse::nsys::read(&path).map_err(|error| llmprof_core::chain(&error))?;
    let nsys = Some(nsys.with_rules(StageRules::default()));
    Ok(llmprof_analyze::analyze(&Trace { timeline: nsys, ..Trace::default() }, None, None))
}

#[test]
fn a_name_of_ten_megabytes_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let many = "insert into StringIds values (1, printf('%.*c', 10000000, 'n'));
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
        insert into NVTX_EVENTS select i, i + 1, 59, null, 1, 1, 0 from n;";
    let analysis = analyzed(handmade(dir.path(), many)).unwrap();
    let [range] = &analysis.sums.ranges[..] else { panic!("{:?}", analysis.sums.ranges.len()) };
    assert_eq!((range.name.len(), range.ns.count), (4096, 20_000));
}

#[test]
fn names_that_take_more_memory_than_any_program_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let many =
        "insert into NVTX_EVENTS values (0, null, 75, printf('%.*c', 4096, 'd'), 1, null, 1);
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 66000)
        insert into NVTX_EVENTS select i, i + 1, 59, 'range ' || i, 1, null, 1 from n;";
    let error = analyzed(handmade(dir.path(), many)).unwrap_err();
    assert!(error.contains("run.sqlite: its range names take more room"), "{error}");
}

#[test]
fn ranges_that_nest_too_deep_have_no_regions_and_a_finding() {
    let dir = tempfile::tempdir().unwrap();
    let chain = |depth: u32| {
        let sql = format!(
            "insert into StringIds values (1, 'gemm'), (2, 'cudaLaunchKernel');
            with recursive n(i) as (select 1 union all select i + 1 from n where i < {depth})
            insert into NVTX_EVENTS
                select i, 100000 - i, 59, 'range ' || (i % 300), 1, null, 0 from n;
            create table CUPTI_ACTIVITY_KIND_RUNTIME (start int, end int, globalTid int,
                correlationId int, nameId int);
            insert into CUPTI_ACTIVITY_KIND_RUNTIME values (50000, 50001, 1, 1, 2);
            insert into CUPTI_ACTIVITY_KIND_KERNEL
                values (60000, 60010, 0, 7, 1, 0, 1, 1, 32, 1, 1, 1, 1, 1, 1);"
        );
        analyzed(handmade(dir.path(), &sql)).unwrap()
    };
    let has_finding =
        |it: &Analysis| it.findings.iter().any(|finding| finding.id == "ranges_too_deep");
    let (deep, deeper) = (chain(10_000), chain(10_001));
    assert!(deep.regions.iter().all(|it| it.kernels == 1), "a name inside itself counts once");
    assert_eq!((deep.regions.len(), has_finding(&deep)), (300, false));
    assert_eq!((deeper.regions.len(), has_finding(&deeper)), (0, true));
    let operators = deeper.operators.rolled.iter().filter_map(|it| it.device);
    assert_eq!(operators.map(|it| it.kernels).collect::<Vec<_>>(), [1; 300]);
}

#[test]
fn ranges_that_never_end_are_dropped_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let endless = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
        insert into NVTX_EVENTS select 5, null, 59, 'range ' || i, 1, null, 0 from n;";
    let analysis = analyzed(handmade(dir.path(), endless)).unwrap();
    let finding = analysis.findings.iter().find(|it| it.id == "range_unclosed").unwrap();
    assert!(finding.message.starts_with("20,000 ranges have no end"), "{}", finding.message);
    assert!(analysis.sums.ranges.is_empty());
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

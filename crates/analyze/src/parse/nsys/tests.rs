//! Handmade exports: different versions, and malicious files.

use std::{fs, path::Path, sync::LazyLock};

use proptest::prelude::*;
use rusqlite::Connection;
use tempfile::TempDir;

use super::*;

const META: &str = "create table META_DATA_EXPORT (name text, value text);
    insert into META_DATA_EXPORT values ('EXPORT_PRODUCT_VERSION', '2025.3.2.0'), \
    ('EXPORT_SCHEMA_VERSION', '3.20.3');";
const STRINGS: &str = "create table StringIds (id integer primary key, value text);
    insert into StringIds values (1, 'LLM'), (2, 'prefill'), (3, 'gemm'), (4, 'void \
    gemm<int>(float *)'), (9, 'TOKEN=secret');";
const NVTX: &str = "create table NVTX_EVENTS (start int, end int, eventType int, text text, \
                    globalTid int, textId int, domainId int);
    insert into NVTX_EVENTS values
        (0, null, 75, 'LLM', 0x1000001, null, 1), (0, null, 75, null, 0x2000001, 1, 2),
        (5, 9, 59, 'decode_all', 0x1000001, null, 1), (2, 30, 60, null, 0x2000001, 2, 2), (1, \
        null, 59, 'plain', 0x1000001, null, 0),
        (3, 4, 59, 'odd', 0x2000001, null, 1), (7, null, 34, 'a mark', 0x1000001, null, 0);";
const KERNELS: &str =
    "create table CUPTI_ACTIVITY_KIND_KERNEL (start int, end int, deviceId int, streamId int, \
     correlationId int,
        globalPid int, shortName int, demangledName int, registersPerThread int, gridX int, gridY \
        int, gridZ int, blockX int,
        blockY int, blockZ int);
    insert into CUPTI_ACTIVITY_KIND_KERNEL values (20, 25, 0, 7, 11, 0x1000000, 3, 4, 32, 1, 2, \
    3, 128, 1, 1),
        (10, 15, 0, 7, 10, 0x1000000, 3, 8, 32, 1, 2, 3, 128, 1, 1);";

fn export(sql: &[&str]) -> (TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sqlite");
    Connection::open(&path).unwrap().execute_batch(&sql.concat()).unwrap();
    (dir, path)
}

fn trace(sql: &[&str]) -> Timeline {
    read(&export(sql).1).unwrap()
}

/// The error and its causes in one line, without the folder.
fn refusal(path: &Path) -> String {
    let error = anyhow::Error::from(read(path).unwrap_err());
    format!("{error:#}").replace(&format!("{}/", path.parent().unwrap().display()), "")
}

#[test]
fn domains_count_per_process_and_ranges_keep_their_kind() {
    let trace = trace(&[META, STRINGS, NVTX]);
    let ranges: Vec<_> = trace
        .ranges
        .iter()
        .map(|r| (r.domain.as_str(), r.name.as_str(), r.start_ns, r.end_ns, r.push_pop))
        .collect();
    assert_eq!(
        ranges,
        [
            ("", "plain", 1, None, true),
            ("LLM", "prefill", 2, Some(30), false),
            ("#1", "odd", 3, Some(4), true), // domain 1 has a name in the other process only
            ("LLM", "decode_all", 5, Some(9), true),
        ]
    );
}

#[test]
fn calls_of_one_operator_share_the_name_of_their_ranges() {
    let calls = "insert into StringIds values (20, 'aten::mm, seq = 4, op_id = 5');
        insert into NVTX_EVENTS values (10, 11, 59, 'aten::linear, op_id = 3', 0x1000001, null, 0),
            (12, 13, 59, 'aten::linear, op_id = 4', 0x1000001, null, 0),
            (14, 15, 59, null, 0x1000001, 20, 0);";
    let trace = trace(&[META, STRINGS, NVTX, calls]);
    let names: Vec<&str> = trace.ranges.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names[4..], ["aten::linear", "aten::linear", "aten::mm"]);
    assert!(std::sync::Arc::ptr_eq(trace.ranges[4].label(), trace.ranges[5].label()));
    assert!(!trace.strings.iter().any(|it| it.contains("aten")), "names of ranges are apart");
}

#[test]
fn kernels_come_in_order_with_their_names() {
    let trace = trace(&[META, STRINGS, KERNELS]);
    let names: Vec<_> = trace
        .kernels
        .iter()
        .map(|k| {
            (k.start_ns, &*trace.strings[k.name as usize], &*trace.strings[k.full_name as usize])
        })
        .collect();
    assert_eq!(
        names,
        [(10, "gemm", "(string 8 is missing)"), (20, "gemm", "void gemm<int>(float *)")]
    );
    assert_eq!(
        (trace.kernels.get(0).grid, trace.kernels.get(0).graph_node),
        ([1, 2, 3], None),
        "older exports have no graph nodes"
    );
    assert!(
        !trace.strings.iter().any(|s| s.contains("secret")),
        "only strings that name something are read"
    );
}

#[test]
fn launches_of_whole_graphs_are_read_by_every_version_and_those_without_times_are_left_out() {
    let graphs = "create table CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start int, end int, deviceId int, \
                  contextId int, streamId int,
            correlationId int, globalPid int, graphId int, graphExecId int, eventId int);
        insert into CUPTI_ACTIVITY_KIND_GRAPH_TRACE values (40, 60, 0, 1, 7, 12, 0x1000000, 3, 4, \
        null),
            (10, 30, 2147483647, 1, 7, 11, 0x1000000, 3, 4, null), (0, 0, 0, 1, 7, 13, 0x1000000, \
            3, 4, null);";
    let new = trace(&[META, STRINGS, graphs]);
    let first = GraphLaunch {
        start_ns: 10,
        end_ns: 30,
        device: 0,
        stream: 7,
        global_pid: 0x100_0000,
        correlation_id: 11,
        graph: Some(3),
    };
    assert_eq!(
        (new.graphs[0], new.graphs.len(), new.impossible_rows),
        (first, 2, 1),
        "a graph that starts on the host is its process's"
    );
    let copy = |device: u32| {
        format!(
            "create table CUPTI_ACTIVITY_KIND_MEMCPY (start int, end int, deviceId int, bytes int,
                copyKind int, correlationId int, globalPid int);
            insert into CUPTI_ACTIVITY_KIND_MEMCPY values (1, 2, {device}, 8, 1, 9, 0x1000000);"
        )
    };
    let host = &graphs[..graphs.find("values").unwrap()];
    let on_host = |stream: u32| {
        format!("{host} values (10, 30, 2147483647, 1, {stream}, 11, 0x1000000, 3, 4, null);")
    };
    let found = trace(&[META, &on_host(7), &copy(3)]);
    assert_eq!(found.graphs[0].device, 3, "the GPU of its process' copies");
    let two = format!(
        "{} insert into CUPTI_ACTIVITY_KIND_GRAPH_TRACE values (40, 60, 2, 1, 7, 12, 0x1000000, \
         3, 4, null);",
        on_host(7)
    );
    let device = |graphs: &str| trace(&[META, graphs, &copy(3)]).graphs[0].device;
    assert_eq!(device(&two), 2, "of several GPUs that with work on its stream");
    assert_eq!(device(&two.replace("1, 7, 11", "1, 8, 11")), ON_HOST);
    let gpus = |ids: &str| {
        format!("create table TARGET_INFO_GPU (id int); insert into TARGET_INFO_GPU values {ids};")
    };
    let alone = |ids: &str| trace(&[META, &on_host(7), &gpus(ids)]).graphs[0].device;
    assert_eq!((alone("(1)"), alone("(0), (1)")), (1, ON_HOST), "the only GPU of the host");
    let older = "create table CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start int, end int, deviceId int, \
         correlationId int, globalPid int);
        insert into CUPTI_ACTIVITY_KIND_GRAPH_TRACE values (10, 30, 0, 11, 0x1000000);";
    assert_eq!(trace(&[META, older]).graphs, [GraphLaunch { stream: 0, graph: None, ..first }]);
}

#[test]
fn waits_have_the_device_and_the_stream_that_are_recorded() {
    let waits = "create table CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (deviceId int, streamId int, \
                 correlationId int, globalPid int);
        insert into CUPTI_ACTIVITY_KIND_SYNCHRONIZATION values (1, 7, 12, 0x1000000),
            (1, 4294967295, 11, 0x1000000), (4294967295, -1, 13, 0x1000000), (0, 7, 0, 0x1000000);";
    let trace = trace(&[META, STRINGS, KERNELS, waits]);
    let targets = trace.wait_targets.iter().map(|it| (it.correlation, it.device, it.stream));
    assert_eq!(
        targets.collect::<Vec<_>>(),
        [(11, Some(1), None), (12, Some(1), Some(7)), (13, None, None)]
    );
}

#[test]
fn a_table_that_is_missing_is_a_gap() {
    let trace = trace(&[META]);
    assert_eq!(
        (trace.tool_version.as_deref(), trace.schema_version.as_deref()),
        (Some("2025.3.2.0"), Some("3.20.3"))
    );
    assert_eq!(trace.tables, ["META_DATA_EXPORT"]);
    assert!(trace.kernels.is_empty() && trace.ranges.is_empty() && trace.os_calls.is_empty());
}

#[test]
fn diagnostics_come_worst_first_and_once() {
    let diagnostics = "create table DIAGNOSTIC_EVENT (timestamp int, severity int, text text);
        insert into DIAGNOSTIC_EVENT values (1, 1, 'fine'), (2, 2, 'hm'), (3, 3, 'broken'), (4, \
        2, 'hm');";
    assert_eq!(trace(&[META, diagnostics]).diagnostics, ["broken", "hm"]);
}

#[test]
fn a_view_or_virtual_table_in_the_place_of_a_table_never_runs() {
    let bomb = "create view OSRT_API as with recursive n(i) as (select 1 union all select i + 1 \
                from n) select i as start from n;
        create virtual table NVTX_EVENTS using fts5(start, end);";
    let trace = trace(&[META, bomb]);
    assert!(trace.os_calls.is_empty() && trace.ranges.is_empty());
    assert!(!trace.tables.contains(&"OSRT_API".to_owned()));
}

#[test]
fn a_foreign_file_is_refused_with_its_name_and_the_reason() {
    let (dir, path) = export(&[META, STRINGS, KERNELS]);
    let bytes = fs::read(&path).unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        refusal(&path)
    };
    assert_eq!(file("empty", b""), "empty: empty (0 bytes); copy or export the file again");
    let text = file("csv", b"a,b\n1,2\n");
    assert!(text.contains("csv: not an SQLite database but a text (first line \"a,b\")"), "{text}");
    assert_eq!(
        file("cut", &bytes[..bytes.len() - 1]),
        format!(
            "cut: cut short: {} of {} bytes; copy or export the file again",
            bytes.len() - 1,
            bytes.len()
        )
    );
    assert!(file("head", &bytes[..50]).contains("cut short: 50 of at least 512 bytes; copy"));
    assert_eq!(
        refusal(&dir.path().join("none")),
        "cannot read none: No such file or directory (os error 2)"
    );
    assert_eq!(
        refusal(&export(&["create table runs (id int)"]).1),
        "run.sqlite: an SQLite database, but not an export of nsys (nsys export --type sqlite \
         REPORT.nsys-rep); pass such an export"
    );
    let text = "create table OSRT_API (start, end, globalTid, nameId); insert into OSRT_API \
                values ('x', 1, 1, 1)";
    assert_eq!(
        refusal(&export(&[META, text]).1),
        "run.sqlite: damaged: no number that fits in row 1 of OSRT_API, column start"
    );
}

const TARGET: &str = "create table TARGET_INFO_GPU (id int, name text, uuid text, totalMemory \
                      int, clockRate int, smCount int, computeMajor int,
        computeMinor int, memoryBandwidth int);
    insert into TARGET_INFO_GPU values (0, 'NVIDIA H100 NVL', 'aa', 100, 1785000000, 132, 9, 0, \
    3938304000000), \
    (1, 'NVIDIA A10', 'bb', 50, 0, 72, 8, 6, 600);
    create table TARGET_INFO_SYSTEM_ENV (name text, value text);
    insert into TARGET_INFO_SYSTEM_ENV values ('CpuDescription', 'Xeon'), ('CpuCores', '16'), \
    ('OsDescription', 'Ubuntu 24.04'),
        ('NvDriverVersion', '580.159.04'), ('CudaDriverVersion', '13000'), \
        ('SoftwareReleaseVersion', '6.18'), ('SystemUID', 'secret');";

#[test]
fn the_host_and_the_gpus_that_kernels_ran_on_are_those_of_the_export() {
    let target = trace(&[META, STRINGS, KERNELS, TARGET]).target;
    let gpus: Vec<_> = target
        .gpus
        .iter()
        .map(|it| (it.name.as_str(), it.uuid.as_str(), it.memory_bytes, it.sm_count))
        .collect();
    assert_eq!(gpus, [("NVIDIA H100 NVL", "GPU-aa", 100, Some(132))], "no kernel ran on the other");
    assert_eq!(
        (target.gpus[0].max_sm_mhz, target.gpus[0].compute_capability.as_deref()),
        (Some(1785), Some("9.0"))
    );
    let facts =
        [&target.cpu, &target.os, &target.kernel, &target.driver, &target.cuda, &target.nsys];
    let expected = ["Xeon", "Ubuntu 24.04", "6.18", "580.159.04", "13.0", "2025.3.2.0"];
    assert_eq!(facts.map(|it| it.as_deref().unwrap()), expected);
    assert_eq!(target.cpus, Some(16));
    let other = trace(&[META, STRINGS, &KERNELS.replace("25, 0, 7", "25, 1, 7"), TARGET]).target;
    let bandwidths: Vec<_> = other.gpus.iter().map(|it| it.bytes_per_s).collect();
    assert_eq!(bandwidths, [Some(3_938_304_000_000), None], "kernels ran on both");
}

#[test]
fn an_export_without_metadata_is_known_by_its_tables() {
    let trace = trace(&[STRINGS, NVTX, KERNELS]);
    assert_eq!((trace.tool_version, trace.kernels.len(), trace.ranges.len()), (None, 2, 4));
    // Files of nvprof look similar but have another format.
    let nvprof = "create table StringTable (_id_ int, value text); create table \
                  CUPTI_ACTIVITY_KIND_RUNTIME (start int);";
    assert_eq!(
        refusal(&export(&[nvprof]).1),
        "run.sqlite: an SQLite database, but not an export of nsys (nsys export --type sqlite \
         REPORT.nsys-rep); pass such an export"
    );
}

#[test]
fn a_required_column_that_is_missing_is_named() {
    for column in ["shortName", "start", "streamId", "gridX"] {
        let without = KERNELS.replace(&format!("{column} int"), &format!("old{column} int"));
        let why = refusal(&export(&[META, STRINGS, &without]).1);
        assert!(
            why.starts_with(&format!(
                "run.sqlite: CUPTI_ACTIVITY_KIND_KERNEL lacks the column {column}:"
            )),
            "{why}"
        );
    }
    let copies = "create table CUPTI_ACTIVITY_KIND_MEMCPY (end int, deviceId int); insert into \
                  CUPTI_ACTIVITY_KIND_MEMCPY values (1, 0);";
    let why = refusal(&export(&[META, copies]).1);
    assert!(
        why.starts_with("run.sqlite: CUPTI_ACTIVITY_KIND_MEMCPY lacks the column start:"),
        "{why}"
    );
}

#[test]
fn a_column_that_only_joins_is_absent_with_a_finding() {
    let without = KERNELS.replace("correlationId int", "x int").replace("globalPid int", "y int");
    let trace = trace(&[META, STRINGS, &without]);
    assert_eq!(trace.kernels.len(), 2);
    let findings: Vec<_> =
        trace.findings.iter().map(|it| (it.id.as_str(), it.message.as_str())).collect();
    let message = "CUPTI_ACTIVITY_KIND_KERNEL lacks the columns correlationId, globalPid: kernels \
                   have no launch, so no stage and no operator";
    assert_eq!(findings[0], ("nsys_columns_missing", message));
    assert!(findings[1].1.starts_with("StringIds lacks 1 of the 3 names in use:"), "{findings:?}");
}

#[test]
fn rows_in_a_log_next_to_the_export_are_never_omitted_silently() {
    let (dir, path) = export(&[META, STRINGS]);
    let live = Connection::open(&path).unwrap();
    live.execute_batch(&format!(
        "pragma journal_mode = wal; pragma wal_autocheckpoint = 0; {KERNELS}"
    ))
    .unwrap();
    let why = refusal(&path);
    assert!(
        why.starts_with("run.sqlite: a write-ahead log lies next to it (run.sqlite-wal, "),
        "{why}"
    );
    assert!(why.contains("wal_checkpoint(truncate)"), "{why}");
    // Only the file, as an import would send it, has a finding.
    let alone = dir.path().join("alone.sqlite");
    fs::copy(&path, &alone).unwrap();
    assert_eq!(read(&alone).unwrap().findings[0].id, "nsys_export_wal");
    live.execute_batch("pragma wal_checkpoint(truncate)").unwrap();
    assert_eq!(read(&path).unwrap().kernels.len(), 2);
    fs::write(dir.path().join("run.sqlite-journal"), b"half a transaction").unwrap();
    assert!(refusal(&path).contains("a rollback journal lies next to it"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Reading a damaged file ends in an error, or in a trace no larger than the file.
    #[test]
    fn damage_ends_in_an_error_or_a_trace(
        damage in prop::collection::vec((0usize..40_000, any::<u8>()), 1..40),
        cut in 0usize..80_000,
    ) {
        static WHOLE: LazyLock<Vec<u8>> =
            LazyLock::new(|| fs::read(export(&[META, STRINGS, NVTX, KERNELS]).1).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.sqlite");
        let mut bytes = WHOLE.clone();
        for (at, byte) in damage {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate(cut.max(1));
        fs::write(&path, &bytes).unwrap();
        match read(&path) {
            Ok(trace) => prop_assert!(trace.kernels.len() + trace.ranges.len() <= bytes.len()),
            Err(error) => prop_assert!(error.to_string().contains("run.sqlite")),
        }
    }
}

#[test]
fn kernels_that_take_no_time_have_no_valid_time() {
    let times = "update CUPTI_ACTIVITY_KIND_KERNEL set end = iif(start = 20, 20, 7);";
    let trace = trace(&[META, STRINGS, KERNELS, times]);
    let faults: Vec<_> = trace.untimed.faults().map(|it| (it.0, it.1.worst.unwrap().0)).collect();
    assert_eq!(faults, [(TimeFault::NoDuration, 0), (TimeFault::EndsBeforeStart, 3)]);
    assert_eq!((trace.kernels.len(), trace.impossible_rows), (0, 0));
}

#[test]
fn a_range_that_ends_before_its_start_or_with_the_recording_has_no_end() {
    let reversed = "update NVTX_EVENTS set end = 4 where text = 'decode_all';";
    let recording = "create table ANALYSIS_DETAILS (duration int);
        insert into ANALYSIS_DETAILS values (9);";
    for change in [reversed, recording] {
        let trace = trace(&[META, STRINGS, NVTX, change]);
        let end = |name| trace.ranges.iter().find(|it| it.name == name).unwrap().end_ns;
        assert_eq!((end("decode_all"), end("odd"), trace.impossible_rows), (None, Some(4), 0));
    }
    assert_eq!(trace(&[META, STRINGS, NVTX, recording]).recorded_ns, Some(9));
    assert_eq!(trace(&[META, STRINGS, NVTX]).recorded_ns, None);
}

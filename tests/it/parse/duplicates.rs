//! Real captures with their process twice, as of two ranks: sums double, means and shares stay.
//! A copy of a trace changes nothing.

use std::{collections::BTreeSet, io::Read as _, path::PathBuf, process::Command};

use rusqlite::Connection;
use serde_json::Value;

use crate::support::{captures::capture, extent};

const CAPTURES: [&str; 6] = [
    "hf-llama-attention-mock",
    "hf-llama-e2e",
    "torch-cuda-graph-node",
    "h200-whole-graphs",
    "hf-serve-window",
    "jax-steps",
];
/// Largest difference of two figures, as a share.
const TOLERANCE: f64 = 1e-6;
/// The same of sums of times that are rounded one by one, nanoseconds.
const ROUNDED_NS: f64 = 50.0;
/// Rows of a list that a report holds.
const MAX_ROWS: usize = 200;

/// The second process relative to the first.
#[derive(Debug, Clone, Copy)]
struct Second {
    /// Difference of the numbers of its GPU.
    device: i64,
    later_ns: i64,
}

const SECONDS: [Second; 3] = [
    Second { device: 1, later_ns: 0 },
    Second { device: 1, later_ns: 100_000 },
    Second { device: 0, later_ns: 0 },
];

/// Rows of a report.
struct Rows {
    table: &'static str,
    key: &'static [&'static str],
    doubled: &'static [&'static str],
    same: &'static [&'static str],
    /// False if processes on one GPU share the figures.
    by_process: bool,
}

const TABLES: [Rows; 7] = [
    Rows {
        table: "stages",
        key: &["stage"],
        doubled: &["/ms/n"],
        same: &["/ms/mean", "/ms/min", "/ms/max", "/share_pct"],
        by_process: true,
    },
    Rows {
        table: "stage_kernels",
        key: &["stage"],
        doubled: &["/launches", "/kernel_ms", "/graph_launches", "/graph_ms"],
        same: &[],
        by_process: true,
    },
    Rows {
        table: "operators_by_path",
        key: &["stage", "path", "op"],
        doubled: &[
            "/calls",
            "/captured_calls",
            "/inclusive_ms",
            "/exclusive_ms",
            "/device/calls",
            "/device/kernels",
            "/device/inclusive_ms",
            "/device/exclusive_ms",
        ],
        same: &["/mean_ms", "/inclusive_pct", "/exclusive_pct", "/device/mean_ms"],
        by_process: true,
    },
    Rows {
        table: "regions",
        key: &["domain", "name"],
        doubled: &["/instances", "/kernels", "/kernel_ms", "/whole_graphs", "/graph_ms"],
        same: &["/share_pct"],
        by_process: true,
    },
    Rows {
        table: "kernel_classes",
        key: &["stage", "class"],
        doubled: &["/calls", "/total_ms"],
        same: &["/share_pct"],
        by_process: true,
    },
    Rows {
        table: "stage_gpu",
        key: &["stage"],
        doubled: &[
            "/devices",
            "/instances",
            "/window_ms",
            "/busy_ms",
            "/other_ms",
            "/idle_ms",
            "/idle_host_ms",
            "/idle_sync_ms",
            "/gaps",
            "/launches",
            "/graph_launches",
            "/whole_graphs",
        ],
        same: &["/busy_pct", "/launch_bound_pct"],
        by_process: false,
    },
    Rows {
        table: "ledger",
        key: &["stage", "cause"],
        doubled: &[],
        same: &["/ns", "/max_saving_ns"],
        by_process: false,
    },
];

/// Adds a second process that does what the first one does.
fn duplicate(export: &Connection, second: Second) {
    let names = |sql: &str| -> Vec<String> {
        let mut query = export.prepare(sql).unwrap();
        query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    for table in names("select name from sqlite_master where type = 'table'") {
        let columns = names(&format!("select name from pragma_table_info('{table}')"));
        let of_process = |it: &String| ["globalTid", "globalPid"].contains(&it.as_str());
        let is_recorded = table.starts_with("CUPTI_ACTIVITY")
            || ["NVTX_EVENTS", "PROCESSES", "CUDA_GRAPH_NODE_EVENTS"].contains(&table.as_str());
        if !is_recorded || !columns.iter().any(of_process) {
            continue;
        }
        let value = |column: &String| match column.as_str() {
            "globalTid" | "globalPid" => format!("{column} + {}", 5 << 24),
            "deviceId" => format!(
                "case {column} when 2147483647 then {column} else {column} + {} end",
                second.device
            ),
            "start" | "end" => format!("{column} + {}", second.later_ns),
            _ => format!("\"{column}\""),
        };
        let values: Vec<String> = columns.iter().map(value).collect();
        let sql = format!("insert into {table} select {} from {table}", values.join(", "));
        export.execute_batch(&sql).unwrap_or_else(|it| panic!("{sql}: {it}"));
    }
    // It maps numbers of GPUs by process.
    export.execute_batch("drop table if exists TARGET_INFO_CUDA_DEVICE").unwrap();
}

fn report(name: &str, second: Option<Second>) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sqlite");
    capture(name, &path, "drop table if exists TARGET_INFO_CUDA_DEVICE").unwrap();
    if let Some(second) = second {
        duplicate(&Connection::open(&path).unwrap(), second);
    }
    analyzed(&[path])
}

fn analyzed(paths: &[PathBuf]) -> Value {
    let mut analyze = Command::new(env!("CARGO_BIN_EXE_llmprof"));
    let output = analyze.arg("analyze").args(paths).args(["--format", "json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn rows<'a>(report: &'a Value, rows: &Rows) -> Vec<(String, &'a Value)> {
    let all = report[rows.table].as_array().map_or(&[][..], Vec::as_slice);
    let key = |row: &Value| {
        rows.key.iter().map(|it| row[*it].as_str().unwrap_or("")).collect::<Vec<_>>().join(" ")
    };
    all.iter().map(|row| (key(row), row)).collect()
}

fn is_near(field: &str, a: f64, b: f64) -> bool {
    let rounded = if field.ends_with("ns") { ROUNDED_NS } else { 0.0 };
    (a - b).abs() <= rounded + TOLERANCE * a.abs().max(b.abs())
}

/// Figures that were compared, as table and field.
type Compared = BTreeSet<(&'static str, &'static str)>;

/// Adds the figures of a table that two processes do not have as one has them.
fn compare(
    table: &Rows,
    (before, after): (&Value, &Value),
    compared: &mut Compared,
    differ: &mut Vec<String>,
) {
    let (before, after) = (rows(before, table), rows(after, table));
    for (key, row) in &before {
        let Some((_, other)) = after.iter().find(|it| it.0 == *key) else {
            differ.push(format!("{} {key} is missing", table.table));
            continue;
        };
        let doubled = table.doubled.iter().map(|field| (*field, 2.0));
        for (field, factor) in doubled.chain(table.same.iter().map(|field| (*field, 1.0))) {
            let figure = |row: &Value| row.pointer(field).and_then(Value::as_f64);
            let holds = match (figure(row), figure(other)) {
                (Some(one), Some(two)) => {
                    compared.insert((table.table, field));
                    is_near(field, factor * one, two)
                }
                (one, two) => one.is_none() && two.is_none(),
            };
            if !holds {
                let (one, two) = (figure(row), figure(other));
                differ.push(format!("{} {key} {field}: {one:?} to {two:?}", table.table));
            }
        }
    }
    if before.len() != after.len() {
        differ.push(format!("{}: {} to {} rows", table.table, before.len(), after.len()));
    }
}

/// Severe findings, each once.
fn severe(report: &Value) -> Vec<&str> {
    let all = report["findings"].as_array().unwrap().iter();
    let severe = all.filter(|it| it["severity"] == "critical");
    severe.map(|it| it["id"].as_str().unwrap()).collect()
}

#[test]
fn two_processes_that_do_the_same_have_twice_the_sums_and_the_same_means() {
    let (mut compared, mut differ) = (Compared::new(), Vec::new());
    for (at, name) in CAPTURES.into_iter().enumerate() {
        let before = report(name, None);
        let seconds = extent(&SECONDS[at % SECONDS.len()..][..1], &SECONDS[..]);
        for second in seconds.iter().copied() {
            let (after, mut found) = (report(name, Some(second)), Vec::new());
            for table in TABLES.iter().filter(|it| it.by_process || second.device > 0) {
                compare(table, (&before, &after), &mut compared, &mut found);
            }
            let steps = |report: &Value| report["engine_steps"].as_array().map_or(0, Vec::len);
            if steps(&after) != (2 * steps(&before)).min(MAX_ROWS) {
                found.push(format!("{} to {} steps", steps(&before), steps(&after)));
            }
            if severe(&before) != severe(&after) {
                found.push(format!("{:?} to {:?}", severe(&before), severe(&after)));
            }
            let count = found.len();
            found.truncate(4);
            differ.extend(found.iter().map(|it| format!("{name}, {second:?} ({count}): {it}")));
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    let fields = |it: &Rows| {
        let table = it.table;
        it.doubled.iter().chain(it.same).map(move |field| (table, *field)).collect::<Vec<_>>()
    };
    let mut missed: Vec<_> = TABLES.iter().flat_map(fields).collect();
    missed.retain(|it| !compared.contains(it));
    assert_eq!(missed, [], "no capture has these");
}

#[test]
fn two_ranks_of_pytorch_have_twice_the_sums_and_a_copy_changes_no_figure() {
    let mut differ = Vec::new();
    let folder = tempfile::tempdir().unwrap();
    for name in ["torch-kineto-eager", "torch-kineto-graph"] {
        let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures");
        let path = fixtures.join(format!("{name}.json.gz"));
        let mut text = String::new();
        let packed = std::fs::File::open(&path).unwrap();
        flate2::read::GzDecoder::new(packed).read_to_string(&mut text).unwrap();
        let written = |file: &str, text: &str| {
            let path = folder.path().join(file);
            std::fs::write(&path, text).unwrap();
            path
        };
        let copy = written("copy.json", &text);
        assert!(!text.contains("\"distributedInfo\""));
        let rank = text.replacen('{', "{\"distributedInfo\": {\"rank\": 1},", 1);
        let rank = written("rank.json", &rank);
        let before = analyzed(std::slice::from_ref(&path));
        let mut copied = analyzed(&[path.clone(), copy]);
        let findings = copied["findings"].as_array_mut().unwrap();
        let count = findings.len();
        findings.retain(|it| it["id"] != "trace_repeated");
        assert_eq!(findings.len(), count - 1, "a copy is named");
        for table in ["stages", "kernels_topk", "findings", "ranks", "environment", "aggregates"] {
            assert_eq!(copied[table], before[table], "{name}: {table}");
        }
        let after = analyzed(&[path, rank]);
        let mut found = Vec::new();
        let mut compared = Compared::new();
        for table in &TABLES {
            compare(table, (&before, &after), &mut compared, &mut found);
        }
        assert!(compared.len() > 20, "{name}: {compared:?}");
        let count = found.len();
        found.truncate(4);
        differ.extend(found.iter().map(|it| format!("{name} ({count}): {it}")));
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

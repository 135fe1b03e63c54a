//! Changes of real captures that change nothing of what ran: the report stays the same.

use std::process::Command;

use rusqlite::Connection;
use serde_json::Value;

use crate::support::{captures::capture, extent};

const CAPTURES: [&str; 5] = [
    "hf-llama-e2e",
    "torch-cuda-graph-node",
    "jax-steps",
    "hf-serve-window",
    "h200-gpu-metrics-10khz",
];
/// Largest difference of two figures, as a share: sums in another order round differently.
const TOLERANCE: f64 = 1e-6;

/// A change of an export.
struct Relation {
    name: &'static str,
    /// Columns whose values grow, in every table that has them, and by how much.
    grow: &'static [(&'static [&'static str], i64)],
    /// Zero, which stands for none, does not grow.
    keeps_zero: bool,
    /// The rows of each table are reversed.
    reverses: bool,
    /// HIP makes the calls of CUDA's runtime.
    is_hip: bool,
    /// Fields of the report that state what the change changes.
    fields: &'static [&'static str],
}

const NONE: Relation = Relation {
    name: "",
    grow: &[],
    keeps_zero: false,
    reverses: false,
    is_hip: false,
    fields: &[],
};

/// Columns that refer to a text.
const TEXTS: [&str; 8] = [
    "nameId",
    "textId",
    "shortName",
    "demangledName",
    "mangledName",
    "jsonTextId",
    "filenameId",
    "contentId",
];

const RELATIONS: [Relation; 8] = [
    Relation {
        name: "recorded later",
        grow: &[(&["start", "end", "timestamp"], 3_000_000_007)],
        ..NONE
    },
    Relation { name: "other ids of texts", grow: &[(&TEXTS, 10_000_000)], ..NONE },
    Relation {
        name: "other correlation ids",
        grow: &[(&["correlationId"], 700_000)],
        keeps_zero: true,
        ..NONE
    },
    Relation {
        name: "other process ids",
        grow: &[
            (&["globalTid", "globalPid", "endGlobalTid"], 77 << 24),
            (&["pid", "processId"], 77),
        ],
        fields: &["process"],
        ..NONE
    },
    Relation {
        name: "other ids of streams and contexts",
        grow: &[(&["streamId", "nullStreamId"], 40), (&["contextId"], 9)],
        fields: &["track"],
        ..NONE
    },
    Relation {
        name: "other ids of graph nodes",
        grow: &[(&["graphNodeId", "originalGraphNodeId"], 1 << 33)],
        keeps_zero: true,
        ..NONE
    },
    Relation { name: "rows in the reverse order", reverses: true, ..NONE },
    Relation { name: "calls of HIP", is_hip: true, ..NONE },
];

impl Relation {
    fn apply(&self, export: &Connection) {
        let names = |sql: &str| -> Vec<String> {
            let mut query = export.prepare(sql).unwrap();
            query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
        };
        let tables =
            names("select name from sqlite_master where type = 'table' and name not like 'ENUM%'");
        let run = |sql: &str| export.execute_batch(sql).unwrap_or_else(|it| panic!("{sql}: {it}"));
        if self.is_hip {
            run("update StringIds set value = 'hip' || substr(value, 5) \
                 where value glob 'cuda[A-Z]*'");
        }
        for table in tables {
            let columns = names(&format!("select name from pragma_table_info('{table}')"));
            for (grown, by) in self.grow {
                for column in columns.iter().filter(|it| grown.contains(&it.as_str())) {
                    let only =
                        if self.keeps_zero { format!("where {column} <> 0") } else { "".into() };
                    run(&format!("update {table} set {column} = {column} + {by} {only}"));
                }
            }
            if self.grow.iter().any(|(grown, _)| **grown == TEXTS) && table == "StringIds" {
                // In two steps: no id may occur twice meanwhile.
                run("update StringIds set id = -id - 10000000; update StringIds set id = -id");
            }
            if self.reverses {
                run(&format!(
                    "create temp table reversed as select * from {table} order by rowid desc; \
                     delete from {table}; insert into {table} select * from reversed; \
                     drop table reversed"
                ));
            }
        }
    }
}

/// Adds the places where two reports differ, without the `stated` fields.
fn compare(stated: &[&str], place: &str, before: &Value, after: &Value, differ: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) if before.len() == after.len() => {
            for (key, value) in before.iter().filter(|(key, _)| !stated.contains(&key.as_str())) {
                let after = after.get(key).unwrap_or(&Value::Null);
                compare(stated, &format!("{place}/{key}"), value, after, differ);
            }
        }
        (Value::Array(before), Value::Array(after)) if before.len() == after.len() => {
            for (at, (before, after)) in before.iter().zip(after).enumerate() {
                compare(stated, &format!("{place}/{at}"), before, after, differ);
            }
        }
        _ if before == after || is_near(before, after) => {}
        _ => differ.push(format!("{place}: {before:.200} was {after:.200}")),
    }
}

/// The places where the report of a changed capture differs, without the fields that state the
/// changes. The size of the file is part of the run's specification.
fn differences(name: &str, before: &Value, relations: &[Relation]) -> Vec<String> {
    let stated: Vec<&str> =
        relations.iter().flat_map(|it| it.fields).copied().chain(["spec"]).collect();
    let mut differ = Vec::new();
    compare(&stated, "", before, &report(name, relations), &mut differ);
    differ
}

fn is_near(before: &Value, after: &Value) -> bool {
    let numbers = before.as_f64().zip(after.as_f64());
    numbers.is_some_and(|(a, b)| (a - b).abs() <= TOLERANCE * a.abs().max(b.abs()))
}

/// The report of a capture with these changes; CUDA's names stand for HIP's in it.
fn report(name: &str, relations: &[Relation]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sqlite");
    capture(name, &path, "").unwrap();
    let export = Connection::open(&path).unwrap();
    relations.iter().for_each(|it| it.apply(&export));
    drop(export);
    let mut analyze = Command::new(env!("CARGO_BIN_EXE_llmprof"));
    let output = analyze.arg("analyze").arg(&path).args(["--format", "json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&String::from_utf8(output.stdout).unwrap().replace("hip", "cuda")).unwrap()
}

/// All changes together on each capture; in `just thorough`, also each change alone on one of them.
#[test]
fn what_does_not_change_the_run_does_not_change_its_report() {
    let before = CAPTURES.map(|name| report(name, &[]));
    let all = (0..CAPTURES.len()).map(|at| (at, &RELATIONS[..]));
    let alone = RELATIONS.chunks(1).enumerate().map(|(at, one)| (at % CAPTURES.len(), one));
    let mut differ = Vec::new();
    for (at, relations) in all.chain(alone.take(extent(0, RELATIONS.len()))) {
        let found = differences(CAPTURES[at], &before[at], relations);
        let Some(first) = found.first() else { continue };
        let names: Vec<&str> = relations.iter().map(|it| it.name).collect();
        let (name, count) = (CAPTURES[at], found.len());
        differ.push(format!("{name}, {}: {count} places, the first {first}", names.join(", ")));
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}

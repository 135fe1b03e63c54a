//! Captures without the rows of a table: what a finding calls absent is absent from the file, and
//! what it advises to record is not recorded.

use std::{collections::BTreeMap, fs, path::Path};

use llmprof_analyze::{Analysis, analyze, parse};
use llmprof_core::{
    domain::{finding::Finding, subject::SubjectKind},
    trace::Trace,
};
use regex::Regex;
use rusqlite::Connection;

use crate::{
    repository::sources::sources,
    support::captures::{MOCK, capture},
};

/// Captures whose tables are changed, each in turn.
const CHANGED: [&str; 2] = [MOCK, "torch-cuda-graph-node"];
/// Changes of a table.
const CHANGES: [&str; 3] =
    ["drop table {}", "delete from {}", "delete from {} where rowid > (select min(rowid) from {})"];

/// Numbers of rows by table, and the facts of the recording.
struct Recorded {
    rows: BTreeMap<String, i64>,
    options: Vec<(String, String)>,
    ranges: i64,
}

impl Recorded {
    fn of(path: &Path) -> Self {
        let db = Connection::open(path).unwrap();
        let list = |sql: &str| -> Vec<(String, String)> {
            let Ok(mut statement) = db.prepare(sql) else { return vec![] };
            let text = |row: &rusqlite::Row, at: usize| {
                row.get::<_, Option<String>>(at).map(Option::unwrap_or_default)
            };
            let rows = statement.query_map([], |row| Ok((text(row, 0)?, text(row, 1)?)));
            rows.unwrap().map(Result::unwrap).collect()
        };
        let count = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap_or(0);
        let tables = list("select name, '' from sqlite_schema where type = 'table'");
        let rows = tables.into_iter().map(|(table, _)| {
            let rows = count(&format!("select count(*) from \"{table}\""));
            (table, rows)
        });
        Self {
            rows: rows.collect(),
            options: list("select name, cast(value as text) from META_DATA_CAPTURE"),
            ranges: count("select count(*) from NVTX_EVENTS where eventType in (59, 60)"),
        }
    }

    fn rows(&self, table: &str) -> i64 {
        self.rows.get(table).copied().unwrap_or(0)
    }

    fn has_option(&self, name: &str, value: &str) -> bool {
        self.options.iter().any(|it| it.0.ends_with(name) && it.1.eq_ignore_ascii_case(value))
    }

    /// The sentence of a finding that the file contradicts.
    fn contradicts(&self, finding: &Finding) -> Option<&'static str> {
        let advice = finding.advice.as_deref().unwrap_or_default();
        let has_text = |text: &str| finding.message.contains(text) || advice.contains(text);
        let contradicted = self.texts().into_iter().filter(|(_, is_contradicted)| *is_contradicted);
        contradicted.map(|(text, _)| text).find(|text| has_text(text))
    }

    /// Texts of findings; true if the file contradicts the text.
    fn texts(&self) -> [(&'static str, bool); 7] {
        let has_kernels = self.rows("CUPTI_ACTIVITY_KIND_KERNEL") > 0;
        let has_calls = self.rows("CUPTI_ACTIVITY_KIND_RUNTIME") > 0;
        let has_cuda = has_kernels || has_calls;
        [
            ("contains no kernels", has_kernels),
            ("and the kernels of none", has_kernels || !has_calls),
            ("and no kernels", has_kernels),
            ("no calls of the CUDA API", has_calls),
            ("Record the CUDA API", has_cuda),
            ("has no ranges", self.ranges > 0),
            ("cuda-graph-trace=node", self.has_option("GRAPH_TRACE_OPTIONS:MODE", "node")),
        ]
    }
}

/// The analysis of a capture changed by `sql`, and what its file has.
fn analyzed(name: &str, sql: &str) -> (Analysis, Recorded) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sqlite");
    capture(name, &path, sql).unwrap();
    let nsys = parse::nsys::read(&path).unwrap();
    let findings = nsys.findings.clone();
    let trace = Trace { timeline: Some(nsys), subject: SubjectKind::Import, ..Trace::default() };
    let mut analysis = analyze(&trace, None, None);
    analysis.findings.extend(findings);
    (analysis, Recorded::of(&path))
}

fn fixtures() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures");
    let files = fs::read_dir(folder).unwrap().map(|it| it.unwrap().file_name());
    let names = files.filter_map(|it| Some(it.to_str()?.strip_suffix(".sqlite.zst")?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Names of tables in the sources of the reader.
fn is_read(table: &str) -> bool {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/analyze/src/parse/nsys");
    let files = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
    let quoted = format!("\"{table}\"");
    files
        .filter(|path| path.extension().is_some_and(|it| it == "rs"))
        .any(|path| fs::read_to_string(path).unwrap().contains(&quoted))
}

#[test]
fn a_finding_calls_absent_only_what_the_file_lacks() {
    for name in CHANGED {
        let (_, whole) = analyzed(name, "");
        let tables = || whole.rows.iter().filter(|(table, rows)| **rows > 0 && is_read(table));
        assert!(tables().count() >= 8, "{:?}", whole.rows);
        for (table, _) in tables() {
            for sql in CHANGES {
                let sql = sql.replace("{}", table);
                let (analysis, file) = analyzed(name, &sql);
                let findings = &analysis.findings;
                for it in findings {
                    assert_eq!(file.contradicts(it), None, "{name}: {sql}: {it:?}");
                }
                let has = |id: &str| findings.iter().any(|it| it.id == id);
                let lacks_names = file.rows("StringIds") < whole.rows("StringIds");
                assert_eq!(has("nsys_columns_missing"), lacks_names, "{name}: {sql}");
                assert!(!has("calls_unknown"), "{name}: {sql}");
                let kernels = |it: &Recorded| it.rows("CUPTI_ACTIVITY_KIND_KERNEL");
                let lost = findings.iter().filter(|it| it.id == "kernels_lost");
                let lost = lost.map(|it| it.evidence["missing kernels"].parse::<u64>().unwrap());
                let lost = i64::try_from(lost.sum::<u64>()).unwrap();
                assert!(lost <= kernels(&whole) - kernels(&file), "{name}: {sql}");
                let is_lost = kernels(&file) < kernels(&whole);
                assert!(!is_lost || !has("stage_without_work"), "{name}: {sql}");
            }
        }
    }
}

#[test]
fn cuda_is_advised_to_be_recorded_only_if_nothing_shows_that_it_was() {
    let without = |tables: &[&str]| -> String {
        tables.iter().map(|it| format!("drop table if exists {it}; ")).collect()
    };
    let work = [
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "CUPTI_ACTIVITY_KIND_MEMSET",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    ];
    let (calls, options, own) =
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "META_DATA_CAPTURE", "PROFILER_OVERHEAD");
    let of_other = "delete from StringIds where value like 'CUDA profiling init%'";
    let no_launches = "delete from CUPTI_ACTIVITY_KIND_RUNTIME where nameId not in (select id from \
                       StringIds where value like 'cudaMalloc%' or value like 'cudaGet%')";
    for (dropped, sql, is_recorded) in [
        (&[calls][..], "", true),
        (&[calls, options], "", true),
        (&[calls, own], "", true),
        (&[options, own], no_launches, true),
        (&[calls, options], of_other, false),
        (&[calls, options, own], "", false),
    ] {
        let sql = format!("{}{}{sql}", without(&work), without(dropped));
        let (analysis, _) = analyzed(MOCK, &sql);
        let found = analysis.findings.iter().find(|it| it.id == "no_kernel_data").unwrap();
        let advice = found.advice.as_deref().unwrap();
        assert_eq!(advice.contains("Record the CUDA API"), !is_recorded, "{sql}: {found:?}");
        assert_eq!(found.message.contains("CUDA was recorded"), is_recorded, "{sql}");
    }
}

#[test]
fn every_text_that_a_file_can_contradict_is_in_the_sources() {
    let sources = sources(&["core", "analyze", "report"]);
    // A literal of several lines is one text.
    let continued = Regex::new(r"\\\n\s*").unwrap();
    let code: String = sources.iter().map(|it| continued.replace_all(&it.code, "")).collect();
    let (_, file) = analyzed(MOCK, "");
    for (text, _) in file.texts() {
        assert!(code.contains(text), "{text}");
    }
}

#[test]
fn no_capture_of_the_fixtures_lost_work_or_is_advised_to_record_what_it_has() {
    for name in fixtures() {
        let (analysis, file) = analyzed(&name, "");
        for it in &analysis.findings {
            assert_eq!(file.contradicts(it), None, "{name}: {it:?}");
            let is_loss = ["kernels_lost", "nsys_columns_missing", "calls_unknown"];
            assert!(!is_loss.contains(&it.id.as_str()), "{name}: {it:?}");
        }
    }
}

#[test]
fn an_empty_name_is_no_absent_one() {
    let sql = "update StringIds set value = '' where id = (select max(shortName) from \
               CUPTI_ACTIVITY_KIND_KERNEL)";
    let (analysis, _) = analyzed(MOCK, sql);
    let names: Vec<&str> =
        analysis.kernels.records.iter().map(|it| it.kernel_name.as_str()).collect();
    assert!(!names.iter().any(|it| it.contains("is missing")), "{names:?}");
    assert!(analysis.findings.iter().all(|it| it.id != "nsys_columns_missing"));
}

//! Malicious and damaged files: each ends in an error that names the file, or in a report.
//!
//! `LLMPROF_FUZZ_CASES` sets the number of cases (default 32 per test); seeds are fixed, so that
//! failures are reproducible.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use llmprof_analyze::{
    Analysis,
    parse::{self, ParseError},
};
use llmprof_core::{domain::ids::RunId, trace::Trace};
use llmprof_report::pipeline::{self, Statements};
use llmprof_service::config;
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use rusqlite::Connection;
use uuid::Uuid;

/// Rows kept of each table of a real capture: enough for every table to have rows, few enough for a
/// hundred reads.
const KEPT: u32 = 120;

fn runner() -> TestRunner {
    let cases =
        std::env::var("LLMPROF_FUZZ_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(32);
    let seed =
        std::env::var("LLMPROF_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7u8);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]))
}

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures").join(name);
    let mut bytes = Vec::new();
    zstd::stream::read::Decoder::new(File::open(path).unwrap())
        .unwrap()
        .read_to_end(&mut bytes)
        .unwrap();
    bytes
}

/// A real capture with CUDA graphs, cut to its first rows.
static EXPORT: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("small.sqlite");
    fs::write(&path, fixture("torch-cuda-graph-node.sqlite.zst")).unwrap();
    let db = Connection::open(&path).unwrap();
    let tables = tables(&db);
    for table in tables.iter().filter(|name| !name.starts_with("META") && !name.starts_with("ENUM"))
    {
        db.execute_batch(&format!(
            "delete from \"{table}\" where rowid > (select min(rowid) + {KEPT} from \"{table}\")"
        ))
        .unwrap();
    }
    db.execute_batch("vacuum").unwrap();
    drop(db);
    fs::read(path).unwrap()
});

fn tables(db: &Connection) -> Vec<String> {
    let mut names = db
        .prepare("select name from sqlite_master where type = 'table' and name not like 'sqlite_%'")
        .unwrap();
    names.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// A change to bytes: some overwritten, a section copied elsewhere, the end cut off.
#[derive(Debug, Clone)]
struct Damage {
    flips: Vec<(usize, u8)>,
    splice: Option<(usize, usize, usize)>,
    cut: Option<usize>,
}

fn damage() -> impl Strategy<Value = Damage> {
    let place = || any::<u32>().prop_map(|place| place as usize);
    (
        prop::collection::vec((place(), any::<u8>()), 0..24),
        prop::option::weighted(0.4, (place(), place(), 1usize..4096)),
        prop::option::weighted(0.2, place()),
    )
        .prop_map(|(flips, splice, cut)| Damage { flips, splice, cut })
}

impl Damage {
    fn applied(&self, whole: &[u8]) -> Vec<u8> {
        let mut bytes = whole.to_vec();
        if let Some((from, to, length)) = self.splice {
            let (from, to) = (from % bytes.len(), to % bytes.len());
            let length = length.min(bytes.len() - from.max(to));
            bytes.copy_within(from..from + length, to);
        }
        for (at, byte) in &self.flips {
            let at = at % bytes.len();
            bytes[at] = *byte;
        }
        if let Some(cut) = self.cut {
            bytes.truncate(cut % bytes.len());
        }
        bytes
    }
}

/// Reads and analyses a capture and renders all forms of its report, as `llmprof analyze` does.
pub fn analysed(path: &Path) -> Result<(), TestCaseError> {
    match pipeline::analyze_capture(
        &[path.to_owned()],
        &[],
        Statements::default(),
        &config::devices().unwrap(),
    ) {
        Ok(analyzed) => {
            let files = analyzed.render(RunId(Uuid::nil()));
            let report = files
                .iter()
                .find(|(name, _)| *name == "report.json")
                .map(|(_, text)| text.as_str());
            prop_assert!(
                serde_json::from_str::<serde_json::Value>(report.unwrap_or_default()).is_ok()
            );
            let trace = Trace { timeline: parse::nsys::read(path).ok(), ..Trace::default() };
            prop_assert!(
                llmprof_report::perfetto::write(&trace, &Default::default(), std::io::sink())
                    .is_ok()
            );
        }
        Err(error) => check_names_file(&error, path)?,
    }
    Ok(())
}

/// Checks that an error names the file.
fn check_names_file(error: &dyn std::error::Error, path: &Path) -> Result<(), TestCaseError> {
    let text = llmprof_core::chain(error);
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    prop_assert!(text.contains(&*file) && text.lines().count() == 1, "{text}");
    Ok(())
}

/// Writes a file and returns its path.
pub fn write(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn a_damaged_export_ends_in_an_error_or_a_report() {
    let dir = tempfile::tempdir().unwrap();
    let run = runner().run(&damage(), |damage| {
        analysed(&write(dir.path(), "run.sqlite", &damage.applied(&EXPORT)))
    });
    run.unwrap();
}

/// A value of a type or range that a column does not expect.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("null".to_owned()),
        Just("'text'".to_owned()),
        Just("x'00ff'".to_owned()),
        Just("1e300".to_owned()),
        Just("0.5".to_owned()),
        Just("zeroblob(1000000)".to_owned()),
        Just("printf('%.*c', 1000000, 'n')".to_owned()),
        prop::sample::select(vec![
            i64::MIN,
            i64::MIN + 1,
            -1,
            0,
            1,
            1 << 24,
            1 << 31,
            1 << 32,
            1 << 61,
            i64::MAX
        ])
        .prop_map(|n| n.to_string()),
        any::<i64>().prop_map(|n| n.to_string()),
    ]
}

/// An update: table, column and value, each chosen from the file, and true for all rows, else every
/// third.
type Edit = (prop::sample::Index, prop::sample::Index, String, bool);

#[test]
fn an_export_with_impossible_values_ends_in_an_error_or_a_report() {
    let dir = tempfile::tempdir().unwrap();
    let edit = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), value(), any::<bool>());
    let run = runner().run(&prop::collection::vec(edit, 1..4), |edits: Vec<Edit>| {
        let path = write(dir.path(), "run.sqlite", &EXPORT);
        let db = Connection::open(&path).unwrap();
        let read = [
            "CUPTI_ACTIVITY_KIND_KERNEL",
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            "CUDA_GRAPH_NODE_EVENTS",
            "NVTX_EVENTS",
            "StringIds",
        ];
        let tables: Vec<String> =
            tables(&db).into_iter().filter(|name| read.contains(&name.as_str())).collect();
        for (table, column, value, all) in edits {
            let table = &tables[table.index(tables.len())];
            let mut columns =
                db.prepare(&format!("select name from pragma_table_info('{table}')")).unwrap();
            let columns: Vec<String> =
                columns.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
            let column = &columns[column.index(columns.len())];
            let only = if all { "" } else { " where rowid % 3 = 0" };
            // Updates refused by a constraint are skipped.
            db.execute_batch(&format!(
                "update or ignore \"{table}\" set \"{column}\" = {value}{only}"
            ))
            .ok();
        }
        drop(db);
        analysed(&path)
    });
    run.unwrap();
}

#[test]
fn a_damaged_page_of_ncu_ends_in_an_error_or_its_launches() {
    let dir = tempfile::tempdir().unwrap();
    let pages: Vec<Vec<u8>> = ["raw", "details"]
        .iter()
        .map(|page| fixture(&format!("hf-llama-decode.ncu-{page}.csv.zst")))
        .map(|page| page[..page.len().min(120_000)].to_vec())
        .collect();
    let run = runner().run(&(damage(), any::<bool>()), |(damage, raw)| {
        let path = write(dir.path(), "page.csv", &damage.applied(&pages[usize::from(raw)]));
        match parse::ncu::read_file(&path) {
            Ok(page) => {
                let trace = Trace { counters: page.launches, ..Trace::default() };
                let Analysis { counters, .. } = llmprof_analyze::analyze(&trace, None, None);
                prop_assert!(
                    counters.iter().all(|it| it.flops_per_byte.is_none_or(f64::is_finite))
                );
                Ok(())
            }
            Err(error) => check_names_file(&error, &path),
        }
    });
    run.unwrap();
}

#[test]
fn damaged_cublas_logs_end_in_gemms_or_gaps() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("gemm_log/all");
    fs::create_dir_all(&folder).unwrap();
    let logs =
        [("cublas.log", "candle-probe.cublas.log.zst"), ("cublaslt.log", "torch.cublaslt.log.zst")]
            .map(|(name, from)| (name, fixture(from).into_iter().take(60_000).collect::<Vec<_>>()));
    let run = runner().run(&[damage(), damage()], |damages| {
        for ((name, whole), damage) in logs.iter().zip(damages) {
            write(&folder, name, &damage.applied(whole));
        }
        let gemms = parse::cublas::read(dir.path())
            .map_err(|error| TestCaseError::fail(error.to_string()))?;
        let analysis = llmprof_analyze::analyze(&Trace { gemms, ..Trace::default() }, None, None);
        prop_assert!(
            analysis.gemms.records.iter().all(|it| it.share_pct.is_none_or(f64::is_finite))
        );
        Ok(())
    });
    run.unwrap();
}

/// Checks the result of reading a damaged file of lines.
fn lines(read: Result<Trace, ParseError>, path: &Path) -> Result<(), TestCaseError> {
    match read {
        Ok(trace) => {
            llmprof_analyze::analyze(&trace, None, None);
            prop_assert!(
                llmprof_report::perfetto::write(&trace, &Default::default(), std::io::sink())
                    .is_ok()
            );
            Ok(())
        }
        Err(error) => check_names_file(&error, path),
    }
}

#[test]
fn damaged_events_and_samples_end_in_an_error_or_an_analysis() {
    let dir = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let events = fs::read(fixtures.join("events-tiny.jsonl")).unwrap();
    let samples = fs::read(fixtures.join("nvml-synthetic.jsonl")).unwrap();
    // Replacing digits keeps the line's form but makes times and sizes impossible.
    let digits = prop::collection::vec((any::<u32>(), b'0'..=b'9'), 0..40);
    let run = runner().run(&(damage(), digits, any::<bool>()), |(damage, digits, broken)| {
        let changed = |whole: &[u8]| {
            let mut bytes = if broken { damage.applied(whole) } else { whole.to_vec() };
            let places: Vec<usize> =
                (0..bytes.len()).filter(|at| bytes[*at].is_ascii_digit()).collect();
            for (at, digit) in digits.iter().filter(|_| !places.is_empty()) {
                bytes[places[*at as usize % places.len()]] = *digit;
            }
            bytes
        };
        let path = write(dir.path(), "events.jsonl", &changed(&events));
        lines(
            parse::events::read(&path)
                .map(|log| Trace { baseline: log.events, ..Trace::default() }),
            &path,
        )?;
        let path = write(dir.path(), "nvml.jsonl", &changed(&samples));
        lines(
            parse::power::read(&path).map(|(power, _)| Trace { power, ..Trace::default() }),
            &path,
        )
    });
    run.unwrap();
}

//! The analysis of a run on an H200: unprofiled pass with NVML, nsys 2025.3, ncu 2025.3 per stage,
//! cuBLAS logs. `tests/gpu/run.sh --out DIR` records such a folder with the small model.

use std::{collections::BTreeMap, fs::File, path::Path};

use llmprof_core::domain::ids::RunId;
use llmprof_report::pipeline::{self, Analyzed, Statements};
use llmprof_service::config;

use crate::support::golden::golden;

const RUN: &str = "01a1fecd-57a8-739e-a1a3-cfee1424367e";
/// Files with golden files: every table, and the Markdown report.
const GOLDEN: [&str; 9] = [
    "report.md",
    "kernels.csv",
    "counters.csv",
    "roofline.csv",
    "mfu.csv",
    "regions.csv",
    "power.csv",
    "gemms.csv",
    "ledger.csv",
];

/// Max share of a stage without a cause, percent.
const MAX_UNEXPLAINED_PCT: f64 = 10.0;

/// The analysis of a packed run.
fn analyzed(name: &str, run: &str) -> Analyzed {
    analyzed_with(name, run, "")
}

/// The same, with the capture of nsys changed by SQL.
fn analyzed_with(name: &str, run: &str, sql: &str) -> Analyzed {
    let dir = tempfile::tempdir().unwrap();
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures").join(name);
    let packed = zstd::stream::Decoder::new(File::open(packed).unwrap()).unwrap();
    tar::Archive::new(packed).unpack(dir.path()).unwrap();
    let dir = dir.path().join(run);
    rusqlite::Connection::open(dir.join("nsys/run.sqlite")).unwrap().execute_batch(sql).unwrap();
    let devices = config::devices().unwrap();
    pipeline::analyze_with(&dir, Statements::default(), &devices).unwrap()
}

/// Removes the warm-up, whose events the packed run does not have.
const NO_WARMUP: &str = "delete from NVTX_EVENTS where exists (select 1 from NVTX_EVENTS warmup
    where warmup.textId = (select id from StringIds where value = 'warmup')
      and NVTX_EVENTS.start between warmup.start and warmup.end);";
/// Removes the ranges of operators outside of the captured graph.
const NO_LAUNCHED_OPERATORS: &str = "delete from NVTX_EVENTS where eventType = 59
    and domainId = (select domainId from NVTX_EVENTS where eventType = 75 and text = 'LLM.op')
    and not exists (select 1 from NVTX_EVENTS capture
        where capture.textId = (select id from StringIds where value = 'capture')
          and NVTX_EVENTS.start between capture.start and capture.end);";

#[test]
fn operators_of_events_have_the_kernels_that_their_ranges_have() {
    let run = "01a20566-80f0-771e-9834-906cb28aa72d";
    let files = |sql: &str| {
        let analyzed = analyzed_with("h200-deepseek-ocr.tar.zst", run, sql);
        analyzed.render(run.parse().unwrap())
    };
    let is_of_the_gpu = |name: &str| {
        let of_the_host = ["report.html", "report.json", "kernels.md", "tables.jsonl"];
        !of_the_host.contains(&name)
    };
    let events = files(&[NO_WARMUP, NO_LAUNCHED_OPERATORS].concat());
    for (ranges, events) in files(NO_WARMUP).into_iter().zip(events) {
        // The other files have times of the ranges on the host, too, which differ by a microsecond.
        assert!(!is_of_the_gpu(ranges.0) || ranges == events, "{} differs", ranges.0);
    }
}

#[test]
fn the_ledger_of_the_model_of_true_size_leaves_at_most_a_tenth_unexplained() {
    let run = "01a20566-80f0-771e-9834-906cb28aa72d";
    let files = analyzed("h200-deepseek-ocr.tar.zst", run).render(run.parse().unwrap());
    let file = |name: &str| &files.iter().find(|(file, _)| *file == name).unwrap().1;
    golden("h200-deepseek-ocr", "ledger.csv", file("ledger.csv"));
    golden("h200-deepseek-ocr", "ledger_members.csv", file("ledger_members.csv"));
    let mut sums: BTreeMap<String, i64> = BTreeMap::new();
    let mut table = csv::Reader::from_reader(file("ledger.csv").as_bytes());
    for row in table.records().map(Result::unwrap) {
        let (stage, cause) = (&row[0], &row[1]);
        *sums.entry(stage.into()).or_default() += row[2].parse::<i64>().unwrap();
        if cause == "unexplained" {
            let share: f64 = row[4].parse().unwrap();
            assert!(share <= MAX_UNEXPLAINED_PCT, "{share} % of {stage} are unexplained");
        }
    }
    assert_eq!(sums, [("decode_all".into(), 43_165_023), ("prefill".into(), 23_824_509)].into());
}

/// A table by its columns.
fn rows(text: &str) -> Vec<BTreeMap<String, String>> {
    csv::Reader::from_reader(text.as_bytes()).deserialize().map(Result::unwrap).collect()
}

#[test]
fn tables_of_the_same_launches_give_the_same_flops_per_byte() {
    let big = "01a20566-80f0-771e-9834-906cb28aa72d";
    for (name, run) in [("h200-deepseek-ocr-tiny.tar.zst", RUN), ("h200-deepseek-ocr.tar.zst", big)]
    {
        let files = analyzed(name, run).render(run.parse().unwrap());
        let table = |name: &str| rows(&files.iter().find(|(file, _)| *file == name).unwrap().1);
        let points = table("roofline.csv");
        let mut compared = 0;
        for row in table("kernels.csv") {
            let is_same = |point: &&BTreeMap<String, String>| {
                ["stage", "kernel_name"].iter().all(|name| point[*name] == row[*name])
                    && point["profiled"] == row["counters.profiled"]
                    && point["launch_configs"] == row["counters.launch_configs"]
            };
            let Some(point) = points.iter().find(is_same) else { continue };
            let intensity = |text: &str| text.parse::<f64>().ok();
            match [&row["counters.flops_per_byte"], &point["flops_per_byte"]]
                .map(|it| intensity(it))
            {
                [Some(one), Some(other)] => {
                    assert!((one - other).abs() <= 1e-9 * one, "{one} {other} {row:?}");
                    compared += 1;
                }
                [one, other] => assert_eq!(one, other, "{row:?}"),
            }
        }
        assert!(compared >= 5, "{compared} of {name}");
    }
}

#[test]
fn a_run_on_an_h200_has_the_blessed_report() {
    let analyzed = analyzed("h200-deepseek-ocr-tiny.tar.zst", RUN);
    let id: RunId = RUN.parse().unwrap();
    let files = analyzed.render(id);
    for name in GOLDEN {
        let (_, text) = files
            .iter()
            .find(|(file, _)| *file == name)
            .unwrap_or_else(|| panic!("{name} is not rendered"));
        golden("h200", name, text);
    }

    let ids: Vec<String> = analyzed.findings(id).iter().map(|it| it.id.clone()).collect();
    for unexpected in [
        "incomplete_capture",
        "power_not_sampled",
        "counters_unusable",
        "roofline_impossible",
        "ceiling_surpassed",
    ] {
        assert!(!ids.contains(&unexpected.to_owned()), "{unexpected} in: {ids:?}");
    }
}

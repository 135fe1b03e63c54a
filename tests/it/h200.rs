//! A whole run that a service on an H200 left: plain pass with NVML, nsys 2025.3, ncu 2025.3 per stage, cuBLAS logs; and what is made of it.
//!
//! The small model, so that the captures are small; `tests/gpu/run.sh --out DIR` makes such a folder.

use std::{fs::File, path::Path};

use llmprof::{config, run::RunId, trace::stage::StageRules, worker::offline};

use crate::report::golden;

const RUN: &str = "01a1fecd-57a8-739e-a1a3-cfee1424367e";
/// What is held to its golden file: every table, and the report in its plainest form.
const HELD: [&str; 8] =
    ["report.md", "kernels.csv", "counters.csv", "roofline.csv", "mfu.csv", "regions.csv", "power.csv", "gemms.csv"];

#[test]
fn a_run_on_an_h200_gives_what_was_blessed() {
    let dir = tempfile::tempdir().unwrap();
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures/h200-deepseek-ocr-tiny.tar.zst");
    let packed = zstd::stream::Decoder::new(File::open(packed).unwrap()).unwrap();
    tar::Archive::new(packed).unpack(dir.path()).unwrap();
    let analyzed = offline::analyze_with(&dir.path().join(RUN), StageRules::default(), &config::devices().unwrap()).unwrap();
    let id: RunId = RUN.parse().unwrap();
    let files = analyzed.render(id);
    for name in HELD {
        let (_, text) = files.iter().find(|(file, _)| *file == name).unwrap_or_else(|| panic!("{name} is not made"));
        golden("h200", name, text);
    }

    let ids: Vec<String> = analyzed.findings(id).into_iter().map(|finding| finding.id).collect();
    for missing in ["incomplete_capture", "power_not_sampled", "counters_unusable", "roofline_impossible", "ceiling_surpassed"] {
        assert!(!ids.contains(&missing.to_owned()), "{missing} has no place here: {ids:?}");
    }
}

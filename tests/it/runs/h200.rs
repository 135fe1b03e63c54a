//! The analysis of a run on an H200: unprofiled pass with NVML, nsys 2025.3, ncu 2025.3 per stage,
//! cuBLAS logs. `tests/gpu/run.sh --out DIR` records such a folder with the small model.

use std::{fs::File, path::Path};

use llmprof::{config, domain::ids::RunId, pipeline, trace::stage::StageRules};

use crate::support::golden::golden;

const RUN: &str = "01a1fecd-57a8-739e-a1a3-cfee1424367e";
/// Files with golden files: every table, and the Markdown report.
const GOLDEN: [&str; 8] = [
    "report.md",
    "kernels.csv",
    "counters.csv",
    "roofline.csv",
    "mfu.csv",
    "regions.csv",
    "power.csv",
    "gemms.csv",
];

#[test]
fn a_run_on_an_h200_has_the_blessed_report() {
    let dir = tempfile::tempdir().unwrap();
    let packed = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/captures/h200-deepseek-ocr-tiny.tar.zst");
    let packed = zstd::stream::Decoder::new(File::open(packed).unwrap()).unwrap();
    tar::Archive::new(packed).unpack(dir.path()).unwrap();
    let analyzed = pipeline::analyze_with(
        &dir.path().join(RUN),
        StageRules::default(),
        &config::devices().unwrap(),
    )
    .unwrap();
    let id: RunId = RUN.parse().unwrap();
    let files = analyzed.render(id);
    for name in GOLDEN {
        let (_, text) = files
            .iter()
            .find(|(file, _)| *file == name)
            .unwrap_or_else(|| panic!("{name} is not rendered"));
        golden("h200", name, text);
    }

    let ids: Vec<String> = analyzed.findings(id).into_iter().map(|finding| finding.id).collect();
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
